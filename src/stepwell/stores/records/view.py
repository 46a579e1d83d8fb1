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
from stepwell.stores.records.layout import (
    CHUNKS,
    ENTRY,
    JOURNAL,
    MOST_CHUNKS,
    TABLE_BLOCK,
    sums_path,
    table_path,
)
from stepwell.stores.records.meta import Meta
from stepwell.stores.records.tables import change_memory, map_file, own_copy
from stepwell.stores.records.writer import RecordWriter, load_dictionary

__all__ = ["View", "look", "look_at", "rebalanced"]

_PATIENCE_S = 5.0
_SETTLE_S = 0.03


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
    begin = time.monotonic()
    strict = old is None  # who has opened the store can do with what the tables have
    while True:
        meta = Meta.read(root)
        try:
            control = map_control(root)
            state = _state(root, meta, control, strict)
            if state is not None:
                return _mapped(root, meta, control, *state, checksums=checksums, old=old)
            at_work = read_control(control).of_this_boot
            if at_work and time.monotonic() < begin + _SETTLE_S:
                time.sleep(0.001)  # most writers finish what they have begun
            else:
                _settle(root)
        except BusyError:  # a writer is about to finish a commit, or has failed to and holds on
            if time.monotonic() > begin + _PATIENCE_S:
                raise
            strict = False
            time.sleep(0.002)
        except ChecksumError:
            # Perhaps there was a checkpoint between the look at meta.json and that at the journal.
            if Meta.read(root).commit == meta.commit:
                raise
        except FileNotFoundError as error:
            # Another generation may have taken the place of the one that was being looked at.
            if Meta.read(root).generation == meta.generation:
                raise FormatError("the file is missing", path=str(error.filename)) from None
        except OSError as error:
            if isinstance(error, BusyError) or not _may_not_write(error):
                raise
            # Nobody will settle it for us, so it is done in memory.
            commits = read_commits(root / JOURNAL, meta)
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
    root: Path, meta: Meta, control: NDArray[np.uint8], strict: bool
) -> tuple[int, int, list[Commit]] | None:
    """Length and number of the last commit if the tables have it; None if they may not.

    With `strict`, the journal may not have one more.
    """
    seen = read_control(control)
    known = seen.settled and seen.commit >= meta.commit
    if known and not strict:
        return seen.length, seen.commit, []
    if seen.sequence % 2:
        return None
    commits = read_commits(root / JOURNAL, meta)
    last = meta.commit + len(commits)
    if known and seen.commit >= last:
        return seen.length, seen.commit, []
    return None if commits else (meta.length, meta.commit, [])


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
    if old is not None and old.meta.store_id != meta.store_id:
        raise FormatError("another store is here now; open it anew", path=str(root))
    same = old is not None and old.meta.generation == meta.generation
    chunks = old.chunks if same and old else _core.Chunks(root / CHUNKS, meta.first_chunk)
    peak = max([length, *(each.peak for each in commits)])
    fields = []
    for number, (name, field) in enumerate(meta.fields.items()):
        path, sums_at = (made(root, name, meta.generation) for made in (table_path, sums_path))
        table = sums = np.empty(0, np.uint8)
        if commits:
            table = own_copy(path, peak * ENTRY.itemsize)
            sums = own_copy(sums_at, -(-peak // TABLE_BLOCK) * 4) if sums_at.exists() else sums
            for each in commits:
                change_memory(table, sums, each.changes[number])
        elif path.exists() or length:
            table = map_file(path)
            sums = map_file(sums_at) if sums_at.exists() else sums
        dictionary = load_dictionary(root, name, field) if field.compress == "zstd-dict" else None
        fields.append((name, field.item_bytes, field.ragged, dictionary, table, sums, path))
    settled = read_control(control).sequence if commits else 0
    records = _core.Records(chunks, fields, control, length, settled, checksums)
    # All that there are now: a rebalance would take away the names.
    there = [int(p.stem) for p in (root / CHUNKS).glob("*.zr") if p.stem.isdecimal()]
    ids = [i for i in there if meta.first_chunk <= i < meta.first_chunk + MOST_CHUNKS]
    chunks.map_all(np.array(sorted(ids), np.int64))
    return View(meta, length, commit, control, chunks, records)


def rebalanced(root: Path, view: View) -> bool:
    """Whether another generation has taken the place of the one that is mapped."""
    try:
        return Meta.read(root).generation != view.meta.generation
    except (FileNotFoundError, FormatError):
        return False
