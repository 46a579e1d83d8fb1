"""The errors: what they are, what they say, and that they travel between processes."""

import pickle
from concurrent.futures import ProcessPoolExecutor

import pytest

from stepwell import (
    ChecksumError,
    FormatError,
    SchemaError,
    StateError,
    StepwellError,
    VersionError,
    errors,
)
from tests import children


def test_hierarchy() -> None:
    # As the module's docstring draws it.
    assert {name: getattr(errors, name).__bases__ for name in errors.__all__} == {
        "StepwellError": (Exception,),
        "FormatError": (StepwellError, ValueError),
        "KindError": (FormatError,),
        "VersionError": (FormatError,),
        "ChecksumError": (FormatError,),
        "SchemaError": (StepwellError, ValueError),
        "BusyError": (StepwellError, OSError),
        "FetchError": (StepwellError, OSError),
        "StateError": (StepwellError, ValueError),
        "DeviceError": (StepwellError, RuntimeError),
    }
    assert errors.__doc__ is not None
    for name in errors.__all__:
        assert name in errors.__doc__


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (FormatError("expected A, got B"), "expected A, got B"),
        (FormatError("expected A, got B", path="x.npy"), "expected A, got B - at x.npy"),
        (
            FormatError("expected A, got B", path="x.npy", offset=0),
            "expected A, got B - at x.npy:0",
        ),
        (FormatError("expected A, got B", offset=2**40), "expected A, got B - at 1099511627776"),
        (VersionError("too new", path="x", offset=6), "too new - at x:6"),
        (ChecksumError("changed", path="x", offset=6), "changed - at x:6"),
        (SchemaError("no such field"), "no such field"),
        (StateError("other data"), "other data"),
    ],
)
def test_text(error: StepwellError, text: str) -> None:
    assert str(error) == text


@pytest.mark.parametrize("kind", [FormatError, VersionError, ChecksumError])
@pytest.mark.parametrize(("path", "offset"), [(None, None), ("a/b", None), ("a/b", 12)])
def test_pickle(kind: type[FormatError], path: str | None, offset: int | None) -> None:
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        error = kind("expected A, got B", path=path, offset=offset)
        copy = pickle.loads(pickle.dumps(error, protocol))
        assert type(copy) is kind
        assert str(copy) == str(error)
        assert (copy.path, copy.offset) == (path, offset)


def test_notes_travel_too() -> None:
    error = FormatError("expected A, got B", path="x", offset=1)
    error.add_note("in the batch of 8 rows at position 16 of epoch 0")
    copy = pickle.loads(pickle.dumps(error))
    assert copy.__notes__ == error.__notes__


def fail() -> None:
    raise ChecksumError("changed", path="x", offset=6)


def test_from_another_process(child: ProcessPoolExecutor) -> None:
    with pytest.raises(ChecksumError, match="changed - at x:6") as caught:
        child.submit(fail).result(60)
    assert (caught.value.path, caught.value.offset) == ("x", 6)


def test_other_compiled_packages_do_not_translate_our_errors() -> None:
    # DuckDB is made with nanobind as well, and has an error of its own for a lack of memory.
    script = """
import duckdb
from stepwell import _core
try:
    _core.shared_blocks().take(2**62)
except MemoryError as error:
    print(type(error).__name__)
"""
    assert children.answer(script) == "MemoryError"
