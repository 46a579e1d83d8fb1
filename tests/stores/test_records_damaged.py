"""Damaged and contradictory record stores: exactly the last commit, or an error that says where."""

import json
import os
import re
import resource
import shutil
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
import zstandard

import stepwell as sw
from stepwell import ChecksumError, FormatError, RecordReader, RecordWriter, VersionError
from tests import SANITIZED, children
from tests.records import CODECS, batch, contents, copy, described, fields, stored, values
from tests.reference import records as reference
from tests.reference.records import (
    ENTRY,
    FRAME,
    SEAL,
    Broken,
    Commit,
    Compress,
    Record,
    build_commit,
    frames,
    parse_journal,
    read_store,
    table_checksums,
    write_store,
)

NAMES = ["n", "image", "text"]
Files = dict[str, bytes]


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
        names = [f"{name}.{kind}" for name in NAMES for kind in ("offset", "sums")]
        tables = {name: (path / name).read_bytes() for name in names}
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
    ends |= {f"{name}.offset": 5 * ENTRY for name in NAMES} | {f"{name}.sums": 4 for name in NAMES}
    # The room to grow into is nothing to look at.
    files = {}
    for name, file in found.items():
        with file.open("rb") as opened:
            files[name] = opened.read(ends.get(name, 1 << 16))
    commits = parse_journal(files["journal.zr"], len(NAMES))
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


def test_a_journal_cut_anywhere(quick_path: Path) -> None:
    """Power is lost while a commit is written: the tables do not have it yet."""
    sample = make(quick_path, "zstd", closed=False)
    before, journal = {**restarted(sample).files, **sample.tables}, sample.files["journal.zr"]
    ends = [0]
    for commit in parse_journal(journal, len(NAMES)):
        ends.append(ends[-1] + len(build_commit(commit)))
    for size in range(ends[-1] + 1):
        noise = Random(size).randbytes(size % 3 * 20)
        path = put(quick_path / "a", {**before, "journal.zr": journal[:size] + noise})
        kept = sample.states[1 + sum(end - SEAL <= size for end in ends[1:])]
        assert read_store(path).records == kept
        for mode in "rar" if size % 4 == 0 or size in ends else "r":
            assert look(path, mode) == kept


def test_a_table_that_is_damaged_before_a_restart(quick_path: Path) -> None:
    """The entry of record 1 becomes that of record 2, and the checksum of the block would be made
    again."""
    sample = make(quick_path, "raw", closed=False)
    files = {**restarted(sample).files, **sample.tables}
    table = files["n.offset"]
    files["n.offset"] = table[:ENTRY] + table[2 * ENTRY :] + table[2 * ENTRY :]
    files["journal.zr"] = build_commit(parse_journal(files["journal.zr"], len(NAMES))[0])
    path = put(quick_path / "a", files)
    with pytest.raises(ChecksumError, match="the entry of record 2 is of a commit that") as caught:
        RecordReader.open(path)
    assert caught.value.path == str(path / "n.offset")


# Damage by name: what is said, by the package and by the reference.

Damage = Callable[[Path], object]


def meta(**members: Any) -> Damage:
    """Other members of meta.json, with the checksum that fits."""

    def change(path: Path) -> None:
        text = json.loads((path / "meta.json").read_text())
        for name, value in members.items():
            _holder(text, name)[name] = value
        (path / "meta.json").write_bytes(_summed(text))

    return change


def _holder(text: dict[str, Any], member: str) -> Any:
    return text["chunks"] if member in text["chunks"] else text


def _summed(text: dict[str, Any]) -> bytes:
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
    (meta(version=2), VersionError, "expected version 1, got 2", "meta.json"),
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
BROKEN: dict[type[FormatError], Any] = {
    FormatError: (Broken, FileNotFoundError, RecursionError),
    ChecksumError: reference.BrokenChecksum,
    VersionError: reference.BrokenVersion,
}


@pytest.fixture
def store(quick_path: Path) -> Path:
    """Six records in two chunks."""
    records = [stored(values(number), NAMES) for number in range(6)]
    write_store(
        quick_path / "a", reference.Store(described("zstd", NAMES), records, chunk_records=4)
    )
    return quick_path / "a"


@pytest.mark.parametrize(("change", "kind", "says", "file"), DAMAGES)
def test_a_damaged_store(
    store: Path, change: Damage, kind: type[FormatError], says: str, file: str
) -> None:
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


# Numbers that lie, with checksums that fit: what is believed is what the page says.

EDGES = [0, 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**59, 2**60 - 1, 2**63 - 1, 2**63, 2**64 - 1]
NONSENSE = [-1, 2**64, 10**30, 1.5, 1e300, "1", None, True, [], [[0, 0]], [[0, 0, 0]]]
MEMBERS = [
    *("length", "generation", "commit", "peak", "deletes", "num", "first", "size", "unfull"),
    *("fields", "chunks", "attributes", "version", "format"),
]
DTYPES: list[Any] = ["O", "f4,f4", "nothing", "|V0", "<U0", "<f99", "", "<i4", ">i8", "<f8", "str"]
SHAPES: list[Any] = [[0], [2**32], [2**62], [2**63], [2**64], [2**32, 2**32], [None], [1, None]]
NO_FIELDS: list[Any] = [[], [{}], [None], [[]], "x", {}, 3]
NAMED: list[Any] = ["", "../n", "a.b", "n" * 64, "ä", "n\n", "text", "TEXT", 3, None]
FIELD_LIES: list[dict[str, Any]] = [
    *({"dtype": dtype} for dtype in [*DTYPES, "bytes", "|S8", "[" * 10**5, 3, None]),
    *({"shape": shape} for shape in [*SHAPES, [-1], [1.5], "3", None, 3, [[1]], [1] * 99]),
    *({"name": name} for name in NAMED),
    *({"compress": compress} for compress in ("zip", "", 3, None)),
    *({"level": 10**30}, {"level": -1}, {"level": "x"}, {"level": []}),
    *({"optional": value} for value in (True, False, None, 1, "no")),
]
Lies = Iterator[tuple[str, Files]]


def meta_lies(files: Files) -> Lies:
    def lie(what: str, change: Callable[[dict[str, Any]], object]) -> tuple[str, Files]:
        text = json.loads(files["meta.json"])
        change(text)
        return what[:60], {**files, "meta.json": _summed(text)}

    for member in MEMBERS:
        for value in [*EDGES, *NONSENSE, [[0, 2**64, 1]]]:
            said = {member: value}
            yield lie(f"{member} {value}", lambda t, m=member, s=said: _holder(t, m).update(s))  # type: ignore[misc]
        yield lie(f"no {member}", lambda t, m=member: _holder(t, m).pop(m))  # type: ignore[misc]
    for place in range(3):
        for edge in EDGES:
            chunk = [edge if i == place else number for i, number in enumerate((0, 8, 1))]
            yield lie(f"unfull {chunk}", lambda t, c=chunk: t["chunks"].update(unfull=[c]))  # type: ignore[misc]
    for told in FIELD_LIES:
        yield lie(f"fields {told}", lambda t, f=told: t["fields"][0].update(f))  # type: ignore[misc]
    for odd in NO_FIELDS:
        yield lie(f"fields {odd}", lambda t, f=odd: t.update(fields=f))  # type: ignore[misc]


def overwritten(
    data: bytes, at: int, parts: dict[int, int], more: Sequence[int]
) -> Iterator[tuple[str, bytes]]:
    """Other numbers for the parts of something: where each begins, and its size."""
    for start, size in parts.items():
        begin, end = at + start, at + start + size
        there = int.from_bytes(data[begin:end], "little")
        for edge in [*EDGES, *more, there - 8, there + 8, there + 1]:
            if 0 <= edge < 1 << 8 * size:
                told = edge.to_bytes(size, "little")
                yield f"{start} {edge}", data[:begin] + told + data[end:]


def entry_lies(files: Files) -> Lies:
    for name in NAMES:
        table = files[f"{name}.offset"]
        for what, told in overwritten(table, 0, {0: 8, 8: 4, 12: 4}, [24, 32, 56]):
            lie = {f"{name}.offset": told, f"{name}.sums": table_checksums(told)}
            yield f"{name} entry {what}", {**files, **lie}


def frame_lies(files: Files) -> Lies:
    chunk = files["chunk/0.zr"]
    parts, more = {0: 8, 8: 4, 12: 4, 16: 4, 20: 2, 22: 2}, [2, 3, 4, 5, 9, 54, 2**32 - 54]
    for offset, row, field, *_ in [*frames(chunk, len(chunk))][:3]:
        for what, told in overwritten(chunk, offset - FRAME, parts, [*more, 2**16 - 1]):
            yield f"frame {row} {field} {what}", {**files, "chunk/0.zr": told}


def zstd_lies(files: Files) -> Lies:
    """A zstd frame of a few bytes that says it has gigabytes, or does not say how many."""
    for size in (2**31, 2**32 - 8):
        for head in (b"\xe0" + struct.pack("<Q", size), b"\0\x60"):
            packed = b"\x28\xb5\x2f\xfd" + head + b"\1\0\0"
            chunk = files["chunk/0.zr"] + reference.frame(0, 2, reference.ZSTD, packed, size)
            place = struct.pack("<QII", len(files["chunk/0.zr"]) + FRAME, 0, len(packed))
            table = place + files["text.offset"][ENTRY:]
            lie = {"text.offset": table, "text.sums": table_checksums(table), "chunk/0.zr": chunk}
            yield f"zstd of {size}, {len(packed)} bytes", {**files, **lie}


def journal_lies(files: Files) -> Lies:
    """The first commit says something else of the store, of its chunks and of its records."""
    commits = parse_journal(files["journal.zr"], len(NAMES))
    text = json.loads(files["meta.json"])
    for done in range(6):  # the journal has some of these, or none that follows
        yield f"{done} commits", {**files, "meta.json": _summed({**text, "commit": done})}

    def lie(what: str, change: Callable[[Commit], None]) -> tuple[str, Files]:
        (told,) = parse_journal(build_commit(commits[0]), len(NAMES))
        change(told)
        rest = b"".join(build_commit(commit) for commit in commits[1:])
        return what, {**files, "journal.zr": build_commit(told) + rest}

    for edge in EDGES:
        for part in ("number", "length", "peak"):
            yield lie(f"{part} {edge}", lambda c, p=part, e=edge: setattr(c, p, e))  # type: ignore[misc]
        yield lie(f"entry of {edge}", lambda c, e=edge: c.changes[0].changed.append((e, bytes(16))))  # type: ignore[misc]
        yield lie(f"first {edge}", lambda c, e=edge: setattr(c.changes[1], "first", e))  # type: ignore[misc]
        if edge < 2**32:
            yield lie(f"next chunk {edge}", lambda c, e=edge: setattr(c, "next_chunk", e))  # type: ignore[misc]
            yield lie(f"chunk {edge}", lambda c, e=edge: c.unfull.append(reference.Chunk(e, 8, 1)))  # type: ignore[misc]
    yield lie("no fields", lambda c: c.changes.clear())
    yield lie("one field more", lambda c: c.changes.append(reference.Change()))
    whole = build_commit(commits[0])
    for at in (44, 72, 80, 88, 96):  # how many there are of something
        for edge in EDGES:
            told = whole[:at] + struct.pack("<Q", edge)[: 4 if at == 44 else 8]
            body = told[8:] + whole[len(told) :]
            summed = struct.pack("<4sI", b"ZRJL", reference.crc32c(body)) + body
            yield f"count at {at} {edge}", {**files, "journal.zr": summed}


EVERY = [(lies, "raw") for lies in (meta_lies, entry_lies, zstd_lies, journal_lies)]
FRAMES = [(frame_lies, compress) for compress in ("raw", "flate", "zstd", "lz4")]


@pytest.mark.parametrize(("lies", "compress"), [*EVERY, *FRAMES])
def test_numbers_that_lie(
    quick_path: Path, lies: Callable[[Files], Lies], compress: Compress
) -> None:
    """Whatever is said, what is believed is what the reference believes, in little memory."""
    sample = make(quick_path, compress, closed=lies is not journal_lies)
    files = (
        {**restarted(sample).files, **sample.tables}
        if lies is journal_lies
        else restarted(sample).files
    )

    def judge() -> list[str]:
        if not SANITIZED:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + (1 << 29)
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        wrong = []
        for what, told in lies(files):
            path, want = put(quick_path / "a", told), None
            with suppress(Broken, FileNotFoundError):
                want = read_store(path).records
            try:
                got = look(path)
            except Exception as error:
                wrong.append(f"{what}: {type(error).__name__}: {error}")
                continue
            # The page says nothing of levels and of shapes that nothing writes.
            refused = "level" in what or "shape" in what or what.startswith("length")
            if got != want and not (got is None and refused):
                wrong.append(f"{what}: {'refused' if got is None else 'read'}")
        return wrong

    wrong = children.in_fork(judge)
    assert not wrong, "\n".join(wrong[:20])
