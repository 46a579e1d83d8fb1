"""Azure's storage, as Azurite has it: what is written there is read, and conditions hold."""

import base64
import hashlib
import hmac
import json
import os
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell as sw
from stepwell.cleaning import clean
from tests.children import python

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Of every Azurite, as its documentation has them."""


@pytest.fixture(scope="module")
def azure() -> Iterator[dict[str, Any]]:
    """The options of a server with a container `box`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ("--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry")
    server = subprocess.Popen(
        [os.environ["STEPWELL_AZURITE"], "--blobPort", str(port), *options],
        stdout=subprocess.PIPE,
    )
    try:
        assert server.stdout is not None
        while b"successfully listens" not in server.stdout.readline():
            assert server.poll() is None
        endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
        _create(endpoint, "box")
        yield {"account_name": ACCOUNT, "account_key": KEY, "endpoint": endpoint}
    finally:
        server.kill()
        server.communicate()


def _create(endpoint: str, container: str) -> None:
    """Make a container, which obstore cannot."""
    now = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    headers = {"x-ms-date": now, "x-ms-version": "2021-08-06"}
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    signed = f"PUT{12 * chr(10)}{lines}/{ACCOUNT}/{ACCOUNT}/{container}\nrestype:container"
    made = hmac.new(base64.b64decode(KEY), signed.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(made).decode()}"
    url = f"{endpoint}/{container}?restype=container"
    request = urllib.request.Request(url, method="PUT", headers=headers)
    with urllib.request.urlopen(request) as answer:
        assert answer.status == 201


def _append(writer: sw.StepWriter, *scores: int) -> None:
    for score in scores:
        writer.append({"n": np.arange(10) + score}, score=score)


def _scores(found: Any) -> list[int]:
    numbers = found.take(np.arange(len(found)))["n"].reshape(-1, 10)
    assert (numbers - numbers[:, :1] == np.arange(10)).all()
    assert numbers[:, 0].tolist() == [run["score"] for run in found.runs]
    return [run["score"] for run in found.runs]


@pytest.mark.filterwarnings("ignore:.* fetches")
def test_steps_of_two_writers(azure: dict[str, Any], tmp_path: Path) -> None:
    url = "az://box/games"
    two = [
        sw.StepWriter(url, {"n": "<i4"}, {"score": int}, mode="a", shard_rows=7, **azure)
        for _ in range(2)
    ]
    _append(two[0], 1, 2)
    _append(two[1], 3)
    for writer in two:
        writer.commit()
    assert [writer.conflicts for writer in two] == [0, 1]
    found: Any = sw.open(url, **azure)
    assert _scores(found) == [1, 2, 3]
    _append(two[0], 4)
    for writer in two:
        writer.close()
    assert _scores(found) == [1, 2, 3]
    assert found.refresh()
    assert _scores(found) == [1, 2, 3, 4]
    assert found.verify().problems == ()
    with sw.Loader(found, 8, sampler=sw.Block(4, seed=1)) as loader:
        rows = np.concatenate([batch["n"] for batch in loader])
    assert sorted(rows) == sorted(found.take(np.arange(40))["n"])
    cached = sw.open(url, cache=tmp_path / "cache", **azure)
    assert _scores(cached) == _scores(sw.open(url, cache=tmp_path / "cache", **azure))
    with pytest.raises(FileExistsError, match="mode='a' goes on with it"):
        sw.StepWriter(url, {"n": "<i4"}, {"score": int}, **azure)
    assert clean(url, older_than=timedelta(0), delete=True, **azure)
    assert _scores(sw.open(url, **azure)) == [1, 2, 3, 4]


KILLED = """
import json, os, sys
import stepwell as sw
from tests.azure.test_azure import _append
writer = sw.StepWriter("az://box/killed", mode="a", shard_rows=5, **json.loads(sys.argv[1]))
_append(writer, *range(2, 9))
writer._flush()
writer._upload(3)
os.kill(os.getpid(), 9)
"""


def test_a_writer_that_is_killed(azure: dict[str, Any]) -> None:
    url = "az://box/killed"
    with sw.StepWriter(url, {"n": "<i4"}, {"score": int}, mode="a", shard_rows=5, **azure) as done:
        _append(done, 1)
    assert python(KILLED, json.dumps(azure)).returncode == -signal.SIGKILL
    assert _scores(sw.open(url, **azure)) == [1]
    left = clean(url, older_than=timedelta(0), delete=False, **azure)
    assert not any(name.endswith(".npy") for name in left)  # announced, so it may go on


def test_shards(azure: dict[str, Any]) -> None:
    rows = np.arange(800, dtype="<f4").reshape(100, 8)
    url = "az://box/acts"
    for part in np.split(rows, 4):
        with sw.ShardWriter(url, 8, mode="a", shard_bytes=300, **azure) as writer:
            writer.append(part)
    with sw.ShardReader.open(url, **azure) as found:
        np.testing.assert_array_equal(found.take(np.arange(100))["data"], rows)
        passed = [batch.rows for batch in found.batches(16, dtype=None)]
        np.testing.assert_array_equal(np.concatenate(passed), rows)


def test_keys_that_are_wrong(azure: dict[str, Any]) -> None:
    wrong = {**azure, "account_key": base64.b64encode(b"x" * 64).decode()}
    with pytest.raises(sw.FetchError, match="403"):
        sw.open("az://box/games", **wrong)
    with pytest.raises(sw.FetchError, match="403"):
        sw.StepWriter("az://box/games", {"n": "<i4"}, {"score": int}, mode="a", **wrong)
