"""Rows that stay in the memory of a device, and the engine that makes batches of them there.

A resident is a view: the source that it was made of still answers `take`, has the runs, and is what
a loader's state is compared by. Its parts share the rows on the device and translate row numbers
only, on the host, a large piece of an epoch at a time. The order is the host's own.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
import torch
from numpy.typing import ArrayLike

from stepwell import _core
from stepwell.engine import Delivery, Engine, Step, note as note
from stepwell.field import Batch
from stepwell.source import Rows, Schema, Source, as_rows
from stepwell.store import Runs, Table as RunTable
from stepwell.stores.steps import StepReader
from stepwell.torch.feed import current_stream
from stepwell.torch.layout import Layout, Table, find_device
from stepwell.torch.tensors import Tensors, signed, signed_types, tensors_of
from stepwell.views import _View

if TYPE_CHECKING:
    from stepwell.torch.loader import Loader

_GROUP_BYTES = 32 << 20
_GROUP_ROWS = 1 << 20
_GROUP_BATCHES = 1024
"""What batches that are made together may have."""
_FIRST_BATCHES = 8
"""Batches of the first group; each may have four times as many as the one before."""


class _Translation(NamedTuple):
    """One view: its row map, and of one with a mask how many rows of zeros come before those of its
    base."""

    map: _core.RowMap
    zeros: int | None = None


class Resident(_View):
    """The rows of a source on a device; `source.to("cuda")` makes it.

        rows = sw.StepReader.open("games", memory="map").to("cuda")
        for batch in sw.torch.Loader(rows.where("max_score > ?", 20_000), 4096, seed=7): ...

    `where`, `split`, `select`, `columns` and `windows` give residents that share the memory. A
    `sw.torch.Loader` gathers many batches at once on the device; order and state are those of the
    same loader on the host, so a run may go on with either. `take` answers from the source, with
    NumPy's arrays; `tensors` from the device.

    With a share `resident` below 1, the first rows are on the device and the others are read from
    the source. Raises `MemoryError` with both sizes when rows do not fit, `SchemaError` naming a
    field that is ragged or of a type that torch does not have, `ValueError` for a device that is
    not here.
    """

    _base: Source

    def __init__(self, source: Source, device: Any = "cuda", resident: float = 1.0) -> None:
        source._check_open()
        table = Table(source, find_device(device), resident)
        self._begin(source, table, (), {name: name for name in source.schema})

    def _begin(
        self,
        base: Source,
        table: Table,
        steps: tuple[_Translation, ...],
        names: Mapping[str, str | None],
    ) -> None:
        self._base, self._count = base, len(base)
        self._on: Table | None = table
        self._steps, self._names = steps, dict(names)
        self._device = table.device

    def _view(
        self, base: Source, *steps: _Translation, names: Mapping[str, str | None] | None = None
    ) -> "Resident":
        """A view of the source, as one of the same rows on the device."""
        made = Resident.__new__(Resident)
        made._begin(base, self._table, (*steps, *self._steps), names or self._names)
        return made

    # Properties.

    def __len__(self) -> int:
        return self._count

    @property
    def schema(self) -> Schema:
        """The fields of a row, in order, with the types of the source."""
        return self._base.schema

    @property
    def device(self) -> torch.device:
        """Where the rows are."""
        return self._device

    @property
    def runs(self) -> Runs | None:
        """The runs of the rows; None where the source has none."""
        return getattr(self._base, "runs", None)

    @property
    def fingerprint(self) -> str:
        return self._base._fingerprint_of(len(self))

    def __repr__(self) -> str:
        table = self._on
        part = "" if table is None or table.is_whole else f", {table.count:,} rows there"
        return f"{super().__repr__()[:-1]}, device='{self._device}'{part})"

    def __getstate__(self) -> NoReturn:
        raise TypeError(
            f"expected a source that can be pickled, got rows in the memory of {self._device}; "
            "pickle the source that they were made of, and call its to() where they are wanted"
        )

    def __reduce__(self) -> NoReturn:
        self.__getstate__()

    def close(self) -> None:
        """Let go of the rows on the device, and close the source. Parts keep what they share."""
        self._on = None
        super().close()

    def _check_open(self) -> None:
        if self._on is None:
            raise ValueError(f"closed: rows on {self._device}")
        super()._check_open()

    # Rows.

    def tensors(self, rows: ArrayLike, as_int64: Sequence[str] = ()) -> Tensors:
        """The given rows as tensors on the device, in the types that a `sw.torch.Loader` gives.

        Raises `IndexError` naming the first row outside `range(len(self))`.
        """
        wanted = as_rows(rows, len(self))
        layout = self._layout(as_int64)
        staged = self._stage(wanted, self._staging(layout, len(wanted)), layout)
        blocks = self._gather(layout, staged, 1)
        names = [column.name for column in layout.columns]
        values = [each[0] for each in layout.views(blocks, len(wanted))]
        return dict(zip(names, values, strict=True))

    def _native(self, names: Sequence[str]) -> _core.Reader | None:
        reader = self._base._native(names)
        if reader is None or reader.length == self._count:
            return reader
        first = _core.range_map(np.zeros(1, np.int64), np.array([self._count]))
        return _core.mapped_reader(reader, first)  # the source has grown since

    def _fill(self, rows: Rows, out: Batch) -> None:
        out.update(self._base.take(rows, out))

    # Parts, which share the rows on the device.

    def to(self, device: Any = "cuda", *, resident: float = 1.0) -> "Resident":
        """The rows of the source once more, on another device."""
        return Resident(self._known(), device, resident)

    def where(self, condition: str, *values: Any, timeout_s: float | None = None) -> "Resident":
        """The steps of the runs for which an SQL condition holds, as of a step dataset."""
        base = self._of_runs("where")
        return self._part(base, base.where(condition, *values, timeout_s=timeout_s))

    def split(self, fraction: float, seed: int = 0) -> tuple["Resident", "Resident"]:
        """Two parts without a run in common, as of a step dataset."""
        base = self._of_runs("split")
        first, second = base.split(fraction, seed)
        return self._part(base, first), self._part(base, second)

    def query(
        self, sql: str, *values: Any, timeout_s: float | None = None
    ) -> RunTable[dict[str, Any]]:
        """What an SQL query over the runs of a step dataset returns."""
        return self._of_runs("query").query(sql, *values, timeout_s=timeout_s)

    def select(self, rows: ArrayLike | slice) -> "Resident":  # type: ignore[override]
        """These rows only, in this order: numbers, a mask or a slice."""
        base = self._known().select(rows)
        return self._view(base, _Translation(base._map))

    def columns(  # type: ignore[override]
        self, names: Sequence[str] | Mapping[str, str]
    ) -> "Resident":
        """These fields only, in this order; `{new: old}` gives them other names."""
        base = self._known().columns(names)
        return self._view(base, names={new: self._names[old] for new, old in base._names.items()})

    def windows(  # type: ignore[override]
        self, length: int, stride: int = 1, *, pad: bool = False
    ) -> "Resident":
        """Sequences of `length` neighbouring rows, one every `stride` rows, inside runs."""
        if pad and any(step.zeros is not None for step in self._steps):
            self._refuse("source.windows(…, pad=True)")
        base = self._known().windows(length, stride, pad=pad)
        steps = [_Translation(base._map)]
        if not pad:
            return self._view(base, *steps)
        steps.append(_Translation(base._base._map, length - 1))  # type: ignore[attr-defined]
        return self._view(base, *steps, names={**self._names, "mask": None})

    def concat(self, *others: Source) -> NoReturn:
        """Refused: rows of several sources are one table when they go to the device together."""
        self._refuse("a.concat(b)")

    def map(self, fn: Callable[[Batch], Batch]) -> NoReturn:
        """Refused: a function of NumPy's arrays comes first, or is the loader's `transform`."""
        self._refuse("source.map(fn)")

    def transitions(self, *args: Any, **options: Any) -> NoReturn:
        """Refused: what follows a step is read on the host."""
        self._refuse("source.transitions()")

    def returns_to_go(self, *args: Any, **options: Any) -> NoReturn:
        """Refused: rewards are added up on the host."""
        self._refuse("source.returns_to_go()")

    def _refuse(self, made: str) -> NoReturn:
        name = made.partition(".")[2].partition("(")[0]
        raise ValueError(
            f"{name}: expected rows on the host, got some on {self._device}; make "
            f"it first: {made}.to({str(self._device)!r})"
        )

    def _known(self) -> Source:
        """The source, if it has the rows that it had when they went to the device."""
        self._check_open()
        if len(self._base) != self._count:
            raise ValueError(
                f"expected the {self._count:,} rows that are on {self._device}, the source has "
                f"{len(self._base):,} now; call its to() again"
            )
        return self._base

    def _of_runs(self, name: str) -> StepReader:
        base = self._known()
        if not isinstance(base, StepReader):
            raise ValueError(
                f"{name}: expected rows of a step dataset, got those of a {type(base).__name__}"
            )
        return base

    def _part(self, base: StepReader, part: StepReader) -> "Resident":
        return self._view(part, _Translation(base._map_of(part)))

    # Below this line: for loaders.

    def _at(self, device: Any) -> torch.device:
        """The device of batches. Raises `ValueError` for another than the one of the rows."""
        if device is not None and find_device(device) != self._device:
            raise ValueError(f"device: expected {self._device}, where the rows are, got {device}")
        return self._device

    @property
    def _table(self) -> Table:
        self._check_open()
        assert self._on is not None
        if self._on.process != os.getpid() and self._device.type != "cpu":
            raise RuntimeError(
                f"expected the process that put rows on {self._device}, got one that was forked "
                "from it, where CUDA does not work; start it with 'spawn', and call to() there"
            )
        return self._on

    @property
    def _width(self) -> int:
        """Rows of the table that a row is made of."""
        width = 1
        for step in self._steps:
            width *= step.map.width
        return width

    def _layout(self, as_int64: Sequence[str]) -> Layout:
        types = signed_types(self.schema, as_int64)
        inner = 1
        for step in reversed(self._steps):  # what is below the mask
            if step.zeros is not None:
                break
            inner *= step.map.width
        return Layout(self._table, self.schema, self._names, types, self._width, inner)

    def _stored(self, rows: Rows) -> Rows:
        """The rows of the table that these are made of; -1 for those of zeros."""
        zeros = None
        for rowmap, count in self._steps:
            rows = rowmap.apply(rows)
            if zeros is not None:
                zeros = np.repeat(zeros, rowmap.width)
            if count is not None:
                zeros = rows < count if zeros is None else zeros | (rows < count)
                rows = np.where(zeros, 0, rows - count)
        return rows if zeros is None else np.where(zeros, -1, rows)

    def _staging(self, layout: Layout, count: int) -> "_Staging":
        """Host memory for what makes `count` rows: pinned here, so that no other thread calls CUDA,
        which the capture of a graph forbids."""
        table, size = self._table, count * self._width
        rows = self._memory(size, table.number)
        if table.is_whole:
            return _Staging(rows)
        rest = self._memory(layout.rest_bytes(size), torch.uint8)
        return _Staging(rows, self._memory(size, torch.int64), rest)

    def _memory(self, size: int, dtype: torch.dtype) -> torch.Tensor:
        if self._device.type == "cpu":
            return torch.empty(size, dtype=dtype)
        with torch.cuda.device(self._device):
            return torch.empty(size, dtype=dtype, pin_memory=True)

    def _stage(self, rows: Rows, staging: "_Staging", layout: Layout) -> "_Staging":
        """Numbers of rows, and those that are not on the device, put into this memory."""
        _core.check_rows(rows, len(self))
        stored = self._stored(rows)
        numbers = staging.rows[: len(stored)]
        numbers.numpy()[...] = stored
        if staging.places is None or staging.rest is None:
            return _Staging(numbers)
        elsewhere = np.flatnonzero(stored >= self._table.count)
        places = staging.places[: len(elsewhere)]
        places.numpy()[...] = elsewhere
        used = layout.put(stored[elsewhere], staging.rest.numpy())
        return _Staging(numbers, places, staging.rest[:used])

    def _gather(self, layout: Layout, staged: "_Staging", batches: int) -> torch.Tensor:
        """The batches that were staged, made on the current stream."""
        device = self._table.device
        rows = staged.rows.to(device, non_blocking=True)
        blocks = layout.gather(rows, batches)
        if staged.places is not None and staged.rest is not None and len(staged.places):
            places = staged.places.to(device, non_blocking=True)
            rest = staged.rest.to(device, non_blocking=True)
            layout.scatter(rest, places, blocks, len(rows) // self._width // batches)
        return blocks


class _Staging(NamedTuple):
    """Numbers of rows in host memory; the rows that are not on the device, and their places."""

    rows: torch.Tensor
    places: torch.Tensor | None = None
    rest: torch.Tensor | None = None


class _Group(NamedTuple):
    """Batches of equal size that are made together."""

    steps: list[Step]
    staged: _Staging


class ResidentEngine(Engine):
    """Makes many batches at once on the device, from row numbers that a thread computes ahead."""

    def __init__(self, loader: "Loader", source: Resident) -> None:
        super().__init__(loader)
        if self._skip and not source._table.is_whole:
            raise ValueError(
                "on_corrupt='skip': expected rows that are all on the device, where they were "
                f"checked, got {source._table.count:,} of {source._table.rows:,}"
            )
        self._rows_of, self._as_int64 = source, loader._as_int64
        self._layout = source._layout(() if self._transform else self._as_int64)
        self._names = [column.name for column in self._layout.columns]
        count = min(loader._batch_size, self._order.length)
        fits = _GROUP_BYTES // max(self._layout.batch_bytes(count), 1)
        fits = min(fits, _GROUP_ROWS // (count * source._width), self._order.length // count)
        self._max_batches = max(min(fits, _GROUP_BATCHES), 1)
        self._limit = min(_FIRST_BATCHES, self._max_batches)
        self._count = count
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="stepwell")
        self._number = 0  # of the first step that no group has yet
        self._ahead: Future[_Group] | None = None
        self._steps: list[Step] = []  # of the group, the next one last
        self._tensors: list[Tensors] = []  # in the same order, once they are asked for
        self._blocks: torch.Tensor | None = None
        self.rows = 0  # of each batch of the group
        self._stream = 0
        self._made: torch.cuda.Event | None = None
        self._current = partial(current_stream, source._device.index)

    def next(self) -> Delivery:
        made, self.step = self._next()
        batch: Any = made
        epoch, after = self.step[0], self.step[3]
        if self._transform is not None:
            of_epoch = getattr(self._transform, "in_epoch", None)
            made = self._transform(batch) if of_epoch is None else of_epoch(epoch)(batch)
            tensors = tensors_of(signed(made, self._as_int64))
            batch = {name: each.to(self._rows_of.device) for name, each in tensors.items()}
        return Delivery(batch, epoch, after)

    @property
    def quick(self) -> Callable[[], tuple[Any, Step]] | None:
        return self._next if self._transform is None else None

    def _next(self) -> tuple[Tensors | None, Step]:
        if self.process != os.getpid():
            raise RuntimeError("the loader's batches stayed in the parent process")
        if not self._steps:
            self._next_group()
        elif self._made is not None and self._current() != self._stream:
            self._follow()
        step = self._steps.pop()
        if self.into.rows == self.rows:
            return None, step
        if not self._tensors:
            self._unbind()
        return self._tensors[len(self._steps)], step

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    # What `static_batches` copies at once.

    @property
    def block(self) -> torch.Tensor:
        """The memory of the batch that was handed over last, as the source has it."""
        assert self._blocks is not None
        last = len(self._blocks) - len(self._steps) - 1
        return self._blocks[last : last + 1]

    def views(self, block: torch.Tensor) -> Tensors:
        """The batch in a copy of such memory."""
        values = [each[0] for each in self._layout.views(block, self.rows)]
        return dict(zip(self._names, values, strict=True))

    # Groups.

    def _next_group(self) -> None:
        ahead = self._ahead or self._submit()
        self._ahead = None
        try:
            steps, staged = ahead.result()
        except Exception as error:
            error.add_note(note(*self._schedule.step(self._number)))
            raise
        self._number += len(steps)
        self._blocks = self._rows_of._gather(self._layout, staged, len(steps))
        self.rows, self._steps, self._tensors = steps[0][2], steps[::-1], []
        if self._blocks.is_cuda:
            stream = torch.cuda.current_stream(self._blocks.device)
            self._stream, self._made = stream.cuda_stream, stream.record_event()
        self._limit = min(4 * self._limit, self._max_batches)
        self._ahead = self._submit()

    def _unbind(self) -> None:
        assert self._blocks is not None
        columns = self._layout.views(self._blocks, self.rows)
        values = zip(*(column.unbind(0) for column in columns), strict=True)
        self._tensors = [dict(zip(self._names, each, strict=True)) for each in values][::-1]

    def _follow(self) -> None:
        """Have the current stream wait for the group, which another stream made."""
        blocks = self._blocks
        assert blocks is not None
        assert self._made is not None
        stream = torch.cuda.current_stream(blocks.device)
        stream.wait_event(self._made)
        blocks.record_stream(stream)

    def _submit(self) -> "Future[_Group]":
        staging = self._rows_of._staging(self._layout, self._count * self._limit)
        return self._pool.submit(self._prepare, self._number, self._limit, staging)

    def _prepare(self, number: int, max_batches: int, staging: _Staging) -> _Group:
        steps = [self._schedule.step(number)]
        epoch, count = steps[0][0], steps[0][2]
        while len(steps) < max_batches:
            step = self._schedule.step(number + len(steps))
            if (step[0], step[2]) != (epoch, count):
                break
            steps.append(step)
        try:
            return self._staged(steps, staging)
        except Exception:
            if len(steps) == 1:
                raise
            return self._staged(steps[:1], staging)  # what is wrong belongs to a later batch

    def _staged(self, steps: list[Step], staging: _Staging) -> _Group:
        spans: list[tuple[int, int]] = []  # those that follow one another are computed at once
        epoch, _, _, _, stride = steps[0]
        for _, start, count, _, _ in steps:
            if spans and spans[-1][0] + spans[-1][1] * stride == start:
                start, count = spans[-1][0], spans.pop()[1] + count
            spans.append((start, count))
        rows = np.concatenate([self._rows(epoch, *span, stride) for span in spans])
        return _Group(steps, self._rows_of._stage(rows, staging, self._layout))
