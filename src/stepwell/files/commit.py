"""Commits to a bucket: one document names what counts, and conditional puts replace it.

    announced = Announcement(files)         also finds out whether conditions are kept
    head = Head(files, announced, "dataset.json", parse, dump)
    head.read()                             what counts now; None where nothing was begun
    head.change(make)                       what `make` makes of it counts, of the newest one

Objects that a document names are uploaded before, under names that begin with the token of their
writer, and never change. What no document names is garbage, once its writer is gone.
"""

import random
import re
import secrets
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import timedelta
from typing import Generic, Protocol, Self, TypeVar

from stepwell.errors import BusyError, FetchError, FormatError
from stepwell.files.document import Document, whole_number
from stepwell.files.puts import Listed, Tag, WritableFiles

T = TypeVar("T")


class Named(Protocol):
    """A document that `clean` goes by."""

    @property
    def names(self) -> set[str]:
        """Every object that it names."""

    def changed(self, by: str) -> Self:
        """The next document, which has the same in it."""


N = TypeVar("N", bound=Named)

LEASE_S = 900
READERS_ONLY = ("connections", "window_bytes", "cache", "cache_bytes")
"""Options of a bucket that a writer has no use for."""
_FOLDER = "writers/"
_ANNOUNCEMENT = Document("writer", "stepwell-writer", 1)
_TRIES = 200
_MAX_PAUSE_S = 1.0
_TOKEN = r"[0-9a-f]{16}"
_OURS = re.compile(
    rf"writers/({_TOKEN})\.json|(?:shards/|metadata/)?({_TOKEN})-\d+\.(?:npy|crc|db|shard)"
)
"""Every name that a writer gives to an object of its own, and its token."""


class Announcement:
    """An object that shows that a writer is at work, and is written again now and then.

    Making it is the probe of conditional puts: `FetchError` where a server ignores a condition.
    """

    def __init__(self, files: WritableFiles, lease_s: float = LEASE_S) -> None:
        self.token = secrets.token_hex(8)
        self.name = f"{_FOLDER}{self.token}.json"
        self._files, self._lease_s, self._count, self._names = files, lease_s, 0, -1
        self._is_gone = False
        self._turn, self._ended = threading.Lock(), threading.Event()
        self._tag = self._probed()
        self._thread = threading.Thread(target=self._keep_on, name="stepwell-lease", daemon=True)
        self._thread.start()

    def new_name(self, end: str) -> str:
        """A name for an object of this writer that none has had so far."""
        self._names += 1
        return f"{self.token}-{self._names}{end}"

    def check(self) -> None:
        """Raise `BusyError` when it was removed: then objects of this writer may have been."""
        if not self._is_gone and self._files.written(self.name) is None:
            self._is_gone = True
        if self._is_gone:
            raise BusyError(
                f"{self._files.url_of(self.name)}: expected the announcement of this writer, found "
                "none: `stepwell clean` took the writer for dead; open it again"
            )

    def renew(self) -> None:
        """Begin the lease again."""
        with self._turn:
            if self._ended.is_set() or self._is_gone:
                return
            tag = self._files.swap(self.name, self._text(), self._tag)
            if tag is None:
                # What is there is ours: a renewal of before, of which no answer came.
                there = self._files.read_tagged(self.name)
                if there is not None:
                    tag = self._files.swap(self.name, self._text(), there.tag)
            if tag is None:
                self._is_gone = True
            else:
                self._tag = tag

    def forget(self) -> None:
        """No longer renew it."""
        self._ended.set()

    def end(self) -> None:
        """Remove it, if the bucket allows: where it does not, the lease ends by itself."""
        self.forget()
        with self._turn, suppress(FetchError):
            self._files.remove([self.name])

    def _keep_on(self) -> None:
        while not self._ended.wait(self._lease_s / 3):
            with suppress(FetchError):  # the next time; a commit looks whether it is there
                self.renew()

    def _text(self) -> bytes:
        """Different each time, so that no two have the same ETag."""
        self._count += 1
        content = {"token": self.token, "lease_s": self._lease_s, "renewed": self._count}
        return _ANNOUNCEMENT.dump(content)

    def _probed(self) -> Tag:
        """Write it, and have it refused twice: where it is there already, and where it is not the
        one that is expected."""
        swap, name = self._files.swap, self.name
        try:
            first = swap(name, self._text(), None)
            if first is not None and swap(name, self._text(), None) is None:
                second = swap(name, self._text(), first)
                if second is not None and swap(name, self._text(), first) is None:
                    return second
                condition = "If-Match: of an ETag that is gone"
            else:
                condition = "If-None-Match: *"
        except BaseException:
            with suppress(FetchError):
                self._files.remove([name])
            raise
        with suppress(FetchError):
            self._files.remove([name])
        raise FetchError(
            f"expected conditional puts, got a server that ignores the condition ({condition}): "
            "writers would overwrite each other's commits",
            url=self._files.url_of(name),
        )


class Head(Generic[T]):
    """The document that has what counts, as it was last seen."""

    def __init__(
        self,
        files: WritableFiles,
        name: str,
        parse: Callable[[bytes, str], T],
        dump: Callable[[T], bytes],
    ) -> None:
        self.name, self._files, self._parse, self._dump = name, files, parse, dump
        self.seen: T | None = None
        self._tag: Tag | None = None
        self._is_known = False

    def read(self) -> T | None:
        """What counts now; None where there is no document."""
        self._is_known = False
        found = self._files.read_tagged(self.name)
        self.seen = self._tag = None
        if found is not None:
            self.seen = self._parse(found.data, self._files.url_of(self.name))
            self._tag = found.tag
        self._is_known = True
        return self.seen

    def change(self, make: Callable[[T | None], T | None], announced: Announcement) -> T | None:
        """Let what `make` returns count in place of what does now, which it is given; where it
        returns None, nothing is changed. Called again where somebody else was quicker.

        What it returns must be unlike every other document, whoever made that. Raises `BusyError`
        when others were quicker again and again. After a `FetchError` it is not known whether it
        counts; a later call sees that.
        """
        for attempt in range(_TRIES):
            if not self._is_known:
                self.read()
            # In this order: `clean` removes an announcement, then changes the document, then
            # removes what is not in it.
            announced.check()
            try:
                made = make(self.seen)
            except Outdated as error:
                self._is_known = False
                if attempt == _TRIES - 1 or not self._has_changed():
                    raise error.error from None
                continue
            if made is None:
                return self.seen
            self._is_known = False
            tag = self._files.swap(self.name, self._dump(made), self._tag)
            if tag is not None:
                self.seen, self._tag, self._is_known = made, tag, True
                return made
            time.sleep(random.uniform(0, min(0.01 * 2**attempt, _MAX_PAUSE_S)))
        raise BusyError(
            f"{self._files.url_of(self.name)}: other writers were quicker {_TRIES} times; "
            "commit() tries again"
        )

    def _has_changed(self) -> bool:
        before = self._tag
        self.read()
        return self._tag != before


class Outdated(Exception):
    """For `make`: what the document names is gone. That is an error, unless the document has
    changed by now."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def token_of(name: str) -> str | None:
    """The writer that an object is of; None for what no writer makes."""
    found = _OURS.fullmatch(name)
    return None if found is None else found[1] or found[2]


class Garbage:
    """Objects below a URL that no document names and no live writer announced, that are older than
    a minimum age; all by the server's clock."""

    def __init__(self, files: WritableFiles, older_than: timedelta) -> None:
        self._files, self._older_than = files, older_than
        self._announced = Announcement(files)
        """That somebody cleans up: its time is the server's."""
        try:
            now = files.written(self._announced.name)
            if now is None:
                self._announced.check()
            assert now is not None
            self.now = now
            self._listed = files.all_listed()
            self._live = self._live_tokens()
        except BaseException:
            self.close()
            raise

    def of(self, head: Head[N]) -> dict[str, Listed]:
        """All of it, where objects count that the newest document names: a commit may have come
        since they were listed."""
        return self._unnamed(self._there(head, head.read()).names)

    def _there(self, head: Head[N], there: N | None) -> N:
        if there is None:
            message = "it was removed meanwhile; what it named may be all that there is, and stays"
            raise FormatError(message, path=self._files.url_of(head.name))
        return there

    def _unnamed(self, named: Collection[str]) -> dict[str, Listed]:
        return {
            name: about
            for name, about in self._listed.items()
            if name not in named
            and (token := token_of(name)) is not None
            and token not in self._live
            and self.now - about.written >= self._older_than
        }

    def remove(self, head: Head[N]) -> dict[str, Listed]:
        """Remove what the newest document does not name; returns what that was.

        The document is changed before, so that no writer which was taken for dead can commit.
        """
        if not self.of(head):
            return {}
        every = self._unnamed(())
        self._files.remove(name for name in every if name.startswith(_FOLDER))

        def make(there: N | None) -> N:
            return self._there(head, there).changed(self._announced.token)

        made = head.change(make, self._announced)
        assert made is not None
        found = self._unnamed(made.names)
        self._files.remove(name for name in found if not name.startswith(_FOLDER))
        return found

    def close(self) -> None:
        self._announced.end()

    def _live_tokens(self) -> set[str]:
        live = {self._announced.token}
        for name, about in self._listed.items():
            token = token_of(name)
            if token is None or not name.startswith(_FOLDER) or token in live:
                continue
            lease = timedelta(seconds=self._lease_of(name))
            if self.now - about.written < max(lease, self._older_than):
                live.add(token)
        return live

    def _lease_of(self, name: str) -> float:
        """That of an announcement; what cannot be read is honoured for the usual time."""
        data = self._files.read_all(name)
        if data is None:
            return 0
        with suppress(FormatError), _ANNOUNCEMENT.parsing_bytes(data, name) as text:
            return whole_number(int(text["lease_s"]), 1 << 31)
        return LEASE_S
