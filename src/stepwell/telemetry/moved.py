"""Steps of an old database as they are to be in a replay store, and whether they are so there."""

import json
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepwell.errors import SchemaError
from stepwell.stores.replay.channels import ACTIONS, FRAMES, OBSERVATIONS, Channel, Tree, leaves
from stepwell.stores.replay.database import reading
from stepwell.stores.replay.resolver import FrameResolver
from stepwell.stores.replay.writer import ReplayWriter
from stepwell.telemetry.json_arrays import parse, picture

_ARGUMENTS = {"observation": OBSERVATIONS, "action": ACTIONS, "frame": FRAMES}
_REFS = {OBSERVATIONS: "obs_ref", ACTIONS: "action", FRAMES: "frame_ref"}


class MovedStep(NamedTuple):
    """A step whose JSON has been read."""

    episode_id: str
    step_index: int
    number: int | float | None
    """The action, where it is a single number."""
    columns: dict[str, Any]
    """The columns that the new database has as well."""
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
            info = _info(row["info"], rest)
        except RecursionError:
            raise SchemaError(f"{where}: nested too deeply") from None
        except ValueError as error:
            raise SchemaError(f"{where}: {error}") from None
        if isinstance(action, np.ndarray) and not action.ndim:
            action = action.item()
        reward = row["reward"]
        if not isinstance(reward, int | float) or reward != reward:
            raise SchemaError(f"{where}: reward: expected a number, got {reward!r}")
        if not np.isfinite(reward) or float(reward) != reward:
            raise SchemaError(
                f"{where}: reward: expected a finite number that float64 has, got {reward!r}"
            )
        for name in ("terminated", "truncated"):  # text would be true, whatever it is
            if row[name] not in (None, 0, 1):
                raise SchemaError(f"{where}: {name}: expected 0 or 1, got {row[name]!r}")
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

    def hand_to(self, writer: ReplayWriter, types: "Types") -> None:
        """Have it recorded. Raises `SchemaError` or `ValueError` for what cannot be."""
        arrays = {
            name: types.cast(kind, self.trees[kind])
            for name, kind in _ARGUMENTS.items()
            if kind in self.trees
        }
        writer.record_step(
            **arrays,
            **self.columns,
            episode_id=self.episode_id,
            step_index=self.step_index,
        )

    @property
    def where(self) -> str:
        return f"step {self.step_index} of episode {self.episode_id!r}"


def _info(stored: Any, rest: Mapping[str, Any]) -> dict[str, Any]:
    """The info of a step, with the contents of its BLOBs besides arrays, under their names."""
    value = {} if stored is None else json.loads(stored)
    if not isinstance(value, dict):
        value = {} if value is None else {"info": value}
    return {**value, **{name: each for name, each in rest.items() if each is not None}}


class Types:
    """The types of a run's arrays, which the first steps that have any decide: pixels are uint8,
    other whole numbers int64, fractions float64."""

    def __init__(self, known: Iterable[Channel], observations: str | None) -> None:
        self._known = {channel.name: channel.field.dtype for channel in known}
        self._wanted = None if observations is None else np.dtype(observations)

    def settle(self, steps: Iterable[MovedStep]) -> None:
        """Decide on the arrays that no step had so far."""
        first: dict[str, list[NDArray[Any]]] = {}
        for step in steps:
            for kind, tree in step.trees.items():
                with suppress(SchemaError):  # reported when its turn comes
                    for name, array in leaves(kind, tree):
                        if name not in self._known:
                            first.setdefault(name, []).append(array)
        for name, some in first.items():
            dtype = np.result_type(*(array.dtype for array in some))
            if name.partition("/")[0] == OBSERVATIONS and self._wanted is not None:
                dtype = self._wanted
            elif dtype == np.int64 and some[0].ndim > 1 and all(map(_are_bytes, some)):
                dtype = np.dtype(np.uint8)
            self._known[name] = dtype

    def cast(self, name: str, tree: Tree) -> Tree:
        """A tree with arrays of these types. Raises `SchemaError` for numbers that do not fit."""
        if isinstance(tree, dict):
            return {key: self.cast(f"{name}/{key}", branch) for key, branch in tree.items()}
        array, dtype = np.asarray(tree), self._known.get(name)
        if dtype is None or array.dtype == dtype:
            return tree
        with np.errstate(invalid="ignore"):
            made = array.astype(dtype)
            # Fractions are rounded only where float32 was given.
            fits = array.dtype.kind == dtype.kind == "f" or _equal(array, made)
        if not fits:
            raise SchemaError(
                f"{name}: expected {dtype} as in the first steps, got {array.min()} to "
                f"{array.max()}; choose another type for all"
            )
        return made


def _are_bytes(array: NDArray[Any]) -> bool:
    return bool(array.size and array.min() >= 0 and array.max() <= 255)


def differences(root: Path, run_id: str, steps: Iterable[MovedStep]) -> list[str]:
    """The differences of a replay store, a line each, in the steps that it has."""
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
        stored = {**dict(row), "info": {} if row["info"] is None else json.loads(row["info"])}
        if ACTIONS not in step.trees or step.number is not None:
            expected["action"] = step.number
        lines += [
            f"{step.where}: {name}: expected {value!r}, got {stored[name]!r}"
            for name, value in expected.items()
            if stored[name] != value
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
    if expected.dtype.kind == got.dtype.kind == "f":
        return np.array_equal(expected.astype(got.dtype), got, equal_nan=True)
    # NumPy compares whole numbers with floats as floats, which have fewer digits.
    with np.errstate(invalid="ignore"):
        return np.array_equal(expected, got) and np.array_equal(
            expected, got.astype(expected.dtype)
        )
