"""What is where in the directory of a record store; docs/formats/records.md has the bytes."""

import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import DTypeLike

from stepwell import _core
from stepwell.source import Field

__all__ = [
    "CHUNKS",
    "CODECS",
    "ENTRY",
    "FRAME_BYTES",
    "JOURNAL",
    "LOCK",
    "META",
    "MOST_CHUNKS",
    "TABLE_BLOCK",
    "Compress",
    "FieldLike",
    "RecordField",
    "as_fields",
    "dictionary_path",
    "sums_path",
    "table_path",
]

META = "meta.json"
LOCK = "writer.lock"
JOURNAL = "journal.zr"
CHUNKS = "chunk"

ENTRY = np.dtype([("offset", "<u8"), ("chunk", "<u4"), ("length", "<u4")])
FRAME_BYTES = 24
MOST_CHUNKS = 1 << 16
"""Chunks of one generation: the system maps no more files, unless it is told to."""
TABLE_BLOCK = 4096 // ENTRY.itemsize
"""Entries that have a sum in common."""

Compress = Literal["raw", "flate", "zstd", "zstd-dict", "lz4"]
CODECS: Mapping[str, int] = {name: number for number, name in enumerate(get_args(Compress))}
_MOST_AXES = 31  # NumPy has 64, and a batch has one or two more
_LEVELS = {"flate": (1, 9, 6), "zstd": (1, 19, 3), "zstd-dict": (1, 19, 3)}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,62}")


@dataclass(frozen=True, slots=True, init=False)
class RecordField:
    """What a field of a record is, and how it is packed.

        RecordField("u1", (28, 28))                     an array of a fixed shape
        RecordField("<i4", ragged=True)                 any number of items
        RecordField(str, compress="zstd")               text; or bytes

    `compress` is raw, flate, zstd, zstd-dict (with a dictionary trained on the first records) or
    lz4, record by record.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    ragged: bool
    compress: Compress
    level: int | None
    kind: Literal["array", "bytes", "str"]

    def __init__(
        self,
        dtype: DTypeLike | type,
        shape: tuple[int, ...] | int = (),
        ragged: bool = False,
        compress: Compress = "raw",
        level: int | None = None,
    ) -> None:
        kind = _kind_of(dtype)
        if kind != "array":
            if shape != ():
                raise ValueError(f"{kind} has no shape, got {shape}")
            dtype, ragged = np.uint8, True
        made: np.dtype[Any] = np.dtype(dtype)
        if isinstance(shape, int):
            shape = (shape,)
        if made.subdtype is not None:
            made, inner = made.subdtype
            shape = (*shape, *inner)
        shape = tuple(operator.index(n) for n in shape)
        if made.names or made.hasobject:
            raise ValueError(f"expected a plain dtype, got {made}; give each field a name instead")
        if len(shape) > _MOST_AXES:
            raise ValueError(f"expected up to {_MOST_AXES} axes, got {len(shape)}")
        size = made.itemsize
        for n in shape:
            size *= max(n, 0)
        if not 0 < size < 1 << 32:
            raise ValueError(f"expected items of 1 byte to 4 GiB, got {made} {shape}")
        if compress not in CODECS:
            raise ValueError(f"compress: expected {', '.join(CODECS)}, got {compress!r}")
        if level is not None:
            level = operator.index(level)
            if compress not in _LEVELS:
                raise ValueError(f"level: {compress} has none, got {level}")
            least, most, _ = _LEVELS[compress]
            if not least <= level <= most:
                raise ValueError(f"level: {compress} has {least} to {most}, got {level}")
        for name, value in (
            ("dtype", made),
            ("shape", shape),
            ("ragged", bool(ragged)),
            ("compress", compress),
            ("level", level),
            ("kind", kind),
        ):
            object.__setattr__(self, name, value)

    @property
    def field(self) -> Field:
        """What a batch has of it: text and bytes are ragged fields of uint8."""
        return Field(self.dtype, self.shape, self.ragged, self.kind)

    @property
    def item_bytes(self) -> int:
        return self.field.row_bytes

    @property
    def codec(self) -> int:
        return CODECS[self.compress]

    @property
    def packing_level(self) -> int:
        return _LEVELS.get(self.compress, (0, 0, 0))[2] if self.level is None else self.level

    def to_json(self, name: str) -> dict[str, Any]:
        dtype = self.dtype.str if self.kind == "array" else self.kind
        shape = [None, *self.shape] if self.ragged else list(self.shape)
        made = {"name": name, "dtype": dtype, "shape": shape, "compress": self.compress}
        return made if self.level is None else {**made, "level": self.level}

    @classmethod
    def from_json(cls, text: Mapping[str, Any]) -> tuple[str, "RecordField"]:
        """Raises `ValueError`, `KeyError` or `TypeError` for what is no field."""
        dtype, shape = text["dtype"], list(text["shape"])
        if not isinstance(dtype, str) or not isinstance(text["name"], str):
            raise TypeError("a name and a dtype are strings")
        ragged = bool(shape) and shape[0] is None
        sizes = shape[1:] if ragged else shape
        if any(type(n) is not int for n in sizes):
            raise TypeError(f"a shape has whole numbers, got {shape}")
        if dtype in ("str", "bytes") and shape != [None]:
            raise ValueError(f"{dtype} has the shape [null], got {shape}")
        level = text.get("level")
        if level is not None and type(level) is not int:
            raise TypeError(f"a level is a whole number, got {level!r}")
        return text["name"], cls(dtype, tuple(sizes), ragged, text["compress"], level)


def _kind_of(dtype: Any) -> str:
    """Whether records are arrays, bytes or text."""
    if isinstance(dtype, type) and issubclass(dtype, str | bytes):  # NumPy's own, too
        return "str" if issubclass(dtype, str) else "bytes"
    return dtype if isinstance(dtype, str) and dtype in ("str", "bytes") else "array"


FieldLike = RecordField | Field | DTypeLike | type | tuple[Any, ...]


def as_fields(given: Mapping[str, FieldLike]) -> dict[str, RecordField]:
    """Fields as the user gives them: `{"image": ("u1", (28, 28)), "label": "<i8", "text": str}`."""
    if not isinstance(given, Mapping):
        raise TypeError(f"fields: expected a dict of names and dtypes, got {type(given).__name__}")
    if not given:
        raise ValueError("a record has at least one field")
    fields = {}
    for name, field in given.items():
        if isinstance(field, RecordField):
            made = field
        elif isinstance(field, Field):
            made = RecordField(field.dtype, field.shape, field.ragged)
        elif isinstance(field, tuple):
            made = RecordField(*field)
        else:
            made = RecordField(field)
        fields[name] = made
    check_names(list(fields))
    return fields


def check_names(names: list[str]) -> None:
    """Raise `ValueError` for names that cannot be those of the fields of a store."""
    for name in names:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(
                f"{name!r} cannot name a field: expected a letter or _, then up to 62 letters, "
                "digits, _ or -"
            )
    if len({name.lower() for name in names}) < len(names):
        raise ValueError(f"names differ only in case: {', '.join(names)}")
    if len(names) > 1 << 16:
        raise ValueError("more than 65,536 fields")


def table_path(root: Path, field: str, generation: int) -> Path:
    return root / f"{field}{_suffix(generation)}.offset"


def sums_path(root: Path, field: str, generation: int) -> Path:
    return root / f"{field}{_suffix(generation)}.sums"


def dictionary_path(root: Path, field: str) -> Path:
    return root / f"{field}.dict"


def need_codec(compress: str) -> None:
    """Raise `ValueError` when this machine cannot pack or unpack so."""
    if not _core.has_codec(CODECS[compress]):
        raise ValueError(f"{compress} needs a library that this machine does not have")


def _suffix(generation: int) -> str:
    return f".{generation}" if generation else ""
