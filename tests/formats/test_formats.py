"""Whatever a format or a store can hold goes out and comes back; what it cannot is a sentence."""

import gc
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import stepwell as sw
from stepwell import SchemaError, batches
from stepwell.formats import FORMATS
from stepwell.formats.npz import NpzSource
from stepwell.kinds import MADE
from stepwell.stores import STORES
from tests import ROOT, scaled
from tests.formats.rows import Given, Values, assert_same, contents, rows

PLAIN = ["?", "i1", "<i2", "<i4", "<i8", "u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8"]
EVERY = ("fixed", "ragged", "str", "bytes")
STEP_NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9_.-]{0,8}", fullmatch=True).filter(
    lambda name: name not in ("run_id", "step_index")
)

TARGETS: dict[str, tuple[str, dict[str, Any], st.SearchStrategy[Values]]] = {
    "npy": ("out.npy", {}, rows([*PLAIN, ">f8", "c8"])),
    "npz": ("out.npz", {}, rows([*PLAIN, ">i4", "c16"], EVERY)),
    "parquet": ("out.parquet", {}, rows(PLAIN, EVERY)),
    "parquet folder": ("out", {"to": "parquet", "part_bytes": 300}, rows(PLAIN, EVERY)),
    "arrow": ("out.arrow", {}, rows(PLAIN, EVERY)),
    "safetensors": ("out.safetensors", {}, rows(PLAIN)),
    "arrayrecord": (
        "out.array_record",
        {"part_bytes": 100},
        rows([*PLAIN, ">i4"], ("fixed", "bytes"), most_fields=1, names=st.just("data")),
    ),
    "jsonl": ("out.jsonl", {}, rows(PLAIN, ("fixed", "ragged", "str"))),
    "records": ("out", {"to": "records"}, rows([*PLAIN, ">i4", "c16"], EVERY)),
    "shards": (
        "out",
        {"to": "shards", "part_bytes": 64},
        st.integers(1, 5).flatmap(
            lambda n: st.sampled_from(["<f2", "<f4"]).map(
                lambda dtype: {"data": np.arange(7 * n).reshape(7, n).astype(dtype)}
            )
        ),
    ),
    "steps": ("out", {"to": "steps"}, rows([*PLAIN, "c16"], names=STEP_NAMES)),
}


@pytest.fixture(params=[batches.BATCH_BYTES, 100])
def batch_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "BATCH_BYTES", request.param)


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=scaled(30, smallest=10))
@given(data=st.data())
def test_there_and_back(
    target: str, data: st.DataObject, quick_path: Path, batch_bytes: None
) -> None:
    name, options, values = TARGETS[target]
    given_values = data.draw(values)
    for path in quick_path.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    report = sw.convert(Given(given_values), quick_path / name, **options)
    count = len(next(iter(given_values.values())))
    assert (report.rows, report.resumed_at) == (count, 0)
    # Through a record store, which has every kind of field, and gives them their names again.
    sw.convert(quick_path / name, quick_path / "again", to="records")
    sw.convert(quick_path / "again", quick_path / "back.npz")
    with NpzSource(quick_path / "back.npz") as back:
        got = contents(back)
    if target == "steps":
        got = {n: v for n, v in got.items() if n not in ("run_id", "step_index")}
    if target == "npy" and len(got) == 1:  # a plain array has no name
        given_values = {"data": next(iter(given_values.values()))}
    if target == "jsonl":  # which has lists
        assert plain(got) == plain(given_values)
    else:
        assert_same(got, given_values)


def plain(values: Values) -> Values:
    return {
        name: [v.tolist() if isinstance(v, np.ndarray | np.generic) else v for v in column]
        for name, column in values.items()
    }


# A file without lines says nothing of its fields.
@pytest.mark.parametrize("target", sorted(TARGETS.keys() - {"shards", "steps", "jsonl"}))
def test_no_rows(target: str, tmp_path: Path) -> None:
    name, options, _ = TARGETS[target]
    nothing: Values = {"data": np.zeros((0, 3), "f4")}
    sw.convert(Given(nothing), tmp_path / name, **options)
    sw.convert(tmp_path / name, tmp_path / "again", to="records")
    assert_same(contents(tmp_path / "again"), nothing)


@pytest.mark.parametrize("target", sorted(TARGETS.keys() - {"records", "shards", "steps"}))
def test_a_source_that_is_dropped_closes_its_file(target: str, tmp_path: Path) -> None:
    name, options, _ = TARGETS[target]
    sw.convert(Given({"data": np.arange(3000.0)}), tmp_path / name, **options)

    def opened() -> list[str]:
        found = [os.path.realpath(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")]
        return [each for each in found if each.startswith(str(tmp_path))]

    gc.disable()  # nothing is to wait for a collection
    try:
        source = sw.open(tmp_path / name)
        source.take([1])
        del source
        assert opened() == []
    finally:
        gc.enable()


REFUSED: list[tuple[str, Values, str]] = [
    ("out.npy", {"t": ["a"]}, "'t' is str: a .npy file has rows of one size; choose another"),
    ("out.npy", {"t": [np.zeros(1, "i4")]}, "'t' is int32[*]"),
    ("out.npz", {"a": [b""], "a.offsets": np.zeros(1)}, "'a.offsets' would be there twice"),
    ("out.parquet", {"z": np.zeros(1, "c16")}, "'z': Arrow has no type for complex128"),
    ("out.arrow", {"s": np.array([b"a"])}, "'s': Arrow has no type for |S1"),
    ("out.arrow", {"s": np.zeros((1, 0))}, "'s': Arrow has no type for float64[0]"),
    ("out.safetensors", {"t": ["a"]}, "'t' is str: a tensor has rows of one size"),
    ("out.safetensors", {"z": np.zeros(1, "c16")}, "'z': safetensors has no type for complex128"),
    ("out.array_record", {"a": np.zeros(1), "b": np.zeros(1)}, "one field; choose one of a, b"),
    ("out.array_record", {"a": [np.zeros(1, "i4")]}, "'a' is int32[*]: expected bytes, text or"),
    ("out.jsonl", {"b": [b"x"]}, "'b': JSON has no type for bytes"),
    ("out.jsonl", {"x": np.zeros(1, "g")}, "'x': JSON has no type for float128"),
    ("out.jsonl", {"x": np.array([1, np.nan])}, "'x', row 1: JSON has no nan"),
    ("out.gif", {"x": np.zeros(1)}, "there are no frames in x (float64)"),
    ("steps", {"t": ["a"]}, "'t' is str: a step dataset has rows of one size"),
    ("steps", {"s": np.array([b"a"])}, "s: expected numbers, got |S1"),
    ("steps", {"a b": np.zeros(1)}, "'a b' cannot name a field"),
    (
        "steps",
        {"a/b": np.zeros(1), "a.b": np.zeros(1)},
        "different names, got ['a/b', 'a.b']",
    ),
    ("steps", {"a": np.zeros(0)}, "expected at least one row"),
    ("shards", {"a": np.zeros((2, 2)), "b": np.zeros(2)}, "one field; choose one of a, b"),
    ("shards", {"a": np.zeros((2, 2), int)}, "'a' is int64[2]: shards have rows of floats"),
    ("shards", {"a": np.zeros((0, 2))}, "'a' has no rows"),
    ("records", {"a": np.zeros((2, 0))}, "'a': a record of float64[0] has no bytes"),
    ("records", {"a": np.zeros(2, [("b", [("c", "i4")])])}, "'a': expected plain numbers"),
    ("folder", {"x": np.zeros(2, int)}, "expected a field 'data' of bytes, got x"),
    ("minari:some/thing-v0", {"x": np.zeros(2)}, "there are no observations in x"),
]


@pytest.mark.parametrize(("target", "values", "text"), REFUSED, ids=[r[2] for r in REFUSED])
def test_what_a_target_cannot_hold(target: str, values: Values, text: str, tmp_path: Path) -> None:
    where = target if ":" in target else tmp_path / target
    to = target if target in ("steps", "shards", "records", "folder") else None
    with pytest.raises(SchemaError) as caught:
        sw.convert(Given(values), where, to=to)
    assert text in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def table_of(heading: str) -> dict[str, list[str]]:
    """A table of docs/converting.md: the cells of each line by its first one."""
    page = (ROOT / "docs" / "converting.md").read_text().partition(f"## {heading}\n")[2]
    lines = re.findall(r"^\| `(\w+)` \|(.*)\|$", page.partition("\n## ")[0], re.MULTILINE)
    return {name: [cell.strip() for cell in cells.split("|")] for name, cells in lines}


def test_the_page_lists_the_formats() -> None:
    known = {store.kind: ["yes", "yes" if store.kind in MADE else "no"] for store in STORES}
    for each in FORMATS:
        read = "yes" if each.reader or each.name in known else "no"
        known[each.name] = [read, "yes" if each.file_writer or each.part_writer else "no"]
    known |= {"runs": ["yes", "no"], "telemetry": ["to `replay` only", "no"]}
    for store, source in (("pack", "runs"), ("replay", "telemetry")):
        known[store] = ["yes", f"of `{source}` only"]
    listed = table_of("Formats")
    assert {name: cells[1:] for name, cells in listed.items()} == known


def test_the_page_lists_the_types(tmp_path: Path) -> None:
    listed = table_of("Types")
    special = {"folder", "minari", "video"}
    written = {f.name for f in FORMATS if f.file_writer or f.part_writer} - special
    assert set(listed) == written | set(MADE)
    number: Values = {"data": np.zeros((3, 2), "i4")}
    kinds: list[Values] = [
        *(number, {"data": [np.zeros(1, "i4")] * 3}, {"data": ["a"] * 3}, {"data": [b"a"] * 3}),
        number | {"more": np.ones(3)},
    ]
    for name, cells in listed.items():
        suffix = next((f.suffixes[0] for f in FORMATS if f.name == name and f.suffixes), "")
        for k, (values, cell) in enumerate(zip(kinds, cells, strict=True)):
            target = tmp_path / f"{name}{k}{suffix}"
            if cell == "yes":
                assert sw.convert(Given(values), target, to=name).rows == 3
            else:
                with pytest.raises(SchemaError):
                    sw.convert(Given(values), target, to=name)


@pytest.mark.parametrize("target", ["npz", "parquet", "arrow", "safetensors", "jsonl"])
def test_a_file_of_a_format_is_a_store(target: str, tmp_path: Path) -> None:
    path = tmp_path / TARGETS[target][0]
    sw.convert(Given({"x": np.arange(1000), "y": np.ones((1000, 3), "f4")}), path)
    with sw.open(path) as store:
        about, report = store.describe(), store.verify()
        assert (about.kind, about.rows, about.bytes > 0) == (target, 1000, True)
        assert report.ok
        assert "1,000 rows" in report.checked[1]
        for call in (store.where, store.query):
            with pytest.raises(ValueError, match=f"out.{target} is .*no runs"):
                call("x > 9")
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 2])
        assert not store.verify().ok
        assert store.verify(quick=True).checked == ("the header",)
    with pytest.raises(ValueError, match="closed: "):
        store.describe()
