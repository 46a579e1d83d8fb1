"""Games as training rows (docs/formats/steps.md): the steps of run files, or of a pack."""

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stepwell.errors import FormatError
from stepwell.formats.runs import RunList
from stepwell.game2048.board import legal as legal_moves
from stepwell.game2048.payload import RunPayloads
from stepwell.game2048.run_files import Files, find_runs, read_run
from stepwell.game2048.runs import RunBatch
from stepwell.ordered import in_order, thread_count
from stepwell.source import Batch, Field, Rows, Schema, Source
from stepwell.stores.pack import PackReader
from stepwell.stores.steps import RunColumn, StepReader

STEP = np.dtype(
    [
        ("board", "<u8"),
        ("move", "u1"),
        ("ev_legal", "u1"),
        ("ev_values", "<f4", (4,)),
        ("run_id", "<u4"),
        ("step_index", "<u2"),
    ]
)
"""A step of 2048: 32 packed bytes."""

_SCHEMA = {name: Field(STEP[name].base, STEP[name].shape) for name in STEP.names or ()}

RUN_COLUMNS = {
    "max_score": RunColumn(int, indexed=True),
    "highest_tile": RunColumn(int),
    "engine": RunColumn(str, optional=True),
    "start_time": RunColumn(int, optional=True),
    "elapsed_s": RunColumn(float, optional=True),
    "final_board": RunColumn(int, optional=True),
    "source": RunColumn(str, optional=True),
    "has_values": RunColumn(int, optional=True),
}
"""The columns of each game. A final board is kept in the 64 bits of a signed number."""

_MAX_STEPS = 65_535
_CHUNK_RUNS = 32


class Scanned(NamedTuple):
    """What is known of games that were decoded and checked."""

    numbers: list[int]
    """Of the games that can be rows."""
    counts: list[int]
    known: list[tuple[Any, ...]]
    """The columns of each."""
    skipped: list[tuple[str, str]]

    def add(
        self, chunk: list[tuple[int, tuple[Any, ...] | Exception]], names: list[str], skip_bad: bool
    ) -> None:
        """Add games; raise what is wrong with one, unless those are to be left out."""
        for number, found in chunk:
            name = names[number]
            if isinstance(found, Exception):
                if not skip_bad:
                    raise _named(found, name)
                self.skipped.append((name, str(found)))
                continue
            self.numbers.append(number)
            self.counts.append(found[0])
            self.known.append((*found[1:-1], name, found[-1]))

    def runs(self) -> RunList:
        made = RunList(self.counts, RUN_COLUMNS, self.known, RUN_COLUMNS)
        if not all(run[-1] for run in self.known):
            made.needed = {"has_values"}
        return made


class GameSteps(Source):
    """The steps of games: `convert(GameSteps("runs"), "games", to="steps")`.

    `games` is a directory of run files, a pack, or the path of one. Each game is decoded and
    checked at once. One that cannot be rows (damaged, longer than 65,535 steps, a step without
    branches) raises a `FormatError` that names it; with `skip_bad` it is left out, and listed in
    `skipped` with the reason. With `without_values` a step without branches is a row: legal moves
    are those of its board and have the value NaN, and the run column `has_values` is 0.
    """

    def __init__(
        self,
        games: str | os.PathLike[str] | PackReader,
        *,
        skip_bad: bool = False,
        without_values: bool = False,
        threads: int | None = None,
    ) -> None:
        threads = thread_count(threads)
        path, names, load, _ = opened(games)
        scanned = Scanned([], [], [], [])
        chunks = (
            range(at, min(at + _CHUNK_RUNS, len(names))) for at in range(0, len(names), _CHUNK_RUNS)
        )
        for chunk in in_order(partial(scan, load, without_values), chunks, threads):
            scanned.add(chunk, names, skip_bad)
        self._set(path, load, threads, scanned)

    @classmethod
    def of(
        cls, path: str, load: "Load", scanned: "Scanned", *, first_run: int = 0, threads: int = 1
    ) -> "GameSteps":
        """The steps of games that were decoded and checked before, their runs numbered from
        `first_run` on."""
        made = cls.__new__(cls)
        made._set(path, load, threads, scanned)
        made._first_run = first_run
        return made

    _first_run = 0

    def _set(self, path: str, load: "Load", threads: int, scanned: "Scanned") -> None:
        self._path, self._load, self._threads = path, load, threads
        self.skipped = scanned.skipped
        if not scanned.numbers:
            count = len(scanned.skipped)
            raise FormatError(f"none of {count} runs can be rows", path=self._path)
        self.runs = scanned.runs()
        self._numbers: Rows = np.array(scanned.numbers)
        self._counts, self._starts = self.runs.counts, self.runs.starts

    @property
    def path(self) -> str:
        return self._path

    @property
    def schema(self) -> Schema:
        return _SCHEMA

    def __len__(self) -> int:
        return int(self._counts.sum())

    def _runs(self) -> tuple[Rows, Rows]:
        return self._starts, self._counts

    def _fill(self, rows: Rows, out: Batch) -> None:
        run = np.searchsorted(self._starts, rows, side="right") - 1
        wanted, place = np.unique(run, return_inverse=True)
        batch = self._load(self._numbers[wanted], self._threads)
        if not np.array_equal(np.diff(batch.offsets), self._counts[wanted]):
            raise FormatError("the runs have changed since they were opened", path=self._path)
        step = rows - self._starts[run]
        at: Any = batch.offsets[place] + step
        if len(at) and at[-1] - at[0] == len(at) - 1 and (np.diff(at) == 1).all():
            at = slice(at[0], at[-1] + 1)  # as when reading in order; spares copies
        move, legal, known = batch.moves[at], batch.ev_legal[at], batch.has_branches[at]
        values = np.clip(batch.ev_values[at], 0, 1)
        if not known.all():
            legal = np.where(known, legal, legal_moves(batch.boards[at]))
            values[~known] = np.nan
        allowed = (legal[:, None] >> np.arange(4, dtype=np.uint8) & 1).astype(bool)
        values[~allowed] = 0
        chosen = np.arange(len(rows)), move
        values[chosen] = np.where(allowed[chosen] & known, np.float32(1), values[chosen])
        found = (batch.boards[at], move, legal, values, run + self._first_run, step)
        for name, column in zip(_SCHEMA, found, strict=True):
            out[name][...] = column


def filter_by_score(steps: StepReader, min_score: int, max_score: int | None = None) -> StepReader:
    """The steps of runs with at least `min_score`, and at most `max_score` if it is given."""
    if max_score is None:
        return steps.where("max_score >= ?", min_score)
    return steps.where("max_score BETWEEN ? AND ?", min_score, max_score)


Load = Callable[[Rows, int], RunBatch]
"""Decodes the runs of these numbers, with that many threads."""


class Games(NamedTuple):
    """Where games are, the name of each, and what loads them."""

    path: str
    names: list[str]
    load: Load
    files: Files | None
    """None of those in a pack."""


def opened(games: str | os.PathLike[str] | PackReader) -> Games:
    if isinstance(games, PackReader) or not Path(games).is_dir():
        pack = games if isinstance(games, PackReader) else PackReader.open(games)
        name = _text(os.path.basename(pack.path))
        names = [f"{name}#{number}" for number in pack.numbers]
        return Games(pack.path, names, partial(from_pack, pack), None)
    root, files = Path(games), find_runs(games)
    names = [_text(path.relative_to(root)) for path, _ in files]
    return Games(str(root), names, partial(from_files, files), files)


def from_files(files: Files, numbers: Rows, threads: int) -> RunBatch:
    payloads = [read_run(*files[i]) for i in numbers]
    path = files[numbers[0]][0] if len(numbers) == 1 else None
    return RunBatch.from_bytes(payloads, path=path, threads=threads)


def from_pack(pack: PackReader, numbers: Rows, threads: int) -> RunBatch:
    found = pack._decode(numbers, of=RunPayloads(), threads=threads)
    assert isinstance(found, RunBatch)
    return found


def _text(name: str | os.PathLike[str]) -> str:
    """A name as text, whatever its bytes."""
    return os.fsencode(name).decode(errors="backslashreplace")


def scan(
    load: Load, without_values: bool, numbers: range
) -> list[tuple[int, tuple[Any, ...] | Exception]]:
    """The columns of each of these runs, or the error about it."""
    try:
        batch = load(np.array(numbers), 1)
        _check(batch, without_values)
        return list(zip(numbers, _columns(batch), strict=True))
    except (FormatError, OSError) as error:
        if len(numbers) == 1:
            return [(numbers[0], error)]
        return [each for i in numbers for each in scan(load, without_values, range(i, i + 1))]


def _check(batch: RunBatch, without_values: bool) -> None:
    """Raise `FormatError` for runs that cannot be rows; it is about one run where there is one."""
    longest = int(batch.records["steps"].max())
    if longest > _MAX_STEPS:
        raise FormatError(f"{longest} steps; a run of a step dataset has at most {_MAX_STEPS}")
    if not without_values and not batch.has_branches.all():
        raise FormatError(
            f"step {int(batch.has_branches.argmin())} has no branches; without_values=True "
            "(--without-values) takes such runs, with NaN as values"
        )
    for name in ("max_score", "start_unix_s"):
        value = int(batch.records[name].max())
        if value >= 1 << 63:
            raise FormatError(f"{name}: expected less than 2**63, as SQLite has it, got {value}")


def _columns(batch: RunBatch) -> Iterator[tuple[Any, ...]]:
    """The length of each run, and its columns in the database of a dataset, but for its source."""
    boards = batch.records["final_board"].view(np.int64).tolist()
    known = np.append(0, np.cumsum(batch.has_branches, dtype=np.int64))[batch.offsets]
    whole = (np.diff(known) == batch.records["steps"]).astype(int).tolist()
    for meta, board, has_values in zip(batch.metas(), boards, whole, strict=True):
        numbers = (meta.start_unix_s, meta.elapsed_s, board, has_values)
        yield meta.steps, meta.max_score, meta.highest_tile, meta.engine, *numbers


def _named(problem: Exception, name: str) -> Exception:
    """The same error, with the run it is about in its words."""
    if isinstance(problem, FormatError) and problem.path is None:
        return type(problem)(f"{name}: {problem.args[0]}", offset=problem.offset)
    problem.add_note(f"in run {name}")
    return problem
