"""meta.json: what a store is, as of its last checkpoint."""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stepwell import _core
from stepwell.errors import ChecksumError, FormatError, VersionError
from stepwell.files.atomic import write_file
from stepwell.stores.records.layout import META, MOST_CHUNKS, RecordField, check_names

__all__ = ["ChunkState", "Meta"]

FORMAT, VERSION = "zrecord", 1
MOST_RECORDS = 1 << 58
_MOST_BYTES = 1 << 24
_MOST_ATTRIBUTES = 1 << 20


class ChunkState(NamedTuple):
    """A chunk that can be written to."""

    id: int
    position: int
    records: int


@dataclass(frozen=True)
class Meta:
    fields: dict[str, RecordField]
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
    attributes: dict[str, Any] = field(default_factory=dict)

    def write(self, root: Path) -> None:
        text = {
            "format": FORMAT,
            "version": VERSION,
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
            "fields": [made.to_json(name) for name, made in self.fields.items()],
            "attributes": self.attributes,
        }
        text["crc32c"] = _sum_of(text)
        write_file(root / META, json.dumps(text, indent=1).encode() + b"\n")

    @classmethod
    def read(cls, root: Path) -> "Meta":
        """Raises `FileNotFoundError` when there is no store and `FormatError` for a damaged one."""
        path = root / META
        if not path.is_file():
            raise FileNotFoundError(f"no record store at {root}")
        try:
            with path.open("rb") as file:
                data = file.read(_MOST_BYTES + 1)
            if len(data) > _MOST_BYTES:
                raise ValueError("larger than 16 MiB")
            text = json.loads(data)
            if not isinstance(text, dict) or text.get("format") != FORMAT:
                raise ValueError(f"expected the format {FORMAT!r}")
            if text["version"] != VERSION:
                raise VersionError(
                    f"expected version {VERSION}, got {text['version']!r}", path=str(path)
                )
            expected = text.pop("crc32c", None)
            if expected is not None and expected != (found := _sum_of(text)):
                raise ChecksumError(
                    f"expected CRC32C {expected}, got {found}; whoever edited the file "
                    "removes the member crc32c",
                    path=str(path),
                )
            return cls._from_json(text)
        except FormatError:
            raise
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
            raise FormatError(f"not a {META} of records: {error!r}", path=str(path)) from None

    @classmethod
    def _from_json(cls, text: dict[str, Any]) -> "Meta":
        chunks = text["chunks"]
        length = _number(text["length"], MOST_RECORDS)
        fields = dict(RecordField.from_json(each) for each in text["fields"])
        if len(fields) < len(text["fields"]) or not fields:
            raise ValueError("expected fields of different names")
        check_names(list(fields))
        made = cls(
            fields=fields,
            chunk_records=_number(chunks["size"], 1 << 32),
            length=length,
            generation=_number(text.get("generation", 0), 1 << 32),
            commit=_number(text.get("commit", 0), 1 << 63),
            peak=_number(text.get("peak", length), MOST_RECORDS),
            next_chunk=_number(chunks["num"], 1 << 32),
            first_chunk=_number(chunks.get("first", 0), 1 << 32),
            unfull=tuple(
                ChunkState(_number(i, 1 << 32), _number(at, 1 << 62), _number(n, 1 << 33))
                for i, at, n in chunks["unfull"]
            ),
            deletes=_number(text.get("deletes", 0), 1 << 63),
            store_id=str(text.get("id", "")),
            attributes=text.get("attributes", {}),
        )
        made.check()
        if not isinstance(made.attributes, dict):
            raise TypeError("attributes: expected an object")
        return made

    def check(self) -> None:
        """Raise `ValueError` for numbers that contradict each other."""
        if self.chunk_records < 1:
            raise ValueError(f"chunks of {self.chunk_records} records")
        if self.peak < self.length:
            raise ValueError(f"{self.length} records, and never more than {self.peak}")
        if not 0 <= self.next_chunk - self.first_chunk <= MOST_CHUNKS:
            raise ValueError(f"chunks from {self.first_chunk} to {self.next_chunk}")
        if len({state.id for state in self.unfull}) < len(self.unfull):
            raise ValueError(f"a chunk twice: {[state.id for state in self.unfull]}")
        for state in self.unfull:
            if not self.first_chunk <= state.id < self.next_chunk or state.position % 8:
                raise ValueError(f"no chunk can be {list(state)}")

    def with_attributes(self, attributes: dict[str, Any]) -> "Meta":
        """Raises `TypeError` or `ValueError` for what JSON does not give back as it was."""
        if not isinstance(attributes, dict):
            raise TypeError(f"attributes: expected a dict, got {type(attributes).__name__}")
        text = json.dumps(attributes, allow_nan=False)
        if len(text) > _MOST_ATTRIBUTES:
            raise ValueError(f"attributes: expected up to 1 MiB, got {len(text):,} bytes")
        kept = json.loads(text)
        if kept != attributes:
            raise ValueError("attributes: JSON has only text for keys, and lists for tuples")
        return replace(self, attributes=kept)


def _number(value: Any, limit: int) -> int:
    if type(value) is not int or not 0 <= value < limit:
        raise ValueError(f"expected a number below {limit}, got {value!r}")
    return value


def _sum_of(text: dict[str, Any]) -> str:
    rest = json.dumps(text, sort_keys=True, separators=(",", ":")).encode()
    return f"{_core.crc32c(np.frombuffer(rest, np.uint8)):08x}"
