"""Shards, records and images of packs that others wrote, taken over by a store's own writer."""

from pathlib import Path

import numpy as np
import pytest

import stepwell as sw
from stepwell import _core
from stepwell.errors import SchemaError
from stepwell.field import Field
from stepwell.files.codecs import Codec
from stepwell.stores.pack.writer import EntryMaker
from stepwell.stores.records.assembly import PartRecords, adopt, give_back, learned


def shards(path: Path, first: int, count: int, width: int = 3) -> Path:
    rows = np.arange(first * width, (first + count) * width, dtype=np.float32).reshape(-1, width)
    with sw.ShardWriter(path, width, shard_bytes=4 * width * 10) as writer:
        writer.append(rows)
    return path


def test_a_corpus_takes_over_shards(tmp_path: Path) -> None:
    whole = shards(tmp_path / "whole", 0, 47)
    parts = [shards(tmp_path / f"part-{k}", 20 * k, min(20, 47 - 20 * k)) for k in range(3)]
    with sw.ShardWriter(tmp_path / "made", 3, shard_bytes=120) as writer:
        for part in parts:
            writer.adopt(part)
        assert writer.rows == 47
    names = sorted(path.name for path in whole.iterdir())
    assert names == sorted(path.name for path in (tmp_path / "made").iterdir())
    for name in names:
        assert (whole / name).read_bytes() == (tmp_path / "made" / name).read_bytes()
    assert not list(parts[0].glob("*.shard"))
    with (
        sw.ShardWriter(tmp_path / "made", mode="a") as writer,
        pytest.raises(SchemaError, match="expected rows of 3 x float32, got 5 x float32"),
    ):
        writer.adopt(shards(tmp_path / "wide", 0, 5, 5))


def test_shards_behind_rows_that_are_not_committed(tmp_path: Path) -> None:
    part = shards(tmp_path / "part", 4, 6)
    with sw.ShardWriter(tmp_path / "made", 3, shard_bytes=120) as writer:
        writer.append(np.arange(12, dtype=np.float32).reshape(-1, 3))
        writer.adopt(part)
    with sw.ShardReader.open(tmp_path / "made") as made:
        assert made.verify().problems == ()
        (values,) = made.take(np.arange(10)).values()
    assert values.reshape(-1).tolist() == list(range(30))


FIELDS = {
    "text": Field(str, compress="zstd-dict"),
    "image": Field("u1", (100,), compress="zstd"),
    "label": Field("<i8"),
}


def records(first: int, count: int) -> dict[str, object]:
    numbers = np.arange(first, first + count)
    return {
        "text": [f"this is the record number {n}, of several" for n in numbers],
        "image": np.repeat(numbers[:, None], 100, 1).astype("u1"),
        "label": numbers,
    }


def test_a_store_takes_over_records(tmp_path: Path) -> None:
    words = learned(tmp_path / "words", FIELDS, records(0, 500))
    parts = []
    for first, count in ((0, 20), (20, 20), (40, 7)):
        folder = tmp_path / f"part-{first}"
        part = PartRecords(folder, FIELDS, 10, first, words)
        part.append(records(first, 3))
        part.append(records(first + 3, count - 3))
        parts.append((folder, part.finish()))
    assert [len(facts["chunks"]) for _, facts in parts] == [2, 2, 1]
    made = tmp_path / "made"

    def put_together() -> None:
        with sw.RecordWriter(made, FIELDS, chunk_records=10) as writer:
            for path in words:
                (made / path.name).write_bytes(path.read_bytes())
            for folder, facts in parts:
                adopt(writer, folder, facts)

    put_together()
    for folder, facts in parts:  # as after a kill
        give_back(made, folder, facts)
    for path in made.glob("*"):
        if path.is_file():
            path.unlink()
    put_together()
    with sw.RecordReader.open(made) as store:
        assert store.verify().problems == ()
        found, want = store.take(np.arange(47)), records(0, 47)
        assert found["text"].to_list() == want["text"]
        assert np.array_equal(found["image"], np.asarray(want["image"]))
        assert found["label"].tolist() == list(range(47))
    assert sorted(path.name for path in made.glob("chunk/*")) == [f"{k}.zr" for k in range(5)]
    with sw.RecordWriter(made, mode="a") as writer:  # goes on in the chunk that is not full
        writer.append(records(47, 3))
        assert len(list(made.glob("chunk/*"))) == 5
    with sw.RecordReader.open(made) as store:
        assert (len(store), store.verify().problems) == (50, ())


def test_a_dictionary_needs_records(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="text: too few records to learn a dictionary from"):
        learned(tmp_path / "words", FIELDS, records(0, 3))


def test_a_pack_takes_over_images(tmp_path: Path) -> None:
    payloads = [bytes([k]) * (k * 7 + 1) for k in range(60)]
    with sw.PackWriter(tmp_path / "one", align=64) as writer:
        for payload in payloads:
            writer.append(payload, 16)
    with sw.PackWriter(tmp_path / "made", align=64, expect=60) as writer:
        maker = EntryMaker(64, Codec.NONE, 3, None)
        for some in (payloads[:7], payloads[7:8], payloads[8:]):
            image, entries, tallies = maker.prepare(some, [16] * len(some))
            at = writer.reserve(entries, tallies, _core.crc32c(image), len(image))
            with writer.beside.open("r+b") as file:
                file.seek(at)
                file.write(image.tobytes())
    assert (tmp_path / "made").read_bytes() == (tmp_path / "one").read_bytes()
