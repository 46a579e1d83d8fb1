"""A pack of a directory of run files: each read once, in the order of their paths."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from stepwell import _core
from stepwell.errors import FormatError
from stepwell.game2048.run_files import Files, RunsReport, attempt, find_runs, read_run
from stepwell.game2048.runs import Run
from stepwell.ordered import in_order, thread_count
from stepwell.store import Progress
from stepwell.stores.pack.layout import groups
from stepwell.stores.pack.writer import (
    TRAIN_BYTES,
    Compress,
    EntryMaker,
    PackWriter,
    Prepared,
    ReplacingPackWriter,
    room_for,
)

_CHUNK_FILES = 256
_CHUNK_BYTES = 1 << 20  # small enough to stay in the caches from the read to the write


@dataclass
class PackReport(RunsReport):
    """The result of packing the files of a directory."""

    path: Path
    packed: int = 0
    bytes: int = 0
    """Bytes of the files that were packed."""


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
    kind = ReplacingPackWriter if replace else PackWriter
    writer = kind(output, align=align, compress=compress, level=level, expect=len(files))
    with writer:
        for chunk, made in _load_all(writer, files, threads):
            for path, found in chunk:
                if isinstance(found, Exception):
                    report.skip(path, found, skip_bad)
                else:
                    report.packed += 1
                    report.bytes += len(found)
            writer.append_prepared(made)
            if progress is not None:
                progress(report.packed + len(report.skipped), len(files))
        if not report.packed:
            path, reason = report.skipped[0]
            raise FormatError(f"none of {len(files)} files is a run; {path}: {reason}")
    return report


Chunk = list[tuple[Path, bytes | Exception]]
"""Some files, and of each its bytes or what is wrong with it."""


def _load_all(writer: PackWriter, files: Files, threads: int) -> Iterator[tuple[Chunk, Prepared]]:
    """Chunks read and prepared, a few at a time; a dictionary is trained on the first."""
    waiting = chunks_of(files, writer.align)
    samples = first_runs(waiting) if writer.needs_samples else []
    writer.train(payloads_of(samples))
    prepare = partial(_prepare, writer)
    yield from map(prepare, samples)
    yield from in_order(lambda some: prepare(_read(some)), waiting, threads)


def chunks_of(files: Files, align: int) -> Iterator[Files]:
    """Files that are read and prepared at once."""
    rooms = room_for([size for _, size in files], align)
    rooms = np.maximum(rooms, _CHUNK_BYTES // _CHUNK_FILES)
    return (files[part] for part in groups(rooms, _CHUNK_BYTES))


def first_runs(waiting: Iterator[Files]) -> list[Chunk]:
    """The first chunks, read: enough of them to train a dictionary on."""
    samples: list[Chunk] = []
    wanted = TRAIN_BYTES
    while wanted > 0 and (some := next(waiting, None)):
        samples.append(_only_runs(_read(some)))
        wanted -= sum(map(len, _payloads(samples[-1])))
    return samples


def payloads_of(chunks: Iterable[Chunk]) -> list[bytes]:
    """The runs of some chunks."""
    return [payload for chunk in chunks for payload in _payloads(chunk)]


def load_chunk(maker: EntryMaker, files: Files) -> tuple[Chunk, Prepared]:
    """Files read and prepared; errors are in the place of what is no run."""
    return _prepare(maker, _read(files))


def _read(files: Files) -> Chunk:
    return [(path, attempt(read_run, path, size)) for path, size in files]


def _payloads(chunk: Chunk) -> list[bytes]:
    return [found for _, found in chunk if isinstance(found, bytes)]


def _only_runs(chunk: Chunk) -> Chunk:
    """The same chunk with an error in the place of what is not a run."""

    def look(path: Path, found: bytes | Exception) -> bytes | Exception:
        run = attempt(Run.from_bytes, found, path=path) if isinstance(found, bytes) else found
        return run if isinstance(run, Exception) else found

    return [(path, look(path, found)) for path, found in chunk]


def _prepare(maker: PackWriter | EntryMaker, chunk: Chunk) -> tuple[Chunk, Prepared]:
    """Make entries of files."""
    payloads = _payloads(chunk)
    try:
        kinds = [_core.run_kind(np.frombuffer(payload, np.uint8)) for payload in payloads]
        return chunk, maker.prepare(payloads, kinds)
    except FormatError:  # one of them is no run; which one is worth a second look
        return _prepare(maker, _only_runs(chunk))
