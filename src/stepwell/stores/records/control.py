"""writer.lock: how the writer tells readers of this machine what it has done."""

import mmap
import os
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.files.regular import open_inside
from stepwell.stores.records.layout import LOCK

BYTES = 64


class Control(NamedTuple):
    sequence: int
    """Odd while entries are being changed."""
    commit: int
    length: int
    of_this_boot: bool
    """Whether it was written since the machine started; else it says nothing."""

    @property
    def settled(self) -> bool:
        return self.of_this_boot and self.sequence % 2 == 0


@cache
def boot_number() -> int:
    """Another number each time the machine starts; 0 where it has none."""
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text()
        return int(text.replace("-", "")[:16], 16)
    except (OSError, ValueError):
        return 0


def map_control(root: Path, *, write: bool = False) -> NDArray[np.uint8]:
    """The numbers of writer.lock; empty for a reader where there is no such file."""
    try:
        file = open_inside(root, LOCK, os.O_RDWR if write else os.O_RDONLY)
    except FileNotFoundError:
        return np.empty(0, np.uint8)
    try:
        if os.fstat(file).st_size < BYTES:
            if not write:
                return np.empty(0, np.uint8)
            os.pwrite(file, bytes(BYTES), 0)  # not a hole: a full disk is reported here
        access = mmap.ACCESS_WRITE if write else mmap.ACCESS_READ
        return np.frombuffer(mmap.mmap(file, BYTES, access=access), np.uint8)
    finally:
        os.close(file)


def read_control(control: NDArray[np.uint8]) -> Control:
    if not len(control):
        return Control(0, 0, 0, False)
    sequence, commit, length, boot = _core.read_control(control)
    return Control(sequence, commit, length, boot == boot_number() != 0)
