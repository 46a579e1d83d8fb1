"""Which loop accelerate counts the batches of.

Of the loader that began last, accelerate asks whether its last batch is under way, and how many
rows that has: it then steps, whatever has been accumulated, and `gather_for_metrics` leaves out the
rows that fill ranks up. Its own loaders stay there when a loop is left early, and hide the loop
around it. Ours go when a loop ends or is dropped; and a loop that goes on beside one that was
begun inside of it is asked again.
"""

import sys
from contextlib import suppress
from typing import Any

from stepwell.loop import Loop


def gradient_state() -> Any:
    """accelerate's, once the program has an Accelerator."""
    kept = getattr(sys.modules.get("accelerate.state"), "GradientState", None)
    return kept() if kept is not None and kept._shared_state else None


class CountedLoop(Loop):
    """A loop that accelerate asks, unless one of its own loaders is under way."""

    _is_beside = False  # another loop goes on while this one is kept: which is meant is not known

    @property
    def end_of_dataloader(self) -> bool:
        """Whether the batch that was handed over is the last one."""
        return self._left == 0

    @property
    def remainder(self) -> int:
        """Rows in the last batch of all ranks together; 0 if it is full, -1 if the rest is dropped.

        Where ranks do not divide it, those behind these are of the epoch's beginning.
        """
        loader: Any = self._loader
        if loader._drop_last:
            return -1
        whole: int = loader._batch_size * loader._world.size
        return int(loader._rows - loader._began_at) % whole

    def __next__(self) -> Any:
        try:
            batch = super().__next__()
        except BaseException:
            self._hide()
            raise
        if not self._is_beside:
            self._show()
        return batch

    def _show(self) -> None:
        state = gradient_state()
        known = state.dataloader_references
        if known[-1] is self:
            return
        if self in known:
            for other in known[known.index(self) + 1 :]:
                if isinstance(other, CountedLoop):
                    other._is_beside = True
        ours = [each for each in known if isinstance(each, CountedLoop)]
        if len(ours) < sum(each is not None for each in known):
            return  # one of accelerate's own
        kept = [each for each in ours if each is not self and not each._is_beside]
        state.dataloader_references = [None, *kept, self]

    def _hide(self) -> None:
        state = gradient_state()
        known = [] if state is None else state.dataloader_references
        kept = [each for each in known if each is not None and each is not self]
        if len(kept) + 1 < len(known):
            state.dataloader_references = [None, *kept]

    def __del__(self) -> None:
        with suppress(Exception):  # at the end of the program
            self._hide()
