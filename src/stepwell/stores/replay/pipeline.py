"""From the caller of `record_step` to the disk: a bounded queue and the thread that empties it."""

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import TracebackType

from stepwell.files.catalog import in_turn
from stepwell.stores.replay.disk import RunDisk
from stepwell.stores.replay.items import (
    BATCH_STEPS,
    Counters,
    Ending,
    Inlet,
    Pace,
    Rows,
    Step,
    rows_after,
)

_FIRST_STEPS = 64  # to have memory for, before it is known whether there will be many
_FREED_AT_ONCE = 256
_MAX_WAIT_S = 3600.0  # of a thread, at a time
_OVERHEAD = 1024  # bytes that a step costs in the queue besides its arrays


def _inside_h5py() -> bool:
    hdf5 = sys.modules.get("stepwell.stores.replay.hdf5")  # not where no run has arrays
    return hdf5 is not None and hdf5.inside_h5py()


class Pipeline:
    """Steps in, commits out, in order. The caller holds `lock` while it puts one together.

    A caller may be interrupted (Ctrl-C) anywhere. So it takes `lock` itself, which Python lets go
    of for certain, and not the condition, and it waits at a gate of its own, without the lock.
    """

    def __init__(
        self,
        disk: RunDisk,
        lock: "threading.RLock",
        *,
        drops: bool,
        queue_bytes: int,
        flush_every: float,
    ) -> None:
        self.lock = lock
        self._more = threading.Condition(lock)  # the thread waits here, and nobody else
        self._gates: list[threading.Lock] = []
        self.last = disk.handed_over
        self._disk = disk
        self.drops = drops
        """Whether a step for which there is no room is dropped."""
        self._limit = queue_bytes
        self._wait = flush_every
        self.inlets: dict[str, Inlet] = {}
        self.queue: deque[Step | Ending] = deque()
        self._bytes = 0
        self._enqueued = disk.enqueued
        self._dropped = disk.dropped
        self._taken = self._done = 0  # items of the queue, since this writer began
        self._batch = Rows(0, 0, 0)  # of the last batch
        self._wanted = 0  # as many have to be written before anybody waits any longer
        self._closing = False
        self.refuses = False  # whether `check` would raise
        self._pace = Pace(self._hurried)
        self.ended = False
        self._failure: BaseException | None = None
        self._failed_at: TracebackType | None = None
        self.open(Inlet(channel, self.last.of(channel.kind)) for channel in disk.channels)
        self._thread = threading.Thread(target=self._work, name="stepwell-replay", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises what keeps this writer from taking a step."""
        self._raise_failure()
        if self._closing:
            raise ValueError(f"closed: the writer of {self._disk.name}")

    def _raise_failure(self) -> None:
        if self._failure is not None:
            # As it was: else it would keep the frames of every call that it was raised in.
            raise self._failure.with_traceback(self._failed_at)

    @property
    def rows(self) -> Rows:
        """Rows that were handed over, by the last item; nothing else counts them, so that an
        interrupt cannot come between the two."""
        return rows_after(self.queue[-1]) if self.queue else self.last

    def open(self, inlets: Iterable[Inlet]) -> None:
        """Write rows of these from now on: of all, or of none when this is interrupted."""
        self.inlets |= {inlet.channel.name: inlet for inlet in inlets}

    def has_room(self, size: int) -> bool:
        """Whether a step of this size can be put at once."""
        return self._bytes + size + _OVERHEAD <= self._limit or not self.queue

    def wait_for_room(self, size: int) -> None:
        """Return when there is room for a step. Call it without the lock."""

        def room() -> bool:
            self.check()
            if not self.has_room(size):
                self.hurry()
            return self.has_room(size)

        self._wait_until(room)

    def drop(self) -> None:
        """Count a step that there was no room for."""
        self._dropped += 1
        self.hurry()

    def put(self, item: Step | Ending, size: int) -> None:
        """Hand an item over, with `size` bytes of arrays. The last line does it; an interrupt
        before has done no harm."""
        size += _OVERHEAD
        if len(self.queue) in (0, BATCH_STEPS - 1) or self._bytes + size > self._limit // 2:
            self._more.notify_all()
        self._bytes += size
        self._enqueued += isinstance(item, Step)
        self.queue.append(item)

    def commit(self) -> None:
        """Return when everything that was put is on the disk. Call it without the lock."""
        with self.lock:
            self.check()
            target = self.hurry()

        def done() -> bool:
            if self._done < target:
                self._raise_failure()
            return self._done >= target

        self._wait_until(done)

    def _hurried(self) -> bool:
        """Whether someone waits, or will soon have to."""
        return self._closing or self._done < self._wanted or self._bytes > self._limit // 4

    def hurry(self) -> int:
        """Let the thread write everything that is waiting; return how much will be done then."""
        self._wanted = self._taken + len(self.queue)
        self._more.notify_all()
        return self._wanted

    @property
    def can_be_waited_for(self) -> bool:
        """Not by a thread that holds what the pipeline's own needs, nor by that one itself."""
        held = _inside_h5py() or in_turn()._is_owned()  # type: ignore[attr-defined]
        return not held and threading.current_thread() is not self._thread

    def _wait_until(self, ready: Callable[[], bool]) -> None:
        while True:
            with self.lock:
                if ready():
                    return
                gate = self._gate()
            gate.acquire(timeout=1)

    def _gate(self) -> threading.Lock:
        """A lock that can be acquired once the thread has done something."""
        if not self.can_be_waited_for:
            raise RuntimeError(
                "cannot wait for the writer here, inside a call of h5py or SQLite that it waits for"
            )
        gate = threading.Lock()
        gate.acquire()
        self._gates.append(gate)
        return gate

    def _open_gates(self) -> None:
        while self._gates:
            self._gates.pop().release()

    def end(self) -> None:
        """Let the thread write what is left and let go of the run, without waiting for it."""
        with self.lock:
            self._closing = self.refuses = True
            self._more.notify_all()

    def close(self) -> None:
        """Write what is left and let go of the run. Once; later calls do nothing."""
        self.end()
        # `join` alone would take a thread for ended once it was interrupted.
        self._wait_until(lambda: self.ended)
        self._thread.join()
        with self.lock:
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    # The thread.

    def _work(self) -> None:
        try:
            while True:
                self._prepare()
                with self.lock:
                    items = self._next()
                if not items:
                    break
                self._pace.rest()  # a caller may have waited for the lock; it wants the GIL now
                inlets = list(self.inlets.values())
                since = items[0].time
                waited = self._counters(time.time() if isinstance(since, str) else since)
                self._disk.write(items, inlets, waited, self._pace)
                after = rows_after(items[-1])
                size = _OVERHEAD * len(items)
                for inlet in inlets:
                    size += inlet.row_bytes * self._batch.of(inlet.kind)
                    inlet.buffer.release(after.of(inlet.kind))
                with self.lock:
                    self._done += len(items)
                    self._bytes -= size
                    if not self.queue:
                        self._bytes = 0  # an interrupt may have left some
                    self._open_gates()
                while items:
                    self._pace.rest()
                    del items[-_FREED_AT_ONCE:]
            self._disk.close(self._counters(time.time()))
        except BaseException as error:
            with self.lock:
                self._failure, self._failed_at = error, error.__traceback__
                self.refuses = True
                self._open_gates()
            self._disk.abandon()
        finally:
            with self.lock:
                self.ended = True
                self._open_gates()

    def _prepare(self) -> None:
        """Have memory for the next batch, so that the caller need not wait for pages of it."""
        with self.lock:
            while not self.queue and not self._closing:
                self._more.wait()
            inlets = list(self.inlets.values())
            room = max(0, self._limit - self._bytes)
        with suppress(MemoryError):  # nobody needs it yet
            for inlet in inlets:
                rows = self._batch.of(inlet.kind) if self._taken else _FIRST_STEPS
                inlet.buffer.reserve(min(rows, room // len(inlets) // inlet.row_bytes))

    def _next(self) -> list[Step | Ending]:
        """Wait for a batch; empty when there will be none."""
        deadline = time.monotonic() + self._wait
        while len(self.queue) < BATCH_STEPS and not self._closing and self._done >= self._wanted:
            left = deadline - time.monotonic()
            if left <= 0 or self._bytes > self._limit // 2:
                break
            self._more.wait(min(left, _MAX_WAIT_S))
        count = min(len(self.queue), BATCH_STEPS)
        items = [self.queue.popleft() for _ in range(count)]
        if items:
            before, self.last = self.last, rows_after(items[-1])
            self._batch = Rows(*(b - a for a, b in zip(before, self.last, strict=True)))
        self._taken += count
        return items

    def _counters(self, since: float) -> Counters:
        waiting = [*map(type, list(self.queue))].count(Step)
        return Counters(self._enqueued, self._dropped, waiting, max(0.0, time.time() - since))
