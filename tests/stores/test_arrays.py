"""`ArraySource`: arrays as they are, and `.npy` files loaded or mapped."""

import io
import os
import pickle
import shutil
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

import stepwell as sw
from stepwell import ArraySource, FormatError, SchemaError, Source, VersionError
from tests import SANITIZED, children, scaled
from tests.arrays import PLAIN_TYPES, STEP, STRUCTURES, random_array
from tests.contract import Expected, SourceContract, assert_batch, pick

Memory = Literal["ram", "map"]
both = pytest.mark.parametrize("memory", ["ram", "map"])


def fields_of(array: NDArray[Any]) -> Expected:
    return {name: array[name] for name in array.dtype.names or ()}


def rows_of(data: NDArray[Any] | dict[str, NDArray[Any]]) -> Expected:
    """The fields that a source of this has."""
    return {**data} if isinstance(data, dict) else fields_of(data) or {"data": data}


def ways(array: NDArray[Any], folder: Path) -> list[ArraySource]:
    """The array in memory, its file loaded, and its file mapped."""
    path = npy(folder / "a.npy", array)
    return [ArraySource(array), ArraySource(path), ArraySource(path, memory="map")]


def assert_takes(source: Source, expected: Expected) -> None:
    """Small and large batches, backwards and with repeats, are what NumPy gives."""
    assert_batch(source[:], expected)
    assert_batch(source[::-1], pick(expected, slice(None, None, -1)))
    rows = np.random.default_rng(7).integers(0, len(source), 5000)
    assert_batch(source.take(rows), pick(expected, rows))
    for name, values in expected.items():
        assert_batch(source.columns([name]).take(rows), {name: np.asarray(values)[rows]})


def npy(path: Path, array: NDArray[Any], version: tuple[int, int] | None = None) -> Path:
    with path.open("wb") as file:
        np.lib.format.write_array(file, array, version)
    return path


# The exam.


STEPS = random_array(STEP, 100)
NAMED = {
    "empty": np.empty((90, 0)),
    "image": random_array("u1", (90, 8, 8)),
    "label": random_array("i2", 180)[::2],
    "name": random_array("U5", 90),
    "spectrum": random_array("c8", (90, 3)),
}
IN_MEMORY: dict[str, Any] = {
    "structured": STEPS,
    "padded": random_array(STRUCTURES["padding"], 64),
    "plain": random_array("f4", (77, 5)),
    "backwards": random_array("i8", (200, 2, 3))[::-3],
    "named": NAMED,
}


@pytest.mark.parametrize("name", [*IN_MEMORY, "packed"])
class TestInMemory(SourceContract):
    @pytest.fixture
    def expected(self, name: str) -> Expected:
        return {"row": STEPS} if name == "packed" else rows_of(IN_MEMORY[name])

    @pytest.fixture
    def source(self, name: str) -> Source:
        return ArraySource(STEPS).packed() if name == "packed" else ArraySource(IN_MEMORY[name])


@pytest.mark.parametrize("name", ["ram", "map", "packed"])
class TestFile(SourceContract):
    @pytest.fixture
    def expected(self, name: str) -> Expected:
        return {"row": STEPS} if name == "packed" else fields_of(STEPS)

    @pytest.fixture
    def source(self, name: str, tmp_path: Path) -> Source:
        path = npy(tmp_path / "steps.npy", STEPS)
        loaded = ArraySource(path) if name == "ram" else ArraySource(str(path), memory="map")
        return loaded.packed() if name == "packed" else loaded

    def test_pickles_as_its_path(self, source: Source) -> None:
        assert len(pickle.dumps(source)) < 500


# Every kind of array.


@pytest.mark.parametrize("dtype", PLAIN_TYPES)
@pytest.mark.parametrize("shape", [(40,), (40, 3), (40, 2, 5), (40, 3, 1, 2)], ids=str)
def test_plain_arrays(dtype: str, shape: tuple[int, ...]) -> None:
    array = random_array(dtype, shape)
    assert_takes(ArraySource(array), {"data": array})


@pytest.mark.parametrize("dtype", STRUCTURES.values(), ids=STRUCTURES)
def test_structured_arrays(dtype: np.dtype[Any]) -> None:
    array = random_array(dtype, 300)
    source = ArraySource(array)
    assert_takes(source, fields_of(array))
    assert_takes(source.packed(), {"row": array})
    assert_takes(ArraySource(array[::-2]), fields_of(array[::-2]))
    assert_takes(ArraySource({"x": array, "y": np.arange(300)}), {"x": array, "y": np.arange(300)})


@given(hnp.basic_indices((9,) * 3, min_dims=1, allow_newaxis=True), st.permutations(range(3)))
def test_any_strides(key: Any, axes: list[int]) -> None:
    array = random_array("f4", (9,) * 3).transpose(axes)[key]
    if len(array):
        assert_takes(ArraySource(array), {"data": array})


@pytest.mark.parametrize(
    "look",
    [
        lambda a: np.asfortranarray(a),
        lambda a: np.broadcast_to(a[3], (64, *a.shape[1:])),
        lambda a: np.broadcast_to(a[:, :1], a.shape),
        lambda a: np.broadcast_to(a.ravel()[5], (64, 2)),
        lambda a: np.lib.stride_tricks.sliding_window_view(a.ravel(), 9),
        lambda a: a.view("V4"),
    ],
)
def test_memory_that_rows_share(look: Callable[[NDArray[Any]], NDArray[Any]]) -> None:
    array = look(random_array("f4", (60, 4, 6)))
    assert_takes(ArraySource(array), {"data": array})


def test_unaligned_arrays() -> None:
    for dtype in ("f8", "c16", STRUCTURES["padding"]):
        values = random_array(dtype, (30,))
        array = np.ndarray(values.shape, values.dtype, bytearray(values.nbytes + 3), offset=3)
        array[...] = values
        assert not array.flags.aligned
        assert_takes(ArraySource(array), rows_of(array))


def test_kinds_of_ndarray(tmp_path: Path) -> None:
    steps, array = random_array(STEP, 50), random_array("f4", (50, 3))
    mapped = np.memmap(tmp_path / "raw", "f4", "w+", shape=array.shape)
    mapped[...] = array
    assert_takes(ArraySource(steps.view(np.recarray)), fields_of(steps))
    for form in (array.view(np.matrix), mapped):
        assert_takes(ArraySource(form), {"data": array})


def test_arrays_are_used_where_they_are() -> None:
    array = np.arange(100).reshape(50, 2)
    for look in (array, array[::-1], array[:, :1], array[10:20]):
        source = ArraySource(look)
        look[7] = -5
        assert (source[7]["data"] == -5).all()


def test_the_array_lives_as_long_as_its_source() -> None:
    sources = [ArraySource(np.full(100_000, i)) for i in range(20)]
    views = [source.select(slice(None, None, -1)) for source in sources]
    del sources
    for i, view in enumerate(views):
        assert (view[:]["data"] == i).all()


@pytest.mark.parametrize("shape", [(0,), (0, 3), (0, 0), (0, 2, 5)], ids=str)
def test_no_rows(shape: tuple[int, ...], tmp_path: Path) -> None:
    array = np.empty(shape, "f4")
    for source in ways(array, tmp_path):
        assert len(source) == 0
        assert list(source) == []
        assert_batch(source.take([]), {"data": array})
        assert_batch(source[:], {"data": array})
        assert len(source.fingerprint) == 8
        assert len(source.concat(source).windows(2)) == 0
        for wrong in (0, -1):
            with pytest.raises(IndexError, match=f"row {wrong} is outside a source of 0 rows"):
                source.take([wrong])
            with pytest.raises(IndexError, match=f"row {wrong} is outside a source of 0 rows"):
                source[wrong]


@pytest.mark.parametrize("shape", [(5, 0), (5, 0, 3), (5, 3, 0)], ids=str)
def test_rows_without_bytes(shape: tuple[int, ...], tmp_path: Path) -> None:
    array = np.empty(shape, "f4")
    for source in ways(array, tmp_path):
        assert_takes(source, {"data": array})


def test_many_rows() -> None:
    # More than the caches hold, so that rows asked for ahead are the rows then copied.
    array = random_array(STEP, scaled(2_000_000))
    source = ArraySource(array)
    rows = np.random.default_rng(0).integers(0, len(array), scaled(300_000))
    assert_batch(source.take(rows), pick(fields_of(array), rows))
    assert_batch(source.packed().take(rows), {"row": array[rows]})


def test_more_rows_than_memory() -> None:
    everywhere = np.broadcast_to(np.arange(3, dtype=np.uint8), (2**60, 3))
    source = ArraySource(everywhere)
    rows = [2**60 - 1, 0, 2**40]
    assert source.take(rows)["data"].tolist() == [[0, 1, 2]] * 3
    with pytest.raises(IndexError, match=f"row {2**60} "):
        source.take([2**60])
    with pytest.raises(MemoryError):
        source.windows(2**50).take([0])


# Files.


FILES: dict[str, tuple[NDArray[Any], tuple[int, int] | None]] = {
    **{f"version {version}": (random_array(STEP, 70), (version, 0)) for version in (1, 2, 3)},
    "a long header": (random_array([(f"field {i:04}", "u1") for i in range(3000)], 10), (2, 0)),
    "any alphabet": (random_array([("поле", "f4"), ("磁場", "i2")], 10), (3, 0)),
    **{dtype: (random_array(dtype, (20, 3)), None) for dtype in PLAIN_TYPES},
    **{
        name: (random_array(dtype, 20), None)
        for name, dtype in STRUCTURES.items()
        if name not in ("overlapping", "out of order")
    },
}


@both
@pytest.mark.parametrize("name", FILES)
def test_npy(tmp_path: Path, name: str, memory: Memory) -> None:
    array, version = FILES[name]
    source = ArraySource(npy(tmp_path / "ü.npy", array, version), memory=memory)
    assert_batch(source[:], rows_of(array))
    if name != "a long header":  # which has too many fields for that
        assert_takes(source, rows_of(array))


@both
def test_npy_that_goes_on_behind_the_array(tmp_path: Path, memory: Memory) -> None:
    path = npy(tmp_path / "a.npy", np.arange(10))
    with path.open("ab") as file:
        np.save(file, np.arange(5))  # np.load reads the first array too
    assert_takes(ArraySource(path, memory=memory), {"data": np.arange(10)})


def test_npy_loaded_in_many_pieces(tmp_path: Path) -> None:
    array = random_array("u1", (3_000_001, 7))
    assert_batch(ArraySource(npy(tmp_path / "a.npy", array))[:], {"data": array})


def test_npy_larger_than_memory_is_mapped(tmp_path: Path) -> None:
    # 256 GiB, all of it a hole but the rows at both ends and around 4 GiB.
    count = 2**33
    path = tmp_path / "a.npy"
    header: dict[str, Any] = {"descr": "<i8", "fortran_order": False, "shape": (count, 4)}
    rows = np.array([0, 2**27 - 1, 2**27, 2**32, count - 1])
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        begin = file.tell()
        for row in rows:
            file.seek(begin + int(row) * 32)
            file.write(np.full(4, row + 1, "<i8").tobytes())
    source = ArraySource(path, memory="map")
    assert len(source) == count
    assert_batch(source.take(rows), {"data": np.repeat(rows[:, None] + 1, 4, axis=1)})
    assert (source[12345]["data"] == 0).all()


@both
def test_npy_at_any_path(tmp_path: Path, memory: Memory) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/not \xff\xfe UTF-8.npy"))
    source = ArraySource(npy(path, np.arange(10)), memory=memory)
    assert_takes(source, {"data": np.arange(10)})
    assert_takes(pickle.loads(pickle.dumps(source)), {"data": np.arange(10)})


def test_describe_and_verify(tmp_path: Path) -> None:
    path = npy(tmp_path / "a.npy", np.arange(10))
    with ArraySource.open(path) as source:
        about, report = source.describe(), source.verify()
        assert (about.kind, about.path, about.rows, about.bytes) == ("npy", str(path), 10, 208)
        assert report.ok
        assert report.unchecked == ("the values: a .npy file has no checksums",)
        os.truncate(path, 100)
        assert [error.path for error in source.verify().problems] == [str(path)]
    with pytest.raises(ValueError, match=f"closed: an array at {path}"):
        source.take([0])
    memory = ArraySource(np.arange(10))
    assert (memory.describe().path, memory.describe().bytes) == ("", 80)
    assert memory.verify().ok
    assert memory.verify().unchecked == ("the values: arrays in memory have no checksums",)
    memory.close()
    calls: list[Callable[[], object]] = [lambda: memory.take([0]), memory.verify, memory.describe]
    for call in calls:
        with pytest.raises(ValueError, match=r"closed: an array$"):
            call()


# What cannot be a source.


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (np.ma.masked_array([1, 2], [True, False]), TypeError, "mask"),
        ({"a": np.ma.masked_array([1, 2])}, TypeError, "'a'.* mask"),
        (np.array([1, None]), SchemaError, "Python objects"),
        (np.zeros(3, [("a", "i4"), ("b", "O")]), SchemaError, "Python objects"),
        (np.array(["a", "b"], np.dtypes.StringDType()), SchemaError, "Python objects"),
        (np.array(5), SchemaError, "a single value"),
        ({"a": np.arange(3), "b": np.array(5)}, SchemaError, "'b'.* a single value"),
        ({}, SchemaError, "at least one array"),
        ({"a": np.arange(3), "b": np.arange(4)}, SchemaError, r"\{'a': 3, 'b': 4\}"),
        (np.zeros((3, 2), STEP), SchemaError, "one axis"),
    ],
)
def test_refused(data: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ArraySource(data)


def test_mistakes() -> None:
    with pytest.raises(ValueError, match="'ram' or 'map', got 'disk'"):
        ArraySource(np.arange(3), memory="disk")  # type: ignore[arg-type]
    for source in (ArraySource(np.arange(3)), ArraySource({"a": random_array(STEP, 3)})):
        with pytest.raises(SchemaError, match="structured"):
            source.packed()


@both
def test_no_such_file(tmp_path: Path, memory: Memory) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        ArraySource(tmp_path / "none.npy", memory=memory)
    assert caught.value.filename == str(tmp_path / "none.npy")
    with pytest.raises(IsADirectoryError):
        ArraySource(tmp_path, memory=memory)


class Bomb:
    """Leaves a file behind when somebody unpickles it."""

    def __init__(self, crater: Path) -> None:
        self.crater = crater

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.crater,)


@both
@pytest.mark.parametrize("dtype", ["O", [("a", "i4"), ("b", "O")]], ids=str)
def test_pickles_are_never_loaded(tmp_path: Path, dtype: Any, memory: Memory) -> None:
    crater = tmp_path / "crater"
    array = np.zeros(1, dtype)
    array[0] = Bomb(crater) if dtype == "O" else (1, Bomb(crater))
    np.save(tmp_path / "bomb.npy", array, allow_pickle=True)
    with pytest.raises(FormatError, match="Python objects"):
        ArraySource(tmp_path / "bomb.npy", memory=memory)
    with pytest.raises(FormatError, match="Python objects"):
        sw.open(tmp_path / "bomb.npy", memory=memory)
    assert not crater.exists()
    np.load(tmp_path / "bomb.npy", allow_pickle=True)
    assert crater.exists()  # the bomb was a live one


# Damaged files: the rows, or an error that says where.


def assert_names_the_place(error: FormatError, path: Path) -> None:
    assert error.path == str(path)
    assert error.offset is not None
    assert 0 <= error.offset <= path.stat().st_size
    assert str(error).endswith(f"- at {path}:{error.offset}")


@both
@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)], ids=str)
def test_truncated_anywhere(tmp_path: Path, version: tuple[int, int], memory: Memory) -> None:
    path = npy(tmp_path / "a.npy", random_array("i4", (11, 3)), version)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(FormatError) as caught:
            ArraySource(path, memory=memory)
        assert_names_the_place(caught.value, path)


@both
@pytest.mark.parametrize("flip", [0x01, 0x02, 0x08, 0x10, 0x20, 0x80, 0xFF], ids=hex)
@pytest.mark.filterwarnings("ignore")  # NumPy and Python warn of odd literals
def test_every_byte_of_the_header_flipped(tmp_path: Path, flip: int, memory: Memory) -> None:
    # A flip may leave a header that is right, of another array. NumPy is then the judge.
    path = npy(tmp_path / "a.npy", random_array([("a", "<i4"), ("b", "<f4", (3,))], (12,)))
    whole = path.read_bytes()
    read = 0
    for i in range(len(whole) - 12 * 16):
        path.write_bytes(whole[:i] + bytes([whole[i] ^ flip]) + whole[i + 1 :])
        try:
            source = ArraySource(path, memory=memory)
        except FormatError as error:
            assert_names_the_place(error, path)
        else:
            read += 1
            array = np.load(path, allow_pickle=False)
            assert_batch(source[:], fields_of(array))
    assert read < 100  # most of a header matters; its padding is the rest


HEADER = "{'descr': %s, 'fortran_order': %s, 'shape': %s}"

HOSTILE: dict[str, str | bytes] = {
    "no dict": "[1, 2, 3]",
    "nothing": "",
    "a call": "__import__('os').system('true')",
    "no shape": "{'descr': '<i4', 'fortran_order': False}",
    "more keys": "{'descr': '<i4', 'fortran_order': False, 'shape': (3,), 'x': 1}",
    "fortran number": HEADER % ("'<i4'", 0, "(3,)"),
    "shape list": HEADER % ("'<i4'", False, "[3]"),
    "shape number": HEADER % ("'<i4'", False, "3"),
    "shape bool": HEADER % ("'<i4'", False, "(True,)"),
    "shape float": HEADER % ("'<i4'", False, "(3.0,)"),
    "shape negative": HEADER % ("'<i4'", False, "(-3,)"),
    "no axis": HEADER % ("'<i4'", False, "()"),
    "65 axes": HEADER % ("'<i1'", False, (1,) * 65),
    "one row too many": HEADER % ("'<i4'", False, "(17,)"),
    "2**31 rows": HEADER % ("'<i4'", False, "(2147483648,)"),
    "2**40 rows": HEADER % ("'<i4'", False, (2**40,)),
    "2**62 rows": HEADER % ("'<i4'", False, (2**62,)),
    "2**63 rows": HEADER % ("'<i4'", False, (2**63,)),
    "2**64 + 1 rows": HEADER % ("'<i4'", False, (2**64 + 1,)),
    "wraps to 0": HEADER % ("'<i4'", False, (2**31, 2**31)),
    "wraps to 4": HEADER % ("'<i1'", False, (2**61 + 1, 8)),
    "no rows, endless": HEADER % ("'<i4'", False, (0, 2**62)),
    "no rows, wraps": HEADER % ("'<i4'", False, (0, 2**40, 2**40)),
    "no bytes, wraps": HEADER % ("'|V0'", False, (2**40, 2**40)),
    "4300 digits": HEADER % ("'<i4'", False, "(%s,)" % ("9" * 5000)),
    "huge items": HEADER % ("'|V2147483647'", False, "(1,)"),
    "huge text": HEADER % ("'<U536870911'", False, "(1,)"),
    "huge field": HEADER % ("[('a', '<i4', (2147483647,))]", False, "(1,)"),
    "array of arrays": HEADER % ("('<i4', (2,))", False, "(3,)"),
    "unknown type": HEADER % ("'<q9'", False, "(3,)"),
    "type number": HEADER % ("3", False, "(3,)"),
    "object": HEADER % ("'|O'", False, "(3,)"),
    "object in a field": HEADER % ("[('a', [('b', '|O')])]", False, "(3,)"),
    "field twice": HEADER % ("[('a', '<i4'), ('a', '<i4')]", False, "(3,)"),
    "fortran": HEADER % ("'<i4'", True, "(3, 2)"),
    "deep parentheses": "(" * 60_000,
    "deep minus": "-" * 60_000 + "1",
    "deep sum": "1+" * 30_000 + "1",
    "deep names": "a." * 30_000 + "a",
    "deep fields": HEADER % ("[('a'," * 5_000, False, "(3,)"),
    "not text": b"\xff\xfe\x00\x80",
    "zeros": b"\0" * 64,
}


def hostile_file(path: Path, name: str) -> Path:
    text = HOSTILE[name]
    header = text if isinstance(text, bytes) else text.encode()
    length = len(header).to_bytes(4, "little")
    path.write_bytes(b"\x93NUMPY\x02\x00" + length + header + bytes(64))
    return path


def test_hostile_headers(tmp_path: Path) -> None:
    # In a process that may not grow: a claim of terabytes is never tried.
    for i, name in enumerate(HOSTILE):
        hostile_file(tmp_path / f"{i:02}.npy", name)
    script = """
import pathlib, resource, sys
import stepwell as sw
sw.ArraySource  # is loaded before the limit holds
if sys.argv[2] == "limited":  # the sanitizers themselves map terabytes
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20),) * 2)
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.npy")):
    for memory in ("ram", "map"):
        try:
            sw.ArraySource(path, memory=memory)
        except sw.FormatError as error:
            assert error.path == str(path) and 0 <= error.offset <= path.stat().st_size
            print(path.name)
"""
    printed = children.answer(script, tmp_path, "free" if SANITIZED else "limited")
    assert printed.split() == [f"{i:02}.npy" for i in range(len(HOSTILE)) for _ in "rm"]


@pytest.mark.parametrize("version", [(0, 0), (1, 1), (4, 0), (255, 255)], ids=str)
def test_unknown_versions(tmp_path: Path, version: tuple[int, int]) -> None:
    path = npy(tmp_path / "a.npy", np.arange(3))
    damaged = bytearray(path.read_bytes())
    damaged[6:8] = version
    path.write_bytes(damaged)
    with pytest.raises(VersionError, match=f"got {version[0]}.{version[1]}") as caught:
        ArraySource(path)
    assert_names_the_place(caught.value, path)
    assert caught.value.offset == 6


def test_fortran_order(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.asfortranarray(np.arange(6).reshape(2, 3)))
    with pytest.raises(FormatError, match=r"Fortran.*np\.ascontiguousarray"):
        ArraySource(tmp_path / "a.npy")
    # Of one axis it is no order.
    header: dict[str, Any] = {"descr": "<i8", "fortran_order": True, "shape": (3,)}
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, header)
    (tmp_path / "a.npy").write_bytes(file.getvalue() + np.arange(3).tobytes())
    for memory in get_args(Memory):
        assert_takes(ArraySource(tmp_path / "a.npy", memory=memory), {"data": np.arange(3)})


# Which data it is.


def test_fingerprints_tell_data_apart() -> None:
    array = random_array(STEP, 1000)
    changed_first, changed_last = array.copy(), array.copy()
    changed_first["move"][0] ^= 1
    changed_last["board"][-1] ^= 1
    renamed = array.astype([("b0ard", "u8"), *STEP.descr[1:]])
    plain = np.arange(1000)
    forms = (plain, plain.astype("<u8"), plain.astype(">i8"), plain.reshape(1000, 1))
    others = [changed_first, changed_last, array[:-1], renamed]
    arrays: list[Any] = [array, *others, *forms, {"other": plain}]
    assert len({ArraySource(each).fingerprint for each in arrays}) == len(arrays)


def test_fingerprints_do_not_depend_on_where_data_is(tmp_path: Path) -> None:
    array = random_array(STEP, 1000)
    path = npy(tmp_path / "a.npy", array)
    same = [
        ArraySource(array),
        ArraySource(np.repeat(array, 2)[::2]),
        ArraySource(path),
        ArraySource(path, memory="map"),
        ArraySource(fields_of(array)),  # type: ignore[arg-type]
    ]
    assert len({source.fingerprint for source in same}) == 1
    assert ArraySource(np.arange(3)).fingerprint == "a0ea6827"  # the same in every release


# Threads and fork together.


def test_fork_while_threads_read() -> None:
    # A fork may come at any moment of another thread's take: inside the pool of blocks,
    # inside the pool of threads. The child must neither hang nor read anything else.
    source = ArraySource(random_array(STEP, 1000))
    expected = fields_of(random_array(STEP, 1000))
    rows = np.random.default_rng(0).integers(0, 1000, 5000)
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            source.take(rows)

    with ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            pool.submit(read)
        try:
            for _ in range(scaled(30)):
                assert_batch(children.in_fork(lambda: source.take(rows)), pick(expected, rows))
        finally:
            stop.set()


def test_takes_release_the_interpreter() -> None:
    # With this interval nobody is asked to give way: the other thread runs during a take
    # only if the take lets it.
    source = ArraySource(np.broadcast_to(np.zeros(1 << 16, "u1"), (10, 1 << 16)))
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        ran: list[int] = []
        for i in range(20):
            gate = threading.Lock()
            gate.acquire()

            def wait_and_run(gate: threading.Lock = gate) -> None:
                ran.append(gate.acquire())

            thread = threading.Thread(target=wait_and_run)
            thread.start()
            gate.release()
            source.take(np.zeros(2000, np.int64))
            if len(ran) > i:
                break
            thread.join()
        else:
            pytest.fail("no other thread ran during 20 large takes")
    finally:
        sys.setswitchinterval(interval)


def test_out_must_not_be_the_sources_own_memory() -> None:
    x = np.arange(10)
    for source in (ArraySource(x), ArraySource(x[::-1]), ArraySource(x).select(slice(5))):
        with pytest.raises(ValueError, match="the source itself"):
            source.take([4, 3, 2], {"data": x[4:7]})
    assert x.tolist() == list(range(10))
    shared = np.zeros(4, np.int64)
    with pytest.raises(ValueError, match="share memory"):
        ArraySource({"a": x, "b": x + 1}).take([1, 2, 3], {"a": shared[:3], "b": shared[1:]})


def test_what_is_no_plain_file_is_refused_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.npy")
    with pytest.raises(FormatError, match="expected a regular file, got a pipe"):
        ArraySource(tmp_path / "fifo.npy")


class Named(ArraySource):
    """A subclass of the user's."""


def test_a_subclass_stays_one_when_pickled() -> None:
    assert type(pickle.loads(pickle.dumps(Named(np.arange(3))))) is Named


def test_a_file_replaced_while_it_is_opened_is_one_or_the_other(tmp_path: Path) -> None:
    path, stop = tmp_path / "x.npy", threading.Event()
    for kind in ("<i8", "<f8"):
        np.save(tmp_path / f"{kind[1:]}.npy", np.arange(1000).astype(kind))
    shutil.copy(tmp_path / "i8.npy", path)

    def replace() -> None:
        while not stop.is_set():
            for kind in ("f8", "i8"):
                shutil.copy(tmp_path / f"{kind}.npy", tmp_path / "next")
                os.replace(tmp_path / "next", path)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(replace)
        try:
            for _ in range(scaled(500)):
                assert ArraySource(path).take([7, 999])["data"].tolist() == [7, 999]
        finally:
            stop.set()
