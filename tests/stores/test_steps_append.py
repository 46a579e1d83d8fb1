"""Step datasets that are written again: by others, after others, and interrupted."""

import sys
from itertools import count
from pathlib import Path
from shutil import copytree
from types import FrameType
from typing import Any

import numpy as np
import pytest

from stepwell import FormatError, SchemaError, StepReader, StepWriter
from stepwell.files.npy import header_bytes
from tests.contract import assert_batch
from tests.steps import (
    COLUMNS,
    LENGTHS,
    STEP,
    build,
    columns,
    fields,
    original,
    rows_of,
    rows_of_all,
    tampered,
)

# Beginning and going on.


def test_nothing_there(quick_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="a new one needs a dtype"):
        StepWriter(quick_path / "typo")
    assert list(quick_path.iterdir()) == []


def test_reopening_asks_for_the_same(quick_path: Path) -> None:
    path = quick_path / "a"
    build(path, LENGTHS[:2], shard_rows=8)
    wrongs: list[tuple[dict[str, Any], str]] = [
        ({"dtype": [("x", "f4")]}, "expected rows of"),
        ({"columns": {"moves": int}}, "no run column moves"),
        ({"columns": {"engine": int}}, "run column engine: the dataset has TEXT, got INTEGER"),
        ({"shard_rows": 9}, "shard_rows: the dataset has 8, got 9"),
        ({"shard_rows": 0}, "shard_rows: the dataset has 8, got 0"),
    ]
    for wrong, message in wrongs:
        with pytest.raises(SchemaError, match=message):
            StepWriter(path, **wrong, mode="a")
    with pytest.raises(ValueError, match="at least 1"):
        StepWriter(quick_path / "b", STEP, shard_rows=-1)
    StepWriter(path, mode="a").close()
    StepWriter(path, columns={}, mode="a").close()
    StepWriter(path, STEP, COLUMNS, mode="a", shard_rows=8).close()
    build(path)
    assert_batch(StepReader.open(path)[:], fields(rows_of_all()))


def test_a_beginning_that_was_killed(quick_path: Path) -> None:
    """An array without rows and half a database: begun again, with another dtype too."""
    path = quick_path / "a"
    path.mkdir()
    wide = np.dtype([(f"a_long_name_of_a_field_{i}", "f8") for i in range(20)])
    for left in (header_bytes(wide, 0), header_bytes(wide, 0) + b"rows", header_bytes(STEP, 0)):
        (path / "steps.npy").write_bytes(left)
        (path / "metadata.db.new").write_bytes(b"half")
        (path / "metadata.db.new-wal").write_bytes(b"half")
        build(path)
        assert_batch(StepReader.open(path)[:], fields(rows_of_all()))
        assert not list(path.glob("*.new*"))
        for file in path.iterdir():
            file.unlink()


def test_a_dataset_without_runs_is_replaced_or_gone_on_with(quick_path: Path) -> None:
    path = quick_path / "a"
    StepWriter(path, [("x", "f4")], {"s": int}, shard_rows=3).close()
    with StepWriter(path, mode="a") as writer:
        assert writer.dtype.names == ("x",)
    with pytest.raises(FileNotFoundError, match="a new dataset needs a dtype"):
        StepWriter(path)
    (path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"notes\.txt"):
        StepWriter(path, STEP, COLUMNS)
    (path / "notes.txt").unlink()
    with StepWriter(path, STEP, COLUMNS) as writer:
        writer.append(rows_of(0, 7), **columns(0))
    assert_batch(StepReader.open(path)[:], fields(rows_of(0, 7)))
    assert not (path / "shards").exists()


def test_a_folder_of_shards_that_is_a_link(quick_path: Path) -> None:
    build(quick_path / "a", LENGTHS[:4], shard_rows=8)
    (quick_path / "a" / "shards").rename(quick_path / "outside")
    (quick_path / "a" / "shards").symlink_to(quick_path / "outside")
    before = {file: file.read_bytes() for file in (quick_path / "outside").iterdir()}
    for call in (lambda: StepReader.open(quick_path / "a"), lambda: build(quick_path / "a")):
        with pytest.raises(FormatError, match="expected a folder, got a link"):
            call()
    assert {file: file.read_bytes() for file in (quick_path / "outside").iterdir()} == before


def test_an_array_without_its_database_is_not_overwritten(quick_path: Path) -> None:
    rows = rows_of_all()
    (quick_path / "a").mkdir()
    np.save(quick_path / "a" / "steps.npy", rows)
    for mode in ("x", "a"):
        with pytest.raises(FileExistsError, match=r"or an empty folder, got .* with steps\.npy"):
            StepWriter(quick_path / "a", STEP, mode=mode)
    assert np.load(quick_path / "a" / "steps.npy").tobytes() == rows.tobytes()


def test_other_files_stay(quick_path: Path) -> None:
    build(quick_path / "a", LENGTHS[:3], shard_rows=4)
    for name in ("shards/steps_backup.npy", "shards/notes.txt", "notes.txt"):
        (quick_path / "a" / name).write_text("mine")
    build(quick_path / "a", shard_rows=4)
    assert (quick_path / "a" / "shards" / "steps_backup.npy").read_text() == "mine"
    assert_batch(StepReader.open(quick_path / "a")[:], fields(rows_of_all()))


# Datasets of the original program.


def test_the_original_program_s(quick_path: Path) -> None:
    original(quick_path / "a", LENGTHS[:4])
    dataset = StepReader.open(quick_path / "a")
    assert_batch(dataset[:], fields(rows_of_all(LENGTHS[:4])))
    assert len(dataset.where("max_score BETWEEN 10 AND 20")) == 1
    assert dataset.verify().ok
    with StepWriter(quick_path / "a", STEP, mode="a") as writer:
        for run in (4, 5):
            known = {name: columns(run)[name] for name in ("max_score", "engine")}
            assert writer.append(rows_of(run, LENGTHS[run]), **known) == run
    assert dataset.refresh()
    for again in (dataset, StepReader.open(quick_path / "a", memory="map")):
        assert_batch(again[:], fields(rows_of_all()))
        assert again.verify().ok
        assert again.runs["engine"].tolist() == ["quick", "slow", None] * 2
    assert np.load(quick_path / "a" / "steps.npy").tobytes() == rows_of_all().tobytes()


@pytest.mark.parametrize("room", [0, 1])
def test_a_header_without_room(quick_path: Path, room: int) -> None:
    """Some programs leave none: the number of rows can grow only by so many digits."""
    path = quick_path / "a"
    rows = original(path, [5])
    text = header_bytes(STEP, 5)[10:].rstrip() + b" " * room + b"\n"
    header = b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text
    (path / "steps.npy").write_bytes(header + rows.tobytes())
    most = 10 ** (room + 1) - 1
    with StepWriter(path, mode="a") as writer:
        writer.append(rows_of(1, most - 5), max_score=0)
        with pytest.raises(FormatError, match=f"no room for more than {most} rows") as caught:
            writer.append(rows_of(2, 1), max_score=0)
        assert caught.value.path == str(path / "steps.npy")
        assert len(writer) == most
    assert len(np.load(path / "steps.npy")) == most
    assert StepReader.open(path).verify().ok


def test_a_header_of_another_version(quick_path: Path) -> None:
    rows = original(quick_path / "a", LENGTHS[:4])
    text = header_bytes(STEP, len(rows))[10:]
    header = b"\x93NUMPY\2\0" + len(text).to_bytes(4, "little") + text
    (quick_path / "a" / "steps.npy").write_bytes(header + rows.tobytes())
    with StepWriter(quick_path / "a", mode="a") as writer:
        writer.append(rows_of(4, 2), max_score=0)
    want = np.concatenate([rows, rows_of(4, 2)])
    assert np.load(quick_path / "a" / "steps.npy").tobytes() == want.tobytes()


def test_a_database_of_others_with_odd_names(quick_path: Path) -> None:
    original(quick_path / "a", [3])
    with tampered(quick_path / "a") as database:
        database.execute('ALTER TABLE runs ADD COLUMN "a ""quoted"" name" ANY')
    with StepWriter(quick_path / "a", mode="a") as writer:
        writer.append(rows_of(1, 2), **{"max_score": 3, 'a "quoted" name': b"any"})
    runs = StepReader.open(quick_path / "a").runs
    assert runs['a "quoted" name'].tolist() == [None, b"any"]
    assert "quoted" in repr(runs)


# Interruptions.


def test_ctrl_c_at_any_line_of_a_commit(quick_path: Path) -> None:
    """The old rows or the new ones, never some; and the next writer goes on from there."""
    found = set()
    for number in count():
        path = quick_path / str(number)
        build(path, LENGTHS[:1])
        interrupted = False
        try:
            with StepWriter(path, mode="a") as writer:
                for run in (1, 2, 3):
                    writer.append(rows_of(run, LENGTHS[run]), **columns(run))
                sys.settrace(_interrupt_at(number))
                try:
                    writer.commit()
                finally:
                    sys.settrace(None)
        except KeyboardInterrupt:
            interrupted = True
        there = len(StepReader.open(path).runs)
        found.add(there)
        assert there in ((1, 4) if interrupted else (4,))
        assert_batch(StepReader.open(path)[:], fields(rows_of_all(LENGTHS[:there])))
        assert len(np.load(path / "steps.npy")) in (7, len(StepReader.open(path)))
        build(path, LENGTHS[:5])
        assert_batch(StepReader.open(path)[:], fields(rows_of_all(LENGTHS[:5])))
        if not interrupted:
            break
    assert found == {1, 4}
    assert number > 20


def test_ctrl_c_at_any_line_of_a_new_column(quick_path: Path) -> None:
    found = set()
    build(quick_path / "a", LENGTHS[:3])
    for number in count():
        path = copytree(quick_path / "a", quick_path / str(number))
        interrupted = False
        try:
            with StepWriter(path, mode="a") as writer:
                sys.settrace(_interrupt_at(number))
                try:
                    writer.add_column("solved", int, [1, 0, 1])
                finally:
                    sys.settrace(None)
        except KeyboardInterrupt:
            interrupted = True
        with StepReader.open(path) as reader:
            there = "solved" in reader.runs.columns
            assert not there or reader.runs["solved"].tolist() == [1, 0, 1]
            assert reader.verify().ok
        found.add(there)
        if not interrupted:
            break
    assert found == {False, True}
    assert number > 20


def _interrupt_at(number: int) -> Any:
    """Raise KeyboardInterrupt before the n-th line of a commit itself or of its transaction."""
    seen = 0

    def line(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal seen
        if event == "line":
            seen += 1
            if seen > number:
                raise KeyboardInterrupt
        return line

    def call(frame: FrameType, *_: Any) -> Any:
        code = frame.f_code
        name = Path(code.co_filename).name, code.co_name
        ours = name in [
            *(("writer.py", "_commit"), ("database.py", "append")),
            *(("database.py", "add_column"), ("database.py", "remake")),
            ("database.py", "_sign_again"),
        ]
        return line if ours else None

    return call
