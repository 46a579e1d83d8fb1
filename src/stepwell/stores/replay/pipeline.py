"""From the caller of `record_step` to the disk: a bounded queue and the thread that empties it."""

import os
import threading
import time
from collections import deque

from stepwell.stores.replay.disk import RunDisk
from stepwell.stores.replay.items import Counters, Ending, Rows, Step
from stepwell.stores.replay.slots import Slots, in_slots, touched

__all__ = ["Pipeline"]

_BATCH_STEPS = 512
_OVERHEAD = 1024  # bytes that a step costs in the queue besides its arrays


class Pipeline:
    """Steps in, commits out, in order. The caller holds `lock` while it puts one together."""

    def __init__(self, disk: RunDisk, drop: bool, queue_bytes: int, flush_every: float) -> None:
        self.lock = threading.Condition(threading.RLock())
        self.last = Rows(*disk.handed_over)
        self._disk = disk
        self._drop = drop
        self._limit = queue_bytes
        self._wait = flush_every
        self._process = os.getpid()
        self.slots = Slots()
        self._queue: deque[Step | Ending] = deque()
        self._bytes = 0
        self._enqueued = disk.enqueued
        self._dropped = disk.dropped
        self._taken = self._done = 0  # items of the queue, since this writer began
        self._wanted = 0  # as many have to be written before anybody waits any longer
        self._closing = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="stepwell-replay", daemon=True)
        self._thread.start()

    @property
    def own(self) -> bool:
        """Whether this is the process whose thread does the work."""
        return self._process == os.getpid()

    def check(self) -> None:
        """Raises what keeps this writer from taking a step."""
        if not self.own:
            raise RuntimeError(
                "a writer cannot be used in a forked process; open another run there"
            )
        if self._failure is not None:
            raise self._failure
        if self._closing:
            raise ValueError("the writer is closed")

    @property
    def rows(self) -> Rows:
        """What was handed over, by the last item that was; nothing else counts it, so that an
        interrupt cannot come between the two."""
        return self._queue[-1].after if self._queue else self.last

    def room(self, size: int) -> bool:
        """Wait until there is room for a step, or count it as dropped and return False."""
        while self._queue and self._bytes + size + _OVERHEAD > self._limit:
            if self._drop:
                self._dropped += 1
                return False
            self.lock.notify_all()
            self.lock.wait(1)
            self.check()
        return True

    def put(self, item: Step | Ending) -> None:
        self._queue.append(item)
        self._bytes += _size(item)
        self._enqueued += isinstance(item, Step)
        if len(self._queue) == _BATCH_STEPS or len(self._queue) == 1:
            self.lock.notify_all()

    def flush(self) -> None:
        """Return when everything that was put is on the disk."""
        with self.lock:
            self.check()
            self._flush()

    def _flush(self) -> None:
        self._wanted = target = self._taken + len(self._queue)
        self.lock.notify_all()
        while self._done < target:
            if self._failure is not None:
                raise self._failure
            self.lock.wait(1)

    def close(self) -> None:
        """Write what is left and let go of the run. Once; later calls do nothing."""
        if not self.own:
            return
        with self.lock:
            self._closing = True
            self.lock.notify_all()
        if threading.current_thread() is self._thread:
            return  # collected there as garbage; the thread is about to see it
        self._thread.join()
        with self.lock:
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    # What the thread does.

    def _work(self) -> None:
        try:
            while True:
                self._prepare()
                with self.lock:
                    items = self._next()
                if not items:
                    break
                self._disk.write(items, self._counters(items[0].time))
                size = sum(map(_size, items))
                slots = in_slots(payload for item in items for payload in item.payloads)
                with self.lock:
                    self._done += len(items)
                    self._bytes -= size
                    for row_bytes, some in slots.items():
                        self.slots.add(row_bytes, some)
                    self.lock.notify_all()
            self._disk.close(self._counters(time.time()))
        except BaseException as error:
            with self.lock:
                self._failure = error
                self.lock.notify_all()
            self._disk.abandon()

    def _prepare(self) -> None:
        """Have memory for the next batch, so that the caller need not wait for pages of it."""
        with self.lock:
            while not self._queue and not self._closing:
                self.lock.wait()
            wanting = self.slots.wanting(_BATCH_STEPS, self._limit - self._bytes)
        for size, count in wanting:
            slots = touched(size, count)
            with self.lock:
                self.slots.add(size, slots)

    def _next(self) -> list[Step | Ending]:
        """Wait for a batch; empty when there will be none."""
        deadline = time.monotonic() + self._wait
        while len(self._queue) < _BATCH_STEPS and not self._closing and self._done >= self._wanted:
            left = deadline - time.monotonic()
            if left <= 0 or self._bytes > self._limit // 2:
                break
            self.lock.wait(left)
        count = min(len(self._queue), _BATCH_STEPS)
        items = [self._queue.popleft() for _ in range(count)]
        if items:
            self.last = items[-1].after
        self._taken += count
        return items

    def _counters(self, since: float) -> Counters:
        waiting = sum(isinstance(item, Step) for item in list(self._queue))
        return Counters(self._enqueued, self._dropped, waiting, max(0.0, time.time() - since))


def _size(item: Step | Ending) -> int:
    return _OVERHEAD + sum([len(data) for _, data in item.payloads])
