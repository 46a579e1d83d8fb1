"""The packs that are measured: games that stepwell played, and entries of a few bytes."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import stepwell as sw
from benchmarks.rows import FOLDER
from stepwell import game2048
from stepwell.game2048 import play_to

GAMES = 5000
RAW_KIND = 16
"""The kind of an entry that is bytes to stepwell and nothing else."""


@dataclass(frozen=True)
class Games:
    """Run files, and a folder for what is made of them."""

    files: Sequence[Path]
    scratch: Path
    batch: int
    """Runs of a batch."""
    rounds: int

    @property
    def source(self) -> Path:
        return self.files[0].parent

    @cached_property
    def pack(self) -> Path:
        """All of them in a pack, as `pack_runs` makes it when nothing is asked for."""
        path = self.scratch / "games.a2pack"
        game2048.pack_runs(self.source, path)
        return path

    @cached_property
    def raw_pack(self) -> Path:
        """The same bytes as payloads that are no runs, which `take` copies."""
        path = self.scratch / "raw.a2pack"
        with sw.PackWriter(path, expect=len(self.files)) as pack:
            for file in self.files:
                pack.append(file.read_bytes(), RAW_KIND)
        return path

    def random(self) -> Callable[[], NDArray[np.int64]]:
        """A function that picks the runs of a batch, new with each call."""
        rng = np.random.default_rng(1)
        return lambda: rng.integers(0, len(self.files), self.batch)

    @property
    def size(self) -> str:
        return f"{self.batch:,} random runs of {len(self.files):,}"


@contextmanager
def games(count: int, *, batch: int, rounds: int) -> Iterator[Games]:
    """Games found from an earlier run, or played, which takes 15 s for 5,000."""
    files = play_to(FOLDER / f"runs-{count}", count, depth=2, seed=1)
    with tempfile.TemporaryDirectory(prefix="pack-", dir=FOLDER) as scratch:
        yield Games(files, Path(scratch), batch, rounds)


def write_tiny(path: Path, entries: int) -> None:
    """A pack of entries of 16 bytes, 64 bytes apart."""
    with sw.PackWriter(path, align=64, expect=entries) as pack:
        for i in range(entries):
            pack.append(i.to_bytes(16, "little"), RAW_KIND)
