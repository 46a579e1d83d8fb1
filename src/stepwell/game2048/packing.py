"""A pack of a directory of run files: each read once, in the order of their paths."""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.errors import FormatError
from stepwell.game2048.run_files import Files, find_runs
from stepwell.game2048.runs import Run
from stepwell.ordered import in_order, thread_count
from stepwell.store import Progress
from stepwell.stores.pack.file import slices
from stepwell.stores.pack.layout import groups
from stepwell.stores.pack.writer import (
    Compress,
    PackWriter,
    Prepared,
    Preparer,
    lay_out,
    room_for,
)

__all__ = ["PackReport", "pack_runs"]

_CHUNK_FILES = 256
_CHUNK_BYTES = 1 << 20  # small enough to stay in the caches from the read to the write


@dataclass
class PackReport:
    """What became of the files of a directory."""

    path: Path
    packed: int = 0
    bytes: int = 0
    """Bytes of the files that were packed."""
    skipped: list[tuple[Path, str]] = field(default_factory=list)
    """Files that were left out, each with the reason."""


def pack_runs(
    directory: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    align: int = 4096,
    compress: Compress = "none",
    level: int = 3,
    threads: int | None = None,
    skip_bad: bool = False,
    replace: bool = False,
    progress: Progress | None = None,
) -> PackReport:
    """Pack every run file below `directory`, ordered by path.

    A file that is no run stops it with an error that names the file, or is left out and
    listed when `skip_bad` is True. `output` appears when all of it is on the disk; with `replace`
    it takes the place of another pack.
    """
    threads = thread_count(threads)
    files = find_runs(directory)
    report = PackReport(Path(output))
    writer = PackWriter(
        output, align=align, compress=compress, level=level, expect=len(files), _replace=replace
    )
    done = 0
    with writer:
        for chunk, made in _load_all(writer, files, skip_bad, threads):
            writer.append_prepared(made)
            report.packed += len(chunk.paths)
            report.bytes += int(chunk.entries["length"].sum(dtype=np.int64))
            report.skipped += [
                (path, chunk.bad[path]) for path, _ in chunk.files if path in chunk.bad
            ]
            done += len(chunk.files)
            if progress is not None:
                progress(done, len(files))
        if not report.packed:
            path, reason = report.skipped[0]
            raise FormatError(f"none of {len(files)} files is a run; {path}: {reason}")
    return report


class _Chunk(NamedTuple):
    """Files in memory, where their entries will be."""

    files: Files
    paths: list[Path]
    """Those of the entries; the other files are bad."""
    image: NDArray[np.uint8]
    entries: NDArray[Any]
    bad: dict[Path, str]

    def payloads(self) -> list[memoryview]:
        return slices(self.image.data, self.entries)

    def without(self, bad: dict[Path, str]) -> "_Chunk":
        good = np.array([path not in bad for path in self.paths], bool)
        paths = [path for path in self.paths if path not in bad]
        return self._replace(paths=paths, entries=self.entries[good], bad=self.bad | bad)


def _load_all(
    writer: PackWriter, files: Files, skip_bad: bool, threads: int
) -> Iterator[tuple[_Chunk, Prepared]]:
    """Chunks read and prepared, a few at a time; a dictionary is trained on the first."""
    rooms = room_for([size for _, size in files], writer.align)
    rooms = np.maximum(rooms, _CHUNK_BYTES // _CHUNK_FILES)
    read = partial(_read, align=writer.align, skip_bad=skip_bad)
    waiting = (files[part] for part in groups(rooms, _CHUNK_BYTES))
    samples: list[_Chunk] = []
    wanted = writer.sample_bytes
    while wanted > 0 and (some := next(waiting, None)):
        samples.append(_only_runs(read(some), skip_bad))
        wanted -= int(samples[-1].entries["length"].sum(dtype=np.int64))
    preparer = writer.preparer([payload for chunk in samples for payload in chunk.payloads()])
    prepare = partial(_prepare, preparer=preparer, skip_bad=skip_bad)
    yield from map(prepare, samples)
    yield from in_order(lambda some: prepare(read(some)), waiting, threads)


def _read(files: Files, align: int, skip_bad: bool) -> _Chunk:
    """Read each file once, straight to its place."""
    image, entries = lay_out([size for _, size in files], [2] * len(files), align)
    chunk = _Chunk(files, [path for path, _ in files], image, entries, {})
    bad: dict[Path, str] = {}
    for i, (path, payload) in enumerate(zip(chunk.paths, chunk.payloads(), strict=True)):
        try:
            _read_into(path, payload)
            entries["kind"][i] = _core.run_kind(np.frombuffer(payload, np.uint8))
        except (FormatError, OSError) as error:
            if not skip_bad:
                raise
            bad[path] = str(error)
    return chunk.without(bad)


def _only_runs(chunk: _Chunk, skip_bad: bool) -> _Chunk:
    """Look at each file; what is not a run raises or is set aside."""
    bad: dict[Path, str] = {}
    for path, payload in zip(chunk.paths, chunk.payloads(), strict=True):
        try:
            Run.from_bytes(payload, path=path)
        except FormatError as error:
            if not skip_bad:
                raise
            bad[path] = str(error)
    return chunk.without(bad)


def _prepare(chunk: _Chunk, preparer: Preparer, skip_bad: bool) -> tuple[_Chunk, Prepared]:
    """Make entries of files; what is not a run raises or is set aside."""
    try:
        if not chunk.bad:
            return chunk, preparer.finish(chunk.image, chunk.entries)
        # What was left out is not to leave a gap.
        return chunk, preparer.prepare(chunk.payloads(), chunk.entries["kind"].tolist())
    except FormatError:  # one of them is no run; which one is worth a second look
        return _prepare(_only_runs(chunk, skip_bad), preparer, skip_bad)


def _read_into(path: Path, payload: memoryview) -> None:
    """Fill `payload` with a file that has this size and that nobody is writing to."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        before = os.fstat(descriptor)
        if not stat.S_ISREG(before.st_mode):
            raise FormatError("expected a plain file", path=str(path))
        left = payload
        while left and (count := os.readv(descriptor, [left])):
            left = left[count:]
        after = os.fstat(descriptor)
    except OSError as error:
        error.filename = str(path)  # a read only knows its descriptor
        raise
    finally:
        os.close(descriptor)
    if left or after.st_size != len(payload) or before.st_mtime_ns != after.st_mtime_ns:
        raise FormatError(
            f"the file changed while it was packed: {len(payload)} bytes when it was found, "
            f"now {after.st_size}",
            path=str(path),
        )
