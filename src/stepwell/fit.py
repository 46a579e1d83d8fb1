"""Values put into a dtype that can hold each of them, or refused by name.

One rule for every writer: what comes out is what went in, or it is a `SchemaError`; whoever means
to lose digits casts first. Only floats are rounded, to the precision of their field.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell.errors import SchemaError


def fit_into(name: str, values: NDArray[Any], want: NDArray[Any]) -> None:
    """Copy values into a field that can hold each of them.

    Raises `SchemaError` for another shape, a kind that cannot be cast, and a value that would
    change by more than a float's rounding.
    """
    given, kept = values.dtype, want.dtype
    if given == kept and values.shape == want.shape:
        want[...] = values
        return
    if values.shape != want.shape or not _is_castable(given, kept):
        raise SchemaError(f"{name}: expected {kept} {want.shape}, got {given} {values.shape}")
    with np.errstate(over="ignore"):
        want[...] = values
    changed = changed_by(values, want)
    if changed is not None and changed.any():
        raise does_not_fit(name, values[changed].flat[0], str(kept), digits=given.kind in "iu")


def does_not_fit(name: str, value: Any, kept: str, *, digits: bool) -> SchemaError:
    """The error for a value that a type has no place for, or not all of its digits."""
    hint = f"; cast to {kept} what may lose digits" if digits and "float" in kept else ""
    return SchemaError(f"{name}: {value!r} does not fit {kept}{hint}")


def _is_castable(given: np.dtype[Any], kept: np.dtype[Any]) -> bool:
    """Whether values of a kind can be of another; each may still be one that does not fit."""
    if given.names or kept.names:
        return given == kept
    if kept.kind in "SU":
        return given.kind == kept.kind
    whole = given.kind in "iu" and kept.kind in "iu"
    return whole or np.can_cast(given, kept, "same_kind")


def changed_by(values: NDArray[Any], want: NDArray[Any]) -> NDArray[np.bool_] | None:
    """Which values are others now; None where none can be."""
    given, kept = values.dtype, want.dtype
    # NumPy calls floats of whole numbers safe, and shorter units of time; neither is.
    floats = given.kind in "iu" and kept.kind in "fc"
    times = "m" in given.kind.lower() + kept.kind.lower()
    if not floats and not times and np.can_cast(given, kept, "safe"):
        return None
    back: NDArray[Any] = want
    if floats:  # compared as whole numbers: NumPy would round both sides
        limit = np.float64(2.0 ** (8 * given.itemsize - (given.kind == "i")))
        beyond = ~np.isfinite(want) | (want.real >= limit)  # the highest one was rounded up
        back = np.where(beyond, 0, want.real).astype(given)
        return np.asarray(beyond | (back != values))
    if given.kind in "fc" and kept.kind in "fc":  # rounded to the field's precision
        return np.asarray(np.isfinite(values) & ~np.isfinite(want))
    if kept.kind in "mM":
        back = want.astype(given)
        if given.kind in "iu":  # whose lowest one is no time
            return np.asarray((back != values) | np.isnat(want))
    return np.asarray((back != values) & ~((back != back) & (values != values)))


def unmasked(name: str, value: Any) -> Any:
    """The value itself. Raises `SchemaError` for masked values, whose mask would be lost."""
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise SchemaError(f"{name}: expected values, got masked ones; fill them: .filled(0)")
    return value
