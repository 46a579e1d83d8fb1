"""`stepwell record`, and what it recorded: as a user runs the commands."""

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import stepwell as sw
from stepwell.replay import ReplayReader, ReplayWriter
from tests.children import python
from tests.test_cli import process, stepwell


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A game of Pong with frames, and CartPole without."""
    root = tmp_path_factory.mktemp("cli") / "replays [1]"  # what looks like markup is none
    for run_id, env, steps, frames in (
        ("pong", "ALE/Pong-v5", "90", "every:4"),
        ("cartpole", "CartPole-v1", "200", "none"),
    ):
        done = stepwell(
            *("record", "--env", env, "--steps", steps, "--frames", frames, "--seed", "2"),
            *("--out", root, "--run-id", run_id),
        )
        assert (done.returncode, done.stderr) == (0, "")
    return root


def facts_of(*args: str | Path) -> Any:
    done = stepwell(*args, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_record(tmp_path: Path) -> None:
    facts = facts_of("record", "--env", "ALE/Breakout-v5", "--steps", "60", "--out", tmp_path)
    assert facts["steps"] == 60
    assert re.fullmatch(r"breakout-\d{8}-\d{6}", facts["run_id"])
    with ReplayReader.open(tmp_path) as reader:
        run = reader.recordings[facts["run_id"]]
        assert (run.state, run.steps, run.rows["frames"]) == ("closed", 60, 60)


def test_record_cartpole(tmp_path: Path) -> None:
    """Drawn by pygame, which the extra brings and which looks for no screen."""
    facts_of("record", "--env", "CartPole-v1", "--steps", "20", "--out", tmp_path)
    with ReplayReader.open(tmp_path) as reader:
        episode = reader.episode(reader.episodes[0].episode_id)
        assert episode.frames.shape == (episode.episode.steps, 400, 600, 3)


def test_record_is_the_same_for_a_seed(tmp_path: Path) -> None:
    command = ("record", "--env", "CartPole-v1", "--steps", "80", "--frames", "none")
    for run_id in ("a", "b"):
        facts_of(*command, "--seed", "5", "--run-id", run_id, "--out", tmp_path)
    with ReplayReader.open(tmp_path) as reader:
        one, other = (reader.where("run_id = ?", run)[:] for run in ("a", "b"))
        for name in one:
            assert np.array_equal(one[name], other[name])


def test_record_with_options_of_the_writer(tmp_path: Path) -> None:
    facts_of(
        *("record", "--env", "ALE/Pong-v5", "--steps", "9", "--no-infos", "--compress", "gzip"),
        *("--when-full", "drop", "--queue-bytes", "100000000", "--flush-every", "60"),
        *("--run-id", "a", "--out", tmp_path),
    )
    with ReplayReader.open(tmp_path) as reader:
        channels = {each.name: each.field.compress for each in reader.recordings["a"].channels}
        assert channels["frames"] == "gzip"
        assert not any(reader.episode("a-ep0000").infos)


def test_record_several_at_once(tmp_path: Path) -> None:
    facts = facts_of(
        *("record", "--env", "CartPole-v1", "--steps", "100", "--frames", "none"),
        *("--envs", "3", "--seed", "1", "--out", tmp_path),
    )
    assert facts["steps"] == 100  # in the last round, one of them
    with ReplayReader.open(tmp_path) as reader:
        assert {e.agent_id for e in reader.episodes} == {"env0", "env1", "env2"}
        assert len(reader) == 100
        assert reader.verify().ok


def test_remove(tmp_path: Path) -> None:
    for run_id in ("a", "b"):
        with ReplayWriter(tmp_path, run_id) as writer:
            for number in range(9):
                writer.record_step(reward=number, observation=[number], terminated=True)
    remove = ("replay", "remove", tmp_path)
    where = ("--where", "run_id = 'a' OR total_reward < 3")
    assert facts_of(*remove, *where, "--dry-run")["episodes"] == 12
    facts = facts_of(*remove, *where)
    assert (facts["runs"], facts["episodes"], facts["steps"]) == (1, 12, 12)
    assert facts_of(*remove, "--keep-bytes", "1.5MiB")["episodes"] == 0
    with ReplayReader.open(tmp_path) as reader:
        assert reader["reward"][:].tolist() == [3, 4, 5, 6, 7, 8]
    for options, message in (
        ((), "error: expected --where or --keep-bytes, got neither"),
        (("--keep-bytes", "much"), "expected bytes, as in 50GB or 1.5GiB, got 'much'"),
        (("--where", "colour = 3"), "no such column: colour"),
    ):
        done = stepwell(*remove, *options)
        assert done.returncode == 2
        assert message in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--env", "ALE/Nothing-v5"), "error: ALE/Nothing-v5: Environment `Nothing` doesn't exist"),
        (("--env", "Nothing-v5"), "error: Nothing-v5: Environment `Nothing` doesn't exist"),
        (("--env", "ALE/Pong-v5", "--frames", "some"), "error: frames: expected 'all', 'every:N'"),
        (("--env", "ALE/Pong-v5", "--run-id", "a b"), "error: run_id: expected 1 to 128 letters"),
        (("--env", "ALE/Pong-v5", "--policy", "best"), "Invalid value for '--policy'"),
        (("--env", "CartPole-v1", "--frames", "none", "--compress", "mp3"), "error: compress: exp"),
        (("--env", "CartPole-v1", "--frames", "none", "--flush-every", "0"), "error: flush_every"),
    ],
)
def test_record_what_cannot_be(tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    done = stepwell("record", *options, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert message in done.stderr
    assert not (tmp_path / "out").exists()


def recorded_without(module: str, env: str, out: Path) -> subprocess.CompletedProcess[str]:
    command = ["stepwell", "record", "--env", env, "--out", str(out)]
    return python(
        f"import sys; sys.modules[{module!r}] = None; sys.argv = {command!r}\n"
        "from stepwell.cli import main; main()"
    )


@pytest.mark.parametrize("module", ["gymnasium", "ale_py", "h5py"])
def test_record_without_the_extra(tmp_path: Path, module: str) -> None:
    done = recorded_without(module, "ALE/Pong-v5", tmp_path / "out")
    assert done.returncode == 2
    assert "needs an extra: pip install 'stepwell[gym]'" in done.stderr


def test_record_what_cannot_be_drawn(tmp_path: Path) -> None:
    """Where only gymnasium is installed, without the package that draws."""
    done = recorded_without("pygame", "CartPole-v1", tmp_path / "out")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: CartPole-v1: pygame is not installed, run ")
    assert line.endswith("; --frames none records without")
    assert not (tmp_path / "out").exists()


def test_info(store: Path) -> None:
    done = stepwell("info", store)
    assert (done.returncode, done.stderr) == (0, "")
    assert "pong: state closed, steps 90, episodes 1, dropped 0" in done.stdout
    assert "fields observation: float32[4], action: int64" in done.stdout  # of the other one
    facts = facts_of("info", store)
    assert list(facts["recordings"]) == ["pong", "cartpole"]
    assert "run=" in facts["unlike"]  # their spaces differ
    frames = facts["arrays"]["pong/frames"]
    assert frames["bytes"] == 23 * 210 * 160 * 3
    size = (store / "replay" / "pong.h5").stat().st_size
    assert 0 < frames["stored_bytes"] < size < frames["bytes"]


def test_head_of_runs_that_do_not_fit_together(store: Path) -> None:
    done = stepwell("head", store)
    assert done.returncode == 2
    assert "where(\"run_id = 'cartpole'\")" in done.stderr
    done = stepwell("head", store, "--json", "-n", "3", "--where", "run_id = 'cartpole'")
    assert [len(json.loads(line)["observation"]) for line in done.stdout.splitlines()] == [4] * 3


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def put_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("harm", "message"),
    [(Path.unlink, "No such file"), (cut, "expected at least"), (put_a_pipe, "got a pipe")],
)
def test_info_of_a_store_with_a_bad_file(
    store: Path, tmp_path: Path, harm: Callable[[Path], None], message: str
) -> None:
    lost = shutil.copytree(store, tmp_path / "lost")
    harm(lost / "replay" / "pong.h5")
    facts = facts_of("info", lost)
    assert message in facts["health"]
    assert "pong.h5" in facts["health"]
    assert facts["recordings"]["cartpole"]["steps"] == 200


def test_query(store: Path) -> None:
    sql = "SELECT episode_id, total_reward FROM episodes WHERE run_id = 'cartpole' ORDER BY 2 DESC"
    done = stepwell("query", store, f"{sql} LIMIT 3")
    assert (done.returncode, done.stderr) == (0, "")
    head, *rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert head == ["episode_id", "total_reward"]
    with ReplayReader.open(store) as reader:
        best = sorted(reader.where("run_id = 'cartpole'").runs["total_reward"], reverse=True)
    assert [float(row[1]) for row in rows] == best[:3]
    assert len(facts_of("query", store, sql)) == len(best)


def test_convert_to_a_video(store: Path, tmp_path: Path) -> None:
    for name, where in (("a.gif", "episode_id = 'pong-ep0000'"), ("a.mp4", "run_id = 'pong'")):
        facts = facts_of("convert", store, tmp_path / name, "--where", where, "--fps", "10")
        assert (facts["to"], facts["rows"]) == ("video", 23)
    with Image.open(tmp_path / "a.gif") as image:
        assert (image.size, image.n_frames) == ((160, 210), 23)  # type: ignore[attr-defined]


def test_convert_to_steps(store: Path, tmp_path: Path) -> None:
    where = "run_id = 'cartpole' AND steps > 10"
    facts = facts_of("convert", store, tmp_path / "steps", "--where", where)
    with sw.StepReader.open(tmp_path / "steps") as steps, ReplayReader.open(store) as reader:
        assert np.array_equal(steps[:]["observation"], reader.where(where)[:]["observation"])
        assert (facts["runs"], facts["rows"]) == (len(steps.runs), len(steps))


@pytest.mark.parametrize(("run", "env"), [("cartpole", "CartPole-v1"), ("pong", "ALE/Pong-v5")])
def test_convert_to_minari(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: str, env: str
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    command = ("convert", store, f"minari:{run}/cli-v0", "--where", f"run_id = '{run}'")
    done = process(*command, "--env", env, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["rows"] == {"cartpole": 200, "pong": 90}[run]
    assert (tmp_path / run / "cli-v0").is_dir()


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("a.gif",), 2, "run="),
        (("a.gif", "--where", "run_id = 'cartpole'"), 2, "there are no frames in observation"),
        (("a.avi", "--to", "video"), 2, "a.avi: expected a name that ends in .gif or .mp4"),
        (("minari:name",), 2, "expected a name like 'pong/random-v0', got 'name'"),
        (
            ("minari:pong/x-v0", "--where", "run_id = 'pong'", "--env", "Nothing-v0"),
            2,
            "error: Nothing-v0: Environment `Nothing` doesn't exist",
        ),
    ],
)
def test_convert_what_cannot_be(
    store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    code: int,
    message: str,
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    done = stepwell("convert", store, *options)
    assert done.returncode == code
    assert message in done.stderr


def test_verify(tmp_path: Path) -> None:
    with ReplayWriter(tmp_path, "a") as writer:
        for step in range(5):
            writer.record_step(observation=np.zeros(3), reward=step, terminated=step == 4)
    assert facts_of("verify", tmp_path)["ok"]
    with closing(sqlite3.connect(tmp_path / "telemetry" / "telemetry.sqlite")) as database:
        database.execute("UPDATE episodes SET total_reward = 3")
        database.commit()
    done = stepwell("verify", tmp_path)
    assert (done.returncode, done.stdout) == (1, f"INVALID: {tmp_path} (2 problems)\n")
    assert "episode 'a-ep0000': expected total_reward 10.0, got 3.0" in done.stderr


BRITTLE = """
import time

import gymnasium as gym
import numpy as np

class Brittle(gym.Env):
    observation_space = gym.spaces.Box(0, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)
    steps = 0

    def __init__(self, breaks=True, render_mode=None):
        self.breaks = breaks

    def reset(self, *, seed=None, options=None):
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.breaks and self.steps == 6:
            raise RuntimeError("it fell over")
        time.sleep(0.01)
        return np.ones(3, np.float32), 1.0, False, False, {}

gym.register("Brittle-v0", Brittle)
gym.register("Tough-v0", Brittle, kwargs={"breaks": False})
"""


@pytest.fixture
def brittle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module with an environment that breaks in its sixth step, and one that does not."""
    path = tmp_path / "brittle.py"
    path.write_text(BRITTLE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return path


@pytest.mark.parametrize("envs", [1, 3])
def test_record_what_breaks(brittle: Path, tmp_path: Path, envs: int) -> None:
    done = process(
        *("record", "--env", "brittle:Brittle-v0", "--steps", "100", "--frames", "none"),
        *("--envs", str(envs), "--run-id", "run", "--out", tmp_path / "out"),
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: brittle:Brittle-v0: RuntimeError: it fell over - at ")
    assert done.stderr.count("\n") == 1
    assert envs > 1 or f"{brittle}:21" in done.stderr
    with ReplayReader.open(tmp_path / "out") as reader:
        run = reader.recordings["run"]
        assert (run.state, run.steps) == ("closed", 5 * envs)


@pytest.mark.parametrize("envs", [1, 3])
def test_record_until_it_is_stopped(brittle: Path, tmp_path: Path, envs: int) -> None:
    command = [
        *("record", "--env", "brittle:Tough-v0", "--frames", "none", "--envs", str(envs)),
        *("--run-id", "run", "--out", str(tmp_path / "out"), "--json"),
    ]
    script = f"import sys; sys.argv[1:] = {command!r}\nfrom stepwell.cli import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as recording:
        while not _steps_of(tmp_path / "out"):
            assert recording.poll() is None
            time.sleep(0.05)
        os.killpg(recording.pid, signal.SIGINT)  # as a terminal does
        said, errors = recording.communicate()
    assert (recording.returncode, errors) == (130, "")
    facts = json.loads(said)
    assert facts["steps"] == _steps_of(tmp_path / "out") > 0

    again = process(*command, "--steps", "30")
    assert (again.returncode, again.stdout) == (2, "")
    assert "the run 'run' exists already" in again.stderr
    more = json.loads(process(*command, "--steps", "30", "--append").stdout)
    assert more["steps"] == facts["steps"] + 30
    assert more["steps_per_second"] == pytest.approx(30 / more["seconds"], rel=0.01)
    with ReplayReader.open(tmp_path / "out") as reader:
        assert reader.verify().ok


def test_sigterm_ends_a_recording_with_frames(tmp_path: Path) -> None:
    command = [
        "record",
        "--env",
        "CartPole-v1",
        "--steps",
        "1000000",
        "--out",
        str(tmp_path / "out"),
    ]
    script = f"import sys; sys.argv[1:] = {command!r}\nfrom stepwell.cli import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as recording:
        while not _steps_of(tmp_path / "out"):
            assert recording.poll() is None
            time.sleep(0.05)
        recording.terminate()
        assert recording.wait(60) == -signal.SIGTERM
    with ReplayReader.open(tmp_path / "out") as reader:
        assert reader.verify().ok


def _steps_of(root: Path) -> int:
    try:
        with ReplayReader.open(root) as reader:
            return sum(run.steps for run in reader.recordings.values())
    except (FileNotFoundError, sw.FormatError):
        return 0
