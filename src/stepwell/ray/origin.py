"""Where rows come from, and how a worker gets those of one piece: it opens the source itself."""

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Protocol

import numpy as np

from stepwell.game2048.run_files import Files
from stepwell.game2048.training import GameSteps, Load, Scanned, from_files, opened, scan
from stepwell.ray.finished import Facts
from stepwell.ray.work import Piece, Work
from stepwell.request import Request
from stepwell.source import Source
from stepwell.stores import PackReader

_SCANS = 16
_SCAN_RUNS = 32
_MAX_SCAN_RUNS = 1 << 12


class Rows(Protocol):
    """The rows of a piece; pickles as a path and a few numbers."""

    def open(self) -> Source:
        """These rows, in a worker."""


@dataclass
class Origin:
    """The source of a conversion."""

    rows: Source
    """All of them."""
    of: Callable[[range], Rows]
    """Those of a piece."""


@dataclass(frozen=True)
class Key:
    """A request and the state that its source is in: a worker opens it once."""

    packed: bytes

    @classmethod
    def of(cls, request: Request, about: dict[str, Any]) -> "Key":
        return cls(pickle.dumps((request, about)))

    @property
    def request(self) -> Request:
        request: Request = pickle.loads(self.packed)[0]
        return request


def place_of(source: Source) -> str:
    """The path of a source that can be sent to workers. Raises `ValueError` for one that cannot."""
    if source.path is None:
        raise ValueError(
            "source: expected something at a path, which workers can open, got rows in memory or "
            "a view of some; save them, and give the path"
        )
    try:
        pickle.dumps(source)
    except Exception as error:
        raise ValueError(f"source: it cannot be sent to workers: {error}") from None
    return source.path


@dataclass(frozen=True)
class _Slice:
    key: Key
    part: range

    def open(self) -> Source:
        return _rows(self.key).select(slice(self.part.start, self.part.stop))


@lru_cache(maxsize=1)
def _rows(key: Key) -> Source:
    request = key.request
    return request.rows(request.opened(verify=False))


def of_source(key: Key, rows: Source) -> Origin:
    """Rows of a store or a format."""
    return Origin(rows, lambda part: _Slice(key, part))


# Games: decoded and checked in pieces first, as it has to be known how many rows they are.


@dataclass(frozen=True)
class _Games:
    """Some games, by their numbers: those of files that are given, or of a pack."""

    key: Key
    files: Files | None

    def load(self) -> Load:
        return _pack(self.key) if self.files is None else partial(from_files, self.files)


@lru_cache(maxsize=1)
def _pack(key: Key) -> Load:
    games = key.request.game_source()
    assert games is not None
    return opened(games).load


@dataclass(frozen=True)
class _GameRows:
    games: _Games
    known: Scanned
    first_run: int
    rows: range
    """Of all rows of these games."""

    def open(self) -> Source:
        steps = GameSteps.of("", self.games.load(), self.known, first_run=self.first_run)
        return steps.select(slice(self.rows.start, self.rows.stop))


def scanned(games: _Games, numbers: range, names: list[str]) -> Facts:
    """Decode and check games; what is known of each."""
    request, load = games.key.request, games.load()
    known = Scanned([], [], [], [])
    for at in range(numbers.start, numbers.stop, _SCAN_RUNS):
        some = range(at, min(at + _SCAN_RUNS, numbers.stop))
        chunk = scan(load, request.games["without_values"], some)
        known.add(
            [(n - numbers.start, found) for n, found in chunk], names, request.games["skip_bad"]
        )
    return known._asdict()


def of_games(work: Work, key: Key, source: str | PackReader) -> Origin:
    """The steps of games."""
    path, names, load, files = opened(source)
    size = max(_SCAN_RUNS, min(-(-len(names) // _SCANS), _MAX_SCAN_RUNS))
    pieces = []
    for at in range(0, len(names), size):
        part = range(at, min(at + size, len(names)))
        some, here = slice(part.start, part.stop), part
        if files is not None:
            here = range(len(part))
        games = _Games(key, None if files is None else files[some])
        pieces.append(Piece(part, (games, here, names[some])))
    every = Scanned([], [], [], [])
    for piece, facts in zip(pieces, work.do("games", scanned, pieces, rows=False), strict=True):
        every.numbers.extend(piece.part.start + number for number in facts["numbers"])
        every.counts.extend(facts["counts"])
        every.known.extend(map(tuple, facts["known"]))
        every.skipped.extend((name, reason) for name, reason in facts["skipped"])
    rows = GameSteps.of(path, load, every)
    starts = rows.runs.starts

    def of(part: range) -> Rows:
        first = int(np.searchsorted(starts, part.start, "right")) - 1
        last = int(np.searchsorted(starts, part.stop, "left"))
        some, begin = slice(first, last), part.start - int(starts[first])
        numbers, mine = every.numbers[some], None
        if files is not None:
            mine, numbers = [files[number] for number in numbers], list(range(last - first))
        known = Scanned(numbers, every.counts[some], every.known[some], [])
        within = range(begin, begin + len(part))
        return _GameRows(_Games(key, mine), known, first, within)

    return Origin(rows, of)
