"""The feed on a real device: rows arrive exactly while blocks are used again under busy streams."""

import gc
import os
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import stepwell as sw
from stepwell.errors import DeviceError
from tests import ROOT

N = 200_000
STEP = np.dtype(
    [("board", "<u8"), ("move", "u1"), ("won", "?"), ("ev", "<f4", (4,)), ("run", "<u4")]
)


def steps(rows: int = N) -> sw.ArraySource:
    i = np.arange(rows)
    made = np.zeros(rows, STEP)
    made["board"], made["move"], made["won"], made["run"] = i, i % 4, i % 3 == 0, i // 1000
    made["ev"] = i[:, None] + np.arange(4)
    return sw.ArraySource(made)


def loader(batch_size: int = 1024, **options: Any) -> sw.torch.Loader:
    return sw.torch.Loader(steps(), batch_size, seed=7, device="cuda", **options)


def is_right(batch: Any) -> Any:
    """Whether the fields of each row belong together, as a value on the device."""
    row = batch["board"].view(torch.int64)
    ev = batch["ev"] == row[:, None] + torch.arange(4, device="cuda")
    flags = (batch["move"] == row % 4) & (batch["won"] == (row % 3 == 0))
    return (flags & (batch["run"] == row // 1000) & ev.all(1)).all()


def order(epoch: int = 0) -> np.ndarray[Any, Any]:
    return sw.Shuffle(7).order(N).rows(epoch, 0, N)


@pytest.fixture
def busy() -> Any:
    """Gives the current stream some milliseconds of work."""
    square = torch.randn(2048, 2048, device="cuda")

    def work(times: int = 4) -> None:
        for _ in range(times):
            torch.tanh(square @ square)

    return work


@pytest.mark.parametrize("prefetch", [1, 4, 16])
def test_canary(busy: Any, prefetch: int) -> None:
    """Kernels that read late and overwrite what they have read: a block written too early shows."""
    loading = loader(prefetch=prefetch)
    for epoch in range(2):
        rows, right = [], []
        for batch in loading:
            busy()
            right.append(is_right(batch))
            rows.append(batch["board"].view(torch.int64).clone())
            for tensor in batch.values():
                tensor.zero_()
            del batch, tensor
        assert bool(torch.stack(right).all())
        assert np.array_equal(torch.cat(rows).cpu().numpy(), order(epoch))
    loading.close()


def test_batches_and_slices_that_are_kept(busy: Any) -> None:
    loading = loader()
    kept: list[Any] = []
    parts: list[Any] = []
    for number, batch in enumerate(loading):
        busy(1)
        (kept if number % 3 else parts).append(batch if number % 3 else batch["ev"][7:9])
    for batch in loading:
        batch["ev"].zero_()
    assert all(bool(is_right(batch)) for batch in kept)
    numbers = [n for n in range(len(loading)) if n % 3 == 0]
    expected = [order()[n * 1024 + 7 : n * 1024 + 9].tolist() for n in numbers]
    assert [part[:, 0].tolist() for part in parts] == expected


def test_streams_of_the_consumer(busy: Any) -> None:
    """`next` on a side stream, and work on one more that is named."""
    loading, one, other = loader(prefetch=1), torch.cuda.Stream(), torch.cuda.Stream()
    rows = []
    with torch.cuda.stream(one):
        for batch in loading:
            other.wait_stream(one)
            with torch.cuda.stream(other):
                busy()
                rows.append(batch["board"].view(torch.int64).clone())
            loading.record_stream(batch, other)
            del batch
    other.synchronize()
    assert np.array_equal(torch.cat(rows).cpu().numpy(), order())


def test_a_graph_is_captured_beside_the_threads() -> None:
    loading = loader(prefetch=8)
    place = torch.zeros(1024, dtype=torch.int64, device="cuda")
    loop, graph = iter(loading), torch.cuda.CUDAGraph()
    batch = next(loop)
    place.copy_(batch["board"].view(torch.int64))
    with torch.cuda.graph(graph):
        total = place.sum()
        del batch  # let go of while a graph is captured
    for number, batch in enumerate(islice(loop, 50), 1):
        place.copy_(batch["board"].view(torch.int64))
        graph.replay()
        assert int(total) == int(order()[number * 1024 : (number + 1) * 1024].sum())


def test_a_run_goes_on_here_and_there() -> None:
    loading, plain = loader(), sw.Loader(steps(), 500, seed=7)
    seen = [batch["board"].cpu().numpy() for batch in islice(iter(loading), 20)]
    plain.load_state_dict(loading.state_dict())
    seen += [batch["board"] for batch in islice(iter(plain), 30)]
    loading.load_state_dict(plain.state_dict())
    seen += [batch["board"].cpu().numpy() for batch in loading]
    assert np.array_equal(np.concatenate(seen).astype(np.int64), order())


def test_out_of_memory() -> None:
    rows = sw.ArraySource({"x": np.zeros((64, 1 << 26), np.uint8), "i": np.arange(64)})
    loading = sw.torch.Loader(rows, 4, shuffle=False, device="cuda", prefetch=2)
    loop = iter(loading)
    kept = [next(loop)]
    free, _ = torch.cuda.mem_get_info()
    hoard = torch.empty(max(free - (1 << 30), 0), dtype=torch.uint8, device="cuda")
    with pytest.raises(MemoryError, match="bytes of free memory on cuda:"):
        kept.extend(loop)
    position = loading.position
    assert position == 4 * len(kept)
    del hoard
    gc.collect()
    torch.cuda.empty_cache()
    assert next(loop)["i"].tolist() == list(range(position, position + 4))


def test_python_sources_are_copied_too() -> None:
    mapped = steps(5000).map(lambda batch: batch)
    loading = sw.torch.Loader(mapped, 512, seed=7, device="cuda")
    assert all(bool(is_right(batch)) for batch in loading)
    with pytest.raises(ValueError, match="expected one of the"):
        next(iter(sw.torch.Loader(steps(10), 2, device="cuda:99")))


def test_two_loaders_at_once(busy: Any) -> None:
    for one, other in zip(loader(), loader(), strict=True):
        busy(1)
        assert torch.equal(one["board"].view(torch.int64), other["board"].view(torch.int64))


def test_shards_in_order(tmp_path: Path) -> None:
    rows = np.random.default_rng(1).standard_normal((5000, 768), np.float32)
    with sw.ShardWriter(tmp_path, 768, dtype=np.float32, shard_bytes=2000 * 768 * 4) as writer:
        writer.append(rows)
    reader = sw.ShardReader.open(tmp_path)
    for dtype in (None, np.float64):
        batches: Any = reader.batches(512, dtype, device="cuda")
        made = [(there.clone(), ids) for there, ids in batches]
        assert np.array_equal(torch.cat([b for b, _ in made]).cpu().numpy(), rows)
        assert np.array_equal(np.concatenate([ids for _, ids in made]), np.arange(5000))


def test_jax() -> None:
    script = """
import jax, numpy as np, stepwell as sw
i = np.arange(100_000, dtype=np.int32)
source = sw.ArraySource({"i": i, "x": (i[:, None] * [1, 2]).astype(np.float32), "b": i % 2 > 0})
loader = sw.jax.Loader(source, 1024, seed=7, device=jax.devices("gpu")[0])
check = jax.jit(lambda b: ((b["x"][:, 1] == b["i"] * 2) & (b["b"] == (b["i"] % 2 > 0))).all())
right, rows = [], []
for batch in loader:
    assert isinstance(batch["x"], jax.Array)
    right.append(check(batch))
    rows.append(batch["i"] + 0)
assert type(loader._engine).__name__ == "_JaxEngine"
assert all(map(bool, right))
assert np.array_equal(np.concatenate(rows), sw.Shuffle(7).order(len(i)).rows(0, 0, len(i)))
"""
    pytest.importorskip("jax")
    environment = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    run(script, environment)


def run(script: str, environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("end", ["", "sys.exit(0)", "loader.close()", "kept.clear()"])
def test_a_process_that_ends_in_the_middle(end: str) -> None:
    script = f"""
import sys
import numpy as np, stepwell as sw, torch
source = sw.ArraySource({{"i": np.arange(1_000_000)}})
loader = sw.torch.Loader(source, 4096, device="cuda", prefetch=16)
loop = iter(loader)
kept = [next(loop) for _ in range(20)]
{end}
"""
    run(script, {})


def test_a_forked_child_is_refused() -> None:
    script = """
import os
import numpy as np, stepwell as sw, torch
loader = sw.torch.Loader(sw.ArraySource({"i": np.arange(100_000)}), 1024, device="cuda")
loop = iter(loader)
kept = [next(loop)]
if os.fork() == 0:
    try:
        next(loop)
    except RuntimeError as error:
        os._exit(0 if "fork" in str(error) else 1)
    os._exit(2)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
assert len(list(loop)) == 97
"""
    run(script, {})


def test_without_a_driver() -> None:
    script = """
import stepwell as sw, numpy as np
from stepwell.errors import DeviceError
try:
    next(iter(sw.torch.Loader(sw.ArraySource({"i": np.arange(9)}), 3, device="cuda")))
except DeviceError as error:
    assert "/nowhere" in str(error)
else:
    raise AssertionError
"""
    assert issubclass(DeviceError, RuntimeError)
    run(script, {"STEPWELL_CUDA_LIBRARY": "/nowhere/libcuda.so.1"})
