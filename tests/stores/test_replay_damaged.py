"""Replay stores of which a part is not as it was: reported, and neither believed nor removed."""

import random
import shutil
import sqlite3
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import numpy as np
import pytest

from stepwell.errors import ChecksumError, FormatError, StepwellError
from stepwell.replay import ReplayReader, ReplayWriter
from stepwell.stores.replay.rows import RunFile
from tests import children
from tests.replays import change, forget_checksums, places_of, record_all

RECORDED = """
import os, sys
from stepwell.replay import ReplayWriter
from tests.replays import record
writer = ReplayWriter(sys.argv[1], "run")
for number in range(60):
    record(writer, number, terminated=number % 10 == 9)
writer.commit()
if sys.argv[2] == "closed":
    writer.close()
os._exit(0)
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two stores of 60 steps, of which one was closed."""
    root = tmp_path_factory.mktemp("recorded")
    for state in ("interrupted", "closed"):
        children.answer(RECORDED, root / state, state)
    return root


@pytest.fixture(params=["interrupted", "closed"])
def store(recorded: Path, quick_path: Path, request: pytest.FixtureRequest) -> Path:
    shutil.copytree(recorded / request.param, quick_path / "store")
    return quick_path / "store"


# HDF5's own blocks.

FLIPS = """
import signal, sys
from pathlib import Path
from stepwell.errors import FormatError
from stepwell.replay import ReplayReader, ReplayWriter
from tests.replays import camera
root, path = Path(sys.argv[1]), Path(sys.argv[1]) / "replay" / "run.h5"
whole, silent, refused = path.read_bytes(), [], 0
for number in map(int, sys.argv[2].split(",")):
    data = bytearray(whole)
    data[number >> 3] ^= 1 << (number & 7)
    path.write_bytes(data)
    print(number, flush=True)
    signal.alarm(60)  # ends the process, wherever it hangs
    with ReplayReader.open(root) as reader:
        report = reader.verify()
        # Those of an interrupted run may have been torn by its end.
        if report.ok and "HDF5: " not in str(report.unchecked):
            silent.append(number)
    try:
        ReplayWriter(root, "run", mode="a").close()
        with ReplayReader.open(root, next_observation=False) as reader:
            batch = reader.take(range(60))
    except FormatError as error:
        assert error.path == str(path), error
        refused += 1
    else:
        assert batch["reward"].tolist() == list(range(60))
        assert all((c == camera(i)).all() for i, c in enumerate(batch["observation/camera"]))
    signal.alarm(0)
print("silent", silent, "refused", refused > 0)
"""


def test_a_flipped_bit_in_the_blocks_of_hdf5(store: Path) -> None:
    """Half of them are in the way of the writer, which neither waits for ever nor copies others."""
    path = store / "replay" / "run.h5"
    file = RunFile(path)
    data = np.frombuffer(path.read_bytes(), np.uint8).copy()
    data[: file._directory.base] = 0
    for name, entry in file._directory.datasets.items():
        for offset, size in places_of(path, [name])[name][:: entry.chunk_rows]:
            data[offset : offset + size * entry.chunk_rows] = 0
    file.close()
    draw = random.Random(5)
    flips = [draw.choice(np.flatnonzero(data)) * 8 + draw.randrange(8) for _ in range(16)]
    done = children.python(FLIPS, store, ",".join(map(str, flips)))
    assert done.stdout.splitlines()[-1:] == ["silent [] refused True"], done


# The database.


def read(root: Path) -> None:
    """Everything that a reader reads."""
    with ReplayReader.open(root) as reader:
        reader.take(range(len(reader)))
        for episode in reader.episodes:
            reader.episode(episode.episode_id)
        assert len(reader.runs["agent_id"]) == len(reader.episodes)


@pytest.mark.parametrize(
    "changed",
    [
        *("steps SET info = '{\"number\": 8}'", "steps SET timestamp = 'now'"),
        *("steps SET agent_id = 'other'", "steps SET info = NULL"),
        *("steps SET step_index = 99", "steps SET run_id = 'other'"),
        *("episodes SET agent_id = 'b'", "episodes SET dropped = 1", "episodes SET number = 7"),
        *("episodes SET final_obs_ref = NULL", "episodes SET started_at = ''"),
        *("episodes SET checksum = -1", "runs SET dropped = 3", "runs SET state = 'closed '"),
        *("runs SET channels = replace(channels, '[3]', '[3, 1]')", "runs SET created_at = 'x'"),
    ],
)
def test_a_row_that_was_changed(quick_path: Path, changed: str) -> None:
    with ReplayWriter(quick_path, "run") as writer:
        for number in range(6):
            writer.record_step(
                observation=np.zeros(3), reward=number, info={"number": 7}, agent_id="a"
            )
            if number == 2:
                writer.end_episode(observation=np.ones(3), agent_id="a")
    read(quick_path)
    one = "step_index = 1" if changed.startswith("steps") else "rowid = 1"
    change(quick_path, f"UPDATE {changed} WHERE {one}", checksums=True)
    with pytest.raises(FormatError):
        read(quick_path)
    try:
        with ReplayReader.open(quick_path) as reader:
            problems = reader.verify().problems
    except FormatError as error:
        problems = (error,)
    assert any(isinstance(p, ChecksumError) or "steps, got" in str(p) for p in problems), problems


def test_a_step_that_is_missing(quick_path: Path) -> None:
    record_all(quick_path, "run", range(20))
    change(quick_path, "DELETE FROM steps WHERE step_index = 9")
    wrong = pytest.raises(FormatError, match="run-ep0001: expected 10 steps, got 9")
    with ReplayReader.open(quick_path) as reader, wrong:
        reader.episode("run-ep0001")


@pytest.mark.parametrize(
    "changed",
    [
        "channels = replace(channels, '[15, 20, 4]', '[15, 80]')",
        "channels = replace(channels, '<f4', '<i4')",
        "channels = '[]'",
        "rows = replace(rows, 'observations/camera', 'observations/cameras')",
    ],
)
def test_the_file_is_believed_over_the_database(quick_path: Path, changed: str) -> None:
    """Of before there were checksums there."""
    record_all(quick_path, "run", range(20))
    with ReplayReader.open(quick_path) as reader:
        want = reader.take([3, 7])
    change(quick_path, f"UPDATE runs SET {changed}")
    with ReplayReader.open(quick_path) as reader:
        assert not reader.verify().ok
        try:
            got = reader.take([3, 7])
        except FormatError:
            return
    assert {n: a.dtype for n, a in got.items()} == {n: a.dtype for n, a in want.items()}
    assert all((got[name] == want[name]).all() for name in want)


def test_a_database_without_checksums(store: Path) -> None:
    """It is read, gone on with, and known for what it is."""
    with closing(sqlite3.connect(store / "telemetry" / "telemetry.sqlite")) as database:
        forget_checksums(database)
        database.commit()
    expected = {"1 of the runs": 1, "6 of the episodes": 6, "60 of the steps": 60}

    def unchecked() -> list[str]:
        with ReplayReader.open(store) as reader:
            report = reader.verify()
        assert report.ok, str(report)
        return [text.partition(", which")[0] for text in report.unchecked]

    read(store)
    assert unchecked() == list(expected)
    record_all(store, "run", range(60, 70))
    assert unchecked() == list(expected)[1:]  # the run's own row was written again


# What a writer cannot account for.


def without_log(root: Path) -> None:
    """The database forgets the commits that are still in its log."""
    for name in ("-wal", "-shm"):
        Path(f"{root}/telemetry/telemetry.sqlite{name}").unlink(missing_ok=True)


FORGETFUL = """
import os, shutil, sys
from stepwell.replay import ReplayWriter
from tests.replays import record
for number in range(3):
    if number < 2:
        writer = ReplayWriter(sys.argv[1], "run", mode="a")
    for i in range(10):
        record(writer, 10 * number + i, terminated=i == 9)
    writer.commit()
    if not number:
        writer.close()
os._exit(0)
"""


@pytest.mark.parametrize("checksums", [True, False])
@pytest.mark.parametrize(
    "changed",
    [
        "rows = '{}'",
        "rows = '{}', steps = 0, written = 0, episodes = 0",
        "rows = '{}', channels = '[]', steps = 0, written = 0, episodes = 0, enqueued = 0",
        "steps = 50, written = 50",
        "rows = replace(rows, '\"frames\": 20', '\"frames\": 10')",
        "rows = replace(rows, '\"checksums/frames\": 20', '\"checksums/frames\": 10')",
        "rows = replace(rows, '\"episodes/starts\": 6', '\"episodes/starts\": 5')",
        "rows = replace(rows, '\"frames\": 20, ', ''), channels = '[]'",
        "rows = replace(rows, '\"steps\": 60', '\"steps\": 50')",
    ],
)
def test_a_database_that_knows_less_than_the_file(
    store: Path, changed: str, checksums: bool
) -> None:
    path = store / "replay" / "run.h5"
    before = path.read_bytes()
    change(store, f"UPDATE runs SET {changed}", checksums=checksums)
    with suppress(FormatError), ReplayReader.open(store) as reader:
        assert not reader.verify().ok
    with pytest.raises(FormatError, match="expected"):
        ReplayWriter(store, "run", mode="a")
    assert path.read_bytes() == before


def test_a_database_that_has_lost_commits(quick_path: Path) -> None:
    """The last two of three were in its log. The first was moved into the file at the close."""
    children.answer(FORGETFUL, quick_path)
    without_log(quick_path)
    path = quick_path / "replay" / "run.h5"
    before = path.read_bytes()
    for call in (ReplayReader.open, lambda path: ReplayWriter(path, "run", mode="a")):
        with pytest.raises(FormatError, match=r"run 'run': expected at least .* rows, as its file"):
            call(quick_path)
    assert path.read_bytes() == before


ODD = [None, -1, 2**63 - 1, 1e308, "", "x", "h5://run/observations/99999", b"\xff\xfe", "[]", "{}"]


def test_damaged_databases_raise_our_own_errors(recorded: Path, quick_path: Path) -> None:
    """Odd values of before there were checksums, and flipped bits."""
    draw, tables = random.Random(3), dict[str, list[str]]()
    with closing(sqlite3.connect(recorded / "closed" / "telemetry/telemetry.sqlite")) as database:
        for table in ("runs", "episodes", "steps"):
            found = database.execute(f"PRAGMA table_info({table})")
            tables[table] = [name for _, name, *_ in found if name != "checksum"]
    seen: list[tuple[int, str]] = []
    for number in range(60):
        root = quick_path / str(number)
        shutil.copytree(recorded / "closed", root)
        if number % 3:
            table = draw.choice(list(tables))
            one = "step_index = 3" if table == "steps" else "rowid = 1"
            sql = f"UPDATE {table} SET {draw.choice(tables[table])} = ? WHERE {one}"
            with suppress(sqlite3.IntegrityError):
                change(root, sql, draw.choice(ODD))
        else:
            path = root / "telemetry" / "telemetry.sqlite"
            data = bytearray(path.read_bytes())
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
            path.write_bytes(data)
        with ExitStack() as stack:
            try:
                reader = stack.enter_context(ReplayReader.open(root))
                reader.verify()
                reader.describe()
                read(root)
                ReplayWriter(root, "run", mode="a").close()
            except (StepwellError, FileNotFoundError) as error:
                seen.append((number, str(error)))
    assert len(seen) > 15
    assert [(number, text) for number, text in seen if f"{quick_path}/{number}/" not in text] == []
