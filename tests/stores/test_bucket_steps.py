"""Step datasets that are written in a bucket: commits, conflicts, and what goes wrong."""

import json
import pickle
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pytest
from obstore.store import MemoryStore

import stepwell as sw
from stepwell import (
    BusyError,
    ChecksumError,
    FetchError,
    FormatError,
    SchemaError,
    StepReader,
    StepWriter,
    VersionError,
)
from stepwell.cleaning import clean
from stepwell.files import commit as commit_module
from stepwell.stores.steps.dataset import DOCUMENT, Dataset
from tests import steps
from tests.bucket_writers import (
    COLUMNS,
    STEP,
    answers_lost,
    append,
    check,
    opened,
    runs_in,
    writer_of,
    written,
)
from tests.buckets import Bucket
from tests.children import in_fork
from tests.proxy import Answer, Request, cut, dropped, status, times
from tests.reference.steps import check as check_reference, read_copy
from tests.test_cli import stepwell

PAGE = Path(__file__).parents[2] / "docs/formats/steps.md"


def downloaded(s3: Bucket, name: str, folder: Path) -> Path:
    """A plain copy of every object."""
    for path, data in s3.objects(name).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return folder


def puts(s3: Bucket, part: str) -> int:
    return sum(each.method == "PUT" for each in s3.proxy.asked_for(part))


def of_puts(fault: Any, part: str = "dataset.json", count: int | None = 1) -> Any:
    """A fault of some writes of an object, which are carried out."""
    some = times(count, fault, of=part)

    def of(request: Request, answer: Answer) -> Answer | None:
        done: Answer | None = some(request, answer) if request.method == "PUT" else answer
        return done

    return of


# What is written is read.


def test_a_dataset(s3: Bucket, tmp_path: Path) -> None:
    url = s3.url("whole")
    with StepWriter(url, STEP, COLUMNS, shard_rows=20, **s3.options) as writer:
        assert repr(writer) == f"BucketStepWriter('{url}', open)"
        append(writer, 1, *range(8))
        writer.commit()
        append(writer, 1, 8, 9)
        writer.rollback()
        append(writer, 1, 10)
        rows = len(writer)
    assert writer.conflicts == 0
    wanted = [(1, n) for n in [*range(8), 10]]
    reader = sw.open(url, **s3.options)
    check(reader, *wanted)
    assert len(reader) == rows
    assert runs_in(opened(s3, "whole", memory="ram")) == wanted
    assert runs_in(opened(s3, "whole", cache=tmp_path / "cache")) == wanted
    assert runs_in(opened(s3, "whole", cache=tmp_path / "cache", window_bytes=1 << 20)) == wanted
    part = opened(s3, "whole").where("n >= ?", 6)
    assert runs_in(part) == wanted[6:]
    assert reader.query("SELECT count(*) AS runs FROM runs").rows == [(9,)]
    assert runs_in(pickle.loads(pickle.dumps(part))) == wanted[6:]
    reader.close()
    assert not any("/writers/" in f"/{name}" for name in s3.objects("whole"))


def test_a_plain_copy(s3: Bucket, tmp_path: Path) -> None:
    """It opens as the bucket does, and another program reads it from the page alone."""
    for who in (1, 2):
        written(s3, "copied", who, *range(5), shard_rows=30)
    far, copy = opened(s3, "copied"), downloaded(s3, "copied", tmp_path / "copy")
    for memory in ("ram", "map"):
        here: Any = sw.open(copy, memory=memory)
        check(here, *((who, n) for who in (1, 2) for n in range(5)))
    assert here.fingerprint == far.fingerprint
    assert runs_in(pickle.loads(pickle.dumps(here))) == runs_in(far)
    assert not here.refresh()
    reference = read_copy(copy)
    check_reference(reference)
    assert reference.rows.tobytes() == far.take(np.arange(len(far)), packed=True).tobytes()
    assert [run["id"] for run in reference.runs] == far.runs["id"].tolist()
    shards = sorted((copy / "shards").glob("*.npy"))
    assert sum(len(np.load(each)) for each in shards) == len(far)
    with pytest.raises(FileExistsError, match="`stepwell convert` makes one to append to"):
        StepWriter(copy, mode="a")
    assert stepwell("convert", copy, tmp_path / "own", "--to", "steps").returncode == 0
    with StepWriter(tmp_path / "own", mode="a") as writer:
        append(writer, 3, 4)
    assert sw.open(tmp_path / "own").verify().ok
    data = bytearray(shards[0].read_bytes())
    data[-1] ^= 1
    shards[0].write_bytes(data)
    assert not sw.open(copy, memory="map").verify().ok
    with pytest.raises(ChecksumError):
        sw.open(copy)


def test_the_document_of_the_page() -> None:
    (text,) = re.findall(
        r"```json\n(\{\n \"format\": \"stepwell-dataset\".*?)```", PAGE.read_text(), re.S
    )
    found = Dataset.parse(text.encode(), "")
    assert found.dump() == DOCUMENT.dump({n: v for n, v in json.loads(text).items() if n in KEPT})
    text = text.rstrip()
    for at in range(len(text)):
        data = bytearray(text.encode())
        data[at] ^= 1
        with suppress(FormatError):
            assert Dataset.parse(bytes(data), "") == found  # white space
        with pytest.raises(FormatError):
            Dataset.parse(bytes(data[:at]), "")


KEPT = ("id", "change", "by", "next_run", "dtype", "rows", "runs", "metadata", "shards")


@pytest.mark.parametrize(
    "changes",
    [
        {"rows": 4},
        {"rows": -1},
        {"dtype": "<i4"},
        {"metadata": {"name": "../metadata.db", "bytes": 1, "crc32c": "0"}},
        {"shards": [{"name": "shards/../a.npy", "rows": 5, "bytes": 168}]},
        {"shards": [{"name": "shards/a.npy", "rows": 5, "bytes": 39}]},
        {"shards": [{"name": "shards/a.npy", "rows": 0, "bytes": 168}]},
        {"shards": [{"name": "shards/a.npy", "rows": 2, "bytes": 168}] * 2, "rows": 4},
        {"next_run": "many"},
    ],
)
def test_documents_that_are_none(changes: dict[str, Any]) -> None:
    made = Dataset("ab", STEP, Dataset.parse(empty(), "").metadata).dump()
    good = {name: value for name, value in json.loads(made).items() if name in KEPT}
    with pytest.raises(FormatError, match=r"not a dataset\.json"):
        Dataset.parse(DOCUMENT.dump({**good, **changes}), "")


def empty() -> bytes:
    about = {"name": "metadata/a.db", "bytes": 1, "crc32c": "0"}
    text = dict.fromkeys(("change", "next_run", "rows", "runs"), 0)
    others = {"id": "a", "by": "", "dtype": [["a", "<i4"]], "metadata": about, "shards": []}
    return DOCUMENT.dump({**text, **others})


def test_an_empty_dataset(s3: Bucket) -> None:
    writer_of(s3, "empty", "x").close()
    reader = opened(s3, "empty")
    assert (len(reader), len(reader.runs)) == (0, 0)
    assert reader.verify().ok
    assert len(opened(s3, "empty", memory="ram")) == 0
    other = np.dtype([("a", "<i4")])
    with pytest.raises(SchemaError, match="expected rows of"):
        StepWriter(s3.url("empty"), other, mode="a", **s3.options)
    with StepWriter(s3.url("empty"), other, {"x": float}, **s3.options) as again:
        again.append({"a": np.arange(3)}, x=1.0)
    assert opened(s3, "empty")["a"][:].tolist() == [0, 1, 2]
    with pytest.raises(FormatError, match="another dataset is here now"):
        reader.refresh()


# Several writers.


def test_the_second_goes_behind_the_first(s3: Bucket) -> None:
    """Nothing is uploaded again, and it can be seen that it was second."""
    written(s3, "behind", 0, 1)
    one, two = writer_of(s3, "behind"), writer_of(s3, "behind")
    append(one, 1, *range(4))
    append(two, 2, *range(3))
    two.commit()
    s3.proxy.requests.clear()
    one.commit()
    assert (one.conflicts, two.conflicts) == (1, 0)
    assert puts(s3, "/shards/") == 2
    wanted = [(0, 1), *((2, n) for n in range(3)), *((1, n) for n in range(4))]
    assert runs_in(opened(s3, "behind")) == wanted
    append(two, 2, 3)
    append(one, 1, 4)
    one.close()
    two.close()
    check(opened(s3, "behind"), *wanted, (2, 3), (1, 4))
    assert (one.conflicts, two.conflicts) == (1, 1)


def test_one_creates(s3: Bucket) -> None:
    """Of two with mode "x" the first that commits wins; the other changes nothing."""
    one, two = writer_of(s3, "created", "x"), writer_of(s3, "created", "x")
    append(one, 1, 1, 2)
    append(two, 2, 1)
    two.commit()
    before = opened(s3, "created")
    with pytest.raises(FileExistsError, match="committed to by another writer first"):
        one.commit()
    one.rollback()
    one.close()
    append(two, 2, 2)
    two.commit()  # from its first commit on it goes on like others
    written(s3, "created", 3, 1)
    append(two, 2, 3)
    two.close()
    check(opened(s3, "created"), (2, 1), (2, 2), (3, 1), (2, 3))
    check(before, (2, 1))
    with pytest.raises(FileExistsError, match="mode='a' goes on with it"):
        writer_of(s3, "created", "x")


def test_a_dataset_that_is_begun_while_another_writer_looks(s3: Bucket) -> None:
    def other(request: Request) -> None:
        if "list-type=" in request.path:
            s3.proxy.before = None
            written(s3, "meanwhile", 2, 1)

    s3.proxy.before = other
    written(s3, "meanwhile", 1, 1)
    check(opened(s3, "meanwhile"), (2, 1), (1, 1))


def test_others_are_quicker_every_time(s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the end it gives up, with nothing lost."""
    monkeypatch.setattr(commit_module, "_TRIES", 3)
    writer = writer_of(s3, "quicker")
    append(writer, 1, 1)
    others = count(1)

    def commit(request: Request) -> None:
        if request.method == "PUT" and "dataset.json" in request.path:
            s3.proxy.before = None
            written(s3, "quicker", 2, next(others))
            s3.proxy.before = commit

    s3.proxy.before = commit
    with pytest.raises(BusyError, match=r"quicker 3 times; commit\(\) tries again"):
        writer.commit()
    s3.proxy.forget()
    writer.close()
    assert writer.conflicts >= 2
    check(opened(s3, "quicker"), (2, 1), (2, 2), (2, 3), (1, 1))


def test_ids_are_never_given_twice(s3: Bucket) -> None:
    writers = [writer_of(s3, "ids") for _ in range(4)]
    for n in range(3):
        for who, writer in enumerate(writers):
            append(writer, who, n)
            if n % 2:
                writer.commit()
    for writer in reversed(writers):
        writer.close()
    reader = opened(s3, "ids")
    check(reader, *((who, n) for who in range(4) for n in range(3)))
    ids = reader.runs["id"].tolist()
    assert ids != sorted(ids)
    chosen = reader.where("id > ?", ids[0])
    assert [run["id"] for run in chosen.runs] == [run for run in ids if run > ids[0]]


def test_few_ids(s3: Bucket) -> None:
    """A field for 256 of them: each is reserved alone, and none is wrapped."""
    small = np.dtype([("run_id", "u1")])
    with StepWriter(s3.url("few"), small, **s3.options) as writer:
        for run in range(256):
            assert writer.append({"run_id": np.zeros(1)}) == run
        with pytest.raises(SchemaError, match="expected run_id up to 255, got 256"):
            writer.append({"run_id": np.zeros(1)})
    assert opened(s3, "few")["run_id"][:].tolist() == list(range(256))


def test_readers_beside_writers(s3: Bucket) -> None:
    written(s3, "beside", 1, 1, 2)
    reader = opened(s3, "beside")
    part, kept = reader.where("n = 2"), pickle.dumps(reader)
    assert not reader.refresh()
    with writer_of(s3, "beside") as writer:
        append(writer, 2, 1)
        assert not reader.refresh()  # ids were reserved, nothing more
        writer.commit()
        assert runs_in(pickle.loads(kept)) == [(1, 1), (1, 2)]
        assert runs_in(reader) == [(1, 1), (1, 2)]
        assert reader.refresh()
        assert not reader.refresh()
        append(writer, 2, 2)
    assert runs_in(reader) == [(1, 1), (1, 2), (2, 1)]
    assert runs_in(part) == [(1, 2)]
    assert runs_in(pickle.loads(pickle.dumps(reader))) == [(1, 1), (1, 2), (2, 1)]
    check(opened(s3, "beside"), (1, 1), (1, 2), (2, 1), (2, 2))


def test_a_commit_while_it_is_opened(s3: Bucket) -> None:
    """Objects are listed first; the document may name some that came later."""
    written(s3, "opening", 1, 1)

    def commit(request: Request) -> None:
        if request.method == "GET" and request.path.endswith("dataset.json"):
            s3.proxy.before = None
            written(s3, "opening", 2, 2)

    s3.proxy.before = commit
    check(opened(s3, "opening"), (1, 1), (2, 2))


@pytest.mark.usefixtures("keys")
def test_a_database_that_goes_while_it_is_fetched(s3: Bucket) -> None:
    """Of a commit that was overtaken, and cleaned up: readers and writers take the newer one."""
    for way in ("reader", "writer", "commit"):
        name = f"overtaken-{way}"
        written(s3, name, 1, 1)
        old = opened(s3, name)._far._metadata.name  # type: ignore[union-attr]
        writer = writer_of(s3, name) if way == "commit" else None
        if writer is not None:
            written(s3, name, 2, 1)
            old = opened(s3, name)._far._metadata.name  # type: ignore[union-attr]
            append(writer, 3, 1)

        def overtake(request: Request, name: str = name, old: str = old) -> None:
            if request.method == "GET" and old in request.path:
                s3.proxy.before = None
                written(s3, name, 4, 1)
                obstore.delete(s3.store(name), old)

        s3.proxy.before = overtake
        wanted = [(1, 1), (4, 1)]
        if writer is not None:
            writer.close()
            wanted += [(2, 1), (3, 1)]
        elif way == "writer":
            written(s3, name, 3, 1)
            wanted.append((3, 1))
        check(opened(s3, name), *wanted)


def test_a_loader_goes_on_after_an_append(s3: Bucket) -> None:
    written(s3, "loader", 1, *range(1, 9))
    sampler = sw.Shuffle(3)
    before = opened(s3, "loader")
    loader = sw.Loader(before, 7, sampler=sampler)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    state = loader.state_dict()
    wanted = [batch["n"].tolist() for batch, _ in zip(batches, range(4), strict=False)]
    written(s3, "loader", 2, *range(1, 9))
    kept = pickle.loads(pickle.dumps(before))
    for source in (before, kept, opened(s3, "loader")):
        again = sw.Loader(source, 7, sampler=sampler)
        again.load_state_dict(state)
        found = [batch["n"].tolist() for batch, _ in zip(again, range(4), strict=False)]
        assert found == wanted


# What goes wrong.


@pytest.mark.parametrize(
    "headers", [("if-none-match",), ("if-match",), ("if-match", "if-none-match")]
)
def test_a_server_that_ignores_conditions(s3: Bucket, headers: tuple[str, ...]) -> None:
    """It is refused before anything else is written, and nothing is left."""
    s3.proxy.ignored = headers
    with pytest.raises(FetchError, match=r"expected conditional puts, got a server that ignores"):
        writer_of(s3, "ignoring")
    assert s3.objects("ignoring") == {}
    assert all("/writers/" in each.path for each in s3.proxy.requests if each.method == "PUT")


@pytest.mark.parametrize("place", ["file://", "http"])
def test_places_without_conditions(s3: Bucket, tmp_path: Path, place: str) -> None:
    url = f"file://{tmp_path}" if place == "file://" else s3.http_url("web")
    with pytest.raises(FetchError, match=r"expected a bucket to write to, got a (folder|web)"):
        StepWriter(url, STEP, COLUMNS)
    assert list(tmp_path.iterdir()) == []


def test_a_store_of_obstore() -> None:
    store = MemoryStore()
    for who in (1, 2):
        with StepWriter(store, STEP, COLUMNS, mode="a") as writer:  # type: ignore[arg-type]
            append(writer, who, 1, 2)
    check(StepReader.open(store), *((who, n) for who in (1, 2) for n in (1, 2)))


@pytest.mark.parametrize("fault", [status(503), status(500), cut, dropped])
@pytest.mark.parametrize("part", ["dataset.json", "/shards/", "/metadata/", "/writers/"])
def test_what_passes_is_tried_again(s3: Bucket, fault: Any, part: str) -> None:
    """Requests that fail, and requests that are carried out and whose answers are lost."""
    name = f"passes{abs(hash((fault, part)))}"
    s3.proxy.fault = times(2, fault, of=part)
    written(s3, name, 1, 1, 2)
    s3.proxy.fault = of_puts(fault, part, 2)
    written(s3, name, 1, 3)
    s3.proxy.fault = None
    check(opened(s3, name), (1, 1), (1, 2), (1, 3))


@pytest.mark.parametrize("way", ["commit", "more", "other", "rollback", "close"])
def test_a_commit_whose_answer_never_comes(s3: Bucket, way: str) -> None:
    """The request is carried out, and nobody says so: found out later, and never made twice."""
    name = f"lost-{way}"
    writer: Any = writer_of(s3, name)
    append(writer, 1, 1, 2)
    answers_lost(s3, writer, "dataset.json")
    wanted = [(1, 1), (1, 2)]
    if way == "more":
        append(writer, 1, 3)
        wanted.append((1, 3))
    if way == "other":
        written(s3, name, 2, 1)
        wanted.append((2, 1))
    if way == "rollback":
        writer.rollback()
    if way == "close":
        writer.close()
    else:
        writer.commit()
        writer.commit()
        append(writer, 1, 4)
        writer.close()
        wanted.append((1, 4))
    check(opened(s3, name), *wanted)


@pytest.mark.parametrize("mode", ["a", "x"])
def test_ids_are_reserved_after_a_commit_whose_answer_never_came(s3: Bucket, mode: Any) -> None:
    name, few = f"lost-ids-{mode}", np.dtype([("x", "<i4"), ("run_id", "u1")])
    writer: Any = StepWriter(s3.url(name), few, mode=mode, **s3.options)
    writer.append({"x": [1]})
    answers_lost(s3, writer, "dataset.json")
    writer.append({"x": [2]})
    writer.close()
    assert opened(s3, name)["x"][:].tolist() == [1, 2]


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize("way", ["rollback", "close"])
def test_a_commit_whose_answer_never_came_and_a_writer_that_was_taken_for_dead(
    s3: Bucket, way: str
) -> None:
    """What it uploaded counts: nobody but `clean` may say that it does not."""
    name = f"dead-{way}"
    writer: Any = writer_of(s3, name)
    append(writer, 1, 1, 2)
    answers_lost(s3, writer, "dataset.json")
    s3.age(name, timedelta(days=2))
    assert clean(s3.url(name), older_than=timedelta(days=1), delete=True, **s3.options)
    if way == "rollback":
        writer.rollback()
        writer.close()
    else:
        with pytest.raises(BusyError):
            writer.close()
    check(opened(s3, name), (1, 1), (1, 2))


def test_a_rollback_whose_answer_never_came_while_another_commits(s3: Bucket) -> None:
    writer: Any = writer_of(s3, "lost-twice")
    append(writer, 1, 1, 2)
    answers_lost(s3, writer, "dataset.json")

    def other(request: Request) -> None:
        if request.method == "PUT" and "dataset.json" in request.path:
            s3.proxy.before = None
            written(s3, "lost-twice", 2, 1)

    s3.proxy.before = other
    writer.rollback()
    writer.close()
    check(opened(s3, "lost-twice"), (1, 1), (1, 2), (2, 1))


def test_a_commit_that_is_carried_out_late(s3: Bucket) -> None:
    """A server may carry out a put long after its client gave up: not once a rollback returned."""
    written(s3, "late", 0, 1)
    writer: Any = writer_of(s3, "late")
    append(writer, 1, 1, 2)
    held: dict[str, Any] = {}

    def hold(request: Request) -> None:
        if request.method == "PUT" and "dataset.json" in request.path:
            held.setdefault("document", s3.objects("late")["dataset.json"])
        if held:
            raise ConnectionError

    writer._files._deadline_s = 0.3
    s3.proxy.before = hold
    with pytest.raises(FetchError):
        writer.commit()
    s3.proxy.before = None

    def refuse(request: Request) -> None:
        if request.method == "PUT" and "/metadata/" in request.path:
            raise ConnectionError

    s3.proxy.before = refuse
    with pytest.raises(FetchError):
        writer.commit()  # it finds nothing of the first one
    s3.proxy.before, writer._files._deadline_s = None, 60
    writer.rollback()
    # So the condition of what is still under way does not hold any more.
    assert s3.objects("late")["dataset.json"] != held["document"]
    writer.close()
    check(opened(s3, "late"), (0, 1))


def test_a_renewal_whose_answer_never_comes(s3: Bucket) -> None:
    """The announcement is there, and this writer's, whatever was heard of it."""
    writer: Any = writer_of(s3, "renewed")
    append(writer, 1, 1)
    answers_lost(s3, writer, "/writers/", writer._announced.renew)
    writer._announced.renew()
    writer.close()
    check(opened(s3, "renewed"), (1, 1))


@pytest.mark.parametrize("way", ["commit", "rollback"])
def test_a_commit_that_was_never_made(s3: Bucket, way: str) -> None:
    """The keys expire at the last moment; once there are others it is made, or dropped."""
    written(s3, f"expired-{way}", 0, 1)
    writer = writer_of(s3, f"expired-{way}")
    append(writer, 1, 1, 2)

    def refuse(request: Request) -> None:
        if request.method == "PUT" and "/metadata/" in request.path:
            s3.proxy.fault = status(403)

    s3.proxy.before = refuse
    with pytest.raises(FetchError, match=r"403|privileges"):
        writer.commit()
    s3.proxy.forget()
    check(opened(s3, f"expired-{way}"), (0, 1))
    getattr(writer, way)()
    writer.close()
    wanted = [(0, 1), (1, 1), (1, 2)] if way == "commit" else [(0, 1)]
    check(opened(s3, f"expired-{way}"), *wanted)


def test_keys_that_are_refused(s3: Bucket) -> None:
    s3.proxy.fault = status(403)
    with pytest.raises(FetchError, match=r"403|privileges"):
        writer_of(s3, "refused")
    assert s3.objects("refused") == {}


def test_a_later_version(s3: Bucket) -> None:
    written(s3, "later", 1, 1)
    text = json.loads(s3.objects("later")["dataset.json"])
    later = json.dumps({**text, "version": 2}).encode()
    reader = opened(s3, "later")
    obstore.put(s3.store("later"), "dataset.json", later)
    calls: list[Callable[[], Any]] = [
        lambda: opened(s3, "later"),
        lambda: writer_of(s3, "later"),
        lambda: writer_of(s3, "later", "x"),
        reader.refresh,
    ]
    for call in calls:
        with pytest.raises(VersionError, match="expected version 1, got 2"):
            call()
    assert s3.objects("later")["dataset.json"] == later
    check(reader, (1, 1))


def test_damage_in_the_bucket(s3: Bucket) -> None:
    written(s3, "damaged", 1, 1, 2, 3)
    good, store = s3.objects("damaged"), s3.store("damaged")

    def read() -> None:
        reader = opened(s3, "damaged")
        assert not reader.verify().ok
        reader.take(np.arange(len(reader)))

    for name in Dataset.parse(good["dataset.json"], "").names:
        data = good[name]
        changed = bytearray(data)
        changed[-1] ^= 1
        obstore.put(store, name, bytes(changed))
        with pytest.raises(FormatError):
            read()
        obstore.put(store, name, data[: len(data) // 2])
        with pytest.raises(FormatError):
            read()
        obstore.delete(store, name)
        with pytest.raises((FormatError, FileNotFoundError)):
            read()
        obstore.put(store, name, data)
    check(opened(s3, "damaged"), (1, 1), (1, 2), (1, 3))


def test_a_header_that_is_not_what_the_list_has(s3: Bucket) -> None:
    """Nobody needs it to read rows; `verify` looks at it."""
    written(s3, "header", 1, 1, 2)
    (name,) = (name for name in s3.objects("header") if name.endswith(".npy"))
    data = s3.objects("header")[name]
    rows = len(opened(s3, "header"))
    obstore.put(s3.store("header"), name, data.replace(b"(%d,)" % rows, b"(%d,)" % (rows - 1)))
    reader = opened(s3, "header")
    assert runs_in(reader) == [(1, 1), (1, 2)]
    (problem,) = reader.verify().problems
    assert "rows of" in str(problem)
    assert problem.path == s3.url(f"header/{name}")


def test_a_dataset_that_is_replaced(s3: Bucket) -> None:
    writer = writer_of(s3, "replaced")
    append(writer, 1, 1)
    for name in s3.objects("replaced"):
        if "writers/" not in name:
            obstore.delete(s3.store("replaced"), name)
    written(s3, "replaced", 2, 1)
    with pytest.raises(BusyError, match="was replaced by another dataset"):
        writer.commit()
    writer.rollback()
    writer.close()
    check(opened(s3, "replaced"), (2, 1))


def test_what_is_refused(s3: Bucket, tmp_path: Path) -> None:
    url, options = s3.url("wrong"), s3.options
    with pytest.raises(FileNotFoundError, match="a new one needs a dtype"):
        StepWriter(url, mode="a", **options)
    with pytest.raises(ValueError, match="mode"):
        StepWriter(url, STEP, mode="w", **options)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="cache: only for what is read"):
        StepWriter(url, STEP, cache="x", **options)
    with pytest.raises(ValueError, match="shard_rows"):
        StepWriter(url, STEP, shard_rows=0, **options)
    with pytest.raises(TypeError, match="endpoint: only for what is in a bucket"):
        StepWriter(tmp_path / "here", STEP, endpoint="http://x")
    assert s3.objects("wrong") == {}
    steps.build(tmp_path / "steps", [3, 4])
    s3.upload(tmp_path / "steps", "uploaded")
    for mode in ("x", "a"):
        with pytest.raises(FileExistsError, match=r"got objects like manifest\.json"):
            writer_of(s3, "uploaded", mode)
    written(s3, "wrong", 1, 1)
    with pytest.raises(SchemaError, match="no run column other"):
        StepWriter(url, STEP, {"other": int}, mode="a", **options)
    with writer_of(s3, "wrong") as writer:
        with pytest.raises(ValueError, match="has the columns that it was begun with"):
            writer.add_column("more", int)
        with pytest.raises(SchemaError, match="fields"):
            writer.append({"who": [1]}, who=1, n=1)
        assert "forked" in in_fork(lambda: error_of(writer))
    check(opened(s3, "wrong"), (1, 1))


def error_of(writer: StepWriter) -> str:
    with pytest.raises(RuntimeError) as caught:
        append(writer, 9, 9)
    return str(caught.value)


@pytest.mark.usefixtures("keys")
def test_a_copy_to_append_to(s3: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(s3, "convert", 1, 1, 2)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.proxy.url)
    done = stepwell("convert", s3.url("convert"), tmp_path / "own", "--to", "steps")
    assert done.returncode == 0, done.stderr
    with StepWriter(tmp_path / "own", mode="a") as writer:
        append(writer, 1, 3)
    check(sw.open(tmp_path / "own"), (1, 1), (1, 2), (1, 3))
