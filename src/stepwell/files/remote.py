"""Files in a bucket or behind a web server, read in ranges (extra `remote`)."""

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple, TypedDict, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from stepwell.errors import FetchError, FormatError

T = TypeVar("T")

_PAUSE_S = 0.1
_CHUNK_BYTES = 1 << 16  # that come together
_PARTS = 32  # of the deadline; no request gets less than one
_STATUS = re.compile(r"status code: (4\d\d)")
_OUTSIDE = re.compile(r"status code: 416|[Ii]nvalid range|range was invalid")

# Without keys obstore looks for the metadata service, which most machines do not have.
_KEYLESS = re.compile(
    "credential|/latest/(api/token|meta-data)|computeMetadata|/metadata/identity|token request"
)
_KEYLESS_S = 2.0
_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
_KEYS = {
    "s3": "expected AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment (what is in "
    "~/.aws is not read), access_key_id= and secret_access_key=, or credential_provider=; of a "
    "public bucket AWS_SKIP_SIGNATURE=true or skip_signature=True",
    "gs": "expected GOOGLE_APPLICATION_CREDENTIALS in the environment, service_account_path= or "
    "credential_provider=; of a public bucket GOOGLE_SKIP_SIGNATURE=true or skip_signature=True",
    "a": "expected AZURE_STORAGE_ACCOUNT_KEY in the environment, account_key=, sas_key= or "
    "credential_provider=; of a public container AZURE_SKIP_SIGNATURE=true or skip_signature=True",
}
"""How to sign, by how a URL begins; Azure has az, abfs and adl."""


def is_url(where: object) -> bool:
    """Whether this names a bucket or a server, and not a path."""
    return isinstance(where, str) and "://" in where


def is_remote(where: object) -> bool:
    """Whether this is a URL or a store of obstore, and not a path."""
    return is_url(where) or type(where).__module__.partition(".")[0] == "obstore"


class BucketOptions(TypedDict, total=False):
    """How something in a bucket is opened: the usual options, for type checkers. Those of obstore
    that are not here work as well."""

    connections: int
    window_bytes: int
    cache: str | os.PathLike[str] | None
    cache_bytes: int
    deadline_s: float
    endpoint: str
    region: str
    access_key_id: str
    secret_access_key: str
    session_token: str
    skip_signature: bool
    virtual_hosted_style_request: bool
    service_account_path: str
    application_credentials: str
    account_name: str
    account_key: str
    sas_key: str
    credential_provider: Any
    client_options: Any
    allow_http: bool
    metadata_endpoint: str


class About(NamedTuple):
    """What distinguishes an object from others of its name."""

    size: int
    mark: str
    """Its ETag; where a server gives none, when it was written."""

    @classmethod
    def of(cls, meta: Mapping[str, Any]) -> "About":
        mark = meta.get("e_tag") or f"written {meta['last_modified']}"
        if mark.startswith("0x"):  # Azure has quotes everywhere but in lists
            mark = f'"{mark}"'
        return cls(int(meta["size"]), mark)

    @property
    def condition(self) -> dict[str, str]:
        """What a request asks for, so that a server answers with this object only. A weak ETag
        never matches, and a time is none: there the answer is compared."""
        return {"if_match": self.mark} if self.mark.startswith('"') else {}


class RemoteFiles:
    """Files below a URL (s3, gs, az, http, https, …) or of an obstore store.

    Requests that fail in a way that may pass are tried again, with growing pauses, for up to
    `deadline_s`; one without an answer is given up after half of that. `options` are those of the
    store: `endpoint`, `region`, keys, as obstore has them. A store that is given has its own.
    """

    def __init__(self, where: Any, *, deadline_s: float = 60.0, **options: Any) -> None:
        obstore = obstore_library()
        if deadline_s <= 0:
            raise ValueError(f"deadline_s: expected more than 0, got {deadline_s}")
        self._deadline_s = deadline_s
        self._options = options
        self._patient: dict[float, Any] = {}
        self._answered = False
        if is_url(where):
            self.url, self._given = str(where).rstrip("/"), None
            try:
                self._store = self._with_patience(deadline_s / 2)
            except (obstore.exceptions.BaseError, ValueError, TypeError) as error:
                message = f"not a place to read from: {_first_line(error)}"
                raise FetchError(message, url=self.url) from error
        elif not isinstance(where, get_args(obstore.store.ObjectStore)):
            raise TypeError(f"expected a URL or a store of obstore, got {where!r}")
        else:
            self.url, self._store, self._given = repr(where), where, where

    @property
    def place(self) -> str:
        """An identity of these files: the same URL may be of several servers."""
        config = getattr(self._store, "config", {})
        return f"{self.url} {_endpoint(self.url, config)}"

    def url_of(self, name: str) -> str:
        return f"{self.url}/{name}"

    def names(self, suffix: str) -> dict[str, int]:
        """Names that end so, directly below the URL, and their sizes."""
        obstore = obstore_library()

        def work(store: Any) -> dict[str, int]:
            found = obstore.list_with_delimiter(store)["objects"]
            return {
                each["path"]: int(each["size"])
                for each in found
                if each["path"].endswith(suffix) and "/" not in each["path"]
            }

        return self._tried(work, self.url)

    def listed(self) -> dict[str, About] | None:
        """Every object below the URL, by its name there; None of a web server, which has no
        list."""
        obstore = obstore_library()
        if self.url.startswith(("http://", "https://")):
            return None

        def work(store: Any) -> dict[str, About]:
            return {e["path"]: About.of(e) for some in obstore.list(store) for e in some}

        return self._tried(work, self.url)

    def about(self, name: str) -> About | None:
        """Size and ETag of an object; None where there is none."""
        obstore = obstore_library()
        try:
            return self._tried(lambda store: About.of(obstore.head(store, name)), self.url_of(name))
        except FetchError as error:
            if is_missing(error):
                return None
            raise

    def read(
        self, name: str, begin: int, end: int, known: About | None = None
    ) -> NDArray[np.uint8]:
        """Bytes `begin` to `end` of a file, all of them; `FormatError` where it is too short, or
        not the one that is `known`."""
        obstore = obstore_library()
        url = self.url_of(name)

        def work(store: Any) -> NDArray[np.uint8]:
            with self._checking(store, name, end):
                if known is None:
                    got = obstore.get_range(store, name, start=begin, end=end)
                else:
                    got = self._got(store, name, begin, end, known).bytes()
            data = np.frombuffer(got, np.uint8)
            if len(data) != end - begin:
                self._check_size(store, name, end)
                raise _Short(f"expected {end - begin} bytes at {begin}, got {len(data)}")
            return data

        if end <= begin:
            return np.empty(0, np.uint8)
        return self._tried(work, url)

    def pieces(
        self, name: str, begin: int, end: int, known: About, size: int
    ) -> Iterator[NDArray[np.uint8]]:
        """The same by one request, `size` bytes at a time, in memory that is used again. After an
        error it goes on from where it was."""
        memory = np.empty(max(min(size, end - begin), 0), np.uint8)
        chunks: Iterator[Any] | None = None
        rest = memory[:0]

        def work(store: Any) -> None:
            nonlocal chunks, rest
            filled = 0
            try:
                with self._checking(store, name, end):
                    if chunks is None:
                        got = self._got(store, name, begin, end, known)
                        chunks, rest = iter(got.stream(_CHUNK_BYTES)), memory[:0]
                    while filled < len(out):
                        if not len(rest):
                            rest = np.frombuffer(next(chunks, b""), np.uint8)
                        if not len(rest):
                            self._check_size(store, name, end)
                            raise _Short(f"expected {len(out)} bytes at {begin}, got {filled}")
                        some = rest[: len(out) - filled]
                        out[filled : filled + len(some)] = some
                        rest, filled = rest[len(some) :], filled + len(some)
            except BaseException:
                chunks = None
                raise

        while begin < end:
            out = memory[: end - begin]
            self._tried(work, self.url_of(name))
            yield out
            begin += len(out)

    def _got(self, store: Any, name: str, begin: int, end: int, known: About) -> Any:
        """The answer with bytes of the object that is known; `FormatError` where it is another."""
        obstore, url = obstore_library(), self.url_of(name)
        try:
            got = obstore.get(store, name, options={"range": (begin, end), **known.condition})
        except (obstore.exceptions.PreconditionError, *missing_errors()) as error:
            raise _changed(known, None, url) from error
        now = About.of(got.meta)
        if now != known:
            raise _changed(known, now, url)
        return got

    @contextmanager
    def _checking(self, store: Any, name: str, end: int) -> Iterator[None]:
        """Where a range is refused, look whether the file ends before it."""
        try:
            yield
        except obstore_library().exceptions.BaseError as error:
            if _OUTSIDE.search(str(error)):
                self._check_size(store, name, end)
            raise

    def _check_size(self, store: Any, name: str, end: int) -> None:
        """A response that is short may be that of a file that is, for ever."""
        size = int(obstore_library().head(store, name)["size"])
        if size < end:
            message = f"truncated: expected {end} bytes, got {size}"
            raise FormatError(message, path=self.url_of(name), offset=size)

    def read_all(self, name: str) -> bytes | None:
        """A whole small file; None where there is none."""
        obstore = obstore_library()
        try:
            return self._tried(
                lambda store: bytes(obstore.get(store, name).bytes()), self.url_of(name)
            )
        except FetchError as error:
            if is_missing(error):
                return None
            raise

    # Below this line: requests.

    def _with_patience(self, timeout_s: float) -> Any:
        """The store at the URL, whose requests take no longer than this and are not repeated."""
        if timeout_s in self._patient:
            return self._patient[timeout_s]
        retry = {"max_retries": 0, "retry_timeout": timedelta(seconds=timeout_s)}
        return self._patient.setdefault(timeout_s, self._made(timeout_s, retry))

    def _made(self, timeout_s: float, retry: dict[str, Any]) -> Any:
        """A store at the URL."""
        options = dict(self._options)
        client = {"timeout": timedelta(seconds=timeout_s), **options.pop("client_options", {})}
        if "http://" in (self.url[:7], _endpoint(self.url, options)[:7]):
            client.setdefault("allow_http", True)
        return obstore_library().store.from_url(
            self.url, client_options=client, retry_config=retry, **options
        )

    def _store_for(self, left_s: float) -> Any:
        """A store that gives up within the time that is left, or soon after.

        The patience of a store is part of it, so there are a few: a half, a quarter, … of the
        deadline. Most files never need the second one.
        """
        if self._given is not None:
            return self._given
        patience_s = self._deadline_s / 2
        while patience_s > max(left_s, self._deadline_s / _PARTS):
            patience_s /= 2
        return self._with_patience(patience_s)

    def _tried(self, work: Callable[[Any], T], url: str, store: Any = None) -> T:
        """The result of `work` for a store, in the end."""
        obstore = obstore_library()
        begin, pause, spent_s = time.monotonic(), _PAUSE_S, 0.0
        # Whoever has no keys is to know soon, even where the service of the machine is silent.
        left_s = self._deadline_s if self._answered else min(_KEYLESS_S, self._deadline_s)
        while True:
            try:
                result = work(self._store_for(left_s) if store is None else store)
                self._answered = True
                return result
            except FormatError:
                raise
            except (
                obstore.exceptions.BaseError,
                OSError,
                ValueError,
                NotImplementedError,
            ) as error:
                spent_s = time.monotonic() - begin
                self._answered |= isinstance(error, obstore.exceptions.NotFoundError)
                keyless = not self._answered and _KEYLESS.search(str(error)) is not None
                limit_s = min(_KEYLESS_S / 2, self._deadline_s) if keyless else self._deadline_s
                rest_s = limit_s - spent_s - self._deadline_s / _PARTS  # left for the last one
                if not _may_pass(error, keyless) or rest_s <= 0:
                    message = _first_line(error)
                    if keyless:
                        known = (text for name, text in _KEYS.items() if self.url.startswith(name))
                        message = f"no credentials: {next(known, 'the store has none')} ({message})"
                    raise FetchError(message, url=url) from error
            time.sleep(min(pause, rest_s))
            left_s = self._deadline_s - spent_s - min(pause, rest_s)
            pause = min(pause * 2, 5.0)


def is_missing(error: FetchError) -> bool:
    """Whether there was an answer: that there is no such file."""
    return isinstance(error.__cause__, missing_errors())


def missing_errors() -> tuple[type[Exception], ...]:
    """What a file that does not exist is answered with."""
    return FileNotFoundError, obstore_library().exceptions.NotFoundError


def _changed(known: About, now: About | None, url: str) -> FormatError:
    got = "another one" if now is None else f"{now.mark} of {now.size:,} bytes"
    return FormatError(
        f"the object was replaced or removed while it was open: expected {known.mark} of "
        f"{known.size:,} bytes, got {got}; open it again",
        path=url,
    )


class _Short(OSError):
    """A response that ended early."""


def _may_pass(error: Exception, keyless: bool) -> bool:
    """Whether time may help: not a request that is wrong, nor a bucket that does not exist."""
    known = obstore_library().exceptions
    final = (
        *(known.NotFoundError, known.PermissionDeniedError, known.UnauthenticatedError),
        *(known.NotSupportedError, known.InvalidPathError),
        *(known.AlreadyExistsError, known.PreconditionError),
        *(FileNotFoundError, NotImplementedError, ValueError),
    )
    if isinstance(error, final):
        return False
    text = "" if keyless else str(error)
    if any(word in text for word in ("NoSuchBucket", "AccessDenied", "404 Not", "builder error")):
        return False
    status = _STATUS.search(text)
    return status is None or status[1] in ("408", "425", "429")


def _endpoint(url: str, options: Mapping[str, Any]) -> str:
    """The server, where it is not the usual one."""
    for name in ("endpoint", "endpoint_url", "aws_endpoint", "aws_endpoint_url", "azure_endpoint"):
        if options.get(name):
            return str(options[name])
    for scheme, names in _ENDPOINTS.items():
        if url.startswith(scheme):
            return next((os.environ[name] for name in names if os.environ.get(name)), "")
    return ""


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]


_user = 0


def obstore_library() -> Any:
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
