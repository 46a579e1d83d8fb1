"""Loaders of every kind over a bucket: the rows that the same files give here."""

import itertools
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell as sw
from stepwell import FetchError, FormatError, StepWriter
from tests import packs, runs
from tests.buckets import Bucket
from tests.proxy import status, times

ROW = np.dtype([("x", "<i4"), ("y", "<f4", (14,))])
RUNS, STEPS = 20, 200
SAMPLERS: dict[str, Any] = {
    "Shuffle": sw.Shuffle(5),
    "Block": sw.Block(64, seed=5, group=8),
    "lanes": sw.Block(64, seed=5, group=8, lanes=4),
}
WINDOW = 100_000
"""Less than half of the rows."""

pytestmark = pytest.mark.filterwarnings("ignore:.*fetches:UserWarning")


def write(path: Path, first: int = 0) -> None:
    with StepWriter(path, ROW, {"score": int}) as writer:
        for run in range(RUNS):
            rows = np.zeros(STEPS, ROW)
            rows["x"] = first + np.arange(run * STEPS, (run + 1) * STEPS)
            rows["y"] = np.random.default_rng(run).random((STEPS, 14))
            writer.append(rows, score=run % 10)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, server: Bucket) -> Path:
    folder = tmp_path_factory.mktemp("loaders")
    write(folder / "steps")
    packs.write(folder / "runs.a2pack", [runs.RUN_V1, runs.RUN_V2] * 60)
    server.upload(folder, "loaders")
    return folder


def far(s3: Bucket, name: str = "steps", **options: Any) -> Any:
    return sw.open(s3.url(f"loaders/{name}"), **{**s3.options, "window_bytes": WINDOW, **options})


def parts(value: Any) -> Any:
    """What ragged values are made of, whatever the framework has for them."""
    if isinstance(value, sw.Ragged):
        return value.values, value.offsets
    return value if isinstance(value, tuple | list) else None


def equal(got: Any, want: Any) -> None:
    """Batches of a framework, or of NumPy."""
    if isinstance(want, dict):
        assert list(got) == list(want)
        for name, values in want.items():
            equal(got[name], values)
    elif (several := parts(want)) is not None:
        for one, other in zip(parts(got), several, strict=True):
            equal(one, other)
    elif want is None or isinstance(want, str):
        assert got == want
    else:
        one, other = np.asarray(got), np.asarray(want)
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.tobytes() == other.tobytes()


def loader(kind: str, source: Any, batch: int, **options: Any) -> Any:
    if kind == "numpy":
        return sw.Loader(source, batch, **options)
    if kind == "torch":
        return sw.torch.Loader(source, batch, **options)
    return sw.jax.Loader(source, batch, transform=padded, **options)


def padded(batch: Any) -> dict[str, Any]:
    """What JAX can have of a batch: arrays of one size, and no numbers of 64 bits."""
    made = {}
    for name, values in batch.items():
        if isinstance(values, sw.Ragged):
            made[name] = np.zeros((len(values), 40), np.float32)
            for row, (begin, end) in zip(made[name], pairwise(values.offsets), strict=True):
                flat = values.values[begin:end].ravel()[:40]  # of text, its bytes
                row[: len(flat)] = flat
        elif values.dtype.kind in "fiu":
            made[name] = values.astype(np.float32)
    return made


@pytest.mark.parametrize(
    ("kind", "name", "sampler"),
    [
        *(("numpy", name, sampler) for name in ("steps", "runs.a2pack") for sampler in SAMPLERS),
        *(("torch", "steps", "Block"), ("torch", "runs.a2pack", "lanes")),
        *(("jax", "steps", "Shuffle"), ("jax", "runs.a2pack", "Block")),
    ],
)
def test_batches_are_those_of_the_files_here(
    folder: Path, s3: Bucket, kind: str, name: str, sampler: str
) -> None:
    """Also after resuming with another world and other threads."""
    pytest.importorskip(kind)
    here, there = sw.open(folder / name), far(s3, name)
    assert there._units() is not None
    options: dict[str, Any] = {"sampler": SAMPLERS[sampler], "rank": 0, "world_size": 1}
    batch = len(here) // 20
    before = [loader(kind, each, batch, threads=3, **options) for each in (here, there)]
    for want, got in itertools.islice(zip(*before, strict=True), 7):
        equal(got, want)
    state = before[1].state_dict()
    assert state == before[0].state_dict()
    for rank in range(2):
        options |= {"rank": rank, "world_size": 2, "threads": 1 + rank}
        after = [loader(kind, each, batch // 3, **options) for each in (here, there)]
        for each in after:
            each.load_state_dict(state)
        count = 0
        for want, got in zip(*after, strict=True):
            equal(got, want)
            count += 1
        assert count > 10
        for each in after:
            each.close()
    for each in before:
        each.close()


@pytest.mark.parametrize("kind", ["numpy", "torch", "jax"])
def test_a_view_of_the_best_runs(folder: Path, s3: Bucket, kind: str) -> None:
    pytest.importorskip(kind)
    views = [each.where("score >= ?", 7) for each in (sw.open(folder / "steps"), far(s3))]
    assert len(views[1]) == RUNS * STEPS * 3 // 10
    loaders = [loader(kind, each, 100, sampler=SAMPLERS["Block"]) for each in views]
    seen = []
    for want, got in zip(*loaders, strict=True):
        equal(got, want)
        seen.append(np.asarray(got["x"]))
    assert len(np.unique(np.concatenate(seen))) == len(views[0])
    for each in loaders:
        each.close()


# A fault in the middle.


def tried(loop: Iterator[Any]) -> tuple[list[Any], Exception | None]:
    """Batches up to an error, or to the end."""
    got = list[Any]()
    try:
        got.extend(loop)  # a list keeps what came before the error
    except Exception as error:
        return got, error
    return got, None


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_ranges_that_fail_until_they_are_mended(folder: Path, s3: Bucket, sampler: str) -> None:
    order = SAMPLERS[sampler].order(RUNS * STEPS).rows(0, 0, RUNS * STEPS)
    source = far(s3, deadline_s=2)  # of a server that may be slow: what is needed comes at once
    with sw.Loader(source, 100, sampler=SAMPLERS[sampler], threads=2) as each:
        loop = iter(each)
        got = [next(loop) for _ in range(5)]
        s3.proxy.fault = times(None, status(503), of="steps.npy")
        some, error = tried(loop)
        assert isinstance(error, FetchError)
        assert error.url == s3.url("loaders/steps/steps.npy")
        assert f"position {100 * (5 + len(some))} of epoch 0" in error.__notes__[0]
        s3.proxy.fault = None
        rest, error = tried(loop)
        assert error is None
    assert np.array_equal(np.concatenate([b["x"] for b in got + some + rest]), order)


def test_an_object_that_is_replaced(folder: Path, s3: Bucket, tmp_path: Path) -> None:
    shutil.copytree(folder / "steps", tmp_path / "changing")
    s3.upload(tmp_path, "loaders")
    write(tmp_path / "other", first=10**6)
    sampler = SAMPLERS["Shuffle"]
    order = sampler.order(RUNS * STEPS).rows(0, 0, RUNS * STEPS)
    with sw.Loader(far(s3, "changing"), 100, sampler=sampler) as each:
        loop = iter(each)
        got = [next(loop) for _ in range(3)]
        put(s3, tmp_path / "other")
        some, error = tried(loop)
        assert isinstance(error, FormatError)
        assert str(error.path).startswith(s3.url("loaders/changing"))
        got += some
        assert len(got) < 40
        put(s3, folder / "steps")  # the very same bytes: the ETag is theirs
        rest, error = tried(loop)
        assert error is None
    assert np.array_equal(np.concatenate([b["x"] for b in got + rest]), order)


def put(s3: Bucket, folder: Path) -> None:
    s3.upload(folder, "loaders/changing")
