"""Memory that rows wait in until they are written, used again and again.

The pages of fresh memory cost several times more than the copy into them. Slots are cut from large
pieces on huge pages, and come back when their row is on the disk.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.stores.replay.items import Payload

__all__ = ["LEAST_BYTES", "Slots", "in_slots", "touched"]

LEAST_BYTES = 4096  # smaller rows are bytes, which Python keeps memory for
_PIECE_BYTES = 4 << 20


class Slots:
    """Slots by size. The caller holds a lock."""

    def __init__(self) -> None:
        self._free: dict[int, list[NDArray[np.uint8]]] = {}
        self._used: dict[int, int] = {}  # since somebody asked what is wanting

    def copy(self, array: NDArray[Any]) -> NDArray[np.uint8]:
        """A copy of an array as bytes."""
        size = array.nbytes
        free = self._free.get(size)
        if not free:
            free = self._free.setdefault(size, [])
            free += _cut(size)
        slot = free.pop()
        self._used[size] = self._used.get(size, 0) + 1
        if array.flags.c_contiguous:
            _core.copy_bytes(array, slot)
        else:
            slot.view(array.dtype).reshape(array.shape)[...] = array
        return slot

    def wanting(self, rows: int, most_bytes: int) -> list[tuple[int, int]]:
        """How many slots of each size there should be more of: as many again as were used since
        the last time, at least `rows`."""
        used, self._used = self._used, {}
        sizes = len(self._free) or 1
        return [
            (size, missing)
            for size, count in used.items()
            if (
                missing := min(max(rows, count), most_bytes // sizes // size)
                - len(self._free[size])
            )
            > 0
        ]

    def add(self, size: int, slots: Iterable[NDArray[np.uint8]]) -> None:
        self._free[size].extend(slots)

    def give_back(self, data: Iterable[Payload]) -> None:
        """Nobody looks at these any more."""
        for size, slots in in_slots(data).items():
            self.add(size, slots)


def in_slots(data: Iterable[Payload]) -> dict[int, list[NDArray[np.uint8]]]:
    """Those that lie in slots, by size. Needs no lock."""
    found: dict[int, list[NDArray[np.uint8]]] = {}
    for each in data:
        if isinstance(each, np.ndarray):
            found.setdefault(len(each), []).append(each)
    return found


def touched(size: int, count: int) -> list[NDArray[np.uint8]]:
    """New slots whose pages are there already. Needs no lock."""
    made: list[NDArray[np.uint8]] = []
    while len(made) < count:
        made += _cut(size, touch=True)
    return made


def _cut(size: int, *, touch: bool = False) -> list[NDArray[np.uint8]]:
    count = max(1, _PIECE_BYTES // size)
    piece = _core.allocate(count * size)
    if touch:
        piece[::4096] = 0
    return [piece[i * size : (i + 1) * size] for i in range(count)]
