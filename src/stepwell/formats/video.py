"""Pictures, one after another, as an animated GIF or an MP4, by the name."""

import struct
from fractions import Fraction
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from stepwell.batches import in_order
from stepwell.errors import SchemaError
from stepwell.files.atomic import new_file
from stepwell.files.extras import library
from stepwell.formats.streams import Progress
from stepwell.source import Field, Source

_MAX_GIF_FPS = 50  # viewers play anything faster at ten a second
_LOOP_FOR_EVER = b"!\xff\x0bNETSCAPE2.0\x03\x01\x00\x00\x00"
_COLOURS = 256

Picture = NDArray[np.uint8]


def write(source: Source, path: Path, *, progress: Progress, fps: float = 30) -> None:
    """Write the pictures of a source: its field `frame`, or the only one that has pictures.

    A GIF has at most 256 colours in each and is exact up to there; an MP4 (H.264) never is. Needs
    the extra `video`. After a kill this begins again.
    """
    name = _pictures(source)
    if not len(source):
        raise SchemaError(f"{name!r}: there are no frames")
    gif = path.suffix.lower() == ".gif"
    if not fps > 0 or (gif and fps > _MAX_GIF_FPS):
        limit = f" and up to {_MAX_GIF_FPS} for a GIF" if gif else ""
        raise ValueError(f"fps: expected more than 0{limit}, got {fps:g}")
    with new_file(path, follow=True) as file:
        video = _Gif(file, fps) if gif else _Mp4(file, fps)
        for batch in in_order(source.columns([name]), progress=progress):
            for picture in batch[name]:
                video.add(_rgb(picture))
        video.close()


def _pictures(source: Source) -> str:
    found = [name for name, field in source.schema.items() if _is_picture(field)]
    if "frame" in found:
        return "frame"
    if len(found) != 1:
        got = ", ".join(f"{name} ({field})" for name, field in source.schema.items())
        raise SchemaError(
            f"expected a field 'frame', or one of uint8 pictures: there are no frames in {got}"
            if not found
            else f"expected one field of pictures; choose one of {', '.join(found)}"
        )
    return found[0]


def _is_picture(field: Field) -> bool:
    if field.ragged or field.dtype != np.uint8 or min(field.shape, default=0) < 1:
        return False
    return len(field.shape) == 2 or (len(field.shape) == 3 and field.shape[2] in (1, 3, 4))


class _Gif:
    """Each picture is the part that changed, with colours of its own."""

    def __init__(self, file: BinaryIO, fps: float) -> None:
        self._encode = library("PIL.GifImagePlugin", "video").getdata
        self._image = library("PIL.Image", "video")
        self._file = file
        self._fps = fps
        self._count = 0
        self._last: Picture | None = None

    def add(self, now: Picture) -> None:
        height, width = now.shape[:2]
        if self._last is None:
            self._file.write(b"GIF89a" + struct.pack("<HHBBB", width, height, 0x70, 0, 0))
            self._file.write(_LOOP_FOR_EVER)
        top, left, part = _changed(self._last, now)
        # In hundredths of a second, such that the sum is never off by more than half of one.
        begin, end = (round(n * 100 / self._fps) for n in (self._count, self._count + 1))
        self._file.writelines(
            self._encode(
                self._indexed(part),
                (left, top),
                duration=10 * (end - begin),
                disposal=1,
                include_color_table=True,
            )
        )
        self._last, self._count = now, self._count + 1

    def _indexed(self, part: Picture) -> Any:
        """An image with a palette: exact when it has few enough colours."""
        size = (part.shape[1], part.shape[0])
        packed = part.astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32)
        colours, index = np.unique(packed, return_inverse=True)
        if len(colours) > _COLOURS:
            whole = self._image.frombytes("RGB", size, part.tobytes())
            return whole.quantize(_COLOURS, dither=self._image.Dither.NONE)
        image = self._image.frombytes("P", size, index.astype(np.uint8).tobytes())
        image.putpalette(
            (colours[:, None] >> np.array([16, 8, 0]) & 255).astype(np.uint8).tobytes()
        )
        return image

    def close(self) -> None:
        self._file.write(b";")


class _Mp4:
    """H.264, as every player knows it."""

    def __init__(self, file: BinaryIO, fps: float) -> None:
        self._av = library("av", "video")
        self._rate = Fraction(fps).limit_denominator(1000)
        self._container = self._av.open(file, "w", format="mp4")
        self._stream: Any = None

    def add(self, now: Picture) -> None:
        even = np.pad(now, ((0, now.shape[0] % 2), (0, now.shape[1] % 2), (0, 0)), "edge")
        if self._stream is None:
            self._stream = self._container.add_stream(
                "libx264", rate=self._rate, options={"crf": "18"}
            )
            self._stream.height, self._stream.width = even.shape[:2]
            self._stream.pix_fmt = "yuv420p"
        frame = self._av.VideoFrame.from_ndarray(even, format="rgb24")
        self._container.mux(self._stream.encode(frame))

    def close(self) -> None:
        self._container.mux(self._stream.encode())
        self._container.close()


def _rgb(picture: Picture) -> Picture:
    """A picture with three channels."""
    now = picture if picture.ndim == 3 else picture[..., None]
    return np.ascontiguousarray(now[..., :3] if now.shape[2] > 1 else now.repeat(3, axis=2))


def _changed(last: Picture | None, now: Picture) -> tuple[int, int, Picture]:
    """Where the part that is not as before begins, and that part; a pixel when all is."""
    if last is None:
        return 0, 0, now
    other = (last != now).any(axis=2)
    rows, columns = np.flatnonzero(other.any(axis=1)), np.flatnonzero(other.any(axis=0))
    if not len(rows):
        return 0, 0, now[:1, :1]
    top, left = int(rows[0]), int(columns[0])
    return top, left, now[top : rows[-1] + 1, left : columns[-1] + 1]
