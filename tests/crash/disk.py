"""A disk that loses power.

    with recorded(folder) as disk:
        store.commit(1)
        disk.acknowledge(1)
    for crash in disk.crashes():
        with crash.restarted(elsewhere):    what a restart might find
            crash.acknowledged              1, or None where the power went before

Every call that changes a file below the folder is written down. Then the power fails after
each of them. Of what was not synced until then, writes are kept, lost, torn, or left as zeros,
each for itself; names (created, renamed, removed) last in the order in which they were made, as
far as they did. A file's fsync is for its bytes, a folder's for its names, and nothing else
is promised by either.

Python's own files are replaced by those of `_pyio`, which call the functions of `os` that are
watched. What SQLite, an mmap or the core writes by itself is not seen.
"""

import _pyio  # type: ignore[import-not-found]
import builtins
import io
import os
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Crash", "Disk", "patched", "recorded"]

Files = dict[str, bytes]


class Created(NamedTuple):
    name: str
    inode: int


class Renamed(NamedTuple):
    old: str
    new: str


class Removed(NamedTuple):
    name: str


class Written(NamedTuple):
    inode: int
    at: int
    data: bytes


class Cut(NamedTuple):
    inode: int
    size: int


class Synced(NamedTuple):
    what: int | str
    """A file's inode, or a folder's name."""


class Acknowledged(NamedTuple):
    what: Any


Naming = Created | Renamed | Removed
Writing = Written | Cut
Event = Naming | Writing | Synced | Acknowledged


@dataclass(frozen=True)
class Crash:
    """What is on the disk when the power comes back."""

    files: Files
    acknowledged: Any
    """What was acknowledged last; None before the first."""
    after: Event | None
    """The last thing that happened."""

    def write(self, folder: Path) -> None:
        for name, data in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)

    @contextmanager
    def restarted(self, folder: Path) -> Iterator[Path]:
        """The files in a folder of their own, which is there during a block."""
        folder.mkdir()
        self.write(folder)
        yield folder
        shutil.rmtree(folder)


class Disk:
    """The calls that changed the files of a folder, in order."""

    def __init__(self, root: Path) -> None:
        self.events: list[Event] = []
        files = [path for path in sorted(root.rglob("*")) if path.is_file()]
        self.names = {str(path.relative_to(root)): i for i, path in enumerate(files)}
        self.contents = {i: path.read_bytes() for i, path in enumerate(files)}

    def acknowledge(self, what: Any) -> None:
        """From here on this is promised."""
        self.events.append(Acknowledged(what))

    def crashes(self, tries: int = 8, seed: int = 0) -> Iterator[Crash]:
        """The states in which a power cut can leave the disk, each once.

        For each call and each number of names that lasted: all writes kept, all lost, and
        `tries` mixtures.
        """
        chance = random.Random(seed)
        platter = _Platter(self.names, self.contents)
        acknowledged = None
        for event in (None, *self.events):
            if isinstance(event, Acknowledged):
                acknowledged = event.what
            elif event is not None:
                platter.do(event)
            seen: list[Files] = []
            for files in platter.cuts(tries, chance):
                if files not in seen:
                    seen.append(files)
                    yield Crash(files, acknowledged, event)


class _Platter:
    """What is surely on the disk, and what may be."""

    def __init__(self, names: Mapping[str, int], contents: Mapping[int, bytes]) -> None:
        self._names = dict(names)
        self._contents = dict(contents)
        self._namings: list[Naming] = []
        self._writings: list[Writing] = []

    def do(self, event: Event) -> None:
        match event:
            case Synced(int(inode)):
                kept = [w for w in self._writings if w.inode == inode]
                self._contents[inode] = _written(self._contents.get(inode, b""), kept)
                self._writings = [w for w in self._writings if w.inode != inode]
            case Synced(str(folder)):
                for naming in self._namings:
                    if _is_in(naming, folder):
                        _named(self._names, naming)
                self._namings = [n for n in self._namings if not _is_in(n, folder)]
            case Created() | Renamed() | Removed():
                self._namings.append(event)
            case Written() | Cut():
                self._writings.append(event)

    def cuts(self, tries: int, chance: random.Random) -> Iterator[Files]:
        for lasted in range(len(self._namings) + 1):
            names = dict(self._names)
            for naming in self._namings[:lasted]:
                _named(names, naming)
            mixtures = [[_spoilt(w, chance) for w in self._writings] for _ in range(tries)]
            for kept in (self._writings, [], *([w for w in m if w] for m in mixtures)):
                yield {
                    name: _written(
                        self._contents.get(inode, b""), [w for w in kept if w.inode == inode]
                    )
                    for name, inode in names.items()
                }


def _spoilt(writing: Writing, chance: random.Random) -> Writing | None:
    """What becomes of a write that nobody waited for."""
    fate = chance.choice(["kept", "lost", "torn", "zeros"])
    if fate == "lost":
        return None
    if isinstance(writing, Cut) or fate == "kept":
        return writing
    if fate == "zeros":
        return writing._replace(data=bytes(len(writing.data)))
    return writing._replace(data=writing.data[: chance.randrange(len(writing.data) + 1)])


def _written(content: bytes, writings: list[Writing]) -> bytes:
    made = bytearray(content)
    for writing in writings:
        match writing:
            case Written(_, at, data):
                made += bytes(max(at - len(made), 0) if data else 0)
                made[at : at + len(data)] = data
            case Cut(_, size):
                made = made[:size] + bytes(max(size - len(made), 0))
    return bytes(made)


def _named(names: dict[str, int], naming: Naming) -> None:
    match naming:
        case Created(name, inode):
            names[name] = inode
        case Renamed(old, new) if old in names:
            names[new] = names.pop(old)
        case Removed(name):
            names.pop(name, None)


def _is_in(naming: Naming, folder: str) -> bool:
    return folder in {os.path.dirname(n) for n in naming if isinstance(n, str)}


# How calls are seen.


@contextmanager
def patched(functions: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Functions of `os` replaced in this process, and Python's files made to call them."""
    before = {name: getattr(os, name) for name in functions}
    opens = io.open, builtins.open
    for name, function in functions.items():
        setattr(os, name, function)
    io.open = builtins.open = _pyio.open
    try:
        yield
    finally:
        io.open, builtins.open = opens
        for name, function in before.items():
            setattr(os, name, function)


@contextmanager
def recorded(root: Path) -> Iterator[Disk]:
    """Write down what this process does to files below a folder."""
    disk = Disk(root)
    with patched(_Recorder(disk, root).functions()):
        yield disk


class _Recorder:
    """Functions in place of those of `os`: they do the same, and write it down."""

    def __init__(self, disk: Disk, root: Path) -> None:
        self._events = disk.events
        self._names = dict(disk.names)
        self._root = os.path.realpath(root)
        self._opened: dict[int, int | str] = {}
        self._next = len(disk.names)

    def functions(self) -> dict[str, Callable[..., Any]]:
        notes: dict[str, Callable[..., None]] = {
            "open": self._open,
            "close": self._close,
            **dict.fromkeys(("write", "pwrite"), self._write),
            "ftruncate": self._cut,
            **dict.fromkeys(("fsync", "fdatasync"), self._sync),
            **dict.fromkeys(("replace", "rename"), self._rename),
            **dict.fromkeys(("unlink", "remove"), self._remove),
        }
        return {
            **{name: self._wrap(name, note) for name, note in notes.items()},
            **{name: self._refuse(name) for name in ("link", "truncate", "writev", "pwritev")},
        }

    def _wrap(self, name: str, note: Callable[..., None]) -> Callable[..., Any]:
        call = getattr(os, name)

        def seen(*args: Any, **options: Any) -> Any:
            size = None
            if name == "write" and args[0] in self._opened:
                size = os.lseek(args[0], 0, os.SEEK_CUR)  # none of ours appends
            result = call(*args, **options)
            if options.get("dir_fd") is not None:
                folder = os.readlink(f"/proc/self/fd/{options['dir_fd']}")
                args = (os.path.join(folder, args[0]), *args[1:])
            note(result, *args, *(() if size is None else (size,)))
            return result

        return seen

    def _refuse(self, name: str) -> Callable[..., Any]:
        def refuse(*args: Any, **options: Any) -> Any:
            raise NotImplementedError(f"os.{name} is not recorded yet")

        return refuse

    def _name(self, path: Any) -> str | None:
        """The name below the root; None for what lies elsewhere."""
        folder, name = os.path.split(os.path.abspath(path))
        full = os.path.join(os.path.realpath(folder), name)
        if full == self._root:
            return ""
        return os.path.relpath(full, self._root) if full.startswith(self._root + "/") else None

    def _open(self, file: int, path: Any, flags: int, *_: Any) -> None:
        name = self._name(path)
        if name is None:
            return
        if os.path.isdir(path):
            self._opened[file] = name
            return
        if name not in self._names:
            self._names[name] = self._next
            self._events.append(Created(name, self._next))
            self._next += 1
        self._opened[file] = self._names[name]
        if flags & os.O_TRUNC:
            self._events.append(Cut(self._names[name], 0))

    def _close(self, _: None, file: int) -> None:
        self._opened.pop(file, None)

    def _write(self, count: int, file: int, data: Any, at: int = 0) -> None:
        inode = self._opened.get(file)
        if isinstance(inode, int):
            self._events.append(Written(inode, at, bytes(data)[:count]))

    def _cut(self, _: None, file: int, size: int) -> None:
        inode = self._opened.get(file)
        if isinstance(inode, int):
            self._events.append(Cut(inode, size))

    def _sync(self, _: None, file: int) -> None:
        if file in self._opened:
            self._events.append(Synced(self._opened[file]))

    def _rename(self, _: None, old: Any, new: Any) -> None:
        before, after = self._name(old), self._name(new)
        if before is not None and after is not None:
            self._names[after] = self._names.pop(before)
            self._events.append(Renamed(before, after))

    def _remove(self, _: None, path: Any) -> None:
        name = self._name(path)
        if name is not None:
            del self._names[name]
            self._events.append(Removed(name))
