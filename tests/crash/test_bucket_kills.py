"""Writers of a bucket that are killed, and many of them at once, each a process."""

import json
import random
import re
import sys
from collections.abc import Iterator
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pytest

import stepwell as sw
from stepwell import ShardWriter, StepReader, StepWriter
from stepwell.cleaning import clean
from tests import scaled
from tests.bucket_writers import COLUMNS, STEP, append, check, opened, runs_in
from tests.buckets import Bucket
from tests.children import Child
from tests.crash.kills import Victims
from tests.proxy import Request

KILLS = {"steps": scaled(24, smallest=12), "shards": scaled(12, smallest=6)}
DOCUMENTS = {"steps": "dataset.json", "shards": "shards.json"}
PROCESSES, COMMITS = 4, 3


def place(folder: Path) -> tuple[str, dict[str, Any]]:
    """Where to write, which the test has left there."""
    url, options = json.loads((folder / "place.json").read_text())
    return url, options


def work(folder: Path, first: int) -> Iterator[int]:
    """A commit for each stamp: a run of the writer 1 and others that make it several shards."""
    url, options = place(folder)
    with StepWriter(url, STEP, COLUMNS, mode="a", shard_rows=9, **options) as writer:
        for stamp in count(first):
            append(writer, 1, stamp)
            append(writer, 2, stamp)
            writer.commit()
            yield stamp


def work_shards(folder: Path, first: int) -> Iterator[int]:
    """The same of shards: ten rows of each stamp."""
    url, options = place(folder)
    with ShardWriter(url, 3, mode="a", **options) as writer:
        for stamp in count(first):
            writer.append(np.full((10, 3), stamp))
            writer.commit()
            yield stamp


def numbers(s3: Bucket, name: str) -> list[int]:
    """The stamps that were committed; both runs of each, or neither."""
    if name == "kills-shards":
        return s3.open(name)["data"][::10][:, 0].astype(int).tolist() if listed(s3, name) else []
    runs = opened(s3, name).runs
    found = list(zip(runs["who"].tolist(), runs["n"].tolist(), strict=True))
    assert found[::2] == [(1, n) for _, n in found[1::2]]
    return [n for _, n in found[::2]]


def listed(s3: Bucket, name: str) -> Any:
    """The shards of the document."""
    document = next((each for each in DOCUMENTS.values() if each in s3.names(name)), None)
    if document is None:
        return []
    text = bytes(obstore.get(s3.store(name), document).bytes())
    return json.loads(text)["shards"]


@pytest.mark.parametrize("kind", ["steps", "shards"])
def test_kills(s3: Bucket, tmp_path: Path, kind: str) -> None:
    """What was acknowledged is there, what was not is there whole or not at all; `clean` removes
    what is left of the others."""
    name, document = f"kills-{kind}", DOCUMENTS[kind]
    url = s3.url(name)
    (tmp_path / "place.json").write_text(json.dumps([url, s3.options]))
    chance = random.Random()
    last, longest_s, interesting = 0, 0.05, 0
    with Victims(f"{__name__}:{'work' if kind == 'steps' else 'work_shards'}", tmp_path) as victims:
        for _ in range(KILLS[kind]):
            acknowledged = victims.kill(last + 1, chance.uniform(0, longest_s))
            longest_s = min(longest_s * 2, 8) if acknowledged <= last else longest_s * 0.8
            interesting += acknowledged > last
            if document not in s3.names(name):
                assert acknowledged == 0
                continue
            there = numbers(s3, name)
            last = len(there)
            assert there == list(range(1, last + 1))
            assert acknowledged <= last <= acknowledged + 1
    assert interesting > 0
    reader = sw.open(url, **s3.options)
    s3.age(name, timedelta(days=2))
    removed = clean(url, older_than=timedelta(days=1), delete=True, **s3.options)
    assert removed
    shards = [shard["name"] for shard in listed(s3, name)]
    named = {document, *shards, *(f"{shard.rpartition('.')[0]}.crc" for shard in shards)}
    if kind == "steps":
        named.add(json.loads(s3.objects(name)[document])["metadata"]["name"])
        check(opened(s3, name), *((who, n) for n in range(1, last + 1) for who in (1, 2)))
    assert set(s3.names(name)) == named
    assert reader.verify().ok
    assert numbers(s3, name) == list(range(1, last + 1))


@pytest.mark.parametrize("part", ["dataset.json", "/metadata/", "/shards/", "/writers/"])
def test_killed_at_a_request(s3: Bucket, tmp_path: Path, part: str) -> None:
    """At each kind of write: before the server gets it, or with its answer."""
    name = f"at-{re.sub('[^a-z]', '', part)}"
    (tmp_path / "place.json").write_text(json.dumps([s3.url(name), s3.options]))
    for put, is_answered in ((0, True), (2, False), (3, True)):
        victim = Child("-m", __name__, tmp_path, f"{put * 100}")
        left = put

        def kill(request: Request, *answer: Any, victim: Child = victim) -> Any:
            nonlocal left
            if request.method == "PUT" and part in request.path:
                left -= 1
                if left < 0:
                    victim.stop()
            return answer[0] if answer else None

        s3.proxy.fault = kill if is_answered else None
        s3.proxy.before = None if is_answered else kill
        said = []
        while line := victim.says():
            said.append(int(line))
        s3.proxy.forget()
        victim.kill()
        assert left < 0
        if "dataset.json" in s3.names(name):
            found = runs_in(opened(s3, name))
            mine = [n for who, n in found if who == 1 and n >= put * 100]
            assert mine == list(range(put * 100, put * 100 + len(mine)))
            assert len(said) <= len(mine) <= len(said) + 1
            check(opened(s3, name), *((who, n) for _, n in found[::2] for who in (1, 2)))


def test_many_at_once(s3: Bucket, tmp_path: Path) -> None:
    """They begin the dataset together, and none loses a run."""
    (tmp_path / "place.json").write_text(json.dumps([s3.url("many"), s3.options]))
    children = [Child("-m", __name__, tmp_path, "many", who) for who in range(PROCESSES)]
    for child in children:
        assert child.says() == "ready"
    for child in children:
        child.go()
    conflicts = sum(int(child.ends()) for child in children)
    assert conflicts > 0
    reader = opened(s3, "many")
    check(reader, *((who, n) for who in range(PROCESSES) for n in range(COMMITS * 4)))
    for who in range(PROCESSES):
        assert reader.where("who = ?", who).runs["n"].tolist() == list(range(COMMITS * 4))
    assert isinstance(reader, StepReader)
    assert not any(name.startswith("writers/") for name in s3.names("many"))


def main(folder: str, what: str, who: str = "") -> None:
    if what != "many":
        for stamp in work(Path(folder), int(what)):
            print(stamp, flush=True)
        return
    url, options = place(Path(folder))
    print("ready", flush=True)
    sys.stdin.readline()
    with StepWriter(url, STEP, COLUMNS, mode="a", shard_rows=20, **options) as writer:
        for n in range(COMMITS * 4):
            append(writer, int(who), n)
            if n % 4 == 3:
                writer.commit()
    print(writer.conflicts)


if __name__ == "__main__":
    main(*sys.argv[1:])
