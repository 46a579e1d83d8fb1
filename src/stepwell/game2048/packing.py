"""A pack of a directory of run files: each read once, in the order of their paths."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from stepwell import _core
from stepwell.errors import FormatError
from stepwell.game2048.run_files import Files, RunsReport, find_runs, read_run
from stepwell.game2048.runs import Run
from stepwell.ordered import in_order, thread_count
from stepwell.store import Progress
from stepwell.stores.pack.layout import groups
from stepwell.stores.pack.writer import Compress, PackWriter, Prepared, Preparer, room_for

_CHUNK_FILES = 256
_CHUNK_BYTES = 1 << 20  # small enough to stay in the caches from the read to the write


@dataclass
class PackReport(RunsReport):
    """What became of the files of a directory."""

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
    writer = PackWriter(
        output, align=align, compress=compress, level=level, expect=len(files), _replace=replace
    )
    with writer:
        for chunk, made in _load_all(writer, files, skip_bad, threads):
            writer.append_prepared(made)
            payloads = chunk.payloads
            report.packed += len(payloads)
            report.bytes += sum(map(len, payloads))
            for (path, _), each in zip(chunk.files, chunk.found, strict=True):
                if isinstance(each, str):
                    report.skipped.append((path, each))
            if progress is not None:
                progress(report.packed + len(report.skipped), len(files))
        if not report.packed:
            path, reason = report.skipped[0]
            raise FormatError(f"none of {len(files)} files is a run; {path}: {reason}")
    return report


class _Chunk(NamedTuple):
    """Some files, and of each its bytes or what is wrong with it."""

    files: Files
    found: list[bytes | str]

    @property
    def payloads(self) -> list[bytes]:
        return [each for each in self.found if isinstance(each, bytes)]


def _load_all(
    writer: PackWriter, files: Files, skip_bad: bool, threads: int
) -> Iterator[tuple[_Chunk, Prepared]]:
    """Chunks read and prepared, a few at a time; a dictionary is trained on the first."""
    rooms = room_for([size for _, size in files], writer.align)
    rooms = np.maximum(rooms, _CHUNK_BYTES // _CHUNK_FILES)
    waiting = (files[part] for part in groups(rooms, _CHUNK_BYTES))
    samples: list[_Chunk] = []
    wanted = writer.sample_bytes
    while wanted > 0 and (some := next(waiting, None)):
        samples.append(_only_runs(_read(some, skip_bad), skip_bad))
        wanted -= sum(map(len, samples[-1].payloads))
    preparer = writer.preparer([payload for chunk in samples for payload in chunk.payloads])
    prepare = partial(_prepare, preparer=preparer, skip_bad=skip_bad)
    yield from map(prepare, samples)
    yield from in_order(lambda some: prepare(_read(some, skip_bad)), waiting, threads)


def _read(files: Files, skip_bad: bool) -> _Chunk:
    """Read each file once; what cannot be read raises or is set aside."""
    found: list[bytes | str] = []
    for path, size in files:
        try:
            found.append(read_run(path, size))
        except (FormatError, OSError) as error:
            if not skip_bad:
                raise
            found.append(str(error))
    return _Chunk(files, found)


def _only_runs(chunk: _Chunk, skip_bad: bool) -> _Chunk:
    """Look at each payload; what is not a run raises or is set aside."""
    found = chunk.found.copy()
    for i, payload in enumerate(found):
        try:
            if isinstance(payload, bytes):
                Run.from_bytes(payload, path=chunk.files[i][0])
        except FormatError as error:
            if not skip_bad:
                raise
            found[i] = str(error)
    return _Chunk(chunk.files, found)


def _prepare(chunk: _Chunk, preparer: Preparer, skip_bad: bool) -> tuple[_Chunk, Prepared]:
    """Make entries of files; what is not a run raises or is set aside."""
    payloads = chunk.payloads
    try:
        kinds = [_core.run_kind(np.frombuffer(payload, np.uint8)) for payload in payloads]
        return chunk, preparer.prepare(payloads, kinds)
    except FormatError:  # one of them is no run; which one is worth a second look
        return _prepare(_only_runs(chunk, skip_bad), preparer, skip_bad)
