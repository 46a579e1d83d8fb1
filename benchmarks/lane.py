"""Lanes: what the newest frames of a run cost their writer, and how late readers see them.

Four readers in processes of their own wait for frames of 210 x 160 x 3 and copy each newest one,
while the writer publishes 60 a second. `--rows` is the number of small frames for the last
question: how many a second, with a reader that checks each for a mix of two.
"""

import json
import multiprocessing
import os
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory

import numpy as np
from numpy.typing import NDArray

from benchmarks import measure
from benchmarks.machine import Quiet
from benchmarks.results import Case, Measured, Target, arguments, console, publish
from stepwell.stores.replay.lane import LaneReader, LaneWriter

_SHAPE = (210, 160, 3)
_READERS = 4
_RATE_HZ = 60
_OURS = "stepwell"
_PIPES = "a pipe to each reader"
_PLAIN = "plain Python over SharedMemory"
_NOTHING = "the same loop, nothing published"
_SMALL_WORDS = 8
_CONTEXT = multiprocessing.get_context("spawn")

Publish = Callable[[NDArray[np.uint8], bytes], object]
Delays = Callable[[], list[float]]


def main() -> None:
    parser = arguments(__doc__, rows=10_000_000)
    parser.add_argument("--seconds", type=float, default=10, help="of publishing (%(default)s)")
    args = parser.parse_args()
    quiet = Quiet()
    cases = [*_live_cases(args.seconds), _publish_case(), _small_case(args.rows)]
    publish(cases, args.json)
    console.print(f"[dim]other programs used {quiet.others():.0%} of the machine[/]")


# Sixty frames a second to four readers.


def _live_cases(seconds: float) -> list[Case]:
    rounds = max(1, round(seconds))
    share = {_NOTHING: [_publish_for_a_second(lambda frame, text: None) for _ in range(rounds)]}
    late: dict[str, list[float]] = {}
    ways = {_OURS: _lane_readers, _PIPES: _pipe_readers, _PLAIN: _plain_readers}
    added = 0
    for name, readers in ways.items():
        before = measure.resident_bytes()
        with readers() as (show, delays):
            share[name] = [_publish_for_a_second(show) for _ in range(rounds)]
            if name == _OURS:
                added = measure.resident_bytes() - before  # the segment is part of it
            late[name] = delays()
    costs = {name: Measured.of(each) for name, each in share.items()}
    costs[_OURS] = Measured.of(share[_OURS], rss_bytes=max(added, 0))
    waits = {name: Measured.of(each) for name, each in late.items()}
    what = f"{_RATE_HZ} frames/s of 210 x 160 x 3 to {_READERS} readers"
    ours, seen = costs.pop(_OURS), waits.pop(_OURS)
    return [
        Case(
            f"the writer's share of a core: {what}",
            "% of a core",
            ours,
            costs,
            [
                Target(
                    "% of a core more than the same loop that publishes nothing",
                    ours.median - costs[_NOTHING].median,
                    at_most=1,
                )
            ],
            "the plain one is not safe: torn frames go unnoticed",
        ),
        Case(
            f"from before publish to after the reader's copy: {what}",
            "ms",
            seen,
            waits,
            [
                Target("ms, the median", seen.median, at_most=1),
                Target("ms, one in a hundred", seen.p99, at_most=1),
            ],
            f"{_READERS} readers and the writer on {os.cpu_count()} cores; the plain ones poll",
        ),
    ]


def _publish_for_a_second(show: Publish) -> float:
    """The percentage of a core it took."""
    frame = np.random.default_rng(0).integers(0, 256, _SHAPE, np.uint8)
    begin, used = time.perf_counter(), time.process_time()
    for number in range(1, _RATE_HZ + 1):
        show(frame, struct.pack("<q", time.monotonic_ns()))
        time.sleep(max(0.0, begin + number / _RATE_HZ - time.perf_counter()))
    return 100 * (time.process_time() - used) / (time.perf_counter() - begin)


@contextmanager
def _readers(work: Callable[..., None], given: Sequence[tuple[object, ...]]) -> Iterator[Delays]:
    """Processes that send the milliseconds they were late, once they are done."""
    with ExitStack() as stack:
        results = []
        for args in given:
            receiver, sender = _CONTEXT.Pipe(duplex=False)
            process = _CONTEXT.Process(target=work, args=(sender, *args))
            process.start()
            stack.callback(process.join)
            results.append(receiver)
        for receiver in results:
            receiver.recv()  # it is ready
        yield lambda: [late for receiver in results for late in receiver.recv()]


@contextmanager
def _lane_readers() -> Iterator[tuple[Publish, Delays]]:
    name = f"bench-{os.getpid()}"
    lane = LaneWriter(name, _SHAPE)

    def delays() -> list[float]:
        lane.close()
        return collect()

    with lane, _readers(_read_lane, [(name,)] * _READERS) as collect:
        yield lambda frame, text: lane.publish(frame, reward=1.0, metadata=text), delays


def _read_lane(sender: Connection, name: str) -> None:
    late = []
    with LaneReader(name) as lane:
        sender.send(True)
        while lane.wait():
            if (frame := lane.latest()) is not None:
                late.append((time.monotonic_ns() - struct.unpack("<q", frame.metadata)[0]) / 1e6)
    sender.send(late)


@contextmanager
def _pipe_readers() -> Iterator[tuple[Publish, Delays]]:
    ends = [_CONTEXT.Pipe(duplex=False) for _ in range(_READERS)]

    def send(message: bytes) -> None:
        for _, sender in ends:
            sender.send_bytes(message)

    def delays() -> list[float]:
        send(b"")
        return collect()

    with _readers(_read_pipe, [(receiver,) for receiver, _ in ends]) as collect:
        yield lambda frame, text: send(text + frame.tobytes()), delays


def _read_pipe(sender: Connection, frames: Connection) -> None:
    late = []
    sender.send(True)
    while message := frames.recv_bytes():
        np.frombuffer(message, np.uint8, offset=8).reshape(_SHAPE)
        late.append((time.monotonic_ns() - struct.unpack("<q", message[:8])[0]) / 1e6)
    sender.send(late)


@contextmanager
def _plain_readers() -> Iterator[tuple[Publish, Delays]]:
    """A frame and a counter in shared memory, without a thought for torn frames."""
    size = int(np.prod(_SHAPE))
    memory = SharedMemory(create=True, size=16 + size)
    buffer = memory.buf
    assert buffer is not None
    count = 0

    def show(frame: NDArray[np.uint8], text: bytes) -> None:
        nonlocal count
        count += 1
        np.frombuffer(buffer, np.uint8, size, 16)[:] = frame.reshape(-1)
        buffer[8:16] = text
        buffer[0:8] = struct.pack("<q", count)

    def delays() -> list[float]:
        buffer[0:8] = struct.pack("<q", -1)
        return collect()

    try:
        with _readers(_read_plain, [(memory.name,)] * _READERS) as collect:
            yield show, delays
    finally:
        memory.close()
        memory.unlink()


def _read_plain(sender: Connection, name: str) -> None:
    late = []
    memory = SharedMemory(name)
    buffer = memory.buf
    assert buffer is not None
    size = int(np.prod(_SHAPE))
    sender.send(True)
    last = 0
    while (count := struct.unpack("<q", buffer[0:8])[0]) >= 0:
        if count == last:
            time.sleep(0.0005)
            continue
        last = count
        np.frombuffer(buffer, np.uint8, size, 16).copy()
        late.append((time.monotonic_ns() - struct.unpack("<q", buffer[8:16])[0]) / 1e6)
    sender.send(late)
    memory.close()


# One frame, and very many.


def _publish_case() -> Case:
    frame = np.random.default_rng(0).integers(0, 256, _SHAPE, np.uint8)
    text = json.dumps({"step": 1}).encode()
    slots = np.empty((8, *_SHAPE), np.uint8)
    with LaneWriter(f"bench-{os.getpid()}", _SHAPE) as lane:
        reader = LaneReader(lane.run_id)
        candidates = [
            measure.Candidate.of(_OURS, lambda _: lane.publish(frame, reward=1.0, metadata=text)),
            measure.Candidate.of(
                "stepwell, read back at once",
                lambda _: (lane.publish(frame, reward=1.0, metadata=text), reader.latest()),
            ),
            measure.Candidate.of("NumPy, a copy", lambda i: np.copyto(slots[i % 8], frame)),
        ]
        numbers = iter(range(1 << 60))
        seconds = measure.race(candidates, lambda: next(numbers), rounds=20)
    found = {name: Measured.of([s * 1e6 for s in each]) for name, each in seconds.items()}
    title = "a frame of 210 x 160 x 3 published, nobody waits"
    return Case(title, "µs", found.pop(_OURS), found)


def _small_case(frames: int) -> Case:
    """Many frames past a reader that checks each."""
    name = f"bench-{os.getpid()}"
    factors = np.arange(1, _SMALL_WORDS + 1, dtype=np.uint64)
    receiver, sender = _CONTEXT.Pipe(duplex=False)
    costs = []
    with LaneWriter(name, (1, 8 * _SMALL_WORDS)) as lane:
        process = _CONTEXT.Process(target=_check_small, args=(sender, name))
        process.start()
        receiver.recv()
        before = measure.resident_bytes()
        for begin in range(0, frames, 100_000):
            start = time.perf_counter()
            count = min(100_000, frames - begin)
            for number in range(begin + 1, begin + count + 1):
                lane.publish((np.uint64(number) * factors).view(np.uint8).reshape(1, -1))
            costs.append((time.perf_counter() - start) / count * 1e6)
        added = measure.resident_bytes() - before
    seen, skipped, torn = receiver.recv()
    process.join()
    ours = Measured.of(costs, rss_bytes=max(added, 0))
    return Case(
        f"{frames:,} frames of 64 bytes, a reader checks each for a mix of two",
        "µs a frame",
        ours,
        {},
        [Target("torn or lapped frames accepted", torn, at_most=0)],
        f"{seen:,} were seen and {skipped:,} counted as skipped; making them is included",
    )


def _check_small(sender: Connection, name: str) -> None:
    factors = np.arange(1, _SMALL_WORDS + 1, dtype=np.uint64)
    seen = torn = 0
    with LaneReader(name) as lane:
        sender.send(True)
        for frame in lane:
            seen += 1
            words = frame.pixels.reshape(-1).view(np.uint64)
            torn += not (words == np.uint64(frame.number) * factors).all()
        sender.send((seen, lane.skipped, torn))


if __name__ == "__main__":
    main()
