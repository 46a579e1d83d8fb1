"""Into a record store, which says in its attributes what it will be.

It is committed to as it grows. Running the same conversion again goes on at the last commit.
"""

import os
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from stepwell.converters.formats import Format, is_store
from stepwell.converters.incoming import Incoming, size_of
from stepwell.converters.parts import difference, remove_tree
from stepwell.errors import SchemaError
from stepwell.files.atomic import publish_tree, sync_path, temporary_name
from stepwell.source import Field
from stepwell.stores import RecordReader, RecordWriter

__all__ = ["field_names", "fill_store", "open_incoming"]

CONVERSION = "conversion"
NAMES = "names"

_COMMIT_BYTES = 64 << 20
_COMMIT_S = 2.0
_MOST_NAME = 63


def open_incoming(path: Path, known: Format) -> Incoming:
    """What is to be converted."""
    if known == "npy":
        from stepwell.converters.npy import open_npy as opened
    elif known == "npz":
        from stepwell.converters.npz import open_npz as opened
    elif known == "parquet":
        from stepwell.converters.parquet import open_parquet as opened
    elif known == "arrayrecord":
        from stepwell.converters.arrayrecord import open_arrayrecord as opened
    elif known == "huggingface":
        from stepwell.converters.huggingface import open_huggingface as opened
    else:
        from stepwell.converters.folder import open_folder as opened
    return opened(path)


def fill_store(
    incoming: Incoming,
    source: Path,
    target: Path,
    *,
    compress: str,
    level: int | None,
    chunk_records: int,
    overwrite: bool,
    on_progress: Callable[[int, int], None],
) -> int:
    """Append what is not in the store yet; return how many records were there before.

    Raises `FileExistsError` when `target` is anything but a part of this very conversion and is not
    to be replaced.
    """
    about = {
        "format": incoming.format,
        "source": os.path.realpath(source),
        "files": incoming.files,
        "records": incoming.total,
        "compress": compress,
        "level": level,
        "chunk_records": chunk_records,
    }
    names = field_names(incoming.columns)
    fields = {
        names[name]: Field(c.dtype, c.shape, c.ragged, compress=compress, level=level)
        for name, c in incoming.columns.items()
    }
    attributes: dict[str, Any] = {**incoming.attributes}
    renamed = {field: name for name, field in names.items() if field != name}
    if renamed:
        attributes[NAMES] = renamed
    attributes[CONVERSION] = {**about, "finished": False}
    final, store = target, _begun(target, about, overwrite)
    if store is None and target.exists() and os.listdir(target):
        # What is there stays until what takes its place is whole.
        target = target.with_name(f"{target.name}.part")
        store = _begun(target, about, overwrite=True)
        if store is None and target.exists():
            remove_tree(target)
    created = store is None
    if store is None:
        store = _created(target, fields, chunk_records, attributes)
    begin = len(store)
    committed = begin
    try:
        with store:
            if begin > incoming.total:
                raise FileExistsError(
                    f"{target} has {begin} records, the conversion {incoming.total}; "
                    "overwrite starts anew"
                )
            pending, last = 0, time.monotonic()
            on_progress(begin, incoming.total)
            for batch in incoming.batches(begin):
                store.append({names[name]: values for name, values in batch.items()})
                pending += size_of(batch)
                if pending >= _COMMIT_BYTES or time.monotonic() - last >= _COMMIT_S:
                    store.commit()
                    committed = len(store)
                    pending, last = 0, time.monotonic()
                on_progress(len(store), incoming.total)
            if len(store) != incoming.total:
                raise SchemaError(f"{source}: expected {incoming.total} records, got {len(store)}")
            attributes[CONVERSION] = {**about, "finished": True}
            store.set_attributes(attributes)
    except Exception:
        if created and not committed:
            remove_tree(target)  # nothing in it that a second attempt could use
        raise
    if target != final:
        old = temporary_name(final)
        final.rename(old)
        target.rename(final)
        sync_path(final.parent)
        remove_tree(old)
    return begin


def _created(
    target: Path,
    fields: dict[str, Field],
    chunk_records: int,
    attributes: dict[str, Any],
) -> RecordWriter:
    """A new store, which a kill does not leave half made."""
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = temporary_name(target)
    with publish_tree(beside, target):
        RecordWriter(beside, fields, chunk_records=chunk_records, attributes=attributes).close()
    return RecordWriter(target, mode="a")


def _begun(target: Path, about: dict[str, Any], overwrite: bool) -> RecordWriter | None:
    """The store that an earlier attempt left; None when it is to be made.

    A store that no conversion has made is never replaced.
    """
    if not target.exists() or (target.is_dir() and not os.listdir(target)):
        return None
    if not is_store(target):
        raise FileExistsError(f"{target} is there and is not a record store: it is left alone")
    with RecordReader.open(target) as found:
        before = found.attributes.get(CONVERSION)
        count = len(found)
    if isinstance(before, dict):
        state = {name: value for name, value in before.items() if name != "finished"}
        changed = difference(state, about)
        if not changed and not before.get("finished"):
            return RecordWriter(target, mode="a")
        if not changed:
            why = f"this conversion is finished ({count:,} records)"
        elif before.get("finished"):
            why = f"another conversion, finished; {changed}"
        else:
            why = f"another conversion, begun; {changed}"
    else:
        raise FileExistsError(
            f"{target} is a record store of {count:,} records that no conversion has made: "
            "it is left alone"
        )
    if not overwrite:
        raise FileExistsError(f"{target} exists ({why}); overwrite replaces it")
    RecordWriter(target, mode="a").close()  # BusyError: somebody is writing to what is to go
    return None


def field_names(names: Iterable[str]) -> dict[str, str]:
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
