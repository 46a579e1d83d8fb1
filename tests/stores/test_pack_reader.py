"""Reading a pack: runs in any order, by any number of threads, and the bytes they are made of."""

import errno
import gc
import mmap
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from stepwell import FormatError, PackReader
from stepwell.game2048 import Run
from tests import packs
from tests.children import in_fork
from tests.reference import pack as reference, runs
from tests.runs import RUN_V1, assert_run, random_payloads

PAYLOADS = random_payloads(2, 150, most_steps=10)
RUNS = [runs.decode(payload) for payload in PAYLOADS]
V2 = [Run.from_bytes(payload).to_bytes() for payload in PAYLOADS]
"""Every run as v2: how two runs are compared."""

WORKERS = pytest.mark.parametrize("workers", [1, 2, 8, None])


@pytest.fixture(scope="module", params=["none", "zstd"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reader")
    return packs.write(folder / "p.a2pack", PAYLOADS, align=64, compress=request.param)


@pytest.fixture
def pack(path: Path) -> PackReader:
    return PackReader.open(path)


def as_v2(found: Any) -> list[bytes]:
    return [run.to_bytes() for run in found]


# Runs.


def test_decode(pack: PackReader) -> None:
    numbers: list[Any] = [0, 1, 149, np.int64(7), np.uint8(3)]
    for i in numbers:
        assert_run(pack.decode(i), RUNS[int(i)])


@WORKERS
def test_decode_batch(pack: PackReader, workers: int | None) -> None:
    random = np.random.default_rng(3)
    for count in (0, 1, 2, 500):
        rows = random.integers(0, 150, count)
        found = pack.decode_batch(rows, workers=workers)
        assert as_v2(found) == [V2[i] for i in rows]
    mask = np.arange(150) % 7 == 2
    assert as_v2(pack.decode_batch(mask, workers=workers)) == V2[2::7]


def test_iteration_in_any_order(pack: PackReader) -> None:
    assert as_v2(pack) == V2
    rows = [5, 5, 149, 0, *range(140)]
    assert as_v2(pack.iter_indices(rows)) == [V2[i] for i in rows]
    assert list(pack.iter_indices([])) == []


@WORKERS
def test_batches(pack: PackReader, workers: int | None) -> None:
    for size in (1, 7, 150, 1000):
        batches = list(pack.iter_batches(size, workers=workers))
        assert {len(batch) for batch in batches[:-1]} <= {size}
        assert as_v2(run for batch in batches for run in batch) == V2


@WORKERS
def test_shuffled_batches(pack: PackReader, workers: int | None) -> None:
    def order(seed: int | None) -> list[bytes]:
        batches = pack.iter_batches(32, shuffle=True, seed=seed, workers=workers)
        return as_v2(run for batch in batches for run in batch)

    assert order(3) == order(3) != V2
    assert sorted(order(3)) == sorted(order(4)) == sorted(order(None)) == sorted(V2)
    assert len({tuple(order(seed)) for seed in (3, 4, None, None)}) == 4


def test_the_order_of_a_seed_is_for_ever(pack: PackReader) -> None:
    names = {payload: i for i, payload in enumerate(V2)}
    first = next(iter(pack.iter_batches(8, shuffle=True, seed=3)))
    assert [names[payload] for payload in as_v2(first)] == [29, 140, 72, 130, 105, 30, 112, 146]


@pytest.mark.parametrize("bad", [-1, 150, 2**63])
def test_rows_outside_are_named(pack: PackReader, bad: int, tmp_path: Path) -> None:
    for call in (
        lambda: pack.decode(bad),
        lambda: pack.kind(bad),
        lambda: pack.slice(bad),
        lambda: pack.decode_batch([0, bad]),
        lambda: list(pack.iter_indices([0, bad])),
        lambda: pack.slices([0, bad]),
        lambda: pack.extract([0, bad], tmp_path),
        lambda: pack.take([0, bad]),
    ):
        with pytest.raises(IndexError, match=f"row {bad} is outside a source of 150 rows"):
            call()
    assert os.listdir(tmp_path) == []


def test_mistakes(pack: PackReader) -> None:
    wrong: Any
    for wrong in (1.0, "1", None, [1]):
        with pytest.raises((TypeError, ValueError)):
            pack.decode(wrong)
    with pytest.raises(TypeError, match="whole numbers"):
        pack.decode_batch([0.5])
    for call in (
        lambda: pack.decode_batch([0], workers=0),
        lambda: pack.iter_batches(4, workers=0),
    ):
        with pytest.raises(ValueError, match="workers must be at least 1"):
            call()
    with pytest.raises(ValueError, match="batch_size"):
        pack.iter_batches(0)
    with pytest.raises(ValueError, match="fraction"):
        pack.split(1.5)


def ahead() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("stepwell-ahead")]


def test_a_loop_that_is_left_leaves_no_threads(pack: PackReader) -> None:
    begin: list[Callable[[], Iterator[Any]]] = [
        lambda: iter(pack),
        lambda: pack.iter_indices(range(100)),
        lambda: pack.iter_batches(5, workers=8),
    ]
    for make in begin:
        loop = make()
        next(loop)
        assert ahead()
        del loop
        gc.collect()
        assert not ahead()
    for _ in pack:
        break
    list(pack)
    assert not ahead()


# Bytes.


def test_slices_are_the_payloads(pack: PackReader) -> None:
    rows = [3, 3, 149, 0]
    assert [bytes(view) for view in pack.slices(rows)] == [PAYLOADS[i] for i in rows]
    assert pack.slices([]) == []
    for i in rows:
        view = pack.slice(i)
        assert bytes(view) == PAYLOADS[i]
        assert view.itemsize == 1
        assert Run.from_bytes(view).to_bytes() == V2[i]


def test_slices_of_a_plain_pack_are_the_file(tmp_path: Path) -> None:
    plain = PackReader.open(packs.write(tmp_path / "p.a2pack", PAYLOADS))
    for views in ([plain.slice(7)] * 2, plain.slices([7, 7]), [plain.slice(7), *plain.slices([7])]):
        first, second = (np.frombuffer(view, np.uint8) for view in views)
        assert first.ctypes.data == second.ctypes.data
        assert not first.flags.writeable
        assert views[0].readonly
        with pytest.raises(TypeError):
            views[0][0] = 0


def test_kinds(pack: PackReader, tmp_path: Path) -> None:
    kinds = [pack.kind(i) for i in range(len(pack))]
    assert kinds == [f"v{runs.kind_of(payload)}" for payload in PAYLOADS]
    raw = packs.write(tmp_path / "raw", [b"a", b"b", RUN_V1], [16, 65535, 1])
    assert [PackReader.open(raw).kind(i) for i in range(3)] == ["raw:16", "raw:65535", "v1"]


def test_extract(pack: PackReader, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    paths = pack.extract([4, 0], folder)
    assert [path.read_bytes() for path in paths] == [PAYLOADS[4], PAYLOADS[0]]
    assert [Run.load(path).to_bytes() for path in paths] == [V2[4], V2[0]]
    assert [path.suffix for path in paths] == [
        {1: ".a2run", 2: ".a2run2"}[runs.kind_of(PAYLOADS[i])] for i in (4, 0)
    ]
    part = pack.where("run >= 100")
    assert part.extract([0], folder)[0].read_bytes() == PAYLOADS[100]
    assert len(list(folder.iterdir())) == 3
    raw = packs.write(tmp_path / "raw", [b"abc"], [16])
    assert PackReader.open(raw).extract([0], folder)[0].suffix == ".bin"


# Parts.


@given(fraction=st.floats(0, 1), seed=st.integers(0, 2**64 - 1))
@settings(max_examples=20)
def test_split(path: Path, fraction: float, seed: int) -> None:
    packed = PackReader.open(path)
    first, second = packed.split(fraction, seed)
    assert len(first) == round(fraction * len(packed))
    assert sorted([*first.numbers, *second.numbers]) == list(range(len(packed)))
    assert list(first.numbers) == sorted(first.numbers)
    again, _ = packed.split(fraction, seed)
    assert list(first.numbers) == list(again.numbers)
    assert as_v2(first) == [V2[i] for i in first.numbers]


def test_parts_count_their_own(pack: PackReader) -> None:
    part = pack.where("run < 20")
    want = reference.stats_of((runs.kind_of(payload), payload) for payload in PAYLOADS[:20])
    assert vars(part.stats)["total_steps"] == want.total_steps
    assert part.stats.p90_len == want.p90
    assert part.stats.engine_counts == dict(want.engine_counts or [])
    assert part.stats.count == len(part) == 20
    assert part.stored_bytes < pack.stored_bytes
    empty = pack.where("run < 0")
    assert len(empty) == 0
    assert list(empty) == list(empty.iter_batches(3, shuffle=True)) == []
    assert empty.stats.count == empty.stats.p99_len == 0
    assert empty.verify().ok
    assert [len(half) for half in empty.split(0.5)] == [0, 0]


# Closing.


def test_after_close(path: Path) -> None:
    packed = PackReader.open(path, checksums=False)
    part = packed.where("run < 5")
    view, runs_kept = packed.slice(3), packed.decode_batch([1, 2])
    packed.close()
    packed.close()
    assert bytes(view) == PAYLOADS[3]
    assert as_v2(runs_kept) == V2[1:3]
    assert as_v2(part) == V2[:5]
    for call in (
        lambda: packed.slice(3),
        lambda: packed.slices([3]),
        lambda: packed.decode(3),
        lambda: list(packed.iter_batches(2)),
        lambda: packed.where("run < 3"),
        lambda: packed.query("SELECT 1"),
        lambda: packed.runs,
        lambda: packed.split(0.5),
    ):
        with pytest.raises(ValueError, match="closed"):
            call()
    assert len(packed) == 150
    assert as_v2(pickle.loads(pickle.dumps(packed)))[:2] == V2[:2]


def test_close_unmaps_the_file(tmp_path: Path) -> None:
    path = packs.write(tmp_path / "closed.a2pack", PAYLOADS)
    packed = PackReader.open(path)
    list(packed)
    view = packed.slice(0)
    assert str(path) in Path("/proc/self/maps").read_text()
    packed.close()
    assert bytes(view) == PAYLOADS[0]
    del view
    gc.collect()
    assert str(path) not in Path("/proc/self/maps").read_text()


# Files that are not mapped.


def test_what_cannot_be_mapped_is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mapped = PackReader.open(path)

    def refuse(*_: Any, **options: Any) -> None:
        raise OSError(errno.ENODEV, "No such device")

    with monkeypatch.context() as patched:
        patched.setattr(mmap, "mmap", refuse)
        pack = PackReader.open(path)
    assert [p.describe().facts["memory"] for p in (mapped, pack)] == ["map", "read"]
    assert as_v2(pack) == V2
    assert pack.fingerprint == mapped.fingerprint
    assert pack.verify().ok
    assert len(pack.where("steps > 3")) == len(mapped.where("steps > 3"))
    assert as_v2(pickle.loads(pickle.dumps(PackReader.open(path, memory="read")))) == V2
    view, other = pack.slice(3), pack.slices([3, 4])
    pack.close()
    assert bytes(view) == bytes(other[0]) == PAYLOADS[3]
    assert view.readonly
    wrong: Any = "ram"
    with pytest.raises(ValueError, match="memory: expected 'map' or 'read', got 'ram'"):
        PackReader.open(path, memory=wrong)


def test_a_file_that_is_read_leaves_no_descriptor(path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    pack = PackReader.open(path, memory="read")
    part = pack.where("run < 5")
    pack.close()
    assert as_v2(part) == V2[:5]
    assert set(os.listdir("/proc/self/fd")) - before
    part.close()
    gc.collect()
    assert not set(os.listdir("/proc/self/fd")) - before


def test_a_file_that_is_cut_while_it_is_read(tmp_path: Path) -> None:
    path = packs.write(tmp_path / "p.a2pack", PAYLOADS)
    pack = PackReader.open(path, memory="read")
    os.truncate(path, 6000)
    for call in (lambda: pack.take([100]), lambda: pack.slice(100), lambda: list(pack)):
        with pytest.raises(FormatError, match=r"truncated: expected \d+ bytes, got 6000") as caught:
            call()
        assert (caught.value.path, caught.value.offset) == (str(path), 6000)


# Another pack.


def test_another_pack_is_not_taken_for_the_one_that_was_pickled(tmp_path: Path) -> None:
    path = packs.write(tmp_path / "p.a2pack", PAYLOADS[:24])
    whole = PackReader.open(path)
    kept = [pickle.dumps(whole), pickle.dumps(whole.split(0.5, seed=1)[0])]
    assert [len(pickle.loads(each)) for each in kept] == [24, 12]
    packs.write(path, PAYLOADS[24:48])
    for each in kept:
        with pytest.raises(FormatError, match="not the pack"):
            pickle.loads(each)


@pytest.mark.parametrize("recorded", [True, False])
def test_another_pack_whose_checksums_are_the_same(tmp_path: Path, recorded: bool) -> None:
    """Those of a run v1 are: it ends in one of its own. Others may have none."""
    body = bytes([*RUN_V1[:20], RUN_V1[20] ^ 1, *RUN_V1[21:-4]])
    other = body + runs.crc32c(body).to_bytes(4, "little")

    def written(*payloads: bytes) -> Path:
        path = tmp_path / "p.a2pack"
        if recorded:
            return packs.write(path, payloads)
        entries = [reference.Entry(16, payload) for payload in payloads]
        path.write_bytes(packs.without_checksums(reference.write_pack(entries)))
        return path

    kept = pickle.dumps(PackReader.open(written(RUN_V1, RUN_V1, RUN_V1)))
    assert len(pickle.loads(kept)) == 3
    written(RUN_V1, other, RUN_V1)
    with pytest.raises(FormatError, match="not the pack"):
        pickle.loads(kept)


def test_fields_of_the_head_are_read_without_the_steps(pack: PackReader) -> None:
    rows = [5, 0, 5, 149]
    whole = pack.take(rows)
    for names in (["max_score"], ["engine", "steps"], ["final_board"], ["steps", "boards"]):
        part = pack.columns(names).take(rows)
        assert list(part) == names
        for name in names:
            for got, want in zip(part[name], whole[name], strict=True):
                np.testing.assert_array_equal(got, want)


def test_description(pack: PackReader, tmp_path: Path) -> None:
    about = pack.describe()
    kinds = [f"v{runs.kind_of(payload)}" for payload in PAYLOADS]
    assert about.facts["kinds"] == {name: kinds.count(name) for name in ("v1", "v2")}
    assert sum(about.facts["codecs"].values()) == about.runs == 150
    assert (about.facts["version"], about.facts["align"]) == (pack.version, 64)
    assert about.facts["stored_bytes"] == pack.stored_bytes < about.bytes
    raw = PackReader.open(packs.write(tmp_path / "raw", [b"a", RUN_V1], [16, 1], align=8))
    assert raw.describe().facts["kinds"] == {"v1": 1, "raw:16": 1}
    assert PackReader.kind == pack.kind == "pack"


def test_what_verify_has_checked(pack: PackReader) -> None:
    whole, quick, part = pack.verify(), pack.verify(quick=True), pack.where("run < 9").verify()
    assert whole.ok and quick.ok and part.ok  # noqa: PT018
    assert "statistics" in whole.checked
    assert not whole.unchecked
    assert "statistics" in str(quick.unchecked)
    assert "9 of 9 entries" in str(part.checked)


@pytest.mark.parametrize("left", [1, 5000])
def test_a_file_that_is_cut_while_it_is_open(path: Path, tmp_path: Path, left: int) -> None:
    """An error from the next call on: to touch what is gone would end the process."""
    copy = tmp_path / "cut.a2pack"
    copy.write_bytes(path.read_bytes())
    pack = PackReader.open(copy)
    os.truncate(copy, left)
    calls: list[Callable[[], Any]] = [
        *(lambda: pack.take([149]), lambda: pack.decode(149), lambda: pack.decode_batch([149])),
        *(lambda: pack.slice(149), lambda: pack.slices([149]), lambda: pack.describe()),
        lambda: pack.where("steps > 2"),
        *(lambda: pack.query("SELECT sum(steps) FROM runs"), lambda: list(pack)),
    ]

    def look() -> list[str]:
        found = [str(problem) for problem in pack.verify().problems]
        for call in calls:
            with pytest.raises(FormatError) as caught:
                call()
            found.append(str(caught.value))
        return found

    size = path.stat().st_size
    assert set(in_fork(look)) == {
        f"truncated: expected {size} bytes, got {left} - at {copy}:{left}"
    }
