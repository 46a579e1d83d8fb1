"""Games become training rows: from files and packs, and never a wrong one."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell as sw
from stepwell import FormatError, PackReader, SchemaError, StepReader, game2048 as g
from stepwell.game2048 import GameSteps, Run
from tests.contract import Expected, SourceContract, assert_array
from tests.reference import runs as rules
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
        if not run.has_branches[step]:
            legal = rules.legal(int(run.boards[step]))
        values = []
        for branch in range(4):
            if not legal >> branch & 1:
                values.append(0.0)
            elif not run.has_branches[step]:
                values.append(np.nan)
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
        assert row["has_values"] == run.has_branches.all()
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


class TestSource(SourceContract):
    @pytest.fixture
    def expected(self) -> Expected:
        made = np.array(
            [tuple(row) for i in range(3) for row in plain_rows(odd_run(seed=i), i)], g.STEP
        )
        return {name: made[name] for name in g.STEP.names or ()}

    def runs(self, expected: Expected) -> list[range]:
        return [range(40 * i, 40 * i + 40) for i in range(3)]

    @pytest.fixture(params=["files", "pack"])
    def source(self, request: pytest.FixtureRequest, tmp_path: Path) -> GameSteps:
        files = save_all(tmp_path / "runs", [odd_run(seed=i) for i in range(3)])
        if request.param == "files":
            return GameSteps(files)
        g.pack_runs(files, tmp_path / "p.a2pack")
        return GameSteps(tmp_path / "p.a2pack")


@pytest.mark.parametrize("kind", ["directory", "pack", "reader"])
def test_a_dataset(kind: str, files: Path, pack: Path, runs: list[Run], tmp_path: Path) -> None:
    given: Any = {"directory": files, "pack": str(pack), "reader": PackReader.open(pack)}[kind]
    report = sw.convert(given, tmp_path / "out", to="steps")
    assert (report.runs, report.rows, report.skipped) == (len(runs), sum(map(len, runs)), ())
    assert_rows(tmp_path / "out", runs)
    assert np.load(tmp_path / "out" / "steps.npy").dtype == g.STEP
    opened = StepReader.open(tmp_path / "out")
    sw.convert(given, tmp_path / "out", to="steps", mode="a", again=True)
    assert_rows(tmp_path / "out", runs + runs)
    assert opened.refresh()
    assert len(opened) == 2 * report.rows


def test_threads_change_nothing(pack: Path) -> None:
    one, four = (GameSteps(pack, threads=threads)[:] for threads in (1, 4))
    for name in one:
        assert_array(four[name], one[name])


def test_filter_by_score(files: Path, runs: list[Run], tmp_path: Path) -> None:
    sw.convert(files, tmp_path / "out")
    steps = StepReader.open(tmp_path / "out")
    scores = np.array([run.meta.max_score for run in runs])
    for low, high in ((20_000, None), (20_000, 40_000), (2**40, None)):
        part = g.filter_by_score(steps, low, high)
        want = (scores >= low) & (scores <= (2**63 if high is None else high))
        assert part.runs["id"].tolist() == np.flatnonzero(want).tolist()


def test_a_part_of_a_pack(pack: Path, runs: list[Run], tmp_path: Path) -> None:
    wanted = [i for i, run in enumerate(runs) if 20 <= len(run) <= 60]
    report = sw.convert(pack, tmp_path / "out", where="steps BETWEEN 20 AND 60")
    assert report.runs == len(wanted) == 41
    assert_rows(tmp_path / "out", [runs[i] for i in wanted])
    # The source is the run's number in the whole pack.
    sources = StepReader.open(tmp_path / "out").runs["source"].tolist()
    assert sources == [f"runs.a2pack#{i}" for i in wanted]


def test_sources_of_files_are_relative(runs: list[Run], tmp_path: Path) -> None:
    save_all(tmp_path / "runs", runs[:2])
    save_all(tmp_path / "runs" / "below", runs[2:3])
    names = list(GameSteps(tmp_path / "runs").runs["source"])
    assert names == ["0000.a2run2", "0001.a2run2", "below/0000.a2run2"]


def test_an_append_is_all_or_nothing(files: Path, runs: list[Run], tmp_path: Path) -> None:
    sw.convert(files, tmp_path / "out")
    more = save_all(tmp_path / "more", [odd_run(), without_branches()])
    with pytest.raises(FormatError, match=r"0001\.a2run2: step 17 has no branches"):
        sw.convert(more, tmp_path / "out", mode="a")
    assert_rows(tmp_path / "out", runs)
    report = sw.convert(more, tmp_path / "out", mode="a", skip_bad=True)
    assert [name for name, _ in report.skipped] == ["0001.a2run2"]
    assert_rows(tmp_path / "out", [*runs, odd_run()])
    with sw.StepWriter(tmp_path / "other", [("x", "f4")]) as writer:
        writer.append({"x": [1.0]})
    with (
        pytest.warns(UserWarning, match="left out: max_score"),
        pytest.raises(SchemaError, match="as the dataset has"),
    ):
        sw.convert(files, tmp_path / "other", mode="a")


def test_a_dataset_of_the_original_program_is_appended_to(files: Path, tmp_path: Path) -> None:
    """It has neither our columns nor a table of facts."""
    steps = np.array([tuple(row) for row in plain_rows(odd_run(), 0)], g.STEP)
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
    with pytest.warns(UserWarning, match="left out: final_board, source"):
        report = sw.convert(files, tmp_path / "out", mode="a")
    opened = StepReader.open(tmp_path / "out")
    assert len(opened.runs) == 1 + len(GameSteps(files).runs)
    assert (opened.runs["engine"][0], report.rows) == ("old", len(opened) - 40)
    assert opened.verify().ok


# Runs that are there already.


def test_an_append_of_the_same_runs_is_refused(tmp_path: Path) -> None:
    some = save_all(tmp_path / "some", [odd_run(seed=i) for i in (0, 1)])
    sw.convert(some, tmp_path / "out")
    save_all(tmp_path / "some", [odd_run(seed=i) for i in (5, 1, 2)])  # 0 has changed, 2 is new
    for given in (some, GameSteps(some)):
        with pytest.raises(FileExistsError) as caught:
            sw.convert(given, tmp_path / "out", to="steps", mode="a")
        assert str(caught.value) == (
            f"{tmp_path}/out: 1 of 3 runs are there already, the first is 0001.a2run2, which is "
            "run 1; again=True (--again) adds them too"
        )
    assert_rows(tmp_path / "out", [odd_run(seed=i) for i in (0, 1)])
    sw.convert(some, tmp_path / "out", mode="a", again=True)
    assert_rows(tmp_path / "out", [odd_run(seed=i) for i in (0, 1, 5, 1, 2)])
    sw.convert(tmp_path / "out", tmp_path / "other", to="steps")
    with pytest.raises(FileExistsError, match="5 of 5 runs are there already"):
        sw.convert(tmp_path / "out", tmp_path / "other", to="steps", mode="a")  # two datasets, too


@pytest.mark.parametrize(
    "other",
    [
        {"steps": 41},
        {"start_unix_s": 2},
        {"final_board": 9},
        {"name": "other.a2run2"},
    ],
)
def test_runs_that_differ_are_not_the_same(other: dict[str, Any], tmp_path: Path) -> None:
    def saved(folder: str, steps: int = 40, name: str = "a.a2run2", **options: Any) -> Path:
        (tmp_path / folder).mkdir()
        board = options.pop("final_board", 1)
        zeros = np.zeros(steps, np.uint8)
        known: Any = {"ev_values": np.zeros((steps, 4)), "ev_legal": zeros}
        Run(zeros, zeros, board, **known, **options).save(tmp_path / folder / name)
        return tmp_path / folder

    sw.convert(saved("one"), tmp_path / "out")
    assert sw.convert(saved("two", **other), tmp_path / "out", mode="a").runs == 1
    assert len(sw.open(tmp_path / "out").runs or ()) == 2


@pytest.mark.parametrize(
    "columns", [{}, {"start_time": int}, {"source": sw.stores.RunColumn(str, optional=True)}]
)
def test_a_dataset_that_knows_less_of_its_runs_has_them_in_its_rows(
    columns: dict[str, Any], tmp_path: Path
) -> None:
    """As those of the original program do: without the columns, or with nothing in them."""
    known = {"start_time": odd_run().meta.start_unix_s} if "start_time" in columns else {}
    with sw.StepWriter(tmp_path / "out", g.STEP, columns) as writer:
        for run in (odd_run(seed=7), odd_run(), Run([], [], 1)):
            rows = np.array([tuple(row) for row in plain_rows(run, 0)], g.STEP)
            writer.append(rows, **known)
    some = save_all(tmp_path / "some", [odd_run(seed=3), odd_run(), Run([], [], 1)])
    message = "1 of 3 runs are there already, the first is 0001.a2run2, which is run 1; again=True"
    with (
        pytest.warns(UserWarning, match="left out: "),
        pytest.raises(FileExistsError, match=message),
    ):
        sw.convert(some, tmp_path / "out", mode="a")
    (some / "0001.a2run2").unlink()
    for again in (False, True):
        with pytest.warns(UserWarning, match="left out: "):
            assert sw.convert(some, tmp_path / "out", mode="a", again=again).runs == 2
    assert len(StepReader.open(tmp_path / "out").runs) == 7


def test_again_is_for_appending_to_steps(files: Path, tmp_path: Path) -> None:
    wrong: list[dict[str, Any]] = [{}, {"mode": "a"}]
    for options in wrong:
        with pytest.raises(ValueError, match="again: expected mode='a'"):
            sw.convert(files, tmp_path / "out.npz", again=True, **options)
    assert list(tmp_path.iterdir()) == []


# Games without values.


@pytest.mark.parametrize("kind", ["directory", "pack"])
def test_without_values(kind: str, tmp_path: Path) -> None:
    """Legal by the board, NaN for what was not recorded, and marked: v1 and steps of v2."""
    played = next(g.play(1, depth=1, seed=5))
    given = [odd_run(), played, without_branches(), Run([], [], 1), Run([0], [2], 3)]
    games = save_all(tmp_path / "runs", given)
    (games / "0001.a2run2").unlink()
    played.save(games / "0001.a2run", version=1)
    given[1] = Run.load(games / "0001.a2run")
    if kind == "pack":
        g.pack_runs(games, tmp_path / "p.a2pack")
        games = tmp_path / "p.a2pack"
    with pytest.raises(FormatError, match=r"step 0 has no branches; without_values=True \("):
        sw.convert(games, tmp_path / "out")
    report = sw.convert(games, tmp_path / "out", without_values=True)
    assert (report.runs, report.skipped) == (5, ())
    assert_rows(tmp_path / "out", given)
    steps = StepReader.open(tmp_path / "out")
    assert steps.runs["has_values"].tolist() == [1, 0, 0, 1, 0]
    assert not np.isnan(steps.where("has_values")[:]["ev_values"]).any()
    rows = steps.where("id = 1")[:]
    np.testing.assert_array_equal(rows["ev_legal"], played.ev_legal)  # which v1 has not kept
    ready = g.decode(rows)
    assert not ready["ev_known"].any()
    assert not ready["ev_values"].any()
    known = g.decode(steps.where("id = 2")[:])["ev_known"]
    np.testing.assert_array_equal(np.flatnonzero(~known.any(1)), [17])


def test_runs_without_values_are_never_mixed_with_others(tmp_path: Path) -> None:
    """A dataset that has no column for it would have NaN in games that nothing distinguishes."""
    sw.convert(save_all(tmp_path / "good", [odd_run()]), tmp_path / "out")
    with closing(sqlite3.connect(tmp_path / "out" / "metadata.db")) as database:
        database.execute("ALTER TABLE runs DROP COLUMN has_values")
        database.execute("DROP TABLE run_checksums")
    bad = save_all(tmp_path / "bad", [without_branches()])
    with pytest.raises(SchemaError, match="expected the run column has_values"):
        sw.convert(bad, tmp_path / "out", mode="a", without_values=True)
    with pytest.warns(UserWarning, match="left out: has_values"):
        sw.convert(save_all(tmp_path / "more", [odd_run(seed=1)]), tmp_path / "out", mode="a")
    assert len(StepReader.open(tmp_path / "out").runs) == 2


def test_without_values_is_for_games(files: Path, pack: Path, tmp_path: Path) -> None:
    sw.convert(files, tmp_path / "steps.parquet", without_values=True)
    for given, out in ((pack, "x.parquet"), (files, "x.a2pack"), (tmp_path / "steps.parquet", "x")):
        with pytest.raises(ValueError, match="without_values: expected games of 2048"):
            sw.convert(given, tmp_path / out, without_values=True)


# What cannot be rows.


def bad_files(directory: Path) -> dict[str, str]:
    """Three good runs with four bad ones between; what is said of each of the bad."""
    directory.mkdir()
    for i in (0, 2, 6):
        odd_run(seed=i).save(directory / f"{i}.a2run2")
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
        "7.a2run2": "max_score: expected less than 2**63, as SQLite has it, got 92233720368547758",
    }


def test_bad_runs_are_skipped_by_name(tmp_path: Path) -> None:
    said = bad_files(tmp_path / "runs")
    report = sw.convert(tmp_path / "runs", tmp_path / "out", skip_bad=True)
    assert_rows(tmp_path / "out", [odd_run(seed=i) for i in (0, 2, 6)])
    assert (report.runs, report.rows) == (3, 120)
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
            sw.convert(alone, tmp_path / "out")
        assert name in str(caught.value)
        assert words.replace(f"{tmp_path}/all", str(alone)) in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["all", *said])


def test_the_longest_run_fits(tmp_path: Path) -> None:
    steps = GameSteps(save_all(tmp_path / "runs", [long_run(65_535)]))
    assert steps.take([65_534])["step_index"][0] == 65_534


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
        sw.convert(given, tmp_path / "out", to="steps")
    assert "runs.a2pack" in str(caught.value)
    assert "50" in str(caught.value) + "".join(caught.value.__notes__)
    assert [path.name for path in tmp_path.iterdir()] == ["runs.a2pack"]
    report = sw.convert(given, tmp_path / "out", to="steps", skip_bad=True)
    assert [name for name, _ in report.skipped] == ["runs.a2pack#50"]
    assert_rows(tmp_path / "out", [run for i, run in enumerate(runs) if i >= first and i != 50])


def test_what_has_no_games(tmp_path: Path) -> None:
    with sw.PackWriter(tmp_path / "mixed.a2pack") as writer:
        writer.append(odd_run().to_bytes())
        writer.append(b"something else", 16)
    steps = GameSteps(tmp_path / "mixed.a2pack", skip_bad=True)
    assert (len(steps.runs), [name for name, _ in steps.skipped]) == (1, ["mixed.a2pack#1"])
    save_all(tmp_path / "runs", [without_branches()])
    with pytest.raises(FormatError, match="none of 1 runs can be rows"):
        GameSteps(tmp_path / "runs", skip_bad=True)
    (tmp_path / "empty").mkdir()
    for missing in ("empty", "nowhere"):
        with pytest.raises(FileNotFoundError):
            GameSteps(tmp_path / missing)
    with pytest.raises(ValueError, match="at least"):
        GameSteps(tmp_path / "runs", threads=0)


def test_files_that_change_meanwhile(tmp_path: Path) -> None:
    steps = GameSteps(save_all(tmp_path / "runs", [odd_run(40)]))
    odd_run(41).save(tmp_path / "runs/0000.a2run2")
    with pytest.raises(FormatError, match="changed"):
        steps.take([0])


def test_shards_have_the_same_rows(pack: Path, runs: list[Run], tmp_path: Path) -> None:
    sw.convert(pack, tmp_path / "one")
    sw.convert(pack, tmp_path / "many", part_bytes=32 * 1000 + 31)
    for given in (runs, runs + runs):
        shards = [np.load(path) for path in sorted((tmp_path / "many/shards").glob("*.npy"))]
        total = sum(map(len, given))
        assert [len(shard) for shard in shards] == [1000] * (total // 1000) + [total % 1000]
        assert_rows(tmp_path / "many", given)
        if given is runs:
            rows = np.load(tmp_path / "one" / "steps.npy")
            assert np.concatenate(shards).tobytes() == rows.tobytes()
            sw.convert(pack, tmp_path / "many", mode="a", again=True)


def test_runs_become_a_pack(files: Path, runs: list[Run], tmp_path: Path) -> None:
    report = sw.convert(files, tmp_path / "p.a2pack", compress="zstd")
    assert (report.target_kind, report.rows) == ("pack", len(runs))
    with PackReader.open(tmp_path / "p.a2pack") as made:
        assert list(made) == runs
    with pytest.raises(FileExistsError):
        sw.convert(files, tmp_path / "p.a2pack")
    sw.convert(files, tmp_path / "p.a2pack", force=True)
    with pytest.raises(ValueError, match="expected runs to make a pack of"):
        sw.convert(tmp_path / "p.a2pack", tmp_path / "q.a2pack")
