"""Record stores whose numbers lie, with sums that fit: what is believed is what the page says."""

import json
import resource
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import SANITIZED, children
from tests.damaged_records import NAMES, Files, before_the_journal, look, make, put
from tests.reference.records import (
    ENTRY,
    FRAME,
    ZSTD,
    Broken,
    Change,
    Chunk,
    Commit,
    Compress,
    build_commit,
    crc32c,
    frame,
    frames,
    meta_sum,
    parse_journal,
    read_store,
    table_sums,
)

EDGES = [0, 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**59, 2**60 - 1, 2**63 - 1, 2**63, 2**64 - 1]
NONSENSE = [
    -1,
    2**64,
    10**30,
    1.5,
    1e300,
    "1",
    None,
    True,
    [],
    [[0, 0]],
    [[0, 0, 0]],
    [[0, 2**64, 1]],
]
MEMBERS = [
    "length",
    "generation",
    "commit",
    "peak",
    "deletes",
    "num",
    "first",
    "size",
    "unfull",
    "fields",
]


def meta_lies(files: Files) -> Iterator[tuple[str, Files]]:
    files = {name: data for name, data in files.items() if name != "writer.lock"}
    for member in [*MEMBERS, "chunks", "attributes", "version", "format"]:
        for value in [*EDGES, *NONSENSE]:
            text = json.loads(files["meta.json"])
            (text["chunks"] if member in text["chunks"] else text)[member] = value
            yield f"{member} {value}", {**files, "meta.json": _summed(text)}
        text = json.loads(files["meta.json"])
        (text["chunks"] if member in text["chunks"] else text).pop(member)
        yield f"no {member}", {**files, "meta.json": _summed(text)}
    for place in range(3):
        for edge in EDGES:
            text = json.loads(files["meta.json"])
            for chunk in text["chunks"]["unfull"]:
                chunk[place] = edge
            yield f"unfull {place} {edge}", {**files, "meta.json": _summed(text)}


def _summed(text: dict[str, Any]) -> bytes:
    return json.dumps({**text, "crc32c": meta_sum(text)}).encode()


DTYPES: list[Any] = ["O", "f4,f4", "nothing", "|V0", "<U0", "<f99", "", "<i4", ">i8", "<f8", "str"]
SHAPES: list[Any] = [[0], [2**32], [2**62], [2**63], [2**64], [2**32, 2**32], [None], [1, None]]
NAMED: list[Any] = ["", "../n", "a.b", "n" * 64, "ä", "n\n", "text", "TEXT", 3, None]
FIELD_LIES: list[dict[str, Any]] = [
    *({"dtype": dtype} for dtype in [*DTYPES, "bytes", "|S8", "[" * 10**5, 3, None]),
    *({"shape": shape} for shape in [*SHAPES, [-1], [1.5], "3", None, 3, [[1]], [1] * 99]),
    *({"name": name} for name in NAMED),
    *({"compress": compress} for compress in ("zip", "", 3, None)),
    *({"level": 10**30}, {"level": -1}, {"level": "x"}, {"level": []}),
    *({"optional": value} for value in (True, False, None, 1, "no")),
]


def field_lies(files: Files) -> Iterator[tuple[str, Files]]:
    for lie in FIELD_LIES:
        text = json.loads(files["meta.json"])
        text["fields"][0].update(lie)
        yield f"fields {str(lie)[:50]}", {**files, "meta.json": _summed(text)}
    told: list[Any] = [[], [{}], [None], [[]], "x", {}, 3]
    for lies in told:
        text = json.loads(files["meta.json"])
        yield f"fields {lies}", {**files, "meta.json": _summed({**text, "fields": lies})}


def entry_lies(files: Files) -> Iterator[tuple[str, Files]]:
    for name in NAMES:
        table = files[f"{name}.offset"]
        for start, size in ((0, 8), (8, 4), (12, 4)):
            near = [int.from_bytes(table[start : start + size], "little") + d for d in (-8, 8, 1)]
            for edge in [*EDGES, 24, 32, 56, *near]:
                if 0 <= edge < 1 << 8 * size:
                    told = edge.to_bytes(size, "little")
                    made = table[:start] + told + table[start + size :]
                    sums = table_sums(made)
                    lie = {f"{name}.offset": made, f"{name}.sums": sums}
                    yield f"{name} entry {start} {edge}", {**files, **lie}


def frame_lies(files: Files) -> Iterator[tuple[str, Files]]:
    chunk = files["chunk/0.zr"]
    for offset, row, field, *_ in [*frames(chunk, len(chunk))][:3]:
        for start, size in ((0, 8), (8, 4), (12, 4), (16, 4), (20, 2), (22, 2)):
            for edge in [*EDGES, 2, 3, 4, 5, 9, 54, 2**32 - 54, 2**16 - 1]:
                if edge < 1 << 8 * size:
                    at = offset - FRAME + start
                    made = chunk[:at] + edge.to_bytes(size, "little") + chunk[at + size :]
                    yield f"frame {row} {field} {start} {edge}", {**files, "chunk/0.zr": made}


def zstd_lies(files: Files) -> Iterator[tuple[str, Files]]:
    """A zstd frame of a few bytes that says it has gigabytes, or does not say how many."""
    for size in (2**31, 2**32 - 8):
        for head in (b"\xe0" + struct.pack("<Q", size), b"\0\x60"):
            stored = b"\x28\xb5\x2f\xfd" + head + b"\1\0\0"
            chunk = files["chunk/0.zr"] + frame(0, 2, ZSTD, stored, size)
            entry = struct.pack("<QII", len(files["chunk/0.zr"]) + FRAME, 0, len(stored))
            table = entry + files["text.offset"][ENTRY:]
            lie = {"text.offset": table, "text.sums": table_sums(table), "chunk/0.zr": chunk}
            yield f"zstd of {size}, {len(stored)} bytes", {**files, **lie}


def journal_lies(files: Files) -> Iterator[tuple[str, Files]]:
    """The first commit says something else of the store, of its chunks and of its records."""
    commits = parse_journal(files["journal.zr"], len(NAMES))

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
            yield lie(f"chunk {edge}", lambda c, e=edge: c.unfull.append(Chunk(e, 8, 1)))  # type: ignore[misc]
    yield lie("no fields", lambda c: c.changes.clear())
    yield lie("one field more", lambda c: c.changes.append(Change()))
    whole = build_commit(commits[0])
    for at in (44, 72, 80, 88, 96):  # how many there are of something
        for edge in EDGES:
            told = whole[:at] + struct.pack("<Q", edge)[: 4 if at == 44 else 8]
            told += whole[len(told) :]
            body = told[8:]
            summed = struct.pack("<4sI", b"ZRJL", crc32c(body)) + body
            yield f"count at {at} {edge}", {**files, "journal.zr": summed}


EACH = [(lies, "raw") for lies in (meta_lies, field_lies, entry_lies, zstd_lies, journal_lies)]
FRAMES = [(frame_lies, compress) for compress in ("raw", "flate", "zstd", "lz4")]


@pytest.mark.parametrize(("lies", "compress"), [*EACH, *FRAMES])
def test_numbers_that_lie(
    quick_path: Path,
    lies: Callable[[Files], Iterator[tuple[str, Files]]],
    compress: Compress,
) -> None:
    """Whatever is said, what is believed is what the reference believes, in little memory."""
    closed = lies is not journal_lies
    sample = make(quick_path, compress, deletes=not closed, closed=closed)
    files = sample.files if closed else before_the_journal(sample)

    def judge() -> list[str]:
        if not SANITIZED:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + (1 << 29)
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        wrong = []
        for what, told in lies(files):
            path = put(quick_path / "a", told)
            try:
                want = read_store(path).records
            except (Broken, FileNotFoundError):
                want = None
            try:
                got = look(path)
            except Exception as error:
                wrong.append(f"{what}: {type(error).__name__}: {error}")
                continue
            if got != want and not (got is None and _may_be_refused(what)):
                wrong.append(f"{what}: {'refused' if got is None else 'read'}")
        return wrong

    wrong = children.in_fork(judge)
    assert not wrong, "\n".join(wrong[:20])


def _may_be_refused(what: str) -> bool:
    """Things that the page says nothing of, and that nothing writes."""
    return "level" in what or "shape" in what or what.startswith("length")
