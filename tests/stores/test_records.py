"""Record stores sit the exam of every source, and the package and the reference agree on them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray

from stepwell import ChecksumError, Field, Ragged, RecordReader, RecordWriter
from stepwell.source import Source
from tests import scaled
from tests.arrays import PLAIN_TYPES, random_array
from tests.contract import Expected, SourceContract
from tests.records import (
    CODECS,
    batch,
    build,
    columns,
    contents,
    copy,
    described_as,
    expected,
    values,
)
from tests.reference import records as reference
from tests.reference.records import Compress, Record, frames, read_store, write_store

COUNT = 40


class TestRaw(SourceContract):
    compress: ClassVar[Compress] = "raw"
    options: ClassVar[dict[str, Any]] = {}

    @pytest.fixture
    def expected(self) -> Expected:
        return expected(range(COUNT))

    @pytest.fixture(scope="class")
    @classmethod
    def path(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        path = tmp_path_factory.mktemp("records") / "store"
        build(path, range(COUNT), cls.compress, **cls.options)
        return path

    @pytest.fixture
    def source(self, path: Path) -> Source:
        return RecordReader.open(path)


class TestChanged(TestRaw):
    """Missing fields, updates, deletes, and a writer that was killed."""

    compress: ClassVar[Compress] = "zstd"

    @pytest.fixture
    def expected(self) -> Expected:
        rows: list[dict[str, Any]] = [values(number) for number in range(COUNT)]
        rows += [{"n": values(number)["n"]} for number in range(3)]
        for row in (3, 9, 39):
            rows[row] = values(row + 1000)
        for row in (30, 5):
            rows[row] = rows.pop()
        return columns(rows)

    @pytest.fixture(scope="class")
    @classmethod
    def path(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        folder = tmp_path_factory.mktemp("records")
        build(folder / "a", range(COUNT), cls.compress, chunk_records=7)
        with RecordWriter(folder / "a", mode="a") as store:
            store.append(batch(range(3), ["n"]))
            store.update([39, 3, 9], batch([1039, 1003, 1009]))
            store.commit()
            store.delete([5, 30])
            store.commit()
            store.append(batch([77]))
            copy(folder / "a", folder / "b")
        return folder / "b"


# Any fields and batches.


class Kind(NamedTuple):
    """A field, and values for it."""

    field: Field
    compress: Compress

    def described(self, name: str) -> reference.Field:
        return described_as(name, self.field, self.compress)

    @property
    def stored(self) -> Field:
        """As an array, whatever the user sees of it."""
        field = self.field
        return field if field.kind == "array" else Field(np.dtype("u1"), ragged=True)

    def value(self, seed: int) -> NDArray[Any]:
        """Half of them can be packed."""
        random = np.random.default_rng(seed)
        count = int(random.integers(0, 9))
        if self.field.kind == "str":
            text = "".join(chr(c) for c in random.integers(32, 900, count)) * (seed % 2 * 20)
            return np.frombuffer(text.encode(), "u1")
        field = self.stored
        shape = (count, *field.shape) if field.ragged else field.shape
        made = random_array(field.dtype, shape, seed)
        if seed % 2 and made.size:
            made[...] = made.ravel()[0]
        return made

    def column(self, values: Sequence[NDArray[Any]], form: int) -> Any:
        """The values as one of the things that append takes."""
        if self.field.kind == "str":
            return [value.tobytes().decode() for value in values]
        if self.field.kind == "bytes" and form != 1:
            return [value.tobytes() for value in values]
        field = self.stored
        if field.ragged and form == 1:
            return Ragged.from_list(values, field)
        if field.ragged or form == 1:
            return list(values)
        return np.array(values, field.dtype).reshape(len(values), *field.shape)


DTYPES = [np.dtype(name) for name in PLAIN_TYPES if name != "g"]  # whose padding NumPy drops
LEVELS: dict[str, list[int | None]] = {
    "raw": [None],
    "flate": [None, 1, 9],
    "zstd": [None, 1, 9],
    "lz4": [None],
}


@st.composite
def kinds(draw: st.DrawFn) -> Kind:
    dtype: Any = draw(st.sampled_from([str, bytes, *DTYPES]))
    compress = draw(st.sampled_from(list(CODECS)))
    options: dict[str, Any] = {"compress": CODECS[compress], "optional": True}
    options["level"] = draw(st.sampled_from(LEVELS.get(compress, [None, 5])))
    if dtype in (str, bytes):
        return Kind(Field(dtype, **options), compress)
    shape = tuple(draw(st.lists(st.integers(1, 4), max_size=2)))
    return Kind(Field(dtype, shape, ragged=draw(st.booleans()), **options), compress)


@st.composite
def batches(draw: st.DrawFn, names: Sequence[str]) -> list[tuple[int, list[str]]]:
    chosen = st.lists(st.sampled_from(names), min_size=1, unique=True)
    return draw(st.lists(st.tuples(st.integers(0, 12), st.just(list(names)) | chosen), max_size=4))


def a_model(made: dict[str, Kind], plan: Sequence[tuple[int, list[str]]]) -> list[Record]:
    """The records of the batches, in the bytes that they have in a store."""
    records: list[Record] = []
    for count, names in plan:
        for _ in range(count):
            seed = len(records)
            record = {
                n: made[n].value(seed + i).tobytes() for i, n in enumerate(made) if n in names
            }
            records.append({**dict.fromkeys(made), **record})
    return records


def append_all(
    store: RecordWriter, made: dict[str, Kind], plan: Sequence[tuple[int, list[str]]], form: int
) -> None:
    for count, names in plan:
        rows = range(len(store), len(store) + count)
        given = {
            n: made[n].column([made[n].value(row + i) for row in rows], form)
            for i, n in enumerate(made)
            if n in names
        }
        assert store.append(given) == rows
        store.commit()


@settings(max_examples=scaled(40, smallest=10))
@given(data=st.data(), chunk_records=st.sampled_from([1, 5, 8192]), form=st.integers(0, 2))
def test_the_reference_reads_what_the_package_writes(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, chunk_records: int, form: int
) -> None:
    made = {f"f-{i}": k for i, k in enumerate(data.draw(st.lists(kinds(), min_size=1, max_size=4)))}
    plan = data.draw(batches(list(made)))
    path = tmp_path_factory.mktemp("store") / "a"
    described = {name: kind.field for name, kind in made.items()}
    with RecordWriter(path, described, chunk_records=chunk_records) as writer:
        append_all(writer, made, plan, form)
        writer.commit()  # of a new store, even when there is nothing
        want = a_model(made, plan)
        assert contents(writer) == want
        assert read_store(path).records == want
    found = read_store(path)
    assert found.records == want
    assert found.fields == [kind.described(name) for name, kind in made.items()]
    for file in (path / "chunk").iterdir():
        chunk = file.read_bytes()
        assert [*frames(chunk, len(chunk))]
    with RecordReader.open(path) as store:
        assert contents(store) == want
        assert store.verify().ok


@settings(max_examples=scaled(40, smallest=10))
@given(data=st.data(), chunk_records=st.sampled_from([1, 5, 8192]), shift=st.integers(0, 4))
def test_the_package_reads_what_the_reference_writes(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, chunk_records: int, shift: int
) -> None:
    made = {f"f_{i}": k for i, k in enumerate(data.draw(st.lists(kinds(), min_size=1, max_size=4)))}
    plan = data.draw(batches(list(made)))
    want = a_model(made, plan)
    commits = [count for count, _ in plan[data.draw(st.integers(0, len(plan))) :]]
    generation = data.draw(st.integers(0, 2))
    path = tmp_path_factory.mktemp("store") / "a"
    written = reference.Store(
        [kind.described(name) for name, kind in made.items()],
        want,
        {"known": "ä"},
        generation=generation,
        commit=10,
        first_chunk=generation * 3,
        peak=len(want) + generation,
        chunk_records=chunk_records,
    )
    write_store(path, written, commits=commits, codec=lambda row, _: (row + shift) % 5)
    assert read_store(path).records == want
    for turn in range(2):
        with RecordReader.open(path) as store:
            assert contents(store) == want
            assert store.verify().ok
            for name in made:  # whatever the codec of the field, frames say what theirs is
                views = store[name].views(np.arange(len(want)))
                for view, record in zip(views, want, strict=True):
                    assert record[name] is None or np.asarray(view).tobytes() == record[name]
        if not turn:
            with RecordWriter(path, mode="a") as writer:
                assert contents(writer) == want
    with RecordWriter(path, mode="a") as writer:
        append_all(writer, made, plan, 0)
    assert contents(RecordReader.open(path))[: len(want)] == want
    assert read_store(path).records[: len(want)] == want
    assert len(read_store(path).records) == 2 * len(want)


def test_payloads_of_every_length_are_checked_while_they_are_copied(tmp_path: Path) -> None:
    """Copy and checksum are one pass, in steps of 256 and 64 bytes and a rest."""
    sizes = [*range(700), 2048, 2049, 8191, 8192, 20_001]
    random = np.random.default_rng(1)
    rows = [random.integers(0, 256, size, np.uint8).tobytes() for size in sizes]
    with RecordWriter(tmp_path / "store", {"x": Field(bytes, compress="none")}) as writer:
        writer.append({"x": rows})
    with RecordReader.open(tmp_path / "store") as store:
        assert store.take(np.arange(len(rows)))["x"].to_list() == rows
    chunks = {path: path.read_bytes() for path in (tmp_path / "store").rglob("*.zr")}
    for number in (64, 255, 256, 300, 699, 704):
        chunk = next(path for path, data in chunks.items() if rows[number] in data)
        data = bytearray(chunks[chunk])
        at = data.index(rows[number])
        for byte in {0, sizes[number] // 2, sizes[number] - 1}:
            data[at + byte] ^= 1
            chunk.write_bytes(data)
            with (
                RecordReader.open(tmp_path / "store") as store,
                pytest.raises(ChecksumError, match=f"record {number}, x: expected CRC32C"),
            ):
                store.take([number])
            data[at + byte] ^= 1
        chunk.write_bytes(data)
