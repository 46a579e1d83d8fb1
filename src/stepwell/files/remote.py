"""Files in a bucket or behind a web server, read in ranges (extra `remote`)."""

import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from stepwell.errors import FetchError

__all__ = ["RemoteFiles", "is_url"]

T = TypeVar("T")

_PAUSE_S = 0.1


def is_url(where: object) -> bool:
    """Whether this names a bucket or a server, and not a path."""
    return isinstance(where, str) and "://" in where


class RemoteFiles:
    """Files below a URL (s3, gs, az, http, https, …) or of an obstore store.

    Requests that fail in a way that may pass are tried again, with growing pauses, for up to
    `deadline_s`. `options` are those of the store: `endpoint`, `region`, keys, as obstore has them.
    """

    def __init__(self, where: Any, *, deadline_s: float = 60.0, **options: Any) -> None:
        obstore = _obstore()
        if deadline_s <= 0:
            raise ValueError(f"deadline_s: expected more than 0, got {deadline_s}")
        self._deadline_s = deadline_s
        if is_url(where):
            self.url = str(where).rstrip("/")
            limit = timedelta(seconds=deadline_s)
            retry = {"max_retries": 100, "retry_timeout": limit}
            client = {"timeout": limit, **options.pop("client_options", {})}
            if self.url.startswith("http://") or options.get("endpoint", "").startswith("http://"):
                client.setdefault("allow_http", True)
            try:
                self._store = obstore.store.from_url(
                    self.url, client_options=client, retry_config=retry, **options
                )
            except (obstore.exceptions.BaseError, ValueError, TypeError) as error:
                raise FetchError(f"not a place to read from: {error}", url=self.url) from error
        else:
            self.url, self._store = repr(where), where

    @property
    def place(self) -> str:
        """What tells these files from all others: the same URL may be of several servers."""
        return f"{self.url} {getattr(self._store, 'config', {}).get('endpoint', '')}"

    def url_of(self, name: str) -> str:
        return f"{self.url}/{name}"

    def names(self, suffix: str) -> dict[str, int]:
        """Names that end so, directly below the URL, and their sizes."""
        obstore = _obstore()

        def work() -> dict[str, int]:
            found = obstore.list_with_delimiter(self._store)["objects"]
            return {
                each["path"]: int(each["size"])
                for each in found
                if each["path"].endswith(suffix) and "/" not in each["path"]
            }

        return self._tried(work, self.url)

    def read(self, name: str, begin: int, end: int) -> NDArray[np.uint8]:
        """Bytes `begin` to `end` of a file, all of them."""
        obstore = _obstore()

        def work() -> NDArray[np.uint8]:
            got = obstore.get_range(self._store, name, start=begin, end=end)
            data = np.frombuffer(got, np.uint8)
            if len(data) != end - begin:
                raise _Short(f"expected {end - begin} bytes at {begin}, got {len(data)}")
            return data

        if end <= begin:
            return np.empty(0, np.uint8)
        return self._tried(work, self.url_of(name))

    def read_all(self, name: str) -> bytes | None:
        """A whole small file; None where there is none."""
        obstore = _obstore()
        try:
            return self._tried(
                lambda: bytes(obstore.get(self._store, name).bytes()), self.url_of(name)
            )
        except FetchError as error:
            if isinstance(error.__cause__, FileNotFoundError | obstore.exceptions.NotFoundError):
                return None
            raise

    def _tried(self, work: Callable[[], T], url: str) -> T:
        """What `work` returns, in the end; obstore itself repeats what a server refused for now."""
        obstore = _obstore()
        final = (
            obstore.exceptions.NotFoundError,
            obstore.exceptions.PermissionDeniedError,
            obstore.exceptions.UnauthenticatedError,
            obstore.exceptions.NotSupportedError,
            obstore.exceptions.InvalidPathError,
            FileNotFoundError,
            NotImplementedError,
            ValueError,
        )
        end, pause = time.monotonic() + self._deadline_s, _PAUSE_S
        while True:
            try:
                return work()
            except (
                obstore.exceptions.BaseError,
                OSError,
                ValueError,
                NotImplementedError,
            ) as error:
                passing = not isinstance(error, final) or isinstance(error, _Short)
                if not passing or _is_refusal(error) or time.monotonic() + pause > end:
                    raise FetchError(_first_line(error), url=url) from error
            time.sleep(pause)
            pause = min(pause * 2, 5.0)


class _Short(OSError):
    """A response that ended early."""


def _is_refusal(error: Exception) -> bool:
    """Credentials that are missing or a bucket that does not exist: no time will help."""
    text = str(error)
    return any(word in text for word in ("credential", "NoSuchBucket", "AccessDenied", "404 Not"))


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]


_user = 0


def _obstore() -> Any:
    """obstore, in the process that used it first: its threads do not follow a fork, and whoever
    waits for them there waits for ever."""
    global _user
    if _user not in (0, os.getpid()):
        raise RuntimeError("buckets cannot be read after a fork; use spawn or forkserver")
    _user = os.getpid()
    try:
        import obstore
        import obstore.exceptions
        import obstore.store
    except ImportError as error:
        raise ImportError("buckets need an extra: pip install 'stepwell[remote]'") from error
    return obstore
