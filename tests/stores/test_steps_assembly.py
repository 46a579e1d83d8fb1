"""Step datasets whose rows several processes write: the files are those of one writer."""

import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import stepwell as sw
from stepwell import _core
from stepwell.errors import FormatError, SchemaError
from stepwell.files.checked import joined
from stepwell.stores.steps import RunColumn, assembly

DTYPES: list[np.dtype[Any]] = [
    np.dtype([("a", "<u4"), ("run_id", "<u4"), ("step_index", "<u2")]),
    np.dtype([("a", "<u1", (37,))]),
    np.dtype([("a", "<f8", (640,))]),  # more than a checksum's block
]
COLUMNS = {"score": RunColumn(int), "name": RunColumn(str, optional=True)}


def run_rows(dtype: np.dtype[Any], count: int, seed: int) -> Any:
    data = np.random.default_rng(seed).integers(0, 256, count * dtype.itemsize, np.uint8)
    return data.view(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: f"{dtype.itemsize}")
@pytest.mark.parametrize(("shard_rows", "part_bytes"), [(0, 1), (0, 9_000), (500, 1 << 20)])
def test_files_are_those_of_one_writer(
    tmp_path: Path, dtype: np.dtype[Any], shard_rows: int, part_bytes: int
) -> None:
    root, random, lengths = tmp_path, Random(dtype.itemsize), [700, 0, 1, 333, 650]
    runs = [run_rows(dtype, count, seed) for seed, count in enumerate(lengths)]
    known = [{"score": k, "name": None if k % 2 else f"run {k}"} for k in range(len(runs))]
    with sw.StepWriter(root / "one", dtype, COLUMNS, shard_rows=shard_rows) as writer:
        for rows, columns in zip(runs, known, strict=True):
            writer.append(rows, **columns)
    with sw.StepReader.open(root / "one") as one:
        batch = one.take(np.arange(len(one)))
        whole = np.empty(len(one), dtype)
        for name in one.schema:
            whole[name] = batch[name]
        want = one.query("SELECT * FROM runs")._rows
    made = root / "made"
    made.mkdir()
    assembly.make_files(made, dtype, len(whole), shard_rows)
    assert assembly.has_files(made, dtype, len(whole), shard_rows)
    assert not assembly.has_files(made, dtype, len(whole) + 1, shard_rows)
    parts = assembly.cut(len(whole), dtype.itemsize, shard_rows, part_bytes)
    assert [row for part in parts for row in part] == list(range(len(whole)))
    checksums = {}
    for part in random.sample(parts, len(parts)):
        writing = assembly.PartRows(made, dtype, shard_rows, part.start)
        middle = random.choice(part)
        writing.write(whole[part.start : middle])
        writing.write(whole[middle : part.stop])
        checksums[part] = json.loads(json.dumps(writing.finish()))
        writing.close()
    rows_of = assembly.runs_of(COLUMNS, np.array(lengths), known)
    in_order = [checksums[part] for part in parts]
    assembly.make_dataset(made, dtype, shard_rows, COLUMNS, rows_of, in_order)
    for path in (root / "one").rglob("*"):
        there = made / path.relative_to(root / "one")
        if path.suffix in (".npy", ".crc"):
            assert there.read_bytes() == path.read_bytes(), there
    one_about, made_about = (
        json.loads((each / "manifest.json").read_text()) for each in (root / "one", made)
    )
    assert {**one_about, "created": 0} == {**made_about, "created": 0}
    with sw.StepReader.open(made) as found:
        assert found.verify().problems == ()
        assert found.query("SELECT * FROM runs")._rows == want
    with sw.StepWriter(made, mode="a") as writer:  # which looks at all of it
        writer.append(runs[0], score=9)
    with sw.StepReader.open(made) as found:
        assert found.verify().problems == ()
        assert len(found) == len(whole) + lengths[0]


def test_missing_parts_and_wrong_runs_are_refused(tmp_path: Path) -> None:
    dtype = DTYPES[0]
    assembly.make_files(tmp_path, dtype, 10, 0)
    runs = assembly.runs_of(COLUMNS, np.array([10]), [{"score": 1}])
    with pytest.raises(FormatError, match="expected checksums of 100 bytes, got 0"):
        assembly.make_dataset(tmp_path, dtype, 0, COLUMNS, runs, [])
    with pytest.raises(SchemaError, match="run 1: run column score: expected a value, got none"):
        assembly.runs_of(COLUMNS, np.array([1, 2]), [{"score": 1}, {}])
    with pytest.raises(SchemaError, match="expected step_index up to 65535, got 65536"):
        assembly.check_filled(dtype, np.array([1, 65537]))
    short = tmp_path / "steps.npy"
    short.write_bytes(short.read_bytes()[:-1])
    assert not assembly.has_files(tmp_path, dtype, 10, 0)


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_checksums_of_pieces_are_joined(first: bytes, second: bytes) -> None:
    one, other, both = (
        _core.crc32c(np.frombuffer(data, np.uint8)) for data in (first, second, first + second)
    )
    assert joined(one, other, len(second)) == both
