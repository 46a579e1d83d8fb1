"""`Record`: what it writes is what happened, whatever the environment and the way it resets."""

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_overloads
from unittest.mock import Mock

import ale_py
import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import (
    AsyncVectorEnv,
    AutoresetMode,
    SyncVectorEnv,
    VectorEnv,
    VectorWrapper,
)

import stepwell as sw
from stepwell.cli.record import record
from stepwell.replay import Episode, LaneReader, Record, RecordedVectorEnv, ReplayReader, lanes
from tests.environments import Everything, Log, make_everything
from tests.lanes import run_id
from tests.replays import row_of

__all__ = ["run_id"]

gym.register_envs(ale_py)

Logged = list[dict[str, Any]]


def cartpole() -> Log:
    return Log(gym.make("CartPole-v1"))


def check(root: Path, logs: dict[str | None, Logged], every: int = 0) -> None:
    """Compare everything below `root` with the logs of each agent."""
    with ReplayReader.open(root) as reader:
        for agent, log in logs.items():
            happened = [episode for episode in log if episode["steps"]]
            found = [e for e in reader.episodes if e.agent_id == agent]
            assert len(found) == len(happened)
            for episode, expected in zip(found, happened, strict=True):
                check_episode(reader, episode, expected, every)
        assert len(reader) == sum(len(e["steps"]) for log in logs.values() for e in log)
        assert reader.verify().ok


def check_episode(
    reader: ReplayReader, episode: Episode, expected: dict[str, Any], every: int
) -> None:
    found = reader.episode(episode.episode_id)
    seen, steps = expected["seen"], expected["steps"]
    assert found.step_index.tolist() == list(range(len(steps)))
    assert found.rewards.tolist() == [step[1] for step in steps]
    assert found.terminated.tolist() == [bool(step[2]) for step in steps]
    assert found.truncated.tolist() == [bool(step[3]) for step in steps]
    assert found.infos == [step[4] for step in steps]
    assert episode.over
    assert episode.ended == bool(steps[-1][2] or steps[-1][3])
    assert (episode.terminated, episode.truncated) == tuple(map(bool, steps[-1][2:4]))
    assert episode.total_reward == pytest.approx(sum(step[1] for step in steps))
    for i, step in enumerate(steps):
        same(row_of(found.observations, i), seen[i])
        same(row_of(found.actions, i), step[0])
    same(found.final_observation, seen[-1])
    shown = list(range(0, len(steps), every)) if every else []
    assert found.frame_steps.tolist() == shown
    for i, step_index in enumerate(shown):
        same(found.frames[i], expected["frames"][step_index])


def same(found: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert set(found) == set(expected)
        for key in expected:
            same(found[key], expected[key])
    elif isinstance(expected, tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            same(one, other)
    else:
        expected = np.asarray(expected)
        assert found.shape == expected.shape
        if expected.dtype == np.float64 and found.dtype == np.float32:
            expected = expected.astype(np.float32)
        assert np.array_equal(found, expected)


def play(env: Any, steps: int, seed: int = 1) -> None:
    """Act at random, resetting after every episode."""
    env.action_space.seed(seed)
    env.reset(seed=seed)
    for _ in range(steps):
        *_, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            env.reset()


# One environment.


def test_cartpole(tmp_path: Path) -> None:
    inner = cartpole()
    with Record(inner, tmp_path, frames=None, run_id="a") as env:
        play(env, 300)
        assert env.run_id == "a"
    check(tmp_path, {None: inner.log})


@pytest.mark.parametrize(("frames", "every"), [("all", 1), ("every:3", 3), (None, 0)])
def test_nested_spaces_and_an_environment_that_writes_into_what_it_gave_away(
    tmp_path: Path, frames: str | None, every: int
) -> None:
    inner = Log(Everything(), True)
    with Record(inner, tmp_path, frames=frames, run_id="a") as env:
        play(env, 40)
    check(tmp_path, {None: inner.log}, every)
    schema = ReplayReader.open(tmp_path).schema
    assert {name: str(field) for name, field in schema.items()} == {
        "observation/camera": "uint8[6, 8, 3]",
        "observation/place/(0)": "float32[2]",
        "observation/place/(1)": "int64",
        "observation/switches": "int8[5]",
        "action/mode": "int64",
        "action/push": "float32[3]",
        "next_observation/camera": "uint8[6, 8, 3]",
        "next_observation/place/(0)": "float32[2]",
        "next_observation/place/(1)": "int64",
        "next_observation/switches": "int8[5]",
        "reward": "float64",
        "terminated": "bool",
        "truncated": "bool",
    }


def test_breakout(tmp_path: Path) -> None:
    inner = Log(gym.make("ALE/Breakout-v5", render_mode="rgb_array", frameskip=4), True)
    with Record(inner, tmp_path) as env:
        play(env, 400)
        assert re.fullmatch(r"breakout-\d{8}-\d{6}", env.run_id)
    check(tmp_path, {None: inner.log}, 1)
    assert sum(len(e["steps"]) for e in inner.log) == 400
    with ReplayReader.open(tmp_path) as reader:
        first = reader.episode(reader.episodes[0].episode_id)
        assert np.array_equal(first.frames, first.observations)  # ALE shows what it gives


def test_a_reset_and_a_close_end_the_episode(tmp_path: Path) -> None:
    inner = cartpole()
    env = Record(inner, tmp_path, frames=None, run_id="a")
    for _ in range(3):
        env.reset(seed=4)
        env.reset(seed=5)  # an episode without a step is none
        for _ in range(4):
            env.step(0)
    env.close()
    env.close()
    check(tmp_path, {None: inner.log})
    with ReplayReader.open(tmp_path) as reader:
        assert [(e.steps, e.over, e.ended) for e in reader.episodes] == [(4, True, False)] * 3
        assert reader.recordings["a"].state == "closed"


def test_steps_behind_the_end_are_not_recorded(tmp_path: Path) -> None:
    inner = Log(Everything(length=3))
    with Record(inner, tmp_path, frames=None, run_id="a") as env:
        env.reset(seed=1)
        for _ in range(5):
            env.step(env.action_space.sample())
        env.reset()
    del inner.log[0]["steps"][3:], inner.log[0]["seen"][4:]
    check(tmp_path, {None: inner.log})


@pytest.mark.parametrize("what", ["step", "reset", "render"])
def test_an_environment_that_breaks_and_goes_on(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = Everything()
    with Record(Log(inner), tmp_path, run_id="a") as env:
        env.action_space.seed(1)
        env.reset(seed=1)
        for _ in range(2):
            env.step(env.action_space.sample())
        act = env.reset if what == "reset" else lambda: env.step(env.action_space.sample())
        with monkeypatch.context() as patch:
            patch.setattr(inner, what, Mock(side_effect=RuntimeError(what)))
            with pytest.raises(RuntimeError, match=what):
                act()
        if what == "reset":
            env.reset()
        env.step(env.action_space.sample())
    with ReplayReader.open(tmp_path) as reader:
        steps = [2, 1] if what == "reset" else [3]
        assert [e.steps for e in reader.episodes] == steps
        assert len(reader) == 3
        assert reader.verify().ok


def test_a_failing_close_closes_the_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = Everything()
    monkeypatch.setattr(inner, "close", Mock(side_effect=RuntimeError("close")))
    env = Record(inner, tmp_path, frames=None, run_id="a")
    play(env, 10)
    with pytest.raises(RuntimeError, match="close"):
        env.close()
    assert ReplayReader.open(tmp_path).recordings["a"].state == "closed"


# Vectors.

MODES = [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED]


def play_vector(env: VectorEnv[Any, Any, Any], mode: AutoresetMode, steps: int) -> None:
    env.action_space.seed(3)
    env.reset(seed=3)
    for _ in range(steps):
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        over = np.logical_or(terminated, truncated)
        if mode == AutoresetMode.DISABLED and over.any():
            env.reset(options={"reset_mask": over})


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("make", [cartpole, lambda: Log(Everything(length=5, reuse=False), True)])
@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_a_vector(
    tmp_path: Path, mode: AutoresetMode, make: Callable[[], Log], kind: Callable[..., Any]
) -> None:
    # JAX, where another test has imported it, warns of every fork.
    options = {"context": "forkserver"} if kind is AsyncVectorEnv else {}
    inner = kind([make] * 3, autoreset_mode=mode, **options)
    every = 2 if inner.render_mode else 0
    env = Record(inner, tmp_path, frames="every:2" if every else None, run_id="a")
    assert isinstance(env, RecordedVectorEnv)
    play_vector(env, mode, 80)
    env.writer.commit()
    logs: dict[str | None, Logged] = dict(
        zip(("env0", "env1", "env2"), inner.get_attr("log"), strict=True)
    )
    env.close()
    check(tmp_path, logs, every)
    with ReplayReader.open(tmp_path) as reader:
        assert len(reader.where("terminated OR truncated").runs) > 4


def test_a_vector_that_is_reset_in_the_middle(tmp_path: Path) -> None:
    inner = SyncVectorEnv([cartpole] * 2, autoreset_mode=AutoresetMode.NEXT_STEP)
    env = Record(inner, tmp_path, frames=None)
    assert env.run_id.startswith("cartpole-")
    for _ in range(3):
        play_vector(env, AutoresetMode.NEXT_STEP, 25)
    logs = inner.get_attr("log")
    env.close()
    env.close()
    check(tmp_path, {"env0": logs[0], "env1": logs[1]})


class OfBefore(VectorWrapper):
    """Names what was seen last as Gymnasium did before version 1."""

    def step(self, actions: Any) -> Any:
        *came, infos = self.env.step(actions)
        names = {"final_obs": "final_observation", "_final_obs": "_final_observation"}
        return *came, {names.get(name, name): value for name, value in infos.items()}


def test_a_vector_that_names_the_last_observation_as_before(tmp_path: Path) -> None:
    inner = SyncVectorEnv([cartpole] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    env = Record(OfBefore(inner), tmp_path, frames=None)
    play_vector(env, AutoresetMode.SAME_STEP, 60)
    logs = inner.get_attr("log")
    env.close()
    check(tmp_path, {"env0": logs[0], "env1": logs[1]})


@pytest.mark.parametrize("mode", MODES)
def test_a_vector_of_which_some_are_stopped(tmp_path: Path, mode: AutoresetMode) -> None:
    inner = SyncVectorEnv([cartpole] * 3, autoreset_mode=mode)
    with ReplayReader.open(recorded_in_part(inner, tmp_path, mode)) as reader:
        steps = {agent: len(reader.where("agent_id = ?", agent)) for agent in ("env1", "env2")}
        assert steps["env1"] < steps["env2"] + 6
        assert max(steps.values()) <= 5 < len(reader.where("agent_id = 'env0'"))


def recorded_in_part(inner: Any, root: Path, mode: AutoresetMode) -> Path:
    env = Record(inner, root, frames=None)
    play_vector(env, mode, 5)
    env.stop(1)
    play_vector(env, mode, 40)
    env.close()
    return root


# Without observations, and with a view.


def test_without_observations(tmp_path: Path) -> None:
    inner: Any = Everything()
    inner.observation_space = spaces.Text(3)  # which cannot be recorded
    with pytest.raises(sw.SchemaError, match="observations: expected a space of Box"):
        Record(inner, tmp_path)
    env = Record(inner, tmp_path, observations=False, run_id="a")
    play(env, 20)
    env.close()
    with ReplayReader.open(tmp_path) as reader:
        assert [c.name for c in reader.recordings["a"].channels if c.kind == "observations"] == []
        assert len(reader) == 20
        assert reader.episode("a-ep0000").final_observation is None
        assert reader.verify().ok


@pytest.mark.parametrize("frames", ["every:3", None])
@pytest.mark.parametrize("many", [False, True])
def test_a_lane_shows_every_step(
    tmp_path: Path, run_id: str, frames: str | None, many: bool
) -> None:
    inner: Any = Log(Everything(), frames=True)
    if many:
        inner = SyncVectorEnv([lambda: Log(Everything(reuse=False), frames=True)] * 2)
    env: Any = Record(inner, tmp_path, frames=frames, run_id=run_id, lane=True)
    play_vector(env, AutoresetMode.NEXT_STEP, 20) if many else play(env, 20)
    (log, *_) = inner.get_attr("log") if many else [inner.log]
    shown = LaneReader(run_id).frames()
    env.close()
    assert [shown[-1].number, len(shown)] == [sum(len(e["steps"]) for e in log), 8]
    happened = [(e, i) for e in log for i in range(len(e["steps"]))][-8:]
    for seen, (episode, i) in zip(shown, happened, strict=True):
        assert np.array_equal(seen.pixels, episode["frames"][i])
        assert seen.reward == episode["steps"][i][1]
        assert seen.rolling_return == pytest.approx(sum(s[1] for s in episode["steps"][: i + 1]))
        assert seen.json()["step"] == i
        assert seen.step_rate_hz > 0
    with ReplayReader.open(tmp_path) as reader:
        kept = [len(reader.episode(e.episode_id).frame_steps) for e in reader.episodes]
        assert sum(kept) == (sum(-(-e.steps // 3) for e in reader.episodes) if frames else 0)
    assert (run_id, True) not in lanes()


@pytest.mark.parametrize("many", [False, True])
def test_actions_keep_their_names(tmp_path: Path, many: bool) -> None:
    def make() -> gym.Env[Any, Any]:
        return gym.make("ALE/Breakout-v5")

    for mode in ("x", "a"):  # a run that goes on, too
        inner: Any = SyncVectorEnv([make] * 2) if many else make()
        env: Any = Record(inner, tmp_path, frames=None, run_id="a", mode=mode)
        env.reset(seed=1)
        env.step(env.action_space.sample())
        env.close()
    with ReplayReader.open(tmp_path) as reader:
        about = reader.describe().facts["recordings"]["a"]
        assert about["actions"] == ["NOOP", "FIRE", "RIGHT", "LEFT"]
        assert reader.verify().ok
    plain = Record(gym.make("CartPole-v1"), tmp_path, frames=None, run_id="b")
    plain.reset(seed=1)
    plain.step(0)
    plain.close()
    assert "actions" not in ReplayReader.open(tmp_path).describe().facts["recordings"]["b"]


def test_a_vector_that_does_not_say_how_it_resets(tmp_path: Path) -> None:
    inner = SyncVectorEnv([cartpole] * 2)
    inner.metadata = {}
    with pytest.raises(ValueError, match="autoreset_mode"):
        Record(inner, tmp_path, frames=None)
    inner.close()
    assert not list(tmp_path.iterdir())


# What is refused, before anything is written.


@pytest.mark.parametrize("mode", [None, "human", "ansi"])
def test_frames_of_an_environment_that_renders_none(tmp_path: Path, mode: str | None) -> None:
    env = Everything(render_mode=mode)
    with pytest.raises(ValueError, match=f"render_mode='rgb_array', got {mode!r}; frames=None"):
        Record(env, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("frames", ["some", "every:0", "every:-1", "every:", "every:2 ", 4])
def test_a_choice_of_frames_that_is_none(tmp_path: Path, frames: Any) -> None:
    with pytest.raises(ValueError, match="frames: expected 'all', 'every:N' or None"):
        Record(Everything(), tmp_path, frames=frames)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Text(5), "observations: .*Text"),
        (spaces.Dict({"a": spaces.Sequence(spaces.Discrete(2))}), "observations/a: .*Sequence"),
        (spaces.Tuple((spaces.Graph(spaces.Discrete(2), None),)), r"observations/\(0\): .*Graph"),
        (spaces.Dict({"a/b": spaces.Discrete(2)}), "'a/b' cannot be the name"),
        (spaces.Box(0, 1, (0,)), "observations: expected 1 to"),
        (spaces.Dict({}), "empty dict"),
    ],
)
def test_spaces_that_cannot_be_recorded(
    tmp_path: Path, space: spaces.Space[Any], message: str
) -> None:
    env = Everything()
    env.observation_space = space  # type: ignore[assignment]
    with pytest.raises(sw.SchemaError, match=message):
        Record(env, tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_observation_outside_its_space(tmp_path: Path) -> None:
    class Liar(Everything):
        wrong: Any = None

        def _see(self) -> dict[str, Any]:
            return {**super()._see(), **(self.wrong or {})}

    env = Record(Liar(), tmp_path, frames=None, run_id="a")
    env.reset(seed=1)
    env.step(env.action_space.sample())
    wrongs: list[tuple[dict[str, Any], str]] = [
        ({"camera": np.zeros((6, 8), np.uint8)}, r"observations/camera: expected the shape"),
        ({"camera": np.full((6, 8, 3), 0.5)}, "expected uint8 .*, got float64"),
        ({"camera": np.full((6, 8, 3), 256)}, "observations/camera: .*256.* does not fit uint8"),
        ({"camera": np.ma.masked_less(np.zeros((6, 8, 3), np.uint8), 1)}, "camera: .* masked"),
        ({"switches": ["on"] * 5}, "observations/switches: expected an array of numbers"),
        ({"switches": [300] * 5}, "observations/switches: .*300.* does not fit int8"),
        ({"place": (np.zeros(2), np.uint64(2**64 - 1))}, "place/.*18446744073709551615.* int64"),
        ({"place": (np.array([0, 1e300]), 1)}, r"place/\(0\): .*1e\+300.* does not fit float32"),
        ({"place": (np.zeros(2),)}, "observations/place: expected 2 members, got 1"),
    ]
    for wrong, message in wrongs:
        env.unwrapped.wrong = wrong  # type: ignore[attr-defined]
        with pytest.raises(sw.SchemaError, match=message):
            env.step(env.action_space.sample())
    env.close()
    assert [e.steps for e in ReplayReader.open(tmp_path).episodes] == [1]


def test_what_is_not_an_environment(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="expected a Gymnasium environment, got str"):
        Record("CartPole-v1", tmp_path)  # type: ignore[call-overload]


# Names.


def test_two_runs_in_one_second_have_two_names(tmp_path: Path) -> None:
    envs = [Record(make_everything(), tmp_path, frames=None) for _ in range(3)]
    for env in envs:
        play(env, 3)
        env.close()
    names = [env.run_id for env in envs]
    assert len(set(names)) == 3
    assert all(re.fullmatch(r"everything-\d{8}-\d{6}(-\d)?", name) for name in names)


def test_options_are_those_of_the_writer() -> None:
    """Spelled out in every signature, with the same defaults."""

    def options(call: Callable[..., Any]) -> dict[str, Any]:
        found = inspect.signature(call).parameters.values()
        return {p.name: p.default for p in found if p.kind == p.KEYWORD_ONLY}

    expected = options(sw.ReplayWriter)
    del expected["action_names"]  # the environment has them
    signatures: list[Any] = [Record, *get_overloads(Record)]
    assert len(signatures) == 3
    for signature in signatures:
        own = {"frames": "all", "observations": True, "infos": True, "lane": False}
        own |= {"run_id": None}
        assert options(signature) == {**own, **expected}
    typed = {p.name: p.default for p in inspect.signature(record).parameters.values()}
    assert (typed["run_id"], typed["frames"], typed["infos"]) == (None, "all", True)
    del expected["mode"]  # --append
    assert {name: typed[name] for name in expected} == expected


def test_writer_options(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="compress: expected one of"):
        Record(Everything(), tmp_path, compress="mp3")
    with Record(Everything(), tmp_path, compress="gzip", infos=False, run_id="a") as env:
        play(env, 9)
    with ReplayReader.open(tmp_path) as reader:
        assert set(reader.episode("a-ep0000").infos[0]) == set()
        channels = {
            channel.name: channel.field.compress for channel in reader.recordings["a"].channels
        }
        assert channels["frames"] == "none"  # smaller than what is worth packing
