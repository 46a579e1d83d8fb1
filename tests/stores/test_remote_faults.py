"""Stores below a URL when something goes wrong: an error that says so, or the right rows."""

import errno
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pytest
from numpy.typing import NDArray
from obstore.store import MemoryStore

import stepwell as sw
from stepwell import ChecksumError, FetchError, FormatError, KindError, StepReader, StepWriter
from tests import children, packs, records, runs
from tests.buckets import KEYS, Bucket
from tests.contract import assert_array
from tests.proxy import changed, cut, dropped, short, status, times
from tests.test_cli import stepwell

ROW = np.dtype([("x", "<i8"), ("y", "<f4", (30,))])
COUNT = 2000


def rows_of(count: int) -> NDArray[Any]:
    made = np.zeros(count, ROW)
    made["x"] = np.arange(count)
    made["y"] = np.random.default_rng(0).random((count, 30))
    return made


ROWS = rows_of(COUNT)


def write(path: Path, rows: NDArray[Any], **options: Any) -> Path:
    with StepWriter(path, ROW, mode="a", **options) as writer:
        for at in range(0, len(rows), 100):
            writer.append(rows[at : at + 100])
    return path


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory, server: Bucket) -> Path:
    folder = tmp_path_factory.mktemp("faults")
    write(folder / "steps", ROWS)
    records.build(folder / "records", range(60), "zstd")
    packs.write(folder / "runs.a2pack", [runs.RUN_V1, runs.RUN_V2] * 100, align=1)
    np.save(folder / "a.npy", ROWS)
    server.upload(folder, "faults")
    return folder


STORES = ["steps", "records", "runs.a2pack", "a.npy"]
DATA = {"steps": "steps.npy", "records": "chunk/0.zr", "runs.a2pack": ".a2pack", "a.npy": ".npy"}


def opened(s3: Bucket, name: str = "steps", **options: Any) -> Any:
    return sw.open(s3.url(f"faults/{name}"), **{**s3.options, **options})


def check(source: Any, rows: Any) -> None:
    batch = source.take(rows)
    assert_array(batch["x"], ROWS["x"][rows])
    assert_array(batch["y"], ROWS["y"][rows])


# The bucket.


@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize("fault", [status(503), status(500), cut, short, dropped])
def test_what_passes_is_tried_again(folder: Path, s3: Bucket, name: str, fault: Any) -> None:
    here, far = sw.open(folder / name), opened(s3, name)
    s3.proxy.fault = times(2, fault, of=DATA[name])
    rows = np.arange(0, len(here), 7)
    found, want = far.take(rows), here.take(rows)
    assert {n: repr(v) for n, v in found.items()} == {n: repr(v) for n, v in want.items()}


@pytest.mark.parametrize("name", STORES)
def test_a_bucket_that_refuses(s3: Bucket, name: str) -> None:
    s3.proxy.fault = times(None, status(403))
    with pytest.raises(FetchError, match=r"403|privileges") as caught:
        opened(s3, name)
    assert caught.value.url.startswith(s3.url("faults"))
    s3.proxy.fault = None
    far = opened(s3, name)
    s3.proxy.fault = times(None, status(403))  # the keys have expired
    with pytest.raises(FetchError, match=r"403|privileges"):
        far.take([1, 30])
    s3.proxy.fault = None
    assert len(far.take([1, 30])) == len(far.schema)


def test_credentials_that_are_missing(s3: Bucket, tmp_path: Path) -> None:
    script = (
        "import sys, stepwell as sw\n"
        "try: sw.open(sys.argv[1], endpoint=sys.argv[2], region='us-east-1')\n"
        "except sw.FetchError as error: print(error)"
    )
    url, empty = s3.url("faults/steps"), {"HOME": str(tmp_path), "AWS_CONFIG_FILE": ""}
    said = children.answer(script, url, s3.proxy.url, env=empty)
    assert said.startswith("no credentials: expected AWS_ACCESS_KEY_ID")


@pytest.mark.parametrize(
    ("name", "text"), [("absent", "metadata.db (a step dataset)"), ("text.txt", "b'hello'")]
)
def test_nothing_of_ours(s3: Bucket, tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / "text.txt").write_text("hello")
    s3.upload(tmp_path, "faults")
    with pytest.raises(KindError) as caught:
        opened(s3, name)
    assert text in str(caught.value)
    assert caught.value.path == s3.url(f"faults/{name}")


def test_another_kind(s3: Bucket) -> None:
    with pytest.raises(KindError, match=r"expected a step dataset, found no metadata\.db"):
        StepReader.open(s3.url("faults/records"), **s3.options)
    with pytest.raises(KindError, match=r"expected a record store, found no meta\.json"):
        sw.RecordReader.open(s3.url("faults/steps"), **s3.options)
    with pytest.raises(FormatError, match="expected magic"):
        sw.PackReader.open(s3.url("faults/a.npy"), **s3.options)
    with pytest.raises(FormatError, match="expected magic"):
        sw.ArraySource.open(s3.url("faults/runs.a2pack"), **s3.options)
    for cls in (sw.PackReader, sw.ArraySource):
        with pytest.raises(FileNotFoundError):
            cls.open(s3.url("faults/absent.x"), **s3.options)


@pytest.mark.parametrize("name", STORES)
def test_objects_that_change(folder: Path, s3: Bucket, tmp_path: Path, name: str) -> None:
    copy = tmp_path / "changes" / name
    copy.parent.mkdir()
    (shutil.copytree if (folder / name).is_dir() else shutil.copy)(folder / name, copy)
    s3.upload(tmp_path, "faults")
    far = opened(s3, f"changes/{name}")
    far.take([0])
    kept = pickle.dumps(far)
    for path in [copy] if copy.is_file() else list(copy.rglob("*")):
        if str(path).endswith(DATA[name]):
            data = bytearray(path.read_bytes())
            data[-1] ^= 1
            path.write_bytes(data)
    s3.upload(tmp_path, "faults")
    with pytest.raises(FormatError, match="was replaced or removed while it was open") as caught:
        far.take(np.arange(len(far)))
    assert str(caught.value.path).startswith(s3.url(f"faults/changes/{name}"))
    with pytest.raises(FormatError, match=r"replaced|zero bytes"):
        pickle.loads(kept)
    assert not far.verify().ok
    if name == "a.npy":
        assert far.refresh()
        assert not far.refresh()
        assert len(far.take(np.arange(len(far)))["x"]) == COUNT


def test_a_server_that_ignores_conditions(folder: Path) -> None:
    """Answers are compared, too: here by ETags that are no reason to refuse a request."""
    store = MemoryStore()
    for path in (folder / "steps").iterdir():
        obstore.put(store, path.name, path.read_bytes())
    far = StepReader.open(store)
    mirror = far._far.mirror  # type: ignore[union-attr]
    file = mirror.array("steps.npy")
    file.about = file.about._replace(mark="another")
    with pytest.raises(FormatError, match="expected another of"):
        far.take([0])


@pytest.mark.parametrize("name", STORES)
def test_truncated_objects(folder: Path, s3: Bucket, tmp_path: Path, name: str) -> None:
    copy = tmp_path / "cut" / name
    copy.parent.mkdir()
    (shutil.copytree if (folder / name).is_dir() else shutil.copy)(folder / name, copy)
    for path in [copy] if copy.is_file() else list(copy.rglob("*")):
        if str(path).endswith(DATA[name]):
            os.truncate(path, path.stat().st_size // 2)
    s3.upload(tmp_path, "faults")
    with pytest.raises(FormatError, match="truncated") as caught:
        opened(s3, f"cut/{name}").take([len(sw.open(folder / name)) - 1])
    assert str(caught.value.path).startswith(s3.url(f"faults/cut/{name}"))


@pytest.mark.parametrize("name", STORES[:3])
def test_bytes_that_change_on_the_way(folder: Path, s3: Bucket, name: str) -> None:
    here, far = sw.open(folder / name), opened(s3, name)
    rows = np.arange(len(here))  # whichever byte it is, some row has it
    s3.proxy.fault = times(1, changed, of=DATA[name])
    found, want = far.take(rows), here.take(rows)
    assert {n: repr(v) for n, v in found.items()} == {n: repr(v) for n, v in want.items()}
    far = opened(s3, name, window_bytes=4096)
    far.take([len(here) - 1])
    s3.proxy.fault = times(None, changed, of=DATA[name])
    with pytest.raises(FormatError) as caught:
        far.take(rows)
    assert str(caught.value.path).startswith(s3.url(f"faults/{name}"))
    assert caught.value.offset is not None
    s3.proxy.fault = None
    found = far.take(rows)
    assert {n: repr(v) for n, v in found.items()} == {n: repr(v) for n, v in want.items()}


@pytest.mark.parametrize("fault", [cut, changed])
def test_what_came_right_is_not_asked_for_again(s3: Bucket, tmp_path: Path, fault: Any) -> None:
    rows = np.arange(1 << 18)
    with StepWriter(tmp_path / "long", [("x", "<i8")]) as writer:
        writer.append({"x": rows})
    far = sw.open(s3.upload(tmp_path / "long", "long"), **s3.options)
    s3.proxy.forget()
    s3.proxy.fault = times(1, fault, of="steps.npy")
    assert_array(far.take(rows)["x"], rows)
    first, second = s3.proxy.asked_for("steps.npy")
    assert second.end == first.end
    assert first.begin + first.size // 4 <= second.begin <= first.begin + first.size // 2


def test_checksums_that_change_on_the_way(s3: Bucket) -> None:
    far = opened(s3)
    s3.proxy.fault = times(2, changed, of="steps.crc")
    check(far, np.arange(500))


def test_damage_in_the_bucket(folder: Path, s3: Bucket, tmp_path: Path) -> None:
    path = tmp_path / "damaged"
    shutil.copytree(folder / "steps", path)
    at = 100_000
    with (path / "steps.npy").open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 4]))
    s3.upload(path, "faults/damaged")
    url = s3.url("faults/damaged/steps.npy")
    some: dict[str, Any]
    for some in ({}, {"memory": "ram"}):
        with pytest.raises(ChecksumError) as caught:
            opened(s3, "damaged", **some).take([at // ROW.itemsize])
        assert caught.value.path == url
        assert caught.value.offset is not None
        assert caught.value.offset <= at < caught.value.offset + 4096
    far = opened(s3, "damaged")
    check(far, np.arange(100))
    (problem,) = far.verify().problems
    assert (problem.path, problem.offset) == (url, caught.value.offset)
    with opened(s3, "damaged", checksums=False) as unchecked:
        assert len(unchecked.take(np.arange(COUNT))["x"]) == COUNT


def test_a_writer_that_was_open(folder: Path, s3: Bucket, tmp_path: Path) -> None:
    shutil.copytree(folder / "steps", tmp_path / "wal")
    (tmp_path / "wal" / "metadata.db-wal").write_bytes(b"frames")
    s3.upload(tmp_path, "faults")
    with pytest.raises(FormatError, match="uploaded while its writer was open; close the writer"):
        opened(s3, "wal")
    (tmp_path / "wal" / "metadata.db-wal").write_bytes(b"")
    s3.upload(tmp_path, "faults")
    check(opened(s3, "wal"), [5, 3])


def test_a_dataset_that_grows(s3: Bucket, tmp_path: Path) -> None:
    for options in ({}, {"shard_rows": 300}):
        name = f"grows-{len(options)}"
        write(tmp_path / name, ROWS[:1000], **options)
        s3.upload(tmp_path, "faults")
        far = opened(s3, name, cache=tmp_path / "cache")
        check(far, np.arange(1000))
        part = far.where("id < 3")
        write(tmp_path / name, ROWS[1000:], **options)
        s3.upload(tmp_path, "faults")
        s3.proxy.forget()
        assert far.refresh()
        assert not far.refresh()
        assert len(part) == 300
        check(far, np.arange(COUNT))
        if options:  # shards that are as they were are not fetched again
            assert not s3.proxy.asked_for("steps_00000")


# This machine.


def failing(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def refuse(*args: Any) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "pwrite", refuse)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EFBIG])
def test_a_full_disk(s3: Bucket, tmp_path: Path, code: int) -> None:
    for cache in (None, tmp_path / "cache"):
        far = opened(s3, cache=cache)
        with pytest.MonkeyPatch.context() as patch:
            failing(patch, code)
            with pytest.raises(OSError, match="no room for what comes from the bucket") as caught:
                far.take([7])
            assert caught.value.errno == code
        check(far, np.arange(50))


WORK = """
import sys, numpy as np, stepwell as sw
url, endpoint, cache, size, seed = sys.argv[1:]
keys = dict(region="us-east-1", access_key_id="test", secret_access_key="test")
far = sw.open(url, endpoint=endpoint, cache=cache, cache_bytes=int(size), **keys)
random = np.random.default_rng(int(seed))
for _ in range(12):
    rows = random.integers(0, len(far), 40)
    assert (far.take(rows)["x"] == rows).all()
print(far._units().statistics.requests)
"""


def test_two_processes_on_one_cache(s3: Bucket, tmp_path: Path) -> None:
    """One that is far too small: they drop each other's units all the time."""
    url = s3.url("faults/steps")

    def work(seed: int) -> Callable[[], str]:
        given = (url, s3.proxy.url, tmp_path / "c", str(40_000), str(seed))
        return lambda: children.answer(WORK, *given)

    children.at_once(work(1), work(2))
    s3.proxy.forget()
    check(opened(s3, cache=tmp_path / "c"), np.arange(COUNT))


def test_a_cache_outlives_its_process(s3: Bucket, tmp_path: Path) -> None:
    far = opened(s3, cache=tmp_path / "c")
    check(far, np.arange(COUNT))
    s3.proxy.forget()
    again = opened(s3, cache=tmp_path / "c")
    check(again, np.arange(COUNT)[::-1])
    assert not s3.proxy.asked_for("steps.npy")
    assert not [each for each in s3.proxy.asked_for("metadata.db") if each.method == "GET"]


def test_junk_in_a_cache(s3: Bucket, tmp_path: Path) -> None:
    """As a power cut leaves it: the index is there, the bytes are not."""
    check(opened(s3, cache=tmp_path / "c"), np.arange(COUNT))
    (path,) = (tmp_path / "c").rglob("steps.npy")
    with path.open("r+b") as file:
        file.seek(3 * 4096)
        file.write(bytes(5 * 4096))
    (database,) = (tmp_path / "c").rglob("metadata.db")
    database.write_bytes(bytes(database.stat().st_size))
    s3.proxy.forget()
    check(opened(s3, cache=tmp_path / "c"), np.arange(COUNT))
    assert s3.proxy.asked_for("metadata.db")
    assert [each.size for each in s3.proxy.asked_for("steps.npy") if each.size] == [5 * 4096]
    for path in (tmp_path / "c").rglob("*.units"):
        path.write_bytes(b"nonsense" * 1000)
    check(opened(s3, cache=tmp_path / "c"), np.arange(COUNT))


@pytest.mark.parametrize("name", ["steps.npy", "steps.npy.units", "metadata.db", "mirror.lock", ""])
def test_links_in_a_cache(s3: Bucket, tmp_path: Path, name: str) -> None:
    check(opened(s3, cache=tmp_path / "c"), [1])
    (found,) = (tmp_path / "c").iterdir()
    outside = tmp_path / "outside"
    if name:
        outside.write_bytes(b"mine")
        (found / name).unlink()
        (found / name).symlink_to(outside)
    else:
        found.rename(outside)
        found.symlink_to(outside)
    before = sorted(tmp_path.rglob("*")), outside.is_file() and outside.read_bytes()
    with pytest.raises(FormatError, match="a link"):
        opened(s3, cache=tmp_path / "c").take([1])
    assert (sorted(tmp_path.rglob("*")), outside.is_file() and outside.read_bytes()) == before


def test_a_cache_makes_room(s3: Bucket, tmp_path: Path) -> None:
    options: dict[str, Any] = {"cache": tmp_path / "c", "cache_bytes": 150_000}
    with opened(s3, "a.npy", **options) as other:
        check(other, np.arange(COUNT))
    del other
    far = opened(s3, **options)
    check(far, np.arange(COUNT))
    check(far, np.arange(COUNT)[::-1])
    held = sum(p.stat().st_blocks * 512 for p in (tmp_path / "c").rglob("*.npy"))
    assert held <= 150_000 + 8192


def test_a_killed_process_leaves_nothing_for_long(folder: Path, s3: Bucket) -> None:
    script = (
        "import os, signal, sys, stepwell as sw\n"
        "far = sw.open('file://' + sys.argv[1])\n"
        "far.take([5])\n"
        "print(far._far.mirror.root, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    left = Path(children.python(script, folder / "steps").stdout.strip())
    assert (left / "steps.npy").exists()
    far = opened(s3)
    root = far._far.mirror.root
    assert not left.exists()
    assert root.exists()
    assert root.parent == left.parent
    far.close()
    del far
    assert not root.exists()


@pytest.mark.parametrize("name", STORES)
def test_a_web_server(folder: Path, s3: Bucket, name: str) -> None:
    here, far = sw.open(folder / name), sw.open(s3.http_url(f"faults/{name}"))
    rows = np.arange(len(here))[::-3]
    found, want = far.take(rows), here.take(rows)
    assert {n: repr(v) for n, v in found.items()} == {n: repr(v) for n, v in want.items()}
    assert far.verify().ok
    assert not far.refresh()


@pytest.mark.parametrize("name", STORES)
def test_commands(
    folder: Path, s3: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.proxy.url)
    for key, value in KEYS.items():
        monkeypatch.setenv(f"AWS_{key.upper()}", value)
    url = s3.url(f"faults/{name}")
    for verb in ("info", "head", "verify"):
        far, here = stepwell(verb, url), stepwell(verb, folder / name)
        assert (far.returncode, far.stderr) == (0, here.stderr)
        if verb == "head":
            assert far.stdout == here.stdout
    if name in ("steps", "runs.a2pack"):
        far = stepwell("query", url, "SELECT count(*) FROM runs")
        assert far.stdout == stepwell("query", folder / name, "SELECT count(*) FROM runs").stdout
    if name != "runs.a2pack":
        field = "x" if name == "records" else "y"
        done = stepwell("convert", url, tmp_path / "out", "--to", "shards", "--field", field)
        assert done.returncode == 0, done.stderr
        assert len(sw.open(tmp_path / "out")) == len(sw.open(folder / name))


def test_options(s3: Bucket, folder: Path) -> None:
    for name, text in (("connections", "at least 1"), ("window_bytes", "at least 4096")):
        with pytest.raises(ValueError, match=f"{name}: expected {text}"):
            opened(s3, **dict[str, Any]({name: 0}))
    with pytest.raises(ValueError, match=r"memory='shared': only for what is on this machine"):
        opened(s3, memory="shared")
    for store in ("steps", "records", "runs.a2pack", "a.npy"):
        with pytest.raises(TypeError, match="window_bytes: only for what is in a bucket"):
            sw.open(folder / store, window_bytes=1 << 20)
