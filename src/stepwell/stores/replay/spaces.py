"""Gymnasium's spaces: which of them can be recorded, and their values as arrays."""

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from stepwell.errors import SchemaError
from stepwell.stores.replay.channels import Channel, Tree, leaves

__all__ = ["check_space", "value_of"]

_PLAIN = (spaces.Box, spaces.Discrete, spaces.MultiBinary, spaces.MultiDiscrete)


def check_space(kind: str, space: spaces.Space[Any]) -> None:
    """Raises `SchemaError` when values of a space cannot be recorded, and says which part."""
    for name, array in leaves(kind, _zeros(kind, space)):
        Channel.like(name, array, "none")


def _zeros(name: str, space: spaces.Space[Any]) -> Tree:
    if isinstance(space, spaces.Dict):
        return {key: _zeros(f"{name}/{key}", inner) for key, inner in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_zeros(f"{name}/({i})", inner) for i, inner in enumerate(space.spaces))
    if not isinstance(space, _PLAIN):
        raise SchemaError(
            f"{name}: expected a space of Box, Discrete, MultiBinary, MultiDiscrete, Dict or "
            f"Tuple, got {type(space).__name__}"
        )
    return np.zeros(space.shape, space.dtype)


def value_of(name: str, space: spaces.Space[Any], value: Any) -> Tree:
    """A copy of a value in the dtypes and the order that its space states.

    Raises `SchemaError` when it is not of that shape, or would lose more than digits.
    """
    if isinstance(space, spaces.Dict):
        return {
            key: value_of(f"{name}/{key}", inner, value[key]) for key, inner in space.spaces.items()
        }
    if isinstance(space, spaces.Tuple):
        if len(value) != len(space.spaces):
            raise SchemaError(f"{name}: expected {len(space.spaces)} members, got {len(value)}")
        return tuple(
            value_of(f"{name}/({i})", inner, value[i]) for i, inner in enumerate(space.spaces)
        )
    given = np.asarray(value)
    if given.shape != space.shape:
        raise SchemaError(f"{name}: expected the shape {space.shape}, got {given.shape}")
    if given.dtype.kind not in "biuf":
        raise SchemaError(f"{name}: expected {space.dtype}, got {given.dtype}")
    made: NDArray[Any] = given.astype(space.dtype)  # always a copy
    if not np.can_cast(given.dtype, made.dtype, "same_kind") and (made != given).any():
        raise SchemaError(f"{name}: expected {space.dtype}, got {given.dtype} that does not fit")
    return made
