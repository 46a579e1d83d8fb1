"""Any source into a record store, which is committed to as it grows."""

import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stepwell.errors import SchemaError
from stepwell.formats.streams import Progress, attributes_of, count_of, in_order, size_of
from stepwell.source import Source
from stepwell.stores import RecordField, RecordStore

__all__ = ["NAMES", "OVERHEAD", "fill", "original_names"]

NAMES = "names"
"""The attribute that has the names that fields had, where a store cannot have them."""

OVERHEAD = 24 + 16
"""Bytes that a store needs for each field of each record, besides the values."""

_PACKINGS = {"none": "raw", "gzip": "flate"}  # as the store's document has them
_COMMIT_BYTES = 64 << 20
_COMMIT_S = 2.0
_MOST_NAME = 63


def fill(
    source: Source,
    path: Path,
    *,
    append: bool,
    progress: Progress,
    compress: str = "none",
    level: int | None = None,
    chunk_records: int = 8192,
) -> int:
    """Append the rows that are not in the store yet; return how many were there before.

    With `append` all rows are added to those that are there, in one commit.
    """
    names = _field_names(source.schema)
    total, begin = len(source), 0
    if append:
        store = RecordStore.open(path, "a")
    elif path.exists():
        store = RecordStore.open(path, "a")
        begin = len(store)
    else:
        attributes = attributes_of(source)
        attributes.pop(NAMES, None)
        renamed = {field: name for name, field in names.items() if field != name}
        if renamed:
            attributes[NAMES] = renamed
        packing = _PACKINGS.get(compress, compress)
        fields = {
            names[name]: _record_field(name, field, packing, level)
            for name, field in source.schema.items()
        }
        store = RecordStore.create(path, fields, chunk_records=chunk_records, attributes=attributes)
    done, pending, last = begin, 0, time.monotonic()
    with store:
        progress(done, total)
        for batch in in_order(source, begin):
            store.append({names[name]: values for name, values in batch.items()})
            done += count_of(batch)
            pending += size_of(batch)
            if not append and (pending >= _COMMIT_BYTES or time.monotonic() - last >= _COMMIT_S):
                store.commit()
                pending, last = 0, time.monotonic()
            progress(done, total)
        if done != total:
            raise SchemaError(f"{source.path}: expected {total} rows, got {done}")
    return begin


def _record_field(name: str, field: Any, compress: Any, level: int | None) -> RecordField:
    if field.dtype.names or field.dtype.hasobject:
        raise SchemaError(f"{name!r}: expected plain numbers, got {field.dtype}")
    if not field.row_bytes:
        raise SchemaError(f"{name!r}: a record of {field} has no bytes")
    if field.kind != "array":
        return RecordField(str if field.kind == "str" else bytes, compress=compress, level=level)
    return RecordField(
        field.dtype, field.shape, ragged=field.ragged, compress=compress, level=level
    )


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
        plain = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:_MOST_NAME]
        if not re.match(r"[A-Za-z_]", plain):
            plain = f"_{plain}"[:_MOST_NAME]
        field, k = plain, 2
        while field.lower() in taken:
            field = f"{plain[: _MOST_NAME - 1 - len(str(k))]}_{k}"
            k += 1
        taken.add(field.lower())
        made[name] = field
    return made
