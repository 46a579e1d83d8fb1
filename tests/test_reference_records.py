"""The store of docs/formats/records.md, read and written by the package and by the reference.

Any other store is read by both in tests/stores/test_records.py, and refused by both in
test_records_damaged.py.
"""

import json
import struct
from pathlib import Path

import pytest

from stepwell import Field, RecordReader, RecordWriter
from tests.reference.records import build_commit, meta_sum, parse_journal, read_store
from tests.reference.runs import block, breakdown_of, file_of

PAGE = "records.md"
CHUNK, MORE, JOURNAL = (file_of(PAGE, f"records-{name}") for name in ("chunk", "more", "journal"))
OLD_JOURNAL = bytes.fromhex("""
5a524a4c64ebc20298000000000000000300000000000000030000000000000003000000000000000100000001000000
00000000000000000000000004000000c000000000000000020000000000000001000000000000000000000000000000
98000000000000000000000008000000020000000000000001000000000000000000000000000000b800000000000000
00000000010000005a524a4cb5dafeaea800000000000000040000000000000002000000000000000300000000000000
010000000100000001000000000000000000000004000000c00000000000000002000000000000000000000000000000
010000000000000000000000000000009800000000000000000000000800000002000000000000000000000000000000
01000000000000000000000000000000b8000000000000000000000001000000
""")
"""The same commits as they were written before there were seals."""
TABLES = ("n-offset", "n-sums", "text-offset", "text-sums")

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
    for journal in (JOURNAL, OLD_JOURNAL):
        (page / "journal.zr").write_bytes(journal)
        assert [c.number for c in parse_journal(journal, 2)] == [3, 4]
        assert b"".join(map(build_commit, parse_journal(journal, 2))) == JOURNAL
        assert read_store(page).records == [{"n": n[2], "text": b"c"}, {"n": n[1], "text": None}]
        with RecordReader.open(page) as store:
            assert store["n"][:].tolist() == [5, -1]
            assert store["text"][:] == ["c", ""]
            assert store.verify().ok


def test_the_package_writes_the_store_of_the_page(page: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    made = {
        "n": Field("<i8", optional=True),
        "text": Field(str, optional=True),
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
