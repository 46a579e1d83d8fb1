"""The files in the directory of a record store, and the contents of meta.json;
docs/formats/records.md has the bytes."""

import json
import os
import re
import shutil
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field as default, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stepwell import _core
from stepwell.errors import FormatError
from stepwell.files.atomic import is_temporary, sweep
from stepwell.files.codecs import CODECS
from stepwell.files.document import Document, whole_number
from stepwell.files.regular import open_inside, read_inside
from stepwell.lazy import lazy
from stepwell.source import Field

META = "meta.json"
LOCK = "writer.lock"
JOURNAL = "journal.zr"
CHUNKS = "chunk"

ENTRY = np.dtype([("offset", "<u8"), ("chunk", "<u4"), ("length", "<u4")])
FRAME_BYTES = 24
MAX_CHUNKS = 1 << 16
"""Chunks of one generation: the system maps no more files, unless it is set up for more."""
BLOCK_BYTES = 4096
"""Bytes of a table that have a checksum in common."""
CHECKSUM = np.dtype([("crc", "<u4")])
COLUMN_CHECKSUM = np.dtype([("crc", "<u4"), ("commit", "<i8")])
"""The checksum of a block of a column, and the last commit that changed the block."""
MAX_COLUMN_BYTES = 64
"""Fields of fixed size up to this are columns of a new store. Values go through the journal, so a
larger one would be written twice for less than its frame costs."""

_MAX_AXES = 31  # NumPy has 64, and a batch has one or two more
_LEVELS = {"gzip": (1, 9, 6), "zstd": (1, 19, 3), "zstd-dict": (1, 19, 3)}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,62}")
_ON_DISK = {name: numbers.records for name, numbers in CODECS.items() if numbers.records}
_FROM_DISK = {numbers[1]: name for name, numbers in _ON_DISK.items()}
_MAX_DICTIONARY = 1 << 26
_MAX_RECORDS = 1 << 58
_MAX_ATTRIBUTES = 1 << 20
_DOCUMENT = Document(META, "zrecord", 2, (1,), checksummed=True, max_bytes=1 << 24)
_FRAMES_ONLY = replace(_DOCUMENT, version=1)
_REPLACED = rf"{re.escape(META)}|.*\.dict"


def checked(fields: Mapping[str, Field]) -> dict[str, Field]:
    """Fields that a record store can have, their codecs named. Raises `ValueError` for others."""
    if not 0 < len(fields) <= 1 << 16:
        raise ValueError(f"a record has at least one field and up to 65,536, got {len(fields)}")
    for name in fields:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(
                f"{name!r} cannot name a field: expected a letter or _, then up to 62 letters, "
                "digits, _ or -"
            )
    if len({name.lower() for name in fields}) < len(fields):
        raise ValueError(f"names differ only in case: {', '.join(fields)}")
    return {name: _checked(field) for name, field in fields.items()}


def _checked(field: Field) -> Field:
    """A field that a record store can hold, its codec named."""
    dtype, shape = field.dtype, field.shape
    if dtype.names or dtype.hasobject:
        raise ValueError(f"expected a plain dtype, got {dtype}; give each field a name instead")
    if len(shape) > _MAX_AXES:
        raise ValueError(f"expected up to {_MAX_AXES} axes, got {len(shape)}")
    if min(shape, default=1) < 0 or not 0 < field.row_bytes < 1 << 32:
        raise ValueError(f"expected items of 1 byte to 4 GiB, got {dtype} {shape}")
    compress, level = field.compress or "none", field.level
    if compress not in _ON_DISK:
        raise ValueError(f"compress: expected {', '.join(_ON_DISK)}, got {compress!r}")
    if level is not None:
        if compress not in _LEVELS:
            raise ValueError(f"level: {compress} has none, got {level}")
        min_, max_, _ = _LEVELS[compress]
        if not min_ <= level <= max_:
            raise ValueError(f"level: {compress} has {min_} to {max_}, got {level}")
    return field if field.compress else replace(field, compress="none")  # every refresh does it


def codec_number(compress: str | None) -> int:
    """The number of a codec in frames."""
    return _ON_DISK[compress or "none"][0]


def packing_level(field: Field) -> int:
    """How hard a writer tries."""
    return _LEVELS.get(field.compress or "", (0, 0, 0))[2] if field.level is None else field.level


def fit_for_columns(fields: Mapping[str, Field]) -> frozenset[str]:
    """The fields that a new store has as columns."""
    return frozenset(
        name
        for name, field in fields.items()
        if field.compress == "none" and not field.ragged and field.row_bytes <= MAX_COLUMN_BYTES
    )


def field_to_json(name: str, field: Field, column: bool) -> dict[str, Any]:
    made: dict[str, Any] = {
        "name": name,
        "dtype": field.dtype.str if field.kind == "array" else field.kind,
        "shape": [*([None] if field.ragged else []), *field.shape],
        "compress": _ON_DISK[field.compress or "none"][1],
    }
    if field.level is not None:
        made["level"] = field.level
    if column:
        made["column"] = True
    return made if field.optional else {**made, "optional": False}


def field_from_json(text: Mapping[str, Any]) -> tuple[str, Field]:
    """Raises `ValueError`, `KeyError` or `TypeError` for what is no field."""
    dtype, shape, level = text["dtype"], list(text["shape"]), text.get("level")
    ragged, optional = shape[:1] == [None], text.get("optional", True)
    if type(dtype) is not str or type(optional) is not bool:
        raise TypeError(f"expected a dtype and true or false, got {dtype!r} and {optional!r}")
    if dtype in ("str", "bytes") and shape != [None]:
        raise ValueError(f"{dtype} has the shape [null], got {shape}")
    field = Field(
        dtype,
        tuple(whole_number(size, 1 << 63) for size in shape[ragged:]),
        ragged,
        compress=_FROM_DISK[text["compress"]],
        level=None if level is None else whole_number(level, 1 << 32),
        optional=optional,
    )
    return text["name"], field


def _is_column(text: Mapping[str, Any]) -> bool:
    column = text.get("column", False)
    if type(column) is not bool:
        raise TypeError(f"column: expected true or false, got {column!r}")
    return column


def dictionary_name(field: str) -> str:
    return f"{field}.dict"


def read_dictionary(root: Path, field: str) -> bytes:
    """The file of the dictionary of a field. Raises `FileNotFoundError` while there is none."""
    return read_inside(root, dictionary_name(field), _MAX_DICTIONARY)


def load_dictionary(root: Path, name: str, field: Field) -> _core.Dictionary | None:
    """The dictionary of a field; None while there is none, and for one that has none."""
    if field.compress != "zstd-dict":
        return None
    try:
        data = read_dictionary(root, name)
    except FileNotFoundError:
        return None
    words = np.frombuffer(data[:-4], np.uint8)
    if len(data) < 5 or _core.crc32c(words) != int.from_bytes(data[-4:], "little"):
        raise FormatError("a damaged dictionary", path=str(root / dictionary_name(name)))
    return _core.Dictionary(words, packing_level(field))


def chunk_name(number: int) -> str:
    return f"{CHUNKS}/{number}.zr"


def chunk_numbers(root: Path) -> list[int]:
    """The ids of the chunk files that there are; files of other names are not ours."""
    try:
        names = os.listdir(root / CHUNKS)
    except (FileNotFoundError, NotADirectoryError):
        return []
    stems = (name.removesuffix(".zr") for name in names if name.endswith(".zr"))
    return sorted(int(stem) for stem in stems if stem.isdecimal() and stem == str(int(stem)))


def need_codec(field: Field) -> None:
    """Raise `ValueError` when this machine cannot pack or unpack so."""
    if not _core.has_codec(codec_number(field.compress)):
        raise ValueError(f"{field.compress} needs a library that this machine does not have")


class ChunkState(NamedTuple):
    """A chunk that can be written to."""

    id: int
    position: int
    records: int


@dataclass(frozen=True)
class Meta:
    fields: dict[str, Field]
    chunk_records: int
    length: int = 0
    generation: int = 0
    commit: int = 0
    peak: int = 0
    next_chunk: int = 0
    first_chunk: int = 0
    unfull: tuple[ChunkState, ...] = ()
    deletes: int = 0
    """Records deleted since the chunks of this generation were begun."""
    store_id: str = ""
    """Which store this is, whatever its path."""
    attributes: dict[str, Any] = default(default_factory=dict)
    columns: frozenset[str] = frozenset()
    """The fields whose tables have the values themselves."""

    def entry(self, name: str) -> np.dtype[Any]:
        """What the table of a field has for each record."""
        if name not in self.columns:
            return ENTRY
        return np.dtype((np.void, self.fields[name].row_bytes + self.fields[name].optional))

    def table_names(self, name: str) -> tuple[str, str]:
        """The entries of a field, and their checksums."""
        stem = f"{name}.{self.generation}" if self.generation else name
        return f"{stem}.{'column' if name in self.columns else 'offset'}", f"{stem}.sums"

    @lazy
    def numbers(self) -> dict[str, int]:
        """The number of each field in tables and frames."""
        return {name: number for number, name in enumerate(self.fields)}

    @property
    def moment(self) -> tuple[str, int, int, int]:
        """Which commit of which store it is."""
        return self.store_id, self.generation, self.commit, self.length

    def write(self, root: Path) -> None:
        (_DOCUMENT if self.columns else _FRAMES_ONLY).write(
            root,
            {
                "length": self.length,
                "generation": self.generation,
                "commit": self.commit,
                "peak": self.peak,
                "deletes": self.deletes,
                "id": self.store_id,
                "chunks": {
                    "num": self.next_chunk,
                    "first": self.first_chunk,
                    "size": self.chunk_records,
                    "unfull": [list(state) for state in self.unfull],
                },
                "fields": [
                    field_to_json(name, made, name in self.columns)
                    for name, made in self.fields.items()
                ],
                "attributes": self.attributes,
            },
        )

    @classmethod
    def read(cls, root: Path) -> "Meta":
        """Raises `FileNotFoundError` when there is no store and `FormatError` for a damaged one."""
        with _DOCUMENT.parsing(root) as text:
            return cls._from_json(text)

    @classmethod
    def _from_json(cls, text: dict[str, Any]) -> "Meta":
        chunks = text["chunks"]
        length = whole_number(text["length"], _MAX_RECORDS)
        fields = dict(field_from_json(each) for each in text["fields"])
        if len(fields) < len(text["fields"]):
            raise ValueError("expected fields of different names")
        made = cls(
            fields=checked(fields),
            chunk_records=whole_number(chunks["size"], 1 << 32),
            length=length,
            generation=whole_number(text.get("generation", 0), 1 << 32),
            commit=whole_number(text.get("commit", 0), 1 << 63),
            peak=whole_number(text.get("peak", length), _MAX_RECORDS),
            next_chunk=whole_number(chunks["num"], 1 << 32),
            first_chunk=whole_number(chunks.get("first", 0), 1 << 32),
            unfull=tuple(
                ChunkState(
                    whole_number(i, 1 << 32), whole_number(at, 1 << 62), whole_number(n, 1 << 33)
                )
                for i, at, n in chunks["unfull"]
            ),
            deletes=whole_number(text.get("deletes", 0), 1 << 63),
            store_id=str(text.get("id", "")),
            attributes=text.get("attributes", {}),
            columns=frozenset(each["name"] for each in text["fields"] if _is_column(each)),
        )
        made.check()
        if made.columns and text["version"] == 1:
            raise ValueError(f"version 1 has no columns, got {sorted(made.columns)}")
        if not isinstance(made.attributes, dict):
            raise TypeError("attributes: expected an object")
        return made

    def check(self) -> None:
        """Raise `ValueError` for numbers that contradict each other."""
        if self.chunk_records < 1:
            raise ValueError(f"expected at least 1 record a chunk, got {self.chunk_records}")
        if self.peak < self.length:
            raise ValueError(f"expected a peak of at least {self.length} records, got {self.peak}")
        if not 0 <= self.next_chunk - self.first_chunk <= MAX_CHUNKS:
            raise ValueError(
                f"expected up to {MAX_CHUNKS} chunks, got {self.next_chunk - self.first_chunk}"
            )
        for name in self.columns:
            field = self.fields[name]
            if field.ragged or field.compress != "none" or self.entry(name).itemsize > BLOCK_BYTES:
                raise ValueError(f"{name}: expected raw values of up to 4,096 bytes, got {field}")
        if len({state.id for state in self.unfull}) < len(self.unfull):
            raise ValueError(f"expected different chunks, got {self.unfull}")
        for state in self.unfull:
            if not self.first_chunk <= state.id < self.next_chunk or state.position % 8:
                raise ValueError(f"expected a chunk of this store, got {list(state)}")


def is_drawn(root: Path) -> bool:
    """Whether a meta.json is one as loaderx draws it, which names no format."""
    try:
        data = read_inside(root, META, _DOCUMENT.max_bytes)
    except (OSError, FormatError):
        return False
    return b'"format"' not in data and all(
        w in data for w in (b'"length"', b'"chunks"', b'"fields"')
    )


def checked_attributes(attributes: dict[str, Any]) -> dict[str, Any]:
    """Raises `TypeError` or `ValueError` for what JSON does not give back as it was."""
    if not isinstance(attributes, dict):
        raise TypeError(f"attributes: expected a dict, got {type(attributes).__name__}")
    text = json.dumps(attributes, allow_nan=False)
    if len(text) > _MAX_ATTRIBUTES:
        raise ValueError(f"attributes: expected up to 1 MiB, got {len(text):,} bytes")
    kept: dict[str, Any] = json.loads(text)
    if kept != attributes:
        raise ValueError("attributes: JSON has only text for keys, and lists for tuples")
    return kept


def is_left_over(path: Path) -> bool:
    """Whether a writer that never committed may have left this.

    Tables and journal stay empty until the first commit, which comes behind meta.json: a store
    whose meta.json was lost is none.
    """
    about = path.lstat()
    if path.name == CHUNKS:
        return stat.S_ISDIR(about.st_mode) and all(p.suffix == ".zr" for p in path.iterdir())
    ours = path.name == LOCK or path.suffix == ".dict" or is_temporary(path, _REPLACED)
    table = path.suffix in (".offset", ".column", ".sums")
    empty = not about.st_size and (path.name == JOURNAL or table)
    return stat.S_ISREG(about.st_mode) and bool(ours or empty)


def remove_left_over(root: Path) -> None:
    """Empty a folder in which everything is left over, but for the lock, which is held by now."""
    for path in root.iterdir():
        if path.name == CHUNKS:
            shutil.rmtree(path)
        elif path.name != LOCK:
            path.unlink()


def remove_stale(root: Path, meta: Meta) -> None:
    """Remove what a killed writer or a rebalance left in a store; what is not ours stays."""
    names = "|".join(map(re.escape, meta.fields))
    table = re.compile(rf"({names})(\.[1-9][0-9]*)?\.(offset|column|sums)")
    keep = {file for name in meta.fields for file in meta.table_names(name)}
    # Tables before chunks: whoever misses a chunk knows by the table that it was a rebalance.
    for path in root.iterdir():
        if path.name not in keep and table.fullmatch(path.name):
            path.unlink(missing_ok=True)
    for number in chunk_numbers(root):
        if number < meta.first_chunk:
            (root / chunk_name(number)).unlink(missing_ok=True)
        elif number >= meta.next_chunk:
            # Not removed: a reader may have it mapped, and must see what is written there next.
            with suppress(FileNotFoundError):
                file = open_inside(root, chunk_name(number), os.O_RDWR)
                try:
                    os.ftruncate(file, 0)
                finally:
                    os.close(file)
    sweep(root, rf"{re.escape(META)}|({names})\.dict")
