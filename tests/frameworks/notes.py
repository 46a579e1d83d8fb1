"""What each rank of a program saw, as JSON where the tests find it.

A program asks its questions in order and goes on after one that failed, so that one launch answers
them all; each answer is on disk before the next question is asked.
"""

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

import stepwell as sw

N, BATCH, SEED = 1000, 64, 7
EVEN = 1024  # torch's samplers repeat rows to fill a batch up: these rows fill them
HELD_OUT = 200  # rows of a validation
ROWS: Any = np.arange(N)
EVEN_ROWS: Any = np.arange(EVEN)


def rows(batches: Iterable[Any]) -> list[int]:
    """The rows that batches of `np.arange` hold."""
    return [int(row) for batch in batches for row in batch["data"]]


def epochs(loader: Iterable[Any], count: int = 2) -> list[list[int]]:
    return [rows(loader) for _ in range(count)]


def resumed(make: Callable[..., Any], stop: int, **world: Any) -> Any:
    """A loader that goes on where another one stopped after some batches."""
    loader = make()
    for _, _batch in zip(range(stop), loader, strict=False):
        pass
    again = make(**world)
    again.load_state_dict(loader.state_dict())
    return again


class Notes:
    """The answers of one rank, in a file of its own."""

    def __init__(self, rank: int) -> None:
        self._path = Path(os.environ["STEPWELL_NOTES"]) / f"{rank}.json"
        self._answers: dict[str, Any] = {}

    def ask(self, name: str, question: Callable[[], Any]) -> None:
        """Note what it returns, or the error that it raises."""
        try:
            self._answers[name] = question()
        except Exception as error:
            self._answers[name] = {"error": f"{type(error).__name__}: {error}"}
        self._path.write_text(json.dumps(self._answers))


class Seen:
    """The answers of all processes, for the tests."""

    def __init__(self, folder: Path, output: str) -> None:
        files = sorted(folder.glob("[0-9].json"))
        self._answers = [json.loads(file.read_text()) for file in files]
        self.output = output

    def __call__(self, name: str, ranks: int = 2) -> list[Any]:
        """What each rank answered, errors included."""
        said = [answers[name] for answers in self._answers if name in answers]
        assert len(said) == ranks, f"{len(said)} answers to {name!r}:\n{self.output[-3000:]}"
        return said

    def rows(self, name: str, ranks: int = 2) -> list[Any]:
        """The same, of ranks that all went on without an error."""
        said = self(name, ranks)
        for rank, answer in enumerate(said):
            assert not isinstance(answer, dict), f"rank {rank}: {answer['error']}"
        return said

    def refusal(self, name: str, rank: int = 0) -> str:
        """The error of a rank; rows that it was given instead are a failure."""
        answer = self._answers[rank].get(name, "nothing")
        assert isinstance(answer, dict), f"expected a refusal, got {str(answer)[:500]}"
        return str(answer["error"])


def plain(
    epoch: int, rank: int = 0, world: int = 1, *, n: int = N, shuffle: bool = True, skip: int = 0
) -> list[int]:
    """The rows of a rank in an epoch, by a plain loader that was told rank and epoch."""
    seed = SEED if shuffle else 0
    loader = sw.Loader(np.arange(n), BATCH, seed=seed, shuffle=shuffle, rank=rank, world_size=world)
    loader.set_epoch(epoch)
    return rows(list(loader)[skip:])


def check_epochs(ranks: list[list[list[int]]], n: int = N) -> None:
    """In each epoch every row came once over all ranks, in another order than in the last."""
    assert len(ranks[0]) > 1
    whole = [[row for rank in ranks for row in rank[e]] for e in range(len(ranks[0]))]
    for e, got in enumerate(whole):
        assert sorted(got) == list(range(n)), f"epoch {e}: {len(set(got))} of {n} rows"
        assert len({len(rank[e]) for rank in ranks}) == 1, f"epoch {e}: unequal ranks"
        assert got not in whole[:e], f"epoch {e} repeats an earlier one"
