"""`convert` to a URL: in one commit, or nothing."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell as sw
from stepwell import ShardReader, StepReader
from tests.bucket_writers import opened, written
from tests.buckets import Bucket
from tests.formats.rows import Given
from tests.test_cli import stepwell


@pytest.fixture(autouse=True)
def reached(s3: Bucket, keys: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """By whoever has only a URL."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.proxy.url)


def games(folder: Path, *scores: int) -> Path:
    """A step dataset of runs of five steps."""
    with sw.StepWriter(folder, {"n": "<i4"}, {"score": int, "source": str}, mode="a") as writer:
        for score in scores:
            writer.append({"n": np.arange(5) + score}, score=score, source=f"game {score}")
    return folder


def scores_at(url: str, **options: Any) -> list[int]:
    with StepReader.open(url, **options) as found:
        kept = [run["score"] for run in found.runs]
        numbers = found.take(np.arange(len(found)))["n"].reshape(-1, 5)
    assert numbers.tolist() == [[score + n for n in range(5)] for score in kept]
    return kept


def test_a_step_dataset_that_grows(s3: Bucket, tmp_path: Path) -> None:
    url, bad = s3.url("games"), tmp_path / "bad"
    made = sw.convert(games(tmp_path / "one", 10, 20), url)
    assert (made.path, made.target_kind, made.rows, made.runs) == (url, "steps", 10, 2)
    assert made.target_bytes is None
    assert scores_at(url, **s3.options) == [10, 20]
    with pytest.raises(FileExistsError, match="exists already; mode='a' goes on with it"):
        sw.convert(tmp_path / "one", url)
    made = sw.convert(games(tmp_path / "two", 30), url, mode="a")
    assert (made.rows, made.runs) == (5, 1)
    assert scores_at(url, **s3.options) == [10, 20, 30]
    sw.convert(url, tmp_path / "copy", to="steps")
    assert scores_at(str(tmp_path / "copy")) == [10, 20, 30]
    with sw.StepWriter(bad, {"m": "<i4"}, {"score": int}) as writer:
        writer.append({"m": [1]}, score=1)
    with pytest.raises(sw.SchemaError, match="expected rows of"):
        sw.convert(bad, url, mode="a")
    assert scores_at(url, **s3.options) == [10, 20, 30]


def test_games_that_are_there_already(s3: Bucket, tmp_path: Path) -> None:
    url = s3.url("again")
    played = sw.game2048.play_to(tmp_path / "played", 3, depth=1)
    assert len(played) == 3
    made = sw.convert(tmp_path / "played", url, mode="a")  # which makes it
    assert made.runs == 3
    with pytest.raises(FileExistsError, match="3 of 3 runs are there already"):
        sw.convert(tmp_path / "played", url, mode="a")
    assert sw.convert(tmp_path / "played", url, mode="a", again=True).runs == 3
    with StepReader.open(url, **s3.options) as found:
        assert len(found.runs) == 6
        assert len(found) == 2 * made.rows


def readers_of(url: str, s3: Bucket) -> list[sw.Store]:
    try:
        return [sw.open(url, **s3.options)]
    except (ValueError, OSError):
        return []  # nothing was begun, or nothing was committed


def test_all_or_nothing(s3: Bucket, tmp_path: Path) -> None:
    """Readers see no half of it, and what is left is removed."""
    rows = np.arange(4000, dtype="<f4").reshape(1000, 4)

    class Broken(Given):
        def take(self, rows: Any, out: Any = None) -> Any:
            if max(np.asarray(rows), default=0) > 900:
                raise OSError("the cable was pulled")
            return super().take(rows, out)

    for to in ("steps", "shards"):
        url, broken = s3.url(f"half-{to}"), Broken({"x": rows})
        with pytest.raises(OSError, match="the cable was pulled"):
            sw.convert(broken, url, to=to, part_bytes=1024)
        assert not any(name.endswith((".npy", ".shard")) for name in s3.names(f"half-{to}"))
        assert not any(len(found) for found in readers_of(url, s3))
        made = sw.convert(Given({"x": rows}), url, to=to, part_bytes=1024)
        assert made.rows == 1000
        with sw.open(url, **s3.options) as found:
            field = "x" if to == "steps" else "data"
            np.testing.assert_array_equal(found.take(np.arange(1000))[field], rows)


def test_shards(s3: Bucket, tmp_path: Path) -> None:
    url = s3.url("shards")
    rows = np.random.default_rng(1).normal(size=(1000, 8)).astype("<f4")
    np.save(tmp_path / "rows.npy", rows)
    s3.proxy.forget()
    sw.convert(tmp_path / "rows.npy", url, to="shards", part_bytes=4096)
    commits = [each for each in s3.proxy.asked_for("shards.json") if each.method == "PUT"]
    assert len(commits) == 2  # an empty one, and the rows
    sw.convert(tmp_path / "rows.npy", url, mode="a")
    with ShardReader.open(url, **s3.options) as found:
        np.testing.assert_array_equal(found.take(np.arange(2000))["data"], np.tile(rows, (2, 1)))


def test_the_command(s3: Bucket, tmp_path: Path) -> None:
    games(tmp_path / "games", 1, 2)
    done = stepwell("convert", tmp_path / "games", s3.url("command"), "--where", "score > 1")
    assert done.returncode == 0, done.stderr
    assert f"path {s3.url('command')}" in " ".join(done.stdout.split())
    assert scores_at(s3.url("command"), **s3.options) == [2]


@pytest.mark.parametrize(
    ("target", "options", "text"),
    [
        ("x.npy", {}, r"x\.npy is a URL: expected to= \(--to\) shards or steps"),
        ("x", {"to": "records"}, "shards or steps to write there, got records; of others upload"),
        ("x", {"force": True}, "force: nothing in a bucket is replaced"),
        ("source", {}, "is the source itself"),
    ],
)
def test_what_is_refused(
    s3: Bucket, tmp_path: Path, target: str, options: dict[str, Any], text: str
) -> None:
    if target == "source":
        written(s3, "source", 1, 1)
    source = s3.url("source") if target == "source" else games(tmp_path / "games", 1)
    if target == "x.npy":
        np.save(tmp_path / "x.npy", np.zeros(3))
        source = tmp_path / "x.npy"
    with pytest.raises(ValueError, match=text):
        sw.convert(source, s3.url(target), **options)
    assert s3.names("x") == []
    if target == "source":
        assert len(opened(s3, "source").runs) == 1


def test_ray_builds_on_disks(s3: Bucket, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected a path on a disk that all workers share"):
        sw.ray.convert(games(tmp_path / "games", 1), s3.url("ray"))
