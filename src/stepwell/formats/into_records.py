"""Any source into a record store, which is committed to as it grows."""

import re
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from stepwell.batches import attributes_of, in_order, size_of
from stepwell.errors import SchemaError
from stepwell.formats.streams import Progress
from stepwell.source import Field, Schema, Source
from stepwell.stores import RecordWriter
from stepwell.stores.records.layout import fit_for_columns

NAMES = "names"
"""The attribute that has the names that fields had, where a store cannot have them."""

OVERHEAD = 24 + 16
"""Bytes that a store needs for a field of a record that is no column, besides the value."""

_COMMIT_BYTES = 64 << 20
_COMMIT_S = 2.0
_MAX_NAME = 63


class Plan(NamedTuple):
    """A record store that is to be made."""

    fields: dict[str, Field]
    names: dict[str, str]
    """The name that each field of the source has in the store."""
    attributes: dict[str, Any]

    @classmethod
    def of(cls, source: Source, compress: str = "none", level: int | None = None) -> "Plan":
        """Raises `SchemaError` for what a record store cannot have."""
        names = _field_names(source.schema)
        fields = {
            names[name]: _kept(name, field, compress, level)
            for name, field in source.schema.items()
        }
        attributes = attributes_of(source)
        attributes.pop(NAMES, None)
        renamed = {field: name for name, field in names.items() if field != name}
        if renamed:
            attributes[NAMES] = renamed
        return cls(fields, names, attributes)


def fill(
    source: Source,
    path: Path,
    *,
    progress: Progress,
    append: bool = False,
    compress: str = "none",
    level: int | None = None,
    chunk_records: int = 8192,
) -> None:
    """Append the rows that are not in the store yet.

    With `append` all rows are added to those that are there, in one commit.
    """
    fields, names, attributes = Plan.of(source, compress, level)
    pending, last = 0, time.monotonic()
    with RecordWriter(
        path,
        None if append and path.exists() else fields,
        mode="a",
        chunk_records=chunk_records,
        attributes=attributes,
    ) as writer:
        for batch in in_order(source, 0 if append else len(writer), progress):
            writer.append({names[name]: values for name, values in batch.items()})
            pending += size_of(batch)
            if not append and (pending >= _COMMIT_BYTES or time.monotonic() - last >= _COMMIT_S):
                writer.commit()
                pending, last = 0, time.monotonic()


def overhead(schema: Schema, compress: str) -> int:
    """Bytes that a store needs for each record, besides the values."""
    kept = {name: replace(field, compress=compress) for name, field in schema.items()}
    return OVERHEAD * (len(kept) - len(fit_for_columns(kept)))


def _kept(name: str, field: Field, compress: str, level: int | None) -> Field:
    """A field as the store is to keep it."""
    if field.dtype.names or field.dtype.hasobject:
        raise SchemaError(f"{name!r}: expected plain numbers, got {field.dtype}")
    if not field.row_bytes:
        raise SchemaError(f"{name!r}: a record of {field} has no bytes")
    return replace(field, compress=compress, level=level, optional=False)


def original_names(source: Source) -> Source:
    """The fields under the names that they had where they came from."""
    known = attributes_of(source).get(NAMES)
    if not isinstance(known, dict):
        return source
    names = {str(known.get(name, name)): name for name in source.schema}
    if len(names) < len(source.schema):  # an attribute of the user's own
        return source
    return source.columns(names)


def _field_names(names: Iterable[str]) -> dict[str, str]:
    """A name that a store's field can have, for each name; most are what they were."""
    made: dict[str, str] = {}
    taken: set[str] = set()
    for name in names:
        plain = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:_MAX_NAME]
        if not re.match(r"[A-Za-z_]", plain):
            plain = f"_{plain}"[:_MAX_NAME]
        field, k = plain, 2
        while field.lower() in taken:
            field = f"{plain[: _MAX_NAME - 1 - len(str(k))]}_{k}"
            k += 1
        taken.add(field.lower())
        made[name] = field
    return made
