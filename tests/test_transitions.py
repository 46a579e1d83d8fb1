"""What follows a step: transitions, returns and padded windows, against plain Python."""

import pickle
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import stepwell as sw
from stepwell import ArraySource, SchemaError, Source
from stepwell.formats import arrays
from tests import scaled
from tests.contract import assert_batch
from tests.plain import PlainSource
from tests.stores.test_replay_source import EPISODES, record_episodes

Step = tuple[float, bool, bool]
"""Reward, terminated, truncated; what is seen is the number of the row, and then its negative."""
Runs = list[list[Step]]

STEPS = st.tuples(st.integers(-5, 5), st.integers(0, 9)).map(
    lambda drawn: (float(drawn[0]), drawn[1] in (1, 2), drawn[1] in (2, 3))
)
RUNS = st.lists(st.lists(STEPS, max_size=8), min_size=1, max_size=5)
GAMMAS = st.sampled_from([0.0, 0.5, 0.99, 1.0])


def flat(runs: Runs) -> list[tuple[Step, bool]]:
    """Every step, and whether it is the last of its run."""
    return [(step, i == len(run) - 1) for run in runs for i, step in enumerate(run)]


def source_of(runs: Runs, make: Callable[[Any], Source], *, own: bool = False) -> Source:
    """The runs as a source; with `own` rows have what was seen after them."""
    parts, first = [], 1
    for run in runs:
        seen = np.arange(first, first + len(run), dtype=np.float32)
        columns: dict[str, Any] = {
            "obs": np.stack([seen, -seen], axis=1),
            "reward": np.array([reward for reward, _, _ in run], np.float32),
            "terminated": np.array([end for _, end, _ in run], bool),
            "truncated": np.array([end for _, _, end in run], bool),
        }
        if own:
            columns["next_obs"] = columns["obs"] + 1000
        parts.append(make(columns))
        first += len(run)
    return parts[0].concat(*parts[1:])


def follow(
    runs: Runs, rows: Sequence[int], n: int, gamma: float, own: bool
) -> list[dict[str, Any]]:
    """The transitions of some rows, one at a time."""
    steps, made = flat(runs), []

    def goes_on(i: int) -> bool:
        (_, terminated, truncated), over = steps[rows[i]]
        here = i + 1 < len(rows) and rows[i + 1] == rows[i] + 1
        return here and not (over or terminated or truncated)

    for i in range(len(rows)):
        total, at = steps[rows[i]][0][0], i
        while at - i < n - 1 and goes_on(at):
            at += 1
            total += gamma ** (at - i) * steps[rows[at]][0][0]
        _, terminated, truncated = steps[rows[at]][0]
        if own:
            after = np.array([rows[at] + 1001, 999 - rows[at]], "f4")
        elif goes_on(at):
            after = np.array([rows[at + 1] + 1, -rows[at + 1] - 1], "f4")
        elif terminated:
            after = np.zeros(2, "f4")
        else:
            continue
        made.append(
            {
                "obs": np.array([rows[i] + 1, -rows[i] - 1], "f4"),
                "reward": total,
                "terminated": terminated,
                "truncated": truncated,
                "next_obs": after,
                "discount": 0.0 if terminated else gamma ** (at - i + 1),
            }
        )
    return made


def assert_rows(source: Source, want: list[dict[str, Any]]) -> None:
    assert len(source) == len(want)
    found = source[:]
    for name, values in found.items():
        column = np.array([row[name] for row in want]).reshape(values.shape)
        assert values.dtype == (bool if name in ("terminated", "truncated") else np.float32)
        np.testing.assert_allclose(values, column, rtol=1e-5, atol=1e-5)


@settings(max_examples=scaled(100, smallest=20))
@given(data=st.data(), runs=RUNS, n=st.sampled_from([1, 2, 3, 20]), gamma=GAMMAS)
def test_what_follows(data: st.DataObject, runs: Runs, n: int, gamma: float) -> None:
    make: Any = data.draw(st.sampled_from([ArraySource, PlainSource]))
    own = data.draw(st.booleans())
    source = source_of(runs, make, own=own)
    rows = list(range(len(source)))
    view = data.draw(st.sampled_from(["whole", "rows", "slice"]))
    if rows and view == "rows":  # what follows is not what comes next in a view
        rows = data.draw(st.lists(st.sampled_from(rows), max_size=12))
        source = source.select(rows)
    elif view == "slice":
        key = data.draw(st.slices(len(rows)))
        source, rows = source.select(key), rows[key]
    made = source.transitions(n, gamma)
    assert (made._reader is not None) == (make is ArraySource)
    assert ("discount" in made) == (n > 1)
    want = follow(runs, rows, n, gamma, own)
    assert_rows(made, want)
    again = pickle.loads(pickle.dumps(made))
    assert again.fingerprint == made.fingerprint
    assert_rows(again, want)


@settings(max_examples=scaled(60, smallest=20))
@given(data=st.data(), runs=RUNS, gamma=GAMMAS)
def test_returns_to_go(data: st.DataObject, runs: Runs, gamma: float) -> None:
    steps = flat(runs)
    want: list[float] = [0.0] * len(steps)
    for i in reversed(range(len(steps))):
        (reward, terminated, truncated), over = steps[i]
        ended = over or terminated or truncated
        want[i] = reward if ended else reward + gamma * want[i + 1]
    source = source_of(runs, data.draw(st.sampled_from([ArraySource, PlainSource])))
    rows, choose = list(range(len(steps))), data.draw(st.booleans())
    if rows and choose:  # the rewards between rows that were chosen count
        rows = data.draw(st.lists(st.sampled_from(rows), max_size=12))
        source = source.select(rows)
    made = source.columns(["reward", "terminated", "truncated"]).returns_to_go(gamma)
    np.testing.assert_allclose(made[:]["return_to_go"], [want[i] for i in rows], rtol=1e-5)
    assert made[:]["reward"].tolist() == [steps[i][0][0] for i in rows]
    behind = source.transitions(3, gamma).returns_to_go(gamma)[:]  # of single steps all the same
    places = (behind["obs"][:, 0] - 1).astype(int)
    np.testing.assert_allclose(behind["return_to_go"], np.array(want)[places], rtol=1e-5)


def test_returns_that_are_not_known() -> None:
    source = ArraySource({"reward": np.arange(6.0), "x": np.arange(6)})
    cut = source.select([0, 1, 3, 4, 5]).map(lambda batch: batch)  # whose rewards may be others
    assert cut.returns_to_go()[:]["return_to_go"].tolist()[2:] == [12, 9, 5]
    assert np.isnan(cut.returns_to_go()[:]["return_to_go"][:2]).all()
    odd = ArraySource({"reward": np.array([1.0, np.inf])}).concat(
        ArraySource({"reward": np.array([np.nan, 2.0])})
    )
    got = odd.returns_to_go(0.5)[:]["return_to_go"]
    np.testing.assert_array_equal(got, [np.inf, np.inf, np.nan, 2.0])


@settings(max_examples=scaled(60, smallest=10))
@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=5),
    length=st.integers(1, 6),
    stride=st.integers(1, 6),
    make=st.sampled_from([ArraySource, PlainSource]),
)
def test_padded_windows(lengths: list[int], length: int, stride: int, make: Any) -> None:
    ranges = list(pairwise(np.cumsum([0, *lengths]).tolist()))
    parts = [make({"x": np.arange(begin, end) + 1}) for begin, end in ranges]
    source = parts[0].concat(*parts[1:])
    want = [
        [*range(i + 1, min(i + length, end) + 1), *[0] * max(0, i + length - end)]
        for begin, end in ranges
        for i in range(begin, end, stride)
    ]
    padded = source.windows(length, stride, pad=True)
    assert (padded._reader is not None) == (make is ArraySource)
    found = pickle.loads(pickle.dumps(padded))[:]
    assert found["x"].tolist() == want
    assert found["mask"].tolist() == [[x > 0 for x in row] for row in want]
    if stride == length:  # every row is in one of them
        assert found["x"][found["mask"]].tolist() == list(range(1, len(source) + 1))


# Step datasets, replays, and what grows.


def test_steps_have_the_transitions_of_the_replay_they_are_made_of(tmp_path: Path) -> None:
    record_episodes(tmp_path / "replay", EPISODES)
    replays = sw.ReplayReader.open(tmp_path / "replay")
    sw.convert(replays, tmp_path / "steps", to="steps")
    steps = sw.StepReader.open(tmp_path / "steps")
    names = {name: name.replace("/", ".") for name in replays.schema}
    for n in (1, 3):
        want, got = replays.transitions(n, 0.9)[:], steps.transitions(n, 0.9)[:]
        opened = sw.ReplayReader.open(tmp_path / "replay", n_step=n, gamma=0.9)
        assert replays.transitions(n, 0.9).fingerprint == opened.fingerprint
        assert set(got) == {*names.values(), *(["discount"] if n > 1 else [])}
        generic = Source.transitions(replays, n, 0.9)[:]
        for name, values in want.items():
            np.testing.assert_array_equal(got[names.get(name, name)], values)
            np.testing.assert_array_equal(generic[name], values)
    seen = steps.columns([name for name in steps.schema if not name.startswith("next_")])
    whole = steps.transitions(3, 0.9)[:]
    left = seen.transitions(3, 0.9)[:]  # without what was seen in the end, fewer are left
    kept = np.isin(whole["action"][:, 0], left["action"][:, 0])
    for name in set(left) - {"next_observation.camera", "next_observation.pose"}:
        np.testing.assert_array_equal(left[name], whole[name][kept])
    assert 0 < len(left["reward"]) < len(whole["reward"])
    for source in (replays, steps):
        to_go = source.where("1").returns_to_go(0.9)[:]["return_to_go"]
        assert to_go[[6, 7, 39]].tolist() == [6 / 4, 7 / 4, 39 / 4]
        np.testing.assert_allclose(to_go[37], 37 / 4 + 0.9 * (38 / 4 + 0.9 * 39 / 4))


def test_returns_of_a_replay_count_steps_that_are_left_out(tmp_path: Path) -> None:
    with sw.ReplayWriter(tmp_path, "run") as writer:
        for number in range(4):  # cut: nothing is seen after the last
            writer.record_step(observation=np.zeros(2), reward=2.0**number)
    replays = sw.ReplayReader.open(tmp_path)
    for source in (replays, replays.columns(["reward"]), replays.transitions(2)):
        assert source.returns_to_go()[:]["return_to_go"].tolist() == [15, 14, 12][: len(source)]


def test_returns_of_a_replay_are_of_the_field_that_is_named(tmp_path: Path) -> None:
    with sw.ReplayWriter(tmp_path, "run") as writer:
        for number in range(3):
            writer.record_step(
                observation=np.zeros(2), action=number, reward=9.0, terminated=number == 2
            )
    replays = sw.ReplayReader.open(tmp_path)
    renamed = replays.columns({"reward": "action", "terminated": "terminated"})
    for source in (replays.returns_to_go(reward="action"), renamed.returns_to_go()):
        assert source[:]["return_to_go"].tolist() == [3, 3, 2]
    ended = replays.returns_to_go(terminated="action")  # which is not 0 from the second step on
    assert ended[:]["return_to_go"].tolist() == [18, 9, 9]


def test_views_of_what_grows(tmp_path: Path) -> None:
    with sw.StepWriter(tmp_path / "s", [("obs", "<f4"), ("reward", "<f4")]) as writer:
        writer.append({"obs": np.arange(5), "reward": np.ones(5)})
        writer.commit()
        source = sw.StepReader.open(tmp_path / "s")
        views = [
            source.windows(3, 3, pad=True),
            source.transitions(2, terminated=True),
            source.returns_to_go(),
            source.concat(ArraySource({"obs": np.ones(2, "f4"), "reward": np.ones(2, "f4")})),
        ]
        before = [(view.fingerprint, repr(view[:])) for view in views]
        writer.append({"obs": np.arange(9), "reward": np.ones(9)})
    assert source.refresh()
    for view, (fingerprint, rows) in zip(views, before, strict=True):
        view._forget()  # as a loader has it at the end of an epoch
        assert (view.fingerprint, repr(view[:])) == (fingerprint, rows)
    assert source.transitions(2, terminated=True)._fingerprint_of(5) == before[1][0]


def test_usual_names() -> None:
    d4rl = {
        "observations": np.arange(6.0),
        "rewards": np.arange(6),
        "terminals": np.array([0, 0, 1, 0, 0, 0], "u1")[:, None],
        "timeouts": np.array([0, 0, 0, 0, 1, 0], bool),
    }
    source = arrays(d4rl)
    got = source.transitions(2, 0.5)[:]
    assert got["observations"].tolist() == [0, 1, 2]
    assert got["next_observations"].tolist() == [2, 0, 0]
    assert got["rewards"].tolist() == [0.5, 2, 2]
    assert got["rewards"].dtype == got["discount"].dtype == np.float64
    assert source.returns_to_go()[:]["return_to_go"].tolist() == [3, 3, 2, 7, 4, 5]
    nested = ArraySource({"obs/a": np.arange(3), "obs.b": np.arange(3), "action": np.arange(3)})
    assert list(nested.transitions(terminated=False).schema)[3:] == [
        "next_obs/a",
        "next_obs.b",
        "terminated",
    ]
    board = ArraySource({"board": np.arange(3), "gain": np.ones(3), "mask": np.ones(3)})
    got = board.transitions(2, 1.0, observation="board", reward="gain", terminated=True)[:]
    assert got["next_board"].tolist() == [2, 0, 0]
    assert got["terminated"].tolist() == [False, True, True]
    assert got["gain"].tolist() == [2, 2, 1]


PLAIN = {"obs": np.zeros(3), "reward": np.ones(3), "terminated": np.zeros(3, bool)}


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ({"x": np.zeros(3)}, {}, r"expected observations, got \['x'\]; name them"),
        ({"obs": np.zeros(3)}, {}, r"expected a field that shows .* or True if every run"),
        (PLAIN, {"observation": "state"}, "observation 'state': expected rows of a fixed shape"),
        (PLAIN, {"terminated": "done"}, "field 'done': expected a number a row, got only"),
        (PLAIN, {"truncated": "obs2"}, "field 'obs2': expected"),
        ({**PLAIN, "reward": np.ones((3, 2))}, {"n_step": 2}, r"'reward': .* got float64\[2\]"),
        ({**PLAIN, "discount": np.ones(3)}, {"n_step": 2}, "rewards of single steps"),
        ({"obs": np.zeros(3), "terminals": np.zeros(3)}, {"n_step": 2}, "expected rewards"),
    ],
)
def test_fields_that_are_missing(source: Any, options: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        ArraySource(source).transitions(**options)


@pytest.mark.parametrize("n", [2**31, 2**62, 2**200])
def test_as_many_steps_as_one_likes(n: int, tmp_path: Path) -> None:
    """More than there are in any run reach its end, as so many do."""
    record_episodes(tmp_path / "replay", EPISODES)
    sw.convert(tmp_path / "replay", tmp_path / "steps", to="steps")
    readers = sw.ReplayReader.open(tmp_path / "replay"), sw.StepReader.open(tmp_path / "steps")
    for reader in readers:
        want, got = (reader.transitions(steps, gamma=0.5)[:] for steps in (len(reader), n))
        assert_batch(got, want)
        kept = pickle.loads(pickle.dumps(reader.transitions(n, gamma=0.5)))
        assert_batch(kept[:], want)
    rewards = sw.formats.arrays({"obs": np.arange(3.0), "reward": np.ones(3)}, run_lengths=[3])
    found = rewards.transitions(n, gamma=0.5, terminated=True)[:]
    assert found["reward"].tolist() == [1.75, 1.5, 1.0]


@pytest.mark.parametrize("length", [2**60, 2**62, 2**63 - 1])
def test_windows_that_no_memory_holds(length: int) -> None:
    source = ArraySource({"obs": np.zeros((3, 8))})
    assert len(source.windows(length)) == 0
    with pytest.raises(ValueError, match=f"length: expected less than .* got {length}"):
        source.windows(length, pad=True)


def test_mistakes(tmp_path: Path) -> None:
    source = ArraySource(PLAIN)
    for options in ({"n_step": 0}, {"gamma": -0.1}, {"gamma": 1.1}, {"gamma": float("nan")}):
        (name,) = options
        with pytest.raises(ValueError, match=f"{name}: expected"):
            source.transitions(**options)
    with pytest.raises(TypeError, match="float"):
        source.transitions(1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="gamma: expected"):
        source.returns_to_go(2)
    with pytest.raises(SchemaError, match="expected rewards"):
        source.columns(["obs"]).returns_to_go()
    with pytest.raises(SchemaError, match="'mask': expected another name"):
        ArraySource({"mask": np.ones(3)}).windows(2, pad=True)
    record_episodes(tmp_path, EPISODES[:1])
    with pytest.raises(TypeError, match="expected n_step and gamma, got reward too"):
        sw.ReplayReader.open(tmp_path).transitions(reward="r")
