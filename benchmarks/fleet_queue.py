"""Requests through links to ranks that wait for each other, one event after another.

A request waits for its first byte, then it shares a link with all that are under way: each gets
an equal part, but no more than one connection can carry (the max-min share, as all have the same
limit). A reader has so many connections, and holds no more bytes than its window but for those that
the step at hand needs. All ranks take a step together, when the slowest has its rows.
"""

import math
import random
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple


class Request(NamedTuple):
    """A range of bytes that steps `first` to `last` of its reader need."""

    bytes: int
    first: int
    last: int
    on_disk: bool = False


@dataclass(frozen=True)
class Path:
    """How bytes come from one place to a node."""

    link_bytes_s: float
    connection_bytes_s: float
    latency_s: float
    spread: float = 0.0
    floor_s: float = 0.0


@dataclass(frozen=True)
class Readers:
    """What each reader may have under way, and hold."""

    connections: int
    window_bytes: float
    steps_ahead: float = math.inf
    """Of the step at hand; 0 is a loop that asks for a batch when it needs it."""
    on_node: int = 1
    """Readers that share the links of a node."""
    threads: int | None = None
    """That each bring one step at a time, with connections of their own and no window but
    `steps_ahead`; None where all connections are one pool."""


@dataclass(frozen=True)
class Run:
    """When each step was asked for and handed over, and what was begun until the end."""

    asked: Sequence[float]
    handed: Sequence[float]
    seconds: float
    requests: int
    bytes: int

    def waiting(self, skipped: int = 0) -> float:
        """The share of time spent waiting, but for the first steps."""
        waits = sum(h - a for a, h in zip(self.asked, self.handed, strict=True))
        waits -= sum(self.handed[i] - self.asked[i] for i in range(skipped))
        return waits / max(self.seconds - self.asked[skipped], 1e-12)

    def step_s(self, skipped: int = 0) -> float:
        """Seconds a step, but for the first ones."""
        return (self.seconds - self.asked[skipped]) / (len(self.asked) - skipped)


def run(
    plans: Sequence[Sequence[Request]],
    steps: int,
    step_s: float,
    readers: Readers,
    bucket: Path,
    disk: Path | None = None,
    *,
    requests_s: float = math.inf,
    seed: int = 0,
) -> Run:
    """Have each plan read by a rank, which then works `step_s` on each of the steps.

    `requests_s` is what the bucket answers, all of these readers together.
    """
    return _Simulation(plans, steps, step_s, readers, bucket, disk, requests_s, seed).run()


class _Link:
    """Transfers that share a link. `_got` is what one that was always there would have by now."""

    __slots__ = ("_cap", "_got", "_last", "_rate", "_under_way")

    def __init__(self, path: Path) -> None:
        self._rate, self._cap = path.link_bytes_s, path.connection_bytes_s
        self._got = self._last = 0.0
        self._under_way: list[tuple[float, int, _Reader, Request]] = []

    def _share(self) -> float:
        return min(self._cap, self._rate / len(self._under_way))

    def _move(self, now: float) -> None:
        if self._under_way:
            self._got += (now - self._last) * self._share()
        else:
            self._got = 0.0
        self._last = now

    def add(self, now: float, number: int, reader: "_Reader", request: Request) -> None:
        self._move(now)
        heappush(self._under_way, (self._got + request.bytes, number, reader, request))

    def next_end(self) -> float:
        if not self._under_way:
            return math.inf
        return self._last + max(self._under_way[0][0] - self._got, 0.0) / self._share()

    def pop(self, now: float) -> tuple["_Reader", Request]:
        self._move(now)
        _, _, reader, request = heappop(self._under_way)
        return reader, request


class _Reader:
    """Where a rank is in its plan."""

    __slots__ = (
        "begun",
        "frees",
        "held",
        "in_flight",
        "links",
        "missing",
        "needs",
        "next",
        "plan",
        "starts",
    )

    def __init__(self, plan: Sequence[Request], steps: int, links: tuple[_Link, _Link]) -> None:
        self.plan, self.links = plan, links
        self.next = self.in_flight = self.held = 0
        last = max((request.last for request in plan), default=0)
        self.missing = [0] * max(steps, last + 1)
        self.frees, self.begun = list(self.missing), list(self.missing)
        firsts = [request.first for request in plan]
        self.starts = [bisect_left(firsts, step) for step in range(len(self.missing))]
        for request in plan:
            self.missing[request.first] += 1
            self.frees[request.last] += request.bytes
        self.needs = list(self.missing)


class _Simulation:
    def __init__(
        self,
        plans: Sequence[Sequence[Request]],
        steps: int,
        step_s: float,
        readers: Readers,
        bucket: Path,
        disk: Path | None,
        requests_s: float,
        seed: int,
    ) -> None:
        paths = bucket, bucket if disk is None else disk
        nodes = -(-len(plans) // readers.on_node)
        links = [(_Link(paths[0]), _Link(paths[1])) for _ in range(nodes)]
        self._paths, self._links = paths, [link for pair in links for link in pair]
        self._readers = [
            _Reader(plan, steps, links[i // readers.on_node]) for i, plan in enumerate(plans)
        ]
        self._rules, self._steps, self._step_s = readers, steps, step_s
        self._pause, self._may_start = 1 / requests_s, 0.0
        self._random = random.Random(seed)
        self._events: list[tuple[float, int, _Reader | None, Request | None]] = []
        self._number = self._bytes = 0
        self._step = 0  # that is waited for, or worked on
        self._working = False
        self._without = sum(reader.missing[0] > 0 for reader in self._readers)
        self._asked, self._handed = [0.0], list[float]()

    def run(self) -> Run:
        for reader in self._readers:
            self._issue(reader, 0.0)
        now = 0.0
        self._hand_over(now)
        while len(self._asked) <= self._steps:
            link = min(self._links, key=_Link.next_end)
            end = link.next_end()
            if self._events and self._events[0][0] <= end:
                now, number, begun, request = heappop(self._events)
                if begun is None or request is None:
                    self._ask(now)
                else:
                    begun.links[request.on_disk].add(now, number, begun, request)
            else:
                now = end
                reader, request = link.pop(now)
                self._came(reader, request, now)
        count = sum(reader.next for reader in self._readers)
        return Run(self._asked[:-1], self._handed, self._asked[-1], count, self._bytes)

    def _came(self, reader: _Reader, request: Request, now: float) -> None:
        reader.in_flight -= 1
        reader.missing[request.first] -= 1
        if request.first == self._step and not reader.missing[request.first]:
            self._without -= 1
            self._hand_over(now)
        self._issue(reader, now)

    def _hand_over(self, now: float) -> None:
        if self._working or self._without:
            return
        self._working = True
        self._handed.append(now)
        self._at(now + self._step_s, None, None)
        for reader in self._readers:
            reader.held -= reader.frees[self._step]
            self._issue(reader, now)

    def _ask(self, now: float) -> None:
        self._asked.append(now)
        self._step += 1
        self._working = False
        if self._step < self._steps:
            self._without = sum(reader.missing[self._step] > 0 for reader in self._readers)
            for reader in self._readers:
                self._issue(reader, now)
            self._hand_over(now)

    def _issue(self, reader: _Reader, now: float) -> None:
        """Begin what the reader may have under way."""
        rules, plan = self._rules, reader.plan
        if rules.threads is not None:
            self._issue_steps(reader, rules.threads, now)
            return
        while reader.next < len(plan) and reader.in_flight < rules.connections:
            request = plan[reader.next]
            needed = request.first <= self._step
            fits = reader.held + request.bytes <= rules.window_bytes
            if not needed and not (fits and request.first <= self._step + rules.steps_ahead):
                return
            self._begin(reader, request, now)

    def _issue_steps(self, reader: _Reader, threads: int, now: float) -> None:
        """The same where each thread is at one step until it is there."""
        last = min(len(reader.missing) - 1, self._step + self._rules.steps_ahead)
        step, busy = self._step, 0
        while step <= last and busy < threads:
            busy += reader.missing[step] > 0
            done = reader.needs[step] - reader.missing[step]
            while (
                reader.begun[step] < reader.needs[step]
                and reader.begun[step] - done < self._rules.connections
            ):
                request = reader.plan[reader.starts[step] + reader.begun[step]]
                reader.begun[step] += 1
                self._begin(reader, request, now)
            step += 1

    def _begin(self, reader: _Reader, request: Request, now: float) -> None:
        reader.next += 1
        reader.in_flight += 1
        reader.held += request.bytes
        self._bytes += request.bytes
        begin = now
        if not request.on_disk and self._pause:
            begin = self._may_start = max(self._may_start, now)
            self._may_start += self._pause
        self._at(begin + self._latency(self._paths[request.on_disk]), reader, request)

    def _latency(self, path: Path) -> float:
        if not path.spread or not path.latency_s:
            return max(path.latency_s, path.floor_s)
        drawn = self._random.lognormvariate(math.log(path.latency_s), path.spread)
        return max(drawn, path.floor_s)

    def _at(self, time: float, reader: _Reader | None, request: Request | None) -> None:
        self._number += 1
        heappush(self._events, (time, self._number, reader, request))
