"""Steps of an old database as they are to be in a replay store, and whether they are so there."""

import json
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepwell.errors import SchemaError
from stepwell.stores.replay.channels import ACTIONS, FRAMES, OBSERVATIONS, Channel, Tree, leaves
from stepwell.stores.replay.database import reading
from stepwell.stores.replay.resolver import FrameResolver
from stepwell.telemetry.json_arrays import parse, picture

__all__ = ["Channels", "MovedStep", "differences"]

_REFS = {OBSERVATIONS: "obs_ref", ACTIONS: "action", FRAMES: "frame_ref"}


class MovedStep(NamedTuple):
    """A step whose JSON has been read."""

    episode_id: str
    step_index: int
    number: int | float | None
    """The action, where it is a single number."""
    columns: dict[str, Any]
    """What is a column of the new database as well."""
    trees: dict[str, Tree]
    """Observation, action and frame, those that there are."""
    json_bytes: int

    @classmethod
    def of(cls, row: sqlite3.Row) -> "MovedStep":
        """Read a row. Raises `SchemaError`, naming it, for what a replay store cannot hold."""
        where = f"step {row['step_index']} of episode {row['episode_id']!r}"
        try:
            observation, unseen = parse(row["observation"])
            action, done = parse(row["action"])
            frame, shown = picture(parse(row["render_payload"]))
            rest = {"observation": unseen, "action": done, "render_payload": shown}
            info = _info(row["info"], {name: r for name, r in rest.items() if r is not None})
        except ValueError as error:
            raise SchemaError(f"{where}: {error}") from None
        if isinstance(action, np.ndarray) and not action.ndim:
            action = action.item()
        reward = row["reward"]
        if not isinstance(reward, int | float) or reward != reward:
            raise SchemaError(f"{where}: reward: expected a number, got {reward!r}")
        found = {OBSERVATIONS: observation, ACTIONS: action, FRAMES: frame}
        blobs = (row["observation"], row["render_payload"])
        columns = {
            "reward": float(reward),
            "terminated": int(bool(row["terminated"])),
            "truncated": int(bool(row["truncated"])),
            "info": info,
            "timestamp": "" if row["timestamp"] is None else str(row["timestamp"]),
            "agent_id": None if row["agent_id"] is None else str(row["agent_id"]),
        }
        return cls(
            row["episode_id"],
            row["step_index"],
            action if isinstance(action, int | float) else None,
            columns,
            {kind: tree for kind, tree in found.items() if tree is not None},
            sum(len(blob) for blob in blobs if isinstance(blob, str | bytes)),
        )

    @property
    def where(self) -> str:
        return f"step {self.step_index} of episode {self.episode_id!r}"


def _info(stored: Any, rest: Mapping[str, Any]) -> bytes | None:
    """What came with a step, and what its BLOBs held besides arrays, under their names."""
    if stored is None and not rest:
        return None
    data = stored.encode() if isinstance(stored, str) else stored
    value = {} if stored is None else json.loads(data)
    if not isinstance(value, dict):
        value = {} if value is None else {"info": value}
    elif not rest:
        return None if stored is None else bytes(data)
    return json.dumps({**value, **rest}).encode() if value or rest else None


class Channels:
    """The channels of a run. What they hold is decided by the first steps that have any."""

    def __init__(self, known: Iterable[Channel], compress: str, observations: str | None) -> None:
        self._kinds: dict[str, list[Channel]] = {}
        for channel in known:
            self._kinds.setdefault(channel.kind, []).append(channel)
        self._compress = compress
        self._wanted = None if observations is None else np.dtype(observations)

    def settle(self, steps: Iterable[MovedStep]) -> None:
        """Decide on the kinds that no step had so far."""
        first: dict[str, dict[str, list[NDArray[Any]]]] = {}
        for step in steps:
            for kind in step.trees.keys() - self._kinds.keys():
                try:
                    arrays = dict(leaves(kind, step.trees[kind]))
                except SchemaError:  # reported when its turn comes
                    continue
                seen = first.setdefault(kind, {name: [] for name in arrays})
                for name in seen.keys() & arrays.keys():
                    seen[name].append(arrays[name])
        for kind, found in first.items():
            self._kinds[kind] = [self._channel(kind, name, some) for name, some in found.items()]

    def _channel(self, kind: str, name: str, some: list[NDArray[Any]]) -> Channel:
        """Pixels are uint8, other whole numbers int64, fractions float64."""
        dtype = np.result_type(*(array.dtype for array in some))
        if kind == OBSERVATIONS and self._wanted is not None:
            dtype = self._wanted
        elif dtype == np.int64 and some[0].ndim > 1 and all(_are_bytes(array) for array in some):
            dtype = np.dtype(np.uint8)
        return Channel.like(name, np.empty(some[0].shape, dtype), self._compress)

    def payloads(self, step: MovedStep, kind: str) -> list[tuple[Channel, NDArray[Any]]]:
        """The arrays of a step as they are to be stored. Raises `SchemaError`, naming it."""
        if kind not in step.trees:
            return []
        channels = self._kinds.get(kind, [])
        try:
            found = dict(leaves(kind, step.trees[kind]))
            names = [channel.name for channel in channels]
            if set(found) != set(names):
                raise SchemaError(f"expected {names}, got {list(found)}")
            return [(channel, _stored(channel, found[channel.name])) for channel in channels]
        except SchemaError as error:
            raise SchemaError(f"{step.where}: {error}") from None


def _are_bytes(array: NDArray[Any]) -> bool:
    return bool(array.size and array.min() >= 0 and array.max() <= 255)


def _stored(channel: Channel, array: NDArray[Any]) -> NDArray[Any]:
    dtype, shape = channel.field.dtype, channel.field.shape
    if array.shape != shape:
        raise SchemaError(
            f"{channel.name}: expected {shape} as in the steps before, got {array.shape}"
        )
    if not _fits(array, dtype):
        raise SchemaError(
            f"{channel.name}: expected {dtype} as in the first steps, got "
            f"{array.min()} to {array.max()}; choose another type for all"
        )
    return array.astype(dtype, order="C")


def _fits(array: NDArray[Any], dtype: np.dtype[Any]) -> bool:
    """Whether no number changes; fractions may, which only who asks for float32 can mean."""
    if array.dtype == dtype or (array.dtype.kind == "f" and dtype.kind == "f"):
        return True
    with np.errstate(invalid="ignore"):
        return bool((array.astype(dtype) == array).all())


def differences(root: Path, run_id: str, steps: Iterable[MovedStep]) -> list[str]:
    """What is not the same in a replay store, a line each, of the steps that it has."""
    both = []
    with reading(root) as database:
        database.row_factory = sqlite3.Row
        sql = "SELECT * FROM steps WHERE episode_id = ? AND step_index = ?"
        for step in steps:
            row = database.execute(sql, (step.episode_id, step.step_index)).fetchone()
            if row is not None:
                both.append((step, row))
    with FrameResolver(root) as resolver:
        found = {
            kind: resolver.resolve_batch(
                [row[column] if isinstance(row[column], str) else None for _, row in both]
            )
            for kind, column in _REFS.items()
        }
    lines = []
    for i, (step, row) in enumerate(both):
        expected = {**step.columns, "run_id": run_id}
        if ACTIONS not in step.trees or step.number is not None:
            expected["action"] = step.number
        lines += [
            f"{step.where}: {name}: expected {value!r}, got {row[name]!r}"
            for name, value in expected.items()
            if row[name] != value
        ]
        lines += [
            f"{step.where}: {kind}: other arrays"
            for kind in _REFS
            if (kind != ACTIONS or step.number is None)
            and not _same(kind, step.trees.get(kind), found[kind][i])
        ]
    return lines


def _same(kind: str, expected: Tree, got: Tree) -> bool:
    if expected is None or got is None:
        return expected is got
    wanted, found = dict(leaves(kind, expected)), dict(leaves(kind, got))
    return set(wanted) == set(found) and all(
        _equal(array, found[name]) for name, array in wanted.items()
    )


def _equal(expected: NDArray[Any], got: NDArray[Any]) -> bool:
    if expected.shape != got.shape:
        return False
    if expected.dtype.kind == "f":
        return np.array_equal(expected.astype(got.dtype), got, equal_nan=got.dtype.kind == "f")
    return np.array_equal(expected, got)
