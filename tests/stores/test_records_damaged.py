"""Damaged and contradictory record stores: exactly the last commit, or an error that says where."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
import zstandard

import stepwell as sw
from stepwell import ChecksumError, FormatError, RecordReader, RecordWriter, VersionError
from tests import SANITIZED
from tests.records import CODECS, batch, contents, copy, described, fields, stored, values
from tests.reference import records as reference
from tests.reference.records import (
    SEAL,
    Broken,
    Compress,
    Record,
    build_commit,
    parse_journal,
    read_store,
    write_store,
)

NAMES = ["n", "image", "text"]
Files = dict[str, bytes]


def table_sizes(compress: Compress, count: int) -> dict[str, int]:
    """The files of tables and checksums, and their sizes for so many records, in one block."""
    sizes = {}
    for field in described(compress, NAMES):
        sizes[reference.table_name(field, 0)] = count * field.entry_bytes
        sizes[f"{field.name}.sums"] = reference.COLUMN_CHECKSUM if field.column else 4
    return sizes


# Small stores in every state.


class Sample(NamedTuple):
    files: Files
    states: list[list[Record]]
    """What each commit had."""
    tables: Files
    """Tables as they were at the last checkpoint."""


def make(folder: Path, compress: Compress, *, closed: bool) -> Sample:
    """Appends, an update and a missing field; if it is in use, a delete in the end."""
    path, there, states = folder / "made", folder / "there", [list[Record]()]
    store = RecordWriter(path, fields(compress, NAMES), chunk_records=4)

    def commit() -> None:
        store.commit()
        states.append(read_store(path).records)

    store.append(batch([3, 1, 2], NAMES))
    commit()
    tables: Files = {}
    if not closed:  # some of it is in the tables alone
        store.close()
        tables = {name: (path / name).read_bytes() for name in table_sizes(compress, 3)}
        store = RecordWriter(path, mode="a")
    store.append(batch([4, 5], ["n", "text"]))
    store.update([0], batch([7], NAMES))
    commit()
    if closed:
        store.close()
    else:
        store.delete([1])
        commit()
    copy(path, there)
    store.close()
    found = {str(f.relative_to(there)): f for f in there.rglob("*") if f.is_file()}
    ends = {f"chunk/{chunk.number}.zr": chunk.end for chunk in read_store(there).unfull}
    ends |= table_sizes(compress, 5)
    # The room to grow into is nothing to look at.
    files = {}
    for name, file in found.items():
        with file.open("rb") as opened:
            files[name] = opened.read(ends.get(name, 1 << 16))
    commits = parse_journal(files["journal.zr"], described(compress, NAMES))
    assert len(commits) == (0 if closed else 2)
    size = sum(len(build_commit(commit)) for commit in commits)
    files["journal.zr"] = files["journal.zr"][: size + 16]
    shutil.rmtree(path)
    shutil.rmtree(there)
    return Sample(files, states, tables)


def with_a_dictionary(folder: Path) -> Sample:
    samples: list[Any] = [b"known by heart, %d and %d of it" % (i % 3, i) for i in range(500)]
    known = zstandard.train_dictionary(512, samples).as_bytes()
    records: list[Record] = [{"text": samples[i] * 2} for i in range(4)]
    field = reference.Field("text", "str", [None], "zstd-dict")
    write_store(folder / "made", reference.Store([field], records, dictionaries={"text": known}))
    names = ("meta.json", "text.offset", "text.sums", "text.dict", "chunk/0.zr", "journal.zr")
    files = {name: (folder / "made" / name).read_bytes() for name in names}
    shutil.rmtree(folder / "made")
    return Sample(files, [records], {})


def restarted(sample: Sample) -> Sample:
    """Without what the machine knew before it was started again."""
    left = {name: data for name, data in sample.files.items() if name != "writer.lock"}
    return sample._replace(files=left)


def put(path: Path, files: Files) -> Path:
    """A folder with these files and nothing else."""
    if path.exists():
        shutil.rmtree(path)
    (path / "chunk").mkdir(parents=True)
    for name, data in files.items():
        (path / name).write_bytes(data)
    return path


def look(path: Path, mode: Any = "r") -> list[Record] | None:
    """What is in the store; None for an error that names a file of it."""
    try:
        with RecordReader.open(path) if mode == "r" else RecordWriter(path, mode="a") as store:
            return contents(store)
    except FormatError as error:
        named = [error.path or "", str(error)]
    except (sw.StepwellError, FileNotFoundError) as error:
        named = [str(error)]
    assert all(str(path) in text for text in named), named
    return None


# Every byte, and every length.

EACH = {
    "raw, closed": r".*",
    **{f"{compress}, closed": r"chunk.*" for compress in CODECS if compress != "raw"},
    "with a dictionary": r"text\.dict",
    "raw, in use": r"(?!chunk).*",
    "raw, restarted": r"(?!chunk).*",
}
"""Stores, and which of their files are damaged: those that others have not damaged already."""


def sample_of(folder: Path, name: str) -> Sample:
    compress, _, state = name.partition(", ")
    if not state:
        return with_a_dictionary(folder)
    sample = make(folder, compress, closed=state == "closed")  # type: ignore[arg-type]
    return restarted(sample) if state == "restarted" else sample


@pytest.mark.parametrize("name", EACH)
def test_every_byte_changed_and_every_length(quick_path: Path, name: str) -> None:
    sample, random, path = sample_of(quick_path, name), Random(name), quick_path / "a"
    for mode in "rar":
        put(path, sample.files)
        assert look(path, mode) == sample.states[-1]
        assert read_store(path).records == sample.states[-1]
        assert RecordReader.open(path).verify().ok
    put(path, sample.files)
    wrong = []
    for file in filter(re.compile(EACH[name]).fullmatch, sample.files):
        data = sample.files[file]
        for at in range(0, len(data), 7 if SANITIZED else 1):
            changed = bytearray(data)
            changed[at] ^= 1 << random.randrange(8)
            for mode in "ra" if at % 16 == 0 else "r":
                for broken in (bytes(changed), data[:at]):
                    what = _become(path, sample, file, broken, mode)
                    if what is not None:
                        wrong.append(f"{file} {at}, {len(broken)} bytes, {mode}: {what}")
    assert wrong[:5] == []


def _become(path: Path, sample: Sample, file: str, data: bytes, mode: str) -> str | None:
    """What is wrong with what a store becomes by another content of a file."""
    _replace(path / file, data)
    try:
        got = look(path, mode)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:  # a reader has changed nothing else
        put(path, sample.files) if mode == "a" else _replace(path / file, sample.files[file])
    right = got is None or got == sample.states[-1]
    return None if right else f"{len(got or [])} records that are not those of the last commit"


def _replace(file: Path, data: bytes) -> None:
    file.unlink()  # what is mapped stays as it was
    file.write_bytes(data)


@pytest.mark.parametrize("compress", ["zstd", "raw"])
def test_a_journal_cut_anywhere(quick_path: Path, compress: Compress) -> None:
    """Power is lost while a commit is written: the tables do not have it yet."""
    sample = make(quick_path, compress, closed=False)
    before, journal = {**restarted(sample).files, **sample.tables}, sample.files["journal.zr"]
    ends = [0]
    for commit in parse_journal(journal, described(compress, NAMES)):
        ends.append(ends[-1] + len(build_commit(commit)))
    for size in range(ends[-1] + 1):
        noise = Random(size).randbytes(size % 3 * 20)
        path = put(quick_path / "a", {**before, "journal.zr": journal[:size] + noise})
        kept = sample.states[1 + sum(end - SEAL <= size for end in ends[1:])]
        assert read_store(path).records == kept
        for mode in "rar" if size % 4 == 0 or size in ends else "r":
            assert look(path, mode) == kept


@pytest.mark.parametrize(
    ("compress", "file", "says"),
    [
        ("zstd", "n.offset", "the entry of record 2 is of a commit that"),
        ("raw", "n.column", "the values do not fit the checksum that the last commit states"),
    ],
)
def test_a_table_that_is_damaged_before_a_restart(
    quick_path: Path, compress: Compress, file: str, says: str
) -> None:
    """The entry of record 1 becomes that of record 2, and the checksum of the block would be made
    again."""
    sample = make(quick_path, compress, closed=False)
    files = {**restarted(sample).files, **sample.tables}
    described_as = described(compress, NAMES)
    table, size = files[file], described_as[0].entry_bytes
    files[file] = table[:size] + table[2 * size :] + table[2 * size :]
    files["journal.zr"] = build_commit(parse_journal(files["journal.zr"], described_as)[0])
    path = put(quick_path / "a", files)
    for opened in (RecordReader.open, lambda path: RecordWriter(path, mode="a")):
        with pytest.raises(ChecksumError, match=says) as caught:
            opened(path)
        assert caught.value.path == str(path / file)


def test_a_journal_that_is_lost_after_its_commits_were_done(quick_path: Path) -> None:
    """Values were written in place: their blocks know of the commit that the journal does not."""
    sample = restarted(make(quick_path, "raw", closed=False))
    journal = sample.files["journal.zr"]
    commits = parse_journal(journal, described("raw", NAMES))
    only = {"n.column": sample.files["n.column"], "n.sums": sample.files["n.sums"]}
    for kept, says in enumerate(("commit 3 was here, .* commit 1:", "do not fit the checksum")):
        left = b"".join(map(build_commit, commits[:kept]))
        files = {**sample.files, **sample.tables, **only, "journal.zr": left}
        path = put(quick_path / "a", files)
        for opened in (RecordReader.open, lambda path: RecordWriter(path, mode="a")):
            with pytest.raises(ChecksumError, match=says):
                opened(path)


# Damage by name: what is said, by the package and by the reference.

Damage = Callable[[Path], object]


def meta(**members: Any) -> Damage:
    """Other members of meta.json, with the checksum that fits."""

    def change(path: Path) -> None:
        text = json.loads((path / "meta.json").read_text())
        for name, value in members.items():
            holder(text, name)[name] = value
        (path / "meta.json").write_bytes(summed(text))

    return change


def holder(text: dict[str, Any], member: str) -> Any:
    return text["chunks"] if member in text["chunks"] else text


def summed(text: dict[str, Any]) -> bytes:
    return json.dumps({**text, "crc32c": reference.meta_sum(text)}).encode()


def write(name: str, data: bytes | None) -> Damage:
    """Other content for a file; None: it is gone."""
    if data is None:
        return lambda path: (path / name).unlink()
    return lambda path: (path / name).write_bytes(data)


def cut(name: str, size: int) -> Damage:
    return lambda path: os.truncate(path / name, (path / name).stat().st_size - size)


BAD_FIELD = {"name": "a.b", "dtype": "<i8", "shape": [], "compress": "raw"}
DAMAGES: list[tuple[Damage, type[FormatError], str, str]] = [
    (write("meta.json", b""), FormatError, "not a meta.json", "meta.json"),
    (write("meta.json", b"\xff"), FormatError, "UnicodeDecodeError", "meta.json"),
    (write("meta.json", b"[" * 10**5), FormatError, "RecursionError", "meta.json"),
    (meta(version=3), VersionError, "expected version 2, got 3", "meta.json"),
    (meta(format="other"), FormatError, "expected the format 'zrecord'", "meta.json"),
    (meta(length="x"), FormatError, "expected a whole number .* got 'x'", "meta.json"),
    (meta(length=7), FormatError, "a peak of at least 7 records, got 6", "meta.json"),
    (meta(length=7, peak=7), FormatError, "expected 7 entries, got 6", "n.offset"),
    (meta(num=0), FormatError, "expected a chunk of this store", "meta.json"),
    (meta(unfull=[[1, 4, 2]]), FormatError, r"of this store, got \[1, 4, 2\]", "meta.json"),
    (meta(fields=[BAD_FIELD]), FormatError, "'a.b' cannot name a field", "meta.json"),
    (write("n.offset", None), FormatError, "the file is missing", "n.offset"),
    (cut("n.offset", 1), FormatError, "expected 6 entries, got 5", "n.offset"),
    (cut("n.sums", 1), ChecksumError, "checksum", "n.offset"),
    (write("chunk/0.zr", None), FormatError, "the chunk is missing", "chunk/0.zr"),
    (cut("chunk/0.zr", 30), FormatError, "expected at least .* bytes, got ", "chunk/0.zr"),
    (write("chunk/0.zr", b""), FormatError, "expected at least .* bytes, got 0", "chunk/0.zr"),
]
COLUMN_DAMAGES: list[tuple[Damage, type[FormatError], str, str]] = [
    (meta(version=1), FormatError, "version 1 has no columns", "meta.json"),
    (meta(length=7, peak=7), FormatError, "expected 7 entries, got 6", "n.column"),
    (write("n.column", None), FormatError, "the file is missing", "n.column"),
    (cut("n.column", 1), FormatError, "expected 6 entries, got 5", "n.column"),
    (write("n.sums", b""), FormatError, "the checksums are missing", "n.sums"),
    (cut("n.sums", 1), ChecksumError, "records 0 to 455: the values have a diff", "n.column"),
]
BROKEN: dict[type[FormatError], Any] = {
    FormatError: (Broken, FileNotFoundError, RecursionError),
    ChecksumError: reference.BrokenChecksum,
    VersionError: reference.BrokenVersion,
}


def six(path: Path, compress: Compress) -> Path:
    """Six records in two chunks."""
    records = [stored(values(number), NAMES) for number in range(6)]
    fields = described(compress, NAMES)
    write_store(path, reference.Store(fields, records, chunk_records=4))
    return path


@pytest.fixture
def store(quick_path: Path) -> Path:
    return six(quick_path / "a", "zstd")


CASES = [("zstd", *each) for each in DAMAGES] + [("raw", *each) for each in COLUMN_DAMAGES]


@pytest.mark.parametrize(("compress", "change", "kind", "says", "file"), CASES)
def test_a_damaged_store(
    quick_path: Path,
    compress: Compress,
    change: Damage,
    kind: type[FormatError],
    says: str,
    file: str,
) -> None:
    store = six(quick_path / "a", compress)
    change(store)
    with pytest.raises(BROKEN[kind]):
        read_store(store)
    with pytest.raises(kind, match=says) as caught:
        RecordReader.open(store)[:]
    assert str(store / file) in str(caught.value)
    with pytest.raises(kind) as caught:
        RecordWriter(store, mode="a")[:]
    assert str(store / file) in str(caught.value)


def test_the_folder_of_chunks_is_no_link(store: Path, quick_path: Path) -> None:
    (store / "chunk").rename(quick_path / "elsewhere")
    for linked in (False, True):
        if linked:
            (store / "chunk").symlink_to("../elsewhere")
        else:
            (store / "chunk").touch()
        with pytest.raises(FormatError, match="expected a folder, got ") as caught:
            RecordReader.open(store)
        assert caught.value.path == str(store / "chunk")
        with pytest.raises(FormatError, match="expected a folder, got "):
            RecordWriter(store, mode="a")
        (store / "chunk").unlink()


def test_a_store_edited_by_hand(store: Path) -> None:
    """Without the checksum of meta.json, which then is not asked for."""
    text = json.loads((store / "meta.json").read_text())
    text["attributes"] = {"seen": "by me"}
    (store / "meta.json").write_text(json.dumps(text))
    with pytest.raises(ChecksumError, match=r"expected CRC32C .*, got "):
        RecordReader.open(store)
    del text["crc32c"]
    (store / "meta.json").write_text(json.dumps(text))
    with RecordWriter(store, mode="a") as again:
        assert again.attributes == {"seen": "by me"}
        again.append(batch([6], NAMES))
    assert read_store(store).attributes == {"seen": "by me"}
