"""Record stores whose numbers lie, with checksums that fit: the page says what is believed."""

import json
import resource
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests import SANITIZED, children
from tests.reference import records as reference
from tests.reference.records import (
    ENTRY,
    FRAME,
    Broken,
    Commit,
    Compress,
    build_commit,
    frames,
    parse_journal,
    read_store,
    table_checksums,
)
from tests.stores.test_records_damaged import (
    NAMES,
    Files,
    holder,
    look,
    make,
    put,
    restarted,
    summed,
)

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
    *({"column": value} for value in (True, False, None, 1, "no")),
]
Lies = Iterator[tuple[str, Files]]


def meta_lies(files: Files) -> Lies:
    def lie(what: str, change: Callable[[dict[str, Any]], object]) -> tuple[str, Files]:
        text = json.loads(files["meta.json"])
        change(text)
        return what[:60], {**files, "meta.json": summed(text)}

    for member in MEMBERS:
        for value in [*EDGES, *NONSENSE, [[0, 2**64, 1]]]:
            said = {member: value}
            yield lie(f"{member} {value}", lambda t, m=member, s=said: holder(t, m).update(s))  # type: ignore[misc]
        yield lie(f"no {member}", lambda t, m=member: holder(t, m).pop(m))  # type: ignore[misc]
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


def column_lies(files: Files) -> Lies:
    """Marks and values, and the commit of their block."""
    table = files["n.column"]
    for what, told in overwritten(table, 9, {0: 1, 1: 8}, [2, 255]):
        lie = {"n.column": told, "n.sums": reference.column_checksums(told, 2)}
        yield f"n value {what}", {**files, **lie}
    for commit in EDGES:
        checksums = reference.column_checksums(table, commit)
        yield f"commit {commit}", {**files, "n.sums": checksums}


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
    described_as = reference.fields_of(json.loads(files["meta.json"]))
    commits = parse_journal(files["journal.zr"], described_as)
    entry = bytes(described_as[0].entry_bytes)
    text = json.loads(files["meta.json"])
    for done in range(6):  # the journal has some of these, or none that follows
        yield f"{done} commits", {**files, "meta.json": summed({**text, "commit": done})}

    def lie(what: str, change: Callable[[Commit], None]) -> tuple[str, Files]:
        (told,) = parse_journal(build_commit(commits[0]), described_as)
        change(told)
        rest = b"".join(build_commit(commit) for commit in commits[1:])
        return what, {**files, "journal.zr": build_commit(told) + rest}

    for edge in EDGES:
        for part in ("number", "length", "peak"):
            yield lie(f"{part} {edge}", lambda c, p=part, e=edge: setattr(c, p, e))  # type: ignore[misc]
        yield lie(f"entry of {edge}", lambda c, e=edge: c.changes[0].changed.append((e, entry)))  # type: ignore[misc]
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
            changed = struct.pack("<4sI", b"ZRJL", reference.crc32c(body)) + body
            yield f"count at {at} {edge}", {**files, "journal.zr": changed}


EVERY = [(lies, "raw") for lies in (meta_lies, column_lies, zstd_lies, journal_lies)]
EVERY += [(lies, "lz4") for lies in (entry_lies, journal_lies)]
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
