"""A chunk that is being written to."""

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.files.atomic import write_all
from stepwell.stores.records.layout import CHUNKS
from stepwell.stores.records.meta import ChunkState

__all__ = ["ChunkFile", "chunk_path"]


def chunk_path(root: Path, number: int) -> Path:
    return root / CHUNKS / f"{number}.zr"


class ChunkFile:
    """Frames go to the end of it. It grows ahead of them, so that readers map it once."""

    def __init__(self, root: Path, state: ChunkState, grow_bytes: int) -> None:
        self.id, self.position, self.records = state
        self.path = chunk_path(root, self.id)
        self._grow_bytes = grow_bytes
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._size = os.fstat(self._file).st_size
        self._dirty = False

    @property
    def state(self) -> ChunkState:
        return ChunkState(self.id, self.position, self.records)

    def write(self, frames: NDArray[np.uint8], records: int) -> None:
        end = self.position + len(frames)
        if end > self._size:
            size = -(-end // self._grow_bytes) * self._grow_bytes
            os.ftruncate(self._file, size)
            self._size = size
        self._dirty = True
        write_all(self._file, frames, self.position, self.path)
        # The disk works while the next frames are made; the sync then waits for less.
        _core.begin_writeback(self._file, self.position, len(frames))
        self.position = end
        self.records += records

    def back_to(self, state: ChunkState) -> None:
        """Forget what was written since; the next frames go over it."""
        _, self.position, self.records = state

    def sync(self) -> None:
        if self._dirty:
            os.fdatasync(self._file)
            self._dirty = False

    def close(self, *, cut: bool) -> None:
        file, self._file = self._file, -1
        if file < 0:
            return
        try:
            if cut and self._size != self.position:
                os.ftruncate(file, self.position)
        finally:
            os.close(file)
