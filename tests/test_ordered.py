"""Work ahead of a loop: the order kept, the memory bounded, errors at their place."""

import threading
from collections.abc import Iterator
from itertools import count, islice

import pytest

from stepwell.ordered import in_order


@pytest.mark.parametrize("threads", [1, 2, 8])
@pytest.mark.parametrize("ahead", [None, 0, 1, 3, 100])
@pytest.mark.parametrize("items", [0, 1, 2, 50])
def test_results_come_in_order(threads: int, ahead: int | None, items: int) -> None:
    def work(i: int) -> int:
        sum(range(20_000 * (i % 3 == 0)))  # some take longer than those after them
        return i * i

    found = list(in_order(work, range(items), threads, ahead=ahead))
    assert found == [i * i for i in range(items)]


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("ahead", [None, 0, 5])
def test_an_error_comes_at_its_place(threads: int, ahead: int | None) -> None:
    def work(i: int) -> int:
        if i in (7, 9):
            raise KeyError(i)
        return i

    loop = in_order(work, range(100), threads, ahead=ahead)
    assert list(islice(loop, 7)) == list(range(7))
    with pytest.raises(KeyError, match="7"):
        next(loop)
    assert list(loop) == []  # it has ended


def test_an_error_of_the_items_comes_through() -> None:
    def items() -> Iterator[int]:
        yield from range(20)
        raise KeyError("no more")

    loop = in_order(lambda i: i, items(), 2)
    with pytest.raises(KeyError, match="no more"):
        list(loop)


@pytest.mark.parametrize(("threads", "ahead", "most"), [(2, None, 4), (3, 5, 5), (1, 1, 1)])
def test_no_more_is_begun_than_asked_for(threads: int, ahead: int | None, most: int) -> None:
    taken = 0
    begun: list[int] = []

    def items() -> Iterator[int]:
        for i in count():
            begun.append(i)
            assert len(begun) - taken <= most + 1  # the one taken makes room before it is given
            yield i

    for i in islice(in_order(lambda i: i, items(), threads, ahead=ahead), 200):
        taken = i + 1
        assert len(begun) <= taken + most


@pytest.mark.parametrize("threads", [1, 4])
def test_a_loop_that_is_left_leaves_no_thread(threads: int) -> None:
    before = threading.active_count()
    started = []

    def work(i: int) -> int:
        started.append(i)
        return i

    loop = in_order(work, count(), threads)
    assert next(loop) == 0
    loop.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before
    assert len(started) <= threads + 3


def test_nothing_begins_before_the_first_is_asked_for() -> None:
    started: list[int] = []
    in_order(started.append, range(5), 4)
    assert started == []


def test_without_threads_nothing_runs_in_the_background() -> None:
    seen = {threading.get_ident()}
    list(in_order(lambda _: seen.add(threading.get_ident()), range(5), 1, ahead=0))
    assert len(seen) == 1


def test_items_are_given_to_several_threads_at_once() -> None:
    together = threading.Barrier(3, timeout=60)
    assert list(in_order(lambda i: together.wait() and i, range(3), 3)) is not None
