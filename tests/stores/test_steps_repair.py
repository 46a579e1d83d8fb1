"""Step datasets whose database knows less than the rows: refused, and repaired from the rows."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell import BusyError, FormatError, StepReader, StepWriter
from stepwell.files.npy import header_bytes
from stepwell.stores.steps.repair import repair
from tests.children import in_fork
from tests.contract import assert_batch
from tests.steps import COLUMNS, STEP, build, columns, fields, rows_of, rows_of_all, tampered
from tests.test_cli import stepwell
from tests.writer_kit import unchanged

LENGTHS = [7, 1, 0, 30, 12, 20]
PLAIN = np.dtype([("x", "<i8")])
LOST = r"expected \d+ rows.*, as .* states, got .*`stepwell repair` rebuilds"


def killed(path: Path, shard_rows: int | None = None, lengths: Sequence[int] = LENGTHS) -> Path:
    """A dataset whose writer committed each run and was killed: the log has them all."""

    def work() -> None:
        writer = StepWriter(path, STEP, COLUMNS, shard_rows=shard_rows)
        for run, length in enumerate(lengths):
            writer.append(rows_of(run, length), **columns(run))
            writer.commit()
        kept.append(writer)

    kept: list[Any] = []
    in_fork(work)
    assert (path / "metadata.db-wal").stat().st_size
    return path


def damage(path: Path, harm: str) -> None:
    log = path / "metadata.db-wal"
    (path / "metadata.db-shm").unlink()
    if harm == "gone":
        log.unlink()
        return
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)


@pytest.mark.parametrize("harm", ["flipped", "gone"])
@pytest.mark.parametrize("shard_rows", [None, 8, 1000])
def test_nobody_takes_what_is_left_for_the_whole(
    quick_path: Path, harm: str, shard_rows: int | None
) -> None:
    path = killed(quick_path / "a", shard_rows)
    damage(path, harm)
    rows = b"".join(file.read_bytes() for file in sorted(path.rglob("*.npy")))
    for memory in ("ram", "map", "shared"):
        with pytest.raises(FormatError, match=LOST):
            StepReader.open(path, memory=memory)
    with pytest.raises(FormatError, match=LOST):
        StepWriter(path, mode="a")
    with pytest.raises(FileExistsError, match="exists already"):
        StepWriter(path, STEP)
    assert rows == b"".join(file.read_bytes() for file in sorted(path.rglob("*.npy")))


@pytest.mark.parametrize("harm", ["flipped", "gone"])
@pytest.mark.parametrize("shard_rows", [None, 8, 1000])
def test_what_the_rows_hold_is_rebuilt(quick_path: Path, harm: str, shard_rows: int | None) -> None:
    path = killed(quick_path / "a", shard_rows)
    damage(path, harm)
    done = repair(path)
    with StepReader.open(path) as dataset:
        assert_batch(dataset[:], fields(rows_of_all(LENGTHS)))
        assert dataset.verify().ok
        assert dataset.runs["id"].tolist() == [0, 1, 3, 4, 5] or harm == "flipped"
        kept = len(dataset.runs) - done.runs
        for run in list(dataset.runs)[:kept]:
            assert {name: run[name] for name in COLUMNS} == columns(run["id"])
        for run in list(dataset.runs)[kept:]:
            assert run["num_steps"] == LENGTHS[run["id"]]
            assert {run[name] for name in COLUMNS} == {None}
    assert done.kept[0] == str(path / "metadata.db.before-repair")
    assert Path(done.kept[0]).stat().st_size
    with StepWriter(path, mode="a") as writer:
        assert writer.append(rows_of(6, 4)) == 6
    assert_batch(StepReader.open(path)[:], fields(rows_of_all([*LENGTHS, 4])))
    with unchanged(path):
        assert repair(path).did == ()


def test_a_database_that_is_gone(quick_path: Path) -> None:
    for shard_rows in (None, 8):
        path = quick_path / str(shard_rows)
        build(path, LENGTHS, shard_rows=shard_rows)
        for file in path.glob("metadata.db*"):
            file.unlink()
        assert repair(path).runs == 5
        with StepReader.open(path) as dataset:
            assert_batch(dataset[:], fields(rows_of_all(LENGTHS)))
            assert dataset.runs.columns == ["id", "first_step_idx", "num_steps"]
            assert dataset.verify().ok


def test_a_database_that_cannot_be_read(quick_path: Path) -> None:
    build(quick_path / "a", LENGTHS)
    (quick_path / "a" / "metadata.db").write_bytes(b"hello")
    assert repair(quick_path / "a").runs == 5
    assert_batch(StepReader.open(quick_path / "a")[:], fields(rows_of_all(LENGTHS)))
    assert (quick_path / "a" / "metadata.db.before-repair").read_bytes() == b"hello"


@pytest.mark.parametrize("names", [["run_id"], ["step_index"], []])
def test_rows_that_know_less(quick_path: Path, names: list[str]) -> None:
    path, dtype = quick_path / "a", np.dtype([*PLAIN.descr, *((name, "<u4") for name in names)])
    with StepWriter(path, dtype, {"s": int}) as writer:
        for length in (3, 4, 5):
            writer.append({"x": np.arange(length)}, s=length)
    with tampered(path) as database:
        database.execute("DELETE FROM runs WHERE id > 0")
        database.execute("UPDATE meta SET value = '3' WHERE key = 'rows'")
    if not names:
        with unchanged(path), pytest.raises(FormatError, match=r"rows 3 to 11 .*as_one_run"):
            repair(path)
    done = repair(path, as_one_run=not names)
    with StepReader.open(path) as dataset:
        assert dataset.runs.counts.tolist() == ([3, 4, 5] if names else [3, 9])
        assert dataset.runs["s"].tolist() == [3, None, None][: len(dataset.runs)]
        assert dataset.verify().ok
        assert dataset[:]["x"].tolist() == [0, 1, 2, 0, 1, 2, 3, 0, 1, 2, 3, 4]
    assert "s" in done.lost


def test_a_header_that_states_more_than_there_is(quick_path: Path) -> None:
    path = quick_path / "a"
    build(path, LENGTHS)
    with (path / "steps.npy").open("r+b") as file:
        file.write(header_bytes(STEP, 99))
    with pytest.raises(FormatError, match="repair"):
        StepReader.open(path)
    assert repair(path).rows == 0
    assert np.load(path / "steps.npy").tobytes() == rows_of_all(LENGTHS).tobytes()
    assert len(StepReader.open(path).runs) == len(LENGTHS)


def test_nothing_is_repaired_beside_a_writer(quick_path: Path) -> None:
    build(quick_path / "a", LENGTHS)
    with StepWriter(quick_path / "a", mode="a"), pytest.raises(BusyError):
        repair(quick_path / "a")


def test_the_verb(quick_path: Path) -> None:
    path = killed(quick_path / "a")
    damage(path, "gone")
    assert "stepwell repair" in stepwell("verify", path).stderr
    done = stepwell("repair", path)
    assert done.returncode == 0, done.stderr
    for text in ("rows 0 to 69", "metadata.db.before-repair", "max_score"):
        assert text in done.stdout
    assert stepwell("verify", path).returncode == 0
    assert "nothing to repair" in stepwell("repair", path).stdout
    np.save(quick_path / "c.npy", np.arange(3))
    done = stepwell("repair", quick_path / "c.npy")
    assert (done.returncode, done.stdout) == (2, "")
    assert "repair rebuilds step datasets only" in done.stderr
