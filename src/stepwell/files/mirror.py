"""Files below a URL as local files that are filled as they are read.

    mirror = Mirror("s3://bucket/games")
    mirror.whole("metadata.db")             fetched now, all of it
    mirror.sparse("steps.npy")              a file of holes; its units come when they are needed
    mirror.reading(units, work)             what `work` returns, which reads these units

What reads a local store reads `mirror.root` as well; all that is added is that bytes are there
before they are read.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from stepwell.errors import ChecksumError, FormatError
from stepwell.files.coming import Coming
from stepwell.files.mirror_place import CachePlace
from stepwell.files.npy import header_length, padded_header
from stepwell.files.objects import RANGE_BYTES, TRIES, Objects, Statistics
from stepwell.files.residents import LEFT, Numbers, Residents, Slots, spanned
from stepwell.files.stand_in import LATELY_S, Generations, SharedStandIn, StandIn

T = TypeVar("T")

UNIT_BYTES = 4096
_GAP_UNITS = 4
_PIECE_BYTES = 1 << 18
"""Of each request that is under way, in memory."""

Check = Callable[[int, NDArray[np.uint8]], None]
"""Raises `ChecksumError` unless bytes of a file, from a place behind its head on, are right."""


class _Sparse(NamedTuple):
    file: StandIn
    check: Check | None


class Mirror(Objects):
    """Local stand-ins of objects below a URL.

    `connections` requests are under way at a time. What was fetched is in memory (or where
    temporary files are) up to `window_bytes`; with `cache`, a directory, there, up to
    `cache_bytes` with whatever else is mirrored there, and outlives the process. `options` are
    those of `RemoteFiles`.
    """

    def __init__(
        self,
        where: Any,
        *,
        connections: int = 8,
        window_bytes: int = 1 << 28,
        cache: str | os.PathLike[str] | None = None,
        cache_bytes: int = 1 << 34,
        unit_bytes: int = UNIT_BYTES,
        listing: bool = True,
        **options: Any,
    ) -> None:
        for name, number, min_ in (
            ("connections", connections, 1),
            ("window_bytes", window_bytes, unit_bytes),
            ("cache_bytes", cache_bytes, 0),
        ):
            if number < min_:
                raise ValueError(f"{name}: expected at least {min_}, got {number}")
        super().__init__(where, connections, window_bytes, cache, listing=listing, **options)
        self.unit_bytes = unit_bytes
        self.budget_bytes = window_bytes if cache is None else cache_bytes
        self._sparse: dict[str, _Sparse] = {}
        self._order: list[_Sparse] = []
        self._firsts = np.zeros(0, np.int64)
        self._units = Residents(self.budget_bytes // unit_bytes)
        self._range_units = max(min(RANGE_BYTES, self.budget_bytes // connections) // unit_bytes, 1)
        self.abandoned: deque[Slots] = deque()
        """Slots that nobody let go of who had pinned them."""
        self._requests: dict[int, Future[None]] = {}
        self._request = 0
        self._unseen_bytes = 0
        """Fetched since the last look at the size of the cache."""

    # Files of holes.

    def array(self, name: str, check: Check | None = None) -> StandIn:
        """The same for a `.npy` file: as rows are to begin where a unit does, its header is one of
        the same array that has more spaces."""
        return self.sparse(name, check, self._array_head)

    def _array_head(self, name: str) -> tuple[bytes, int]:
        about, start = self._opened(name), self.data(name, 0, UNIT_BYTES)
        if (length := header_length(start)) > len(start):
            start = self.data(name, 0, length)
        return padded_header(start, about.size, self.unit_bytes, self.url_of(name))

    def sparse(
        self,
        name: str,
        check: Check | None = None,
        head: Callable[[str], tuple[bytes, int]] | None = None,
    ) -> StandIn:
        """A file that is filled as it is read; what comes is compared by `check`.

        `head` gives what the file begins with, and where in the object the rest does.
        """
        found = self._sparse.get(name)
        if found is not None:
            return found.file
        about = self._opened(name)
        file: StandIn
        if isinstance(self._place, CachePlace):
            known = SharedStandIn.known(self.root, name, about, self.unit_bytes)
            start = known or ((b"", 0) if head is None else head(name))
            changing = self._place.changing
            file = SharedStandIn(self.root, name, about, self.unit_bytes, *start, changing)
        else:
            start = (b"", 0) if head is None else head(name)
            file = StandIn(self.root, name, about, self.unit_bytes, *start)
        with self._lock:
            file.first = self._units.extend(file.units)
            made = _Sparse(file, check)
            self._sparse[name] = made
            self._order.append(made)
            self._firsts = np.append(self._firsts, file.first)
        return file

    # Units.

    @property
    def empty(self) -> int:
        with self._lock:
            return self._units.empty

    @property
    def spare(self) -> int:
        with self._lock:
            return self._units.spare

    def units_of(
        self, firsts: NDArray[np.int64], begins: NDArray[np.int64], sizes: NDArray[np.int64] | int
    ) -> Numbers:
        """Those of stretches of files, each given by the first unit of its file."""
        ends = begins + sizes - 1
        there = ends >= begins
        first, last = firsts + begins // self.unit_bytes, firsts + ends // self.unit_bytes
        return spanned(first[there], last[there])

    def missing(self, units: Numbers) -> Numbers:
        with self._lock:
            slots = self._units.slots(units)
            there = self._are_here(units, slots) | self._units.coming(slots)
        return units[~there]

    def bring(self, units: Numbers) -> Coming:
        """Begin to bring those that are missing, neighbours in one request, and keep all."""
        self._check_process()
        with self._lock:
            while self.abandoned:
                self._units.unpin(self.abandoned.popleft())
            known, slots = self._units, self._units.slots(units)
            here, coming = self._are_here(units, slots), known.coming(slots)
            lost = ~here & ~coming
            if lost.any():
                known.claim(units[slots == 0])
                slots = known.slots(units)
                # Of those that have a slot, another process may have brought them again.
                met = self._met(units[lost])
                known.generation[slots[lost]] = met
                known.request[slots[lost]] = np.where(met != 0, 0, LEFT)
                lost[lost] = met == 0
            known.pin(slots)
            self._drop(known.surplus())
            begun = self._begin(self._with_gaps(units[lost]))
            self.statistics.read_bytes += len(units) * self.unit_bytes
            requests = known.request[slots]
            own = {request for request, *_ in begun}
            futures = {
                each: (self._requests[each], each in own)
                for each in np.unique(requests).tolist()
                if each in self._requests
            }
        for each in begun:
            self._submit(*each)
        return Coming(self, units, slots, requests, futures)

    def expect(self, units: Numbers, next_use: NDArray[np.int64]) -> None:
        with self._lock:
            self._units.expect(units, next_use)

    def reading(self, units: Numbers, work: Callable[[], T]) -> T:
        """What `work` returns, which reads these units: they are here and stay here meanwhile.

        Where it finds bytes that are damaged, they are brought again, and it is called again; so
        it is where another process has dropped some of them.
        """
        left, before = TRIES, None
        self._check_process()
        if not self._place.is_shared and (had := self._units.generations(units)).all():
            # What is here is read without the lock, which others have while they make room.
            with suppress(Exception):  # of damage, or of what went meanwhile; it comes again below
                result = work()
                if (self._units.generations(units) == had).all():
                    self._units.touch(units)
                    self.statistics.read_bytes += len(units) * self.unit_bytes
                    return result
        while True:
            coming = self.bring(units)
            if before is not None:  # only now: what it has is not to be brought again
                before.release()
            before = coming
            try:
                try:
                    coming.wait()
                except Exception:
                    if coming.others_failed:  # whose error it is: now they are asked for here
                        continue
                    raise
                had = coming.generations()
                try:
                    result = work()
                except FormatError:
                    left -= 1
                    if not left:
                        raise
                    self.forget(units)
                    continue
                if (had != 0).all() and (self._generations(units) == had).all():
                    coming.release()
                    return result
            except BaseException:
                coming.release()
                raise

    # Below this line: with the lock held, but for what is said to be a thread's.

    def _are_here(self, units: Numbers, slots: Slots) -> NDArray[np.bool]:
        here = self._units.here(slots)
        if self._place.is_shared:
            here &= self._units.generation[slots] == self._generations(units)
        return here

    def _by_file(self, units: Numbers) -> Iterator[tuple[_Sparse, slice]]:
        """Ascending units, file by file."""
        if not len(units):
            return
        numbers = np.searchsorted(self._firsts, units, side="right") - 1
        edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(units)]
        for begin, end in pairwise(edges):
            yield self._order[int(numbers[begin])], slice(begin, end)

    def _generations(self, units: Numbers) -> Generations:
        if not self._place.is_shared:
            return self._units.generations(units)
        found = np.zeros(len(units), np.uint32)
        for (file, _), some in self._by_file(units):
            found[some] = file.generations(units[some] - file.first)
        return found

    def _met(self, units: Numbers) -> Generations:
        found = np.zeros(len(units), np.uint32)
        if self._place.is_shared:
            for (file, _), some in self._by_file(units):
                found[some] = file.met(units[some] - file.first)
        return found

    def _drop(self, units: Numbers, *, damaged: bool = False) -> None:
        for (file, _), some in self._by_file(units):
            file.drop(units[some] - file.first, damaged=damaged)

    def forget(self, units: Numbers) -> None:
        """Have these brought again: they came damaged."""
        with self._lock:
            slots = self._units.slots(units)
            here = self._units.here(slots)
            self._units.lose(slots[here])
            self._drop(units[here], damaged=True)

    def _with_gaps(self, units: Numbers) -> Numbers:
        """Units to bring, and those of the gaps between them that are read through, if there is
        room for them: they come anyway, and the steps after the next may need them."""
        gaps = np.diff(units)
        wide = np.flatnonzero((gaps > 1) & (gaps <= _GAP_UNITS + 1))
        in_file = np.searchsorted(self._firsts, units, side="right")
        wide = wide[in_file[wide] == in_file[wide + 1]]
        if not len(wide):
            return units
        between = spanned(units[wide] + 1, units[wide + 1] - 1)
        between = between[self._units.slots(between) == 0]
        if len(between) > self._units.empty:
            return units
        slots = self._units.claim(between)
        met = self._met(between)  # another process has brought some
        self._units.generation[slots] = met
        self._units.request[slots[met != 0]] = 0
        return np.sort(np.concatenate([units, between[met == 0]]))

    def _begin(self, units: Numbers) -> list[tuple[int, _Sparse, Numbers]]:
        """Requests for units, neighbours together and small gaps read through."""
        slots, begun = self._units.slots(units), list[tuple[int, _Sparse, Numbers]]()
        for sparse, some in self._by_file(units):
            mine = units[some] - sparse.file.first
            at = some.start
            breaks = (np.flatnonzero(np.diff(mine) > _GAP_UNITS + 1) + 1).tolist()
            for first, last in zip([0, *breaks], [*breaks, len(mine)], strict=True):
                begin = first
                while begin < last:
                    limit = mine[begin] + self._range_units
                    end = begin + int(np.searchsorted(mine[begin:last], limit))
                    self._request += 1
                    self._units.request[slots[at + begin : at + end]] = self._request
                    self._requests[self._request] = Future()
                    begun.append((self._request, sparse, mine[begin:end]))
                    begin = end
        return begun

    def _submit(self, request: int, sparse: _Sparse, units: Numbers) -> None:
        try:
            self._pool.submit(self._fetch, request, sparse, units)
        except RuntimeError as error:  # it was closed, or the interpreter ends
            self._failed(request, sparse, units, error)

    def _fetch(self, request: int, sparse: _Sparse, units: Numbers) -> None:
        """A thread's: bring neighbouring units of a file."""
        file = sparse.file
        try:
            made = [*self._arriving(sparse, units)]
        except BaseException as error:
            self._failed(request, sparse, units, error)
            return
        with self._lock:
            slots = self._units.slots(units + file.first)
            mine = self._units.request[slots] == request
            generations = np.concatenate(made)[mine]
            if not self._place.is_shared:  # never the same again
                generations[:] = request
            self._units.arrived(slots[mine], generations)
            done = self._requests.pop(request)
            self._look_at_room(len(units))
        done.set_result(None)

    def _failed(self, request: int, sparse: _Sparse, units: Numbers, error: BaseException) -> None:
        with self._lock:
            slots = self._units.slots(units + sparse.file.first)
            self._units.lose(slots[self._units.request[slots] == request])
            done = self._requests.pop(request)
        done.set_exception(error)

    def _arriving(self, sparse: _Sparse, units: Numbers) -> Iterator[Generations]:
        """A thread's: units and what is between them come, and are put into their file; fetched
        again where they are damaged."""
        file, check, left = sparse.file, sparse.check, TRIES - 1
        at, end = file.begin(int(units[0])), file.end(int(units[-1]))
        size = max(_PIECE_BYTES // self.unit_bytes, 1) * self.unit_bytes
        while at < end:
            begin = file.origin + at
            try:
                for data in self._pieces(file.name, begin, file.origin + end, file.about, size):
                    if check is not None:
                        check(at, data)
                    first, behind = at // self.unit_bytes, -(-(at + len(data)) // self.unit_bytes)
                    some = units[slice(*np.searchsorted(units, [first, behind]))]
                    for each in np.split(some, np.flatnonzero(np.diff(some) > 1) + 1):
                        if len(each):
                            part = slice(
                                file.begin(int(each[0])) - at, file.end(int(each[-1])) - at
                            )
                            yield file.put(int(each[0]), data[part])
                    at += len(data)
            except ChecksumError:
                if not left:
                    raise
                left -= 1

    def _look_at_room(self, count: int) -> None:
        """Now and then see how much the cache takes, whoever brought it, and keep to its size.

        First what nobody has brought lately goes, then what this process has.
        """
        self._unseen_bytes += count * self.unit_bytes
        if not self._place.is_shared or self._unseen_bytes < self.budget_bytes // 16:
            return
        self._unseen_bytes = 0
        surplus = -(-self._place.make_room(self.budget_bytes) // self.unit_bytes)
        for file, _ in self._order:
            if surplus <= 0:
                break
            old = file.old(time.time() - LATELY_S) + file.first
            old = old[self._units.slots(old) == 0][:surplus]
            file.drop(old - file.first)
            surplus -= len(old)
        whole = self.budget_bytes // self.unit_bytes
        self._units.budget = min(max(len(self._units) - surplus, 1), whole)
        self._drop(self._units.surplus())

    # Errors.

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Errors of the block name objects in the place of the files that stand in for them."""
        try:
            yield
        except FormatError as error:
            self.translate(error)
            raise
        except FileNotFoundError as error:
            name = self._name_of(error.filename)
            if name is not None:
                error.filename = self.url_of(name) if name else self.url
            raise

    def translate(self, error: FormatError) -> None:
        """Have an error name an object, and the place there."""
        name = self._name_of(error.path)
        if name is None:
            return
        error.path = self.url_of(name) if name else self.url
        sparse = self._sparse.get(name)
        if sparse is not None and error.offset is not None:
            error.offset = max(error.offset + sparse.file.origin - sparse.file.head_bytes, 0)

    def _name_of(self, path: Any) -> str | None:
        text, root = str(path or ""), str(self.root)
        if text == root:
            return ""
        return text[len(root) + 1 :] if text.startswith(root + os.sep) else None


def split_url(url: str) -> tuple[str, str]:
    """The URL above an object, and its name there."""
    above, _, name = url.rstrip("/").rpartition("/")
    return above, name


class MirroredRows:
    """The units of a source's rows: a `Units`, as stepwell/units.py has it."""

    def __init__(self, mirror: Mirror, of: Callable[[NDArray[np.int64]], Numbers]) -> None:
        self.mirror, self.of = mirror, of
        self.unit_bytes, self.budget_bytes = mirror.unit_bytes, mirror.budget_bytes
        self.missing, self.bring, self.expect = mirror.missing, mirror.bring, mirror.expect

    @property
    def empty(self) -> int:
        return self.mirror.empty

    @property
    def spare(self) -> int:
        return self.mirror.spare

    @classmethod
    def of_tables(
        cls,
        mirror: Mirror,
        files: Sequence[tuple[StandIn, int]],
        row_bytes: int,
        moved: Callable[[NDArray[np.int64]], NDArray[np.int64]] | None = None,
    ) -> "MirroredRows":
        """Of rows of one size that fill files one after another, each file with its count; `moved`
        gives the numbers that rows have there."""
        starts = np.cumsum([0, *(rows for _, rows in files)])[:-1]
        firsts = np.array([file.first for file, _ in files], np.int64)

        def of(rows: NDArray[np.int64]) -> Numbers:
            rows = rows if moved is None else moved(rows)
            file = np.searchsorted(starts, rows, side="right") - 1
            return mirror.units_of(firsts[file], (rows - starts[file]) * row_bytes, row_bytes)

        return cls(mirror, of)

    @property
    def statistics(self) -> Statistics:
        """Requests, bytes fetched, and bytes of the units that were read."""
        return self.mirror.statistics
