"""Arrays that were written as JSON: nested lists of numbers, alone or somewhere in a dict.

Pixels, whole numbers in nested lists of equal lengths, are read by NumPy, several times faster
than by way of Python's numbers. Whatever is not plainly that goes through `json`.
"""

import base64
import binascii
import json
import warnings
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell.errors import SchemaError

_NUMBER = b" \t\r\n0123456789-"
_MAX_WHOLE = 2.0**53  # up to which float64 has every whole number
_SAFE = 10**18  # NumPy does not report a whole number that is too large for it
_MAX_DEPTH = 32  # that NumPy has arrays of
_MARK = "\0array"  # stands for the array that was read before the rest
_MARKED = json.dumps(_MARK).encode()
_WRAPPED = ("__ndarray__", "data")
_PICTURES = ("rgb", "frame", "image", "pixels", "data")

Parts = tuple[Any, Any]
"""A tree of arrays, and everything that is not one; None where there is nothing."""


def parse(blob: Any) -> Parts:
    """The array in a column, and the rest. Raises `ValueError` when it is not JSON, `SchemaError`
    when lists in it have several lengths."""
    if not isinstance(blob, str | bytes):  # SQLite keeps a number that was put into any column
        return _split(blob)
    data = blob.encode() if isinstance(blob, str) else blob
    array = _rectangle(data)
    if array is not None:
        return array, None
    parts = _split(_loads(data))
    if b"Infinity" not in data and _has_infinite(parts[0]):
        raise SchemaError("a number that is too large for float64")
    return parts


def picture(parts: Parts) -> Parts:
    """The picture of what was rendered, uint8, and the rest."""
    tree, rest = parts
    if isinstance(tree, dict):
        found = next((name for name in _PICTURES if name in tree), None)
        if found is not None:
            others = {name: _listed(branch) for name, branch in tree.items() if name != found}
            tree, rest = tree[found], {**others, **(rest or {})} or None
    if tree is None:
        return None, rest
    if not isinstance(tree, np.ndarray) or tree.ndim not in (2, 3):
        listed = _listed(tree)
        return None, {**listed, **(rest or {})} if isinstance(listed, dict) else listed
    if tree.dtype != np.uint8:
        if tree.dtype.kind not in "iu" or tree.min() < 0 or tree.max() > 255:
            raise SchemaError(f"frame: expected whole numbers from 0 to 255, got {tree.dtype}")
        tree = tree.astype(np.uint8)
    return tree, rest


def _rectangle(data: bytes) -> NDArray[Any] | None:
    """The array of a text that is nothing but nested lists of whole numbers; None for any other."""
    frame = data.translate(None, _NUMBER)
    depth = len(frame) - len(frame.lstrip(b"["))
    if not 0 < depth <= _MAX_DEPTH:
        return None
    inside = []  # numbers in a list of each level, the innermost first
    for level in range(1, depth + 1):
        end = frame.find(b"]" * level)
        inside.append(frame.count(b",", 0, end) + 1)
    outer = (a // b for a, b in zip(inside[:0:-1], inside[-2::-1], strict=True))
    shape = (*outer, inside[0])
    if int(np.prod(shape, dtype=np.int64)) != inside[-1] or frame != _frame(shape):
        return None
    text = data.translate(None, b"[]")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            flat = np.fromstring(text, np.int64, sep=",")
        except (ValueError, DeprecationWarning):
            return None
    # NumPy is less strict than JSON, and silent about numbers that are too large: only what it
    # would write the same way counts.
    if len(flat) != inside[-1] or flat.max() >= _SAFE or flat.min() <= -_SAFE:
        return None
    written = len(text.translate(None, b" \t\r\n")) - len(flat) + 1
    negative = int(np.count_nonzero(flat < 0))
    if written != _digits(flat) + negative or text.count(b"-") != negative:
        return None
    return flat.reshape(shape)


def _digits(values: NDArray[np.int64]) -> int:
    size = np.abs(values)
    max_digits = len(str(size.max()))
    return len(values) + sum(int(np.count_nonzero(size >= 10**k)) for k in range(1, max_digits))


@lru_cache(maxsize=16)
def _frame(shape: tuple[int, ...]) -> bytes:
    """Brackets and commas of such an array."""
    text = b""
    for size in reversed(shape):
        text = b"[" + b",".join([text] * size) + b"]"
    return text


def _loads(data: bytes) -> Any:
    """The value of JSON, the largest array in it read beforehand."""
    begin, end = data.find(b"[["), data.rfind(b"]]") + 2
    array = _rectangle(data[begin:end]) if 0 < begin < end and _MARKED not in data else None
    if array is not None:
        try:
            return _put_back(json.loads(data[:begin] + _MARKED + data[end:]), array)
        except ValueError:  # the brackets were part of a text
            pass
    return json.loads(data)


def _put_back(value: Any, array: NDArray[Any]) -> Any:
    if isinstance(value, dict):
        return {name: _put_back(branch, array) for name, branch in value.items()}
    if isinstance(value, list):
        return [_put_back(branch, array) for branch in value]
    return array if isinstance(value, str) and value == _MARK else value


def _split(value: Any) -> Parts:
    """Arrays to the one side, everything else to the other."""
    if value is None or isinstance(value, str):
        return None, value
    if not isinstance(value, dict):
        return _split_numbers(value)
    wrapped = _unwrapped(value)
    if wrapped is not None:
        return wrapped, None
    branches = {name: _split(branch) for name, branch in value.items()}
    tree = {name: tree for name, (tree, _) in branches.items() if tree is not None}
    rest = {name: rest for name, (_, rest) in branches.items() if rest is not None}
    return tree or None, rest or None


def _split_numbers(value: Any) -> Parts:
    try:
        array = np.array(value)
    except ValueError:
        lists = value
        while lists and all(isinstance(item, list) for item in lists):
            lists = list(chain.from_iterable(lists))
        if all(isinstance(item, bool | int | float) for item in lists):
            raise SchemaError("expected lists of equal lengths") from None
        return None, _listed(value)
    numbers = array.size and array.dtype.kind in "biuf"
    if numbers and array.dtype.kind == "f" and np.abs(array).max() >= _MAX_WHOLE:
        _check_whole(value)
    return (array, None) if numbers else (None, _listed(value))


def _check_whole(value: Any) -> None:
    """Raise `SchemaError` for a whole number that lost digits among fractions."""
    if isinstance(value, list):
        for each in value:
            _check_whole(each)
    elif isinstance(value, int) and float(value) != value:
        raise SchemaError(f"{value} among fractions, for which float64 has not enough digits")


def _has_infinite(tree: Any) -> bool:
    if isinstance(tree, dict):
        return any(map(_has_infinite, tree.values()))
    return tree is not None and tree.dtype.kind == "f" and bool(np.isinf(tree).any())


def _unwrapped(value: dict[str, Any]) -> NDArray[Any] | None:
    """An array that came with its dtype and shape."""
    name = next((name for name in _WRAPPED if name in value), None)
    if name is None or "dtype" not in value:
        return None
    try:
        dtype = np.dtype(value["dtype"])
        data = value[name]
        if isinstance(data, str):
            array = np.frombuffer(base64.b64decode(data, validate=True), dtype)
        else:
            natural = np.asarray(data)
            if natural.dtype.kind == "f":
                _check_whole(data)
            array = natural.astype(dtype)
            floats = natural.dtype.kind == "f"
            if not np.array_equal(array.astype(natural.dtype), natural, equal_nan=floats):
                raise SchemaError(f"numbers that are no {dtype}")
        return array.reshape(value.get("shape", array.shape))
    except SchemaError:
        raise
    except (TypeError, ValueError, binascii.Error) as error:
        raise SchemaError(f"not an array: {error}") from None


def _listed(tree: Any) -> Any:
    """A tree as JSON has it."""
    if isinstance(tree, dict):
        return {name: _listed(branch) for name, branch in tree.items()}
    if isinstance(tree, list):
        return [_listed(branch) for branch in tree]
    return tree.tolist() if isinstance(tree, np.ndarray) else tree
