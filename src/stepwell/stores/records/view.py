"""What a reader sees: the last commit, and the memory that it is in."""

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.errors import BusyError, ChecksumError, FormatError
from stepwell.stores.records.control import map_control, read_control
from stepwell.stores.records.journal import Commit, read_commits
from stepwell.stores.records.layout import CHUNKS, JOURNAL, sums_path, table_path
from stepwell.stores.records.meta import Meta
from stepwell.stores.records.tables import change_memory, map_file
from stepwell.stores.records.writer import RecordWriter, load_dictionary

__all__ = ["View", "look", "look_at", "rebalanced"]

_PATIENCE_S = 5.0


@dataclass(frozen=True)
class View:
    """A store as of one commit, mapped."""

    meta: Meta
    length: int
    commit: int
    control: NDArray[np.uint8]
    chunks: _core.Chunks
    records: _core.Records


def look(root: Path, *, checksums: bool, old: View | None = None) -> View:
    """Map a store as it is now; `old` is what was mapped before.

    Raises `BusyError` when a writer stays in the middle of a commit, `FormatError` for a damaged
    store and `FileNotFoundError` where there is none.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        meta = Meta.read(root)
        try:
            control = map_control(root)
            state = _state(root, meta, control)
            if state is not None:
                return _mapped(root, meta, control, *state, checksums=checksums, old=old)
            _settle(root)
        except BusyError:  # a writer is about to finish a commit
            if time.monotonic() > deadline:
                raise
            time.sleep(0.002)
        except FileNotFoundError as error:
            # Another generation may have taken the place of the one that was being looked at.
            if Meta.read(root).generation == meta.generation:
                raise FormatError("the file is missing", path=str(error.filename)) from None
        except OSError as error:
            if isinstance(error, BusyError) or not _may_not_write(error):
                raise
            # Nobody will settle it for us, so it is done in memory.
            commits = read_commits(root / JOURNAL, len(meta.fields), meta.commit)
            length = commits[-1].length if commits else meta.length
            return _mapped(
                root, meta, control, length, meta.commit + len(commits), commits,
                checksums=checksums, old=None,
            )  # fmt: skip


def look_at(meta: Meta, root: Path, checksums: bool, old: View | None) -> View:
    """Map a store for its own writer, who knows what is committed."""
    control = map_control(root)
    return _mapped(root, meta, control, meta.length, meta.commit, [], checksums=checksums, old=old)


def _state(
    root: Path, meta: Meta, control: NDArray[np.uint8]
) -> tuple[int, int, list[Commit]] | None:
    """Length and number of the last commit if the tables have it; None if they may not."""
    seen = read_control(control)
    commits = read_commits(root / JOURNAL, len(meta.fields), meta.commit)
    last = meta.commit + len(commits)
    if seen.sequence % 2:
        return None
    if seen.of_this_boot and seen.commit > last:
        again = Meta.read(root)  # perhaps there was a checkpoint meanwhile
        if again.commit <= meta.commit:
            raise ChecksumError(
                f"expected {seen.commit} commits, found {last}", path=str(root / JOURNAL)
            )
        return None if again.generation != meta.generation else _state(root, again, control)
    if not commits:
        return meta.length, meta.commit, []
    if seen.of_this_boot and seen.commit == last:
        return commits[-1].length, last, []
    return None


def _settle(root: Path) -> None:
    """Do what a killed writer left undone. Raises `BusyError` when it is at work."""
    RecordWriter(root).close()


def _may_not_write(error: OSError) -> bool:
    import errno

    return error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)


def _mapped(
    root: Path,
    meta: Meta,
    control: NDArray[np.uint8],
    length: int,
    commit: int,
    commits: list[Commit],
    *,
    checksums: bool,
    old: View | None,
) -> View:
    same = old is not None and old.meta.generation == meta.generation
    chunks = old.chunks if same and old else _core.Chunks(root / CHUNKS, meta.first_chunk)
    fields = []
    for number, (name, field) in enumerate(meta.fields.items()):
        path = table_path(root, name, meta.generation)
        if not path.exists() and not length:
            table = sums = np.empty(0, np.uint8)
        else:
            table = map_file(path, private=bool(commits))
            try:
                sums = map_file(sums_path(root, name, meta.generation), private=bool(commits))
            except FileNotFoundError:
                sums = np.empty(0, np.uint8)
        for each in commits:
            change_memory(table, sums, each.changes[number], path)
        dictionary = load_dictionary(root, name, field) if field.compress == "zstd-dict" else None
        fields.append((name, field.item_bytes, field.ragged, dictionary, table, sums, path))
    settled = read_control(control).sequence if commits else 0
    records = _core.Records(chunks, fields, control, length, settled, checksums)
    if not same:
        # All of them now: a rebalance would take away the names.
        chunks.map_all(meta.first_chunk, meta.next_chunk)
    return View(meta, length, commit, control, chunks, records)


def rebalanced(root: Path, view: View) -> bool:
    """Whether another generation has taken the place of the one that is mapped."""
    try:
        return Meta.read(root).generation != view.meta.generation
    except (FileNotFoundError, FormatError):
        return False
