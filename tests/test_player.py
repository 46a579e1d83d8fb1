"""The player of 2048: its games are legal, recorded as the format says, and always the same."""

import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell import _core, game2048 as g
from stepwell.game2048.player import DEEPEST
from stepwell.game2048.runs import Run
from tests import children
from tests.reference import runs

LOST = -8 * 200_000 * 256  # what a board without a legal move is worth


def checksum(data: bytes) -> int:
    return _core.crc32c(np.frombuffer(data, np.uint8))


@pytest.fixture(scope="module", params=[1, 2])
def game(request: pytest.FixtureRequest) -> tuple[int, Run]:
    """A depth, and a whole game played at it."""
    return request.param, next(g.play(1, depth=request.param, seed=11, workers=1))


# Always the same.

GOLDEN = {
    # (depth, seed, game): steps, CRC32C of the run's bytes. Games are data that people keep:
    # whoever changes one of these breaks the promise of the module's docstring.
    (1, 0, 0): (866, 0x0E439F4E),
    (1, 7, 12345): (1470, 0xDB9D3B94),
    (1, 2**64 - 1, 2**64 - 1): (813, 0x6C4B2427),
    (2, 0, 0): (1759, 0x6A334E90),
    (2, 1, 7): (1917, 0xE9516371),
    (2, 1, 4999): (3537, 0xF6B29B07),
    (3, 0, 0): (3771, 0x93BB6EC8),
}


@pytest.mark.parametrize(("depth", "seed", "number"), GOLDEN)
def test_a_game_is_the_same_for_ever(depth: int, seed: int, number: int) -> None:
    run = next(g.play(1, depth=depth, seed=seed, first=number))
    assert (len(run), checksum(run.to_bytes())) == GOLDEN[depth, seed, number]


GOLDEN_VALUES = {
    1: [-8454486.0, 0.0, -8989782.0, 0.0],
    2: [-7370811.0, 0.0, -9768860.0, 0.0],
    3: [-6963846.0, 0.0, -8346128.0, 0.0],
    4: [-6621557.0, 0.0, -8298676.0, 0.0],
    5: [-6796468.0, 0.0, -8133651.0, 0.0],
    6: [-6881530.0, 0.0, -7487751.0, 0.0],
}


@pytest.mark.parametrize("depth", range(1, DEEPEST + 1))
def test_values_are_the_same_for_ever(depth: int) -> None:
    _, _, _, expected = _core.choose(0x0012_0123_1245_2479, depth)
    assert list(expected) == GOLDEN_VALUES[depth]


def test_games_differ_by_seed_and_number() -> None:
    runs = [*g.play(4, depth=1, seed=0), *g.play(4, depth=1, seed=1)]
    assert len({run.to_bytes() for run in runs}) == 8


def test_the_number_of_threads_and_the_first_game_change_nothing() -> None:
    alone = [run.to_bytes() for run in g.play(9, depth=1, seed=3, workers=1)]
    assert [run.to_bytes() for run in g.play(9, depth=1, seed=3, workers=4)] == alone
    assert [run.to_bytes() for run in g.play(9, depth=1, seed=3)] == alone
    assert [run.to_bytes() for run in g.play(4, depth=1, seed=3, first=5)] == alone[5:]


# Legal, and recorded as the format says.


def test_every_board_follows_from_the_one_before(game: tuple[int, Run]) -> None:
    _, run = game
    boards = run.states
    first = g.exponents(boards[0])
    assert np.count_nonzero(first) == 2
    assert first.max() <= 2
    after = g.exponents(g.move(boards[:-1], run.moves))
    then = g.exponents(boards[1:])
    changed = after != then
    assert (changed.sum(axis=1) == 1).all()
    assert (after[changed] == 0).all()
    assert np.isin(then[changed], [1, 2]).all()
    assert g.legal(run.final_board) == 0


def test_spawns_are_uniform_and_one_in_ten_is_a_four() -> None:
    ranks, fours = [], []
    for run in g.play(20, depth=1, seed=5):
        after = g.exponents(g.move(run.boards, run.moves))
        then = g.exponents(run.states[1:])
        at = (after != then).argmax(axis=1)
        empty = after == 0
        before = np.take_along_axis(empty.cumsum(axis=1), at[:, None], axis=1)[:, 0] - 1
        ranks.append((before + 0.5) / empty.sum(axis=1))  # mean 1/2 whatever the count
        fours.append(np.take_along_axis(then, at[:, None], axis=1)[:, 0] == 2)
    rank, four = np.concatenate(ranks), np.concatenate(fours)
    # Six standard deviations of games that never change.
    assert abs(rank.mean() - 0.5) < 6 * 0.29 / len(rank) ** 0.5
    assert abs(four.mean() - 0.1) < 6 * 0.3 / len(four) ** 0.5


def test_what_a_run_says_about_itself(game: tuple[int, Run]) -> None:
    depth, run = game
    assert run.meta.steps == len(run.moves) > 100
    assert run.meta.max_score == g.score(run.final_board)
    assert run.meta.highest_tile == g.highest_tile(run.final_board)
    assert run.meta.engine == f"stepwell-expectimax-d{depth}"
    assert (run.meta.start_unix_s, run.meta.elapsed_s) == (0, 0.0)
    assert run.has_branches.all()
    assert Run.from_bytes(run.to_bytes()) == run


def test_values_are_scaled_by_the_rule_and_the_last_maximum_is_chosen(
    game: tuple[int, Run],
) -> None:
    depth, run = game
    for board, move, legal, values in zip(
        run.boards.tolist(), run.moves.tolist(), run.ev_legal.tolist(), run.ev_values, strict=True
    ):
        chosen, given, mask, expected = _core.choose(board, depth)
        assert (chosen, mask, g.legal(board)) == (move, legal, legal)
        assert values.tolist() == list(given)
        branches = [expected[m] if legal >> m & 1 else None for m in range(4)]
        assert move == runs.choose(branches)
        assert values.tolist() == [value or 0 for value in runs.normalise(branches)]
        assert all(expected[m] == 0 for m in range(4) if not legal >> m & 1)


# What the player computes.


def worth(board: int) -> int:
    """The heuristic in plain Python: native/player.cpp has it as tables."""
    size = [round(e**3.4) for e in range(16)]
    cells = np.array([board >> (60 - 4 * i) & 15 for i in range(16)]).reshape(4, 4)
    total = 0
    for line in [*cells.tolist(), *cells.T.tolist()]:
        tiles = [e for e in line if e]
        total += 1400 * (4 - len(tiles)) - 6 * sum(size[e] for e in tiles)
        for a, b in pairwise(tiles):
            total += 2400 if a == b else -450 * abs(a - b)
        steps = [size[b] - size[a] for a, b in pairwise(line)]
        total -= 11 * min(sum(max(s, 0) for s in steps), sum(max(-s, 0) for s in steps))
    return 256 * total


def spawned(board: int) -> Iterator[tuple[float, int]]:
    """Every board one spawn away, with its probability."""
    empty = [shift for shift in range(0, 64, 4) if not board >> shift & 15]
    for shift in empty:
        yield 0.9 / len(empty), board | 1 << shift
        yield 0.1 / len(empty), board | 2 << shift


SOME = [0x0012_0123_1245_2479, 0x1212_2121_1212_2120, 0x1230_2341_3452_4567, 0x1111_0000_0000_0003]


@pytest.mark.parametrize("board", SOME, ids=hex)
def test_depth_one_is_the_mean_over_every_spawn(board: int) -> None:
    _, _, legal, expected = _core.choose(board, 1)
    for m in range(4):
        if legal >> m & 1:
            mean = sum(p * worth(then) for p, then in spawned(g.move(board, m)))
            assert expected[m] == pytest.approx(mean, rel=1e-6, abs=4)


@pytest.mark.parametrize("depth", [2, 3])
@pytest.mark.parametrize("board", SOME, ids=hex)
def test_one_deeper_is_the_mean_of_the_best_next_moves(board: int, depth: int) -> None:
    def best(then: int) -> float:
        move, _, legal, expected = _core.choose(then, depth - 1)
        return expected[move] if legal else LOST

    _, _, legal, expected = _core.choose(board, depth)
    for m in range(4):
        if legal >> m & 1:
            mean = sum(p * best(then) for p, then in spawned(g.move(board, m)))
            assert expected[m] == pytest.approx(mean, rel=1e-6, abs=4)


def test_deeper_players_play_better() -> None:
    # Games never change, so neither does this.
    scores = {
        depth: np.mean([run.meta.max_score for run in g.play(10, depth=depth, seed=2)])
        for depth in (1, 2)
    }
    tiles = [run.meta.highest_tile for run in g.play(20, depth=1, seed=2)]
    assert scores[2] > 1.5 * scores[1]
    assert np.mean(np.array(tiles) >= 512) > 0.9


# Games as files.


def test_play_to_writes_what_play_gives(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    paths = g.play_to(
        tmp_path / "new" / "folder",
        3,
        depth=1,
        seed=4,
        on_game=lambda done, total: calls.append((done, total)),
    )
    assert [path.name for path in paths] == [f"depth1-seed4-00000{i}.a2run2" for i in range(3)]
    assert sorted((tmp_path / "new" / "folder").iterdir()) == paths
    for path, run in zip(paths, g.play(3, depth=1, seed=4), strict=True):
        assert path.read_bytes() == run.to_bytes()
        assert Run.load(path) == run
    assert calls == [(1, 3), (2, 3), (3, 3)]


def test_an_interrupted_command_continues(tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        g.play_to(tmp_path, 20, depth=1, workers=1, on_game=stop)
    there = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert 3 <= len(there) < 20
    calls: list[int] = []
    paths = g.play_to(tmp_path, 20, depth=1, on_game=lambda done, total: calls.append(done))
    assert calls == list(range(len(there), 21))
    assert {path: path.stat().st_mtime_ns for path in there} == there
    for path, run in zip(paths, g.play(20, depth=1), strict=True):
        assert path.read_bytes() == run.to_bytes()


def test_no_games(tmp_path: Path) -> None:
    assert list(g.play(0)) == []
    assert g.play_to(tmp_path / "none", 0) == []


def test_a_clock_is_asked_for() -> None:
    run = next(g.play(1, depth=1, clock=True))
    assert run.meta.start_unix_s > 1_700_000_000
    assert run.meta.elapsed_s > 0
    assert run.moves.tolist() == next(g.play(1, depth=1)).moves.tolist()


def test_a_loop_that_is_left_stops_the_work() -> None:
    runs = g.play(10**9, depth=1, workers=2)
    next(runs)
    assert any(thread.name.startswith("stepwell-ahead") for thread in threading.enumerate())
    runs.close()  # type: ignore[attr-defined]
    assert not any(thread.name.startswith("stepwell-ahead") for thread in threading.enumerate())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"depth": 7}, "depth: expected 1 to 6, got 7"),
        ({"seed": 2**64}, "seed: expected 0 to"),
        ({"games": -1}, "games: expected 0 to"),
        ({"workers": 0}, "workers: expected 1 to"),
        ({"first": 2**64}, "first: expected 0 to"),
    ],
)
def test_arguments_out_of_range(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        g.play(**{"games": 1, **arguments})  # at once, not in the first round of the loop
    if "first" not in arguments:
        with pytest.raises(ValueError, match=message):
            g.play_to(tmp_path / "games", **{"games": 1, **arguments})
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["games", "depth", "seed", "first", "workers"])
def test_arguments_that_are_no_whole_numbers(name: str) -> None:
    wrong: dict[str, Any] = {"games": 1, name: 1.0}
    with pytest.raises(TypeError, match=f"{name}: expected whole numbers, got 1.0"):
        g.play(**wrong)


def test_a_process_may_end_while_it_plays() -> None:
    script = """
import struct
import threading
from stepwell import _core
begun = threading.Barrier(5)
def play(game):
    begun.wait()
    _core.play_game(4, 1, game)
for game in range(4):
    threading.Thread(target=play, args=(game,), daemon=True).start()
begun.wait()
"""
    for _ in range(3):
        done = children.python(script)
        assert (done.returncode, done.stderr) == (0, "")
