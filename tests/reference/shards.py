"""docs/formats/shards.md in plain Python: struct for the values, json for the list.

Nothing here is shared with the package, so where the two agree, two readers of the page did.
Files are read whole and written whole; nothing is mended, nothing is locked.
"""

import json
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.reference.runs import crc32c

KINDS = ["float32", "float16", "bfloat16"]
SIZES = {"float32": 4, "float16": 2, "bfloat16": 2}
HEADER = 32
BLOCK = 4096
MASK = (1 << 64) - 1

Row = tuple[float, ...]


class Broken(ValueError):
    """What breaks a MUST of the page."""


class BrokenVersion(Broken):
    """A dtype that the page does not describe."""


class BrokenChecksum(Broken):
    """Bytes that are not those that were summed."""


@dataclass
class Shard:
    rows: list[Row]
    width: int
    kind: str
    surplus: int = 0
    """Bytes behind the last row."""


# A shard.


def read_shard(data: bytes) -> Shard:
    if len(data) < HEADER or data[:8] != b"GAMSAE01":
        raise Broken("no shard")
    count, width = struct.unpack("<QQ", data[8:24])
    tag, reserved = struct.unpack("<II", data[24:32])
    if tag >= len(KINDS):
        raise BrokenVersion(f"dtype {tag}")
    kind = KINDS[tag]
    if reserved or not width or count * width * SIZES[kind] > 1 << 62:
        raise Broken(f"{count} rows of {width} values, {reserved}")
    end = HEADER + count * width * SIZES[kind]
    if end > len(data):
        raise Broken(f"expected {end} bytes, got {len(data)}")
    flat = floats(data[HEADER:end], kind)
    rows = [tuple(flat[i * width : (i + 1) * width]) for i in range(count)]
    return Shard(rows, width, kind, len(data) - end)


def header(count: int, width: int, tag: int, reserved: int = 0) -> bytes:
    return b"GAMSAE01" + struct.pack("<QQII", count, width, tag, reserved)


def floats(data: bytes, kind: str) -> list[float]:
    count = len(data) // SIZES[kind]
    if kind == "bfloat16":  # the upper half of a float32
        data = b"".join(b"\0\0" + data[at : at + 2] for at in range(0, len(data), 2))
    return list(struct.unpack(f"<{count}{'e' if kind == 'float16' else 'f'}", data))


# A corpus.


def names_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.shard"), key=lambda path: os.fsencode(path.name))


def read_corpus(paths: Sequence[Path]) -> list[Shard]:
    shards = [read_shard(path.read_bytes()) for path in paths]
    if len({(shard.width, shard.kind) for shard in shards}) > 1:
        raise Broken("shards of several widths or dtypes")
    if not any(shard.rows for shard in shards):
        raise Broken("no rows")
    return shards


def batches(
    shards: Sequence[Shard], batch_rows: int | None = None
) -> Iterator[tuple[list[Row], list[int]]]:
    total = sum(len(shard.rows) for shard in shards)
    size = min(1024, total) if batch_rows is None else batch_rows
    first = 0
    for shard in shards:
        for begin in range(0, len(shard.rows), size):
            rows = shard.rows[begin : begin + size]
            yield rows, list(range(first + begin, first + begin + len(rows)))
        first += len(shard.rows)


# shards.json.


def read_list(folder: Path) -> list[Shard]:
    """The shards that were written in a bucket, in the order of their list."""
    text = json.loads((folder / "shards.json").read_text())
    if (text["format"], text["version"]) != ("stepwell-shards", 2):
        raise Broken(f"{text['format']} {text['version']}")
    others = {name: value for name, value in text.items() if name != "crc32c"}
    data = json.dumps(others, sort_keys=True, separators=(",", ":")).encode()
    if text["crc32c"] != f"{crc32c(data):08x}":
        raise BrokenChecksum("the list")
    found = []
    for entry in text["shards"]:
        data = (folder / entry["name"]).read_bytes()
        shard, payload = read_shard(data), data[HEADER:]
        wanted = entry["rows"], entry["width"], entry["dtype"], entry["crc32c"]
        if (len(shard.rows), shard.width, shard.kind, f"{crc32c(payload):08x}") != wanted:
            raise BrokenChecksum(entry["name"])
        checksums = b"STEPCRC\0" + struct.pack("<II", 1, BLOCK) + blocks(payload)
        if (folder / entry["checksums"]).read_bytes() != checksums or entry["first_block"]:
            raise BrokenChecksum(entry["checksums"])
        found.append(shard)
    return found


def write_list(folder: Path, checksums: bool = True) -> None:
    entries = []
    for path in names_in(folder):
        data = path.read_bytes()
        shard = read_shard(data)
        payload = data[HEADER : len(data) - shard.surplus]
        entries.append(
            {
                "name": path.name,
                "rows": len(shard.rows),
                "width": shard.width,
                "dtype": shard.kind,
                "crc32c": f"{crc32c(payload):08x}" if checksums else None,
            }
        )
    text = {"format": "stepwell-shards", "version": 1, "shards": entries}
    (folder / "shards.json").write_text(json.dumps(text, indent=1))


def check_folder(folder: Path) -> None:
    """What verify checks."""
    paths = names_in(folder)
    for shard in read_corpus(paths):
        if shard.surplus:
            raise Broken(f"{shard.surplus} bytes behind the last row")
    if not (folder / "shards.json").exists():
        return
    text = json.loads((folder / "shards.json").read_text())
    if (text["format"], text["version"]) != ("stepwell-shards", 1):
        raise Broken("another list")
    for entry in text["shards"]:
        if not (folder / entry["name"]).exists():
            raise Broken(f"{entry['name']} is listed and gone")
        data = (folder / entry["name"]).read_bytes()
        shard = read_shard(data)
        if (entry["rows"], entry["width"], entry["dtype"]) != (
            len(shard.rows),
            shard.width,
            shard.kind,
        ):
            raise Broken(f"{entry} is not what {entry['name']} is")
        if entry["crc32c"] is not None and int(entry["crc32c"], 16) != crc32c(data[HEADER:]):
            raise BrokenChecksum(entry["name"])
        if entry.get("first_block") is not None:
            wanted = blocks(data[HEADER:])
            stored = (folder / "shards.crc").read_bytes()
            if stored[:16] != b"STEPCRC\0" + struct.pack("<II", 1, BLOCK):
                raise Broken("no checksums")
            if stored[16 + 4 * entry["first_block"] :][: len(wanted)] != wanted:
                raise BrokenChecksum(f"blocks of {entry['name']}")


def blocks(payload: bytes) -> bytes:
    """The checksums of the blocks of a shard, as shards.crc has them."""
    crcs = [crc32c(payload[at : at + BLOCK]) for at in range(0, len(payload), BLOCK)]
    return struct.pack(f"<{len(crcs)}I", *crcs)


# Subsamples.


def splitmix64(row_id: int) -> int:
    z = (row_id + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & MASK
    return z ^ z >> 31


def kept(count: int, fraction: float) -> list[int]:
    """The ids of `count` rows that are in a subsample."""
    limit = int(fraction * 2**64)  # exact: a float times a power of two
    return [i for i in range(count) if fraction == 1 or splitmix64(i) < limit]


# Row states, of floats of four bytes.


def read_state(folder: Path) -> dict[int, Row]:
    """What a row state holds, the journal included."""
    width = json.loads((folder / "state.json").read_text())["width"]
    values, there = (folder / "values").read_bytes(), (folder / "there").read_bytes()
    checksums, size, redone = (folder / "checksums").read_bytes(), 4 * width, {}
    journal, at = (folder / "journal").read_bytes(), 0
    while at + 16 <= len(journal):
        magic, crc, length = struct.unpack_from("<4sIQ", journal, at)
        body = journal[at + 16 : at + 16 + length]
        if magic != b"RST1" or len(body) != length or crc32c(body) != crc:
            break
        (count,) = struct.unpack_from("<Q", body)
        ids = struct.unpack_from(f"<{count}Q", body, 8)
        for i, row_id in enumerate(ids):
            begin = 8 + 8 * count + i * size
            redone[row_id] = tuple(floats(body[begin : begin + size], "float32"))
        at += 16 + length
        if journal[at : at + 4] != b"RST1":
            at += 24  # a seal
    found = {}
    for i, mark in enumerate(there):
        if i in redone:  # a kill may have come in the middle of it
            continue
        row = values[i * size : (i + 1) * size]
        checksum = checksums[4 * i : 4 * i + 4].ljust(4, b"\0")  # or in that of room being made
        assert checksum == (row_checksum(i, row) if mark else bytes(4))
        if mark:
            found[i] = tuple(floats(row, "float32"))
    return found | redone


def row_checksum(row_id: int, values: bytes) -> bytes:
    return struct.pack("<I", max(crc32c(struct.pack("<Q", row_id) + values), 1))
