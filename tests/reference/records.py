"""docs/formats/records.md in plain Python: zlib, zstandard and lz4 for the payloads, json.

Nothing here is shared with the package, so where the two agree, two readers of the page did.
A store is read whole, as its last commit has it, and written whole; nothing is mended, nothing
is locked. A record is a dict with the bytes of each field, None where it has none.
"""

import json
import re
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field as default
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any, Literal

import lz4.block
import numpy as np
import zstandard

from tests.reference import runs

RAW, FLATE, ZSTD, ZSTD_DICT, LZ4 = range(5)
CODECS = {"raw": RAW, "flate": FLATE, "zstd": ZSTD, "zstd-dict": ZSTD_DICT, "lz4": LZ4}
Compress = Literal["raw", "flate", "zstd", "zstd-dict", "lz4"]
ENTRY, FRAME, HEAD, SEAL, BLOCK = 16, 24, 56, 24, 256
BLOCK_BYTES, COLUMN_CHECKSUM = 4096, 12
MISSING = bytes(ENTRY)

DEFAULTS = {"optional": True, "column": False}
"""Members of a field that are left out where they are so."""

Record = dict[str, bytes | None]

crc32c = lru_cache(4096)(runs.crc32c)
"""Most bytes of a store are summed again and again while it is tested."""


class Broken(ValueError):
    """What breaks a MUST of the page."""


class BrokenVersion(Broken):
    """A version that the page does not describe."""


class BrokenChecksum(Broken):
    """Bytes that are not those that were summed."""


@dataclass
class Field:
    name: str
    dtype: str
    shape: list[int | None]
    compress: str = "raw"
    level: int | None = None
    optional: bool = True
    column: bool = False

    @property
    def entry_bytes(self) -> int:
        """What the table has for each record: a place, or a mark and the value."""
        return self.item_bytes + self.optional if self.column else ENTRY

    @property
    def item_bytes(self) -> int:
        """Bytes of a record, or of an item where their number is free."""
        if self.dtype in ("bytes", "str"):
            return 1
        return np.dtype(self.dtype).itemsize * prod(size for size in self.shape if size is not None)

    @property
    def ragged(self) -> bool:
        return self.shape[:1] == [None]


@dataclass
class Chunk:
    """One that can be written to."""

    number: int
    end: int
    records: int


@dataclass
class Change:
    """What a commit does to the table of one field."""

    first: int = 0
    appended: list[bytes] = default(default_factory=list)
    changed: list[tuple[int, bytes]] = default(default_factory=list)
    checksums: list[int] = default(default_factory=list)
    """Of a column: those of its blocks after the commit, which has this number."""
    number: int = 0

    def blocks(self, size: int) -> list[int]:
        """The blocks with a new entry, of `size` bytes each."""
        rows = [*range(self.first, self.first + len(self.appended)), *(r for r, _ in self.changed)]
        ends = [(row * size, row * size + size - 1) for row in rows]
        return sorted({at // BLOCK_BYTES for both in ends for at in both})


@dataclass
class Commit:
    number: int
    length: int
    peak: int
    next_chunk: int
    unfull: list[Chunk]
    changes: list[Change]
    """One for each field."""
    deletes: int = 0
    attributes: dict[str, Any] | None = None
    """Where it sets some."""


@dataclass
class Store:
    fields: list[Field]
    records: list[Record]
    attributes: dict[str, Any] = default(default_factory=dict)
    dictionaries: dict[str, bytes] = default(default_factory=dict)
    generation: int = 0
    commit: int = 1
    peak: int = 0
    """No less than the records."""
    first_chunk: int = 0
    chunk_records: int = 8192
    unfull: list[Chunk] = default(default_factory=list)
    deletes: int = 0
    id: str = "0123456789abcdef"


def need(holds: bool, what: str) -> None:
    if not holds:
        raise Broken(what)


def align8(offset: int) -> int:
    return -(-offset // 8) * 8


def table_name(field: Field, generation: int, kind: str = "") -> str:
    kind = kind or ("column" if field.column else "offset")
    return f"{field.name}.{generation}.{kind}" if generation else f"{field.name}.{kind}"


# Payloads.


def pack(codec: int, data: bytes, level: int | None, dictionary: bytes | None) -> bytes:
    match codec:
        case 0:
            return data
        case 1:
            deflate = zlib.compressobj(-1 if level is None else level, wbits=-15)
            return deflate.compress(data) + deflate.flush()
        case 2 | 3:
            known = zstandard.ZstdCompressionDict(dictionary) if codec == 3 and dictionary else None
            return zstandard.ZstdCompressor(level or 3, dict_data=known).compress(data)
        case 4:
            return bytes(lz4.block.compress(data, store_size=False))
    raise Broken(f"codec {codec}")


def unpack(codec: int, stored: bytes, size: int, dictionary: bytes | None) -> bytes:
    try:
        match codec:
            case 0:
                data = stored
            case 1:
                inflate = zlib.decompressobj(-15)
                data = inflate.decompress(stored, size + 1)
                need(inflate.eof and not inflate.unused_data, "flate: no end, or more behind it")
            case 2 | 3:
                need(codec == 2 or dictionary is not None, "a frame without its dictionary")
                known = zstandard.ZstdCompressionDict(dictionary) if codec == 3 else None  # type: ignore[arg-type]
                with zstandard.ZstdDecompressor(dict_data=known).stream_reader(stored) as reader:
                    data = b""
                    while len(data) <= size and (part := reader.read(1 << 20)):
                        data += part
            case 4:
                data = bytes(lz4.block.decompress(stored, uncompressed_size=size))
            case _:
                raise Broken(f"codec {codec}")
    except (zlib.error, zstandard.ZstdError, lz4.block.LZ4BlockError) as error:
        raise Broken(f"codec {codec}: {error}") from error
    need(len(data) == size, f"unpacks to {len(data)} bytes, not to {size}")
    return data


def frame(record: int, field: int, codec: int, stored: bytes, size: int) -> bytes:
    head = struct.pack("<QIIIHH", record, len(stored), size, crc32c(stored), field, codec)
    return head + stored


def frames(chunk: bytes, end: int) -> Iterator[tuple[int, int, int, int, bytes]]:
    """Offset of the payload, record, field, codec and stored bytes of every frame before `end`."""
    at = 0
    while at < end:
        need(at + FRAME <= end, f"half a frame at {at}")
        record, stored, size, crc, field, codec = struct.unpack_from("<QIIIHH", chunk, at)
        at += FRAME
        need(at + stored <= end, f"half a payload at {at}")
        payload = chunk[at : at + stored]
        if crc32c(payload) != crc:
            raise BrokenChecksum(f"the payload at {at}")
        need(codec != RAW or stored == size, f"raw, {stored} and {size} bytes, at {at}")
        yield at, record, field, codec, payload
        at += stored
        need(not any(chunk[at : min(align8(at), end)]), f"no zeros at {at}")
        at = align8(at)


# Reading.


def whole(value: Any, what: str, bits: int = 63) -> int:
    if type(value) is not int or not 0 <= value < 1 << bits:
        raise Broken(f"{what}: {value!r}")
    return value


def meta_sum(meta: dict[str, Any]) -> str:
    rest = {name: value for name, value in meta.items() if name != "crc32c"}
    return f"{crc32c(json.dumps(rest, sort_keys=True, separators=(',', ':')).encode()):08x}"


def read_meta(path: Path) -> dict[str, Any]:
    """meta.json, with every member that may be left out."""
    try:
        meta = json.loads((path / "meta.json").read_bytes())
    except ValueError as error:
        raise Broken(f"meta.json: {error}") from error
    need(isinstance(meta, dict) and meta.get("format") == "zrecord", "meta.json: another format")
    if meta.get("version") not in (1, 2):
        raise BrokenVersion(f"version {meta.get('version')!r}")
    if "crc32c" in meta and meta["crc32c"] != meta_sum(meta):
        raise BrokenChecksum("meta.json")
    chunks = meta.get("chunks")
    need(isinstance(chunks, dict) and isinstance(meta.get("fields"), list), "meta.json: members")
    need({"num", "size", "unfull"} <= {*chunks} and "length" in meta, "meta.json: members")
    chunks = {"first": 0, **chunks}
    meta = {"generation": 0, "commit": 0, "peak": meta["length"], "attributes": {}, **meta}
    meta = {"deletes": 0, "id": "", **meta}
    return {**meta, "chunks": chunks}


def fields_of(meta: dict[str, Any]) -> list[Field]:
    fields = []
    for given in meta["fields"]:
        need(isinstance(given, dict) and {"name", "dtype", "shape"} <= {*given}, "a field")
        field = Field(
            **{k: given.get(k) for k in ("name", "dtype", "shape", "compress", "level")},
            optional=given.get("optional", True),
            column=given.get("column", False),
        )
        need(type(field.column) is bool, f"meta.json: column: {field.column!r}")
        need(not field.column or meta["version"] == 2, "version 1 has no columns")
        need(type(field.optional) is bool, f"meta.json: optional: {field.optional!r}")
        need(isinstance(field.name, str) and isinstance(field.dtype, str), "a field")
        need(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]{,62}", field.name) is not None, field.name)
        need(isinstance(field.shape, list), f"shape {field.shape}")
        for size in field.shape[1:] if field.ragged else field.shape:
            whole(size, "shape")
        need(field.compress in CODECS, f"compress {field.compress!r}")
        if field.dtype in ("bytes", "str"):
            need(field.shape == [None], f"shape {field.shape}")
        else:
            try:
                dtype = np.dtype(field.dtype)
            except TypeError as error:
                raise Broken(f"dtype {field.dtype!r}") from error
            need(dtype.names is None and not dtype.hasobject, f"dtype {field.dtype!r}")
            need(dtype.str == field.dtype, f"dtype {field.dtype!r}, not {dtype.str!r}")
        need(field.item_bytes > 0, "items of 0 bytes")
        if field.column:
            need(field.compress == "raw" and not field.ragged, f"{field.name}: no column")
            need(field.entry_bytes <= BLOCK_BYTES, f"{field.name}: no column")
        fields.append(field)
    need(fields != [], "no fields")
    need(len({field.name.lower() for field in fields}) == len(fields), "a name twice")
    return fields


def check(state: Commit, first_chunk: int) -> None:
    """What meta.json says, and what each commit of the journal makes of it."""
    need(state.length <= state.peak, f"length {state.length}, peak {state.peak}")
    count = state.next_chunk - first_chunk
    need(0 <= count <= 1 << 16, f"chunks from {first_chunk} to {state.next_chunk}")
    numbers = [chunk.number for chunk in state.unfull]
    need(len({*numbers}) == len(numbers), f"unfull: {numbers}")
    for chunk in state.unfull:
        need(first_chunk <= chunk.number < state.next_chunk, f"unfull: {numbers}")
        need(chunk.end % 8 == 0, f"the next frame at {chunk.end}")


def read_store(path: Path) -> Store:
    """The store as its last commit has it."""
    meta = read_meta(path)
    fields, chunks = fields_of(meta), meta["chunks"]
    need(isinstance(chunks["unfull"], list), "unfull")
    need(isinstance(meta["attributes"], dict), "attributes")
    need(whole(chunks["size"], "size", 32) > 0, "chunks of no records")
    first_chunk = whole(chunks["first"], "first", 32)
    generation = whole(meta["generation"], "generation", 32)
    state = Commit(
        whole(meta["commit"], "commit"),
        whole(meta["length"], "length", 59),
        whole(meta["peak"], "peak", 59),
        whole(chunks["num"], "num", 32),
        [Chunk(whole(c[0], "id", 32), whole(c[1], "end"), whole(c[2], "records", 33))
         for c in chunks["unfull"] if isinstance(c, list) and len(c) == 3],
        [],
        whole(meta["deletes"], "deletes"),
    )  # fmt: skip
    need(len(state.unfull) == len(chunks["unfull"]), "unfull")
    check(state, first_chunk)
    new, more = read_journal(path, fields, state.number)
    attributes = meta["attributes"]
    for commit in new:
        attributes = attributes if commit.attributes is None else commit.attributes
        ends = [change.first + len(change.appended) for change in commit.changes]
        for change, end in zip(commit.changes, ends, strict=True):
            need(change.first <= state.peak or end == change.first, "a gap before new entries")
            need(commit.length <= max(state.peak, end), "records without entries")
        need(commit.peak <= max(state.peak, *ends), f"peak {commit.peak}, entries up to {ends}")
        need(commit.next_chunk >= state.next_chunk, "fewer chunks than before")
        check(commit, first_chunk)
        state = commit
    store = Store(
        fields, [{} for _ in range(state.length)], attributes, {}, generation,
        state.number, state.peak, first_chunk, chunks["size"], state.unfull, state.deletes,
        meta["id"],
    )  # fmt: skip
    for position, field in enumerate(fields):
        changes = [commit.changes[position] for commit in new]
        if field.column:
            last = state.number if new or more else None
            column = read_column(path, field, generation, state.length, changes, last)
            for record, value in zip(store.records, column, strict=True):
                record[field.name] = value
            continue
        table = read_table(path, field, generation, state.length, changes)
        if new or more:
            check_entries(table, state, first_chunk)
        store.dictionaries |= read_dictionary(path, field)
        for row, record in enumerate(store.records):
            offset, number, length = struct.unpack_from("<QII", table, row * ENTRY)
            if offset:
                need(first_chunk <= number < state.next_chunk, f"{field.name}: chunk {number}")
                known = store.dictionaries.get(field.name)
                payload = read_payload(path, number, offset, length, field, position, known)
            record[field.name] = payload if offset else None
    return store


def read_table(
    path: Path, field: Field, generation: int, length: int, changes: list[Change]
) -> bytes:
    """The entries of a field: those of the file, then those of the journal."""
    file = path / table_name(field, generation)
    need(file.is_file(), f"no {file.name}")
    there = file.stat().st_size // ENTRY
    entries: dict[int, bytes] = {}
    for change in changes:
        rows = range(change.first, change.first + len(change.appended))
        entries |= {**dict(zip(rows, change.appended, strict=True)), **dict(change.changed)}
    more = len([row for row in entries if there <= row < length])
    need(length <= there + more, f"{file.name}: {there} entries of {length}")
    blocks = -(-length // BLOCK)
    with file.open("rb") as opened:
        before = opened.read(blocks * BLOCK * ENTRY).ljust(blocks * BLOCK * ENTRY, b"\0")
    table = bytearray(before)
    for row, entry in entries.items():
        if row < blocks * BLOCK:
            table[row * ENTRY : (row + 1) * ENTRY] = entry
    sums = path / table_name(field, generation, "sums")
    if sums.exists():
        stored = sums.read_bytes()
        for number in {*range(blocks)} - {row // BLOCK for row in entries}:
            block = before[number * BLOCK * ENTRY : (number + 1) * BLOCK * ENTRY]
            if stored[number * 4 : number * 4 + 4] != struct.pack("<I", crc32c(block)):
                raise BrokenChecksum(f"{sums.name}: block {number}")
    return bytes(table)


def read_column(
    path: Path,
    field: Field,
    generation: int,
    length: int,
    changes: list[Change],
    last: int | None,
) -> list[bytes | None]:
    """The values of a column: those of the file, then those of the journal. `last` is the last
    commit, where the journal says that there may have been more."""
    file, size = path / table_name(field, generation), field.entry_bytes
    need(file.is_file(), f"no {file.name}")
    data, sums = file.read_bytes(), path / table_name(field, generation, "sums")
    new = {row for c in changes for row in range(c.first, c.first + len(c.appended))}
    there = len(data) // size
    more = len([row for row in new if there <= row < length])
    need(length <= there + more, f"{file.name}: {there} entries of {length}")
    blocks = -(-length * size // BLOCK_BYTES)
    need(not blocks or sums.is_file(), f"no {sums.name}")
    stored = sums.read_bytes() if sums.is_file() else b""
    room = max([length, *(c.first + len(c.appended) for c in changes)]) * size // BLOCK_BYTES + 1
    image = bytearray(data[: room * BLOCK_BYTES].ljust(room * BLOCK_BYTES, b"\0"))
    want: dict[int, int] = {}
    for change in changes:
        rows = range(change.first, change.first + len(change.appended))
        for row, entry in [*zip(rows, change.appended, strict=True), *change.changed]:
            if (row + 1) * size <= len(image):
                image[row * size : (row + 1) * size] = entry
        want |= dict(zip(change.blocks(size), change.checksums, strict=True))
    numbers = {n: c for c in changes for n in c.blocks(size)}
    for number in range(blocks):
        stated = stored[number * COLUMN_CHECKSUM :][:COLUMN_CHECKSUM]
        if number not in want and len(stated) < COLUMN_CHECKSUM:
            raise BrokenChecksum(f"{sums.name}: block {number} has none")
        if number in want:
            crc, commit = want[number], numbers[number].number
        else:
            crc, commit = struct.unpack("<IQ", stated)
        if number not in want and last is not None and commit > last:
            raise BrokenChecksum(f"{sums.name}: block {number} is of commit {commit}")
        block = bytes(image[number * BLOCK_BYTES : (number + 1) * BLOCK_BYTES])
        if crc32c(block + struct.pack("<Q", commit)) != crc:
            raise BrokenChecksum(f"{sums.name}: block {number}")
    values: list[bytes | None] = []
    for row in range(length):
        entry = bytes(image[row * size : (row + 1) * size])
        need(not field.optional or entry[0] < 2, f"{field.name}: mark {entry[0]}")
        there = not field.optional or entry[0] == 1
        values.append(entry[field.optional :] if there else None)
    return values


def check_entries(table: bytes, state: Commit, first_chunk: int) -> None:
    """No entry is of a commit that the journal does not have."""
    ends = {chunk.number: chunk.end for chunk in state.unfull}
    seen = set()
    for row in range(len(table) // ENTRY):
        offset, number, length = struct.unpack_from("<QII", table, row * ENTRY)
        if offset:
            known = first_chunk <= number < state.next_chunk
            inside = known and (offset + length) % (1 << 64) <= ends.get(number, 1 << 64)
            twice = row < state.length and (offset, number) in seen
            if row >= state.peak or not inside or twice:
                raise BrokenChecksum(f"the entry of record {row} is of another commit")
            seen.add((offset, number))


def read_dictionary(path: Path, field: Field) -> dict[str, bytes]:
    file = path / f"{field.name}.dict"
    if not file.exists():
        return {}
    data = file.read_bytes()
    if len(data) < 4 or data[-4:] != struct.pack("<I", crc32c(data[:-4])):
        raise BrokenChecksum(file.name)
    return {field.name: data[:-4]}


def read_payload(
    path: Path,
    number: int,
    offset: int,
    length: int,
    field: Field,
    position: int,
    dictionary: bytes | None,
) -> bytes:
    need(FRAME <= offset < 1 << 62 and offset % 8 == 0, f"{field.name}: a payload at {offset}")
    with (path / "chunk" / f"{number}.zr").open("rb") as file:
        file.seek(offset - FRAME)
        head = file.read(FRAME)
        need(len(head) == FRAME, f"{field.name}: chunk {number} ends before {offset}")
        _, stored, size, crc, mine, codec = struct.unpack("<QIIIHH", head)
        need(stored == length and mine == position, f"{field.name}: a frame of something else")
        data = file.read(stored)
    if len(data) != stored or crc32c(data) != crc:
        raise BrokenChecksum(f"{field.name}: chunk {number} at {offset}")
    fits = size % field.item_bytes == 0 if field.ragged else size == field.item_bytes
    need(fits, f"{field.name}: {size} bytes")
    data = unpack(codec, data, size, dictionary)
    if field.dtype == "str":
        try:
            data.decode()
        except UnicodeDecodeError as error:
            raise Broken(f"{field.name}: {error}") from error
    return data


def read_journal(path: Path, fields: Sequence[Field], after: int) -> tuple[list[Commit], bool]:
    """The commits that meta.json, which has those up to `after`, does not have; and whether
    something is behind them."""
    file = path / "journal.zr"
    data = file.read_bytes() if file.exists() else b""
    commits, end = walk(data, fields)
    new = [commit for commit in commits if commit.number > after]
    if new and new[0].number != after + 1:
        raise BrokenChecksum(f"commit {new[0].number} is there, {after + 1} is not")
    last = new[-1].number if new else after
    for found in re.finditer(b"ZRJL|ZRSL", data[end:]):
        at, numbers = end + found.start(), []
        if found[0] == b"ZRJL":
            numbers = [later.number for later in walk(data[at:], fields)[0]]
        elif len(data) >= at + SEAL:
            (number,) = struct.unpack_from("<Q", data, at + 8)
            numbers = [number] if data[at : at + SEAL] == seal(number) else []
        if max(numbers, default=0) > last:
            raise BrokenChecksum(f"commit {max(numbers)} was there, {last + 1} is not")
    return new, any(data[end + (SEAL if end else 0) :])


def parse_journal(data: bytes, fields: Sequence[Field]) -> list[Commit]:
    """The commits that follow one another from the beginning on."""
    return walk(data, fields)[0]


def walk(data: bytes, fields: Sequence[Field]) -> tuple[list[Commit], int]:
    """The same, and where the last of them ends."""
    commits: list[Commit] = []
    at = end = 0
    while True:
        if commits and data[at : at + 4] != b"ZRJL":  # the seal, whatever became of it
            at += SEAL
        if len(data) - at < HEAD:
            break
        magic, crc, size, number = struct.unpack_from("<4sIQQ", data, at)
        if magic != b"ZRJL" or not HEAD <= size <= len(data) - at:
            break
        follows = not commits or number == commits[-1].number + 1
        if not follows or crc32c(data[at + 8 : at + size]) != crc:
            break
        commits.append(parse_commit(data[at : at + size], fields))
        at = end = at + size
    return commits, end


def parse_commit(data: bytes, fields: Sequence[Field]) -> Commit:
    number, length, peak, next_chunk, count, deletes = struct.unpack_from("<QQQIIQ", data, 16)
    at = HEAD + 16 * count
    need(length <= peak < 1 << 59, f"length {length}, peak {peak}")
    need(at <= len(data), "unfull chunks behind the end of a commit")
    unfull = [struct.unpack_from("<IIQ", data, HEAD + 16 * i) for i in range(count)]
    changes = []
    for field in fields:
        size = field.entry_bytes
        need(at + 24 <= len(data), "fewer fields in a commit than in the store")
        first, appended, changed = struct.unpack_from("<QQQ", data, at)
        at += 24
        end = align8(at + size * appended + (8 + size) * changed)
        need(end <= len(data), "entries behind the end of a commit")
        need(first + appended <= peak, f"entries behind the highest, {peak}")
        change = Change(first, [data[at + size * i :][:size] for i in range(appended)])
        at += size * appended
        for _ in range(changed):
            (row,) = struct.unpack_from("<Q", data, at)
            need(row < peak, f"entries behind the highest, {peak}")
            change.changed.append((row, data[at + 8 : at + 8 + size]))
            at += 8 + size
        at = end
        if field.column:
            change.number, blocks = number, len(change.blocks(size))
            need(align8(at + 4 * blocks) <= len(data), "checksums behind the end of a commit")
            change.checksums = [*struct.unpack_from(f"<{blocks}I", data, at)]
            at = align8(at + 4 * blocks)
        changes.append(change)
    attributes = None
    if at < len(data):
        try:
            attributes = json.loads(data[at:])
        except ValueError as error:
            raise Broken(f"behind the last field of a commit: {error}") from error
        need(isinstance(attributes, dict), "attributes")
    chunks = [Chunk(chunk, end, records) for chunk, records, end in unfull]
    return Commit(number, length, peak, next_chunk, chunks, changes, deletes, attributes)


# Writing.


def seal(number: int) -> bytes:
    body = struct.pack("<QQ", number, 0)
    return struct.pack("<4sI", b"ZRSL", crc32c(body)) + body


def build_commit(commit: Commit) -> bytes:
    """A commit and its seal."""
    body = struct.pack("<QQQ", commit.number, commit.length, commit.peak)
    body += struct.pack("<IIQ", commit.next_chunk, len(commit.unfull), commit.deletes)
    for chunk in commit.unfull:
        body += struct.pack("<IIQ", chunk.number, chunk.records, chunk.end)
    for change in commit.changes:
        body += struct.pack("<QQQ", change.first, len(change.appended), len(change.changed))
        body += b"".join(change.appended)
        body += b"".join(struct.pack("<Q", row) + entry for row, entry in change.changed)
        body = body.ljust(align8(len(body)), b"\0")
        body += struct.pack(f"<{len(change.checksums)}I", *change.checksums)
        body = body.ljust(align8(len(body)), b"\0")
    if commit.attributes is not None:
        text = json.dumps(commit.attributes).encode()
        body += text.ljust(align8(len(text)))
    body = struct.pack("<Q", 16 + len(body)) + body
    return struct.pack("<4sI", b"ZRJL", crc32c(body)) + body + seal(commit.number)


def table_checksums(table: bytes) -> bytes:
    size = BLOCK * ENTRY
    blocks = [table[at : at + size].ljust(size, b"\0") for at in range(0, len(table), size)]
    return b"".join(struct.pack("<I", crc32c(block)) for block in blocks)


def column_checksum(table: bytes, block: int, commit: int) -> int:
    data = table[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES].ljust(BLOCK_BYTES, b"\0")
    return crc32c(data + struct.pack("<Q", commit))


def column_checksums(table: bytes, commit: int) -> bytes:
    blocks = range(-(-len(table) // BLOCK_BYTES))
    return b"".join(struct.pack("<IQ", column_checksum(table, b, commit), commit) for b in blocks)


def meta_of(store: Store, state: Commit) -> dict[str, Any]:
    meta = {
        "format": "zrecord",
        "version": 2 if any(field.column for field in store.fields) else 1,
        "length": state.length,
        "generation": store.generation,
        "commit": state.number,
        "peak": state.peak,
        "deletes": store.deletes,
        "id": store.id,
        "chunks": {
            "num": state.next_chunk,
            "first": store.first_chunk,
            "size": store.chunk_records,
            "unfull": [[chunk.number, chunk.end, chunk.records] for chunk in state.unfull],
        },
        "fields": [
            {k: v for k, v in vars(field).items() if v is not None and DEFAULTS.get(k) is not v}
            for field in store.fields
        ],
        "attributes": store.attributes,
    }
    return {**meta, "crc32c": meta_sum(meta)}


def write_store(
    path: Path,
    store: Store,
    *,
    commits: Sequence[int] = (),
    codec: Callable[[int, Field], int] | None = None,
) -> None:
    """A store; `path` must not exist.

    The last records, as many as `commits` has at each commit, are in the journal alone. `codec`
    chooses what is tried for each payload, where it is not what the field says. Entries between
    the records and the peak of the store are those of record 0.
    """
    (path / "chunk").mkdir(parents=True)
    for name, dictionary in store.dictionaries.items():
        data = dictionary + struct.pack("<I", crc32c(dictionary))
        (path / f"{name}.dict").write_bytes(data)
    tables: list[list[bytes]] = [[] for _ in store.fields]
    chunk, number, held = b"", store.first_chunk, 0
    states: list[tuple[int, list[Chunk]]] = [(store.first_chunk, [])]
    """The next chunk and those with room, after so many records."""
    for row, record in enumerate(store.records):
        if held == store.chunk_records:
            (path / "chunk" / f"{number}.zr").write_bytes(chunk)
            chunk, number, held = b"", number + 1, 0
        for position, (field, table) in enumerate(zip(store.fields, tables, strict=True)):
            if field.column:
                table.append(value_entry(field, record[field.name]))
                continue
            entry, chunk = put(store, row, position, record[field.name], number, chunk, codec)
            table.append(entry)
        held += 1
        unfull = [Chunk(number, len(chunk), held)] if held < store.chunk_records else []
        states.append((number + 1, unfull))
    if chunk:
        (path / "chunk" / f"{number}.zr").write_bytes(chunk)
    start = len(store.records) - sum(commits)
    peak = max(store.peak - sum(commits), start)
    before, images = store.commit - len(commits), []
    for field, table in zip(store.fields, tables, strict=True):
        written = b"".join([*table[:start], *(peak - start) * table[:1]])
        images.append(bytearray(written))
        (path / table_name(field, store.generation)).write_bytes(written)
        checksums = column_checksums(written, before) if field.column else table_checksums(written)
        (path / table_name(field, store.generation, "sums")).write_bytes(checksums)
    meta = meta_of(store, Commit(before, start, peak, *states[start], []))
    (path / "meta.json").write_text(json.dumps(meta, indent=1))
    journal = b""
    for this, count in enumerate(commits, before + 1):
        changes = [Change(start, table[start : start + count], number=this) for table in tables]
        for field, change, image in zip(store.fields, changes, images, strict=True):
            if field.column:
                size = field.entry_bytes
                image[start * size : (start + count) * size] = b"".join(change.appended)
                blocks = change.blocks(size)
                change.checksums = [column_checksum(bytes(image), b, this) for b in blocks]
        start += count
        peak = max(peak, start)
        journal += build_commit(Commit(this, start, peak, *states[start], changes))
    (path / "journal.zr").write_bytes(journal)


def value_entry(field: Field, data: bytes | None) -> bytes:
    """The entry of a value in a column."""
    if not field.optional:
        need(data is not None, f"{field.name}: not optional")
    mark = bytes([data is not None]) if field.optional else b""
    return mark + (data or bytes(field.item_bytes))


def put(
    store: Store,
    row: int,
    position: int,
    data: bytes | None,
    number: int,
    chunk: bytes,
    choose: Callable[[int, Field], int] | None,
) -> tuple[bytes, bytes]:
    """The entry of a payload, and the chunk with it."""
    if data is None:
        return MISSING, chunk
    field = store.fields[position]
    dictionary = store.dictionaries.get(field.name)
    codec = CODECS[field.compress] if choose is None else choose(row, field)
    if codec == ZSTD_DICT and dictionary is None:
        codec = ZSTD
    stored = pack(codec, data, field.level, dictionary)
    if len(stored) >= len(data):
        codec, stored = RAW, data
    offset = len(chunk) + FRAME
    chunk += frame(row, position, codec, stored, len(data))
    entry = struct.pack("<QII", offset, number, len(stored))
    return entry, chunk.ljust(align8(len(chunk)), b"\0")
