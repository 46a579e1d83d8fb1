"""Minari datasets: read with their episodes, written from replay stores and step datasets."""

import gc
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import minari
import numpy as np
import pytest
from gymnasium import spaces
from numpy.typing import NDArray

import stepwell as sw
from stepwell import SchemaError
from stepwell.formats.minari import MinariSource
from stepwell.replay import Record, ReplayReader, ReplayWriter
from tests.environments import Everything
from tests.formats.test_runs import assert_steps
from tests.replays import row_of
from tests.test_replay_record import play, same

# Minari asks for an author, a link to the code and so on.
pytestmark = pytest.mark.filterwarnings("ignore:.* is (set to )?None:UserWarning")


@pytest.fixture(autouse=True, scope="module")
def minari_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where Minari looks for datasets: not in the home of whoever runs the tests."""
    home = tmp_path_factory.mktemp("minari")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(home))
        yield home


def record(env: gym.Env[Any, Any], name: str, policy: Any, seeds: list[int | None]) -> Any:
    """A Minari dataset of an episode for each seed, recorded as Minari's page tells to."""
    with warnings.catch_warnings():
        # Of what the dataset is not told (author, score), and of a folder it forgets to remove.
        warnings.simplefilter("ignore")
        collector = minari.DataCollector(env)
        for seed in seeds:
            seen, _ = collector.reset(seed=seed)
            over = False
            while not over:
                seen, _, terminated, truncated, _ = collector.step(policy(seen))
                over = terminated or truncated
        dataset = collector.create_dataset(dataset_id=name)
        collector.close()
        del collector
        gc.collect()
    return dataset


@pytest.fixture(scope="module")
def cartpole(minari_home: Path) -> Any:
    """Episodes of a policy that is good; the longest are truncated at 100 steps."""
    env = gym.make("CartPole-v1", max_episode_steps=100)

    def push(seen: Any) -> int:
        return int(seen[2] + 0.5 * seen[3] > 0)

    return record(env, "cartpole/test-v0", push, [*range(11), None])


def test_episodes_stay_runs_in_memory(cartpole: Any, minari_home: Path) -> None:
    read = sw.as_source(minari_home / "cartpole" / "test-v0")
    assert isinstance(read, sw.ArraySource)
    assert read.runs is not None
    assert read.runs.counts.tolist() == [len(each) for each in cartpole.iterate_episodes()]
    assert len(read.windows(5)) == sum(len(each) - 4 for each in cartpole.iterate_episodes())


def test_episodes_become_runs(cartpole: Any, tmp_path: Path) -> None:
    report = sw.convert("minari:cartpole/test-v0", tmp_path / "out")
    assert (report.source_kind, report.target_kind, report.runs) == ("minari", "steps", 12)
    want: dict[str, list[NDArray[Any]]] = {}
    for episode in cartpole.iterate_episodes():
        for name, values in (
            ("observation", episode.observations[:-1]),
            ("action", episode.actions),
            ("reward", episode.rewards),
            ("terminated", episode.terminations),
            ("truncated", episode.truncations),
            ("next_observation", episode.observations[1:]),
        ):
            want.setdefault(name, []).append(values)
    ends = np.cumsum([len(values) for values in want["reward"]]).tolist()
    assert_steps(
        tmp_path / "out",
        {name: np.concatenate(values) for name, values in want.items()},
        list(zip([0, *ends], ends, strict=False)),
    )
    steps = sw.StepReader.open(tmp_path / "out")
    assert steps.dtype["observation"] == np.dtype(("<f4", (4,)))
    assert steps.dtype["action"] == np.int64
    runs = steps.runs
    assert runs["episode"].tolist() == list(range(12))
    assert runs["total_reward"].tolist() == [float(rewards.sum()) for rewards in want["reward"]]
    assert runs["seed"].tolist()[:11] == [str(i) for i in range(11)]
    assert int(runs["seed"][11]) > 0  # Minari's own choice, of 64 bits
    assert len(steps.where("seed = 3")) == len(want["reward"][3])
    # A row stands alone: what it leads to is the next row's beginning, or the end of the run.
    run = steps.run(0)
    np.testing.assert_array_equal(run["next_observation"][:-1], run["observation"][1:])
    assert run["truncated"][-1] or run["terminated"][-1]


def test_a_part_of_a_minari_dataset(cartpole: Any, tmp_path: Path) -> None:
    part = minari.split_dataset(cartpole, sizes=[4, 8], seed=1)[0]
    sw.convert(MinariSource(part), tmp_path / "out", to="steps", part_bytes=10_000)
    steps = sw.StepReader.open(tmp_path / "out")
    assert steps.runs["episode"].tolist() == part.episode_indices.tolist()
    assert len(steps) == part.total_steps


def test_a_minari_dataset_that_is_not_there(cartpole: Any, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nobody/nothing-v0 not found locally"):
        sw.convert("minari:nobody/nothing-v0", tmp_path / "out")
    none = minari.MinariDataset(cartpole.storage, episode_indices=np.array([], np.int64))
    with pytest.raises(SchemaError, match="cartpole/test-v0: no episodes"):
        MinariSource(none)


def test_a_folder_of_minari(cartpole: Any, minari_home: Path, tmp_path: Path) -> None:
    with sw.open(minari_home / "cartpole" / "test-v0") as opened:
        about = opened.describe()
        assert (about.kind, about.runs, about.rows) == ("minari", 12, cartpole.total_steps)
        assert about.bytes > 1000
    report = sw.convert(minari_home / "cartpole" / "test-v0", tmp_path / "out")
    assert (report.source_kind, report.rows) == ("minari", cartpole.total_steps)


# Out.


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplayReader]:
    root = tmp_path_factory.mktemp("everything")
    for run_id in ("a", "b"):
        with Record(Everything(), root, run_id=run_id) as env:
            play(env, 40)
    with ReplayReader.open(root) as reader:
        yield reader


@pytest.fixture(scope="module")
def replays(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplayReader]:
    root = tmp_path_factory.mktemp("cartpole")
    with Record(gym.make("CartPole-v1"), root, frames=None, run_id="a") as env:
        play(env, 300)
    with ReplayReader.open(root) as reader:
        yield reader


def check_minari(reader: ReplayReader, dataset_id: str) -> Any:
    dataset = minari.load_dataset(dataset_id)
    assert dataset.total_episodes == len(reader.episodes)
    assert dataset.total_steps == sum(e.steps for e in reader.episodes)
    for episode, found in zip(reader.episodes, dataset.iterate_episodes(), strict=True):
        expected = reader.episode(episode.episode_id)
        assert np.array_equal(found.rewards, expected.rewards)
        assert np.array_equal(found.terminations, expected.terminated)
        assert np.array_equal(found.truncations, expected.truncated)
        for i in range(len(expected)):
            same(row_of(found.actions, i), row_of(expected.actions, i))
            same(row_of(found.observations, i), row_of(expected.observations, i))
        same(row_of(found.observations, len(expected)), expected.final_observation)
    return dataset


def test_a_replay_store(replays: ReplayReader, tmp_path: Path) -> None:
    sw.convert(replays.root, "minari:cartpole/mine-v0", env="CartPole-v1", author="me")
    dataset = check_minari(replays, "cartpole/mine-v0")
    assert dataset.action_space == spaces.Discrete(2)
    assert dataset.recover_environment().spec.id == "CartPole-v1"
    with pytest.raises(FileExistsError, match="cartpole/mine-v0 already"):
        sw.convert(replays.root, "minari:cartpole/mine-v0", env="CartPole-v1")
    # And there again, by way of a step dataset.
    sw.convert("minari:cartpole/mine-v0", tmp_path / "steps")
    report = sw.convert(tmp_path / "steps", "minari:cartpole/again-v0")
    assert report.runs == len(replays.episodes)
    check_minari(replays, "cartpole/again-v0")


def test_nested_spaces(everything: ReplayReader, tmp_path: Path) -> None:
    sw.convert(everything.root, "minari:everything/mine-v0")
    made = check_minari(everything, "everything/mine-v0")
    assert made.observation_space == spaces.Dict(
        {
            "camera": spaces.Box(0, 255, (6, 8, 3), np.uint8),
            "place": spaces.Tuple(
                (spaces.Box(-np.inf, np.inf, (2,), np.float32), spaces.Discrete(8))
            ),
            "switches": spaces.Box(-128, 127, (5,), np.int8),
        }
    )
    assert made.action_space["mode"] == spaces.Discrete(4)
    # And back: parts of spaces are fields.
    sw.convert("minari:everything/mine-v0", tmp_path / "steps")
    with sw.StepReader.open(tmp_path / "steps") as steps:
        assert list(steps.schema) == [
            *("observation.camera", "observation.place.0", "observation.place.1"),
            *("observation.switches", "action.mode", "action.push"),
            *("reward", "terminated", "truncated"),
            *("next_observation.camera", "next_observation.place.0", "next_observation.place.1"),
            "next_observation.switches",
        ]
        found = {
            name.translate(str.maketrans("/", ".", "()")): v for name, v in everything[:].items()
        }
        for name, values in steps[:].items():
            np.testing.assert_array_equal(values, found[name], name)


def test_names_that_are_numbers(tmp_path: Path) -> None:
    steps: Any = {name: np.arange(3.0) for name in ("observation.1", "next_observation.1")}
    steps |= {"action.0": np.zeros(3), "reward": np.zeros(3)}
    steps |= {"terminated": np.zeros(3, bool), "truncated": np.arange(3) == 2}
    sw.convert(sw.formats.arrays(steps), "minari:some/numbers-v0")
    made = minari.load_dataset("some/numbers-v0")
    assert list(made.observation_space) == ["1"]
    assert isinstance(made.action_space, spaces.Tuple)


def test_episodes_that_are_not_whole(tmp_path: Path) -> None:
    with ReplayWriter(tmp_path / "store", "a") as writer:
        for final in (np.ones(3), None):
            for step in range(4):
                writer.record_step(
                    observation=np.zeros(3), action=np.uint8(step), reward=1, truncated=step == 3
                )
            if final is not None:
                writer.end_episode(observation=final)
    with pytest.warns(UserWarning, match="1 of 2 episodes are left out"):
        report = sw.convert(tmp_path / "store", "minari:some/thing-v0")
    assert report.runs == 1
    assert minari.load_dataset("some/thing-v0").action_space == spaces.Discrete(4)
    with pytest.raises(sw.SchemaError, match="no episodes with all steps"):
        sw.convert(tmp_path / "store", "minari:some/thing-v1", where="final_obs_ref IS NULL")


def test_names_and_rows_that_minari_has_not(replays: ReplayReader, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected a name like 'pong/random-v0', got 'nothing'"):
        sw.convert(replays.root, "minari:nothing")
    sw.convert(replays.root, tmp_path / "steps")
    fields = ["observation", "action", "reward", "terminated", "truncated"]
    with pytest.raises(SchemaError, match="needs next_observation beside observation"):
        sw.convert(tmp_path / "steps", "minari:some/thing-v2", field=fields)
