"""Steps of programs with a bus of their own."""

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from stepwell import SchemaError
from stepwell.replay import ReplayReader, ReplaySink
from tests.replays import assert_tree, camera, frame


@dataclass
class Emitted:
    """As the first design has a step, with members that a writer does not know."""

    episode_id: str
    step_index: int
    reward: float
    observation: Any
    render_payload: Any = None
    terminated: bool = False
    truncated: bool = False
    run_id: str | None = "one"
    frame_ref: str | None = None
    payload_version: int = 3
    info: dict[str, Any] = field(default_factory=dict)


class Bare(NamedTuple):
    reward: float
    observation: Any


def test_steps_of_every_kind_and_run(quick_path: Path) -> None:
    steps = [
        Emitted("ep", 4, 0.5, camera(0), frame(0), info={"lives": 2}),
        {"run_id": "two", "reward": 1, "observation": camera(1), "seed": np.int64(7)},
        Emitted("ep", 5, 1.5, camera(2), terminated=True),
        SimpleNamespace(run_id="two", reward=2, observation=camera(3), frame=frame(3)),
    ]
    with ReplaySink(quick_path, names={"frame": "render_payload"}) as sink:
        first = sink(steps[0])
        assert first is not None
        assert (first.episode_id, first.step_index, first.frame_ref) == (
            "ep",
            4,
            "h5://one/frames/0",
        )
        assert [refs.obs_ref for refs in sink.put_all(steps[1:]) if refs] == [
            *("h5://two/observations/0", "h5://one/observations/1", "h5://two/observations/1"),
        ]
        sink.writer("two").end_episode(observation=camera(4))
        sink.commit()
        assert [e.steps for e in ReplayReader.open(quick_path).episodes] == [2, 2]
        assert "2 runs" in repr(sink)
    with ReplayReader.open(quick_path) as reader:
        assert reader.verify().ok
        assert [run.state for run in reader.recordings.values()] == ["closed", "closed"]
        one, two = reader.episode("ep"), reader.episode("two-ep0000")
    assert one.infos == [{"lives": 2, "payload_version": 3}, {"payload_version": 3}]
    assert two.infos == [{"seed": 7}, {}]
    assert one.episode.terminated
    assert_tree(one.frames, frame(0)[None])
    assert_tree(two.observations, np.array([camera(1), camera(3)]))
    assert_tree(two.final_observation, camera(4))


def test_a_run_of_the_sinks_own(quick_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), ReplaySink(quick_path, "run", mode="a") as sink:  # noqa: PT012
        sink.put(Bare(1, camera(1)))
        raise ZeroDivisionError
    sink.close()
    with pytest.raises(ValueError, match="closed"):
        sink.put(Bare(1, camera(1)))
    (episode,) = ReplayReader.open(quick_path).episodes
    assert (episode.steps, episode.over, episode.ended) == (1, True, False)  # cut


def test_a_member_with_the_name_of_an_argument_that_is_there(quick_path: Path) -> None:
    step = {"score": 2.0, "reward": "gold", "frame": 17, "pixels": frame(1)}
    with ReplaySink(quick_path, "run", names={"reward": "score", "frame": "pixels"}) as sink:
        sink.put_all([step, dict(reversed(step.items()))])
    found = ReplayReader.open(quick_path).episode("run-ep0000")
    assert found.infos == [{"reward": "gold", "frame": 17}] * 2
    assert found.rewards.tolist() == [2, 2]
    assert_tree(found.frames, np.array([frame(1)] * 2))


def test_steps_that_are_refused(quick_path: Path) -> None:
    wrong: list[tuple[Any, type[Exception], str]] = [
        ({"reward": 1}, SchemaError, "run_id: expected one in the step"),
        ({"run_id": "a"}, SchemaError, "reward: expected one in every step"),
        ({"run_id": "../a", "reward": 1}, ValueError, "run_id: expected 1 to 128"),
        ({"run_id": "a", "reward": 1, "info": 3, "more": 1}, TypeError, "info: expected a mapping"),
        (
            {"run_id": "a", "reward": 1, "terminated": "false"},
            SchemaError,
            "terminated: expected True or False, got 'false'",
        ),
        (3, TypeError, "step: expected a dict or an object, got int"),
        (Bare, TypeError, "step: expected"),
    ]
    with ReplaySink(quick_path) as sink:
        for step, kind, message in wrong:
            with pytest.raises(kind, match=message):
                sink.put(step)
        with pytest.raises(SchemaError, match="reward") as caught:
            sink.put_all([{"run_id": "a", "reward": 1}, {"run_id": "a"}])
        assert caught.value.__notes__ == ["step 1 of the batch"]
    assert len(ReplayReader.open(quick_path)) == 1
    with pytest.raises(ValueError, match=r"names: expected .* got 'pixels'"):
        ReplaySink(quick_path, names={"pixels": "frame"})
    with pytest.raises(ValueError, match="compress"):
        ReplaySink(quick_path, "b", compress="blosc")
