"""Corpora of activations to test with."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.reference import shards as reference
from tests.reference.shards import KINDS

Floats = NDArray[np.float32]

COUNTS = [17, 0, 1, 30, 9]
WIDTH = 5
ODD = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0]


def values(count: int, width: int = WIDTH, kind: str = "float32", seed: int = 0) -> NDArray[Any]:
    """Rows of float32 that the kind holds exactly: large, tiny, infinite and none at all."""
    random = np.random.default_rng((seed, count, width, KINDS.index(kind)))
    if kind == "float32":
        bits = random.integers(0, 2**32, (count, width), np.uint32)
        rows = bits.view(np.float32)
    elif kind == "float16":
        rows = random.integers(0, 2**16, (count, width), np.uint16).view(np.float16)
        rows = rows.astype(np.float32)
    else:
        bits = random.integers(0, 2**16, (count, width), np.uint16).astype(np.uint32)
        rows = (bits << 16).view(np.float32)
    odd = random.random((count, width)) < 0.1
    rows[odd | np.isnan(rows)] = random.choice(ODD)  # a NaN that is quiet, where there is one
    return rows


def payload(rows: NDArray[Any], kind: str) -> bytes:
    """Rows as a shard has them."""
    if kind == "bfloat16":
        return (rows.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
    return rows.astype(f"<f{reference.SIZES[kind]}").tobytes()


def shard_bytes(rows: NDArray[Any], kind: str) -> bytes:
    count, width = rows.shape
    return reference.header(count, width, KINDS.index(kind)) + payload(rows, kind)


def build(
    folder: Path,
    counts: Sequence[int] = COUNTS,
    kind: str = "float32",
    *,
    width: int = WIDTH,
    names: Sequence[str] | None = None,
    checksums: bool | None = None,
) -> NDArray[Any]:
    """Shards of so many rows, in the order of `names`; returns all rows as float32.

    With `checksums` there is a shards.json, with checksums or without.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts = [values(count, width, kind, seed) for seed, count in enumerate(counts)]
    for number, rows in enumerate(parts):
        name = f"{number:06}.shard" if names is None else names[number]
        (folder / name).write_bytes(shard_bytes(rows, kind))
    if checksums is not None:
        reference.write_list(folder, checksums)
    return np.concatenate([np.zeros((0, width), np.float32), *parts])


def assert_same(got: Any, want: Any) -> None:
    """The same values, in sign and in being none, as float64."""
    mine, theirs = np.asarray(got, np.float64), np.asarray(want, np.float64)
    np.testing.assert_array_equal(mine, theirs)
    real = ~np.isnan(theirs)
    np.testing.assert_array_equal(np.signbit(mine[real]), np.signbit(theirs[real]))
