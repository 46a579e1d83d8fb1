"""A step dataset, opened: rows from memory, runs from SQL."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from operator import index
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, Unpack, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stepwell import _core
from stepwell.errors import FormatError
from stepwell.files.remote import BucketOptions, is_remote
from stepwell.lazy import lazy
from stepwell.sampler import split_runs
from stepwell.source import Batch, Field, Rows, Schema, as_rows, bytes_of, check_buffer
from stepwell.store import Progress, QueryTable, Report, Store
from stepwell.stores.steps import dataset
from stepwell.stores.steps.blocks import BlockChecks, Checks, ManifestChecks
from stepwell.stores.steps.database import Chosen, Seen, StepRuns
from stepwell.stores.steps.layout import (
    DATABASE,
    DATASET,
    MANIFEST,
    VERSION,
    Segment,
    load_rows,
    map_rows,
)
from stepwell.stores.steps.manifest import BLOCK_BYTES
from stepwell.stores.steps.remote import RemoteSteps
from stepwell.stores.steps.repair import Repaired, check_whole, repair
from stepwell.stores.steps.verify import check, health
from stepwell.units import Units

T = TypeVar("T")
Memory = Literal["ram", "map", "shared"]


class StepReader(Store):
    """Steps of many runs: any rows at memory speed, filtered by SQL over the runs.

        steps = StepReader.open("games/")
        good = steps.where("total_reward >= ?", 20_000)
        train, test = good.split(0.9, seed=7)

    `memory="ram"` reads the rows into huge pages with all cores, `"shared"` does so once for all
    processes of the machine that open it so, and `"map"` maps the files, of which about
    `resident_bytes` are kept in memory at a time, or the `resident_shards` that were read last.
    Rows that do not fit into the memory that is free are a `MemoryError`, unless they are mapped.
    Rows are compared with their checksums while they are read into memory, or when a mapped block
    of them is first met, unless `checksums` is False.

    Of a URL (extra `remote`), blocks of rows are fetched when they are needed, and compared as they
    come; `memory="ram"` fetches all at once. Options are those of a bucket: `cache=`,
    `cache_bytes=`, `window_bytes=`, `connections=`, `deadline_s=` and those of obstore.
    Filters keep ranges of rows, never a row number per row, and are step datasets themselves.
    A dataset that is appended to keeps the rows it was opened with until `refresh`.
    """

    kind: ClassVar[str] = "steps"
    noun: ClassVar[str] = "a step dataset"

    def __init__(
        self,
        path: Any,
        *,
        memory: Memory | None = None,
        resident_bytes: int = 1 << 30,
        resident_shards: int | None = None,
        checksums: bool = True,
        **bucket: Unpack[BucketOptions],
    ) -> None:
        """`memory` is "ram" unless it is given, of a URL "map"."""
        far = is_remote(path)
        if memory is None:
            memory = "map" if far else "ram"
        if memory not in ("ram", "map", "shared"):
            raise ValueError(f"memory: expected 'ram', 'map' or 'shared', got {memory!r}")
        if bucket and not far:
            raise TypeError(f"{', '.join(bucket)}: only for what is in a bucket")
        if far and (memory == "shared" or resident_shards is not None):
            wrong = "memory='shared'" if memory == "shared" else "resident_shards"
            raise ValueError(
                f"{wrong}: only for what is on this machine; cache= is shared by its processes"
            )
        if resident_shards is not None and (memory != "map" or index(resident_shards) < 1):
            wanted = "memory='map'" if memory != "map" else "at least 1"
            got = repr(memory) if memory != "map" else resident_shards
            raise ValueError(f"resident_shards: expected {wanted}, got {got}")
        if not far:
            path = Path(path).absolute()  # wherever the process goes later
        self._begin(path, memory, resident_bytes, resident_shards, checksums, bucket=dict(bucket))

    def _begin(
        self,
        where: Any,
        memory: Memory,
        resident_bytes: int,
        resident_shards: int | None = None,
        checksums: bool = True,
        seen: Seen | None = None,
        chosen: Chosen | None = None,
        bucket: dict[str, Any] | None = None,
        version: str = "",
    ) -> None:
        self._where, self._bucket = where, bucket or {}
        self._memory, self._resident_bytes = memory, resident_bytes
        self._resident_shards, self._checksums = resident_shards, checksums
        self._far = RemoteSteps(where, self._bucket, seen) if is_remote(where) else None
        self._root = where if self._far is None else self._far.root
        with self._translated():
            self._see(seen, chosen)
        if self._far is not None:
            self._far.check_version(version)

    def _see(self, seen: Seen | None, chosen: Chosen | None) -> None:
        """Open what there is; of a dataset that was pickled, what it had seen."""
        root, resident_shards = self._root, self._resident_shards
        if seen is not None and seen.metadata is not None:  # its commit, whatever came since
            path, now = dataset.database_of(root, seen.metadata), seen
        else:
            path, now = self._look(seen.identity if seen else "")
        if self._far is not None:
            self._far.open_files(seen or now, checksums=self._checksums)
        check_whole(root, now)
        seen = seen or now
        self.checks_rows = self._checksums and seen.block_bytes > 0
        if seen.rows > now.rows:
            raise FormatError(
                f"expected {seen.rows} rows, as pickled, got {now.rows}", path=str(root)
            )
        if resident_shards is not None and not seen.is_sharded:
            raise ValueError(
                "resident_shards: expected a dataset of shards, got one file; "
                f"convert(…, to='steps', part_bytes=…) spreads it over some - at {root}"
            )
        self._cold = _core.Cold()
        self._residents: _core.Residents | None = None
        if resident_shards is not None:
            self._residents = _core.Residents(min(resident_shards, 1 << 30))
        self._segments: list[Segment] = []
        self._add(self._load(0, seen))
        self._dtype = self._segments[0].rows.dtype
        self._show(StepRuns(path, seen, chosen))

    def _look(self, identity: str) -> tuple[Path, Seen]:
        """Where the database is, and the newest state of the dataset with this identity."""
        if self._far is None:
            return dataset.look(self._root, identity)
        return self._far.database, self._far.look(identity)

    @classmethod
    def recognizes(cls, path: Path) -> bool:
        return path.is_dir() and any(os.path.lexists(path / name) for name in (DATABASE, DATASET))

    def __getstate__(self) -> dict[str, Any]:
        opened: dict[str, Any] = {"memory": self._memory, "resident_bytes": self._resident_bytes}
        opened |= {"resident_shards": self._resident_shards, "checksums": self._checksums}
        seen, chosen = self._seen, self._table._chosen  # others may be appended meanwhile
        opened |= {"where": self._where, "bucket": self._bucket}
        if self._far is not None:
            opened["version"] = self._far.version
        return {**opened, "seen": seen, "chosen": chosen}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._begin(**state)

    def _with(self, chosen: Chosen) -> "StepReader":
        """The same rows in memory, these runs only."""
        part = StepReader.__new__(StepReader)
        part.__dict__.update(self.__dict__)
        part._show(StepRuns(self._table._path, self._seen, chosen))
        return part

    def _show(self, runs: StepRuns) -> None:
        """Have the rows of these runs from here on."""
        self._table, self._seen, self._length = runs, runs._seen, runs._step_count
        runs._kept = self._far  # whoever has the table only reads its files, too
        self._forget()

    # Properties.

    def __len__(self) -> int:
        return self._length

    @property
    def path(self) -> str:
        return str(self._root) if self._far is None else self._far.mirror.url

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of a row as it is stored."""
        return self._dtype

    @lazy
    def schema(self) -> Schema:
        """The fields of a step, in order."""
        return {name: Field(self._dtype[name]) for name in self._dtype.names or ()}

    @property
    def runs(self) -> StepRuns:
        """The runs, as a table."""
        self._check_open()
        return self._table

    def run(self, run_id: int) -> Batch:
        """The steps of one run, by its id, one array per field."""
        self._check_open()
        found = np.flatnonzero(self._table._ranges.ids == run_id)
        if not len(found):
            raise IndexError(f"no run {run_id} here")
        start = self._table.starts[found[0]]
        return self.take(np.arange(start, start + self._table.counts[found[0]]))

    def steps_of(self, key: Any) -> "StepReader":
        found = self.where("id = ?", key)
        if not len(found.runs):
            raise self._no_run(key)
        return found

    # Parts.

    def where(self, condition: str, *values: Any, timeout_s: float | None = None) -> "StepReader":
        """The steps of the runs for which an SQL condition holds: `where("reward > ?", 9)`.

        Raises `ValueError` naming the columns when it is not a condition over them.
        """
        self._check_open()
        with self._translated():
            return self._with(self._table._choose(condition, values, timeout_s))

    def split(self, fraction: float, seed: int = 0) -> tuple["StepReader", "StepReader"]:
        """Two datasets without a run in common, the first with `fraction` of the runs."""
        self._check_open()
        ranges = self._table._ranges
        first, second = split_runs(len(ranges.ids), fraction, seed)
        return self._with(ranges.pick(first)), self._with(ranges.pick(second))

    def refresh(self) -> bool:
        """See what has been committed since; return whether there is something new.

        Parts that were made before stay as they are.
        """
        self._check_open()
        if self._table._chosen is not None:
            raise ValueError("a part of a dataset does not grow; refresh the dataset itself")
        if self._far is not None:
            return self._refresh_far(self._far)
        before = self._seen
        path, now = self._look(before.identity)
        if now.rows < before.rows:
            message = f"expected at least {before.rows:,} rows, got {now.rows:,}; open it again"
            raise FormatError(message, path=str(path))
        if now == before:
            return False
        check_whole(self._root, now)
        if now.rows > before.rows:
            self._add(self._load(before.rows, now))
        self._show(StepRuns(path, now))
        return True

    def _refresh_far(self, far: RemoteSteps) -> bool:
        """The same of a dataset in a bucket, whose objects are others once it has grown."""
        if far.is_current():
            return False
        before, now = self._seen, far.again()
        with now.mirror.translated():
            seen = now.look(before.identity)
            if seen.rows < before.rows:
                message = (
                    f"expected at least {before.rows:,} rows, got {seen.rows:,}; open it again"
                )
                raise FormatError(message, path=str(now.database))
            now.open_files(seen, checksums=self._checksums)
            check_whole(now.root, seen)
            self._far, self._root = now, now.root
            self._segments = []
            self._add(self._load(0, seen))
        self._show(StepRuns(now.database, seen))
        return seen != before

    def close(self) -> None:
        super().close()
        self._segments, self._residents = [], None

    @staticmethod
    def repair(
        path: str | os.PathLike[str], *, as_one_run: bool = False, progress: Progress | None = None
    ) -> Repaired:
        """Rebuild the runs that a damaged database has lost, from what the rows hold.

        Where runs begin is read from the fields `run_id` and `step_index`; rows without them
        become one run with `as_one_run`, else they are a `FormatError`. Run columns are lost:
        NULL. What was there before is kept beside. Raises `BusyError` beside a writer.
        """
        return repair(path, as_one_run=as_one_run, progress=progress)

    # Queries.

    def query(self, sql: str, *values: Any, timeout_s: float | None = None) -> QueryTable:
        """The result of an SQL query over the table `runs`; nothing can be changed by it.

        The table has the runs of this dataset, or part, as of the commit that it has. Raises
        `ValueError` for SQL that is wrong or would write.
        """
        self._check_open()
        with self._translated():
            return self._table._query(sql, values, timeout_s)

    # A source.

    @overload
    def take(
        self,
        rows: ArrayLike,
        out: Mapping[str, NDArray[Any]] | None = None,
        *,
        packed: Literal[False] = False,
    ) -> Batch: ...
    @overload
    def take(
        self, rows: ArrayLike, out: NDArray[Any] | None = None, *, packed: Literal[True]
    ) -> NDArray[Any]: ...
    def take(self, rows: ArrayLike, out: Any = None, *, packed: bool = False) -> Any:
        """Return the given rows in the given order: an array for each field, or with `packed` one
        structured array, of `dtype`. `out` provides what is returned.

        Raises `IndexError` naming the first row outside `range(len(self))`.
        """
        if not packed:
            return Store.take(self, rows, out)
        rows, layout = as_rows(rows, len(self)), self._packed_layout
        if out is None:
            return self._reading(rows, lambda: layout.take(rows)["row"])
        check_buffer("out", out, self._dtype, (len(rows),))
        filled = self._reading(rows, lambda: layout.read(rows, {"row": out}))
        assert filled is not None
        return filled["row"]

    @lazy
    def _packed_layout(self) -> _core.Layout:
        self._check_open()
        reader = self._reader_of([(0, self._dtype.itemsize)])
        return _core.Layout(reader, [("row", self._dtype, ())])

    def _units(self) -> Units | None:
        return self._mirrored

    @lazy
    def _mirrored(self) -> Units | None:
        if self._far is None or self._memory == "ram":
            return None
        self._check_open()
        chosen = self._table._chosen
        ranges = None if chosen is None else _core.range_map(chosen.starts, chosen.counts, 1, 1)
        return self._far.units(self._seen, self._dtype, ranges)

    def _reading(self, rows: Rows, work: Callable[[], T]) -> T:
        """What `work` returns, which reads these rows: in a bucket, they are brought first."""
        units = self._mirrored
        if units is None or self._far is None:
            return work()
        _core.check_rows(rows, len(self))
        with self._translated():
            return self._far.mirror.reading(units.of(rows), work)

    def _fill_columns(self, rows: Rows, out: Batch, names: Sequence[str]) -> None:
        """Only of rows that are brought: the core reads others by itself."""
        reader = self._reader_of_fields(tuple(names))
        self._reading(rows, lambda: reader.read(rows, [bytes_of(out[name]) for name in names]))

    def _native(self, names: Sequence[str]) -> _core.Reader | None:
        return self._reader_of_fields(tuple(names)) if self._mirrored is None else None

    def _reader_of_fields(self, names: tuple[str, ...]) -> _core.Reader:
        fields = self._dtype.fields
        assert fields is not None
        return self._reader_of([(fields[name][1], self.schema[name].row_bytes) for name in names])

    def _reader_of(self, layout: list[tuple[int, int]]) -> _core.Reader:
        """A reader of these parts of each row, as (offset, bytes)."""
        size = self._dtype.itemsize
        tables = []
        for number, (rows, blocks, path, begin) in enumerate(self._segments):
            if not len(rows) and len(self._segments) > 1:
                continue
            data = rows.view(np.uint8)
            table = _core.table_reader(data.reshape(-1, size), layout, path, begin)
            needed = min(at for at, _ in layout), max(at + bytes_ for at, bytes_ in layout)
            if blocks is not None:
                table = _core.checked_reader(table, blocks, size, *needed)
            if self._memory == "map":
                table = _core.cold_reader(table, data, size, *needed, self._cold, blocks)
            if self._residents is not None:
                table = _core.resident_reader(table, self._residents, number)
            tables.append(table)
        reader = tables[0] if len(tables) == 1 else _core.concat_reader(tables)
        if self._memory == "map" and self._residents is None and self._far is None:
            maps = [each.rows.view(np.uint8) for each in self._segments if len(each.rows)]
            reader = _core.bounded_reader(reader, maps, self._resident_bytes)
        chosen = self._table._chosen
        if chosen is None:
            return reader
        ranges = _core.range_map(chosen.starts, chosen.counts, 1, 1)
        return _core.mapped_reader(reader, ranges)

    def _runs(self) -> tuple[Rows, Rows]:
        return self._table.starts, self._table.counts

    def _map_of(self, part: "StepReader") -> _core.RowMap:
        """Which rows of this dataset a part of it has."""
        mine, some = self._table._ranges, part._table._ranges
        run = np.searchsorted(mine.starts, some.starts, side="right") - 1
        begins = self._table.starts[run] + some.starts - mine.starts[run]
        return _core.range_map(begins, some.counts)

    def _facts(self) -> dict[str, Any]:
        listed = {"shards": len(self._seen.parts)} if self._seen.is_listed else {}
        return {
            "dtype": str(self._dtype),
            "row_bytes": self._dtype.itemsize,
            "shard_rows": self._seen.shard_rows,
            **listed,
            "version": VERSION,
            "checksums": self._checksum_words(),
        }

    def _health(self) -> str:
        return "fine" if self._seen.is_listed else health(self._root, self._dtype)

    def _verified(self, quick: bool, progress: Progress) -> Report:
        with self._translated():
            return check(self, quick, progress)

    def _stored_bytes(self) -> int:
        return super()._stored_bytes() if self._far is None else self._far.mirror.stored_bytes

    # Below this line: for this package.

    def _translated(self) -> AbstractContextManager[None]:
        """Errors of the block name what is in the bucket."""
        return nullcontext() if self._far is None else self._far.mirror.translated()

    def _forget(self, *names: str) -> None:
        super()._forget("_packed_layout", "_mirrored", *names)

    def _add(self, segments: list[Segment]) -> None:
        """Have these rows, too. Parts of this reader share what is resident of all."""
        self._segments = self._segments + segments
        if self._residents is not None:
            for each in segments:
                self._residents.add(each.rows.view(np.uint8))

    def _load(self, begin: int, seen: Seen) -> list[Segment]:
        """Rows from `begin` on as arrays: one, or one for each mapped file."""
        if self._far is not None:
            loaded = self._memory == "ram"
            return [Segment(self._far.load(seen))] if loaded else self._far.segments(seen)
        found = seen.pieces(self._root, begin)
        if not found:
            return [Segment(np.empty(0, seen.dtype))]
        checks: Checks | None = None
        if self._checksums and seen.block_bytes:
            checks = BlockChecks(self._root, seen)
        if self._memory == "map":
            return map_rows(found, seen.dtype, checks)
        if self._checksums and checks is None and begin == 0:
            checks = ManifestChecks(self._root)
        owner = str(self._root.resolve()) if self._memory == "shared" else None
        return [Segment(load_rows(found, seen.dtype, owner, checks))]

    def _checksum_words(self) -> str:
        if self._seen.block_bytes:
            return f"of every {self._seen.block_bytes:,} bytes of rows"
        manifest = f"of every {BLOCK_BYTES:,} bytes of rows, compared on load and by verify"
        return manifest if (self._root / MANIFEST).exists() else "none"
