"""Work that several threads do ahead of a loop, its results in order."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

from stepwell import _core

T = TypeVar("T")
R = TypeVar("R")


def thread_count(given: int | None, name: str = "threads") -> int:
    """How many threads to use: as many as given, or one for each core."""
    if given is None:
        return _core.usable_cores()
    if given < 1:
        raise ValueError(f"{name} must be at least 1, got {given}")
    return min(given, 1024)


def in_order(
    work: Callable[[T], R], items: Iterable[T], threads: int, *, ahead: int | None = None
) -> Iterator[R]:
    """Yield `work(item)` for each item, in order, whatever the threads do.

    At most `ahead` items (`threads + 2` unless given) are begun and not yet taken, which
    bounds the memory. Errors of `work` are raised at their place in the order. A loop that is left
    waits for what has begun; with `ahead=0` nothing runs in the background.
    """
    if ahead == 0:
        yield from map(work, items)
        return
    waiting = iter(items)
    begun: deque[Future[R]] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="stepwell-ahead")
    try:
        for item in islice(waiting, threads + 2 if ahead is None else ahead):
            begun.append(pool.submit(work, item))
        while begun:
            result = begun.popleft().result()
            for item in islice(waiting, 1):
                begun.append(pool.submit(work, item))
            yield result
    finally:
        pool.shutdown(cancel_futures=True)
