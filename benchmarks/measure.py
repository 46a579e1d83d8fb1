"""Time taken in turns, and memory as the kernel counts it."""

import ctypes
import random
import re
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Call = Callable[[Any], object]

CALLS = 250
"""Calls in a turn, but for what is slow."""

# Helper threads of whoever had the turn before spin for a few milliseconds (OpenMP's do).
_SETTLE_S = 0.005
_PRIMINGS = 10


@dataclass(frozen=True)
class Candidate:
    """One way to do the job. `ready` opens a turn and gives the function that is timed."""

    name: str
    ready: Callable[[], AbstractContextManager[Call]]
    calls: int = CALLS

    @classmethod
    def of(cls, name: str, call: Call, *, calls: int = CALLS) -> "Candidate":
        """A candidate that needs nothing to be ready."""
        return cls(name, lambda: nullcontext(call), calls)


def race(
    candidates: Sequence[Candidate], argument: Callable[[], Any], *, rounds: int
) -> dict[str, list[float]]:
    """Seconds of every call, by candidate.

    Each round gives every candidate one turn, in a new random order, so that a slow minute
    of the machine hurts all alike. A turn is many calls in a row, because a table that was
    not read for a while has its page tables out of the caches and needs some hundred
    thousand rows to have them back; the median shows the state after that. Each call has an
    argument of its own, made just before, and each is timed, none left out: the first ones
    of a turn, which also wake sleeping threads, are in the 99th percentile.
    """
    seconds: dict[str, list[float]] = {candidate.name: [] for candidate in candidates}
    order = list(candidates)
    shuffle = random.Random(0).shuffle
    for _ in range(rounds):
        shuffle(order)
        for candidate in order:
            with candidate.ready() as call:
                time.sleep(_SETTLE_S)
                for _ in range(candidate.calls):
                    given = argument()
                    begin = time.perf_counter()
                    call(given)
                    seconds[candidate.name].append(time.perf_counter() - begin)
    return seconds


def resident_bytes() -> int:
    """Memory of this process now."""
    return _status("VmRSS")


def reset_peak() -> int:
    """Forget the peak so far; returns what is resident now, where the new peak begins.

    Memory that was freed but kept by the C library is given back first: using it again
    would not be seen.
    """
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return resident_bytes()


def peak_bytes() -> int:
    """The most memory this process has had since `reset_peak`."""
    return _status("VmHWM")


class AnonymousPeak:
    """The most anonymous memory a process has inside the block, looked at every millisecond.

    What is resident counts the mapped pages of files too, which belong to the page cache and
    are taken from nobody; the kernel keeps no peak without them.
    """

    def __init__(self, pid: int | None = None) -> None:
        self.before = self.bytes = _status("RssAnon", pid)
        self._pid = pid
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "AnonymousPeak":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.001):
            try:
                self.bytes = max(self.bytes, _status("RssAnon", self._pid))
            except OSError:  # the process has ended
                return


def keep_freed_memory() -> None:
    """Have the C library keep what is freed, for as long as this process lives.

    Whether it gives megabytes back to the system, to ask for them again with the next call,
    otherwise depends on what was freed before: the same copies cost five times more in one
    run than in another.
    """
    library = ctypes.CDLL(None)
    trim_threshold, mmap_threshold = -1, -3
    if not (library.mallopt(mmap_threshold, 1 << 25) and library.mallopt(trim_threshold, 1 << 30)):
        raise OSError("mallopt refused")


def huge_share(array: NDArray[Any]) -> float:
    """How much of an array's memory lies in huge pages, from 0 to 1."""
    begin = array.ctypes.data
    end = begin + array.nbytes
    huge, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(found[1], 16) < end and int(found[2], 16) > begin
        elif inside and line.startswith("AnonHugePages:"):
            huge += int(line.split()[1]) * 1024
    return min(1.0, huge / array.nbytes)


def prime_memory(size: int) -> None:
    """Take and return memory, so that the next program to ask for it finds it there.

    A virtual machine gives unused pages back to its host; whoever touches them first waits
    for the host, ten times longer than the work takes. Each candidate that is timed while
    it fills fresh memory is preceded by this.
    """
    memory = np.empty(size, np.uint8)
    memory[::4096] = 1


def prime_page_cache(folder: Path, size: int) -> None:
    """The same for those who write files: the system has so much memory at hand for their pages.

    Not with `prime_memory`: pages of files are taken in larger pieces than those of a program. A
    file is written and removed until no piece of it had to wait for the host.
    """
    path = folder / "prime"
    piece = bytes(1 << 23)
    for _ in range(_PRIMINGS):
        took = []
        with path.open("wb", buffering=0) as file:
            path.unlink()
            for _ in range(-(-size // len(piece))):
                begin = time.perf_counter()
                file.write(piece)
                took.append(time.perf_counter() - begin)
        if sum(took) < 2 * len(took) * min(took):
            return


def _status(key: str, pid: int | None = None) -> int:
    path = Path("/proc", "self" if pid is None else str(pid), "status")
    found = re.search(rf"^{key}:\s+(\d+) kB", path.read_text(), re.MULTILINE)
    if found is None:
        raise OSError(f"{path} has no {key}")
    return int(found[1]) * 1024
