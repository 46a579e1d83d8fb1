"""An expectimax player of 2048, and games that are the same on every machine.

The player makes the move with the largest expected value, of equal ones the last. A run records
the values of up, down, left and right: 0 for the worst legal move, just below 1 for the best, 0.5
where all are equal; a move that is alone has the best, an illegal one 0.

A game is a function of depth, seed and number: `play(10, seed=1)` gives the first ten games of
seed 1, and game 7 of it is the same in every order, on any number of cores, in every release.
`depth` is how many own moves the player looks ahead, each with the average over every tile
that may follow: 1 is quickest, 2 reaches 2048 in most games, each further one takes about
twenty times longer.
"""

import operator
import os
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import TypeVar

from stepwell import _core
from stepwell.game2048.board import whole
from stepwell.game2048.runs import Run
from stepwell.ordered import in_order

DEEPEST = 6
"""The maximum of own moves the player looks ahead."""

R = TypeVar("R")


def play(
    games: int,
    *,
    depth: int = 2,
    seed: int = 0,
    first: int = 0,
    workers: int | None = None,
    clock: bool = False,
) -> Iterator[Run]:
    """Play the games numbered `first` to `first + games - 1`; they come in order.

    `workers` threads (one for each core by default) play a few games ahead of the loop; a loop
    that is left waits for those that have begun. With `clock` a run has when it was played and
    how long that took; without, equal arguments give equal bytes.
    """
    games = _one("games", games, max_value=2**63)
    first = _one("first", first, max_value=2**64 - games)
    return _ahead(_game(depth, seed, clock), range(first, first + games), workers)


def play_to(
    directory: str | os.PathLike[str],
    games: int,
    *,
    depth: int = 2,
    seed: int = 0,
    workers: int | None = None,
    clock: bool = False,
    on_game: Callable[[int, int], object] | None = None,
) -> list[Path]:
    """Write games as `depth2-seed0-000000.a2run2` and so on; return their paths in order.

    A file that is there is left alone, and each one appears whole or not at all: the same
    command again continues where it was interrupted. `on_game(done, total)` is called with what
    is there already and after each further game.
    """
    folder = Path(directory)
    numbers = range(_one("games", games, max_value=2**63))
    one = _game(depth, seed, clock)
    paths = [folder / f"depth{depth}-seed{seed}-{number:06}.a2run2" for number in numbers]
    missing = [number for number in numbers if not paths[number].exists()]
    written = _ahead(lambda number: one(number).save(paths[number]), missing, workers)
    folder.mkdir(parents=True, exist_ok=True)
    for done, _ in enumerate(chain([None], written), games - len(missing)):
        if on_game is not None and done:
            on_game(done, games)
    return paths


def _ahead(work: Callable[[int], R], numbers: Iterable[int], workers: int | None) -> Iterator[R]:
    threads = _core.usable_cores() if workers is None else _one("workers", workers, 1, 1024)
    return in_order(work, numbers, threads, ahead=2 * threads)


def _game(depth: int, seed: int, clock: bool) -> Callable[[int], Run]:
    """A function that plays the game of a number, on whichever thread calls it."""
    depth, seed = _one("depth", depth, 1, DEEPEST), _one("seed", seed)

    def one(number: int) -> Run:
        start, begin = time.time(), time.perf_counter()
        boards, moves, legal, values, final = _core.play_game(depth, seed, number)
        return Run(
            boards,
            moves,
            final,
            ev_values=values,
            ev_legal=legal,
            start_unix_s=int(start) if clock else 0,
            elapsed_s=time.perf_counter() - begin if clock else 0.0,
            engine=f"stepwell-expectimax-d{depth}",
        )

    return one


def _one(name: str, value: int, min_value: int = 0, max_value: int = 2**64 - 1) -> int:
    return operator.index(whole(name, value, min_value=min_value, max_value=max_value))
