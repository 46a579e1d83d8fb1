"""Runs as payloads of a pack: kinds 1 and 2 (docs/formats/pack.md).

`PackReader.where` has the columns `steps`, `start_unix_s`, `elapsed_s`, `max_score`,
`highest_tile` and `engine`. `PackReader.to_jsonl` takes these options:

- `steps=True`: a line for each step instead of one for each run; `layout="seed"`: the same with
  boards as numbers and values alone, and with `ends`
- `ends=True`: a line behind each run with its final board, scores and engine; without steps no
  other lines
- `boards="hex"`: boards as strings, for readers that make doubles of numbers

`RunSteps` has a row for each step, for Parquet, Arrow and loaders.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.game2048.runs import RECORD, Run, RunBatch, RunMeta
from stepwell.source import Batch, Field, Ragged, Rows, Schema, Source
from stepwell.stores.pack import PackReader
from stepwell.stores.pack.payload import Payloads, PayloadType
from stepwell.stores.pack.stats import ShortStats, Tally

_TEXT = Field(np.uint8, kind="str")
_PER_STEP = {
    "boards": Field(np.uint64, ragged=True),
    "moves": Field(np.uint8, ragged=True),
    "ev_legal": Field(np.uint8, ragged=True),
    "ev_values": Field(np.float32, (4,), ragged=True),
    "has_branches": Field(np.bool, ragged=True),
}
_SINGULAR = {"boards": "board", "moves": "move"}
_PER_RUN = {
    name: Field(RECORD[name])
    for name in ("final_board", *(n for n in RunMeta._fields if n != "engine"))
}


@dataclass(frozen=True)
class RunStats(ShortStats):
    """Statistics of a pack of runs. Lengths are in steps and count runs only, as do the tallies."""

    highest_tile_hist: dict[int, int]
    """How many runs reached each tile and no higher one."""
    engine_counts: dict[str, int]
    """Runs by the engine that played them; "" where a run names none."""


class RunPayloads(PayloadType):
    """Runs v1 and v2; an item is a `Run`."""

    name = "runs"
    kinds: ClassVar[Mapping[int, str]] = {1: "v1", 2: "v2"}
    suffixes: ClassVar[Mapping[int, str]] = {1: ".a2run", 2: ".a2run2"}
    schema: ClassVar[Schema] = {**_PER_STEP, **_PER_RUN, "engine": _TEXT}
    head_fields = frozenset({"engine", *_PER_RUN} - {"final_board"})
    columns: ClassVar[Mapping[str, str]] = {
        "steps": "INTEGER NOT NULL",
        "start_unix_s": "INTEGER NOT NULL",
        "elapsed_s": "REAL",
        "max_score": "INTEGER NOT NULL",
        "highest_tile": "INTEGER NOT NULL",
        "engine": "TEXT",
    }
    stats = RunStats

    def encode(self, item: Any) -> tuple[bytes, int] | None:
        return (item.to_bytes(), 2) if isinstance(item, Run) else None

    def kind_of(self, payload: bytes) -> int:
        return _core.run_kind(np.frombuffer(payload, np.uint8))

    def decode(self, at: Payloads, *, threads: int = 1, heads_only: bool = False) -> RunBatch:
        return RunBatch(at, threads=threads, heads_only=heads_only)

    def fill(self, batch: RunBatch, out: Batch, names: Iterable[str]) -> None:
        for name in names:
            if name in _PER_STEP:
                out[name] = Ragged(getattr(batch, name), batch.offsets)
            elif name in _PER_RUN:
                out[name][...] = batch.records[name]
            else:
                out[name] = Ragged(batch.engines, batch.engine_offsets, "str")

    def rows(self, batch: RunBatch) -> Iterator[tuple[Any, ...]]:
        for meta in batch.metas():
            start, score = _sqlite(meta.start_unix_s), _sqlite(meta.max_score)
            yield meta.steps, start, meta.elapsed_s, score, meta.highest_tile, meta.engine

    def steps(self, pack: PackReader) -> "RunSteps":
        return RunSteps(pack)

    def tally(self, batch: RunBatch) -> Tally:
        letters, offsets = batch.engines.tobytes(), batch.engine_offsets.tolist()
        return Tally(
            batch.records["steps"].copy(),
            batch.records["highest_tile"].tolist(),
            [letters[begin:end].decode() for begin, end in pairwise(offsets)],
        )

    def json_lines(
        self,
        *,
        steps: bool = False,
        layout: str = "original",
        ends: bool | None = None,
        boards: str = "number",
        **options: Any,
    ) -> Callable[[Payloads], NDArray[np.uint8]]:
        if options:
            known = "steps, layout, ends and boards"
            raise TypeError(f"runs: expected the options {known}, got {sorted(options)}")
        if boards not in ("number", "hex"):
            raise ValueError(f"boards: expected 'number' or 'hex', got {boards!r}")
        if layout not in ("original", "seed"):
            raise ValueError(f"layout: expected 'original' or 'seed', got {layout!r}")
        seed = layout == "seed"
        ends = seed if ends is None else ends
        shape = 2 if seed else 1 if steps else 3 if ends else 0
        return lambda at: _core.to_jsonl(
            at.file, at.entries.view(np.uint8), at.numbers, at.path, shape, ends, boards == "hex"
        )


class RunSteps(Source):
    """The steps of the runs of a pack as rows: `convert(RunSteps(pack), "steps.parquet")`."""

    def __init__(self, pack: PackReader) -> None:
        pack._only_type()
        self._pack = pack
        self._ends = np.cumsum(pack["steps"][:], dtype=np.int64)

    schema: ClassVar[Schema] = {
        "run_idx": Field(np.int64),
        "step_idx": Field(np.uint32),
        **{_SINGULAR.get(n, n): Field(f.dtype, f.shape) for n, f in _PER_STEP.items()},
    }

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    @property
    def path(self) -> str:
        return self._pack.path

    def _runs(self) -> tuple[Rows, Rows]:
        counts = np.diff(self._ends, prepend=0)
        return self._ends - counts, counts

    def _fill(self, rows: Rows, out: Batch) -> None:
        runs, run = np.unique(np.searchsorted(self._ends, rows, "right"), return_inverse=True)
        within = rows - self._runs()[0][runs][run]
        out["run_idx"][...], out["step_idx"][...] = self._pack.numbers[runs][run], within
        for name, steps in self._pack.columns(list(_PER_STEP)).take(runs).items():
            out[_SINGULAR.get(name, name)][...] = steps.values[steps.offsets[run] + within]


def _sqlite(number: int) -> int | float:
    """SQLite's whole numbers have 63 bits; larger ones compare well enough as floats."""
    return number if number < 2**63 else float(number)
