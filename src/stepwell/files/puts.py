"""Objects that are written below a URL: whole, and where it matters only if nobody was quicker."""

import random
import time
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, BinaryIO, NamedTuple

from stepwell.errors import FetchError
from stepwell.files.remote import RemoteFiles, missing_errors, obstore_library
from stepwell.lazy import lazy

_UNABLE = {
    "file": "a folder: give its path, without file://",
    "http": "a web server, which has no conditional puts",
    "https": "a web server, which has no conditional puts",
}
_PART_BYTES = 8 << 20
_PARTS_AT_ONCE = 4
_MET = 10
_MET_S = 0.2


class Tag(NamedTuple):
    """Which version of an object it is, as conditional puts name it."""

    e_tag: str | None
    version: str | None


class Tagged(NamedTuple):
    """A small object as it was read."""

    data: bytes
    tag: Tag


class Listed(NamedTuple):
    """An object of a list."""

    size: int
    written: datetime
    """By the server's clock."""


class WritableFiles(RemoteFiles):
    """Files below a URL that are written, too.

    Raises `FetchError` for a URL of which it is known that a put cannot have a condition.
    """

    def __init__(self, where: Any, **options: Any) -> None:
        for scheme, place in _UNABLE.items():
            if str(where).startswith(f"{scheme}://"):
                raise FetchError(f"expected a bucket to write to, got {place}", url=str(where))
        super().__init__(where, **options)

    def read_tagged(self, name: str) -> Tagged | None:
        """A small object as it is now; None where there is none."""

        def work(store: Any) -> Tagged | None:
            try:
                got = obstore_library().get(store, name)
            except missing_errors():
                return None
            return Tagged(bytes(got.bytes()), _tag(got.meta))

        return self._tried(work, self.url_of(name))

    def put(self, name: str, data: bytes | BinaryIO) -> None:
        """Write an object, in parts where it is large; nobody sees half of it."""

        def work(store: Any) -> None:
            if not isinstance(data, bytes):
                data.seek(0)
            obstore_library().put(
                *(store, name, data), chunk_size=_PART_BYTES, max_concurrency=_PARTS_AT_ONCE
            )

        self._tried(work, self.url_of(name), self._in_parts)

    def swap(self, name: str, data: bytes, known: Tag | None) -> Tag | None:
        """Write a small object if it is still the `known` one, or if there is none yet; None where
        somebody was quicker.

        `data` must be bytes that nobody else writes there: where the answer to a request was lost,
        they show whether it was carried out.
        """
        obstore, url = obstore_library(), self.url_of(name)
        mode: Any = "create"
        if known is not None:
            mode = {key: value for key, value in known._asdict().items() if value is not None}

        def work(store: Any) -> Tag:
            return _tag(obstore.put(store, name, data, mode=mode, use_multipart=False))

        for left in reversed(range(_MET)):
            try:
                return self._tried(work, url)
            except FetchError as error:
                refused = isinstance(error.__cause__, _refusals())
                if not refused and isinstance(error.__cause__, _unable()):
                    message = f"expected conditional puts: {error.args[0]}"
                    raise FetchError(message, url=url) from error.__cause__
                there = self._read_back(name, error)
                if there is not None and there.data == data:
                    return there.tag
                if not refused or not left:
                    raise
                if (None if there is None else there.tag) != known:
                    return None
                # It is the known one: two requests met at the server, which refused both.
                time.sleep(random.uniform(0, _MET_S))
        raise AssertionError

    def _read_back(self, name: str, error: FetchError) -> Tagged | None:
        try:
            return self.read_tagged(name)
        except FetchError:
            raise error from error.__cause__

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects; those that are gone already are fine."""
        obstore = obstore_library()
        for name in names:

            def work(store: Any, name: str = name) -> None:
                try:
                    obstore.delete(store, name)
                except missing_errors():
                    pass

            self._tried(work, self.url_of(name))

    def written(self, name: str) -> datetime | None:
        """When an object was written, by the server's clock; None where there is none."""

        def work(store: Any) -> datetime | None:
            try:
                found: datetime = obstore_library().head(store, name)["last_modified"]
            except missing_errors():
                return None
            return found

        return self._tried(work, self.url_of(name))

    def all_listed(self) -> dict[str, Listed]:
        """Every object below the URL."""
        obstore = obstore_library()

        def work(store: Any) -> dict[str, Listed]:
            return {
                each["path"]: Listed(int(each["size"]), each["last_modified"])
                for some in obstore.list(store)
                for each in some
            }

        return self._tried(work, self.url)

    @lazy
    def _in_parts(self) -> Any:
        """A store that tries each part of a large object again by itself."""
        if self._given is not None:
            return self._given
        retry = {"max_retries": 10, "retry_timeout": timedelta(seconds=self._deadline_s)}
        return self._made(self._deadline_s / 2, retry)


def _tag(about: Any) -> Tag:
    return Tag(about.get("e_tag"), about.get("version"))


def _refusals() -> tuple[type[Exception], ...]:
    """What a condition that does not hold is answered with."""
    known = obstore_library().exceptions
    return known.AlreadyExistsError, known.PreconditionError, *missing_errors()


def _unable() -> tuple[type[Exception], ...]:
    return NotImplementedError, obstore_library().exceptions.NotSupportedError
