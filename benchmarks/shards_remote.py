"""A bucket on this machine whose answers take a while."""

import math
import random
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import stepwell as sw
from benchmarks import measure, shards_data as data
from benchmarks.results import Case, Measured, Target, console

_LATENCY_MS = 20
_BUCKET = "acts"
_WINDOW_BYTES = 8 << 20
_CONNECTIONS = 8
_RANGE_BYTES = _WINDOW_BYTES // _CONNECTIONS


def remote_cases(folder: Path, rounds: int) -> list[Case]:
    if find_spec("obstore") is None:
        console.print("[dim]no bucket: obstore is not installed[/]")
        return []
    rows = (128 << 20) // data.ROW_BYTES
    paths = data.corpus(folder / "remote", rows, shard_bytes=32 << 20)
    with bucket(folder / "remote", _LATENCY_MS) as (url, options):
        return [_case(paths, url, options, rounds)]


def _case(paths: Sequence[Path], url: str, options: dict[str, Any], rounds: int) -> Case:
    import obstore

    size = sum(path.stat().st_size for path in paths)

    def ours() -> None:
        reader = sw.ShardReader.open(url, connections=_CONNECTIONS, **options)
        rows = sum(len(each) for each, _ in reader.batches(None, None, _WINDOW_BYTES))
        assert rows == len(reader)

    def one_at_a_time() -> None:
        store = obstore.store.S3Store(_BUCKET, client_options={"allow_http": True}, **options)
        for path in paths:
            end = path.stat().st_size
            for at in range(0, end, _RANGE_BYTES):
                obstore.get_range(store, path.name, start=at, end=min(at + _RANGE_BYTES, end))

    ours()  # what is imported and started once is not counted
    measure.reset_peak()
    with measure.AnonymousPeak() as peak:
        ours()
    added = peak.bytes - peak.before
    costs: dict[str, list[float]] = {"ours": [], "one": []}
    turns = [("ours", ours), ("one", one_at_a_time)]
    for _ in range(rounds):
        random.Random(0).shuffle(turns)
        for name, work in turns:
            begin = time.perf_counter()
            work()
            costs[name].append((time.perf_counter() - begin) * 1e3 / size * 1e9)
    found = Measured.of(costs["ours"], rss_bytes=added)
    one = Measured.of(costs["one"])
    return Case(
        f"in order from a bucket, {_LATENCY_MS} ms added to each request: {size >> 20} MiB",
        "ms a GB",
        found,
        {f"one request at a time, {_RANGE_BYTES >> 20} MiB each": one},
        [
            Target("times faster than one at a time", one.median / found.median, at_least=5),
            Target("memory above the window, MB", (added - _WINDOW_BYTES) / 1e6, at_most=32),
        ],
        f"{_CONNECTIONS} connections, a window of {_WINDOW_BYTES >> 20} MiB, opening included",
    )


@contextmanager
def bucket(
    folder: Path, latency_ms: float, *, bytes_s: float = math.inf, spread: float = 0.0
) -> Iterator[tuple[str, dict[str, Any]]]:
    """A bucket with the files of a folder; yields its URL and the options that reach it."""
    port = _free_port()
    command = [sys.executable, "-m", "benchmarks.shards_server"]
    about = map(str, (port, folder, latency_ms, bytes_s, spread))
    child = subprocess.Popen([*command, *about])
    try:
        _wait_for(port)
        keys = {"access_key_id": "x", "secret_access_key": "x", "region": "us-east-1"}
        yield f"s3://{_BUCKET}", {"endpoint": f"http://127.0.0.1:{port}", **keys}
    finally:
        child.kill()
        child.wait()


def counted(endpoint: str) -> tuple[int, int]:
    """Requests for objects, and bytes that were asked for, so far."""
    with urllib.request.urlopen(f"{endpoint}/counted") as answer:
        requests, fetched = map(int, answer.read().split())
    return requests, fetched


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(port: int) -> None:
    end = time.monotonic() + 30
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
