"""tests/test_resident.py on a real device, and what only a real one shows."""

from typing import Any

import numpy as np
import pytest
import torch

import stepwell as sw
from tests import children, test_resident as on_the_host
from tests.test_resident import assert_same, assert_same_loops, dataset as dataset

globals().update({n: each for n, each in vars(on_the_host).items() if n.startswith("test_")})

BUSY = 50_000_000
"""Cycles that a stream is kept busy for, so that whatever does not wait for it is early."""


@pytest.fixture
def device() -> str:
    return "cuda"


@pytest.fixture
def busy() -> Any:
    """A source of rows that show which one they are, in more than one group."""
    row = np.arange(200_000)
    return sw.ArraySource({"row": row, "double": 2 * row, "small": (row % 251).astype("u1")})


def test_plain_torch_gathers_the_same(dataset: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = list(sw.torch.Loader(dataset.windows(4, pad=True).to("cuda"), 16, seed=1))
    monkeypatch.setattr("stepwell.torch.layout._has_triton", lambda: False)
    plain = sw.torch.Loader(dataset.windows(4, pad=True).to("cuda"), 16, seed=1)
    assert_same_loops(at_once, plain)


@pytest.mark.parametrize(
    "fields",
    [
        [("a", "<i8"), ("b", "u1"), ("c", "?"), ("d", "<f4", (4,)), ("e", "<u4"), ("f", "<u2")],
        [("a", "<f4", (12,)), ("b", "<i2"), ("c", "i1", (3,)), ("d", "<u2", (2,))],
        [("a", "<f2", (5, 7)), ("b", "<u4", (3,))],
        [("a", "<u2")],
    ],
)
def test_rows_of_every_shape(fields: Any) -> None:
    dtype = np.dtype(fields)
    values = np.random.default_rng(1).integers(0, 120, (1000, dtype.itemsize)).astype("u1")
    rows = values.view(dtype)[:, 0]
    for name in dtype.names or ():
        if dtype[name].base.kind == "b":
            rows[name] = values[:, 0] % 2
    source = sw.ArraySource(rows)
    for batch_size in (1, 7, 1000):
        there = sw.torch.Loader(source.to("cuda"), batch_size, seed=1)
        assert_same_loops(there, sw.torch.Loader(source, batch_size, seed=1))


def test_wide_rows_and_large_batches() -> None:
    values = np.random.default_rng(1).standard_normal((5000, 768), np.float32)
    source = sw.ArraySource({"x": values, "odd": np.arange(15_000, dtype="u2").reshape(-1, 3)})
    for batch_size in (64, 5000):
        there = sw.torch.Loader(source.to("cuda"), batch_size, seed=1)
        assert_same_loops(there, sw.torch.Loader(source, batch_size, seed=1))


def test_batches_are_right_on_whatever_stream_is_current(busy: Any) -> None:
    streams = [torch.cuda.Stream() for _ in range(3)]
    seen = torch.zeros((3, len(busy)), dtype=torch.int64, device="cuda")
    wrong = torch.zeros(3, dtype=torch.int64, device="cuda")
    torch.cuda.synchronize()
    for i, stream in enumerate(streams):  # each of them late in its own way
        with torch.cuda.stream(stream):
            torch.cuda._sleep(BUSY * (i + 1))
    loop = iter(sw.torch.Loader(busy.to("cuda"), 1000, seed=1))
    for i in range(200):
        with torch.cuda.stream(streams[i % 3]):
            batch = next(loop)
            seen[i % 3].index_add_(0, batch["row"], torch.ones_like(batch["row"]))
            wrong[i % 3] += (batch["double"] != 2 * batch["row"]).sum()
            wrong[i % 3] += (batch["small"] != batch["row"] % 251).sum()
            del batch
    torch.cuda.synchronize()
    assert wrong.tolist() == [0, 0, 0]
    assert bool((seen.sum(0) == 1).all())


def test_memory_of_batches_is_not_used_again_too_early(busy: Any) -> None:
    """Batches are dropped while kernels that read them wait in the stream."""
    sums = []
    for batch in sw.torch.Loader(busy.to("cuda"), 5000, seed=1):
        torch.cuda._sleep(BUSY // 20)
        sums.append(batch["row"].sum())
        del batch
        torch.full((1 << 20,), -1, device="cuda")  # whoever takes the memory next writes into it
    assert int(torch.stack(sums).sum()) == sum(range(len(busy)))


def test_a_graph_is_replayed_on_static_batches(busy: Any) -> None:
    loader = sw.torch.Loader(busy.to("cuda"), 1000, seed=1, drop_last=True)
    total = torch.zeros((), dtype=torch.int64, device="cuda")
    graph, count = None, 0

    def step(batch: Any) -> None:
        total.add_(batch["row"].sum() + (batch["double"] - 2 * batch["row"]).sum())

    for batch in loader.static_batches():
        if graph is None:
            step(batch)  # loads what it needs, which a capture must not
            total.zero_()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step(batch)
        graph.replay()
        count += 1
    assert count == 200
    assert int(total) == sum(range(len(busy)))


def test_a_forked_child_is_told_what_to_do(busy: Any) -> None:
    resident = busy.to("cuda")

    def fails() -> str:
        with pytest.raises(RuntimeError) as caught:
            resident.tensors([0])
        return str(caught.value)

    assert "'spawn'" in children.in_fork(fails)


def test_what_the_kernel_makes_is_what_tensors_gives(busy: Any) -> None:
    rows = np.random.default_rng(1).integers(0, len(busy), 1_048_576)
    got = busy.to("cuda").tensors(rows)
    assert_same(got, sw.torch.as_tensors(busy.take(rows)))
