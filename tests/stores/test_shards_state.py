"""A vector for each row: what a dict would hold."""

import json
import threading
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from stepwell import BusyError, FormatError, RowState, SchemaError, StepwellError
from stepwell.stores.shards import state as state_module
from tests import children, scaled
from tests.contract import assert_array

IDS = st.lists(st.integers(0, 60) | st.integers(4000, 4200), max_size=12, unique=True)


@settings(max_examples=scaled(60))
@given(data=st.data())
def test_what_a_dict_would_hold(quick_path: Path, data: st.DataObject) -> None:
    path = Path(mkdtemp(dir=quick_path))
    dtype = np.dtype(data.draw(st.sampled_from(["f4", "f8", "<i2", "f2"])))
    width = data.draw(st.integers(1, 5))
    model: dict[int, Any] = {}
    state = RowState(path, width, dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            state_module, "_JOURNAL_BYTES", data.draw(st.sampled_from([100, 500, 1 << 24]))
        )
        for stamp in range(data.draw(st.integers(1, 12))):
            match data.draw(st.sampled_from(["put", "put", "put", "get", "open", "flush"])):
                case "put":
                    ids = data.draw(IDS)
                    values = np.arange(len(ids) * width).reshape(-1, width) + stamp * 7
                    state.put(ids, values.astype(dtype))
                    model.update(zip(ids, values.astype(dtype), strict=True))
                case "flush":
                    state.flush()
                case "open":
                    state.close()
                    state = RowState(path)
            ids = data.draw(IDS)
            want = np.zeros((len(ids), width), dtype)
            for i, row_id in enumerate(ids):
                want[i] = model.get(row_id, 0)
            assert_array(state.get(ids), want)
            assert state.present(ids).tolist() == [row_id in model for row_id in ids]
            assert len(state) == len(model)
    state.close()


def test_what_it_gives_is_the_callers(tmp_path: Path) -> None:
    with RowState(tmp_path, 2) as state:
        values = np.ones((2, 2), state.dtype)
        state.put([1, 5], values)
        values[...] = 9
        state.get([1])[...] = 9
        assert state.get([5, 1, 1, 0]).tolist() == [[1, 1], [1, 1], [1, 1], [0, 0]]
        state.put([], np.zeros((0, 2)))
        assert state.get([]).shape == (0, 2)


@pytest.mark.parametrize(
    ("ids", "values", "error"),
    [
        ([1, 1], np.zeros((2, 2)), ValueError),
        ([1], np.zeros((2, 2)), SchemaError),
        ([1], np.zeros((1, 3)), SchemaError),
        ([1], np.zeros(2), SchemaError),
        ([1], np.full((1, 2), 1e300), SchemaError),
        ([1], [["a", "b"]], (SchemaError, TypeError)),
        ([-1], np.zeros((1, 2)), IndexError),
        ([2**48], np.zeros((1, 2)), IndexError),
        ([2**64 - 1], np.zeros((1, 2)), IndexError),
        ([0.5], np.zeros((1, 2)), TypeError),
        ([[1]], np.zeros((1, 2)), TypeError),
        ([True], np.zeros((1, 2)), TypeError),
    ],
)
def test_what_put_refuses(tmp_path: Path, ids: Any, values: Any, error: Any) -> None:
    with RowState(tmp_path, 2, np.float32) as state:
        state.put([1], [[3, 4]])
        with pytest.raises(error):
            state.put(ids, values)
        assert state.get([1]).tolist() == [[3, 4]]
        assert len(state) == 1


def test_what_get_refuses(tmp_path: Path) -> None:
    with RowState(tmp_path, 2) as state:
        for wrong in ([-1], [2**48], [0.5], 3, [["a"]]):
            with pytest.raises((IndexError, TypeError)):
                state.get(wrong)


def test_width_and_dtype_stay(tmp_path: Path) -> None:
    RowState(tmp_path, 3, np.float64).close()
    with RowState(tmp_path) as state:
        assert (state.width, state.dtype) == (3, np.dtype("f8"))
    for width, dtype in ((4, None), (3, np.float32)):
        with pytest.raises((SchemaError, ValueError)):
            RowState(tmp_path, width, dtype)
    RowState(tmp_path, 3, np.float64).close()  # nobody holds it


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "{}", '{"width": 0, "dtype": "<f4"}'])
def test_a_description_that_is_none(tmp_path: Path, text: str) -> None:
    RowState(tmp_path, 3).close()
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(FormatError) as caught:
        RowState(tmp_path)
    assert caught.value.path == str(tmp_path / "state.json")


def test_every_byte_of_the_description(tmp_path: Path) -> None:
    RowState(tmp_path, 3, np.float32).close()
    text = (tmp_path / "state.json").read_bytes()
    for at in range(len(text)):
        (tmp_path / "state.json").write_bytes(text[:at])
        with pytest.raises(StepwellError):
            RowState(tmp_path)
    (tmp_path / "state.json").write_bytes(text)
    assert json.loads(text)["width"] == RowState(tmp_path).width == 3


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with RowState(tmp_path, 2) as state:
        with pytest.raises(BusyError):
            RowState(tmp_path, 2)
        script = "import sys, stepwell; stepwell.RowState(sys.argv[1], 2)"
        assert "BusyError" in children.python(script, tmp_path).stderr
        state.put([0], [[1, 2]])
    for call in (state.flush, lambda: state.get([0]), lambda: len(state)):
        with pytest.raises(ValueError, match="closed"):
            call()
    state.close()


def test_threads(quick_path: Path) -> None:
    """Each put is seen whole."""
    state = RowState(quick_path, 4)
    failures = []

    def work(number: int) -> None:
        try:
            for stamp in range(scaled(50)):
                ids = np.arange(number, 4000 + stamp * 100, 400)
                state.put(ids, np.full((len(ids), 4), number * 1000 + stamp))
                got = state.get(ids)
                assert (got == got[0]).all()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    state.close()
    assert failures == []
