"""A recorded game of 2048 and its two encodings (docs/formats/runs.md).

    run = Run.load("game.a2run2")
    run.boards, run.moves, run.ev_values      one array each, a row per step
    run.meta.max_score, run.final_board

Many runs are decoded at once into a `RunBatch`: one array per column, one run after the
other. A `Run` is a row of such a batch and costs next to nothing until it is looked at.
"""

import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stepwell import _core
from stepwell.errors import SchemaError
from stepwell.files.atomic import write_file
from stepwell.files.regular import open_regular
from stepwell.game2048.board import highest_tile as highest_tile_of, score, whole
from stepwell.stores.pack.layout import ENTRY
from stepwell.stores.pack.payload import Payloads

RECORD = np.dtype(
    [
        ("start_unix_s", "<u8"),
        ("max_score", "<u8"),
        ("final_board", "<u8"),
        ("steps", "<u4"),
        ("highest_tile", "<u4"),
        ("elapsed_s", "<f4"),
        ("has_engine", "<u4"),
    ]
)


class RunMeta(NamedTuple):
    """The metadata of a run."""

    steps: int
    start_unix_s: int
    elapsed_s: float
    max_score: int
    highest_tile: int
    engine: str | None


class RunBatch(Sequence["Run"]):
    """Runs as columns: run i has the steps `offsets[i]` to `offsets[i + 1]` of each.

    A run that is kept keeps the whole batch; `Run.copy` gives it memory of its own.
    """

    __slots__ = (
        *("boards", "engine_offsets", "engines", "ev_legal", "ev_values", "has_branches"),
        *("moves", "offsets", "records"),
    )

    def __init__(self, at: Payloads, *, threads: int = 1, heads_only: bool = False) -> None:
        """Decode payloads, in their order, without the GIL.

        A negative number is not named in errors. With `heads_only` there are no steps, and final
        boards are 0.
        """
        read = _core.read_heads if heads_only else _core.decode_runs
        records, offsets, engine_offsets, layout, block = read(
            at.file, at.entries.view(np.uint8), at.numbers, at.path, threads
        )
        self.records = records.view(RECORD)
        self.offsets = offsets.view(np.int64)
        self.engine_offsets = engine_offsets.view(np.int64)
        total = int(self.offsets[-1])
        self.boards = np.ndarray(total, np.uint64, block, layout[0])
        self.ev_values = np.ndarray((total, 4), np.float32, block, layout[1])
        self.moves = np.ndarray(total, np.uint8, block, layout[2])
        self.ev_legal = np.ndarray(total, np.uint8, block, layout[3])
        self.has_branches = np.ndarray(total, np.bool, block, layout[4])
        self.engines = np.ndarray(layout[6] - layout[5], np.uint8, block, layout[5])

    @classmethod
    def from_bytes(
        cls,
        payloads: Sequence[Any],
        *,
        path: str | os.PathLike[str] | None = None,
        threads: int = 1,
    ) -> Self:
        """Decode runs, v1 or v2; `path` is named in errors."""
        views = [np.frombuffer(payload, np.uint8) for payload in payloads]
        entries = np.zeros(len(views), ENTRY)
        lengths = np.array([len(view) for view in views], np.int64)
        if lengths.max(initial=0) >= 2**32:
            raise ValueError(f"a run has fewer than 2**32 bytes, got {lengths.max()}")
        entries["length"], entries["kind"] = lengths, [_core.run_kind(view) for view in views]
        entries["offset"] = np.cumsum(lengths) - lengths
        data = views[0] if len(views) == 1 else np.concatenate([np.empty(0, np.uint8), *views])
        numbers = np.full(len(views), -1)
        where = "" if path is None else os.fspath(path)
        return cls(Payloads(data, entries, numbers, where), threads=threads)

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return [Run._of(self, k) for k in range(*i.indices(len(self)))]
        return Run._of(self, range(len(self))[i])

    def metas(self, begin: int = 0, end: int | None = None) -> list[RunMeta]:
        """The numbers and the engines of some runs, or of all, as Python's own."""
        records = self.records[begin:end]
        offsets = self.engine_offsets[begin : begin + len(records) + 1].tolist()
        engines = [
            self.engines[first:last].tobytes().decode() if known else None
            for (first, last), known in zip(
                pairwise(offsets), records["has_engine"].tolist(), strict=True
            )
        ]
        numbers = [records[name].tolist() for name in RunMeta._fields if name != "engine"]
        return [RunMeta(*values) for values in zip(*numbers, engines, strict=True)]


class Run:
    """One recorded game: arrays with a row per step, and its metadata.

    `boards` are those before each move; bit m of `ev_legal` and column m of `ev_values`
    belong to move m (up, down, left, right). Both are 0 where `has_branches` is False: such a
    step has no recorded values. Score and highest tile are those of the final board unless
    they are given.
    """

    __slots__ = ("_batch", "_i")
    _batch: RunBatch
    _i: int

    def __init__(
        self,
        boards: ArrayLike,
        moves: ArrayLike,
        final_board: int,
        *,
        ev_values: ArrayLike | None = None,
        ev_legal: ArrayLike | None = None,
        has_branches: ArrayLike | None = None,
        start_unix_s: int = 0,
        elapsed_s: float = 0.0,
        max_score: int | None = None,
        highest_tile: int | None = None,
        engine: str | None = None,
    ) -> None:
        if (ev_values is None) != (ev_legal is None):
            raise ValueError("give both ev_values and ev_legal, or neither")
        if not isinstance(engine, str | None):
            raise TypeError(f"engine: expected a string or None, got {type(engine).__name__}")
        known = np.asarray(ev_values is not None if has_branches is None else has_branches)
        if known.dtype != np.bool:
            raise SchemaError(f"has_branches: expected True or False, got {known.dtype}")
        legal = 0 if ev_legal is None else ev_legal
        steps = (len(np.asarray(boards)),)
        columns = {
            "boards": _shaped("boards", whole("boards", boards), steps),
            "ev_values": _floats("ev_values", 0 if ev_values is None else ev_values, (*steps, 4)),
            "moves": _shaped("moves", whole("moves", moves, np.uint8), steps),
            "ev_legal": _shaped(
                "ev_legal", whole("ev_legal", legal, np.uint8, max_value=15), steps
            ),
            "has_branches": _shaped("has_branches", known, steps),
        }
        final = int(whole("final_board", final_board))
        points = score(final) if max_score is None else int(whole("max_score", max_score))
        if highest_tile is None:
            highest_tile = highest_tile_of(final)
        # Encoding checks everything a run has to be, and decoding makes the columns.
        numbers = (
            int(whole("start_unix_s", start_unix_s)),
            _floats("elapsed_s", elapsed_s, ())[()],
            points,
            int(whole("highest_tile", highest_tile, np.uint32)),
        )
        text = None if engine is None else engine.encode()
        payload = _encode(2, numbers, text, columns, final)
        made = Run.from_bytes(payload)
        self._batch, self._i = made._batch, made._i

    @classmethod
    def _of(cls, batch: RunBatch, i: int) -> Self:
        run = cls.__new__(cls)
        run._batch = batch
        run._i = i
        return run

    # Reading and writing.

    @classmethod
    def from_bytes(cls, payload: Any, *, path: str | os.PathLike[str] | None = None) -> Self:
        """Decode a run, v1 or v2; a v1 run comes without branches.

        Raises `FormatError` with the offset of what is wrong; `path` is named in it.
        """
        return cls._of(RunBatch.from_bytes([payload], path=path), 0)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a `.a2run` or `.a2run2` file, recognized by its bytes."""
        with open_regular(Path(path)) as file:
            return cls.from_bytes(file.read(), path=path)

    def to_bytes(self, version: Literal[1, 2] = 2) -> bytes:
        """Encode the run. Version 1 has no place for branches: they are left out."""
        batch, meta = self._batch, self._batch.records[self._i]
        begin, end = batch.engine_offsets[self._i : self._i + 2]
        engine = batch.engines[begin:end].tobytes() if meta["has_engine"] else None
        columns = {name: getattr(self, name) for name in _COLUMNS}
        numbers = [meta[n] for n in ("start_unix_s", "elapsed_s", "max_score", "highest_tile")]
        return _encode(version, tuple(numbers), engine, columns, self.final_board)

    def save(self, path: str | os.PathLike[str], version: Literal[1, 2] = 2) -> None:
        """Write the run to a file: all of it, on the disk, or nothing."""
        write_file(Path(path), self.to_bytes(version), follow=True)

    # Properties.

    @property
    def meta(self) -> RunMeta:
        """The scores, the engine and the other numbers of the whole run."""
        return self._batch.metas(self._i, self._i + 1)[0]

    @property
    def boards(self) -> NDArray[np.uint64]:
        """The board before each move."""
        return self._batch.boards[self._steps]

    @property
    def moves(self) -> NDArray[np.uint8]:
        """0 up, 1 down, 2 left, 3 right."""
        return self._batch.moves[self._steps]

    @property
    def ev_legal(self) -> NDArray[np.uint8]:
        """Bit m: move m was legal."""
        return self._batch.ev_legal[self._steps]

    @property
    def ev_values(self) -> NDArray[np.float32]:
        """The player's value of each move, from 0 to just below 1."""
        return self._batch.ev_values[self._steps]

    @property
    def has_branches(self) -> NDArray[np.bool]:
        """Whether `ev_legal` and `ev_values` were recorded."""
        return self._batch.has_branches[self._steps]

    @property
    def final_board(self) -> int:
        """The board after the last move, as a number."""
        return int(self._batch.records[self._i]["final_board"])

    @property
    def states(self) -> NDArray[np.uint64]:
        """Every board of the game: those before each move, then the final one."""
        return np.append(self.boards, np.uint64(self.final_board))

    def copy(self) -> "Run":
        """The same run with memory of its own."""
        return Run.from_bytes(self.to_bytes())

    @property
    def _steps(self) -> slice:
        offsets = self._batch.offsets
        return slice(offsets[self._i], offsets[self._i + 1])

    def __len__(self) -> int:
        """The number of steps."""
        return int(self._batch.records[self._i]["steps"])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and self.to_bytes() == other.to_bytes()

    __hash__ = None  # type: ignore[assignment]  # its arrays may be changed

    def __reduce__(self) -> tuple[Any, ...]:
        return Run.from_bytes, (self.to_bytes(),)

    def __repr__(self) -> str:
        meta = self.meta
        return (
            f"Run({meta.steps:,} steps, score {meta.max_score:,}, highest tile "
            f"{meta.highest_tile:,}, engine {meta.engine!r})"
        )


_COLUMNS = ("boards", "ev_values", "moves", "ev_legal", "has_branches")


def _encode(
    version: int,
    numbers: tuple[Any, ...],
    engine: bytes | None,
    columns: dict[str, NDArray[Any]],
    final_board: int,
) -> bytes:
    start, elapsed, points, tile = numbers
    arrays = [np.require(columns[name], requirements=["C", "A"]) for name in _COLUMNS]
    boards, values, moves, legal, known = arrays
    return _core.encode_run(
        version,
        # The bits of a float: as a number, a signalling NaN would become a quiet one.
        (start, int(np.float32(elapsed).view(np.uint32)), points, tile),
        engine,
        boards,
        values.reshape(-1),
        moves,
        legal,
        known.view(np.uint8),
        final_board,
    )


def _floats(name: str, given: ArrayLike, shape: tuple[int, ...]) -> NDArray[np.float32]:
    values = np.asarray(given)
    if values.dtype.kind not in "fiu":
        raise SchemaError(f"{name}: expected numbers, got {values.dtype}")
    return _shaped(name, values, shape).astype(np.float32, copy=False)


def _shaped(name: str, values: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """The values, of which a single one stands for all."""
    if values.ndim and values.shape != shape:
        raise SchemaError(f"{name}: expected shape {shape}, got {values.shape}")
    return values if values.ndim else np.full(shape, values)
