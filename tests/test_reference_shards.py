"""docs/formats/shards.md, its reference and the package agree, each reading what another wrote."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell import ShardReader, ShardWriter
from stepwell.stores import RowState
from stepwell.stores.shards.reader import splitmix64
from tests import ROOT
from tests.reference import shards as reference
from tests.reference.runs import crc32c, file_of
from tests.shards import COUNTS, assert_same, build

PAGE = (ROOT / "docs" / "formats" / "shards.md").read_text()
CHECKSUMS = file_of("steps.md", "checksums")
"""Without any: a file of shards has the same header."""
KINDS = pytest.mark.parametrize("kind", reference.KINDS)


def page_shard() -> bytes:
    """The shard of the page, out of its hex; the text beside it is for people."""
    (text,) = re.findall(r"^```hex shard\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return b"".join(bytes.fromhex(line.split("    ")[0]) for line in text.splitlines())


def page_list() -> dict[str, Any]:
    text, _ = re.findall(r"^```json\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    found: dict[str, Any] = json.loads(text)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The corpus of the page."""
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "000000.shard").write_bytes(page_shard())
    (tmp_path / "page" / "shards.json").write_text(json.dumps(page_list()))
    (tmp_path / "page" / "shards.crc").write_bytes(CHECKSUMS + reference.blocks(page_shard()[32:]))
    return tmp_path / "page"


def test_the_shard_of_the_page(folder: Path) -> None:
    shard = reference.read_shard(page_shard())
    assert (shard.rows, shard.kind, shard.surplus) == ([(1, 2, 3), (4, 5, 6)], "float32", 0)
    reader = ShardReader.open(folder)
    assert (len(reader), reader.width, reader.stored_dtype) == (2, 3, "float32")
    assert reader[:]["data"].tolist() == [[1, 2, 3], [4, 5, 6]]


def test_the_sum_of_the_page(folder: Path) -> None:
    assert page_list()["shards"][0]["crc32c"] == f"{crc32c(page_shard()[32:]):08x}"
    reference.check_folder(folder)
    assert ShardReader.open(folder).verify().ok


def test_the_package_writes_the_corpus_of_the_page(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "mine", 3) as writer:
        writer.append([[1, 2, 3], [4, 5, 6]])
    assert (tmp_path / "mine" / "000000.shard").read_bytes() == page_shard()
    mine = json.loads((tmp_path / "mine" / "shards.json").read_text())
    (entry,) = mine["shards"]
    assert entry.pop("crc32c") == f"{crc32c(page_shard()[32:]):08x}"
    wanted = page_list()
    del wanted["shards"][0]["crc32c"]
    assert mine == wanted


def test_the_hash_of_the_page() -> None:
    (text,) = re.findall(r"splitmix64 of 0, 1, 2, 3 is\s(.*?)\. ", PAGE, re.DOTALL)
    wanted = [int(digits, 16) for digits in re.findall("`([0-9a-f]{16})`", text)]
    assert len(wanted) == 4
    assert [reference.splitmix64(i) for i in range(4)] == wanted
    assert splitmix64(np.arange(4)).tolist() == wanted
    ids = [0, 1, 2**31, 2**32 + 1, 2**53 + 1, 2**62, 2**63 - 1]
    assert splitmix64(np.array(ids)).tolist() == [reference.splitmix64(i) for i in ids]


def test_a_quarter_of_64_rows(tmp_path: Path) -> None:
    wanted = [3, 10, 18, 20, 21, 33, 40, 41, 48, 49, 57, 62]
    build(tmp_path, [64])
    assert reference.kept(64, 0.25) == wanted
    assert ShardReader.open(tmp_path).subsample(0.25).row_ids.tolist() == wanted


@KINDS
@pytest.mark.parametrize("checksums", [None, False, True])
def test_the_package_reads_what_the_reference_writes(
    tmp_path: Path, kind: str, checksums: bool | None
) -> None:
    rows = build(tmp_path, kind=kind, checksums=checksums)
    reference.check_folder(tmp_path)
    reader = ShardReader.open(tmp_path)
    assert reader.verify().ok
    assert [shard.rows for shard in reader.shards] == COUNTS
    assert {shard.crc32c is not None for shard in reader.shards} == {checksums is True}
    assert_same(reader[:]["data"], rows)
    shards = reference.read_corpus(reference.names_in(tmp_path))
    assert_same([row for shard in shards for row in shard.rows], rows)


@KINDS
def test_the_reference_reads_what_the_package_writes(tmp_path: Path, kind: str) -> None:
    rows = build(tmp_path / "theirs", kind=kind)
    with ShardWriter(tmp_path / "mine", 5, kind, shard_bytes=200) as writer:
        for begin in range(0, len(rows), 7):
            writer.append(rows[begin : begin + 7])
    reference.check_folder(tmp_path / "mine")
    shards = reference.read_corpus(reference.names_in(tmp_path / "mine"))
    assert {shard.kind for shard in shards} == {kind}
    assert len(shards) > 2
    assert_same([row for shard in shards for row in shard.rows], rows)


def test_a_state_is_what_the_page_says(tmp_path: Path) -> None:
    state = RowState(tmp_path / "a", 2, np.float32)
    for begin in (0, 7, 3):
        state.put(range(begin, begin + 5), np.arange(10, dtype=np.float32).reshape(5, 2) + begin)
        ids = np.flatnonzero(state.present(range(100))).tolist()
        want = dict(zip(ids, map(tuple, state.get(ids).tolist()), strict=True))
        assert reference.read_state(tmp_path / "a") == want  # with the journal
    state.close()
    assert (tmp_path / "a" / "journal").stat().st_size == 0
    assert reference.read_state(tmp_path / "a") == want
    assert {path.name for path in (tmp_path / "a").iterdir()} == {
        *("state.json", "values", "there", "checksums", "journal", "writer.lock")
    }
