"""How fast batches come out of a store: a loader for some seconds, then plain NumPy beside it."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell.field import Ragged
from stepwell.loader import Loader
from stepwell.source import Batch, Source

_KEPT_BYTES = 256 << 20
_PIECE_BYTES = 8 << 20
_BINS = 24
_LATENCIES = 100_000

_one_at_a_time = threading.Lock()
"""Two of them would measure each other."""


@dataclass(frozen=True)
class Measured:
    """What some seconds of batches were like."""

    rows: int
    bytes: int
    seconds: float
    latencies_s: NDArray[np.float64]
    """How long each batch was waited for; the first ones, where there are many."""

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.seconds

    def quantile_ms(self, share: float) -> float:
        return float(np.quantile(self.latencies_s, share)) * 1e3


class Trial:
    """One trial, in a thread of its own. Its attributes are what is known so far."""

    def __init__(self, source: Source, batch_size: int, *, seconds: float = 3.0) -> None:
        self.batch_size, self.seconds = batch_size, seconds
        self.phase = "waiting"
        self.share = 0.0
        """Of the phase, how much is done."""
        self.loader: Measured | None = None
        self.numpy: Measured | None = None
        self.memory_bytes = 0
        """How much more memory the process had than before, at most, while the loader ran."""
        self.note = ""
        self.alike = True
        """Whether NumPy takes all fields that the loader does."""
        self.error: Exception | None = None
        self._source = source
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stepwell trial", daemon=True)

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    @property
    def stopped(self) -> bool:
        """Whether it was cancelled."""
        return self._stop.is_set()

    def start(self) -> None:
        self._thread.start()

    def cancel(self) -> None:
        """Have it end at its next batch."""
        self._stop.set()

    def join(self) -> None:
        """Wait for its end."""
        self._thread.join()

    def _run(self) -> None:
        try:
            with _one_at_a_time:
                self._measure()
        except Exception as error:  # shown by whoever looks
            self.error = error

    def _measure(self) -> None:
        source = self._source
        if not len(source):
            raise ValueError("expected rows to read, got none")
        before = resident_bytes()
        self.phase = "loader"

        def grown() -> None:
            self.memory_bytes = max(self.memory_bytes, resident_bytes() - before)

        with Loader(source, self.batch_size, seed=1, rank=0, world_size=1) as loader:
            self.loader = self._timed(loader.forever().__next__, grown)
        self.phase = "reading rows for NumPy"
        kept = self._kept()
        if kept is not None and not self.stopped:
            self.phase = "NumPy"
            self.numpy = self._timed(_plain(kept, self.batch_size).__next__)
        self.phase = "done"

    def _timed(
        self, step: Callable[[], Batch], after: Callable[[], None] | None = None
    ) -> Measured:
        """Take batches for as long as was asked for."""
        rows = size = 0
        latencies: list[float] = []
        begin = now = time.perf_counter()
        looked = begin
        while (now - begin < self.seconds or not latencies) and not self.stopped:
            batch = step()
            then, now = now, time.perf_counter()
            if len(latencies) < _LATENCIES:
                latencies.append(now - then)
            rows += len(next(iter(batch.values())))
            size += sum(_bytes(values) for values in batch.values())
            if now - looked > 0.05:
                self.share, looked = (now - begin) / self.seconds, now
                if after is not None:
                    after()
        if after is not None:
            after()
        return Measured(rows, size, max(now - begin, 1e-9), np.array(latencies or [0.0]))

    def _kept(self) -> dict[str, NDArray[Any]] | None:
        """As many rows as fit, of the fields that NumPy has an array for."""
        source = self._source
        names = [name for name, field in source.schema.items() if not field.ragged]
        if not names:
            self.note = "NumPy has no array for rows of different lengths."
            return None
        if len(names) < len(source.schema):
            self.alike = False
            self.note = f"NumPy: {', '.join(names)} only, the other fields have no fixed length."
        part = source.columns(names)
        row_bytes = max(1, part.nbytes // len(part))
        count = max(1, min(len(part), _KEPT_BYTES // row_bytes))
        if count < len(part):
            self.note = f"NumPy: of the first {count:,} rows, in memory. " + self.note
        kept = {
            name: np.empty((count, *field.shape), field.dtype)
            for name, field in part.schema.items()
        }
        step = max(1, _PIECE_BYTES // row_bytes)
        for at in range(0, count, step):
            if self.stopped:
                return None
            rows = np.arange(at, min(at + step, count))
            part.take(rows, {name: values[at : at + step] for name, values in kept.items()})
            self.share = at / count
        return kept


def _plain(kept: dict[str, NDArray[Any]], batch_size: int) -> Iterator[Batch]:
    """What a loop without a loader does: a permutation, and `np.take` of each field."""
    random = np.random.default_rng(1)
    count = len(next(iter(kept.values())))
    while True:
        order = random.permutation(count)
        for at in range(0, count, batch_size):
            rows = order[at : at + batch_size]
            yield {name: np.take(values, rows, axis=0) for name, values in kept.items()}


def latency_bins(trial: Trial) -> tuple[list[float], list[float], list[float]]:
    """Milliseconds of a batch in bins that widen, and which share of batches took so long: of the
    loader's, and of NumPy's."""
    measured = [each.latencies_s * 1e3 for each in (trial.loader, trial.numpy) if each is not None]
    every = np.concatenate(measured)
    low, high = max(float(every.min()), 1e-4), max(float(every.max()), 2e-4)
    edges = np.geomspace(low, high * 1.0001, _BINS + 1)
    counts = [np.histogram(np.clip(each, low, high), edges)[0] for each in measured]
    shares = [(each / each.sum()).tolist() for each in counts]
    return edges.tolist(), shares[0], shares[1] if len(shares) > 1 else []


def resident_bytes() -> int:
    """The memory that this process has."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def _bytes(values: Any) -> int:
    return int(values.values.nbytes if isinstance(values, Ragged) else values.nbytes)
