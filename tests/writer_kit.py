"""How the exams of writers (tests/writer_contract.py, tests/crash/contract.py) write and read."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import stepwell as sw
from stepwell.store import Store
from stepwell.writer import Writer

__all__ = ["WriterKit", "files_of", "open_below", "snapshot", "unchanged"]


class WriterKit(ABC):
    """How the exam writes to a store and reads it."""

    store: ClassVar[type[Store]]
    """Missing where a writer is also what reads; such a kit has a `look` and a `read`."""
    writer: ClassVar[type[Writer]]
    name: ClassVar[str] = "store"
    """Of the folder or file; some stores want an ending."""
    one_commit: ClassVar[bool] = False
    """A commit is the end (packs)."""
    has_rollback: ClassVar[bool] = True
    is_there_at_once: ClassVar[bool] = False
    """Before its first commit there is a store, and what was appended survives a kill."""
    recordable: ClassVar[bool] = True
    """Everything it writes goes through functions of `os` (not SQLite, HDF5 or memory)."""
    misses_a_log: ClassVar[bool] = True
    """Commits that went with SQLite's log are noticed."""
    small_disk: ClassVar[str] = ""
    """Of a size that it fills with commits; others have a test of their own."""

    @abstractmethod
    def open(self, path: Path, mode: Any = "x") -> Writer:
        """A writer of this store."""

    @abstractmethod
    def append(self, writer: Any, stamp: int) -> None:
        """Append rows that carry a stamp; must not commit by itself."""

    @abstractmethod
    def stamps(self, store: Any) -> list[int]:
        """The stamps of an open store, every row of which was compared with its stamp."""

    def look(self, path: Path) -> list[int]:
        """The stamps at a path where there is a store."""
        with self.store.open(path) as store:
            return self.stamps(store)

    def read(self, path: Path) -> list[int]:
        """The stamps at a path; none where nothing was committed."""
        try:
            store = self.store.open(path)
        except FileNotFoundError:
            return []
        except sw.FormatError:
            if not path.is_dir() or self.writer._holds_commits(path):
                raise
            return []  # what a writer that never committed left
        with store:
            found = self.stamps(store)
            report = store.verify()
            assert report.ok, str(report)
            return found

    def work(self, folder: Path, first: int) -> Iterator[int]:
        """Append and commit for ever: what the killed processes do."""
        path = folder / self.name
        stamp = first
        while True:
            if self.one_commit:
                path = folder / f"{stamp:06}-{self.name}"
                with self.open(path, "x") as writer:
                    self.append(writer, 1)
                yield stamp
                stamp += 1
                continue
            with self.open(path, "a") as writer:
                for _ in range(7):
                    self.append(writer, stamp)
                    writer.commit()
                    yield stamp
                    stamp += 1


def snapshot(path: Path) -> dict[str, Any]:
    """Every file below a path with its content; links and pipes by what they are.

    SQLite puts an index and an empty log beside a database that it reads; they hold nothing.
    """
    found: dict[str, Any] = {}
    for each in [path, *sorted(path.rglob("*"))] if path.is_dir() else [path]:
        if each.name.endswith("-shm") or (each.name.endswith("-wal") and not each.lstat().st_size):
            continue
        if each.is_symlink():
            found[str(each.relative_to(path))] = os.readlink(each)
        elif each.is_file():
            found[str(each.relative_to(path))] = each.read_bytes()
        else:
            found[str(each.relative_to(path))] = each.lstat().st_mode
    return found


@contextmanager
def unchanged(path: Path) -> Iterator[None]:
    """Whatever is done and refused in the block, no byte below the path is another one."""
    before = snapshot(path)
    yield
    assert snapshot(path) == before


def files_of(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return [each for each in sorted(path.rglob("*")) if each.is_file() and not each.is_symlink()]


def open_below(path: Path) -> list[str]:
    """Files below a path that this process has open."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return [each for each in found if each.startswith(str(path))]
