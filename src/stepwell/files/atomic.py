"""Write beside, then rename: readers see the old thing, the new one, or nothing."""

import os
from pathlib import Path

__all__ = ["publish"]


def publish(beside: Path, target: Path) -> None:
    """Give a finished folder its name, once everything in it is on the disk."""
    for path in [*beside.iterdir(), beside]:
        _sync(path)
    beside.rename(target)
    _sync(target.parent)


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
