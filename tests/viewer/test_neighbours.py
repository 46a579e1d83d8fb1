"""The runs before and after one, compared with the list that they are of."""

from pathlib import Path

import numpy as np
import pytest

import stepwell as sw
from tests.viewer.serving import Viewer


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("steps", {}),
        ("steps", {"where": "score % 3 = 1"}),
        ("steps", {"where": "score < 20 -- a comment", "sort": "score", "desc": "1"}),
        ("steps", {"sort": "num_steps"}),
        ("games.a2pack", {"sort": "max_score"}),
        ("replays", {"where": "run_id = 'deep'"}),
        ("replays", {"sort": "total_reward", "desc": "1"}),
    ],
)
def test_they_are_those_of_the_list(
    viewer: Viewer, folder: Path, name: str, given: dict[str, str]
) -> None:
    number = viewer.add(folder / name).number
    listed = viewer.json(f"/data/{number}/runs", **given)
    place = listed["columns"].index(listed["key"])
    keys = [row[place] for row in listed["rows"]]
    assert len(keys) == listed["count"] > 1
    for at, key in enumerate(keys):
        assert viewer.json(f"/data/{number}/near", key=key, **given) == {
            "previous": keys[at - 1] if at else None,
            "next": keys[at + 1] if at + 1 < len(keys) else None,
            "position": at,
            "count": len(keys),
        }


def test_the_order_is_that_of_recording(viewer: Viewer, tmp_path: Path) -> None:
    want = []
    for name in ("last", "first"):  # which no index of names has
        with sw.ReplayWriter(tmp_path / "replays", name) as replay:
            for _ in range(3):
                replay.record_step(
                    observation=np.zeros(1, "f4"), action=0, reward=0.0, terminated=True
                )
        want += [f"{name}-ep{number:04d}" for number in range(3)]
    number = viewer.add(tmp_path / "replays").number
    for given in ({}, {"sort": "steps", "desc": "1"}, {"where": "steps = 1"}):
        found = viewer.json(f"/data/{number}/runs", **given)
        assert [row[found["columns"].index("episode_id")] for row in found["rows"]] == want
        key = want[0]
        for following in want[1:]:
            key = viewer.json(f"/data/{number}/near", key=key, **given)["next"]
            assert key == following


def test_a_run_that_is_not_in_the_list(viewer: Viewer, folder: Path) -> None:
    number = viewer.add(folder / "steps").number
    nothing = {"previous": None, "next": None, "position": None}
    for key, where, count in (("3", "score > 10", 20), ("nobody", "", 30)):
        found = viewer.json(f"/data/{number}/near", key=key, where=where)
        assert found == {**nothing, "count": count}


def test_mistakes_are_sentences(viewer: Viewer, folder: Path) -> None:
    number = viewer.add(folder / "steps").number
    for given in (
        {"where": "score >"},
        {"where": "1) OR (1"},
        {"where": "1 UNION SELECT 1"},
        {"sort": "nothing"},
        {"sort": 'score" --'},
    ):
        assert viewer.error(f"/data/{number}/near", 400, key="3", **given)
