"""Buckets that fail: what passes is tried again, what does not is named, nothing is believed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pytest
from numpy.typing import NDArray
from obstore.store import LocalStore, MemoryStore

from stepwell import ChecksumError, FetchError, FormatError, Loader, ShardReader
from stepwell.files import remote
from tests import children
from tests.buckets import KEYS, Bucket
from tests.proxy import Answer, Fault, Proxy, changed, cut, dropped, short, status, times
from tests.shards import Floats, assert_same, build

COUNTS = [400, 0, 300]
WIDTH = 64
FAULTS: dict[str, Fault] = {
    "403": status(403),
    "500": status(500),
    "503": status(503),
    "cut": cut,
    "short": short,
    "dropped": dropped,
}


@pytest.fixture(scope="module", autouse=True)
def rows(tmp_path_factory: pytest.TempPathFactory, server: Bucket) -> Floats:
    """A corpus: `sums`, and `sums-bare` without a list."""
    return server.corpus(tmp_path_factory.mktemp("faults"), "sums", COUNTS, WIDTH)


def everything(reader: ShardReader) -> NDArray[np.float64]:
    batches = reader.batches(100, window_bytes=1 << 16)
    return np.concatenate([batch.rows for batch in batches])


# What passes.


@pytest.mark.parametrize("name", ["sums", "sums-bare"])
@pytest.mark.parametrize("kind", ["500", "503", "cut", "short", "dropped"])
def test_what_passes_is_tried_again(s3: Bucket, rows: Floats, name: str, kind: str) -> None:
    fault = FAULTS[kind]
    if (name, kind) != ("sums", "short"):  # a list that is short is no list, for all one can know
        s3.proxy.fault = times(2, fault)
    reader = s3.open(name)
    s3.proxy.fault = times(3, fault, of=".shard")
    assert_same(everything(reader), rows)
    s3.proxy.fault = times(1, fault, of="000002.shard")
    assert_same(reader.take([699, 3, 500])["data"], rows[[699, 3, 500]])


def test_a_loader_goes_on(s3: Bucket, rows: Floats) -> None:
    reader = s3.open("sums")
    s3.proxy.fault = times(2, cut, of=".shard")
    assert sum(len(batch["data"]) for batch in Loader(reader, 350, threads=2)) == len(rows)
    s3.proxy.fault = times(2, status(500), of=".shard")
    assert reader.verify().ok


# What does not.


def refused(proxy: Proxy, reader: ShardReader, fault: Fault, url: str) -> FetchError:
    """Rows in any order and in their own end in the same error."""
    proxy.fault = times(None, fault, of=url.rsplit("/", 1)[1])
    asks: list[Callable[[], Any]] = [lambda: everything(reader), lambda: reader.take([699])]
    for ask in asks:
        with pytest.raises(FetchError) as caught:
            ask()
        assert caught.value.url == url
        assert caught.value.__cause__ is not None
    assert url in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("code", "text"),
    [(400, "400"), (403, "403|privileges"), (404, "404|not found"), (405, "405")],
)
def test_refusals_are_final(s3: Bucket, code: int, text: str) -> None:
    reader = s3.open("sums")  # with a minute to try
    s3.proxy.requests.clear()
    error = refused(s3.proxy, reader, status(code), s3.url("sums/000002.shard"))
    with pytest.raises(FetchError, match=f"(?i){text}"):
        raise error
    assert len(s3.proxy.asked_for("000002")) < 20  # none of them twice


@pytest.mark.parametrize("kind", ["500", "cut", "short", "dropped", "silence"])
def test_a_deadline(s3: Bucket, kind: str) -> None:
    reader = s3.open("sums", deadline_s=1)  # half of which a busy machine needs for the others
    fault = FAULTS.get(kind, s3.proxy.hang)
    assert refused(s3.proxy, reader, fault, s3.url("sums/000002.shard")).args[0]
    s3.proxy.fault = None
    assert len(reader.take([699])["data"]) == 1  # it can go on


class Clock:
    """Time that passes when a test says so."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_server_that_falls_silent_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left of the deadline is what it is waited for."""
    clock = Clock()
    monkeypatch.setattr(remote, "time", clock)
    files = remote.RemoteFiles("s3://b/a", deadline_s=64, endpoint="http://127.0.0.1:9", **KEYS)
    patience: list[float] = []

    def work(store: Any) -> None:
        patience.append(next(s for s, made in files._patient.items() if made is store))
        if clock.now > 33:  # at first an error at once, then nothing for as long as it is waited
            clock.now += patience[-1]
        raise OSError("no answer")

    with pytest.raises(FetchError, match="no answer"):
        files._tried(work, "s3://b/a/x")
    assert patience[-1] < 32  # what the first requests may take
    assert clock.now <= 64 + 2  # the shortest time that a request is given


def test_it_is_tried_again_until_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, tries = Clock(), list[float]()
    monkeypatch.setattr(remote, "time", clock)
    files = remote.RemoteFiles("s3://b/a", deadline_s=5, endpoint="http://127.0.0.1:9", **KEYS)

    def work(store: Any) -> None:
        tries.append(clock.now)
        raise OSError("no answer")

    with pytest.raises(FetchError, match="no answer"):
        files._tried(work, "s3://b/a/x")
    assert 4.8 < tries[-1] < 5  # with some time for an answer


@pytest.mark.parametrize("kind", ["403", "500", "dropped"])
def test_opening(s3: Bucket, kind: str) -> None:
    s3.proxy.fault = times(None, FAULTS[kind])
    with pytest.raises(FetchError) as caught:
        s3.open("sums", deadline_s=0.3)
    assert caught.value.url == s3.url("sums/shards.json")
    assert caught.value.__cause__ is not None
    s3.proxy.fault = times(None, status(403), of="000002.shard")
    with pytest.raises(FetchError) as caught:  # a header
        s3.open("sums-bare")
    assert caught.value.url == s3.url("sums-bare/000002.shard")


def test_places_that_are_not_there(s3: Bucket) -> None:
    with pytest.raises(FetchError, match="found none") as caught:
        s3.open("absent")
    assert caught.value.url == s3.url("absent")
    nobody = {**KEYS, "endpoint": "http://127.0.0.1:9"}  # listens on port 9 of this machine
    for url, options in (
        ("s3://absent-bucket/a", s3.options),
        (f"{s3.proxy.url}/absent-bucket/a", {}),
        ("s3://b/a", nobody),
    ):
        with pytest.raises(FetchError) as caught:
            ShardReader.open(url, deadline_s=0.5, **options)
        assert caught.value.url.startswith(url)


@pytest.mark.parametrize("url", ["nothing://a/b", "s3://", "http://"])
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(FetchError, match=r"not a place|error"):
        ShardReader.open(url, deadline_s=0.4)


def test_options_that_are_none(s3: Bucket) -> None:
    with pytest.raises(ValueError, match="deadline_s"):
        s3.open("sums", deadline_s=0)
    with pytest.raises(ValueError, match="connections"):
        s3.open("sums", connections=0)
    with pytest.raises((FetchError, TypeError)):
        s3.open("sums", nonsense=1)


CREDENTIALS = """
import sys
import stepwell as sw
endpoint, metadata, url, *options = sys.argv[1:]
try:
    more = {"skip_signature": True} if options else {}
    reader = sw.ShardReader.open(
        url, endpoint=endpoint, metadata_endpoint=metadata, region="us-east-1", **more
    )
    print(len(reader))
except sw.FetchError as error:
    print(error.url, error.__cause__ is not None, error)
"""


def without_keys(home: Path, *args: str, **env: str) -> str:
    """What someone is told who has no keys; the service of the machine is another one."""
    empty = {"HOME": str(home), "AWS_CONFIG_FILE": "", "AWS_SHARED_CREDENTIALS_FILE": ""}
    return children.answer(CREDENTIALS, *args, env={**empty, **env})


@pytest.mark.parametrize("how", ["refuses", "is not there", "is silent"])
def test_credentials_that_are_missing(s3: Bucket, tmp_path: Path, how: str) -> None:
    """Soon, though there is a minute to try, and by name."""
    fault = s3.proxy.hang if how == "is silent" else status(404)
    s3.proxy.fault = times(None, fault, of="/latest/")
    service = "http://127.0.0.1:9" if how == "is not there" else s3.proxy.url
    text = without_keys(tmp_path, s3.proxy.url, service, s3.url("sums"))
    assert text.startswith("s3://activations/sums/shards.json True no credentials: ")
    assert len(s3.proxy.asked_for("/latest/")) < 10  # within a minute it would ask more often
    assert "AWS_ACCESS_KEY_ID" in text
    assert "skip_signature=True" in text
    assert not s3.proxy.asked_for("shards.json")


def test_a_public_bucket(s3: Bucket, tmp_path: Path) -> None:
    places = s3.proxy.url, "http://127.0.0.1:9", s3.url("sums")
    assert without_keys(tmp_path, *places, "public") == "700"
    assert without_keys(tmp_path, *places, AWS_SKIP_SIGNATURE="true") == "700"


def test_keys_that_fail_later_are_waited_for(s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that has given keys before will again."""
    monkeypatch.setattr(remote, "_KEYLESS_S", 0.0)
    reader = s3.open("sums")
    body = b"no credentials at the moment"
    fault: Fault = lambda request, answer: Answer(500, {}, body)  # noqa: E731
    s3.proxy.fault = times(2, fault, of=".shard")
    assert len(reader.take([1])["data"]) == 1


# What is not believed.


def test_other_bytes(s3: Bucket) -> None:
    reader = s3.open("sums")
    s3.proxy.fault = times(None, changed, of="000002.shard")
    for window in (1 << 16, 1 << 20):
        with pytest.raises(ChecksumError, match="expected CRC32C") as caught:
            list(reader.batches(64, window_bytes=window))
        assert caught.value.path == s3.url("sums/000002.shard")
    (problem,) = reader.verify().problems
    assert isinstance(problem, ChecksumError)
    assert problem.path == s3.url("sums/000002.shard")
    with pytest.raises(FormatError) as wrong:  # the middle of a header is its width
        s3.open("sums-bare")
    assert wrong.value.path == s3.url("sums-bare/000002.shard")


def test_verify_reports_a_shard_that_is_gone(s3: Bucket, tmp_path: Path) -> None:
    build(tmp_path, [3, 2], checksums=True)
    (tmp_path / "000001.shard").unlink()
    s3.upload(tmp_path, "gone")
    (problem,) = s3.open("gone").verify().problems
    assert str(problem) == f"expected a shard, found none - at {s3.url('gone/000001.shard')}"


def test_a_list_of_nonsense(s3: Bucket) -> None:
    store = MemoryStore()
    obstore.put(store, "shards.json", b'{"format": 1}')
    with pytest.raises(FormatError, match=r"not a shards\.json") as caught:
        ShardReader(store)
    assert str(caught.value.path).endswith("/shards.json")
    for fault in (changed, short):
        s3.proxy.fault = times(None, fault, of="shards.json")
        with pytest.raises((FormatError, FetchError)):
            s3.open("sums", deadline_s=0.4)


def test_a_list_that_promises_too_much(s3: Bucket, tmp_path: Path) -> None:
    """No time will make the file longer: there is a minute to try, and nothing is tried again."""
    build(tmp_path, [3, 2], checksums=True)
    path = tmp_path / "000001.shard"
    path.write_bytes(path.read_bytes()[:-1])
    store = MemoryStore()
    for each in tmp_path.iterdir():
        obstore.put(store, each.name, each.read_bytes())
    s3.upload(tmp_path, "cut")
    for reader in (ShardReader.open(store), ShardReader.open(LocalStore(tmp_path)), s3.open("cut")):
        s3.proxy.requests.clear()
        assert len(reader.take([0, 1])["data"]) == 2
        problems = list(reader.verify().problems)
        for ask in (lambda: reader.take([4]), lambda: list(reader.batches())):  # noqa: B023
            with pytest.raises(FormatError) as caught:
                ask()
            problems.append(caught.value)
        assert [(p.args[0], p.offset) for p in problems] == [
            ("truncated: expected 72 bytes, got 71", 71)
        ] * 3
        assert all(str(problem.path).endswith("/000001.shard") for problem in problems)
        asked = [request.method for request in s3.proxy.asked_for("000001.shard")]
        assert asked.count("GET") <= 4  # one of them for the header
    path.write_bytes(path.read_bytes()[:40])
    s3.upload(tmp_path, "cut")
    with pytest.raises(FormatError, match=r"truncated: .* got 40") as caught:
        s3.open("cut").take([4])  # from behind its end
    assert caught.value.offset == 40
