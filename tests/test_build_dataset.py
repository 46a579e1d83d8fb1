"""Runs become rows: from files and packs, in parallel, and never a wrong one."""

import hashlib
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import stepwell as sw
from stepwell import FormatError, PackReader, SchemaError, StepReader, game2048 as g
from stepwell.game2048 import Run, append_runs, build_dataset
from tests.runs import RUN_V1


def odd_run(steps: int = 40, seed: int = 0) -> Run:
    """A run that no player played: values outside [0, 1], choices that were illegal."""
    random = np.random.default_rng(seed)
    values = random.choice(
        np.array([0, 1, -0.5, 1.5, np.inf, -np.inf, 1e-9, 0.7], "f4"), (steps, 4)
    )
    return Run(
        random.integers(0, 2**64, steps, np.uint64),
        random.integers(0, 4, steps),
        2**64 - 1 - seed,
        ev_values=values,
        ev_legal=random.integers(0, 16, steps),
        start_unix_s=1_700_000_000 + seed,
        elapsed_s=1.5 * seed,
        max_score=1000 * seed,
        engine=[None, "", "odd"][seed % 3],
    )


def without_branches() -> Run:
    run = next(g.play(1, depth=1, seed=5))
    known = np.arange(len(run)) != 17
    return Run(
        run.boards,
        run.moves,
        run.final_board,
        ev_values=run.ev_values,
        ev_legal=run.ev_legal,
        has_branches=known,
    )


def long_run(steps: int) -> Run:
    one = np.ones(steps, np.uint8)
    return Run(one, one, 1, ev_values=np.full((steps, 4), 0.5), ev_legal=one)


def plain_rows(run: Run, run_id: int) -> list[tuple[Any, ...]]:
    """The rows of a run, one step after another, as docs/formats/steps.md says."""
    rows = []
    for step in range(len(run)):
        move, legal = int(run.moves[step]), int(run.ev_legal[step])
        values = []
        for branch in range(4):
            if not legal >> branch & 1:
                values.append(0.0)
            elif branch == move:
                values.append(1.0)
            else:
                values.append(min(max(float(run.ev_values[step, branch]), 0.0), 1.0))
        rows.append((int(run.boards[step]), move, legal, values, run_id, step))
    return rows


def assert_rows(dataset: Path, runs: list[Run]) -> None:
    """The dataset has exactly these runs, in this order, in its rows and in its database."""
    want = np.array(
        [tuple(row) for i, run in enumerate(runs) for row in plain_rows(run, i)], g.STEP
    )
    steps = StepReader.open(dataset)
    got = steps.take(np.arange(len(steps)))
    for name in g.STEP.names or ():
        np.testing.assert_array_equal(got[name], want[name], err_msg=name)
    ends = np.cumsum([len(run) for run in runs])
    assert steps.runs["id"].tolist() == list(range(len(runs)))
    assert steps.runs["first_step_idx"].tolist() == [0, *ends[:-1]]
    assert steps.runs["num_steps"].tolist() == [len(run) for run in runs]
    for row, run in zip(steps.runs, runs, strict=True):
        assert row["max_score"] == run.meta.max_score
        assert row["highest_tile"] == run.meta.highest_tile
        assert row["engine"] == run.meta.engine
        assert row["start_time"] == run.meta.start_unix_s
        assert row["elapsed_s"] == run.meta.elapsed_s
        assert row["final_board"] % 2**64 == run.final_board
    assert steps.verify().ok


def save_all(directory: Path, runs: list[Run]) -> Path:
    directory.mkdir(exist_ok=True)
    for i, run in enumerate(runs):
        run.save(directory / f"{i:04}.a2run2")
    return directory


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    """Played games, odd runs and an empty one: more than the 32 that are decoded at a time."""
    played = list(g.play(3, depth=1, seed=2))
    odd = [odd_run(steps=i, seed=i) for i in range(70)]
    return [odd[0], *played, *odd[1:]]


@pytest.fixture(scope="module")
def files(runs: list[Run], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_all(tmp_path_factory.mktemp("files"), runs)


@pytest.fixture(scope="module")
def pack(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pack") / "runs.a2pack"
    g.pack_runs(files, path)
    return path


Given = Callable[[Path, Path], Any]
KINDS: dict[str, Given] = {
    "directory": lambda files, pack: str(files),
    "pack path": lambda files, pack: pack,
    "reader": lambda files, pack: PackReader.open(pack),
}


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_those_of_the_format(
    kind: str, files: Path, pack: Path, runs: list[Run], tmp_path: Path
) -> None:
    calls: list[tuple[int, int]] = []
    given = KINDS[kind](files, pack)
    report = build_dataset(
        given, tmp_path / "out", progress=lambda done, all_: calls.append((done, all_))
    )
    assert (report.path, report.runs, report.skipped) == (tmp_path / "out", len(runs), [])
    assert report.steps == sum(map(len, runs))
    assert_rows(tmp_path / "out", runs)
    assert np.load(tmp_path / "out" / "steps.npy").dtype == g.STEP
    assert calls == [(32, 73), (64, 73), (73, 73)]


def test_filter_by_score(files: Path, runs: list[Run], tmp_path: Path) -> None:
    build_dataset(files, tmp_path / "out")
    steps = StepReader.open(tmp_path / "out")
    scores = np.array([run.meta.max_score for run in runs])
    for low, high in ((20_000, None), (20_000, 40_000), (2**40, None)):
        part = g.filter_by_score(steps, low, high)
        want = (scores >= low) & (scores <= (2**63 if high is None else high))
        assert part.runs["id"].tolist() == np.flatnonzero(want).tolist()


def test_sources(pack: Path, runs: list[Run], tmp_path: Path) -> None:
    part = PackReader.open(pack).where("steps BETWEEN 20 AND 60")
    wanted = [i for i, run in enumerate(runs) if 20 <= len(run) <= 60]
    assert build_dataset(part, tmp_path / "out").runs == len(wanted) == 41
    assert_rows(tmp_path / "out", [runs[i] for i in wanted])
    # Of a pack, the run's number in the whole one; of files, their names below the folder.
    sources = StepReader.open(tmp_path / "out").runs["source"].tolist()
    assert sources == [f"runs.a2pack#{i}" for i in wanted]
    save_all(tmp_path / "runs", runs[:2])
    save_all(tmp_path / "runs" / "below", runs[2:3])
    build_dataset(tmp_path / "runs", tmp_path / "more")
    sources = StepReader.open(tmp_path / "more").runs["source"].tolist()
    assert sources == ["0000.a2run2", "0001.a2run2", "below/0000.a2run2"]


# Appending.


def test_ids_continue_after_an_append(pack: Path, runs: list[Run], tmp_path: Path) -> None:
    first = [odd_run(seed=100), odd_run(seed=101)]
    build_dataset(save_all(tmp_path / "runs", first), tmp_path / "out", mode="a")
    opened = StepReader.open(tmp_path / "out")
    report = append_runs(tmp_path / "out", pack)
    assert (report.runs, report.steps) == (len(runs), sum(map(len, runs)))
    assert_rows(tmp_path / "out", first + runs)
    assert len(opened) == 80
    assert opened.refresh()
    assert len(opened) == 80 + report.steps


def test_an_append_is_all_or_nothing(files: Path, runs: list[Run], tmp_path: Path) -> None:
    build_dataset(files, tmp_path / "out")
    before = contents(tmp_path / "out")
    more = save_all(tmp_path / "more", [odd_run(), without_branches()])
    with pytest.raises(FormatError, match=r"step 17 has no branches - at 0001\.a2run2"):
        append_runs(tmp_path / "out", more)
    assert contents(tmp_path / "out") == before
    assert_rows(tmp_path / "out", runs)
    assert append_runs(tmp_path / "out", more, skip_bad=True).runs == 1
    assert_rows(tmp_path / "out", [*runs, odd_run()])


def test_there_must_be_something_to_append_to(files: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="it has to be built first"):
        append_runs(tmp_path / "out", files)
    assert list(tmp_path.iterdir()) == []
    with sw.StepWriter(tmp_path / "other", [("x", "f4")]) as writer:
        writer.append({"x": [1.0]})
    with pytest.raises(SchemaError, match="as the dataset has"):
        append_runs(tmp_path / "other", files)


def test_a_dataset_of_the_original_program_is_appended_to(files: Path, tmp_path: Path) -> None:
    """It has neither our columns nor a table of facts."""
    steps = g.to_steps(odd_run())
    steps["step_index"] = np.arange(40)
    (tmp_path / "out").mkdir()
    np.save(tmp_path / "out" / "steps.npy", steps)
    with closing(sqlite3.connect(tmp_path / "out" / "metadata.db")) as database:
        database.execute(
            "CREATE TABLE runs (id INTEGER PRIMARY KEY, first_step_idx INTEGER NOT NULL, "
            "num_steps INTEGER NOT NULL, max_score INTEGER NOT NULL, "
            "highest_tile INTEGER NOT NULL, engine TEXT, start_time INTEGER, elapsed_s REAL)"
        )
        database.execute("INSERT INTO runs VALUES (0, 0, 40, 5, 2, 'old', 0, 0.0)")
        database.commit()
    report = append_runs(tmp_path / "out", files)
    opened = StepReader.open(tmp_path / "out")
    assert len(opened.runs) == 1 + report.runs
    assert opened.runs["engine"][0] == "old"
    assert opened.verify().ok


# What cannot be rows.


def bad_files(directory: Path) -> dict[str, str]:
    """Four good runs with five bad ones between; what is said of each of the bad."""
    directory.mkdir()
    for i in (0, 2, 6):
        odd_run(seed=i).save(directory / f"{i}.a2run2")
    long_run(65_535).save(directory / "0x.a2run2")  # the longest that fits
    long_run(65_536).save(directory / "1.a2run2")
    without_branches().save(directory / "3.a2run2")
    damaged = odd_run(seed=4).to_bytes()
    (directory / "4.a2run2").write_bytes(damaged[:-9])
    (directory / "5.a2run").write_bytes(RUN_V1)
    Run([1], [0], 1, ev_values=[[0.5] * 4], ev_legal=[15], max_score=2**63).save(
        directory / "7.a2run2"
    )
    return {
        "1.a2run2": "65536 steps; a run of a step dataset has at most 65535",
        "3.a2run2": "step 17 has no branches",
        "4.a2run2": f"at {directory}/4.a2run2:",
        "5.a2run": "step 0 has no branches",
        "7.a2run2": "max_score 9223372036854775808 is beyond the numbers of SQLite",
    }


def test_bad_runs_are_skipped_by_name(tmp_path: Path) -> None:
    said = bad_files(tmp_path / "runs")
    report = build_dataset(tmp_path / "runs", tmp_path / "out", skip_bad=True)
    good = [odd_run(seed=0), long_run(65_535), odd_run(seed=2), odd_run(seed=6)]
    assert [len(run) for run in good] == StepReader.open(tmp_path / "out").runs[
        "num_steps"
    ].tolist()
    assert (report.runs, report.steps) == (4, 65_655)
    assert [name for name, _ in report.skipped] == list(said)
    for name, reason in report.skipped:
        assert said[name] in reason


def test_a_bad_run_stops_it_by_name(tmp_path: Path) -> None:
    said = bad_files(tmp_path / "all")
    for name, words in said.items():
        alone = tmp_path / name
        alone.mkdir()
        odd_run().save(alone / "0.a2run2")
        (alone / name).write_bytes((tmp_path / "all" / name).read_bytes())
        with pytest.raises(FormatError) as caught:
            build_dataset(alone, tmp_path / "out")
        assert name in str(caught.value)
        assert words.replace(f"{tmp_path}/all", str(alone)) in str(caught.value)
        assert len(StepReader.open(tmp_path / "out")) == 0


@pytest.mark.parametrize("part", [False, True])
def test_a_damaged_pack(part: bool, runs: list[Run], pack: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "runs.a2pack"
    data = bytearray(pack.read_bytes())
    at = data.index(runs[50].to_bytes())
    data[at + 40] ^= 1
    damaged.write_bytes(data)
    given = PackReader.open(damaged)
    first = 0
    if part:
        given, first = given._with(np.arange(10, len(runs))), 10
    with pytest.raises(FormatError) as caught:
        build_dataset(given, tmp_path / "out")
    assert "runs.a2pack" in str(caught.value)
    assert "entry 50" in str(caught.value)
    report = build_dataset(given, tmp_path / "out", skip_bad=True)
    assert [name for name, _ in report.skipped] == ["runs.a2pack#50"]
    assert_rows(tmp_path / "out", [run for i, run in enumerate(runs) if i >= first and i != 50])


def test_a_pack_of_other_things(tmp_path: Path) -> None:
    with sw.PackWriter(tmp_path / "mixed.a2pack") as writer:
        writer.append(odd_run().to_bytes())
        writer.append(b"something else", 16)
    report = build_dataset(tmp_path / "mixed.a2pack", tmp_path / "out", skip_bad=True)
    assert (report.runs, [name for name, _ in report.skipped]) == (1, ["mixed.a2pack#1"])


def test_nothing_that_can_be_rows(tmp_path: Path) -> None:
    save_all(tmp_path / "runs", [without_branches()])
    (tmp_path / "empty").mkdir()
    for missing in ("empty", "nowhere"):
        with pytest.raises(FileNotFoundError):
            build_dataset(tmp_path / missing, tmp_path / "out")
    wrong: list[dict[str, Any]] = [{"threads": 0}, {"shard_bytes": 31}]
    for options in wrong:
        with pytest.raises(ValueError, match="at least"):
            build_dataset(tmp_path / "runs", tmp_path / "out", **options)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "runs"]
    with pytest.raises(FormatError, match="none of 1 runs can be rows"):
        build_dataset(tmp_path / "runs", tmp_path / "out", skip_bad=True)


@pytest.mark.parametrize("there", ["dataset", "file"])
def test_what_exists_is_not_touched(there: str, files: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    if there == "dataset":
        build_dataset(files, target)
    else:
        target.write_bytes(b"mine")
    before = contents(tmp_path)
    with pytest.raises(FileExistsError, match=r"exists already|got a file"):
        build_dataset(files, target)
    assert contents(tmp_path) == before


def test_an_interrupted_build_counts_as_nothing(
    files: Path, runs: list[Run], tmp_path: Path
) -> None:
    def stop(done: int, total: int) -> None:
        if done > 40:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_dataset(files, tmp_path / "out", progress=stop)
    build_dataset(files, tmp_path / "out")
    assert_rows(tmp_path / "out", runs)


# However it is made, it is the same.


def contents(root: Path) -> dict[str, str]:
    """The sums of all files that others read; SQLite's own helpers come and go."""
    skipped = (".lock", "-wal", "-shm")
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file() and not path.name.endswith(skipped)
    }


@pytest.mark.parametrize("sharded", [False, True])
def test_threads_change_no_byte(sharded: bool, pack: Path, tmp_path: Path) -> None:
    made = []
    for threads in (1, 4):
        out = tmp_path / str(threads)
        build_dataset(pack, out, threads=threads, shard_bytes=32 * 1000 if sharded else None)
        made.append(contents(out))
        created = made[-1].pop("manifest.json")  # says when it was made
        assert created
    assert made[0] == made[1]


def load_shards(root: Path) -> list[NDArray[Any]]:
    return [np.load(path) for path in sorted((root / "shards").glob("*.npy"))]


def test_shards_have_the_same_rows(pack: Path, runs: list[Run], tmp_path: Path) -> None:
    build_dataset(pack, tmp_path / "one")
    build_dataset(pack, tmp_path / "many", shard_bytes=32 * 1000 + 31)
    shards = load_shards(tmp_path / "many")
    total = sum(map(len, runs))
    assert [len(shard) for shard in shards] == [1000] * (total // 1000) + [total % 1000]
    rows = np.load(tmp_path / "one" / "steps.npy")
    assert np.concatenate(shards).tobytes() == rows.tobytes()
    assert not (tmp_path / "many" / "steps.npy").exists()
    assert_rows(tmp_path / "many", runs)
    append_runs(tmp_path / "many", pack)
    assert_rows(tmp_path / "many", runs + runs)
    assert {len(shard) for shard in load_shards(tmp_path / "many")[:-1]} == {1000}
