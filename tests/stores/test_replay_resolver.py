"""From references to arrays: of our files, of other programs', of files that are damaged."""

import json
import pickle
import shutil
import threading
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, strategies as st

from stepwell import ChecksumError, FormatError, StepwellError, VersionError, _core
from stepwell.replay import FrameRef, FrameResolver, ReplayWriter
from tests import children, scaled
from tests.reference.replay import read_store, write_seed_file
from tests.replays import (
    assert_tree,
    camera,
    flipped,
    frame,
    observation,
    places_of,
    record,
    record_all,
)

# References.


@pytest.mark.parametrize(
    "text",
    [
        *("", "h5://run/frames", "h5://run/frames/", "h5://run/frames/-1", "h5://run/frames/1 "),
        *("h5://run/frames/1\n", " h5://run/frames/1", "h5://run//1", "h5://../frames/1"),
        *("h5://.b/frames/1", "h5://a/b/c/1", "h5:///frames/1", "http://run/frames/1"),
        *("h5://run/frames/1.0", "h5://run/frames/\u0663", "h5://run/frames/" + "9" * 19),
        "h5://" + "x" * 129 + "/frames/1",
        "h5://run/fra\0mes/1",
    ],
)
def test_what_is_no_reference(quick_path: Path, text: str) -> None:
    assert FrameRef.parse(text) is None
    with FrameResolver(quick_path) as resolver:
        assert resolver.resolve(text) is None
        with pytest.raises(FormatError, match="expected h5://run_id/dataset/index, got"):
            resolver.resolve(text, missing="raise")


def test_references_that_lead_nowhere(quick_path: Path) -> None:
    record_all(quick_path, "run", range(10))
    nowhere: list[tuple[str, type[Exception]]] = [
        ("h5://other/frames/0", FileNotFoundError),
        ("h5://run/pictures/0", KeyError),
        ("h5://run/frames/4", IndexError),
        ("h5://run/frames/999999999999999999", IndexError),
        ("h5://run/observations/10", IndexError),
    ]
    with FrameResolver(quick_path) as resolver:
        for text, error in nowhere:
            assert resolver.resolve(text) is None
            with pytest.raises(error, match=r"at |No such file"):
                resolver.resolve(text, missing="raise")
        mixed = ["h5://run/frames/3", None, "h5://run/frames/4", "x", "h5://run/frames/0"]
        found = resolver.resolve_batch(mixed)
        for got, number in zip(found, [9, None, None, None, 0], strict=True):
            assert_tree(got, None if number is None else frame(number))
        wrong: Any = "perhaps"
        with pytest.raises(ValueError, match="missing: expected"):
            resolver.resolve("h5://run/frames/0", missing=wrong)


def test_batches_in_any_order(quick_path: Path) -> None:
    for run in range(3):
        record_all(quick_path, f"run{run}", range(run * 100, run * 100 + 30))
    random = np.random.default_rng(1)
    chosen = [(int(a), int(b)) for a, b in random.integers(0, (3, 30), (200, 2))]
    with FrameResolver(quick_path, open_files=1) as resolver:
        refs = [f"h5://run{run}/observations/{row}" for run, row in chosen]
        for got, (run, row) in zip(resolver.resolve_batch(refs), chosen, strict=True):
            assert_tree(got, observation(run * 100 + row))
        again = pickle.loads(pickle.dumps(resolver))
        assert_tree(again.resolve(refs[0]), observation(chosen[0][0] * 100 + chosen[0][1]))
        again.close()
    with pytest.raises(ValueError, match="open_files"):
        FrameResolver(quick_path, open_files=0)


def test_threads_and_forks_at_once(quick_path: Path) -> None:
    record_all(quick_path, "a", range(30))
    record_all(quick_path, "b", range(30))
    over = threading.Event()
    with FrameResolver(quick_path, open_files=1) as resolver:

        def look(seed: int) -> bool:
            random = np.random.default_rng(seed)
            for _ in range(20):
                run, row = "ab"[random.integers(2)], int(random.integers(30))
                assert_tree(resolver.resolve(f"h5://{run}/observations/{row}"), observation(row))
            return True

        def work(seed: int) -> None:
            while not over.is_set():
                look(seed)

        with ThreadPoolExecutor(4) as pool:
            looks = pool.map(work, range(4))
            try:
                for seed in range(scaled(20, smallest=5)):
                    assert children.in_fork(partial(look, seed))
            finally:
                over.set()
            list(looks)


# Files of other programs.


@pytest.mark.parametrize("stated", [None, "run"])
def test_a_file_as_it_was_before(quick_path: Path, stated: str | None) -> None:
    frames = np.array([frame(n) for n in range(40)])
    poses = np.random.default_rng(2).normal(size=(40, 3))
    write_seed_file(
        quick_path / "run.h5", {"frames": frames, "observations": poses, "tree/a": poses}, stated
    )
    with FrameResolver(quick_path) as resolver:
        for row in (0, 15, 16, 39):
            assert_tree(resolver.resolve(f"h5://run/frames/{row}"), frame(row))
            assert_tree(resolver.resolve(f"h5://run/observations/{row}"), poses[row])
            assert_tree(resolver.resolve(f"h5://run/tree/{row}"), {"a": poses[row]})
        refs = [f"h5://run/frames/{row}" for row in (7, 3, 7, 39, 0)]
        for got, row in zip(resolver.resolve_batch(refs), (7, 3, 7, 39, 0), strict=True):
            assert_tree(got, frame(row))
        assert resolver.resolve("h5://run/frames/40") is None
        assert resolver.resolve("h5://run/nothing/0") is None
        with pytest.raises(IndexError, match="40"):
            resolver.resolve("h5://run/frames/40", missing="raise")
        with pytest.raises(KeyError):
            resolver.resolve("h5://run/nothing/0", missing="raise")


def test_a_file_that_leads_to_another(quick_path: Path) -> None:
    """Links, virtual datasets and raw data elsewhere would let a file read what it names."""
    (quick_path / "secret").write_bytes(b"secret" * 100)
    with h5py.File(quick_path / "outside.h5", "w") as file:
        file["frames"] = np.zeros((3, 4, 4), np.uint8)
        file["group/frames"] = np.zeros((3, 4, 4), np.uint8)
    with h5py.File(quick_path / "run.h5", "w") as file:
        file["linked"] = h5py.ExternalLink(str(quick_path / "outside.h5"), "/frames")
        file["group"] = h5py.ExternalLink(str(quick_path / "outside.h5"), "/group")
        layout = h5py.VirtualLayout((3, 4, 4), np.uint8)
        layout[:] = h5py.VirtualSource(str(quick_path / "outside.h5"), "frames", (3, 4, 4))
        file.create_virtual_dataset("virtual", layout)
        file.create_dataset("raw", (6, 100), "u1", external=[(str(quick_path / "secret"), 0, 600)])
        file["soft"] = h5py.SoftLink("/own")
        file["own"] = np.arange(3)
    with FrameResolver(quick_path) as resolver:
        for name in ("linked", "group", "virtual", "raw"):
            for missing in ("none", "raise"):
                with pytest.raises(FormatError, match="leads to another file"):
                    resolver.resolve(f"h5://run/{name}/0", missing=missing)
        assert resolver.resolve("h5://run/soft/1") == 1


def test_not_hdf5(quick_path: Path) -> None:
    (quick_path / "text.h5").write_text("not HDF5")
    (quick_path / "empty.h5").touch()
    (quick_path / "folder.h5").mkdir()
    with FrameResolver(quick_path) as resolver:
        for name in ("text", "empty"):
            with pytest.raises(FormatError, match="HDF5"):
                resolver.resolve(f"h5://{name}/frames/0")
        with pytest.raises(FormatError, match="got a folder"):
            resolver.resolve("h5://folder/frames/0")


def test_the_file_of_another_run(quick_path: Path) -> None:
    record_all(quick_path, "run", range(3))
    folder = quick_path / "replay"
    shutil.copy(folder / "run.h5", folder / "other.h5")
    write_seed_file(folder / "seed.h5", {"frames": np.zeros((3, 2, 2), np.uint8)}, "run")
    with FrameResolver(quick_path) as resolver:
        for name in ("other", "seed"):
            with pytest.raises(FormatError, match=f"expected the run '{name}', got 'run'"):
                resolver.resolve(f"h5://{name}/frames/0")


# Files that grow and are replaced.


def test_rows_that_were_never_committed_are_forgotten(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer ended between its arrays and its transaction; the next one writes other rows there,
    into a copy of the file, and who has the first one open must not read those of the first."""
    script = """
import os, sys
from stepwell.replay import ReplayWriter
from stepwell.stores.replay.database import Database
from tests.replays import record
writer = ReplayWriter(sys.argv[1], "run", flush_every=1000)
for number in range(5):
    record(writer, number)
writer.commit()
Database.commit = lambda *_: os._exit(0)
for number in range(100, 110):
    record(writer, number)
writer.commit()
"""
    children.answer(script, quick_path)
    with FrameResolver(quick_path) as resolver:
        file = resolver.file("run")
        assert file.length("observations/camera") == 15  # and nobody has been told of ten of them
        assert_tree(resolver.resolve("h5://run/observations/4"), observation(4))
        assert_tree(resolver.resolve("h5://run/observations/5"), observation(100))
        with ReplayWriter(quick_path, "run", mode="a") as writer:
            for number in range(5, 12):
                record(writer, number)
            writer.commit()
            for number in range(12):
                assert_tree(
                    resolver.resolve(f"h5://run/observations/{number}"), observation(number)
                )
            assert resolver.resolve("h5://run/observations/12") is None


def test_references_before_they_are_committed(quick_path: Path) -> None:
    """Nothing, or the right array; whatever the writer is doing."""
    seen = 0
    with (
        ReplayWriter(quick_path, "run", flush_every=0.001, queue_bytes=100_000) as writer,
        FrameResolver(quick_path) as resolver,
    ):
        pending: list[tuple[int, str]] = []
        for number in range(scaled(400, smallest=100)):
            if number == 200:
                record(writer, number, observation=None)
                continue
            pending.append((number, record(writer, number).obs_ref))
            for expected, ref in (*pending[-3:], *pending[::29]):
                found = resolver.resolve(ref)
                if found is not None:
                    seen += 1
                    assert_tree(found, observation(expected))
        writer.commit()
        for expected, ref in pending:
            assert_tree(resolver.resolve(ref), observation(expected))
    assert seen > 0


# Damage.


@pytest.fixture(scope="module", params=["zstd", "gzip", "lzf", "none"])
def damaged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("damaged")
    record_all(root, "run", range(24), compress=request.param)
    return root


def look(root: Path) -> tuple[int, int]:
    """How many arrays of the run are right, how many refused. Others fail."""
    right = refused = 0
    with FrameResolver(root) as resolver:
        for row in range(24):
            calls: list[tuple[str, Callable[[], Any]]] = [
                (f"h5://run/observations/{row}", partial(observation, row)),
                (f"h5://run/frames/{row}", partial(frame, 3 * row)),
                (f"h5://run/actions/{row}", partial(np.int64, row)),
            ]
            for ref, want in calls if row < 8 else calls[::2]:
                try:
                    found = resolver.resolve(ref, missing="raise")
                except (StepwellError, KeyError, IndexError):
                    refused += 1
                else:
                    assert_tree(found, want())
                    right += 1
    return right, refused


def test_flipped_bytes(damaged: Path) -> None:
    path = damaged / "replay" / "run.h5"
    size = path.stat().st_size
    assert look(damaged) == (56, 0)
    random = np.random.default_rng(3)
    places = {*range(0, 200, 7), *random.integers(0, size, scaled(100, 30)).tolist()}
    hurt = 0
    for place in sorted(places):
        with flipped(path, place, int(random.choice([1, 0x80, 0xFF]))):
            hurt += look(damaged)[1] > 0
    assert hurt > 20


def test_files_that_were_cut(damaged: Path) -> None:
    path = damaged / "replay" / "run.h5"
    data = path.read_bytes()
    lengths = np.random.default_rng(4).integers(0, len(data), scaled(60, 20)).tolist()
    for length in [0, 1, 16, 60, 4095, 4096, 4097, len(data) - 1, *lengths]:
        path.write_bytes(data[:length])
        look(damaged)
    path.write_bytes(data)


def test_a_flipped_byte_in_each_stored_row(quick_path: Path) -> None:
    """Every row of every array: exactly that row is refused, by its name."""
    record_all(quick_path, "run", range(12))
    path = quick_path / "replay" / "run.h5"
    places = places_of(path, ["observations/camera", "frames", "observations/inner/(0)", "actions"])
    for name, rows in places.items():
        for row, (offset, size) in enumerate(rows):
            with flipped(path, offset + size // 2, 4), FrameResolver(quick_path) as resolver:
                kind = name.split("/")[0]
                for other in range(len(rows)):
                    ref = f"h5://run/{kind}/{other}"
                    if other != row:
                        resolver.resolve(ref, missing="raise")
                        continue
                    with pytest.raises(ChecksumError) as caught:
                        resolver.resolve(ref, missing="raise")
                    assert f"{name}[{row}]" in str(caught.value)
                    assert caught.value.path == str(path)


def rewritten(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """The same file, but for its directory, whose sum is right."""
    data = path.read_bytes()
    line, _, rest = data.partition(b"\n")
    stated = json.loads(rest[: int(line.split()[-1])])
    base = stated["base"]
    text = json.dumps(change(stated) or stated).encode()
    crc = _core.crc32c(np.frombuffer(text, np.uint8))
    head = b"STEPWELL REPLAY 1 %08x %d\n" % (crc, len(text)) + text
    assert len(head) <= base
    path.write_bytes(head.ljust(base, b"\0") + data[base:])


def _frames(**values: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda stated: stated["datasets"]["frames"].update(values)


LIES: list[Callable[[dict[str, Any]], Any]] = [
    lambda stated: [3],
    lambda stated: {"run_id": "run"},
    lambda stated: stated.update(base=0),
    lambda stated: stated.update(base=-4096),
    lambda stated: stated.update(base=10**15),
    lambda stated: stated.update(base=5000),
    lambda stated: stated.update(base=float("inf")),
    lambda stated: stated.update(datasets=[]),
    lambda stated: stated.update(datasets={"frames": 3}),
    _frames(header=-1),
    _frames(header=2**63),
    _frames(header=10**30),
    _frames(header=0),
    _frames(dtype="|O"),
    _frames(dtype="|S5"),
    _frames(dtype="nonsense"),
    _frames(dtype="<f8"),
    _frames(shape=[-20, -25, 3]),
    _frames(shape=[2**33, 2**33]),
    _frames(shape=[0]),
    _frames(shape=[20, 25]),
    _frames(shape=[2**20, 100]),
    _frames(chunk_rows=0),
    _frames(chunk_rows=2**40),
    _frames(chunk_rows=7),
    _frames(planes=3),
    _frames(planes=3, shape=[20, 75]),
    _frames(codec="gzip"),
    _frames(codec="none"),
    _frames(codec="unheard of"),
]


@pytest.mark.parametrize("number", range(len(LIES)))
def test_a_directory_that_lies(quick_path: Path, number: int) -> None:
    record_all(quick_path, "run", range(4))
    path = quick_path / "replay" / "run.h5"
    rewritten(path, LIES[number])
    with FrameResolver(quick_path) as resolver, pytest.raises(FormatError) as caught:
        resolver.resolve_batch([f"h5://run/frames/{row}" for row in range(2)], missing="raise")
    assert caught.value.path == str(path)


def test_a_newer_file(quick_path: Path) -> None:
    record_all(quick_path, "run", range(4))
    path = quick_path / "replay" / "run.h5"
    path.write_bytes(path.read_bytes().replace(b"REPLAY 1 ", b"REPLAY 2 ", 1))
    with FrameResolver(quick_path) as resolver, pytest.raises(VersionError, match="got 2"):
        resolver.resolve("h5://run/frames/0")


def test_a_small_chunk_that_unpacks_to_much(quick_path: Path) -> None:
    """gzip would make a lot of it, were it not told how much there may be."""
    bomb = zlib.compress(bytes(20 << 20), 9)
    with ReplayWriter(quick_path, "run", compress="gzip") as writer:
        seen = np.random.default_rng(5).integers(0, 100, 400_000, np.uint8)
        writer.record_step(reward=0, observation=seen)
    path = quick_path / "replay" / "run.h5"
    ((offset, size),) = places_of(path, ["observations"])["observations"]
    ((sum_at, _),) = places_of(path, ["checksums/observations"])["checksums/observations"]
    assert size > len(bomb)
    stored = bomb.ljust(size, b"\0")
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(stored)
        file.seek(sum_at)
        file.write(_core.crc32c(np.frombuffer(stored, np.uint8)).to_bytes(4, "little"))
    with (
        FrameResolver(quick_path) as resolver,
        pytest.raises(FormatError, match=r"observations\[0\]: .*more than the expected 400000"),
    ):
        resolver.resolve("h5://run/observations/0", missing="raise")


def test_the_root_or_the_folder_of_files(quick_path: Path) -> None:
    record_all(quick_path, "run", range(2))
    for root in (quick_path, quick_path / "replay", str(quick_path)):
        with FrameResolver(root) as resolver:
            assert_tree(resolver.resolve("h5://run/observations/1"), observation(1))
    assert read_store(quick_path).runs["run"].row["file"] == "run.h5"


def test_without_hdf5(quick_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our files are never read through HDF5."""
    record_all(quick_path, "run", range(5))
    monkeypatch.setattr(h5py, "File", None)
    with FrameResolver(quick_path) as resolver:
        assert_tree(resolver.resolve("h5://run/observations/1")["camera"], camera(1))


@given(packed=st.binary(max_size=200), size=st.integers(1, 400))
def test_lzf_of_any_bytes(packed: bytes, size: int) -> None:
    """Exactly as many bytes as there should be, or an error."""
    out = np.full(size + 16, 0xA5, np.uint8)
    with suppress(FormatError):
        _core.unpack_lzf(np.frombuffer(packed, np.uint8), out[:size])
    assert (out[size:] == 0xA5).all()
