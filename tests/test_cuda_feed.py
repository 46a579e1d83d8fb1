"""The feed of a CUDA device, against a driver that checks every call and runs late."""

import gc
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell as sw
from stepwell.engine import Place
from stepwell.errors import DeviceError
from stepwell.feed import make_feed
from stepwell.source import Field
from stepwell.stores.shards.device import tensors
from tests import scaled
from tests.children import at_once, in_fork
from tests.fake_cuda import Capsule, FakeLoader, driver, numbers, order

N = 1000


@pytest.fixture(autouse=True)
def fake() -> Iterator[Any]:
    """The driver, with as much memory as ever, and nothing left in it by a test."""
    made = driver()
    before = made.fake_live()
    for device in (0, 1):
        made.fake_limit(device, 1 << 30)
    yield made
    gc.collect()
    assert made.fake_live() == before


def loader(rows: int = N, batch_size: int = 64, **options: Any) -> FakeLoader:
    chosen = {"seed": 7, "threads": 3, "prefetch": 3, **options}
    return FakeLoader(numbers(rows), batch_size, **chosen)


def read_all(feeding: FakeLoader, loop: Any = None) -> list[int]:
    """The rows of a loop, each read by a kernel that is begun, and the batch then let go."""
    read = [
        (feeding.read(batch["i"]), feeding.read(batch["x"]))
        for batch in (feeding if loop is None else loop)
    ]
    feeding.synchronize()
    for i, x in read:
        np.testing.assert_array_equal(x, i[:, None] * np.array([1, 2, 3], np.float32))
    return [row for i, _ in read for row in i.tolist()]


@pytest.mark.parametrize("together", [1, 3, 4, None])
@pytest.mark.parametrize("threads", [1, 4])
def test_epochs_are_exact_while_memory_is_used_again(threads: int, together: int | None) -> None:
    feeding = loader(threads=threads, together=together)
    for epoch in range(scaled(10, 2)):
        assert read_all(feeding) == order(epoch=epoch)
    assert feeding.feed is not None
    assert feeding.feed.blocks <= max(3, 2 * feeding.feed.together) + threads + 2
    feeding.close()


@pytest.mark.parametrize("together", [1, 4])
def test_batches_that_are_kept_stay_as_they_are(together: int) -> None:
    feeding = loader(together=together)
    kept = list(feeding)
    assert feeding.feed is not None
    assert feeding.feed.blocks >= len(kept) / together
    read = [feeding.read(batch["i"]) for batch in kept]
    feeding.synchronize()
    assert [row for i in read for row in i.tolist()] == order()
    del kept
    assert read_all(feeding) == order(epoch=1)
    assert feeding.feed.blocks <= max(3, 2 * together) + 3 + 2 + 3  # that stay, and are under way
    feeding.close()


@pytest.mark.parametrize("together", [1, 4])
@pytest.mark.parametrize("threads", [1, 4])
def test_batches_in_one_place(threads: int, together: int) -> None:
    feeding = loader(threads=threads, together=together)
    loop = iter(feeding)
    first = next(loop)
    read = [feeding.read(first["i"])]
    assert feeding._engine is not None
    feeding._engine.into = Place(first["i"].__array_interface__["data"][0], len(first["i"]))
    for batch in loop:  # None, but for the last, which has fewer rows
        read.append(feeding.read((batch or first)["i"]))
    assert batch is not None
    feeding.synchronize()
    assert [row for i in read for row in i.tolist()] == order()
    del first, batch
    feeding.close()


def test_a_slice_keeps_its_batch() -> None:
    feeding = loader()
    part = next(iter(feeding))["x"][5:7, 1:]
    rows = order()[5:7]
    for _ in range(3):
        read_all(feeding)
    read = feeding.read(part)  # the bytes between its rows are not read
    at, stride = part.__array_interface__["data"][0], part.strides[0]
    assert stride * 2 > read.nbytes
    out = np.empty(stride * 2 // 4, np.float32)
    driver().fake_read(feeding.stream, at, stride + 8, out.ctypes.data)
    feeding.synchronize()
    assert out[:2].tolist() == [rows[0] * 2, rows[0] * 3]
    assert out[3:5].tolist() == [rows[1] * 2, rows[1] * 3]
    feeding.close()


def test_batches_outlive_the_loader() -> None:
    feeding = loader()
    stream, batch = feeding.stream, next(iter(feeding))
    feeding.close()
    read = feeding.read(batch["i"])
    del feeding, batch
    driver().fake_synchronize(stream)
    assert read.tolist() == order()[:64]


def test_work_on_another_stream_is_waited_for_when_it_is_named() -> None:
    feeding = loader(prefetch=1, threads=1, together=1)
    other = driver().fake_stream(0)
    read = []
    for batch in feeding:
        assert feeding.feed is not None
        at = batch["i"].__array_interface__["data"][0]
        assert feeding.feed.record_stream(at + 8, other)  # anywhere in the batch
        feeding.synchronize()  # so that the other one may read
        read.append(feeding.read(batch["i"], other))
    driver().fake_synchronize(other)
    assert [row for i in read for row in i.tolist()] == order()
    assert feeding.feed is not None
    assert not feeding.feed.record_stream(4096, other)
    feeding.close()


def test_a_stream_that_changes_between_batches_waits_for_them() -> None:
    """Batches of one group, each read on the stream that was current when it was handed out."""
    feeding = loader(together=4)
    streams = [feeding.stream, driver().fake_stream(0), driver().fake_stream(0)]
    read = []
    for number, batch in enumerate(feeding):
        read.append(feeding.read(batch["i"]))
        feeding.stream = streams[number % 3]
    for stream in streams:
        driver().fake_synchronize(stream)
    assert [row for i in read for row in i.tolist()] == order()
    feeding.close()


def test_small_batches_cross_together_and_the_first_ones_do_not_wait() -> None:
    feeding = loader(together=4)
    sizes = []
    for _ in feeding:
        engine: Any = feeding._engine
        sizes.append(len(engine._group.steps))
    assert sizes == [1, 1, 2, 2, *[4] * 12]
    feeding.close()


@pytest.mark.parametrize("how", ["close", "error", "drop"])
def test_a_loop_that_is_left_while_copies_are_under_way(how: str) -> None:
    feeding = loader(prefetch=8)
    seen: list[int] = []
    state = feeding.state_dict()
    for _ in range(2):
        feeding.load_state_dict(state)
        loop = iter(feeding)
        seen += read_all(feeding, islice(loop, 3))
        state = feeding.state_dict()
        if how == "close":
            feeding.close()
        elif how == "error":
            with pytest.raises(ZeroDivisionError):
                next(1 // 0 for _ in loop)
        else:
            del loop
    assert seen == order()[: 6 * 64]
    feeding.close()


def test_a_run_goes_on_here_and_there() -> None:
    feeding, plain = loader(), sw.Loader(numbers(), 50, seed=7)
    seen = read_all(feeding, islice(iter(feeding), 4))
    plain.load_state_dict(feeding.state_dict())
    seen += [row for batch in islice(iter(plain), 3) for row in batch["i"].tolist()]
    feeding.load_state_dict(plain.state_dict())
    assert seen + read_all(feeding) == order()
    feeding.close()


def test_a_device_without_room(fake: Any) -> None:
    feeding = loader(threads=2, together=1)
    size = 1536  # 64 rows of 8 + 12 + 1 bytes, as blocks begin
    fake.fake_limit(0, 5 * size)
    loop = iter(feeding)
    kept = [next(loop) for _ in range(5)]
    for _ in range(2):  # again, and nothing moves
        message = f"expected {size} bytes of free memory on cuda:0.*got 0 of {5 * size}"
        with pytest.raises(MemoryError, match=message) as caught:
            next(loop)
        assert "in the batch of 64 rows at position 320 of epoch 0" in caught.value.__notes__
        assert feeding.position == 320
    kept = kept[2:]
    rest = read_all(feeding, loop)  # two are enough to go on: the next one comes before one goes
    assert rest == order()[320:]
    read = [feeding.read(batch["i"]) for batch in kept]
    feeding.synchronize()
    assert [row for i in read for row in i.tolist()] == order()[128:320]
    feeding.close()


@pytest.mark.parametrize("together", [1, 4])
def test_memory_for_fewer_batches_than_are_made_ahead_is_no_error(fake: Any, together: int) -> None:
    fake.fake_limit(0, 3 * 1536 * together)
    feeding = loader(prefetch=8, threads=4, together=together)
    assert read_all(feeding) == order()
    feeding.close()


@pytest.mark.parametrize("together", [1, 4])
def test_damaged_rows_leave_the_memory_of_others_alone(tmp_path: Path, together: int) -> None:
    """A batch that could not be read gives its memory back to the one behind it, past included."""
    values = np.arange(4000 * 64, dtype=np.float32).reshape(-1, 64)
    with sw.ShardWriter(tmp_path, 64, dtype=np.float32) as writer:
        writer.append(values)
    (file,) = tmp_path.glob("*.shard")
    damaged = bytearray(file.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    file.write_bytes(damaged)
    options: Any = {"threads": 3, "prefetch": 3, "on_corrupt": "skip", "together": together}
    feeding = FakeLoader(sw.ShardReader.open(tmp_path), 8, seed=7, **options)
    read = []
    for batch in feeding:
        data = batch["data"]
        assert feeding.feed is not None
        at = data.__array_interface__["data"][0]
        there = feeding.feed.record_stream(at, feeding.stream or 0)
        read.append(feeding.read(data) if there else data)
    feeding.synchronize()
    lost = {row for row, _ in feeding.corrupt}
    rows = [int(row) // 64 for data in read for row in data[:, 0]]
    assert rows == [row for row in order(4000) if row not in lost]
    assert 0 < len(lost) < 2000
    feeding.close()


def test_a_batch_that_is_damaged_is_named_among_those_it_crosses_with(tmp_path: Path) -> None:
    with sw.ShardWriter(tmp_path, 1024, dtype=np.float32) as writer:
        writer.append(np.arange(64 * 1024, dtype=np.float32).reshape(-1, 1024))
    (file,) = tmp_path.glob("*.shard")
    damaged = bytearray(file.read_bytes())
    damaged[32 + 4096 * 42] ^= 1
    file.write_bytes(damaged)
    options: Any = {"threads": 3, "prefetch": 3, "shuffle": False, "together": 4}
    feeding = FakeLoader(sw.ShardReader.open(tmp_path), 8, **options)
    loop = iter(feeding)
    for _ in range(5):
        next(loop)
    for _ in range(2):  # again, and nothing moves
        with pytest.raises(sw.ChecksumError) as caught:
            next(loop)
        assert "in the batch of 8 rows at position 40 of epoch 0" in caught.value.__notes__
        assert feeding.position == 40
    feeding.close()


def test_two_devices_and_four_loaders_at_once() -> None:
    def epochs(device: int) -> list[list[int]]:
        feeding = loader(device=device)
        try:
            return [read_all(feeding) for _ in range(scaled(3))]
        finally:
            feeding.close()

    for found in at_once(*(lambda device=d: epochs(device) for d in (0, 1, 0, 1))):
        assert found == [order(epoch=epoch) for epoch in range(len(found))]


def test_without_a_stream_batches_are_complete_and_all_work_is_waited_for() -> None:
    feeding = loader(prefetch=2)
    ours, feeding.stream = feeding.stream, None  # as JAX's are unknown
    read = [feeding.read(batch["i"], ours) for _ in range(3) for batch in feeding]
    driver().fake_synchronize(ours)
    expected = [row for epoch in range(3) for row in order(epoch=epoch)]
    assert [row for i in read for row in i.tolist()] == expected
    feeding.stream = ours
    feeding.close()


def test_a_batch_that_is_let_go_while_a_graph_is_captured(fake: Any) -> None:
    feeding = loader(prefetch=1, threads=1, together=1)
    loop = iter(feeding)
    read = [feeding.read(next(loop)["i"])]
    batch = next(loop)
    read.append(feeding.read(batch["i"]))
    fake.fake_capture(feeding.stream, 1)
    del batch
    fake.fake_capture(feeding.stream, 0)
    rest = read_all(feeding, loop)
    assert [row for i in read for row in i.tolist()] + rest == order()
    feeding.close()


def test_types_as_dlpack_has_them() -> None:
    import torch

    kinds = ["b", "u1", "i2", "u4", "i8", "f2", "f4", "f8", "c8", "c16", "?"]
    schema = {kind: Field(np.dtype(kind), (2,)) for kind in kinds}
    feed = make_feed(1, schema, 4, threads=1, prefetch=1)
    crossing = feed.begin(3)
    feed.send(crossing, 0)
    with pytest.raises(ValueError, match="still here"):
        feed.send(crossing, 0)
    batch = feed.hand_over(crossing, None, Capsule)
    with pytest.raises(ValueError, match="not handed over"):
        feed.hand_over(crossing, None, Capsule)
    for kind, shown in batch.items():
        assert shown.device == (2, 1)
        tensor = torch.utils.dlpack.from_dlpack(shown.capsule)
        assert tensor.shape == (3, 2)
        assert tensor.dtype == torch.from_numpy(np.empty(0, kind)).dtype, kind
    with pytest.raises(sw.SchemaError, match=r"field 't': a device has no tensors of <U5"):
        make_feed(0, {"t": Field(np.dtype("U5"), ())}, 4, threads=1, prefetch=1)


def test_memory_of_a_batch_that_nobody_got_is_used_again_behind_its_copy() -> None:
    feed = make_feed(0, {"i": Field(np.dtype("i8"), ())}, 8, threads=2, prefetch=1)
    for lane in range(20):
        crossing = feed.begin(8)
        crossing.array(64)[:] = lane
        feed.send(crossing, lane)
    assert feed.blocks == 1


def test_shards_in_order(tmp_path: Path) -> None:
    rows = np.arange(700 * 4, dtype=np.float32).reshape(-1, 4)
    with sw.ShardWriter(tmp_path, 4, dtype=np.float32, shard_bytes=300 * 4 * 4) as writer:
        writer.append(rows)
    reader = sw.ShardReader.open(tmp_path)
    stream = driver().fake_stream(0)

    class Device:
        number = 0

        def stream(self) -> int:
            return int(stream)

        def tensor(self, capsule: Any) -> Any:
            return np.from_dlpack(Capsule(capsule))

    for dtype in (np.float32, np.float64):
        read = []
        span, field = reader._shards.span(0, len(reader)), Field(np.dtype(dtype), (4,))
        feed = make_feed(0, {"data": field}, 64, threads=2, prefetch=2)
        given = (reader._shards, span, 64, 1 << 20, field, reader._convert, Device(), feed)
        for values in tensors(*given):
            read.append(np.empty(values.shape, values.dtype))
            at = values.__array_interface__["data"][0]
            driver().fake_read(stream, at, values.nbytes, read[-1].ctypes.data)
        del values
        assert feed.blocks <= 1  # the last batch was here until now
        driver().fake_synchronize(stream)
        np.testing.assert_array_equal(np.concatenate(read), rows)
        assert [len(values) for values in read[:6]] == [64, 64, 64, 64, 44, 64]


def test_a_forked_child_is_refused_and_frees_nothing() -> None:
    feeding = loader()
    loop = iter(feeding)
    kept = [next(loop)]

    def child() -> str:
        kept.clear()
        with pytest.raises(DeviceError, match=r"forked child .*'spawn'") as caught:
            next(loop)
        return type(caught.value).__name__

    assert in_fork(child) == "DeviceError"
    read = feeding.read(kept[0]["i"])
    assert order()[64:] == read_all(feeding, loop)
    assert read.tolist() == order()[:64]
    kept.clear()
    feeding.close()
