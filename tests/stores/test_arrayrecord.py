"""`ArrayRecordSource`: files of others, and what `stepwell.convert` writes."""

import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordWriter
from numpy.typing import NDArray

import stepwell as sw
from stepwell import ArraySource, FormatError, SchemaError, Source, StepwellError, VersionError
from stepwell.stores import ArrayRecordSource
from tests import SANITIZED
from tests.arrays import PLAIN_TYPES, STRUCTURES, random_array
from tests.contract import Expected, SourceContract, assert_batch
from tests.formats.rows import assert_same, contents

UNORDERED = ("overlapping", "out of order")  # fields that NumPy has no description of


def write_records(path: Path, records: list[bytes]) -> None:
    """A file by somebody who has never heard of stepwell."""
    writer = ArrayRecordWriter(str(path), "group_size:1")
    for record in records:
        writer.write(record)
    writer.close()


def written(array: NDArray[Any], path: Path, part_bytes: int | None = None) -> ArrayRecordSource:
    """The rows of an array as stepwell writes them."""
    given = ArraySource(array)
    rows = given.packed() if array.dtype.names else given
    sw.convert(rows, path, to="arrayrecord", part_bytes=part_bytes)
    return ArrayRecordSource(path)


# The exam.


@pytest.mark.parametrize(
    "array",
    [random_array("f4", (100, 2, 3)), random_array(STRUCTURES["nested"], 64)],
    ids=["plain", "structured"],
)
class TestConverted(SourceContract):
    @pytest.fixture
    def expected(self, array: NDArray[Any]) -> Expected:
        return {"data": array}

    @pytest.fixture
    def source(self, array: NDArray[Any], tmp_path: Path) -> Source:
        return written(array, tmp_path / "a", 30 * 24)

    def test_pickles_as_its_path(self, source: Source) -> None:
        assert len(pickle.dumps(source)) < 500


class TestForeign(SourceContract):
    @pytest.fixture
    def expected(self) -> Expected:
        records = [np.frombuffer(random_array("V1", i * i % 40).tobytes(), "u1") for i in range(60)]
        return {"data": records}

    @pytest.fixture
    def source(self, expected: Expected, tmp_path: Path) -> Source:
        records = [row.tobytes() for row in expected["data"]]
        write_records(tmp_path / "b.array_record", records[25:])
        write_records(tmp_path / "a.array_record", records[:25])
        return ArrayRecordSource(tmp_path)


# Round trips.


@pytest.mark.parametrize(
    "array",
    [
        *(random_array(dtype, (7, 2, 1, 3)) for dtype in PLAIN_TYPES),
        *(random_array(dtype, 7) for name, dtype in STRUCTURES.items() if name not in UNORDERED),
        *(np.empty(shape, "f4") for shape in ((0, 2), (4, 0), (4, 3, 0))),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}"[:60],
)
def test_arrays(tmp_path: Path, array: NDArray[Any]) -> None:
    assert_batch(written(array, tmp_path / "a")[:], {"data": array})


@pytest.mark.parametrize("name", UNORDERED)
def test_structures_that_cannot_be_written_down(tmp_path: Path, name: str) -> None:
    with pytest.raises(SchemaError, match=r"'row': .*overlapping or out-of-order fields"):
        written(random_array(STRUCTURES[name], 7), tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_structures_as_fields(tmp_path: Path) -> None:
    rows = random_array([("a", ">i4"), ("b", "f4", (2,))], 50)
    written(rows, tmp_path / "in", 200).close()
    sw.convert(tmp_path / "in", tmp_path / "store")
    assert_same(contents(tmp_path / "store"), {"a": rows["a"], "b": rows["b"]})


# Files by others.


def test_bytes_as_records(tmp_path: Path) -> None:
    records = [b"a", b"", random_array("V1", 10_000).tobytes(), b"\0"]
    (tmp_path / "in").mkdir()
    for name, part in (("0", records[:2]), ("1", []), ("2", records[2:])):
        write_records(tmp_path / "in" / f"{name}.array_record", part)
    sw.convert(tmp_path / "in", tmp_path / "store")
    assert_same(contents(tmp_path / "store"), {"data": records})


def test_bytes_unless_told_otherwise(tmp_path: Path) -> None:
    array = random_array("<f4", (20, 6))
    write_records(tmp_path / "x.array_record", [row.tobytes() for row in array])
    ragged = ArrayRecordSource(tmp_path)
    assert str(ragged.schema["data"]) == "uint8[*]"
    assert ragged[3]["data"].tobytes() == array[3].tobytes()
    told = ArrayRecordSource(tmp_path, dtype="<f4", shape=(6,))
    assert_batch(told[:], {"data": array})
    assert_batch(pickle.loads(pickle.dumps(told))[:], {"data": array})
    square = ArrayRecordSource(tmp_path, dtype="<f4", shape=[2, 3])
    assert_batch(square[:], {"data": array.reshape(20, 2, 3)})
    whole = ArrayRecordSource(tmp_path, dtype=np.dtype(("<f4", (6,))))
    assert_batch(whole[:], {"data": array})
    written(array, tmp_path / "ours").close()  # stepwell.json says floats
    assert_batch(
        ArrayRecordSource(tmp_path / "ours", dtype="<u8", shape=(3,))[:],
        {"data": array.view("<u8")},
    )
    record = ArrayRecordSource(tmp_path, dtype="<u8,<f4,<f4,<f8")
    assert_batch(record[:], {"data": array.view("<u8,<f4,<f4,<f8")[:, 0]})


def test_told_wrongly(tmp_path: Path) -> None:
    write_records(tmp_path / "x.array_record", [bytes(24)] * 20)
    with pytest.raises(FormatError, match=r"record 0: expected 20 bytes for float32\[5\], got 24"):
        ArrayRecordSource(tmp_path, dtype="<f4", shape=(5,))
    with pytest.raises(SchemaError, match="plain numbers"):
        ArrayRecordSource(tmp_path, dtype="O")
    with pytest.raises(SchemaError, match=r"expected records below 2\*\*63 bytes"):
        ArrayRecordSource(tmp_path, dtype="<f4", shape=(2**62,))
    with pytest.raises(ValueError, match="a shape needs a dtype"):
        ArrayRecordSource(tmp_path, shape=(6,))


def test_a_record_of_another_length_is_named(tmp_path: Path) -> None:
    records = [bytes(8)] * 10
    records[7] = bytes(5)
    write_records(tmp_path / "x.array_record", records)
    source = ArrayRecordSource(tmp_path, dtype="<i8")
    assert source.take([6, 8])["data"].tolist() == [0, 0]
    with pytest.raises(FormatError, match=r"record 7: expected .* got 5") as caught:
        source.take([6, 7, 8])
    assert caught.value.path == str(tmp_path)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="none"):
        ArrayRecordSource(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match=r"no \*\.array_record file in"):
        ArrayRecordSource(tmp_path)


def test_close_lets_go_of_the_files(tmp_path: Path) -> None:
    source = written(np.arange(10), tmp_path / "a")

    def open_files() -> list[str]:
        links = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
        return [link for link in links if link.startswith(str(tmp_path))]

    assert len(open_files()) == 1
    source.close()
    source.close()
    assert open_files() == []
    with pytest.raises(ValueError, match="closed: a folder of array records at"):
        source.take([0])
    assert_batch(pickle.loads(pickle.dumps(source))[:], {"data": np.arange(10)})


def test_describe_and_verify(tmp_path: Path) -> None:
    source = written(random_array("i8", (12, 3)), tmp_path / "a", 6 * 24)
    about = source.describe()
    assert (about.kind, about.path, about.rows) == ("arrayrecord", str(tmp_path / "a"), 12)
    assert about.bytes > 12 * 24
    done: list[tuple[int, int]] = []
    for quick in (False, True):
        report = source.verify(quick=quick, progress=lambda *each: done.append(each))
        assert report.ok
        assert (done[-1], bool(report.unchecked)) == ((12, 12), quick)
    assert source.refresh() is False


def test_verify_names_every_bad_record(tmp_path: Path) -> None:
    records = [bytes(5 if i in (3, 7) else 8) for i in range(10)]
    write_records(tmp_path / "x.array_record", records)
    found = ArrayRecordSource(tmp_path, dtype="<i8").verify().problems
    assert [str(each).split(" - ")[0] for each in found] == [
        "record 3: expected 8 bytes for int64, got 5",
        "record 7: expected 8 bytes for int64, got 5",
    ]


@pytest.mark.parametrize("name", ["x.array_record", "stepwell.json"])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_links_and_pipes_are_refused(tmp_path: Path, name: str, kind: str) -> None:
    write_records(tmp_path / "x.array_record", [bytes(8)])
    (tmp_path / "stepwell.json").write_text(json.dumps(about(rows=1, shape=[])))
    (tmp_path / name).rename(tmp_path / "elsewhere")
    if kind == "link":
        (tmp_path / name).symlink_to("elsewhere")
    else:
        os.mkfifo(tmp_path / name)
    with pytest.raises(FormatError, match=f"expected a regular file, got a {kind}"):
        ArrayRecordSource(tmp_path)


# Damage.


def converted(tmp_path: Path) -> tuple[Path, NDArray[Any]]:
    array = random_array("i8", (12, 3))
    written(array, tmp_path / "a", 6 * 24).close()
    return tmp_path / "a", array


def refused(folder: Path, array: NDArray[Any]) -> bool:
    """Whether an error names a damaged file; without one, every row is exact."""
    try:
        with ArrayRecordSource(folder) as source:
            batch = source.take(np.arange(len(source)))
    except FormatError as error:
        return error.path is not None and Path(error.path).parent == folder
    assert_batch(batch, {"data": array})
    return False


def test_truncated(tmp_path: Path) -> None:
    folder, array = converted(tmp_path)
    path = sorted(folder.glob("*.array_record"))[0]
    whole = path.read_bytes()
    used = len(whole.rstrip(b"\0"))
    lengths = {0, 1, 63, 64, 65, 65535, 65536, 65537, used - 1, len(whole) - 1}
    for length in lengths | {*range(0, len(whole), 613 * (10 if SANITIZED else 1))}:
        path.write_bytes(whole[:length])
        assert refused(folder, array)
    path.write_bytes(whole)
    assert not refused(folder, array)


def test_every_byte_flipped(tmp_path: Path) -> None:
    folder, array = converted(tmp_path)
    path = sorted(folder.glob("*.array_record"))[1]
    whole = path.read_bytes()
    used = [i for i, byte in enumerate(whole) if byte][:: 10 if SANITIZED else 1]
    found = 0
    for i in used:
        path.write_bytes(whole[:i] + bytes([whole[i] ^ 0xFF]) + whole[i + 1 :])
        found += refused(folder, array)
    assert found > len(used) * 0.8  # a file's signature and spare bytes hold no rows


def test_a_lost_file_is_missed(tmp_path: Path) -> None:
    folder, _ = converted(tmp_path)
    sorted(folder.glob("*.array_record"))[1].unlink()
    with pytest.raises(FormatError, match="expected 12 records, got 6"):
        ArrayRecordSource(folder)


def about(**changes: Any) -> dict[str, Any]:
    right = {"format": "arrayrecord", "version": 1, "rows": 12, "dtype": "<i8", "shape": [3]}
    return {**right, **changes}


WRONG: dict[str, list[Any]] = {
    "format": ["parquet"],
    "rows": [11, None, True, -12, 10**30],
    "shape": [3, "", {}, [-3], [3.0], [4], [], [2**40], [2**31, 2**31, 4], [10**30]],
    "dtype": [
        *("<q9", "O", [["a", "<i8"], ["b", "O"]], 8, None, [["a"]], "__import__('os')"),
        {"names": ["a"], "formats": ["O"]},
    ],
}
NONSENSE = [
    *(b"", b"{", b"\xff\xfe\x80", b"[" * 200_000, b"[]", b"12", b"null"),
    b'{"format": "arrayrecord", "version": 1, "rows": 12, "shape": [3]}',
    *(json.dumps(about(**{k: v})).encode() for k, values in WRONG.items() for v in values),
]


@pytest.mark.parametrize("text", NONSENSE, ids=lambda text: repr(text[-60:]))
def test_nonsense_in_stepwell_json(tmp_path: Path, text: bytes) -> None:
    folder, _ = converted(tmp_path)
    (folder / "stepwell.json").write_bytes(text)
    with pytest.raises(FormatError) as caught:
        ArrayRecordSource(folder)
    assert str(folder) in str(caught.value)
    assert not isinstance(caught.value, VersionError)


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_unknown_versions(tmp_path: Path, version: Any) -> None:
    folder, _ = converted(tmp_path)
    (folder / "stepwell.json").write_text(json.dumps(about(version=version)))
    with pytest.raises(VersionError, match=f"expected version 1, got {version!r}"):
        ArrayRecordSource(folder)


def test_not_an_arrayrecord_file(tmp_path: Path) -> None:
    (tmp_path / "x.array_record").write_bytes(b"PK\x03\x04" * 50_000)
    with pytest.raises(StepwellError, match="cannot be read: "):
        ArrayRecordSource(tmp_path)


def test_corrupt_rows_are_skipped(tmp_path: Path) -> None:
    write_records(tmp_path / "x.array_record", [bytes(8 if i != 7 else 5) for i in range(40)])
    source = ArrayRecordSource(tmp_path, dtype="<i8")
    loader = sw.Loader(source, 8, shuffle=False, on_corrupt="skip")
    assert sum(len(batch["data"]) for batch in loader) == 39
    assert [row for row, _ in loader.corrupt] == [7]
