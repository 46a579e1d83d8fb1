"""meta.json: what a store is, as of its last checkpoint."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from stepwell.files.document import Document, whole_number
from stepwell.lazy import lazy
from stepwell.source import Field
from stepwell.stores.records.layout import (
    MAX_CHUNKS,
    META,
    checked,
    field_from_json,
    field_to_json,
)

MAX_RECORDS = 1 << 58
_MAX_ATTRIBUTES = 1 << 20
_DOCUMENT = Document(META, "zrecord", 1, checksummed=True, max_bytes=1 << 24)


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
    attributes: dict[str, Any] = field(default_factory=dict)

    @lazy
    def numbers(self) -> dict[str, int]:
        """What tables and frames call each field."""
        return {name: number for number, name in enumerate(self.fields)}

    @property
    def moment(self) -> tuple[str, int, int, int]:
        """Which commit of which store it is."""
        return self.store_id, self.generation, self.commit, self.length

    def write(self, root: Path) -> None:
        _DOCUMENT.write(
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
                "fields": [field_to_json(name, made) for name, made in self.fields.items()],
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
        length = whole_number(text["length"], MAX_RECORDS)
        fields = dict(field_from_json(each) for each in text["fields"])
        if len(fields) < len(text["fields"]):
            raise ValueError("expected fields of different names")
        made = cls(
            fields=checked(fields),
            chunk_records=whole_number(chunks["size"], 1 << 32),
            length=length,
            generation=whole_number(text.get("generation", 0), 1 << 32),
            commit=whole_number(text.get("commit", 0), 1 << 63),
            peak=whole_number(text.get("peak", length), MAX_RECORDS),
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
        if not 0 <= self.next_chunk - self.first_chunk <= MAX_CHUNKS:
            raise ValueError(f"chunks from {self.first_chunk} to {self.next_chunk}")
        if len({state.id for state in self.unfull}) < len(self.unfull):
            raise ValueError(f"a chunk twice: {[state.id for state in self.unfull]}")
        for state in self.unfull:
            if not self.first_chunk <= state.id < self.next_chunk or state.position % 8:
                raise ValueError(f"no chunk can be {list(state)}")


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
