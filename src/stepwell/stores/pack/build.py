"""A pack of a directory of run files: each read once, in the order of their paths."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from stepwell import _core
from stepwell.errors import FormatError
from stepwell.files.npy import open_regular
from stepwell.ordered import in_order
from stepwell.runs import Run
from stepwell.stores.pack.writer import Compress, PackWriter, Prepared, Preparer

__all__ = ["PackReport", "find_runs", "pack_runs"]

SUFFIXES = (".a2run", ".a2run2")

_CHUNK_FILES = 64
_CHUNK_BYTES = 1 << 22


@dataclass
class PackReport:
    """What became of the files of a directory."""

    path: Path
    packed: int = 0
    bytes: int = 0
    """Bytes of the files that were packed."""
    skipped: list[tuple[Path, str]] = field(default_factory=list)
    """Files that were left out, each with the reason."""


class _Chunk(NamedTuple):
    """Some files, read and made ready."""

    files: int
    payloads: list[bytes]
    skipped: list[tuple[Path, str]]
    made: Prepared


def find_runs(directory: str | os.PathLike[str]) -> list[tuple[Path, int]]:
    """Return every run file below a directory with its size, ordered by path.

    Raises `FileNotFoundError` when there is none.
    """
    root = os.fsencode(directory)
    found: list[tuple[bytes, int]] = []
    folders = [root]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif os.path.splitext(entry.name)[1].decode("latin-1") in SUFFIXES:
                    found.append((entry.path, entry.stat().st_size if entry.is_file() else 0))
    if not found:
        raise FileNotFoundError(f"no {' or '.join(SUFFIXES)} file in {os.fsdecode(root)}")
    found.sort(key=lambda file: file[0].split(b"/"))
    return [(Path(os.fsdecode(path)), size) for path, size in found]


def pack_runs(
    directory: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    align: int = 4096,
    compress: Compress = "none",
    level: int = 3,
    workers: int | None = None,
    skip_bad: bool = False,
    overwrite: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> PackReport:
    """Pack every run file below `directory`, ordered by path.

    A file that is no run stops it with an error that names the file, or is left out and
    listed when `skip_bad` is True. `output` appears when all of it is on the disk.
    """
    threads = _core.usable_cores() if workers is None else workers
    if threads < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    files = find_runs(directory)
    report = PackReport(Path(output))
    writer = PackWriter(
        output,
        align=align,
        compress=compress,
        level=level,
        expect=len(files),
        overwrite=overwrite,
    )
    done = 0
    with writer:
        for chunk in _load_all(writer, list(_cut(files)), skip_bad, threads):
            writer.write(chunk.made)
            report.packed += len(chunk.payloads)
            report.bytes += sum(map(len, chunk.payloads))
            report.skipped += chunk.skipped
            done += chunk.files
            if on_progress is not None:
                on_progress(done, len(files))
        if not report.packed:
            path, reason = report.skipped[0]
            raise FormatError(f"none of {len(files)} files is a run; {path}: {reason}")
    return report


def _load_all(
    writer: PackWriter, chunks: Sequence[list[Path]], skip_bad: bool, threads: int
) -> Iterator[_Chunk]:
    """Chunks read and prepared, a few at a time; a dictionary is trained on the first."""
    first = _read_files(chunks[0], skip_bad)
    preparer = writer.preparer([payload for _, payload in first[0]])
    yield _prepare(preparer, len(chunks[0]), *first, skip_bad)
    yield from in_order(lambda chunk: _load(preparer, chunk, skip_bad), chunks[1:], threads)


def _load(preparer: Preparer, chunk: list[Path], skip_bad: bool) -> _Chunk:
    return _prepare(preparer, len(chunk), *_read_files(chunk, skip_bad), skip_bad)


def _prepare(
    preparer: Preparer,
    files: int,
    read: list[tuple[Path, bytes]],
    skipped: list[tuple[Path, str]],
    skip_bad: bool,
) -> _Chunk:
    try:
        return _Chunk(files, payloads := [p for _, p in read], skipped, _made(preparer, payloads))
    except FormatError:
        good = []  # one of them is no run; which one is worth a second look
        for path, payload in read:
            try:
                Run.from_bytes(payload, path=path)
            except FormatError as error:
                if not skip_bad:
                    raise
                skipped.append((path, str(error)))
            else:
                good.append(payload)
        return _Chunk(files, good, skipped, _made(preparer, good))


def _made(preparer: Preparer, payloads: list[bytes]) -> Prepared:
    kinds = [_core.run_kind(np.frombuffer(payload, np.uint8)) for payload in payloads]
    return preparer.prepare(payloads, kinds)


def _cut(files: list[tuple[Path, int]]) -> Iterator[list[Path]]:
    """The files in groups of bounded number and size."""
    chunk: list[Path] = []
    size = 0
    for path, length in files:
        if chunk and (len(chunk) == _CHUNK_FILES or size + length > _CHUNK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(path)
        size += length
    yield chunk


def _read_files(
    chunk: list[Path], skip_bad: bool
) -> tuple[list[tuple[Path, bytes]], list[tuple[Path, str]]]:
    """The bytes of each file, and the files that could not be read."""
    read, skipped = [], []
    for path in chunk:
        try:
            read.append((path, _read_whole(path)))
        except (FormatError, OSError) as error:
            if not skip_bad:
                raise
            skipped.append((path, str(error)))
    return read, skipped


def _read_whole(path: Path) -> bytes:
    """All bytes of a file that nobody is writing to."""
    with open_regular(path) as file:
        before = os.fstat(file.fileno())
        data = file.read()
        after = os.fstat(file.fileno())
    if len(data) != before.st_size or before.st_mtime_ns != after.st_mtime_ns:
        raise FormatError(
            f"the file changed while it was read: {before.st_size} bytes before, "
            f"{len(data)} read, {after.st_size} after",
            path=str(path),
        )
    return data
