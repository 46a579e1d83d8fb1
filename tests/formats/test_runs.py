"""Rows that have runs become step datasets with those runs: arrays, D4RL's files, step datasets."""

import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

import stepwell as sw
from stepwell import FormatError, SchemaError, batches
from tests import children

Arrays = dict[str, NDArray[Any]]


def d4rl(rows: int = 1000, seed: int = 0) -> Arrays:
    """What a file of D4RL has, where a run ends by itself or is cut off; the last one goes on."""
    random = np.random.default_rng(seed)
    return {
        "observations": random.normal(size=(rows, 3, 2)),
        "actions": random.normal(size=(rows, 2)).astype(np.float32),
        "rewards": random.normal(size=rows).astype(np.float32),
        "terminals": random.random(rows) < 0.02,
        "timeouts": random.random(rows) < 0.01,
        "infos/goal": random.integers(-9, 9, (rows, 2), np.int16),
    }


def run_bounds(ends: NDArray[np.bool]) -> list[tuple[int, int]]:
    """First row and the one behind the last, of each run, found row by row."""
    bounds, begin = [], 0
    for row, end in enumerate(ends):
        if end or row == len(ends) - 1:
            bounds.append((begin, row + 1))
            begin = row + 1
    return bounds


def assert_steps(path: Path, want: dict[str, Any], bounds: list[tuple[int, int]]) -> None:
    with sw.StepReader.open(path) as steps:
        assert sorted(steps.schema) == sorted(want)  # HDF5 sorts
        got = steps.take(np.arange(len(steps)))
        for name, values in want.items():
            assert got[name].dtype == values.dtype
            np.testing.assert_array_equal(got[name], values, err_msg=name)
        assert [(r["first_step_idx"], r["num_steps"]) for r in steps.runs] == [
            (begin, end - begin) for begin, end in bounds
        ]
        assert steps.verify().ok


# Arrays.


def test_arrays_of_any_shape(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        "x": random.normal(size=(50, 2, 3)),
        "flag": random.random(50) < 0.5,
        "none": np.zeros((50, 0), np.float32),
        "wave": random.normal(size=50) + 1j,
        "list": list(range(50)),
        "view": np.arange(300).reshape(100, 3)[::2, ::-1],
        "big": np.arange(50).astype(">f4"),
    }
    report = sw.convert(sw.formats.arrays(arrays), tmp_path / "out", to="steps")
    assert (report.rows, report.runs, report.source_bytes, report.ratio) == (50, 1, None, None)
    arrays |= {"list": np.arange(50), "big": np.arange(50, dtype="f4")}
    assert_steps(tmp_path / "out", arrays, [(0, 50)])


def test_runs_by_length(tmp_path: Path) -> None:
    x = {"x": np.arange(10)}
    source = sw.formats.arrays(
        x,
        run_lengths=[3, 0, 7],
        run_columns={
            "score": [1, 2.5, None],
            "level": np.array([7, 8, 9]),
            "won": [True, False, None],
            "who": ["a", None, "c"],
            "raw": [b"a", b"b", b""],
        },
    )
    sw.convert(source, tmp_path / "out", to="steps")
    assert_steps(tmp_path / "out", x, [(0, 3), (3, 3), (3, 10)])
    rows = [
        (1.0, 7, 1, "a", b"a"),
        (2.5, 8, 0, None, b"b"),
        (None, 9, None, "c", b""),
    ]
    # Of a step dataset another, with the same runs; and some of them.
    report = sw.convert(tmp_path / "out", tmp_path / "again", to="steps")
    assert report.runs == 3
    for name in ("out", "again"):
        with sw.StepReader.open(tmp_path / name) as steps:
            assert [tuple(run.values())[3:] for run in steps.runs] == rows
    sw.convert(tmp_path / "out", tmp_path / "part", to="steps", where="score > 2 OR who = 'c'")
    assert_steps(tmp_path / "part", {"x": np.arange(3, 10)}, [(0, 0), (0, 7)])
    sw.convert(tmp_path / "out", tmp_path / "out.parquet")
    report = sw.convert(tmp_path / "again", tmp_path / "part", mode="a")
    assert (report.rows, report.runs) == (10, 3)  # not those that were there
    with sw.StepReader.open(tmp_path / "part") as steps:
        assert steps[:]["x"].tolist() == [*range(3, 10), *range(10)]
        assert len(steps.runs) == 5


@pytest.mark.parametrize("last", [False, True])
def test_runs_by_their_ends(last: bool, tmp_path: Path) -> None:
    ends = np.random.default_rng(1).random(500) < 0.1
    ends[[0, -1]] = True, last
    x = {"x": np.arange(500)}
    source = sw.formats.arrays(x, ends=ends)
    sw.convert(source, tmp_path / "out", to="steps", part_bytes=8 * 150 + 5)
    assert_steps(tmp_path / "out", x, run_bounds(ends))
    shards = sorted((tmp_path / "out" / "shards").iterdir())
    assert [len(np.load(shard)) for shard in shards] == [150, 150, 150, 50]


WRONG: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"a": [1, 2], "b": [1]}, {}, "equal lengths, got {'a': 2, 'b': 1}"),
    ({"a": [1, 2]}, {"run_lengths": [1, 2]}, "run_lengths: expected 2 rows in all, got 3"),
    ({"a": [1, 2]}, {"run_lengths": [3, -1]}, "run_lengths: expected 2 rows"),
    ({"a": [1, 2]}, {"run_lengths": [1.0, 1.0]}, "run_lengths: expected whole numbers"),
    ({"a": [1, 2]}, {"run_lengths": 2}, "run_lengths: expected whole numbers"),
    ({"a": [1, 2]}, {"ends": [True]}, "ends: expected 2 booleans, got bool (1,)"),
    ({"a": [1, 2]}, {"ends": [1, 0]}, "ends: expected 2 booleans, got int64"),
    ({"a": [1, 2]}, {"ends": [True, True], "run_lengths": [2]}, "either run_lengths or ends"),
    ({"a": [1, 2]}, {"run_columns": {"x": [1, 2]}}, "x: expected a value for 1 runs, got 2"),
    ({"a": [1]}, {"run_columns": {"x": [[1]]}}, "x: expected numbers, texts or bytes, got list"),
    ({"a": [1]}, {"run_columns": {"x": [2**63]}}, "x: 9223372036854775808 is beyond"),
    ({"a": [1]}, {"run_columns": {"no good": [1]}}, "'no good' cannot name a run column"),
    ({"a": [1]}, {"run_columns": {"id": [1]}}, "'id' cannot name a run column"),
]


@pytest.mark.parametrize(("columns", "options", "words"), WRONG, ids=[w[2] for w in WRONG])
def test_wrong_arrays_are_refused(
    columns: dict[str, Any], options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError) as caught:
        sw.convert(sw.formats.arrays(columns, **options), tmp_path / "out", to="steps")
    assert words in str(caught.value)
    assert list(tmp_path.iterdir()) == []


# Dictionaries in files.


def write_npz(path: Path, arrays: Arrays) -> None:
    np.savez(path, allow_pickle=True, **arrays)


def write_compressed(path: Path, arrays: Arrays) -> None:
    np.savez_compressed(path, allow_pickle=True, **arrays)


def write_hdf5(path: Path, arrays: Arrays, **options: Any) -> None:
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            data = values.astype(object) if values.dtype.kind == "U" else values
            file.create_dataset(name, data=data, **(options if values.ndim else {}))


FILES: dict[str, tuple[Callable[[Path, Arrays], None], str]] = {
    "npz": (write_npz, "file.npz"),
    "npz, compressed": (write_compressed, "file.npz"),
    "hdf5": (write_hdf5, "file.hdf5"),
    "hdf5, chunks": (partial(write_hdf5, chunks=True, compression="gzip"), "file.h5"),
}
each_file = pytest.mark.parametrize(("write", "name"), FILES.values(), ids=FILES)
two_files = pytest.mark.parametrize(
    ("write", "name"), [FILES["npz"], FILES["hdf5"]], ids=["npz", "hdf5"]
)


@pytest.mark.parametrize("batch_bytes", [1, 7 * 70, 1 << 23])
@each_file
def test_a_dictionary_of_d4rl(
    write: Any, name: str, batch_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs begin and end anywhere in the batches that are read, and are longer than some."""
    monkeypatch.setattr(batches, "BATCH_BYTES", batch_bytes)
    arrays = d4rl(400)
    write(tmp_path / name, arrays)
    report = sw.convert(tmp_path / name, tmp_path / "out", to="steps")
    bounds = run_bounds(arrays["terminals"] | arrays["timeouts"])
    assert report.runs == len(bounds) > 5
    want = {name.replace("/", "."): values for name, values in arrays.items()}
    assert_steps(tmp_path / "out", want, bounds)
    totals = [arrays["rewards"][a:b].sum(dtype=np.float64) for a, b in bounds]
    with sw.StepReader.open(tmp_path / "out") as steps:
        np.testing.assert_allclose(steps.runs["total_reward"], totals)


@two_files
def test_arrays_of_other_lengths_are_left_out_and_named(
    write: Any, name: str, tmp_path: Path
) -> None:
    arrays = d4rl(rows=100)
    other: Arrays = {
        "metadata/version": np.array(3),
        "metadata/weights": np.zeros((4, 4)),
        "step_index": np.arange(100),
    }
    write(tmp_path / name, arrays | other)
    with pytest.warns(UserWarning, match="left out: ") as caught:
        sw.convert(tmp_path / name, tmp_path / "out", to="steps")
    text = " ".join(str(warning.message) for warning in caught)
    for words in ("metadata/version (one value)", "metadata/weights (4)", "step_index (a step"):
        assert words in text
    with sw.StepReader.open(tmp_path / "out") as steps:
        assert set(steps.schema) == {name.replace("/", ".") for name in arrays}


def test_what_a_flag_may_look_like(tmp_path: Path) -> None:
    ends = np.arange(20) % 4 == 3
    flags = [ends.astype(np.uint8), ends.astype("f4"), ends[:, None], ends.astype(np.int64) * -1]
    for i, flag in enumerate(flags):
        for name in ("terminals", "truncations", "dones"):
            write_npz(tmp_path / "a.npz", {"observations": np.arange(20), name: flag})
            sw.convert(tmp_path / "a.npz", tmp_path / f"{name}{i}", to="steps")
            with sw.StepReader.open(tmp_path / f"{name}{i}") as steps:
                assert steps.runs["num_steps"].tolist() == [4] * 5
                assert "total_reward" not in steps.runs.columns


def test_runs_of_steps_that_were_exported(tmp_path: Path) -> None:
    rows = np.zeros(10, [("run_id", "i4"), ("step_index", "i4"), ("x", "f4")])
    rows["run_id"] = [5] * 3 + [6] * 1 + [9] * 6
    rows["step_index"] = [0, 1, 2, 0, 0, 1, 2, 3, 4, 5]
    np.save(tmp_path / "a.npy", rows)
    sw.convert(tmp_path / "a.npy", tmp_path / "out", to="steps")
    with sw.StepReader.open(tmp_path / "out") as steps:
        assert steps.runs["num_steps"].tolist() == [3, 1, 6]


@two_files
def test_dictionaries_that_are_none(write: Any, name: str, tmp_path: Path) -> None:
    good = d4rl(rows=20)
    cases: list[tuple[Arrays, str]] = [
        ({}, "expected at least one array"),
        ({**good, "observations": np.zeros((0, 3))}, "observations: expected rows"),
        ({**good, "bad name": np.zeros(20)}, "'bad name' cannot name a field"),
        ({**good, "infos.goal": np.zeros(20)}, "expected different names"),
        ({**good, "names": np.array(["x"] * 20)}, "names"),
    ]
    for arrays, words in cases:
        write(tmp_path / name, arrays)
        with pytest.raises((FormatError, SchemaError)) as caught:
            sw.convert(tmp_path / name, tmp_path / "out", to="steps")
        assert words in str(caught.value)
        assert [path.name for path in tmp_path.iterdir()] == [name]


@each_file
def test_files_that_are_damaged(write: Any, name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    write(path, d4rl(rows=400))
    data = path.read_bytes()
    damaged = [b"", b"something else", data[:50], data[: len(data) // 2]]
    for i in range(4):  # in the middle of the data, of which archives have checksums
        changed = bytearray(data)
        changed[len(data) // 5 * (i + 1)] ^= 0x55
        damaged.append(bytes(changed))
    refused = 0
    for k, bad in enumerate(damaged):
        path.write_bytes(bad)
        problem = ""
        try:
            sw.convert(path, tmp_path / f"out{k}", to="steps")
        except (FormatError, SchemaError) as error:
            problem = str(error)
        if problem:
            assert str(path) in problem
            assert not (tmp_path / f"out{k}").exists()
            refused += 1
    assert refused == 8 if name == "file.npz" else refused >= 4  # HDF5 has no checksums
    assert not list(tmp_path.glob(".*"))


def test_memory_does_not_grow_with_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "BATCH_BYTES", 1 << 18)
    rows = 300_000  # 27 MB
    arrays = d4rl(rows)
    arrays["terminals"][:] = np.arange(rows) % 1000 == 0
    arrays["timeouts"][:] = False
    for write, name in (FILES["npz"], FILES["hdf5"]):
        write(tmp_path / name, arrays)
        tracemalloc.start()
        sw.convert(tmp_path / name, tmp_path / f"{name}.out", to="steps")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 24e6  # of which the writer holds 8 MiB before it writes, twice


@pytest.mark.parametrize(
    ("module", "call", "extra"),
    [
        ("h5py", "sw.convert(file, 'out')", "hdf5"),
        ("minari", "sw.convert('minari:some/thing-v0', 'out')", "minari"),
        ("PIL", "sw.convert(frames, 'a.gif')", "video"),
        ("av", "sw.convert(frames, 'a.mp4')", "video"),
        ("pyarrow", "sw.convert(frames, 'a.parquet')", "parquet"),
        ("array_record", "sw.convert(frames, 'a.array_record')", "arrayrecord"),
        ("array_record", "sw.stores.ArrayRecordSource('.')", "arrayrecord"),
    ],
)
def test_without_the_extra(module: str, call: str, extra: str, tmp_path: Path) -> None:
    (tmp_path / "a.hdf5").write_bytes(b"")
    script = f"""
import os, sys
import numpy as np
import stepwell as sw
file = sys.argv[1] + "/a.hdf5"
os.chdir(sys.argv[1])
frames = sw.ArraySource({{"frame": np.zeros((2, 4, 4), "u1")}})
sys.modules["{module}"] = None
try:
    {call}
except ImportError as error:
    print(error)
"""
    text = children.answer(script, tmp_path)
    assert text.endswith(f"an extra: pip install 'stepwell[{extra}]'")
    assert [path.name for path in tmp_path.iterdir()] == ["a.hdf5"]
