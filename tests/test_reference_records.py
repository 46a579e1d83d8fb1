"""The stores of docs/formats/records.md, read and written by the package and by the reference.

Any other store is read by both in tests/stores/test_records.py, and refused by both in
test_records_damaged.py.
"""

import json
import struct
from pathlib import Path

import pytest

from stepwell import Field, RecordReader, RecordWriter
from tests.reference.records import (
    Record,
    build_commit,
    fields_of,
    meta_sum,
    parse_journal,
    read_store,
)
from tests.reference.runs import block, breakdown_of, file_of

PAGE = "records.md"
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
TABLES = {
    "": ("n-column", "n-sums", "ok-column", "ok-sums", "text-offset", "text-sums"),
    "1-": ("n-offset", "n-sums", "text-offset", "text-sums"),
}
"""Of the store of today, and of that of version 1."""
TEXT = Field(str, optional=True)
FIELDS = {
    "": {"n": Field("<i8"), "ok": Field("?", optional=True), "text": TEXT},
    "1-": {"n": Field("<i8", optional=True), "text": TEXT},
}


def file(name: str) -> bytes:
    return file_of(PAGE, f"records-{name}")


def bytes_of(name: str) -> bytes:
    """A file, out of its annotated lines."""
    at, parts = 0, []
    for offset, part in breakdown_of(PAGE, f"records-{name}"):
        assert offset == at
        parts.append(part)
        at += len(part)
    return b"".join(parts)


def make(path: Path, which: str) -> Path:
    """One of the stores of the page, as it was closed."""
    (path / "chunk").mkdir(parents=True)
    (path / "chunk/0.zr").write_bytes(file(f"{which}chunk"))
    (path / "meta.json").write_text(block(PAGE, "json", f"records-{which}meta"))
    (path / "journal.zr").touch()
    for name in TABLES[which]:
        (path / name.replace("-", ".")).write_bytes(bytes_of(which + name))
    return path


def records(which: str, *rows: tuple[int, bool | None, bytes | None]) -> list[Record]:
    found: list[Record] = []
    for n, ok, text in rows:
        both: Record = {"n": struct.pack("<q", n), "text": text}
        found.append(both if which else {**both, "ok": None if ok is None else bytes([ok])})
    return found


@pytest.mark.parametrize("which", TABLES)
def test_the_breakdown_is_the_file(which: str) -> None:
    for name in ("chunk", "more", "journal"):
        assert bytes_of(which + name) == file(which + name)


@pytest.mark.parametrize("which", TABLES)
def test_a_store_of_the_page(tmp_path: Path, which: str) -> None:
    page = make(tmp_path / "page", which)
    fields = fields_of(json.loads((page / "meta.json").read_text()))
    assert read_store(page).records == records(which, (7, True, b"abc"), (-1, None, None))
    with RecordReader.open(page) as store:
        assert store["n"][:].tolist() == [7, -1]
        assert store["text"][:] == ["abc", ""]
        assert store.present([0, 1])["text"].tolist() == [True, False]
        if not which:
            assert store["ok"][:].tolist() == [True, False]
            assert store.present([0, 1])["ok"].tolist() == [True, False]
        assert store.verify().ok
    (page / "chunk/0.zr").write_bytes(file(f"{which}chunk") + file(f"{which}more"))
    whole = file(f"{which}journal")
    for journal in (whole, OLD_JOURNAL) if which else (whole,):
        (page / "journal.zr").write_bytes(journal)
        assert [c.number for c in parse_journal(journal, fields)] == [3, 4]
        assert b"".join(map(build_commit, parse_journal(journal, fields))) == whole
        assert read_store(page).records == records(which, (5, False, b"c"), (-1, None, None))
        with RecordReader.open(page) as store:
            assert store["n"][:].tolist() == [5, -1]
            assert store["text"][:] == ["c", ""]
            assert store.verify().ok


def test_the_package_writes_the_store_of_the_page(tmp_path: Path) -> None:
    mine, page = tmp_path / "mine", make(tmp_path / "page", "")
    with RecordWriter(mine, FIELDS[""], attributes={"by": "hand"}) as store:
        store.append({"n": [7, -1], "ok": [True, None], "text": ["ab", None]})
        store.commit()
        store.update([0], {"text": ["abc"]})
    text = json.loads((mine / "meta.json").read_text())
    wanted = json.loads((page / "meta.json").read_text())
    assert list(text) == list(wanted)
    assert text["crc32c"] == meta_sum(text)
    text["id"] = wanted["id"]  # each store has its own
    assert {**text, "crc32c": meta_sum(text)} == wanted
    for name in ("chunk/0.zr", "journal.zr", *(name.replace("-", ".") for name in TABLES[""])):
        assert (mine / name).read_bytes() == (page / name).read_bytes()


@pytest.mark.parametrize("which", TABLES)
def test_the_package_goes_on_with_a_store_of_the_page(tmp_path: Path, which: str) -> None:
    page = make(tmp_path / "page", which)
    with RecordWriter(page, FIELDS[which], mode="a") as store:
        store.append({"n": [5], "text": ["c"], **({} if which else {"ok": [False]})})
        store.commit()
        store.delete([0])
        store.commit()
        for name, want in (
            ("chunk/0.zr", file(f"{which}chunk") + file(f"{which}more")),
            ("journal.zr", file(f"{which}journal")),
        ):
            with (page / name).open("rb") as written:
                assert written.read(len(want)) == want
    assert json.loads((page / "meta.json").read_text())["version"] == (1 if which else 2)
