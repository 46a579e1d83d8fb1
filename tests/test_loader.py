"""The loader: what it hands over, in which order, and what happens when something fails."""

import re
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

import stepwell as sw
from stepwell.source import Rows
from tests import scaled
from tests.children import answer, at_once
from tests.plain import PlainSource

N = 1000


def numbers(n: int = N) -> sw.ArraySource:
    return sw.ArraySource(
        {"i": np.arange(n), "x": np.arange(n, dtype=np.float32)[:, None] * [1, 2]}
    )


class PythonSource(PlainSource):
    """The same rows, read in Python; some of them can be damaged."""

    def __init__(self, damaged: Sequence[int] = ()) -> None:
        super().__init__({"i": np.arange(N)})
        self.damaged = damaged

    def _fill(self, rows: Rows, out: sw.Batch) -> None:
        bad = np.intersect1d(rows, self.damaged)
        if len(bad):
            raise sw.ChecksumError(f"row {bad[0]} is damaged", path="rows", offset=int(bad[0]))
        super()._fill(rows, out)


SOURCES = [numbers, PythonSource]


def order_of(batches: Iterable[sw.Batch]) -> NDArray[np.int64]:
    return np.concatenate([batch["i"] for batch in batches])


def shuffled(epoch: int = 0, seed: int = 7) -> NDArray[np.int64]:
    """The rows of an epoch, as the sampler has them."""
    return sw.Shuffle(seed).order(N).rows(epoch, 0, N)


def assert_rows(got: ArrayLike, want: ArrayLike) -> None:
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("make", SOURCES)
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_an_epoch_is_every_row_once_in_the_samplers_order(make: Any, threads: int) -> None:
    loader = sw.Loader(make(), 64, seed=7, threads=threads)
    assert len(loader) == 16  # for progress bars, too
    for epoch in range(3):
        batches = list(loader)
        assert [len(b["i"]) for b in batches] == [64] * 15 + [40]
        expected = shuffled(epoch)
        assert_rows(order_of(batches), expected)
        assert loader.epoch == epoch + 1


class Reversed:
    """A sampler of the user's own, in Python."""

    name = "Reversed"
    seed = 0

    def __init__(self, length: int = 0) -> None:
        self.length = length

    def order(self, length: int) -> "Reversed":
        return Reversed(length)

    def rows(self, epoch: int, start: int, count: int) -> Rows:
        return self.length - 1 - np.arange(start, start + count)


def test_orders_that_are_no_shuffle() -> None:
    assert_rows(order_of(sw.Loader(numbers(), 64, shuffle=False)), np.arange(N))
    assert_rows(order_of(sw.Loader(numbers(), 64, sampler=Reversed())), np.arange(N)[::-1])


def test_named_sources_are_read_with_the_same_rows() -> None:
    data = np.random.default_rng(0).normal(size=(N, 3)).astype(np.float32)
    loader = sw.Loader({"data": sw.ArraySource(data), "label": np.arange(N), "row": numbers()}, 100)
    for batch in loader:
        assert list(batch) == ["data", "label", "row.i", "row.x"]
        assert_rows(batch["data"], data[batch["label"]])
        assert_rows(batch["row.i"], batch["label"])
    for batch in sw.Loader({"native": numbers(), "python": PythonSource()}, 100):
        assert_rows(batch["native.i"], batch["python"])


@pytest.mark.parametrize("make", SOURCES)
def test_transform(make: Any) -> None:
    loader = sw.Loader(make(), 64, seed=7, transform=lambda b: {"i": b["i"], "half": b["i"] / 2})
    batches = list(loader)
    expected = shuffled()
    assert_rows(order_of(batches), expected)
    assert_rows(np.concatenate([b["half"] for b in batches]), expected / 2)


# Ranks and tails.


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("world", [1, 2, 3, 7])
def test_ranks_share_the_global_order(world: int, drop_last: bool) -> None:
    ranks = [
        list(sw.Loader(numbers(), 32, seed=5, rank=r, world_size=world, drop_last=drop_last))
        for r in range(world)
    ]
    assert len({len(batches) for batches in ranks}) == 1
    got = [row for step in zip(*ranks, strict=True) for batch in step for row in batch["i"]]
    expected = shuffled(seed=5)
    if drop_last:
        whole = N // (32 * world) * 32 * world
        assert_rows(got, expected[:whole])
    else:
        assert_rows(got[:N], expected)
        assert_rows(got[N:], expected[: len(got) - N])
        assert len({len(batches[-1]["i"]) for batches in ranks}) == 1


# Errors.


@pytest.mark.parametrize("threads", [1, 3])
def test_an_error_arrives_with_a_note_and_the_loop_goes_on(threads: int) -> None:
    order = shuffled(seed=0)
    source = PythonSource(damaged=[int(order[130])])
    loader = sw.Loader(source, 64, threads=threads)
    loop = iter(loader)
    got: list[Any] = []
    with pytest.raises(sw.ChecksumError, match="is damaged") as caught:
        got.extend(batch["i"] for batch in loop)
    assert len(got) == 2  # every batch before it arrived
    assert caught.value.__notes__ == ["in the batch of 64 rows at position 128 of epoch 0"]
    assert "_fill" in [frame.name for frame in caught.traceback]
    assert loader.position == 128
    source.damaged = ()
    got.extend(batch["i"] for batch in loop)  # the iterator goes on with the batch that failed
    assert_rows(np.concatenate(got), order)


def test_an_error_in_a_transform() -> None:
    def transform(batch: sw.Batch) -> sw.Batch:
        return {"label": batch["label"]}

    with pytest.raises(KeyError, match="label") as caught:
        next(iter(sw.Loader(numbers(), 64, transform=transform)))
    assert caught.value.__notes__ == ["in the batch of 64 rows at position 0 of epoch 0"]


def test_damaged_rows_can_be_skipped() -> None:
    loader = sw.Loader(PythonSource(damaged=[3, 500, 501]), 64, seed=7, on_corrupt="skip")
    got = order_of(loader)
    expected = shuffled()
    assert_rows(got, expected[~np.isin(expected, [3, 500, 501])])
    assert sorted(row for row, _ in loader.corrupt) == [3, 500, 501]
    assert all(isinstance(error, sw.ChecksumError) for _, error in loader.corrupt)
    assert loader.state_dict()["epoch"] == 1


def test_a_source_whose_fingerprint_is_damaged_can_be_resumed() -> None:
    def loader(*damaged: int) -> sw.Loader:
        source = PythonSource(damaged=damaged)
        return sw.Loader(source, 64, shuffle=False, on_corrupt="skip")

    first = loader(0)
    for _, _ in zip(range(3), first, strict=False):
        pass
    state = first.state_dict()
    for again in (loader(0), loader(), loader(0, 5)):
        again.load_state_dict(state)
        assert order_of(again)[0] == 192
    sound = loader()
    late = loader(0)
    late.load_state_dict(sound.state_dict())  # it was sound when the state was taken
    with pytest.raises(sw.ChecksumError):
        sw.Loader(PythonSource(damaged=[0]), 64).state_dict()


def test_skipped_rows_are_listed_with_their_batch_and_once() -> None:
    made = threading.Semaphore(0)

    def transform(batch: sw.Batch) -> sw.Batch:
        made.release()
        return batch

    options: dict[str, Any] = {"shuffle": False, "on_corrupt": "skip", "transform": transform}
    loader = sw.Loader(PythonSource(damaged=[3, 70]), 64, threads=2, prefetch=8, **options)
    listed = []
    for i, _ in enumerate(loader):
        for _ in range(1 if i else 7):  # batches ahead, of the next epoch too, are made meanwhile
            assert made.acquire(timeout=30)
        listed.append([row for row, _ in loader.corrupt])
    assert listed[:2] == [[3], [3, 70]]
    order_of(loader)
    assert [row for row, _ in loader.corrupt] == [3, 70]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"batch_size": 600, "drop_last": True, "rank": 0, "world_size": 2}, "drop_last"),
        ({"batch_size": 8, "rank": 2, "world_size": 2}, "rank"),
        ({"batch_size": 8, "rank": 0}, "both rank and world_size"),
        ({"batch_size": 8, "threads": 0}, "threads"),
        ({"batch_size": 8, "prefetch": 0}, "prefetch"),
        ({"batch_size": 8, "on_corrupt": "ignore"}, "on_corrupt"),
        ({"batch_size": 8, "seed": -1}, "seed"),
        ({"batch_size": 8, "sampler": sw.Iid(), "seed": 3}, "either"),
    ],
)
def test_arguments_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sw.Loader(numbers(), **options)


@pytest.mark.parametrize("loader", [sw.Loader, sw.torch.Loader, sw.jax.Loader])
def test_two_sources_are_answered_with_the_line_to_write(loader: Any) -> None:
    x, y = np.zeros((9, 3), "f4"), np.arange(9)
    line = 'write Loader({"data": data, "label": labels}, batch_size='
    for given, options, size in (((x, y), {}, 256), ((x, y), {"batch_size": 4}, 4)):
        with pytest.raises(TypeError, match=re.escape(f"{line}{size})")):
            loader(*given, **options)
    with pytest.raises(TypeError, match=re.escape(line)):
        loader("x.npy", "y.npy", batch_size=4)
    batch = next(iter(loader({"data": x, "label": y.astype("i4")}, batch_size=4)))
    assert (batch["data"].shape, batch["label"].shape) == ((4, 3), (4,))


def test_sources_that_cannot_be_loaded() -> None:
    with pytest.raises(ValueError, match="equal lengths"):
        sw.Loader({"a": np.arange(3), "b": np.arange(4)}, 2)
    with pytest.raises(ValueError, match="no rows"):
        sw.Loader(numbers(0), 2)
    with pytest.raises(TypeError, match="expected a source"):
        sw.Loader([1, 2], 2)
    with pytest.raises(FileNotFoundError):
        sw.Loader("games/", 2)
    for wrong in (2.5, "4", None, True):
        with pytest.raises(TypeError, match="batch_size must be a whole number"):
            sw.Loader(numbers(), wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"two fields would be called 'a\.i'"):
        sw.Loader({"a": numbers(), "a.i": np.arange(N)}, 2)


# Threads and processes.


@pytest.mark.parametrize("make", SOURCES)
def test_closing_never_hangs_and_the_loop_can_go_on(make: Any) -> None:
    loader = sw.Loader(make(), 8, seed=7, threads=4)
    loop = iter(loader)
    got = [next(loop)["i"]]
    loader.close()
    loader.close()
    with loader:
        got += [batch["i"] for batch in loop]
    assert_rows(np.concatenate(got), shuffled())
    assert_rows(order_of(loader), shuffled(1))


def test_threads_end_with_the_loader() -> None:
    script = """
import os, numpy as np, stepwell as sw
count = lambda: len(os.listdir("/proc/self/task"))
source = sw.ArraySource(np.arange(100_000))
source.take(np.arange(100_000))  # the shared pool is there to stay
sw.torch.Loader
before = count()
for kind in sw.Loader, sw.torch.Loader:
    loader = kind(source, 8, threads=6)
    next(iter(loader))
    assert count() == before + 6, (count(), before)
    del loader
    assert count() == before, (count(), before)
"""
    answer(script)


def test_threads_that_share_a_loop_get_every_row_once() -> None:
    rows = np.zeros(1000, [("a", "<i8"), ("b", "<i4")])
    rows["a"], rows["b"] = np.arange(1000), np.arange(1000) * 7
    loader = sw.Loader(sw.ArraySource(rows), 96, threads=2)
    for _ in range(scaled(100, smallest=10)):
        loop = iter(loader)
        batches = [batch for part in at_once(*[partial(list, loop)] * 4) for batch in part]
        for batch in batches:
            assert_rows(batch["b"], batch["a"] * 7)
        assert sorted(row for batch in batches for row in batch["a"]) == list(range(1000))


def test_a_daemon_thread_in_the_loader_does_not_abort_the_exit() -> None:
    script = """
import threading, numpy as np, stepwell as sw
source = sw.ArraySource(np.arange(1_000_000))
loader = sw.Loader(source, 4096)
busy = threading.Semaphore(0)
def consume():
    for _ in loader.forever():
        busy.release()
def take():
    while True:
        source.take(np.arange(5000))
        busy.release()
for target in (consume, take, take):
    threading.Thread(target=target, daemon=True).start()
for _ in range(200):
    busy.acquire()
print("end")
"""
    for _ in range(3):
        assert answer(script) == "end"


def test_stop_iteration_in_a_transform_is_an_error_not_an_end() -> None:
    few = iter(range(3))

    def transform(batch: sw.Batch) -> sw.Batch:
        next(few)
        return batch

    with pytest.raises(RuntimeError, match="StopIteration"):
        list(sw.Loader(numbers(), 100, transform=transform, threads=1))


def test_threads_that_cannot_start_are_done_without() -> None:
    script = """
import resource, numpy as np, stepwell as sw
source = sw.ArraySource(np.arange(100_000))
used = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + 6_000_000, -1))  # no room for a thread's stack
print(source.take(np.arange(99_000))["data"].sum())
try:
    next(iter(sw.Loader(source, 8)))
except RuntimeError as error:
    print(error)
"""
    total, error = answer(script, env={"STEPWELL_SANITIZED": ""}).splitlines()
    assert int(total) == 99_000 * 98_999 // 2
    assert error.startswith("no loader thread could be started")


def test_closing_wakes_a_consumer_that_waits() -> None:
    waited_for, held = threading.Event(), threading.Event()

    def transform(batch: sw.Batch) -> sw.Batch:
        waited_for.set()
        held.wait(30)
        return batch

    loader = sw.Loader(numbers(), 8, transform=transform)

    def consume() -> None:
        with suppress(BaseException):
            next(iter(loader))

    consumer = threading.Thread(target=consume)
    consumer.start()
    assert waited_for.wait(30)
    loader.close()
    held.set()
    consumer.join(30)
    assert not consumer.is_alive()


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_error_that_comes_with_closing_is_raised(error: type[BaseException]) -> None:
    """As of a handler of Ctrl-C that closes the loader and goes on to the top."""
    loader = sw.Loader(numbers(), 8, seed=7)
    loop = iter(loader)
    seen = [next(loop)["i"], next(loop)["i"]]

    def interrupted() -> Any:
        loader.close()
        raise error("stop")

    loader._quick = interrupted
    with pytest.raises(error, match="stop"):
        next(loop)
    seen += [batch["i"] for batch in loop]
    assert_rows(np.concatenate(seen), shuffled())


FORKED = """
import multiprocessing, numpy as np, stepwell as sw
context = multiprocessing.get_context("fork")
source = sw.ArraySource({"i": np.arange(100_000)})
loader = sw.Loader(source, 64, seed=7, threads=3)
loop = iter(loader)
first = [next(loop)["i"] for _ in range(5)]
def child(queue):
    queue.put(np.concatenate(first + [b["i"] for b in loop]))
expected = sw.Shuffle(7).order(100_000).rows(0, 0, 100_000)
for _ in range(5):  # the threads are busy while the fork happens
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    np.testing.assert_array_equal(queue.get(timeout=60), expected)
    process.join(60)
    assert process.exitcode == 0, process.exitcode
np.testing.assert_array_equal(np.concatenate(first + [b["i"] for b in loop]), expected)
"""


def test_after_fork_parent_and_child_go_on_alone() -> None:
    # In an interpreter of its own: frameworks loaded by other tests warn about any fork.
    answer(FORKED, env={"PYTHONWARNINGS": "error"})


def test_a_loader_in_another_process(child: ProcessPoolExecutor) -> None:
    loader = sw.Loader(numbers(), 64, seed=7)
    next(iter(loader))
    assert_rows(child.submit(order_of, loader).result(60), shuffled(1))  # as it would here
    loader.load_state_dict({**loader.state_dict(), "position": 64})
    got = child.submit(order_of, loader).result(60)
    assert_rows(got, shuffled()[64:])


def test_ctrl_c_reaches_a_waiting_consumer() -> None:
    # Five million draws by binary search, in one native batch, outlast the wait by far.
    script = """
import os, signal, threading, numpy as np, stepwell as sw
rows = 20_000_000
source = sw.ArraySource(np.broadcast_to(np.uint8(0), (rows,)))
sampler = sw.Weighted(np.ones(rows))
loader = sw.Loader(source, 5_000_000, sampler=sampler, threads=1, prefetch=1)
threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
got = 0
try:
    for batch in loader:
        got += 1
except KeyboardInterrupt:
    print("interrupted after", got)
"""
    assert answer(script) == "interrupted after 0"
