"""`stepwell info`, `head` and `verify` of any store, run as a user runs them; here of shards."""

import json
from pathlib import Path

import numpy as np
import pytest

import stepwell as sw
from tests.buckets import KEYS, Bucket
from tests.proxy import status, times
from tests.reference import shards as reference
from tests.shards import build, shard_bytes
from tests.test_cli import stepwell

ROWS = np.arange(40, dtype=np.float32).reshape(5, 8)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "acts [1]"  # what looks like markup is none
    path.mkdir()
    (path / "a.shard").write_bytes(shard_bytes(ROWS[:3], "float16"))
    (path / "b.shard").write_bytes(shard_bytes(ROWS[3:], "float16"))
    reference.write_list(path)
    return path


def test_info(corpus: Path) -> None:
    done = stepwell("info", corpus)
    assert (done.returncode, done.stderr) == (0, "")
    for text in (str(corpus), "float16", "data: float16[8]"):
        assert text in done.stdout
    facts = json.loads(stepwell("info", corpus, "--json").stdout)
    assert facts == {
        "kind": "shards",
        "path": str(corpus),
        "rows": 5,
        "bytes": 80 + 2 * 32,
        "fields": {"data": "float16[8]"},
        "shards": 2,
        "width": 8,
        "dtype": "float16",
        "checksums": 2,
        "block_checksums": 0,
        "health": "fine",
    }


def test_head(corpus: Path) -> None:
    done = stepwell("head", corpus, "-n", "2", "--start", "3")
    assert (done.returncode, done.stderr) == (0, "")
    for text in ("row", "data", "24 25 26 27 28 29"):
        assert text in done.stdout
    lines = stepwell("head", corpus, "--json", "--start", "2").stdout.splitlines()
    assert [json.loads(line) for line in lines] == [
        {"row": row, "data": ROWS[row].tolist()} for row in (2, 3, 4)
    ]
    done = stepwell("head", corpus, "--json", "--start", "99")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_head_of_values_that_json_does_not_have(tmp_path: Path) -> None:
    rows = np.array([[1, np.nan, np.inf, -np.inf]], np.float32)
    (tmp_path / "a.shard").write_bytes(shard_bytes(rows, "float32"))
    done = stepwell("head", tmp_path, "--json")
    assert done.returncode == 0

    def refuse(text: str) -> None:
        raise AssertionError(f"{text} is not JSON")

    found = json.loads(done.stdout, parse_constant=refuse)
    assert found == {"row": 0, "data": [1, None, None, None]}


def test_verify(corpus: Path) -> None:
    done = stepwell("verify", corpus)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"OK: {corpus} (")
    found = json.loads(stepwell("verify", corpus, "--json").stdout)
    assert (found["path"], found["ok"], found["problems"]) == (str(corpus), True, [])
    assert found["checked"]
    assert stepwell("verify", corpus, "--quick").returncode == 0


def test_verify_lists_what_is_broken(corpus: Path) -> None:
    data = (corpus / "a.shard").read_bytes()
    (corpus / "a.shard").write_bytes(data[:-1] + b"x")
    with (corpus / "b.shard").open("ab") as file:
        file.write(b"more")
    done = stepwell("verify", corpus)
    assert done.returncode == 1
    assert done.stdout == f"INVALID: {corpus} (2 problems)\n"
    assert "expected CRC32C" in done.stderr
    assert f"4 bytes behind the last row - at {corpus / 'b.shard'}:64" in done.stderr
    found = json.loads(stepwell("verify", corpus, "--json").stdout)
    assert not found["ok"]
    assert [problem["path"] for problem in found["problems"]] == [
        str(corpus / "a.shard"),
        str(corpus / "b.shard"),
    ]


def test_verify_of_what_does_not_open(corpus: Path) -> None:
    (corpus / "b.shard").write_bytes(b"GAMSAE02" + bytes(56))
    done = stepwell("verify", corpus)
    assert (done.returncode, done.stdout) == (1, f"INVALID: {corpus} (1 problem)\n")
    assert "expected magic b'GAMSAE01'" in done.stderr
    done = stepwell("info", corpus)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: expected magic b'GAMSAE01'")
    assert done.stderr.count("\n") == 1


def test_what_is_not_there(tmp_path: Path) -> None:
    done = stepwell("verify", tmp_path / "absent")
    assert (done.returncode, done.stdout) == (2, "")
    assert "No such file" in done.stderr


def test_a_bucket(server: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(f"AWS_{name.upper()}", value)
    build(tmp_path, [3, 2], checksums=True)
    url = server.upload(tmp_path, "cli")
    server.proxy.forget()
    where = [url, "--endpoint", server.proxy.url]
    assert json.loads(stepwell("info", *where, "--json").stdout)["rows"] == 5
    assert len(stepwell("head", *where, "--json").stdout.splitlines()) == 5
    assert stepwell("verify", *where).stdout.startswith(f"OK: {url} (")
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.proxy.url)  # as other tools have it
    assert json.loads(stepwell("info", url, "--json").stdout)["rows"] == 5
    server.proxy.fault = times(None, status(403))
    done = stepwell("verify", *where)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"at {url}\n" in done.stderr
    assert done.stderr.count("\n") == 1


def test_statistics_of_runs(tmp_path: Path) -> None:
    with sw.StepWriter(tmp_path / "steps", [("x", "<f4")], {"score": int, "who": str}) as writer:
        for i in range(10):
            writer.append({"x": np.zeros(i + 1)}, score=i, who="ab"[i % 2])
    facts = json.loads(stepwell("info", tmp_path / "steps", "--stats", "--json").stdout)["stats"]
    assert facts["run length"] == {"p50": 5, "p90": 9, "p99": 10}
    assert facts["score"] == {"min": 0, "mean": 4.5, "max": 9}
    assert facts["who"] == {"a": 5, "b": 5}
    assert (
        "score: min 0, mean 4.500, max 9" in stepwell("info", tmp_path / "steps", "--stats").stdout
    )
    np.save(tmp_path / "a.npy", np.zeros(3))
    done = stepwell("info", tmp_path / "a.npy", "--stats")
    assert (done.returncode, "has no runs; --stats" in done.stderr) == (2, True)
