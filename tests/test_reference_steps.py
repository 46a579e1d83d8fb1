"""docs/formats/steps.md, its reference and the package agree, each reading what another wrote."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell import StepReader, StepWriter
from stepwell.game2048.training import RUN_COLUMNS, STEP
from stepwell.stores.steps import writer as writer_module
from tests.contract import assert_batch
from tests.reference.runs import block, breakdown_of, file_of
from tests.reference.steps import (
    Broken,
    BrokenChecksum,
    Steps,
    piece,
    place,
    read_steps,
    write_steps,
)
from tests.steps import (
    COLUMNS,
    LENGTHS,
    build,
    columns,
    fields,
    of_before,
    rows_of,
    rows_of_all,
    tampered,
)

PAGE = "steps.md"
OF_PAGE = {name: column for name, column in RUN_COLUMNS.items() if name != "has_values"}
"""Those of the page, whose dataset is older than the column."""
ARRAY = file_of(PAGE, "steps")
TYPES = {"max_score": "INTEGER NOT NULL", "engine": "TEXT", "elapsed_s": "REAL"}


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """The dataset of the page."""
    path = tmp_path / "page"
    path.mkdir()
    (path / "steps.npy").write_bytes(ARRAY)
    with closing(sqlite3.connect(path / "metadata.db")) as database:
        database.executescript(block(PAGE, "sql", "steps"))
    (path / "manifest.json").write_text(block(PAGE, "json", "steps"))
    (path / "steps.crc").write_bytes(file_of(PAGE, "checksums"))
    return path


def test_the_dataset_of_the_page(page: Path) -> None:
    steps = read_steps(page, verify=True)
    assert steps.blocks is not None
    assert steps.small is not None
    dataset = StepReader.open(page)
    assert dataset.dtype == steps.rows.dtype == STEP
    assert dataset.verify().ok
    assert_batch(dataset[:], fields(steps.rows))
    assert list(dataset.runs) == steps.runs
    assert steps.rows["ev_values"].tolist() == [[0, 0.5, 1, 0.25], [1, 0.5, 0.25, 0.75]]
    assert set(steps.types) == set(OF_PAGE)


def test_the_breakdown_is_the_array() -> None:
    at = 0
    for offset, part in breakdown_of(PAGE, "steps"):
        assert (offset, part) == (at, ARRAY[at : at + len(part)])
        at += len(part)
    assert at == len(ARRAY)


def test_the_package_writes_the_dataset_of_the_page(page: Path, tmp_path: Path) -> None:
    steps = read_steps(page)
    known = {name: steps.runs[0][name] for name in OF_PAGE}
    with StepWriter(tmp_path / "mine", STEP, OF_PAGE) as writer:
        writer.append(steps.rows, **known)
    assert (tmp_path / "mine" / "steps.npy").read_bytes() == ARRAY
    assert (tmp_path / "mine" / "steps.crc").read_bytes() == file_of(PAGE, "checksums")
    with tampered(page) as theirs, tampered(tmp_path / "mine") as mine:
        (known_id,) = theirs.execute("SELECT value FROM meta WHERE key = 'id'").fetchone()
        mine.execute("UPDATE meta SET value = ? WHERE key = 'id'", (known_id,))
        assert [*mine.iterdump()] == [*theirs.iterdump()]
    text = json.loads((tmp_path / "mine" / "manifest.json").read_text())
    wanted = json.loads(block(PAGE, "json", "steps"))
    assert list(text) == list(wanted)
    assert {**text, "created": wanted["created"]} == wanted


@pytest.mark.parametrize("before", [False, True])
def test_appending_to_the_dataset_of_the_page(page: Path, before: bool) -> None:
    """To one of before there was a steps.crc, too, which then gets one."""
    if before:
        of_before(page)
        assert read_steps(page, verify=True).small is None
        dataset = StepReader.open(page, memory="map")
        assert "there is no steps.crc" in str(dataset.verify())
        assert "compared on load and by verify" in dataset.describe().facts["checksums"]
    rows = read_steps(page).rows
    with StepWriter(page, mode="a") as writer:
        assert writer.append(rows, max_score=8, highest_tile=4) == 1
    steps = read_steps(page, verify=True)
    assert steps.rows["run_id"].tolist() == [0, 0, 1, 1]
    assert None not in (steps.blocks, steps.small)
    assert StepReader.open(page).verify().unchecked == ()


@pytest.mark.parametrize("shard_rows", [0, 1, 9, 1000])
@pytest.mark.parametrize("lengths", [[], [0], LENGTHS])
@pytest.mark.parametrize("flush_bytes", [1, 1 << 23])
def test_the_reference_reads_what_the_package_writes(
    quick_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shard_rows: int,
    lengths: list[int],
    flush_bytes: int,
) -> None:
    monkeypatch.setattr(writer_module, "_FLUSH_BYTES", flush_bytes)
    monkeypatch.setattr(writer_module, "KEPT_CHECKSUMS", 0 if flush_bytes == 1 else 1024)
    for count in sorted({0, len(lengths) // 2, len(lengths)}):
        build(quick_path / "a", lengths[:count], shard_rows=shard_rows)
    steps = read_steps(quick_path / "a", verify=True)
    assert steps.rows.tobytes() == rows_of_all(lengths).tobytes()
    assert steps.rows.dtype == rows_of_all().dtype
    assert steps.shard_rows == shard_rows
    assert (steps.blocks is None) == (not lengths)
    assert [{k: run[k] for k in COLUMNS} for run in steps.runs] == [
        columns(run) for run in range(len(lengths))
    ]


@pytest.mark.parametrize("shard_rows", [0, 1, 9, 1000])
@pytest.mark.parametrize("lengths", [[], [0], LENGTHS])
def test_the_package_reads_what_the_reference_writes(
    quick_path: Path, shard_rows: int, lengths: list[int]
) -> None:
    runs: list[dict[str, Any]] = [
        {"num_steps": length, **columns(run)} for run, length in enumerate(lengths)
    ]
    path = quick_path / "a"
    write_steps(path, Steps(rows_of_all(lengths), runs, shard_rows, types=TYPES))
    for memory in ("ram", "map", "shared"):
        dataset = StepReader.open(path, memory=memory)
        assert_batch(dataset[:], fields(rows_of_all(lengths)))
        assert dataset.verify().ok
        assert [dict(sorted(run.items())) for run in dataset.runs] == [
            dict(sorted(run.items())) for run in place(runs)
        ]
    build(path, [*lengths, 5])
    steps = read_steps(path, verify=True)
    want = np.concatenate([rows_of_all(lengths), rows_of(len(lengths), 5)])
    assert steps.rows.tobytes() == want.tobytes()
    assert steps.blocks is not None


def test_the_reference_refuses_too(quick_path: Path) -> None:
    path = quick_path / "a"
    build(path, shard_rows=9)
    data = piece(path, 3, 9).read_bytes()
    piece(path, 3, 9).write_bytes(data[:-1] + bytes([data[-1] ^ 128]))
    with pytest.raises(Broken, match="in another order"):
        read_steps(path, verify=True)
    at = len(data) - 9 * 22
    piece(path, 3, 9).write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    with pytest.raises(BrokenChecksum):
        read_steps(path, verify=True)
    piece(path, 3, 9).write_bytes(data[:-1])
    with pytest.raises(Broken, match="bytes for 9 rows"):
        read_steps(path)
