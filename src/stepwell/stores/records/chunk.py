"""Chunks that are being written to."""

import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.errors import FormatError
from stepwell.files.atomic import sync_path, write_all
from stepwell.files.regular import check_inside, open_inside
from stepwell.stores.records.layout import CHUNKS, MAX_CHUNKS, chunk_name
from stepwell.stores.records.meta import ChunkState, Meta


class ChunkFile:
    """Frames go to the end of it. It grows ahead of them, so that readers map it once."""

    def __init__(self, root: Path, state: ChunkState, grow_bytes: int) -> None:
        self.id, self.position, self.records = state
        self._root, self._name = root, chunk_name(self.id)
        self.path = root / self._name
        self._grow_bytes = grow_bytes
        self._file = -1
        self._size = 0
        self._dirty = False

    @property
    def state(self) -> ChunkState:
        return ChunkState(self.id, self.position, self.records)

    def write(self, frames: NDArray[np.uint8], records: int) -> None:
        if self._file < 0:
            self._file = open_inside(self._root, self._name, os.O_RDWR | os.O_CREAT)
            self._size = os.fstat(self._file).st_size
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

    def sync(self) -> None:
        if self._dirty:
            os.fdatasync(self._file)
            self._dirty = False

    def rest(self) -> None:
        """Synced, and not open until it is written to again: there are only so many files."""
        self.sync()
        self.close(cut=False)

    def close(self, *, cut: bool) -> None:
        """Let go of it; with `cut`, it ends where its frames do."""
        file, self._file = self._file, -1
        if file < 0 and cut:
            with suppress(FileNotFoundError):
                file = open_inside(self._root, self._name, os.O_RDWR)
        if file < 0:
            return
        try:
            if cut and os.fstat(file).st_size > self.position:
                os.ftruncate(file, self.position)
        finally:
            os.close(file)


class OpenChunks:
    """The chunks of a store that take frames, some of them not committed yet."""

    def __init__(self, root: Path, meta: Meta, grow_bytes: int) -> None:
        self._root, self._grow_bytes = root, grow_bytes
        self._first, self._full = meta.first_chunk, meta.chunk_records
        self._guard = threading.Lock()
        self._chunks = []
        for state in sorted(meta.unfull):
            chunk = ChunkFile(root, state, grow_bytes)
            check_inside(root, chunk_name(state.id))
            if not chunk.path.exists() or chunk.path.stat().st_size < state.position:
                raise FormatError(f"expected at least {state.position} bytes", path=str(chunk.path))
            self._chunks.append(chunk)
        self.next = meta.next_chunk
        self._committed()

    @property
    def unfull(self) -> tuple[ChunkState, ...]:
        return tuple(chunk.state for chunk in self._chunks if chunk.records < self._full)

    def with_room(self, count: int) -> list[ChunkFile]:
        """So many chunks to write to."""
        found = [chunk for chunk in self._chunks if chunk.records < self._full][:count]
        return found + [self.begin() for _ in range(count - len(found))]

    def newest(self) -> ChunkFile:
        """The chunk with the highest id there is, or one with a higher one."""
        last = max(self._chunks, key=lambda chunk: chunk.id, default=None)
        return self.begin() if last is None or last.id < self.next - 1 else last

    def begin(self) -> ChunkFile:
        with self._guard:
            if self.next - self._first >= MAX_CHUNKS:
                raise ValueError(
                    f"a store has up to {MAX_CHUNKS:,} chunks; "
                    "rebalance it with more records in each"
                )
            chunk = ChunkFile(self._root, ChunkState(self.next, 0, 0), self._grow_bytes)
            self.next += 1
            self._chunks.append(chunk)
        return chunk

    def sync(self) -> None:
        """Everything that was written is on the disk, and so are the names."""
        for chunk in self._chunks:
            chunk.sync()
        if self.next > self._committed_next:
            sync_path(self._root / CHUNKS)

    def committed(self) -> None:
        """What is written stays; full chunks are let go of."""
        for chunk in self._chunks:
            if chunk.records >= self._full:
                chunk.close(cut=True)
        self._chunks = [chunk for chunk in self._chunks if chunk.records < self._full]
        self._committed()

    def states(self) -> list[ChunkState]:
        return [chunk.state for chunk in self._chunks]

    def back_to(self, states: Iterable[ChunkState]) -> None:
        """Forget what was written since the chunks were so; the next frames go over it."""
        before = {state.id: state for state in states}
        for chunk in self._chunks:
            _, chunk.position, chunk.records = before.get(chunk.id, ChunkState(chunk.id, 0, 0))

    def rollback(self) -> None:
        """Forget what was written since the last commit, and remove the chunks begun since.

        Their ids are not used again: someone may have mapped them.
        """
        self.back_to(self._committed_states)
        for chunk in self._chunks:
            if chunk.id >= self._committed_next:
                chunk.close(cut=False)
                chunk.path.unlink(missing_ok=True)
        self._chunks = [chunk for chunk in self._chunks if chunk.id < self._committed_next]

    def close(self, *, cut: bool) -> None:
        for chunk in self._chunks:
            chunk.close(cut=cut)

    def _committed(self) -> None:
        self._committed_next = self.next
        self._committed_states = self.states()
