"""One loop over a loader, which has the epochs and the engine."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stepwell import ranks

if TYPE_CHECKING:
    from stepwell.loader import Loader


class Loop(Iterator[Any]):
    """One loop over a loader; its number is -1 until it begins."""

    def __init__(self, loader: "Loader") -> None:
        self._loader = loader
        self._number = -1
        self._left = 0  # batches to come; -1 when the end was reported

    def __next__(self) -> Any:
        loader = self._loader
        with loader._turn:
            # The usual case. Everything else is looked at with the last batch of an epoch, or after
            # an error.
            quick = loader._quick
            if (
                quick is not None
                and self._left > 1
                and self._number == loader._loops
                and loader._unmet is None
                and (loader._given is not None or ranks.group() is loader._group)
            ):
                try:
                    batch, (epoch, _, _, position, _) = quick()
                    loader._epoch, loader._position = loader._reached = epoch, position
                except BaseException as error:
                    batch = loader._next(error)
                self._left -= 1
                return batch
            if self._number != loader._loops:
                if self._left < 0:
                    raise StopIteration
                if self._number >= 0:
                    raise RuntimeError("this loop was ended: the loader began another or was moved")
                self._left, self._number = loader._begin_loop(), loader._loops
            else:
                if loader._unmet is not None:
                    loader._meet()
                if loader._given is None and ranks.group() is not loader._group:
                    loader._check_group()
            if self._left <= 0:
                if self._left == 0:
                    self._left = -1
                    loader._stand(*loader._begins)
                raise StopIteration
            batch = loader._next()
            self._left -= 1
            if self._left == 0:
                loader._reached = loader._epoch + 1, 0
                loader._at_end = loader._worker[1] == 1
            return batch
