"""One rule for the values of every writer: kept exactly, or refused unless the caller casts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell import (
    RecordReader,
    RecordWriter,
    SchemaError,
    ShardReader,
    ShardWriter,
    StepReader,
    StepWriter,
)
from stepwell.stores import RowState

Write = Callable[[Path, str, Any], Any]


def steps(path: Path, dtype: str, values: Any) -> Any:
    with StepWriter(path, {"x": (dtype, (2,))}) as writer:
        writer.append({"x": values})
    return StepReader.open(path)["x"][:]


def records(path: Path, dtype: str, values: Any) -> Any:
    with RecordWriter(path, {"x": (dtype, (2,))}) as writer:
        writer.append({"x": values})
    return RecordReader.open(path)["x"][:]


def shards(path: Path, dtype: str, values: Any) -> Any:
    with ShardWriter(path, 2, dtype) as writer:
        writer.append(values)
    return ShardReader.open(path)[:]["data"]


def state(path: Path, dtype: str, values: Any) -> Any:
    with RowState(path, 2, dtype) as store:
        store.put([0], values)
        return store.get([0])


CASES: list[tuple[str, Any, bool]] = [
    ("<f4", np.array([[2**24, -(2**24)]], "i8"), True),
    ("<f4", np.array([[2**24 + 1, 0]], "i8"), False),
    ("<f4", np.array([[2**63 - 1, 0]], "i8"), False),
    ("<f4", np.array([[2**64 - 1, 0]], "u8"), False),
    ("<f4", np.array([[-(2**63), 2**62]], "i8"), True),
    ("<f4", np.array([[0.5, np.nan]]), True),
    ("<f4", np.array([[np.inf, -np.inf]]), True),
    ("<f4", np.array([[0.1, 0]]), True),
    ("<f4", np.array([[1e300, 0]]), False),
    ("<f4", np.array([[1e-300, 0]]), True),
    ("<f4", np.array([[0.1, 0]]).astype("f4"), True),
    ("<f2", np.array([[2049, 0]], "i4"), False),
    ("<f2", np.array([[-(2**31), 0]], "i4"), False),
    ("<f2", np.array([[-(2**63), 0]], "i8"), False),
    ("<f2", np.array([[0.1, 0]], "f4"), True),
    ("<f2", np.array([[70000, 0]], "f4"), False),
]


@pytest.mark.parametrize("write", [steps, records, shards, state])
@pytest.mark.parametrize(("dtype", "values", "fits"), CASES)
def test_exact_rounded_or_refused(
    quick_path: Path, write: Write, dtype: str, values: Any, fits: bool
) -> None:
    if not fits:
        with pytest.raises(SchemaError, match=r"does not fit float"):
            write(quick_path / "a", dtype, values)
        return
    got = write(quick_path / "a", dtype, values)
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, values.astype(dtype))  # floats are rounded


def test_bfloat16_is_exact_or_refused(quick_path: Path) -> None:
    np.testing.assert_array_equal(shards(quick_path / "a", "bfloat16", [[1.5, -2.0]]), [[1.5, -2]])
    for values in (np.array([[257, 0]]), np.array([[3.4e38, 0]])):
        with pytest.raises(SchemaError, match="does not fit bfloat16"):
            shards(quick_path / "b", "bfloat16", values)


@pytest.mark.parametrize("low", [np.int64(-(2**63)), np.uint64(2**63)])
def test_a_number_that_is_no_time(quick_path: Path, low: Any) -> None:
    with pytest.raises(SchemaError, match="does not fit timedelta64"):
        steps(quick_path / "a", "<m8[s]", np.array([[low, low]]))
