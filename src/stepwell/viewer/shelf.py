"""The stores that a viewer was given, each under a number that is part of its addresses."""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

from anyio import CapacityLimiter

from stepwell.description import Description
from stepwell.errors import FetchError, KindError, StepwellError
from stepwell.opening import can_open, open_lazily, store_at
from stepwell.store import Store
from stepwell.stores import STORES

_DEPTH = 2
_REFRESH_S = 1.0
_REMOTE_REFRESH_S = 30.0
_PATIENCE_S = 2.0
"""How long what is new behind a URL is waited for, where what was there can be shown."""
_THREADS, _SLOW_THREADS = 12, 4
_KEPT = 16
"""Results of a kind that an entry remembers: runs that are open, filters."""

T = TypeVar("T")


class Entry:
    """A store that is opened when it is first looked at, and followed while it grows.

    One that is given open is shown as it is: its rows are not to change under its owner.
    """

    def __init__(self, number: int, path: str, name: str, store: Store | None = None) -> None:
        self.number, self.path, self.name = number, path, name
        self._lock = threading.Lock()
        self._store, self.is_given = store, store is not None
        self.is_remote = "://" in path
        self.users = 0
        """How many have added it."""
        self._identity: tuple[int, ...] | None = None
        self._looking: Future[Store] | None = None
        self._due = self._patient_until = 0.0
        self._known: dict[Hashable, OrderedDict[Hashable, Any]] = {}
        self.problem: str | None = None
        """Why what is shown may be old: it could not be opened or refreshed since."""
        self.version = 0
        """How often something new was seen."""
        # Each has its own: one that does not answer leaves threads to the others.
        self.threads = CapacityLimiter(_THREADS)
        self.slow_threads = CapacityLimiter(_SLOW_THREADS)
        """For what may take long: conditions, charts, checks."""

    @property
    def store(self) -> Store:
        """The store, not older than a second; behind a URL half a minute.

        Raises what opening it raises, to all who wait for it; the next look tries again.
        """
        with self._lock:
            known, looking = self._store, self._looking
            begins = looking is None
            if looking is None:
                if known is not None and (self.is_given or monotonic() < self._due):
                    return known
                looking = self._looking = Future()
                self._patient_until = monotonic() + _PATIENCE_S
        if begins and self.is_remote:  # in a thread that nobody waits for when the process ends
            threading.Thread(target=self._look, args=(looking, known), daemon=True).start()
        elif begins:
            self._look(looking, known)
        if known is None or not self.is_remote:
            return looking.result()
        try:
            return looking.result(max(0.0, self._patient_until - monotonic()))
        except TimeoutError:
            return known

    def _look(self, looking: "Future[Store]", known: Store | None) -> None:
        """Open the store, or see what is new."""
        store, changed, error = known, False, None
        try:
            if known is None:
                self._identity = _identity(self.path)
                store = open_lazily(self.path)
            else:
                store, changed = self._followed(known)
        except BaseException as raised:  # whoever waits has it
            error = raised
        with self._lock:
            self._store, self._looking = store, None
            self._due = monotonic() + (_REMOTE_REFRESH_S if self.is_remote else _REFRESH_S)
            if changed:
                self.version += 1
                self._known.clear()
        if store is None or error is not None:
            looking.set_exception(error)
        else:
            looking.set_result(store)

    def _followed(self, store: Store) -> tuple[Store, bool]:
        """The store with what is new, or what is in its place, else as it was; and whether there
        was something new."""
        now = _identity(self.path)
        changed = replaced = now != self._identity
        try:
            if not replaced:
                try:
                    changed = store.refresh()
                except FetchError:  # which one is there is not known
                    raise
                except StepwellError:  # another one is there, or this one is damaged
                    changed = replaced = True
            if replaced:
                store, self._identity = open_lazily(self.path), now
        except (StepwellError, OSError, ValueError) as error:
            self.problem = f"shown as it was; it cannot be opened any more: {error}"
            return store, False
        self.problem = None
        return store, changed

    def remembered(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` returned for this key since the store last changed.

        Of keys that are tuples, a few are remembered that have the same first member.
        """
        kind = key[0] if isinstance(key, tuple) else key
        with self._lock:
            version, known = self.version, self._known.setdefault(kind, OrderedDict())
            if key in known:
                known.move_to_end(key)
                found: T = known[key]
                return found
        made = make()  # two may do so at once
        with self._lock:
            if self.version == version:
                known[key] = made
                while len(known) > _KEPT:
                    known.popitem(last=False)
        return made

    def about(self) -> Description:
        """The description of the store."""
        store = self.store
        return self.remembered("about", store.describe)


class Shelf:
    """Everything that is shown. A number that was given is not given again."""

    def __init__(self, paths: Sequence[str] = ()) -> None:
        self._entries: dict[int, Entry] = {}
        self._next = 0
        self._lock = threading.Lock()
        for path in paths:
            self.add(path)

    @property
    def entries(self) -> list[Entry]:
        """What is shown, in the order in which it was added."""
        with self._lock:
            return list(self._entries.values())

    def add(self, path: str) -> list[Entry]:
        """Show a path: a store, a file of a format, a URL, or a folder that holds several.

        Raises `FileNotFoundError`, and `KindError` when nothing in it can be shown.
        """
        found = [each if "://" in each else str(Path(each).absolute()) for each in stores_in(path)]
        with self._lock:
            known = {entry.path: entry for entry in self._entries.values() if not entry.is_given}
            made = [known.get(each) or self._new(each, _name(each, path)) for each in found]
        for entry in made:
            entry.users += 1
        return made

    def add_store(self, store: Store) -> Entry:
        """Show a store that is open, as it is."""
        path = store.path or ""  # of arrays in memory
        with self._lock:
            entry = self._new(path, Path(path).name or store.noun, store)
        entry.users += 1
        return entry

    def _new(self, path: str, name: str, store: Store | None = None) -> Entry:
        entry = self._entries[self._next] = Entry(self._next, path, name, store)
        self._next += 1
        return entry

    def remove(self, entry: Entry) -> None:
        """Let go of an entry, if nobody else has added it."""
        entry.users -= 1
        if entry.users <= 0:
            with self._lock:
                self._entries.pop(entry.number, None)

    def __getitem__(self, number: int) -> Entry:
        """Raises `KeyError` for a number that was not given, or is not shown any more."""
        entry = self._entries.get(number)
        if entry is None:
            raise KeyError(f"expected the number of a store that is shown, got {number}")
        return entry


def stores_in(path: str) -> list[str]:
    """What is at a path, if it can be opened, or else the stores of a folder and of its folders.

    Raises `FileNotFoundError`, and `KindError` when there is none.
    """
    where = Path(path)
    if "://" in path or _is_store(where) or can_open(where):
        return [path]
    level, found = [where] if where.is_dir() else [], list[str]()
    for _ in range(_DEPTH):
        level = [each for folder in level for each in _inside(folder)]
        found += [str(each) for each in level if _is_store(each)]
        level = [each for each in level if each.is_dir() and str(each) not in found]
    if not found:
        nouns = ", ".join(each.noun for each in STORES)
        raise KindError(f"expected {nouns}, or a folder of them, got none", path=path)
    return found


def _inside(folder: Path) -> list[Path]:
    """What is in a folder, in order; links are not followed, and what is hidden stays so."""
    try:
        every = sorted(folder.iterdir())
    except OSError:  # not ours to look into
        return []
    return [each for each in every if not each.name.startswith(".") and not each.is_symlink()]


def _is_store(path: Path) -> bool:
    try:
        return store_at(path) is not None
    except KindError:  # two of them: opening it says so
        return True


def _identity(path: str) -> tuple[int, ...] | None:
    """What changes when another file is in the place of one; folders are asked by `refresh`."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    if os.path.isdir(path):
        return found.st_dev, found.st_ino
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _name(path: str, given: str) -> str:
    return (
        Path(path).name
        if path == given or "://" in path
        else str(Path(path).relative_to(Path(given).absolute().parent))
    )
