"""What killed writers leave in a store, and whose it is."""

import os
import re
import shutil
import stat
from contextlib import suppress
from pathlib import Path

from stepwell.files.atomic import is_temporary, sweep
from stepwell.files.regular import open_inside
from stepwell.stores.records.layout import (
    CHUNKS,
    JOURNAL,
    LOCK,
    META,
    chunk_name,
    chunk_numbers,
    table_names,
)
from stepwell.stores.records.meta import Meta

_REPLACED = rf"{re.escape(META)}|.*\.dict"


def is_left_over(path: Path) -> bool:
    """Whether a writer that never committed may have left this.

    Tables and journal stay empty until the first commit, which comes behind meta.json: a store
    whose meta.json was lost is none.
    """
    about = path.lstat()
    if path.name == CHUNKS:
        return stat.S_ISDIR(about.st_mode) and all(p.suffix == ".zr" for p in path.iterdir())
    ours = path.name == LOCK or path.suffix == ".dict" or is_temporary(path, _REPLACED)
    empty = not about.st_size and (path.name == JOURNAL or path.suffix in (".offset", ".sums"))
    return stat.S_ISREG(about.st_mode) and bool(ours or empty)


def remove_left_over(root: Path) -> None:
    """Empty a folder in which everything is left over, but for the lock, which is held by now."""
    for path in root.iterdir():
        if path.name == CHUNKS:
            shutil.rmtree(path)
        elif path.name != LOCK:
            path.unlink()


def remove_stale(root: Path, meta: Meta) -> None:
    """Remove what a killed writer or a rebalance left in a store; what is not ours stays."""
    names = "|".join(map(re.escape, meta.fields))
    table = re.compile(rf"({names})(\.[1-9][0-9]*)?\.(offset|sums)")
    keep = {file for name in meta.fields for file in table_names(name, meta.generation)}
    # Tables before chunks: whoever misses a chunk knows by the table that it was a rebalance.
    for path in root.iterdir():
        if path.name not in keep and table.fullmatch(path.name):
            path.unlink(missing_ok=True)
    for number in chunk_numbers(root):
        if number < meta.first_chunk:
            (root / chunk_name(number)).unlink(missing_ok=True)
        elif number >= meta.next_chunk:
            # Not removed: a reader may have it mapped, and must see what is written there next.
            with suppress(FileNotFoundError):
                file = open_inside(root, chunk_name(number), os.O_RDWR)
                try:
                    os.ftruncate(file, 0)
                finally:
                    os.close(file)
    sweep(root, rf"{re.escape(META)}|({names})\.dict")
