"""Values put into a dtype that can hold each of them, or refused by name."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell.errors import SchemaError


def fit_into(name: str, values: NDArray[Any], want: NDArray[Any]) -> None:
    """Copy values into a field that can hold each of them.

    Raises `SchemaError` for another shape, a kind that cannot be cast, and a value that does not
    fit.
    """
    given, kept = values.dtype, want.dtype
    whole = given.kind in "iu" and kept.kind in "iu"
    castable = whole or np.can_cast(given, kept, "same_kind")
    if given.names or kept.names:
        castable = given == kept
    elif kept.kind in "SU":
        castable = given.kind == kept.kind
    if values.shape != want.shape or not castable:
        raise SchemaError(f"{name}: expected {kept} {want.shape}, got {given} {values.shape}")
    with np.errstate(over="ignore"):
        want[...] = values
    if kept.kind in "fc" and given.kind in "fc" and given != kept:
        lost = np.isfinite(values) & ~np.isfinite(want)
        if lost.any():
            raise SchemaError(f"{name}: {values[lost].flat[0]!r} does not fit {kept}")
    if kept.kind in "mM" and given != kept and (want.astype(given) != values).any():
        raise SchemaError(f"{name}: not every {given} fits {kept}")
    if kept.kind in "iuSU" and not np.can_cast(given, kept, "safe"):
        changed = np.asarray(want != values)
        if changed.any():
            value = values[changed].flat[0]
            raise SchemaError(f"{name}: {value!r} does not fit {kept}")


def unmasked(name: str, value: Any) -> Any:
    """The value itself. Raises `SchemaError` for masked values, whose mask would be lost."""
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise SchemaError(f"{name}: expected values, got masked ones; fill them: .filled(0)")
    return value
