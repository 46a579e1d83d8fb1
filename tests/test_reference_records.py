"""docs/formats/records.md and its reference: the store of the page, what is read, what refused."""

import json
import os
import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings, strategies as st

from stepwell import Field as PackageField, RecordReader, RecordWriter
from tests.reference.records import (
    BLOCK,
    CODECS,
    ENTRY,
    FRAME,
    RAW,
    ZSTD_DICT,
    Broken,
    BrokenChecksum,
    BrokenVersion,
    Change,
    Commit,
    Field,
    Store,
    build_commit,
    frames,
    meta_sum,
    parse_journal,
    read_store,
    table_sums,
    write_store,
)
from tests.reference.runs import block, breakdown_of, file_of

PAGE = "records.md"
CHUNK, MORE, JOURNAL = (file_of(PAGE, f"records-{name}") for name in ("chunk", "more", "journal"))
TABLES = ("n-offset", "n-sums", "text-offset", "text-sums")

FIELDS = [
    Field("label", "<i8", []),
    Field("image", "|u1", [4, 30], "flate"),
    Field("tokens", "<u2", [None, 2], "lz4"),
    Field("text", "str", [None], "zstd", 7),
    Field("blob", "bytes", [None], "zstd-dict"),
]


def record(number: int) -> dict[str, bytes | None]:
    made: dict[str, bytes | None] = {
        "label": struct.pack("<q", -number),
        "image": bytes([number % 256, 7]) * 60,
        "tokens": struct.pack("<HH", number % 99, 2) * (number % 40),
        "text": ("häuser " * (number % 9)).encode(),
        "blob": b"known by heart, %d" % (number % 3) * (number % 4),
    }
    for position, name in enumerate(made):
        if number % 11 == position:
            made[name] = None
    return made


@cache
def dictionary() -> bytes:
    samples: list[Any] = [b"known by heart, %d and %d of it" % (i % 3, i) for i in range(500)]
    return zstandard.train_dictionary(512, samples).as_bytes()


def a_store(count: int, **options: Any) -> Store:
    options = {"dictionaries": {"blob": dictionary()}, **options}
    return Store(FIELDS, [record(number) for number in range(count)], **options)


# The store of the page.


def bytes_of(name: str) -> bytes:
    """A file, out of its annotated lines."""
    at, parts = 0, []
    for offset, part in breakdown_of(PAGE, f"records-{name}"):
        assert offset == at
        parts.append(part)
        at += len(part)
    return b"".join(parts)


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "page"
    (path / "chunk").mkdir(parents=True)
    (path / "chunk/0.zr").write_bytes(CHUNK)
    (path / "meta.json").write_text(block(PAGE, "json", "records-meta"))
    for name in TABLES:
        (path / name.replace("-", ".")).write_bytes(bytes_of(name))
    return path


def test_the_breakdown_is_the_file() -> None:
    for name, data in (("chunk", CHUNK), ("more", MORE), ("journal", JOURNAL)):
        assert bytes_of(name) == data


def test_the_store_of_the_page(page: Path) -> None:
    n = [struct.pack("<q", number) for number in (7, -1, 5)]
    assert read_store(page).records == [{"n": n[0], "text": b"abc"}, {"n": n[1], "text": None}]
    with RecordReader.open(page) as store:
        assert store["n"][:].tolist() == [7, -1]
        assert store["text"][:] == ["abc", ""]
        assert store.present([0, 1])["text"].tolist() == [True, False]
        assert store.verify().ok
    (page / "chunk/0.zr").write_bytes(CHUNK + MORE)
    (page / "journal.zr").write_bytes(JOURNAL)
    assert [c.number for c in parse_journal(JOURNAL, 2)] == [3, 4]
    assert b"".join(map(build_commit, parse_journal(JOURNAL, 2))) == JOURNAL
    assert read_store(page).records == [{"n": n[2], "text": b"c"}, {"n": n[1], "text": None}]
    with RecordReader.open(page) as store:
        assert store["n"][:].tolist() == [5, -1]
        assert store["text"][:] == ["c", ""]
        assert store.verify().ok


def test_the_package_writes_the_store_of_the_page(page: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    made = {
        "n": PackageField("<i8", optional=True),
        "text": PackageField(str, optional=True),
    }
    with RecordWriter(mine, made, attributes={"by": "hand"}) as store:
        store.append({"n": [7, -1], "text": ["ab", None]})
        store.commit()
        store.update([0], {"text": ["abc"]})
    text = json.loads((mine / "meta.json").read_text())
    wanted = json.loads(block(PAGE, "json", "records-meta"))
    assert list(text) == list(wanted)
    assert text["crc32c"] == meta_sum(text)
    text["id"] = wanted["id"]  # each store has its own
    assert {**text, "crc32c": meta_sum(text)} == wanted
    for name in ("chunk/0.zr", *(name.replace("-", ".") for name in TABLES)):
        assert (mine / name).read_bytes() == (page / name).read_bytes()
    assert (mine / "journal.zr").read_bytes() == b""
    with RecordWriter(mine, mode="a") as store:
        store.append({"n": [5], "text": ["c"]})
        store.commit()
        store.delete([0])
        store.commit()
        with (mine / "chunk/0.zr").open("rb") as chunk, (mine / "journal.zr").open("rb") as journal:
            assert chunk.read(len(CHUNK + MORE)) == CHUNK + MORE
            assert journal.read(len(JOURNAL)) == JOURNAL


# What it writes it reads.


@pytest.mark.parametrize("count", [0, 1, 9, BLOCK + 3])
@pytest.mark.parametrize("chunk_records", [1, 4, 8192])
def test_what_it_writes_it_reads(quick_path: Path, count: int, chunk_records: int) -> None:
    store = a_store(count, chunk_records=chunk_records, attributes={"ä": 1.5}, commit=7)
    write_store(quick_path / "a", store)
    got = read_store(quick_path / "a")
    assert got.records == store.records
    assert (got.fields, got.attributes, got.commit) == (FIELDS, {"ä": 1.5}, 7)
    found = []
    for number in range(-(-count // chunk_records)):
        chunk = (quick_path / "a" / "chunk" / f"{number}.zr").read_bytes()
        found += [(row, field) for _, row, field, *_ in frames(chunk, len(chunk))]
    assert found == [
        (row, position)
        for row, given in enumerate(store.records)
        for position, value in enumerate(given.values())
        if value is not None
    ]


def test_a_later_generation(quick_path: Path) -> None:
    store = a_store(20, generation=3, first_chunk=5, peak=31, chunk_records=6)
    write_store(quick_path / "a", store)
    assert (quick_path / "a" / "text.3.sums").exists()
    assert (quick_path / "a" / "chunk" / "8.zr").exists()
    got = read_store(quick_path / "a")
    assert got.records == store.records
    assert (got.generation, got.first_chunk, got.peak) == (3, 5, 31)


@given(commits=st.lists(st.integers(0, 3), max_size=4), codec=st.sampled_from([*CODECS.values()]))
@settings(max_examples=30)
def test_any_journal_and_codec(
    tmp_path_factory: pytest.TempPathFactory, commits: list[int], codec: int
) -> None:
    path = tmp_path_factory.mktemp("store") / "a"
    store = a_store(12, commit=len(commits) + 1, chunk_records=5)
    write_store(path, store, commits=commits, codec=lambda row, field: (row + codec) % 5)
    assert read_store(path).records == store.records
    assert read_store(path).commit == store.commit


def test_a_journal_cut_anywhere(quick_path: Path) -> None:
    path = quick_path / "a"
    write_store(path, a_store(9, commit=4), commits=[2, 0, 1])
    whole = (path / "journal.zr").read_bytes()
    ends = [0]
    for commit in parse_journal(whole, len(FIELDS)):
        ends.append(ends[-1] + len(build_commit(commit)))
    assert ends[-1] == len(whole)
    for size in range(0, len(whole) + 1, 4):
        (path / "journal.zr").write_bytes(whole[:size] + os.urandom(size % 100))
        kept = sum(end <= size for end in ends) - 1
        assert len(read_store(path).records) == [6, 8, 8, 9][kept]
        assert read_store(path).commit == kept + 1


def test_commits_that_are_there_already(quick_path: Path) -> None:
    path = quick_path / "a"
    write_store(path, a_store(9, commit=4), commits=[2, 1])
    meta = json.loads((path / "meta.json").read_text())
    (path / "meta.json").write_text(json.dumps({**meta, "commit": 4, "crc32c": ""}))
    with pytest.raises(BrokenChecksum, match=r"meta\.json"):
        read_store(path)
    del meta["crc32c"]
    for number, length in ((4, 6), (9, 6), (2, 9)):
        (path / "meta.json").write_text(json.dumps({**meta, "commit": number}))
        assert len(read_store(path).records) == length
    (path / "meta.json").write_text(json.dumps({**meta, "commit": 1}))
    with pytest.raises(BrokenChecksum, match="commit 3 is there, 2 is not"):
        read_store(path)


def test_a_commit_that_was_damaged(quick_path: Path) -> None:
    path = quick_path / "a"
    write_store(path, a_store(9, commit=4), commits=[2, 1])
    journal = bytearray((path / "journal.zr").read_bytes())
    journal[60] ^= 1
    (path / "journal.zr").write_bytes(journal)
    with pytest.raises(BrokenChecksum, match="commit 4 is there, 3 is not"):
        read_store(path)


def test_a_journal_of_updates_and_deletes(quick_path: Path) -> None:
    """Record 1 becomes record 8, the last one; then record 0 loses its text."""
    path = quick_path / "a"
    store = a_store(9)
    write_store(path, store)
    last = [(path / f"{field.name}.offset").read_bytes()[8 * ENTRY :] for field in FIELDS]
    unfull = read_store(path).unfull
    moved = [Change(changed=[(1, entry)]) for entry in last]
    cleared = [Change(changed=[(0, bytes(16))] * (field.name == "text")) for field in FIELDS]
    journal = build_commit(Commit(2, 8, 9, 1, unfull, moved))
    journal += build_commit(Commit(3, 8, 9, 1, unfull, cleared))
    (path / "journal.zr").write_bytes(journal)
    want = [record(number) for number in (0, 8, *range(2, 8))]
    assert read_store(path).records == [{**want[0], "text": None}, *want[1:]]


# What it refuses.


def meta(**members: Any) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        text = json.loads((path / "meta.json").read_text())
        for name, value in members.items():
            text["chunks" if name in text["chunks"] else name] = (
                {**text["chunks"], name: value} if name in text["chunks"] else value
            )
        (path / "meta.json").write_text(json.dumps({**text, "crc32c": meta_sum(text)}))

    return change


def entry(offset: int, chunk: int, length: int) -> Callable[[Path], None]:
    """Another entry for the text of record 5, with the sum that fits."""

    def change(path: Path) -> None:
        table = bytearray((path / "text.offset").read_bytes())
        table[5 * ENTRY : 6 * ENTRY] = struct.pack("<QII", offset, chunk, length)
        (path / "text.offset").write_bytes(table)
        (path / "text.sums").write_bytes(table_sums(bytes(table)))

    return change


def payload(at: int, value: int) -> Callable[[Path], None]:
    """Another byte in the frame of the text of record 5."""

    def change(path: Path) -> None:
        chunk = bytearray((path / "chunk/0.zr").read_bytes())
        (place,) = [
            o for o, row, field, *_ in frames(bytes(chunk), len(chunk)) if (row, field) == (5, 3)
        ]
        assert chunk[place - FRAME + at] != value
        chunk[place - FRAME + at] = value
        (path / "chunk/0.zr").write_bytes(chunk)

    return change


def cut(name: str, size: int) -> Callable[[Path], None]:
    return lambda path: os.truncate(path / name, (path / name).stat().st_size - size)


@pytest.mark.parametrize(
    ("change", "message", "kind"),
    [
        (meta(version=2), "version 2", BrokenVersion),
        (meta(format="other"), "another format", Broken),
        (meta(length=10), "length 10, peak 9", Broken),
        (meta(length=10, peak=10), "9 entries of 10", Broken),
        (meta(length=-1), "length: -1", Broken),
        (meta(length=2**63), "length", Broken),
        (meta(num=0), "unfull", Broken),
        (meta(unfull=[[0, 4, 9]]), "next frame at 4", Broken),
        (meta(fields=[{"name": "a.b", "dtype": "<i8", "shape": []}]), "a.b", Broken),
        (
            meta(fields=[{"name": "a", "dtype": "O", "shape": [], "compress": "raw"}]),
            "dtype",
            Broken,
        ),
        (entry(24, 0, 1), "a frame of something else", Broken),
        (entry(25, 0, 1), "a payload at 25", Broken),
        (entry(8, 0, 1), "a payload at 8", Broken),
        (entry(24, 1, 1), "chunk 1", Broken),
        (entry(2**63, 0, 1), "a payload at", Broken),
        (entry(2**40, 0, 1), "chunk 0 ends before", Broken),
        (payload(8, 99), "something else", Broken),
        (payload(12, 99), "unpacks to", Broken),
        (payload(20, 1), "something else", Broken),
        (payload(22, 9), "codec 9", Broken),
        (payload(22, RAW), "unpacks to", Broken),
        (payload(22, ZSTD_DICT), "without its dictionary", Broken),
        (payload(16, 1), "text: chunk 0", BrokenChecksum),
        (payload(24, 0), "text: chunk 0", BrokenChecksum),
        (cut("text.offset", 1), "8 entries of 9", Broken),
        (cut("text.sums", 1), r"text\.sums: block 0", BrokenChecksum),
        (cut("blob.dict", 1), r"blob\.dict", BrokenChecksum),
        (cut("chunk/0.zr", 40), "chunk 0", Broken),
    ],
)
def test_what_breaks_a_must(
    quick_path: Path, change: Callable[[Path], None], message: str, kind: type[Exception]
) -> None:
    path = quick_path / "a"
    write_store(path, a_store(9))
    change(path)
    with pytest.raises(kind, match=message):
        read_store(path)
