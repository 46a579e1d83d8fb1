"""One run or episode: what the player has to know of it, and its steps in chunks."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepwell.errors import StepwellError
from stepwell.game2048.board import score
from stepwell.lazy import lazy
from stepwell.source import Source
from stepwell.viewer.drawings import MAX_VALUES, MOVES, Drawing, drawings, is_board
from stepwell.viewer.listing import run_row, safe
from stepwell.viewer.shelf import Entry
from stepwell.viewer.tracks import (
    Chunk,
    Limits,
    board_picture,
    limits_of,
    picture,
    png,
    shown_values,
    words,
)

_CHUNK_BYTES = 4 << 20
_MAX_CHUNK = 1024
_CURVE_POINTS = 1000
_SCAN_ROWS = 1 << 16
_DAMAGED_ROWS = 64  # that are given up together
_MAX_SCAN = 1 << 20
_SOME = 16 * _CURVE_POINTS
_THUMB_SIDE = 160
_DAMAGE = (StepwellError, OSError)


class Episode:
    """The steps of one run of a store, as rows of `source`.

    `recording` is what the store's description has of the recording that it is a part of.
    """

    def __init__(
        self, columns: Mapping[str, Any], key: Any, source: Source, recording: Mapping[str, Any]
    ) -> None:
        self.columns, self.key, self.source = columns, key, source
        self.live = columns.get("ended") == 0 and recording.get("state") == "recording"
        self.actions = recording.get("actions")
        self.drawings = drawings(source.schema)
        self.steps = len(source)
        self._limits: dict[str, Limits | None] = {}

    @property
    def chunk_steps(self) -> int:
        """Steps that are sent at once."""
        row = sum(each.row_bytes for each in self.source.schema.values())
        return max(1, min(_MAX_CHUNK, _CHUNK_BYTES // max(row, 1)))

    def about(self) -> dict[str, Any]:
        """Everything that the player needs before the first step."""
        scanned = self._scan
        return {
            "key": safe(self.key),
            "title": str(self.key),
            "steps": self.steps,
            "columns": {name: safe(value) for name, value in self.columns.items()},
            "tracks": [each.to_json() for each in self.drawings],
            "curve": scanned.curves,
            "actions": list(MOVES) if is_board("board", self.source.schema) else self.actions,
            "chunk": self.chunk_steps,
            "live": self.live,
            "damage": scanned.damage,
        }

    def chunk(self, start: int, count: int) -> bytes:
        """Steps from `start` on, at most `chunk_steps`; what cannot be read is left empty."""
        start = min(start, self.steps)
        count = max(0, min(count, self.chunk_steps, self.steps - start))
        made = Chunk(start, count)
        rows = np.arange(start, start + count)
        try:
            whole: Any = self.source.take(rows)
        except _DAMAGE as error:
            made.damaged(str(error))
            whole = None
        missing = np.zeros(count, bool)
        for drawing in self.drawings:
            values, there = self._field(drawing.name, rows, whole)
            missing |= ~np.array(there, bool)
            if drawing.draw in ("image", "planes"):
                limits = self._limits_of(drawing, values)
                files = [
                    png(picture(drawing, values[i], limits)) if here else b""
                    for i, here in enumerate(there)
                ]
                made.add_files(drawing.name, "png", files)
            elif drawing.draw == "text":
                texts = [words(values[i]).encode() if h else b"" for i, h in enumerate(there)]
                made.add_files(drawing.name, "text", texts)
            else:
                self._add_numbers(made, drawing, values, there)
        made.missing(np.flatnonzero(missing).tolist())
        returns = self._scan.returns
        if returns is not None:
            made.add_array("return", returns[start : start + count])
        return made.to_bytes()

    def thumbnail(self) -> bytes | None:
        """A small picture of the middle of the run; None when there is nothing to draw."""
        drawing = self.drawings[0] if self.drawings else None
        if drawing is None or drawing.draw not in ("board", "image", "planes") or not self.steps:
            return None
        value = self.source.columns([drawing.name]).take([self.steps // 2])[drawing.name][0]
        if drawing.draw == "board":
            return png(board_picture(int(value)))
        pixels = picture(drawing, value)
        step = max(1, -(-max(pixels.shape[:2]) // _THUMB_SIDE))
        return png(pixels[::step, ::step])

    def _field(self, name: str, rows: NDArray[np.int64], whole: Any) -> tuple[Any, list[bool]]:
        """The values of a field, and which of them could be read."""
        if whole is not None:
            return whole[name], [True] * len(rows)
        column, values, there = self.source.columns([name]), list[Any](), list[bool]()
        for row in rows:
            try:
                values.append(column.take([row])[name][0])
                there.append(True)
            except _DAMAGE:
                values.append(None)
                there.append(False)
        return values, there

    def _add_numbers(self, made: Chunk, drawing: Drawing, values: Any, there: list[bool]) -> None:
        field = drawing.field
        if not all(there):
            nothing = np.full(field.shape, np.nan if field.dtype.kind == "f" else 0, field.dtype)
            values = [v if here else nothing for v, here in zip(values, there, strict=True)]
        numbers = np.asarray(values, field.dtype).reshape(len(there), *field.shape)
        if numbers.size > len(numbers) * MAX_VALUES:
            numbers = shown_values(numbers)
        made.add_array(drawing.name, numbers)

    def _limits_of(self, drawing: Drawing, values: Any) -> Limits | None:
        """The same for every step, so that pictures do not flicker."""
        if drawing.field.dtype == np.uint8:
            return None
        if drawing.name not in self._limits:
            column = self.source.columns([drawing.name])
            some = np.unique(np.linspace(0, self.steps - 1, 8).astype(np.int64))
            try:
                self._limits[drawing.name] = limits_of(column.take(some)[drawing.name])
            except _DAMAGE:
                self._limits[drawing.name] = (0.0, 1.0)
        return self._limits[drawing.name]

    @lazy
    def _scan(self) -> "_Scan":
        """A look at the rewards of the whole run, or at the boards; at some, of a very long one."""
        schema = self.source.schema
        field = schema.get("reward")
        if is_board("board", schema):
            boards, _, damage = self._column("board")
            points = score(boards).astype(np.float64)
            return _Scan({"score": _curve(points, self.steps)}, None, damage)
        if field is None or field.ragged or field.shape not in ((), (1,)):
            return _Scan({}, None, None)
        values, there, damage = self._column("reward")
        rewards = values.astype(np.float64)
        rewards[~there] = np.nan
        curves = {"reward": _curve(rewards, self.steps)}
        if len(rewards) < self.steps:
            return _Scan(curves, None, damage)
        returns = np.cumsum(np.nan_to_num(rewards))
        returns[~there] = np.nan
        return _Scan({**curves, "return": _curve(returns, self.steps)}, returns, damage)

    def _column(self, name: str) -> tuple[NDArray[Any], NDArray[np.bool], str | None]:
        """A field of every step, or of some of too many; which could be read, and why not."""
        column, damage = self.source.columns([name]), None
        rows = np.arange(self.steps)
        if self.steps > _MAX_SCAN:
            rows = np.linspace(0, self.steps - 1, _SOME).astype(np.int64)
        values = np.zeros(len(rows), self.source.schema[name].dtype)
        there = np.ones(len(rows), bool)
        left = [(at, min(at + _SCAN_ROWS, len(rows))) for at in range(0, len(rows), _SCAN_ROWS)]
        while left:
            begin, end = left.pop()
            try:
                values[begin:end] = column.take(rows[begin:end])[name].reshape(-1)
            except _DAMAGE as error:
                damage = damage or str(error)
                if end - begin <= _DAMAGED_ROWS:
                    there[begin:end] = False
                else:  # half of them may be fine
                    middle = (begin + end) // 2
                    left += [(begin, middle), (middle, end)]
        return values, there, damage


class _Scan(NamedTuple):
    """What a look at a whole run found."""

    curves: dict[str, Any]
    returns: NDArray[np.float64] | None
    damage: str | None


def open_episode(entry: Entry, text: str) -> Episode:
    """The run whose key is written so. Raises `KeyError` when there is none."""

    def make() -> Episode:
        store = entry.store
        columns, key = run_row(store, text)
        recording: Mapping[str, Any] = {}
        if "run_id" in columns:
            recording = entry.about().facts.get("recordings", {}).get(columns["run_id"], {})
        return Episode(columns, key, store.steps_of(key), recording)

    entry.store  # noqa: B018  what is remembered is not older than a second
    return entry.remembered(("episode", text), make)


def _curve(values: NDArray[np.float64], steps: int) -> dict[str, list[Any]]:
    """The least and the greatest value of each stretch of values that are spread over the steps."""
    if not len(values):
        return {"x": [], "min": [], "max": []}
    starts = np.arange(0, len(values), -(-len(values) // _CURVE_POINTS))
    low, high = np.fmin.reduceat(values, starts), np.fmax.reduceat(values, starts)
    places = starts * steps // len(values)
    return {"x": places.tolist(), "min": _or_none(low), "max": _or_none(high)}


def _or_none(values: NDArray[np.float64]) -> list[float | None]:
    return [value if np.isfinite(value) else None for value in values.tolist()]
