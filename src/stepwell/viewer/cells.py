"""Rows as a table: every value in a form that a cell can show, and never a large one whole."""

import base64
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from stepwell.errors import StepwellError
from stepwell.field import Field
from stepwell.sampler import Shuffle
from stepwell.source import Batch, Source
from stepwell.store import Store
from stepwell.viewer.drawings import MAX_VALUES, Drawing, drawings
from stepwell.viewer.listing import safe
from stepwell.viewer.tracks import picture, png, words

MAX_ROWS = 200
_AT_ONCE = 32 << 20
_SIDE = 256
_MAX_PIXELS = 1 << 26
_MAGIC = {b"\x89PNG\r\n\x1a\n": "PNG", b"\xff\xd8\xff": "JPEG"}
_DAMAGE = (StepwellError, OSError)


def loader_rows(store: Source, seed: int, step: int, batch: int) -> tuple[list[int], int]:
    """The rows that a `Loader` with this seed gives at a step, and how many the batch is short of.

    Steps count on from epoch to epoch.
    """
    if not len(store):
        raise ValueError("there are no rows")
    epoch, within = divmod(step, -(-len(store) // batch))
    start = within * batch
    count = min(batch, len(store) - start)
    return Shuffle(seed).order(len(store)).rows(epoch, start, count).tolist(), batch - count


def table(store: Store, rows: Sequence[int], padding: int = 0) -> dict[str, Any]:
    """These rows, decoded. Raises `IndexError` for one that is not there."""
    if len(rows) > MAX_ROWS:
        raise ValueError(f"expected at most {MAX_ROWS} rows, got {len(rows):,}")
    for row in rows:
        if not 0 <= row < len(store):
            raise IndexError(f"row {row} is outside {store.noun} of {len(store):,} rows")
    draws = {each.name: each for each in drawings(store.schema)}
    columns: dict[str, list[Any]] = {name: [] for name in store.schema}
    damage: list[str | None] = []

    def add(some: Sequence[int]) -> None:  # what it has read is gone before more is
        for values, there, problem in _read(store, some):
            damage.append(problem)
            for name, cells in columns.items():
                here = problem is None and there.get(name, True)
                cells.append(cell(draws[name], values[name]) if here else None)

    for some in _together(store, rows):
        add(some)
    return {
        "fields": {name: str(field) for name, field in store.schema.items()},
        "draw": {name: draws[name].draw for name in columns},
        "row_ids": list(rows),
        "columns": columns,
        "damage": damage,
        "padding": padding,
        "count": len(store),
    }


def cell(drawing: Drawing, value: Any) -> Any:
    """A value as a cell shows it."""
    if isinstance(value, bytes):
        return _encoded_picture(value) or safe(value)
    if isinstance(value, str):
        return words(value)
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        return words(array.item() if array.ndim == 0 else array)
    if array.ndim == 0:
        return safe(array.item())
    if drawing.draw in ("image", "planes") and array.size:
        return _data(_small(picture(drawing, array)))
    flat = array.reshape(-1)[:MAX_VALUES]
    return {
        "values": [safe(each) for each in flat.tolist()],
        "shape": list(array.shape),
        "more": array.size > MAX_VALUES,
    }


def _together(store: Store, rows: Sequence[int]) -> list[Sequence[int]]:
    """Rows that are read at once: all of them, or one by one where they may be large."""
    fields: Sequence[Field] = list(store.schema.values())
    size = sum(field.row_bytes for field in fields) * len(rows)
    if any(field.ragged for field in fields) or size > _AT_ONCE:
        return [[row] for row in rows]
    return [rows] if rows else []


def _read(
    store: Store, rows: Sequence[int]
) -> list[tuple[dict[str, Any], dict[str, bool], str | None]]:
    """The values of each row, which of them there are, and what was wrong with it."""
    chosen: NDArray[np.int64] = np.array(rows, np.int64)
    try:
        batch: Batch = store.take(chosen)
        there = store.present(chosen)
    except _DAMAGE as error:
        if len(rows) == 1:
            return [({}, {}, str(error))]
        return [each for row in rows for each in _read(store, [row])]
    return [
        (
            {name: values[i] for name, values in batch.items()},
            {name: bool(has[i]) for name, has in there.items()},
            None,
        )
        for i in range(len(rows))
    ]


def _encoded_picture(data: bytes) -> dict[str, str] | None:
    """A PNG or JPEG file that a record has as bytes, made small; None for other bytes."""
    kind = next((kind for magic, kind in _MAGIC.items() if data.startswith(magic)), None)
    if kind is None:
        return None
    try:
        with Image.open(io.BytesIO(data), formats=[kind]) as image:
            if image.width * image.height > _MAX_PIXELS:
                return None
            image.thumbnail((_SIDE, _SIDE))
            return _data(np.asarray(image.convert("RGB")))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None  # bytes that only begin like a picture


def _small(pixels: NDArray[Any]) -> NDArray[Any]:
    step = max(1, -(-max(pixels.shape[:2]) // _SIDE))
    return pixels[::step, ::step]


def _data(pixels: NDArray[Any]) -> dict[str, str]:
    return {"image": "data:image/png;base64," + base64.b64encode(png(pixels)).decode()}
