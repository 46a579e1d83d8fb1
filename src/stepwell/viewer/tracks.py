"""Steps as a browser gets them: PNG for pictures, arrays for everything else.

Nothing is sent that nobody could see: large pictures are thinned out to `MAX_SIDE` pixels, long
vectors to `MAX_VALUES` of their values.
"""

import json
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell.viewer.drawings import MAX_PLANES, MAX_SIDE, MAX_TEXT, MAX_VALUES, Drawing

Limits = tuple[float, float]


def picture(drawing: Drawing, value: NDArray[Any], limits: Limits | None = None) -> NDArray[Any]:
    """The pixels of one step: uint8, (height, width) or with 3 or 4 channels."""
    if drawing.draw == "planes":
        return _bytes(_tiled(_planes(drawing, value), drawing.across), limits)
    if value.ndim == 3 and drawing.first:
        value = np.moveaxis(value, 0, -1)
    if value.ndim == 3 and value.shape[2] == 1:
        value = value[:, :, 0]
    return _bytes(_thinned(value), limits)


def board_picture(board: int) -> NDArray[Any]:
    """A board as a small picture, a few pixels a tile."""
    ranks = (np.uint64(board) >> np.arange(60, -1, -4, dtype=np.uint64)) & np.uint64(15)
    colours = np.array([_tile_colour(int(rank)) for rank in ranks], np.uint8).reshape(4, 4, 3)
    made = np.full((4 * 16 + 4, 4 * 16 + 4, 3), (187, 173, 160), np.uint8)
    for row in range(4):
        for column in range(4):
            made[row * 16 + 4 : row * 16 + 16, column * 16 + 4 : column * 16 + 16] = colours[
                row, column
            ]
    return made


def limits_of(values: NDArray[Any]) -> Limits | None:
    """What is black and what is white in pictures of numbers that are no bytes."""
    if values.dtype == np.uint8:
        return None
    finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    if not finite.size:
        return 0.0, 1.0
    low, high = float(finite.min()), float(finite.max())
    if low >= 0 and high <= 1:
        return 0.0, 1.0
    return low, max(high, np.nextafter(low, np.inf))


def png(pixels: NDArray[Any]) -> bytes:
    """The file of a picture. Lines are not predicted from others: of frames of games that is no
    larger, and four times as fast as Pillow."""
    height, width, channels = (*pixels.shape, 1)[:3]
    lines = np.zeros((height, 1 + width * channels), np.uint8)
    lines[:, 1:] = pixels.reshape(height, -1)
    kind = {1: 0, 3: 2, 4: 6}[channels]
    header = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.data, 1)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in parts
    )


def plain(values: NDArray[Any]) -> NDArray[Any]:
    """Numbers in a dtype that JavaScript has arrays for, little-endian."""
    kind, size = values.dtype.kind, values.dtype.itemsize
    if kind == "b":
        return values.astype(np.uint8)
    if kind == "f" and size not in (4, 8):
        return values.astype("<f4" if size == 2 else "<f8")
    return np.ascontiguousarray(values, values.dtype.newbyteorder("<"))


def shown_values(values: NDArray[Any]) -> NDArray[Any]:
    """A vector a row, thinned out where it is long."""
    flat = values.reshape(len(values), -1)
    if flat.shape[1] > MAX_VALUES:
        flat = flat[:, np.linspace(0, flat.shape[1] - 1, MAX_VALUES).astype(np.int64)]
    return flat


def words(value: Any) -> str:
    """A value that is neither a number nor a picture, in short."""
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    text = value if isinstance(value, str) else str(value)
    return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "…"


class Chunk:
    """Some steps on their way to a browser: a header in JSON, then the parts."""

    def __init__(self, start: int, count: int) -> None:
        self._header: dict[str, Any] = {"start": start, "count": count, "parts": [], "damage": None}
        self._bodies: list[bytes] = []
        self._size = 0

    def damaged(self, sentence: str) -> None:
        """Report the first thing that could not be read."""
        self._header["damage"] = self._header["damage"] or sentence

    def missing(self, steps: Sequence[int]) -> None:
        """Name those, counted from the first, of which something could not be read."""
        self._header["missing"] = list(steps)

    def add_array(self, name: str, values: NDArray[Any]) -> None:
        made = plain(values)
        about = {"type": "array", "dtype": made.dtype.str.replace("|", "<"), "shape": made.shape}
        self._add(name, made.tobytes(), about)

    def add_files(self, name: str, kind: str, files: Sequence[bytes]) -> None:
        self._add(name, b"".join(files), {"type": kind, "lengths": [len(each) for each in files]})

    def _add(self, name: str, body: bytes, about: dict[str, Any]) -> None:
        part = {"name": name, **about, "offset": self._size, "bytes": len(body)}
        self._header["parts"].append(part)
        self._bodies.append(body + bytes(-len(body) % 8))
        self._size += len(self._bodies[-1])

    def to_bytes(self) -> bytes:
        header = json.dumps(self._header).encode()
        room = bytes(-(4 + len(header)) % 8)
        return b"".join([struct.pack("<I", len(header)), header, room, *self._bodies])


def _thinned(value: NDArray[Any]) -> NDArray[Any]:
    rows, columns = (-(-size // MAX_SIDE) or 1 for size in value.shape[:2])
    return value[::rows, ::columns]


def _planes(drawing: Drawing, value: NDArray[Any]) -> NDArray[Any]:
    """Planes as the first axis, whatever the axes in front of a picture are."""
    if not drawing.first:
        value = np.moveaxis(value, -1, 0)
    value = value.reshape(-1, *value.shape[-2:])
    return value[:MAX_PLANES]


def _tiled(planes: NDArray[Any], across: int) -> NDArray[Any]:
    """Planes side by side, some in a row."""
    down = -(-len(planes) // across)
    step = max(1, -(-planes.shape[2] * across // MAX_SIDE), -(-planes.shape[1] * down // MAX_SIDE))
    planes = planes[:, ::step, ::step]
    height, width = planes.shape[1:]
    made = np.zeros((down * height, across * width), planes.dtype)
    for i, plane in enumerate(planes):
        row, column = divmod(i, across)
        made[row * height : (row + 1) * height, column * width : (column + 1) * width] = plane
    return made


def _bytes(value: NDArray[Any], limits: Limits | None) -> NDArray[Any]:
    if value.dtype == np.uint8:
        return value
    low, high = limits or limits_of(value) or (0.0, 1.0)
    with np.errstate(invalid="ignore", over="ignore"):
        scaled = (value.astype(np.float64) - low) * (255 / (high - low))
    return np.clip(np.nan_to_num(scaled), 0, 255).astype(np.uint8)


def _tile_colour(rank: int) -> tuple[int, int, int]:
    shades = (
        (205, 193, 180), (238, 228, 218), (237, 224, 200), (242, 177, 121), (245, 149, 99),
        (246, 124, 95), (246, 94, 59), (237, 207, 114), (237, 204, 97), (237, 200, 80),
        (237, 197, 63), (237, 194, 46),
    )  # fmt: skip
    return shades[rank] if rank < len(shades) else (60, 58, 50)
