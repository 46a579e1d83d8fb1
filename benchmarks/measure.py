"""Time taken in turns, and memory as the kernel counts it."""

import ctypes
import random
import re
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


def _status(key: str) -> int:
    found = re.search(rf"^{key}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    if found is None:
        raise OSError(f"/proc/self/status has no {key}")
    return int(found[1]) * 1024
