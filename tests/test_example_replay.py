"""The player in examples/ learns from what was recorded."""

import re
from pathlib import Path

from stepwell.replay import ReplayReader
from tests.test_examples import EXAMPLES, losses, printed


def test_a_player_learns_from_a_clumsy_one(tmp_path: Path) -> None:
    options = ["--record", "6000", "--steps", "400", "--games", "5"]
    lines = printed(EXAMPLES / "train_replay.py", tmp_path / "replays", *options)
    first, *middle, learned, last = lines
    recorded = re.match(r"recorded: reward (\S+) in (\d+) episodes", first)
    assert recorded is not None
    assert list(losses(middle)) == [200, 400]
    assert losses(middle)[400] < 0.67  # nothing learned: 0.693
    found = re.match(r"learned: reward (\S+) in 5 games, (\S+) times as much", learned)
    assert found is not None
    assert float(found[2]) > 2
    assert re.match(r"400 steps, \d+ s", last)
    with ReplayReader.open(tmp_path / "replays") as replays:
        (run,) = replays.recordings.values()
        assert (run.state, run.steps) == ("closed", 6000)
        assert run.episodes in (int(recorded[2]), int(recorded[2]) + 1)
