"""`stepwell clean`: what killed writers left in a bucket, and nothing else."""

import gc
import json
import pickle
import re
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import obstore
import pytest

from stepwell import BusyError, FormatError, ShardWriter
from stepwell.cleaning import clean
from stepwell.files import commit as commit_module
from stepwell.files.puts import WritableFiles
from stepwell.stores.steps.dataset import Dataset
from tests.bucket_writers import append, check, opened, writer_of, written
from tests.buckets import Bucket
from tests.proxy import Answer, Request, status
from tests.test_cli import stepwell


def upload(writer: Any) -> None:
    """Put what was appended into the bucket, as a shard that is full does."""
    writer._flush()
    writer._upload(len(writer._staged))


def garbage_of(s3: Bucket, name: str, *options: str) -> list[str]:
    """The names that the command lists."""
    endpoint = ("--endpoint", s3.proxy.url)
    done = stepwell("clean", s3.url(name), *endpoint, "--json", *options)
    assert done.returncode == 0, done.stderr
    return [each["name"] for each in json.loads(done.stdout)["objects"]]


def test_a_lease_is_renewed(s3: Bucket) -> None:
    """By a thread, as long as the writer is open."""
    files, renewed = WritableFiles(s3.url("lease"), **s3.options), Event()
    announced = commit_module.Announcement(files, lease_s=0.01)

    def look(request: Request, answer: Answer) -> Answer:
        if request.method == "PUT" and answer.status == 200:
            renewed.set()
        return answer

    s3.proxy.fault = look
    assert renewed.wait(60)
    announced.check()
    announced.end()
    announced.renew()
    assert s3.objects("lease") == {}
    with pytest.raises(BusyError, match="expected the announcement of this writer, found none"):
        announced.check()


def test_a_forgotten_writer_asks_for_nothing(s3: Bucket) -> None:
    """Garbage is collected in any thread, which does not wait for a server."""
    for name, make in (("steps", written_steps), ("shards", written_shards)):
        writer: Any = make(s3, name := f"forgotten-{name}")
        announced, staged = writer._announced, list(writer._staged)
        assert staged
        s3.proxy.forget()
        s3.proxy.fault = status(503)
        del writer
        gc.collect()
        assert s3.proxy.asked_for(name) == []
        announced._thread.join(60)
        assert not announced._thread.is_alive()
        assert all(each._file.closed for each in staged)
        s3.proxy.fault = None
        s3.age(name, timedelta(days=2))
        found = clean(s3.url(name), older_than=timedelta(days=1), delete=True, **s3.options)
        assert {each for each in found if each.endswith((".npy", ".shard"))}
        assert not clean(s3.url(name), older_than=timedelta(days=1), delete=True, **s3.options)


def written_steps(s3: Bucket, name: str) -> Any:
    """A writer of uncommitted runs, of which a shard is in the bucket and another is not."""
    writer: Any = writer_of(s3, name, shard_rows=5)
    append(writer, 2, *range(1, 5))
    writer._flush()
    writer._upload(1)
    return writer


def written_shards(s3: Bucket, name: str) -> Any:
    writer: Any = ShardWriter(s3.url(name), 4, mode="a", shard_bytes=64, **s3.options)
    writer._in_one_commit = True
    writer.append(np.zeros((10, 4)))
    return writer


@pytest.mark.usefixtures("keys")
def test_clean(s3: Bucket) -> None:
    written(s3, "clean", 1, 1, 2)
    before = set(s3.objects("clean"))
    obstore.put(s3.store("clean"), "notes.txt", b"mine")
    obstore.put(s3.store("clean"), "shards/steps_00000.npy", b"mine")
    left: Any = writer_of(s3, "clean", shard_rows=5)
    append(left, 2, *range(1, 5))
    upload(left)
    left._announced._ended.set()
    alive: Any = writer_of(s3, "clean", shard_rows=5)
    append(alive, 3, *range(1, 5))
    upload(alive)
    theirs = {n for n in s3.objects("clean") if left._announced.token in n}
    assert len(theirs) > 5
    assert garbage_of(s3, "clean") == []  # too new, and both are announced
    assert garbage_of(s3, "clean", "--older-than", "0s") == sorted(
        n for n in before if n not in Dataset.parse(s3.objects("clean")["dataset.json"], "").names
    )
    s3.age("clean", timedelta(days=2))
    alive._announced.renew()
    found = garbage_of(s3, "clean")
    assert theirs <= set(found)
    assert not any(alive._announced.token in name for name in found)
    assert garbage_of(s3, "clean", "--older-than", "3d") == []
    assert theirs <= set(s3.objects("clean"))  # nothing was removed so far
    reader = opened(s3, "clean")
    assert garbage_of(s3, "clean", "--delete") == found
    assert garbage_of(s3, "clean") == []
    assert not theirs & set(s3.objects("clean"))
    assert {"notes.txt", "shards/steps_00000.npy"} <= set(s3.objects("clean"))
    with pytest.raises(BusyError, match="took the writer for dead; open it again"):
        left.commit()
    left.rollback()
    left.close()
    alive.close()
    check(reader, (1, 1), (1, 2))
    assert reader.refresh()
    check(reader, (1, 1), (1, 2), *((3, n) for n in range(1, 5)))
    assert not any(name.startswith("writers/") for name in s3.objects("clean"))


@pytest.mark.usefixtures("keys")
def test_clean_beside_a_commit(s3: Bucket) -> None:
    """A writer that was silent for long commits while its objects are removed: it is too late, or
    its objects stay."""
    for moment in ("announcement", "put"):
        name = f"late-{moment}"
        written(s3, name, 1, 1)
        writer = writer_of(s3, name)
        append(writer, 2, 1, 2)
        s3.age(name, timedelta(days=2))

        def clean(request: Request, name: str = name, moment: str = moment) -> None:
            method, part = (
                ("HEAD", "writers/") if moment == "announcement" else ("PUT", "dataset.json")
            )
            if request.method == method and part in request.path:
                s3.proxy.before = None
                s3.age(name, timedelta(days=2))
                assert garbage_of(s3, name, "--delete")

        s3.proxy.before = clean
        with pytest.raises(BusyError, match="took the writer for dead"):
            writer.commit()
        writer.rollback()
        writer.close()
        check(opened(s3, name), (1, 1))


@pytest.mark.usefixtures("keys")
def test_a_commit_beside_clean(s3: Bucket) -> None:
    """The other way round: it commits before the document is changed, and nothing of it goes."""
    written(s3, "early", 1, 1)
    writer: Any = writer_of(s3, "early")
    append(writer, 2, 1, 2)
    upload(writer)
    s3.age("early", timedelta(days=2))
    made = writer._announced.check
    writer._announced.check = lambda: None  # it has looked already

    def commit(request: Request) -> None:
        if request.method == "PUT" and "dataset.json" in request.path:
            s3.proxy.before = None
            writer.commit()

    s3.proxy.before = commit
    garbage_of(s3, "early", "--delete")
    check(opened(s3, "early"), (1, 1), (2, 1), (2, 2))
    append(writer, 2, 3)
    writer._announced.check = made
    with pytest.raises(BusyError, match="took the writer for dead"):
        writer.commit()
    writer.rollback()
    writer.close()
    check(opened(s3, "early"), (1, 1), (2, 1), (2, 2))


def test_clean_while_the_document_is_away(s3: Bucket) -> None:
    """Whoever puts a copy back must find what it names."""
    written(s3, "away", 1, 1)
    before = s3.objects("away")

    def remove(request: Request) -> None:
        if "list-type=" in request.path:
            s3.proxy.before = None
            obstore.delete(s3.store("away"), "dataset.json")

    s3.proxy.before = remove
    with pytest.raises(FormatError, match="it was removed meanwhile"):
        clean(s3.url("away"), older_than=timedelta(0), delete=True, **s3.options)
    obstore.put(s3.store("away"), "dataset.json", before["dataset.json"])
    check(opened(s3, "away"), (1, 1))


@pytest.mark.usefixtures("keys")
def test_a_commit_that_was_removed(s3: Bucket) -> None:
    """A reader that is open has all of its commit; one that was pickled needs the database."""
    written(s3, "earlier", 1, 1)
    reader = opened(s3, "earlier")
    kept = pickle.dumps(reader)
    written(s3, "earlier", 1, 2)
    assert garbage_of(s3, "earlier", "--older-than", "0s", "--delete")
    check(reader, (1, 1))
    with pytest.raises(FormatError, match="`stepwell clean` removes those of earlier commits"):
        pickle.loads(kept)
    check(opened(s3, "earlier"), (1, 1), (1, 2))


@pytest.mark.usefixtures("keys")
def test_what_clean_prints(s3: Bucket, tmp_path: Path) -> None:
    written(s3, "printed", 1, 1)
    url, endpoint = s3.url("printed"), ("--endpoint", s3.proxy.url)
    s3.age("printed", timedelta(hours=36))
    done = stepwell("clean", url, *endpoint)
    assert done.returncode == 0
    head, line, last = done.stdout.splitlines()
    assert head == "object\tbytes\tage"
    assert re.fullmatch(r"metadata/[0-9a-f]{16}-0\.db\t\d+\t1\.5d", line)
    assert re.fullmatch(r"1 object of \d+ bytes can be removed: --delete does it", last)
    assert (
        stepwell("clean", url, *endpoint, "--delete")
        .stdout.splitlines()[-1]
        .startswith("removed 1")
    )
    assert stepwell("clean", url, *endpoint).stdout == "nothing to clean up\n"
    for wrong in ((tmp_path,), (url, "--older-than", "soon"), (s3.url("absent"), *endpoint)):
        failed = stepwell("clean", *wrong)
        assert (failed.returncode, failed.stdout) == (2, ""), failed
        assert failed.stderr.startswith("error: ")
