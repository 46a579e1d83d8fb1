"""Units of a mirror that somebody has asked for."""

import os
from concurrent.futures import Future
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from stepwell.files.residents import Numbers, Slots
from stepwell.files.stand_in import Generations

if TYPE_CHECKING:
    from stepwell.files.mirror import Mirror


class Coming:
    """Units that are on their way, and stay once they are there, until `release`."""

    def __init__(
        self,
        mirror: "Mirror",
        units: Numbers,
        slots: Slots,
        requests: NDArray[np.int64],
        futures: dict[int, tuple["Future[None]", bool]],
    ) -> None:
        self._mirror, self._units, self._slots = mirror, units, slots
        self._requests, self._futures = requests, futures
        self._held = True
        self.others_failed = False
        """Whether what went wrong was a request that somebody else had begun."""

    @property
    def is_there(self) -> bool:
        return all(
            future.done() and future.exception() is None for future, _ in self._futures.values()
        )

    def wait(self, units: Numbers | None = None) -> None:
        futures = list(self._futures.values())
        if units is not None and futures:
            requests = self._requests[np.searchsorted(self._units, units)]
            each = np.unique(requests).tolist()
            futures = [self._futures[request] for request in each if request in self._futures]
        for future, is_own in futures:
            try:
                future.result()
            except Exception:
                self.others_failed = not is_own
                if is_own or units is None:
                    raise
                # Whose error it is; a take of these units asks for them itself.

    def generations(self) -> Generations:
        """As they are now; 0 of those that are not here, after all."""
        with self._mirror._lock:
            return self._mirror._units.generation[self._slots]

    def release(self) -> None:
        if self._held and self._mirror._process == os.getpid():
            self._held = False
            with self._mirror._lock:
                self._mirror._units.unpin(self._slots)
                self._mirror._drop(self._mirror._units.surplus())

    def __del__(self) -> None:
        if self._held:  # not here: this may be in the middle of anything
            self._mirror.abandoned.append(self._slots)
