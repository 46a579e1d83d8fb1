"""docs/formats/runs.md in plain Python: boards, moves, and both run files, one byte at a time.

Nothing here is shared with the package, so where the two agree, two readers of the page did.
f32 values are Python floats; of a NaN only the quiet ones keep their bits on the way.
"""

import re
import struct
from dataclasses import dataclass
from functools import reduce
from typing import NoReturn

import numpy as np

from tests import ROOT

UP, DOWN, LEFT, RIGHT = range(4)
MOVES = ("UP", "DOWN", "LEFT", "RIGHT")
BEST = 1 - 2.0**-23
V1, V2 = 1, 2

Branches = list[float | None]
"""The four values of a step, U, D, L, R; None where the move is illegal."""


class Broken(ValueError):
    """The bytes do not follow the page: stepwell's FormatError."""

    def __init__(self, what: str, offset: int) -> None:
        super().__init__(f"{what} - at {offset}")
        self.offset = offset


class BrokenVersion(Broken):
    """stepwell's VersionError."""


class BrokenChecksum(Broken):
    """stepwell's ChecksumError."""


@dataclass
class Meta:
    steps: int
    start_unix_s: int
    elapsed_s: float
    max_score: int
    highest_tile: int
    engine: str | None


@dataclass
class Step:
    pre_board: int
    chosen: int
    branches: Branches | None = None


@dataclass
class Run:
    meta: Meta
    steps: list[Step]
    final_board: int


# Boards.


def cells(board: int) -> list[int]:
    """The 16 exponents, row by row."""
    return [(board >> (60 - 4 * i)) & 15 for i in range(16)]


def board_of(exponents: list[int]) -> int:
    return reduce(lambda board, exponent: board << 4 | exponent, exponents, 0)


def slide_line(line: list[int]) -> list[int]:
    """Four cells moved towards the first one."""
    out: list[int] = []
    mergeable = False  # whether the last tile of `out` is one that was there before the move
    for tile in filter(None, line):
        if mergeable and out[-1] == tile and tile < 15:
            out[-1] += 1
            mergeable = False
        else:
            out.append(tile)
            mergeable = True
    return out + [0] * (4 - len(out))


def slide(board: int, move: int) -> int:
    grid = np.array(cells(board)).reshape(4, 4)
    lines = grid.T if move in (UP, DOWN) else grid  # a view: writing to it writes to the grid
    backwards = -1 if move in (DOWN, RIGHT) else 1
    for line in lines:
        line[::backwards] = slide_line(line[::backwards].tolist())
    return board_of(grid.flatten().tolist())


def legal(board: int) -> int:
    """The mask of moves that change the board: bit i for move i."""
    return sum((slide(board, move) != board) << move for move in range(4))


def score(board: int) -> int:
    return sum((e - 1) << e for e in cells(board) if e >= 2)


def highest_tile(board: int) -> int:
    """The largest tile's value; 0 of the empty board, which has none."""
    return 1 << max(cells(board)) if board else 0


# Branch values.


def normalise(values: Branches) -> Branches:
    """Expected values, f32 and finite, scaled to [0, 1)."""
    evs = [np.float32(value) for value in values if value is not None]
    if len(evs) == 1:
        return [None if value is None else BEST for value in values]
    if not evs or min(evs) == max(evs):
        return [None if value is None else 0.5 for value in values]
    low, span = min(evs), max(evs) - min(evs)
    scaled = [None if value is None else (np.float32(value) - low) / span for value in values]
    return [None if value is None else float(value) if value < 1 else BEST for value in scaled]


def choose(branches: Branches) -> int:
    """The player's move: the last maximum. At least one move is legal."""
    best = max(value for value in branches if value is not None)
    return max(i for i, value in enumerate(branches) if value == best)


# CRC32C.


def _crc_of_byte(byte: int) -> int:
    for _ in range(8):
        byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
    return byte


CRC_TABLE = [_crc_of_byte(byte) for byte in range(256)]


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ CRC_TABLE[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


# Postcard.


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def string(text: str) -> bytes:
    data = text.encode()
    return varint(len(data)) + data


class Cursor:
    """Reads postcard from `data`. `at` is the offset of the next byte."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def fail(self, what: str, at: int) -> NoReturn:
        raise Broken(what, at)

    def take(self, count: int, what: str) -> bytes:
        left = len(self.data) - self.at
        if count > left:
            self.fail(f"{what}: expected {count} bytes, got {left}", self.at)
        self.at += count
        return self.data[self.at - count : self.at]

    def varint(self, bits: int, what: str) -> int:
        start, value, longest = self.at, 0, -(-bits // 7)
        for i in range(longest):
            (byte,) = self.take(1, what)
            value |= (byte & 127) << (7 * i)
            if byte < 128:
                if value >> bits:
                    self.fail(f"{what}: expected a u{bits}, got {value}", start)
                return value
        self.fail(f"{what}: expected a varint of at most {longest} bytes", start)

    def choice(self, count: int, what: str) -> int:
        """The variant of an enum."""
        start = self.at
        variant = self.varint(32, what)
        if variant >= count:
            self.fail(f"{what}: expected a variant below {count}, got {variant}", start)
        return variant

    def option(self, what: str) -> bool:
        (byte,) = self.take(1, what)
        if byte > 1:
            self.fail(f"{what}: expected 0 or 1, got {byte}", self.at - 1)
        return byte == 1

    def length(self, smallest: int, what: str) -> int:
        """The length of a list whose elements have at least `smallest` bytes each."""
        start = self.at
        count = self.varint(64, what)
        left = len(self.data) - self.at
        if count * smallest > left:
            self.fail(f"{what}: {count} do not fit the {left} bytes that are left", start)
        return count

    def f32(self, what: str) -> float:
        (value,) = struct.unpack("<f", self.take(4, what))
        return float(value)

    def f64(self, what: str) -> float:
        (value,) = struct.unpack("<d", self.take(8, what))
        return float(value)

    def string(self, what: str) -> str:
        count = self.length(1, what)
        start = self.at
        return utf8(self.take(count, what), start, what)

    def end(self) -> None:
        if self.at != len(self.data):
            self.fail(f"expected the end, got {len(self.data) - self.at} bytes more", self.at)


def utf8(data: bytes, offset: int, what: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise Broken(f"{what}: expected UTF-8, got {data!r}", offset + error.start) from None


# Run files.


def kind_of(data: bytes) -> int:
    return V1 if data[:5] == b"A2T1\x01" else V2


def decode(data: bytes) -> Run:
    return decode_v1(data) if kind_of(data) == V1 else decode_v2(data)


def decode_v1(data: bytes) -> Run:
    """What the file says, as the v2 run that it becomes: every branch absent."""
    if len(data) >= 4 and data[-4:] != struct.pack("<I", crc32c(data[:-4])):
        raise BrokenChecksum(f"expected CRC {crc32c(data[:-4]):08x}", len(data) - 4)
    if data[:5] != b"A2T1\x01":
        raise Broken(f"expected magic b'A2T1' and version 1, got {data[:5]!r}", 0)
    if len(data) < 48:
        raise Broken(f"expected at least 48 bytes, got {len(data)}", len(data))
    if data[5] != 0:
        raise Broken(f"expected endianness 0, got {data[5]}", 5)
    steps, start, elapsed, max_score, tile, size = struct.unpack_from("<IQfQIH", data, 6)
    whole = 48 + size + 9 * steps
    if len(data) != whole:
        raise Broken(f"expected {whole} bytes, got {len(data)}", min(len(data), whole))
    engine = utf8(data[36 : 36 + size], 36, "engine")
    boards = struct.unpack_from(f"<{steps + 1}Q", data, 36 + size)
    moves = data[-4 - steps : -4]
    for i, move in enumerate(moves):
        if move > 3:
            raise Broken(f"step {i}: expected a move of 0 to 3, got {move}", whole - 4 - steps + i)
    return Run(
        Meta(steps, start, elapsed, max_score, tile, engine),
        [Step(board, move) for board, move in zip(boards, moves, strict=False)],
        boards[-1],
    )


def encode_v1(run: Run) -> bytes:
    """Branches are left out: v1 has no place for them."""
    meta, engine = run.meta, (run.meta.engine or "").encode()
    if meta.steps != len(run.steps):
        raise ValueError(f"meta says {meta.steps} steps, the run has {len(run.steps)}")
    boards = [step.pre_board for step in run.steps] + [run.final_board]
    body = (
        b"A2T1\x01\x00"
        + struct.pack("<IQf", meta.steps, meta.start_unix_s, meta.elapsed_s)
        + struct.pack("<QIH", meta.max_score, meta.highest_tile, len(engine))
        + engine
        + struct.pack(f"<{len(boards)}Q", *boards)
        + bytes(step.chosen for step in run.steps)
    )
    return body + struct.pack("<I", crc32c(body))


def decode_v2(data: bytes) -> Run:
    cursor = Cursor(data)
    meta = Meta(
        steps=cursor.varint(32, "steps"),
        start_unix_s=cursor.varint(64, "start_unix_s"),
        elapsed_s=cursor.f32("elapsed_s"),
        max_score=cursor.varint(64, "max_score"),
        highest_tile=cursor.varint(32, "highest_tile"),
        engine=cursor.string("engine") if cursor.option("engine") else None,
    )
    start = cursor.at
    count = cursor.length(3, "list of steps")
    if count != meta.steps:
        cursor.fail(f"list of steps: expected {meta.steps} as in meta, got {count}", start)
    steps = [_decode_step(cursor, f"step {i}") for i in range(count)]
    run = Run(meta, steps, cursor.varint(64, "final_board"))
    cursor.end()
    return run


def _decode_step(cursor: Cursor, what: str) -> Step:
    return Step(
        pre_board=cursor.varint(64, f"{what}, board"),
        chosen=cursor.choice(4, f"{what}, move"),
        branches=[_decode_branch(cursor, f"{what}, branch {i}") for i in range(4)]
        if cursor.option(f"{what}, branches")
        else None,
    )


def _decode_branch(cursor: Cursor, what: str) -> float | None:
    return cursor.f32(what) if cursor.choice(2, what) == 0 else None


def encode_v2(run: Run) -> bytes:
    meta = run.meta
    if meta.steps != len(run.steps):
        raise ValueError(f"meta says {meta.steps} steps, the run has {len(run.steps)}")
    parts = [
        varint(meta.steps),
        varint(meta.start_unix_s),
        struct.pack("<f", meta.elapsed_s),
        varint(meta.max_score),
        varint(meta.highest_tile),
        b"\0" if meta.engine is None else b"\1" + string(meta.engine),
        varint(len(run.steps)),
    ]
    for step in run.steps:
        parts += [varint(step.pre_board), varint(step.chosen)]
        if step.branches is None:
            parts.append(b"\0")
        else:
            parts.append(b"\1")
            parts += [_encode_branch(value) for value in step.branches]
    return b"".join([*parts, varint(run.final_board)])


def _encode_branch(value: float | None) -> bytes:
    return b"\1" if value is None else b"\0" + struct.pack("<f", value)


# The files that the pages show.


def block(page: str, kind: str, name: str) -> str:
    """The text of the block that opens with ```kind name in docs/formats/page."""
    text = (ROOT / "docs" / "formats" / page).read_text()
    found = re.findall(rf"^```{kind} {name}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    if len(found) != 1:
        raise LookupError(f"expected one block {kind} {name} in {page}, got {len(found)}")
    return str(found[0])


def file_of(page: str, name: str) -> bytes:
    """A whole file, out of its hex."""
    return bytes.fromhex(block(page, "hex", name))


def breakdown_of(page: str, name: str) -> list[tuple[int, bytes]]:
    """The offsets and bytes of a file's annotated lines; `00 * 36` is 36 zero bytes."""
    lines = []
    for line in block(page, "bytes", name).splitlines():
        found = re.match(r" *(\d+)  (?:00 \* (\d+)|([0-9a-f]{2}(?: [0-9a-f]{2})*))(?:  |$)", line)
        if found is None:
            raise LookupError(f"expected an offset and bytes, got {line!r}")
        offset, zeros, digits = found.groups()
        lines.append((int(offset), bytes(int(zeros)) if zeros else bytes.fromhex(digits)))
    return lines
