"""Runs as payloads of a pack: kinds 1 and 2 (docs/formats/pack.md).

`PackReader.where` has the columns `steps`, `start_unix_s`, `elapsed_s`, `max_score`,
`highest_tile` and `engine`. `PackReader.to_jsonl` takes `steps=True` for a line for each step
instead of one for each run, and `boards="hex"` for boards of runs as strings, for readers that
make doubles of numbers. Parquet and Arrow files have a row for each step.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.game2048.runs import Run, RunBatch
from stepwell.source import Batch, Field, Ragged, Rows, Schema
from stepwell.stores.pack.payload import Column, Lines, Payloads, PayloadType
from stepwell.stores.pack.stats import ShortStats, Tally

if TYPE_CHECKING:
    import pyarrow as pa

_TEXT = Field(np.dtype(np.uint8), kind="str")
_PER_STEP = {
    "boards": Field(np.dtype(np.uint64), ragged=True),
    "moves": Field(np.dtype(np.uint8), ragged=True),
    "ev_legal": Field(np.dtype(np.uint8), ragged=True),
    "ev_values": Field(np.dtype(np.float32), (4,), ragged=True),
    "has_branches": Field(np.dtype(np.bool), ragged=True),
}
_PER_RUN = {
    "final_board": Field(np.dtype(np.uint64)),
    "steps": Field(np.dtype(np.uint32)),
    "start_unix_s": Field(np.dtype(np.uint64)),
    "elapsed_s": Field(np.dtype(np.float32)),
    "max_score": Field(np.dtype(np.uint64)),
    "highest_tile": Field(np.dtype(np.uint32)),
}


@dataclass(frozen=True)
class RunStats(ShortStats):
    """What a pack of runs holds. Lengths are in steps and count runs only, as do the tallies."""

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
    columns: ClassVar[Mapping[str, Column]] = {
        "steps": Column("INTEGER NOT NULL", indexed=True),
        "start_unix_s": Column("INTEGER NOT NULL", indexed=True),
        "elapsed_s": Column("REAL"),
        "max_score": Column("INTEGER NOT NULL", indexed=True),
        "highest_tile": Column("INTEGER NOT NULL", indexed=True),
        "engine": Column("TEXT", indexed=True),
    }
    stats = RunStats

    def encode(self, item: Any) -> tuple[bytes, int] | None:
        return (item.to_bytes(), 2) if isinstance(item, Run) else None

    def kind_of(self, payload: bytes) -> int:
        return _core.run_kind(np.frombuffer(payload, np.uint8))

    def decode(self, at: Payloads, *, threads: int = 1, heads_only: bool = False) -> RunBatch:
        return RunBatch.decode(at, threads=threads, heads_only=heads_only)

    def fill(self, batch: RunBatch, out: Batch, names: Iterable[str]) -> None:
        for name in names:
            if name in _PER_STEP:
                out[name] = Ragged(getattr(batch, name), batch.offsets)
            elif name in _PER_RUN:
                out[name][...] = batch.records[name]
            else:
                out[name] = Ragged(batch.engines, batch.engine_offsets, "str")

    def rows(self, batch: RunBatch) -> Iterator[tuple[Any, ...]]:
        for i in range(len(batch)):
            meta = batch.meta(i)
            start, score = _sqlite(meta.start_unix_s), _sqlite(meta.max_score)
            yield meta.steps, start, meta.elapsed_s, score, meta.highest_tile, meta.engine

    def tally(self, batch: RunBatch) -> Tally:
        letters, offsets = batch.engines.tobytes(), batch.engine_offsets.tolist()
        return Tally(
            batch.records["steps"].copy(),
            batch.records["highest_tile"].tolist(),
            [letters[begin:end].decode() for begin, end in pairwise(offsets)],
        )

    def json_lines(self, *, steps: bool = False, boards: str = "number", **options: Any) -> Lines:
        if options:
            raise TypeError(f"runs: expected the options steps and boards, got {sorted(options)}")
        if boards not in ("number", "hex"):
            raise ValueError(f"boards: expected 'number' or 'hex', got {boards!r}")
        hexadecimal = boards == "hex"

        def lines(
            file: NDArray[np.uint8], entries: NDArray[Any], numbers: Rows, path: str
        ) -> NDArray[np.uint8]:
            return _core.to_jsonl(file, entries.view(np.uint8), numbers, path, steps, hexadecimal)

        return lines

    def arrow_schema(self) -> "pa.Schema":
        import pyarrow as pa

        columns = {
            "run_idx": pa.int64(),
            "step_idx": pa.uint32(),
            "board": pa.uint64(),
            "move": pa.uint8(),
            "ev_legal": pa.uint8(),
            "ev_values": pa.list_(pa.field("item", pa.float32(), nullable=False), 4),
            "has_branches": pa.bool_(),
        }
        return pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns.items()])

    def arrow_batch(self, batch: RunBatch, numbers: Rows) -> "pa.RecordBatch":
        import pyarrow as pa

        schema, lengths = self.arrow_schema(), np.diff(batch.offsets)
        within = np.arange(len(batch.boards)) - np.repeat(batch.offsets[:-1], lengths)
        values = pa.array(batch.ev_values.reshape(-1))
        return pa.record_batch(
            [
                pa.array(np.repeat(numbers, lengths)),
                pa.array(within.astype(np.uint32)),
                pa.array(batch.boards),
                pa.array(batch.moves),
                pa.array(batch.ev_legal),
                pa.FixedSizeListArray.from_arrays(values, type=schema.field("ev_values").type),
                pa.array(batch.has_branches),
            ],
            schema=schema,
        )


def _sqlite(number: int) -> int | float:
    """SQLite's whole numbers have 63 bits; larger ones compare well enough as floats."""
    return number if number < 2**63 else float(number)
