"""A pack, opened."""

import operator
import os
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Literal, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stepwell import _core
from stepwell.errors import FormatError, SchemaError
from stepwell.files.atomic import new_file, write_file
from stepwell.files.codecs import CODECS
from stepwell.files.mirror import MirroredRows
from stepwell.files.regular import open_regular
from stepwell.files.remote import BucketOptions, is_url
from stepwell.files.residents import Numbers
from stepwell.lazy import lazy
from stepwell.ordered import in_order, thread_count
from stepwell.sampler import Shuffle, split_runs
from stepwell.source import Batch, Rows, Schema, Source, as_rows
from stepwell.store import Progress, QueryTable, Report, Store
from stepwell.stores.pack.file import PackFile, slices
from stepwell.stores.pack.layout import MAGIC, groups
from stepwell.stores.pack.payload import (
    RAW,
    Kind,
    Payloads,
    PayloadType,
    by_type,
    kind_name,
    type_of,
)
from stepwell.stores.pack.stats import StatsBuilder, Values, read_stats
from stepwell.stores.pack.verify import check_pack
from stepwell.stores.pack.where import PackRuns, query_runs, select_runs
from stepwell.units import Units

_SCAN_ITEMS = 64  # decoded at a time by whatever goes through all of a pack
_TEXT_BYTES = 1 << 18  # of payloads: keeps a thread busy for milliseconds, makes megabytes of text


class PackReader(Store):
    """The entries of a pack, mapped into memory, in any order.

        pack = PackReader.open("games.a2pack")
        pack.decode(7), pack.decode_batch([1, 100, 42])     items, as their type has them
        pack.slice(7)                                       stored bytes, not copied
        pack.where("steps >= ?", 100)                       a pack with fewer items

    As a source it has the fields of its payload type (runs have arrays of steps). A pack of
    raw payloads, or with some among others, has `payload` and `kind`. Stored bytes are checked
    against their CRC32C whenever they are read, unless `checksums` is False. A file
    that was cut is an error from the next call on; a slice is its memory, and ends the process.
    With `memory="read"`, and on file systems that cannot map, payloads are read when they are
    needed, and slices are copies. Of a URL (extra `remote`) they are fetched when they are needed;
    options are those of a bucket, as `StepReader` has them.
    """

    kind: ClassVar[Kind] = Kind("pack")
    noun = "a pack"
    runs_key = "run"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        checksums: bool = True,
        memory: Literal["map", "read"] | None = None,
        **bucket: Unpack[BucketOptions],
    ) -> None:
        """`memory` is "map" unless it is given, of a URL "read"."""
        if memory not in ("map", "read", None):
            raise ValueError(f"memory: expected 'map' or 'read', got {memory!r}")
        self._checksums, self._memory, self._bucket = checksums, memory, dict(bucket)
        self._file: PackFile | None
        if isinstance(path, str) and is_url(path):
            if memory == "map":
                raise ValueError("memory: expected 'read' of a bucket, got 'map'")
            self._file = PackFile.of_url(path, self._bucket)
        elif bucket:
            raise TypeError(f"{', '.join(bucket)}: only for what is in a bucket")
        else:
            self._file = PackFile(Path(path), read=memory == "read")
        self._path = self._file.path
        self._layout = self._file.layout
        self._numbers: Rows = np.arange(len(self._layout.index), dtype=np.int64)

    @classmethod
    def recognizes(cls, path: Path) -> bool:
        if not path.is_file() or path.suffix == ".a2pack":
            return path.is_file()
        with open_regular(path) as file:
            return file.read(len(MAGIC)) == MAGIC

    def __reduce__(self) -> tuple[Any, ...]:
        numbers = None if self._is_whole else self._numbers
        options = {"checksums": self._checksums, "memory": self._memory, **self._bucket}
        mirror = self._file.mirror if self._file is not None else None
        version = "" if mirror is None else mirror.version
        return _rebuild, (type(self), self._path, options, self._seen, numbers, version)

    @property
    def _seen(self) -> tuple[int, ...]:
        """Checksums that identify the pack; a whole one that is closed has those of its layout."""
        seen = (self._layout.index_crc, self._layout.data_crc)
        if (self._closed and self._is_whole) or self._opened.mirror is not None:
            return seen
        return (*seen, self._opened.content_checksum)

    def _with(self, numbers: Rows) -> "PackReader":
        """The same file with these entries only."""
        part = PackReader.__new__(PackReader)
        part.__dict__.update(
            {
                n: self.__dict__[n]
                for n in ("_path", "_checksums", "_memory", "_bucket", "_file", "_layout")
            }
        )
        part._numbers = numbers
        return part

    # Properties.

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def path(self) -> str:
        return str(self._path)

    @property
    def version(self) -> int:
        """1, or 2 when something in the pack needs it."""
        return self._layout.version

    @property
    def numbers(self) -> Rows:
        """The number of each entry in the whole pack."""
        return self._numbers.copy()

    @property
    def stored_bytes(self) -> int:
        """Bytes of the payloads as they are stored."""
        return int(self._entries["length"].sum(dtype=np.int64))

    @property
    def schema(self) -> Schema:
        return self._row_type.schema

    @property
    def fingerprint(self) -> str:
        whole = f"{self._opened.content_checksum:08x}-{len(self)}"
        return (
            whole if self._is_whole else f"{whole}-{_core.crc32c(self._numbers.view(np.uint8)):08x}"
        )

    @lazy
    def stats(self) -> Any:
        """Statistics, in the class of the payload type: from the file if there, else counted."""
        found = self._stored_stats() if self._is_whole and self._layout.stats is not None else []
        return self._type.stats(*(found if len(found) == 10 else self._count_stats()))

    def _stored_stats(self) -> Values:
        layout = self._layout
        assert layout.stats is not None
        return read_stats(layout.stats, path=self.path, offset=layout.data_end + 4)

    def _count_stats(self) -> Values:
        builder = StatsBuilder()
        builder.add(len(self), (known.tally(batch) for _, known, batch in self._heads()))
        return builder.finish()

    # Items: decoded payloads. Those of raw payloads are bytes.

    def decode(self, i: int) -> Any:
        """Return item `i`."""
        self._check_open()
        return self._decode(np.array([self._row(i)]), threads=1)[0]

    def decode_batch(self, indices: ArrayLike, *, workers: int | None = None) -> list[Any]:
        """Return these items in this order, repeats included, decoded by several threads.

        They may share memory: of one that is kept for long, a copy should be kept.
        """
        return list(self._decode(self._rows(indices), threads=thread_count(workers, "workers")))

    def __iter__(self) -> Iterator[Any]:
        """Every item in turn."""
        return self.iter_indices(np.arange(len(self)))

    def iter_indices(self, indices: ArrayLike) -> Iterator[Any]:
        """These items one by one, decoded ahead of the loop."""
        return chain.from_iterable(self._batches(self._rows(indices), _SCAN_ITEMS, None))

    def iter_batches(
        self,
        batch_size: int,
        shuffle: bool = False,
        seed: int | None = None,
        workers: int | None = None,
    ) -> Iterator[list[Any]]:
        """Every item once, in lists of `batch_size`, the last of them perhaps shorter.

        The same seed gives the same order, always; without one, a shuffled order is new each
        time. Batches are decoded ahead, by `workers` threads.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        threads = thread_count(workers, "workers")
        rows: Rows = np.arange(len(self))
        if shuffle and len(self):
            chosen = int.from_bytes(os.urandom(7)) if seed is None else seed
            rows = Shuffle(chosen).order(len(self)).rows(0, 0, len(self))
        return map(list, self._batches(rows, batch_size, threads))

    # Bytes.

    def slice(self, i: int) -> memoryview:
        """The payload of entry `i`: the file's own memory, or unpacked if it is compressed."""
        mapped = self._mapped
        found = None if mapped is None else mapped.at(i)
        if found is None:  # unpacked or read, or what is wrong is reported
            found = self.slices([self._row(i)])[0]
        return found

    def slices(self, indices: ArrayLike) -> list[memoryview]:
        """The payloads of these entries, checked together, not copied unless compressed."""
        rows = self._rows(indices)
        file, entries, numbers = self._opened, self._entries[rows], self._numbers[rows]
        if entries["flags"].any():
            plain, places = file.unpacked(entries, numbers, _core.usable_cores())
            return slices(plain.data, places)
        if self._checksums:
            stored, places = file.checked(entries, numbers, _core.usable_cores())
        else:
            stored, places = file.stored(entries)
        return slices(stored.data, places)

    def extract(self, indices: ArrayLike, directory: str | os.PathLike[str]) -> list[Path]:
        """Write payloads to files of their own, named by number and kind; return their paths."""
        rows, folder = self._rows(indices), Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        paths = []
        for row in rows:
            kind = int(self._entries["kind"][row])
            suffix = self._type.suffixes.get(kind, ".bin")
            paths.append(folder / f"run-{self._numbers[row]:06}{suffix}")
            write_file(paths[-1], bytes(self.slice(row)))
        return paths

    # Parts.

    @property
    def runs(self) -> PackRuns | None:
        """The entries whose payload type has columns, a row each; None where it has none."""
        self._check_open()
        return PackRuns(self) if self._type.columns else None

    def where(self, condition: str, *values: Any, timeout_s: float | None = None) -> "PackReader":
        """The items for which an SQL condition holds: `where("steps >= ?", 100)`.

        Columns are `run` (the number of an entry), `kind`, and those of the payload type. They
        are read from the heads of all items when they are first needed. Raises `ValueError` for
        raw payloads.
        """
        if self.runs is None:
            super().where(condition)
        found = select_runs(self, condition, values, timeout_s)
        return self._with(self._numbers[np.isin(self._numbers, found)])

    def query(self, sql: str, *values: Any, timeout_s: float | None = None) -> QueryTable:
        """The result of an SQL query over the table `runs`: `query("SELECT max(steps) FROM runs")`.

        It has the columns of `where`, and of a part the runs of that part.
        """
        if self.runs is None:
            super().query(sql)
        return query_runs(self, sql, values, timeout_s)

    def steps_of(self, key: Any) -> Source:
        """The steps of an entry, by its number in the whole pack, as its payload type has them."""
        if self.runs is None:
            super().steps_of(key)
        here = (self._numbers == key) & self._type.mask(self._entries["kind"])
        if not here.any():
            raise self._no_run(key)
        return self._type.steps(self._with(self._numbers[here]))

    def split(self, fraction: float, seed: int = 0) -> tuple["PackReader", "PackReader"]:
        """Two packs without an entry in common, the first with `fraction` of the entries."""
        self._check_open()
        first, second = split_runs(len(self), fraction, seed)
        return self._with(self._numbers[first]), self._with(self._numbers[second])

    def to_jsonl(
        self,
        path: str | os.PathLike[str],
        parallel: bool = True,
        workers: int | None = None,
        *,
        progress: Progress | None = None,
        **options: Any,
    ) -> None:
        """Write lines of JSON, in order; `options` are those of the payload type.

        The file appears when it is complete.
        """
        threads = thread_count(workers, "workers") if parallel else 1
        if os.path.exists(path) and not is_url(self._path) and os.path.samefile(path, self._path):
            raise ValueError(f"{path} is the pack itself")
        text_of = self._only_type().json_lines(**options)

        def lines(rows: Rows) -> tuple[int, Any]:
            numbers = self._numbers[rows]
            try:
                file, entries = self._opened.payloads(self._entries[rows], numbers, 1)
                text = text_of(Payloads(file, entries, numbers, self.path))
            except FormatError:
                self._decode(rows, threads=1)  # knows which item to name, and where it is
                raise
            self._scanned(rows)
            return len(rows), text

        done = 0
        with new_file(Path(path), follow=True) as out:
            for items, text in in_order(
                lines, self._text_chunks(), threads, ahead=None if threads > 1 else 0
            ):
                out.write(text.data)
                done += items
                if progress is not None:
                    progress(done, len(self))

    # A store.

    def _facts(self) -> dict[str, Any]:
        entries = self._entries
        codecs = {numbers.pack: name for name, numbers in CODECS.items()}
        return {
            "version": self.version,
            "align": int(np.gcd.reduce(self._layout.index["offset"])),
            "stored_bytes": self.stored_bytes,
            "memory": "read" if self._opened.memory is None else "map",
            "kinds": {kind_name(kind): n for kind, n in _counted(entries["kind"])},
            "codecs": {codecs[flag]: n for flag, n in _counted(entries["flags"])},
        }

    def _stored_bytes(self) -> int:
        mirror = self._opened.mirror
        return super()._stored_bytes() if mirror is None else mirror.stored_bytes

    def refresh(self) -> bool:
        self._check_open()
        mirror = self._opened.mirror
        if mirror is None or mirror.is_current():
            return False
        if not self._is_whole:
            raise ValueError("a part of a pack does not change; refresh the pack itself")
        self._file = PackFile.of_url(self.path, self._bucket)
        self._layout = self._file.layout
        self._numbers = np.arange(len(self._layout.index), dtype=np.int64)
        self._forget("_entries", "_mapped", "_mirrored", "_type", "_row_type", "stats")
        return True

    def _verified(self, quick: bool, progress: Progress) -> Report:
        return check_pack(self, quick, progress)

    # A source.

    def _units(self) -> Units | None:
        return self._mirrored

    @lazy
    def _mirrored(self) -> Units | None:
        file = self._opened
        if file.mirror is None:
            return None

        def of(rows: Rows) -> Numbers:
            entries = self._entries[rows]
            begins, lengths = (entries[name].astype(np.int64) for name in ("offset", "length"))
            found: Numbers = file.data.units_of(begins, lengths)
            return found

        return MirroredRows(file.mirror, of)

    def _fill(self, rows: Rows, out: Batch) -> None:
        self._fill_columns(rows, out, list(self.schema))

    def _fill_columns(self, rows: Rows, out: Batch, names: Sequence[str]) -> None:
        of = self._row_type
        heads_only = of.head_fields.issuperset(names)
        of.fill(self._decode(rows, of=of, heads_only=heads_only), out, names)

    def close(self) -> None:
        """Forget the file; it is unmapped when no slice and no part of it is left."""
        super().close()
        self._file = None
        self.__dict__.pop("_mapped", None)

    # Below this line: for this package.

    def _check_open(self) -> None:
        super()._check_open()
        if self._file is not None:
            self._file.check_whole()

    @property
    def _opened(self) -> PackFile:
        if self._file is None:
            self._check_open()
        assert self._file is not None
        return self._file

    @property
    def _is_whole(self) -> bool:
        return len(self._numbers) == len(self._layout.index)

    def _whole(self) -> "PackReader":
        return self if self._is_whole else self._with(np.arange(len(self._layout.index)))

    @lazy
    def _entries(self) -> NDArray[Any]:
        """Of the index, with the checksums that are to be compared."""
        index = self._layout.index
        if self._is_whole and self._checksums:
            return index
        entries = index[self._numbers]
        entries["crc32c"] *= np.uint32(self._checksums)
        return entries

    @lazy
    def _mapped(self) -> _core.Slices | None:
        """Finds and checks one payload in the file's memory; None where there is none."""
        file, entries = self._opened, self._entries
        if file.memory is None:
            return None
        begins = entries["offset"].astype(np.int64)
        ends = begins + entries["length"]
        begins[entries["flags"] != 0] = -1
        checksums = np.ascontiguousarray(entries["crc32c"])
        return _core.Slices(file.data, memoryview(file.memory), begins, ends, checksums)

    @lazy
    def _type(self) -> PayloadType:
        """The type of the items; entries of other types may be among them."""
        return type_of(self._kinds)

    @lazy
    def _row_type(self) -> PayloadType:
        """The type of rows: that of the items if it is the same for all entries."""
        return self._type if self._type.mask(self._kinds).all() else RAW

    @property
    def _kinds(self) -> NDArray[np.uint16]:
        kinds: NDArray[np.uint16] = (self._entries if len(self) else self._layout.index)["kind"]
        return kinds

    def _only_type(self) -> PayloadType:
        """The type of the items, when it is that of all entries."""
        other = ~self._type.mask(self._entries["kind"])
        if other.any():
            row = int(other.argmax())
            raise SchemaError(
                f"expected {self._type.name} only, got {self.kind(row)} as entry "
                f"{self._numbers[row]} of {self._path}"
            )
        return self._type

    def _text_chunks(self) -> Iterator[Rows]:
        """Neighbouring entries that make a few megabytes of text, at least one."""
        for rows in self._chunks(65_536):
            entries = self._entries[rows]
            sizes = np.maximum(entries["length"], entries["reserved"])
            yield from (rows[part] for part in groups(sizes, _TEXT_BYTES))

    def _batches(self, rows: Rows, size: int, threads: int | None) -> Iterator[Sequence[Any]]:
        """Items decoded ahead of a loop."""
        parts = (rows[at : at + size] for at in range(0, len(rows), size))
        return in_order(partial(self._decode, threads=threads), parts, 1, ahead=2)

    def _heads(self) -> Iterator[tuple[Rows, PayloadType, Any]]:
        """All items of known types, some at a time, without what is behind their heads."""
        for rows in self._chunks(256):
            for known, mask in by_type(self._entries["kind"][rows]):
                yield rows[mask], known, self._decode(rows[mask], of=known, heads_only=True)
            self._scanned(rows)

    def _chunks(self, size: int) -> Iterator[Rows]:
        for at in range(0, len(self), size):
            yield np.arange(at, min(at + size, len(self)))

    def _scanned(self, rows: Rows) -> None:
        """Give back the pages of neighbouring rows that a scan is done with."""
        first, last = self._entries[rows[[0, -1]]]
        self._opened.give_back(int(first["offset"]), int(last["offset"] + last["length"]))

    def _rows(self, indices: ArrayLike) -> Rows:
        self._check_open()
        rows = as_rows(indices, len(self))
        _core.check_rows(rows, len(self))
        return rows

    def _row(self, i: int) -> int:
        i = operator.index(i)
        if not 0 <= i < len(self):
            raise IndexError(f"row {i} is outside a source of {len(self)} rows")
        return i

    def _decode(
        self,
        rows: Rows,
        *,
        of: PayloadType | None = None,
        threads: int | None = None,
        heads_only: bool = False,
    ) -> Sequence[Any]:
        threads = _core.usable_cores() if threads is None else threads
        of = self._type if of is None else of
        entries, numbers = self._entries[rows], self._numbers[rows]
        return self._opened.decode(of, entries, numbers, threads, heads_only=heads_only)


def _counted(values: NDArray[Any]) -> Iterator[tuple[int, int]]:
    found, times = np.unique(values, return_counts=True)
    return zip(found.tolist(), times.tolist(), strict=True)


def _rebuild(
    cls: type[PackReader],
    path: Path,
    options: dict[str, Any],
    seen: tuple[int, ...],
    numbers: Rows | None,
    version: str,
) -> PackReader:
    pack = cls(path, **options)
    if pack._opened.mirror is not None:
        pack._opened.mirror.check_version(version)
    again = pack if numbers is None else pack._with(numbers)
    if again._seen[: len(seen)] != seen:
        raise FormatError("this is not the pack that was pickled", path=str(path))
    return again
