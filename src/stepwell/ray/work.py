"""A conversion on a cluster: stages of pieces, each of which is made once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from stepwell.formats.parts import Part
from stepwell.ray.cluster import Cluster
from stepwell.ray.finished import Facts, Finished
from stepwell.request import Request
from stepwell.store import Progress

SMALLEST, LARGEST = 1 << 20, 1 << 26
"""Bytes of a piece: small enough that a worker that dies costs little, large enough that nobody
waits for tasks to begin."""
_PIECES = 16


def piece_bytes(total: int) -> int:
    """The size of pieces. It depends on nothing but the data: a second run cuts as the first did,
    whatever it runs on."""
    return min(max(total // _PIECES, SMALLEST), LARGEST)


class Piece(NamedTuple):
    """Something to be made: a range of rows or items, and what a task is called with."""

    part: range
    arguments: tuple[Any, ...]
    path: Path | None = None
    """Of what a task leaves there, without which it is not finished."""


@dataclass
class Work:
    """A conversion that several processes do."""

    request: Request
    part: Part
    cluster: Cluster
    finished: Finished
    progress: Progress
    resumed: int = 0
    """Rows that were there already."""

    @property
    def made(self) -> Path:
        """Where the target itself is made."""
        return self.part.path

    def do(
        self, stage: str, task: Callable[..., Facts], pieces: Sequence[Piece], *, rows: bool = True
    ) -> list[Facts]:
        """Make the pieces that are not finished; what is known of all, in order.

        With `rows` they count for the rows that an earlier run had done.
        """
        total, done = sum(len(piece.part) for piece in pieces), 0
        facts: dict[int, Facts] = {}
        for number, piece in enumerate(pieces):
            known = self.finished.get(stage, number, piece.part)
            if known is not None and (piece.path is None or piece.path.exists()):
                facts[number] = known
                done += len(piece.part)
        if rows:
            self.resumed = done
        self.progress(done, total)
        missing = [number for number in range(len(pieces)) if number not in facts]
        calls = (pieces[number].arguments for number in missing)

        def name(k: int) -> str:
            part = pieces[missing[k]].part
            return f"{stage} {part.start} to {part.stop}"

        for k, made in self.cluster.run(task, calls, name):
            number = missing[k]
            self.finished.keep(stage, number, pieces[number].part, made)
            facts[number] = made
            done += len(pieces[number].part)
            self.progress(done, total)
        return [facts[number] for number in range(len(pieces))]
