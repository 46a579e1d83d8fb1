"""docs/formats/pack.md in plain Python: the file as one string of bytes, and its JSONL lines.

Nothing here is shared with the package, so where the two agree, two readers of the page did.
Compression stays outside: an entry is what is stored, with the codec it was stored by.
"""

import json
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import floor, gcd

import numpy as np

from tests.reference import runs
from tests.reference.runs import Broken, BrokenChecksum, BrokenVersion, crc32c, varint

MAGIC = b"A2PACK\0\0"
HEADER, ENTRY, FOOTER = 28, 32, 32
HAS_DICTIONARY = 1
RAW, ZSTD, LZ4, ZSTD_DICTIONARY = range(4)


@dataclass
class Entry:
    kind: int
    stored: bytes
    codec: int = RAW
    size: int | None = None
    """Bytes before compression; None when the codec is RAW."""


@dataclass
class Stats:
    count: int
    total_steps: int = 0
    min_len: int = 0
    max_len: int = 0
    mean_len: float = 0.0
    p50: int = 0
    p90: int = 0
    p99: int = 0
    highest_tile_hist: list[tuple[int, int]] | None = None
    engine_counts: list[tuple[str, int]] | None = None
    """Both lists are None in a block of the eight fields alone."""


@dataclass
class Pack:
    version: int
    entries: list[Entry]
    offsets: list[int]
    stats: Stats | None
    dictionary: bytes | None


def align_up(offset: int, align: int) -> int:
    return -(-offset // align) * align


# Statistics.


def quantile(ordered: Sequence[int], q: float) -> int:
    at = q * (len(ordered) - 1)
    whole = floor(at)
    return ordered[whole + (at - whole >= 0.5)]


def stats_of(payloads: Iterable[tuple[int, bytes]]) -> Stats:
    """The statistics of (kind, uncompressed payload) pairs."""
    kinds_and_payloads = list(payloads)
    metas = [runs.decode(data).meta for kind, data in kinds_and_payloads if kind <= 2]
    stats = Stats(len(kinds_and_payloads))
    if metas:
        lengths = sorted(meta.steps for meta in metas)
        stats.total_steps = sum(lengths)
        stats.min_len, stats.max_len = lengths[0], lengths[-1]
        stats.mean_len = float(stats.total_steps) / float(len(lengths))
        stats.p50, stats.p90, stats.p99 = (quantile(lengths, q) for q in (0.5, 0.9, 0.99))
    tiles = Counter(meta.highest_tile for meta in metas)
    engines = Counter(meta.engine or "" for meta in metas)
    stats.highest_tile_hist = sorted(tiles.items())
    stats.engine_counts = sorted(engines.items(), key=lambda pair: pair[0].encode())
    return stats


def encode_stats(stats: Stats) -> bytes:
    """The block behind its length: the eight fields, and with lists these and the CRC."""
    out = varint(stats.count) + varint(stats.total_steps)
    out += varint(stats.min_len) + varint(stats.max_len) + struct.pack("<d", stats.mean_len)
    out += varint(stats.p50) + varint(stats.p90) + varint(stats.p99)
    if stats.highest_tile_hist is None or stats.engine_counts is None:
        return out
    out += varint(len(stats.highest_tile_hist))
    for tile, count in stats.highest_tile_hist:
        out += varint(tile) + varint(count)
    out += varint(len(stats.engine_counts))
    for engine, count in stats.engine_counts:
        out += runs.string(engine) + varint(count)
    return out + struct.pack("<I", crc32c(out))


def decode_stats(block: bytes, offset: int = 0) -> Stats:
    """`offset` is where the block stands in its file, for the errors."""
    cursor = runs.Cursor(block)
    try:
        stats = Stats(
            count=cursor.varint(64, "count"),
            total_steps=cursor.varint(64, "total_steps"),
            min_len=cursor.varint(32, "min_len"),
            max_len=cursor.varint(32, "max_len"),
            mean_len=cursor.f64("mean_len"),
            p50=cursor.varint(32, "p50"),
            p90=cursor.varint(32, "p90"),
            p99=cursor.varint(32, "p99"),
        )
        if cursor.at == len(block):
            return stats
        stats.highest_tile_hist = [
            (cursor.varint(32, "tile"), cursor.varint(64, "runs of the tile"))
            for _ in range(cursor.length(2, "highest_tile_hist"))
        ]
        stats.engine_counts = [
            (cursor.string("engine"), cursor.varint(64, "runs of the engine"))
            for _ in range(cursor.length(2, "engine_counts"))
        ]
        if cursor.at == len(block):
            return stats
        at = cursor.at
        (crc,) = struct.unpack("<I", cursor.take(4, "CRC of the statistics"))
        cursor.end()
    except Broken as error:
        raise Broken(f"statistics: {error}", offset + error.offset) from None
    if crc != crc32c(block[:at]):
        raise BrokenChecksum(f"statistics: expected CRC {crc32c(block[:at]):08x}", offset + at)
    return stats


# The file.


def write_pack(
    entries: Sequence[Entry],
    align: int = 4096,
    stats: Stats | None = None,
    dictionary: bytes | None = None,
    data_crc: bool = True,
) -> bytes:
    """The file of these entries. Without `stats` it has no such block."""
    if not entries:
        raise ValueError("expected at least one entry")
    if align not in [1 << i for i in range(31)]:
        raise ValueError(f"expected a power of two from 1 to 2^30 as alignment, got {align}")
    plain = all(entry.codec == RAW and entry.kind <= 2 for entry in entries)
    version = 1 if plain and dictionary is None else 2
    flags = 0 if dictionary is None else HAS_DICTIONARY
    header = MAGIC + struct.pack("<IIQ", version, flags, len(entries))
    header += struct.pack("<I", crc32c(header))

    index, data = b"", b""
    start = align_up(HEADER + ENTRY * len(entries), align)
    for entry in entries:
        data += bytes(align_up(len(data), align) - len(data))  # start is aligned
        reserved = entry.size or 0
        index += struct.pack(
            "<QIHHII8x",
            start + len(data),
            len(entry.stored),
            entry.kind,
            entry.codec,
            crc32c(entry.stored),
            reserved,
        )
        data += entry.stored
    end = start + len(data)

    blocks = b""
    if stats is not None:
        block = encode_stats(stats)
        blocks += struct.pack("<I", len(block)) + block
    if dictionary is not None:
        blocks += struct.pack("<II", len(dictionary), crc32c(dictionary)) + dictionary
    footer = struct.pack(
        "<QIIQ",
        end,
        crc32c(index),
        crc32c(data) if data_crc else 0,
        0 if stats is None else end,
    )
    footer += struct.pack("<I4x", crc32c(footer))
    padding = bytes(start - HEADER - len(index))
    return header + index + padding + data + blocks + footer


def read_pack(data: bytes, verify: bool = False) -> Pack:
    """What the file holds, after every check of open; `verify` adds those of a full verify."""
    size = len(data)
    if data[:8] != MAGIC:
        raise Broken(f"expected magic {MAGIC!r}, got {data[:8]!r}", 0)
    if size < HEADER + ENTRY + FOOTER:
        raise Broken(f"expected at least {HEADER + ENTRY + FOOTER} bytes, got {size}", size)
    version, flags, count, header_crc = struct.unpack_from("<IIQI", data, 8)
    if version not in (1, 2):
        raise BrokenVersion(f"expected version 1 or 2, got {version}", 8)
    if header_crc != crc32c(data[:24]):
        raise BrokenChecksum(f"header: expected CRC {crc32c(data[:24]):08x}", 24)
    if flags not in ((0,) if version == 1 else (0, HAS_DICTIONARY)):
        raise BrokenVersion(f"expected known flags of version {version}, got {flags:#x}", 12)
    most = (size - HEADER - FOOTER) // ENTRY
    if not 1 <= count <= most:
        raise Broken(f"expected 1 to {most} entries, got {count}", 16)

    foot = size - FOOTER
    data_end, index_crc, data_crc, stats_offset, footer_crc, zero = struct.unpack_from(
        "<QIIQII", data, foot
    )
    if footer_crc != crc32c(data[foot : foot + 24]):
        raise BrokenChecksum(
            f"footer: expected CRC {crc32c(data[foot : foot + 24]):08x}", foot + 24
        )
    if zero != 0:
        raise Broken(f"footer: expected four zero bytes, got {zero:#x}", foot + 28)
    index_end = HEADER + ENTRY * count
    if index_crc != crc32c(data[HEADER:index_end]):
        raise BrokenChecksum(f"index: expected CRC {crc32c(data[HEADER:index_end]):08x}", HEADER)
    if not index_end <= data_end <= foot:
        raise Broken(f"data_end: expected {index_end} to {foot}, got {data_end}", foot)

    entries, offsets, crcs = [], [], []
    end = index_end
    for i in range(count):
        at = HEADER + ENTRY * i
        offset, length, kind, codec, crc, reserved, zeros = struct.unpack_from("<QIHHIIQ", data, at)
        if not end <= offset <= data_end:
            raise Broken(f"entry {i}: expected offset {end} to {data_end}, got {offset}", at)
        if length > data_end - offset:
            raise Broken(f"entry {i}: {length} bytes do not end at {data_end} or before", at + 8)
        if not (kind in (1, 2) or (version == 2 and kind >= 16)):
            raise Broken(f"entry {i}: unknown kind {kind} in version {version}", at + 12)
        if codec not in ((RAW,) if version == 1 else (RAW, ZSTD, LZ4, ZSTD_DICTIONARY)):
            raise Broken(f"entry {i}: unknown flags {codec:#x} in version {version}", at + 14)
        if codec == ZSTD_DICTIONARY and not flags & HAS_DICTIONARY:
            raise Broken(f"entry {i}: needs the dictionary, the pack has none", at + 14)
        if codec == RAW and reserved != 0:
            raise Broken(f"entry {i}: expected reserved 0, got {reserved}", at + 20)
        if zeros != 0:
            raise Broken(f"entry {i}: expected eight zero bytes, got {zeros:#x}", at + 24)
        entries.append(
            Entry(kind, data[offset : offset + length], codec, None if codec == RAW else reserved)
        )
        offsets.append(offset)
        crcs.append(crc)
        end = offset + length
    if end != data_end:
        raise Broken(f"data_end: expected the end of the last entry, {end}, got {data_end}", foot)

    align = gcd(*offsets)
    end = index_end
    for i, (offset, entry) in enumerate(zip(offsets, entries, strict=True)):
        if offset - end >= align:
            raise Broken(f"entry {i}: {offset - end} bytes before it", HEADER + ENTRY * i)
        if verify and any(data[end:offset]):
            raise Broken(f"entry {i}: expected zero bytes before it", end)
        if verify and crcs[i] not in (0, crc32c(entry.stored)):
            raise BrokenChecksum(f"entry {i}: expected CRC {crc32c(entry.stored):08x}", offset)
        end = offset + len(entry.stored)
    if verify and data_crc not in (0, crc32c(data[offsets[0] : data_end])):
        raise BrokenChecksum("data_crc differs from the data", foot + 12)

    stats = dictionary = None
    if stats_offset != 0:
        if stats_offset != data_end:
            raise Broken(f"expected statistics at {data_end}, got {stats_offset}", foot + 16)
        (length,) = _block(data, end, "<I", "statistics")
        stats = decode_stats(data[end + 4 : end + 4 + length], end + 4)
        end += 4 + length
    if flags & HAS_DICTIONARY:
        length, crc = _block(data, end, "<II", "dictionary")
        dictionary = data[end + 8 : end + 8 + length]
        if crc != crc32c(dictionary):
            raise BrokenChecksum(f"dictionary: expected CRC {crc32c(dictionary):08x}", end + 4)
        end += 8 + length
    if end != foot:
        raise Broken(f"expected the footer at {end}, got it at {foot}", end)
    return Pack(version, entries, offsets, stats, dictionary)


def _block(data: bytes, at: int, head: str, what: str) -> tuple[int, ...]:
    """The head of a block that lies whole before the footer; its length comes first."""
    left = len(data) - FOOTER - at - struct.calcsize(head)
    if left < 0:
        raise Broken(f"{what}: expected a length, got the footer", at)
    numbers: tuple[int, ...] = struct.unpack_from(head, data, at)
    if numbers[0] > left:
        raise Broken(f"{what}: expected at most {left} bytes, got {numbers[0]}", at)
    return numbers


# JSONL.


class Number(float):
    """A float32 that `line` writes as the page says."""

    def text(self) -> str:
        value = np.float32(self)
        if not np.isfinite(value):
            return "null"
        exponential = np.format_float_scientific(value, trim="-", exp_digits=2)
        plain = np.format_float_positional(value, trim="-")
        if "." not in plain:
            plain = ("-" if np.signbit(value) else "") + str(abs(int(value)))  # all digits
        if len(exponential) < len(plain):
            return exponential
        return plain if "." in plain else plain + ".0"


def line(value: object) -> str:
    """Compact JSON. The module `json` writes floats its own way."""
    match value:
        case Number():
            return value.text()
        case dict():
            return "{" + ",".join(f"{line(key)}:{line(item)}" for key, item in value.items()) + "}"
        case list():
            return "[" + ",".join(map(line, value)) + "]"
        case _:
            return json.dumps(value, ensure_ascii=False, allow_nan=False)


def run_line(run_idx: int, run: runs.Run, hex_boards: bool = False) -> str:
    states = [step.pre_board for step in run.steps] + [run.final_board]
    written = [f"{board:016x}" for board in states] if hex_boards else states
    branches = [
        None
        if step.branches is None
        else [None if value is None else Number(value) for value in step.branches]
        for step in run.steps
    ]
    return line(
        {
            "run_idx": run_idx,
            "steps": run.meta.steps,
            "start_unix_s": run.meta.start_unix_s,
            "elapsed_s": Number(run.meta.elapsed_s),
            "max_score": run.meta.max_score,
            "highest_tile": run.meta.highest_tile,
            "final_board": written[-1],
            "states": written,
            "moves": [runs.MOVES[step.chosen] for step in run.steps],
            "engine": run.meta.engine,
            "branches": branches if any(branches) else None,
        }
    )


def step_lines(
    run_idx: int, payload: bytes, seed: bool = False, hex_boards: bool = False
) -> Iterator[str]:
    """The lines of a run, of which `payload` is the file."""
    for step_idx, step in enumerate(runs.decode(payload).steps):
        values = [
            Number(1) if move == step.chosen and value is not None and value > 1 - 1e-6 else value
            for move, value in enumerate(step.branches or [])
        ]
        numbers = [None if value is None else Number(value) for value in values] or None
        board = f"{step.pre_board:016x}" if hex_boards else step.pre_board
        legal = runs.legal(step.pre_board)
        branches = [
            {"legal": True, "value": None if numbers is None else numbers[move]}
            if (legal >> move & 1 if numbers is None else numbers[move] is not None)
            else {"legal": False, "value": Number(0)}
            for move in range(4)
        ]
        yield line(
            {
                **_named(run_idx, payload),
                "step_idx": step_idx,
                "pre_board": board if seed else runs.cells(step.pre_board),
                "chosen": runs.MOVES[step.chosen],
                "branches": numbers if seed else branches,
            }
        )


def end_line(run_idx: int, payload: bytes, hex_boards: bool = False) -> str:
    """The line about a run, without its steps."""
    run = runs.decode(payload)
    return line(
        {
            **_named(run_idx, payload),
            "steps": run.meta.steps,
            "start_unix_s": run.meta.start_unix_s,
            "elapsed_s": Number(run.meta.elapsed_s),
            "max_score": run.meta.max_score,
            "highest_tile": run.meta.highest_tile,
            "final_board": f"{run.final_board:016x}" if hex_boards else run.final_board,
            "engine": run.meta.engine,
        }
    )


def _named(run_idx: int, payload: bytes) -> dict[str, object]:
    uuid = f"a2r-{crc32c(payload):08x}-{run_idx & 0xFFFFFFFF:08x}"
    return {"run_idx": run_idx, "run_uuid": uuid}
