"""Values of Gymnasium's spaces, as arrays that can be recorded."""

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from stepwell.errors import SchemaError
from stepwell.fit import fit_into
from stepwell.stores.replay.channels import Channel, Tree, as_array, leaves
from stepwell.stores.replay.scalars import is_scalar

_PLAIN = (spaces.Box, spaces.Discrete, spaces.MultiBinary, spaces.MultiDiscrete)


def check_space(kind: str, space: spaces.Space[Any]) -> bool:
    """Whether its values are scalars. Raises `SchemaError` naming the part of a space whose values
    cannot be recorded."""
    found = [Channel.like(*each, "none") for each in leaves(kind, _zeros(kind, space))]
    return all(map(is_scalar, found))


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

    Floats are rounded to the precision of their space. Raises `SchemaError` when it is not of that
    shape, or would change in any other way.
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
    given = as_array(name, value)
    if given.shape != space.shape:
        raise SchemaError(f"{name}: expected the shape {space.shape}, got {given.shape}")
    made: NDArray[Any] = np.empty(space.shape, space.dtype)
    if given.dtype.kind == "f" or made.dtype.kind == "b":
        given = _rounded(given, made.dtype)
    fit_into(name, given, made)
    return made


def _rounded(given: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Floats in the precision of a space, whole numbers and flags in its dtype; or as they are."""
    with np.errstate(over="ignore", invalid="ignore"):
        cast = given.astype(dtype)
        finite = dtype.kind == "f"
        same = np.isfinite(cast) == np.isfinite(given) if finite else cast == given
    return cast if same.all() else given
