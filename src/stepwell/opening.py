"""`stepwell.open`: whichever store or file of another format is at a path."""

import os
from pathlib import Path
from typing import Any, overload

from stepwell.errors import KindError
from stepwell.files.mirror import split_url
from stepwell.files.remote import RemoteFiles, is_url
from stepwell.formats import Format, format_at
from stepwell.source import Source
from stepwell.store import Store, what_is_at
from stepwell.stores import (
    STORES,
    ArraySource,
    PackReader,
    RecordReader,
    ShardReader,
    StepReader,
)
from stepwell.stores.pack.layout import MAGIC
from stepwell.stores.records.layout import META
from stepwell.stores.shards.layout import LIST, SUFFIX
from stepwell.stores.steps.layout import DATABASE, DATASET

_MARKS: dict[str, type[Store]] = {
    DATABASE: StepReader,
    DATASET: StepReader,
    META: RecordReader,
    LIST.name: ShardReader,
}
"""The objects that show which store is below a URL."""

_OF_STORES = (
    *("memory", "checksums", "resident_bytes", "resident_shards"),
    *("connections", "window_bytes", "cache", "cache_bytes"),
)
"""Options that are not those of a bucket."""


def store_at(path: Path) -> type[Store] | None:
    """The class that opens a path; None when it holds no store.

    Raises `FileNotFoundError`, and `KindError` for a path that holds two stores.
    """
    path.stat()
    found = [store for store in STORES if store.recognizes(path)]
    if len(found) > 1:
        both = " and ".join(store.noun for store in found)
        names = " or ".join(f"stepwell.stores.{store.__name__}.open" for store in found)
        raise KindError(f"expected one store, got {both}: use {names}", path=str(path))
    return found[0] if found else None


@overload
def open(path: str | os.PathLike[str], **options: Any) -> Store: ...
@overload
def open(path: Any) -> Source: ...
def open(path: Any, **options: Any) -> Source:
    """Open whatever is at a path or URL; `options` are those of its class.

        sw.open("games").where("score > ?", 20_000)["board"][:100]

    What is known to be there is better opened by its class, which a type checker knows more of:
    `StepReader.open("games")`.

    What is no path, but a data frame, a table or tensors, is opened by `as_source`.

    Raises `FileNotFoundError`, or `KindError` when nothing here reads such a path.
    """
    if not isinstance(path, str | os.PathLike):
        from stepwell.exchange import as_source  # which opens paths

        return as_source(path, **options)
    text = os.fspath(path)
    if is_url(text):
        return store_at_url(text, **options).open(text, **options)
    where = Path(path)
    store = store_at(where)
    if store is not None:
        return store.open(where, **options)
    found = _format_at(where)
    if found is not None:
        return found.read(where, **options)
    nouns = ", ".join(each.noun for each in STORES)
    raise KindError(f"expected {nouns}, got {what_is_at(where)}", path=str(where))


def store_at_url(url: str, **options: Any) -> type[Store]:
    """The class that opens what is below a URL, by the names and the first bytes there.

    Raises `KindError` where there is none, and `FetchError` where nothing answers.
    """
    reached = {name: value for name, value in options.items() if name not in _OF_STORES}
    above, name = split_url(url)
    web = url.startswith(("http://", "https://"))
    inside = is_url(above) and not above.endswith("://")  # of a bucket, not the bucket itself
    if inside and (not web or os.path.splitext(name)[1] in (".npy", ".a2pack")):
        files = RemoteFiles(above, **reached)
        if (about := files.about(name)) is not None:
            if name.endswith(".npy"):
                return ArraySource
            start = files.read(name, 0, min(len(MAGIC), about.size), about).tobytes()
            if start == MAGIC or name.endswith(".a2pack"):
                return PackReader
            raise KindError(
                "expected a name that ends in .npy, or a pack, got an object that begins with "
                f"{start!r}",
                path=url,
            )
    files = RemoteFiles(url, **reached)
    if web:  # which has no list
        there = {each for each in _MARKS if files.about(each) is not None}
    else:
        there = set(files.names(""))
    found = [store for mark, store in _MARKS.items() if mark in there]
    if ShardReader not in found and any(each.endswith(SUFFIX) for each in there):
        found.append(ShardReader)
    if len(found) > 1:
        both = " and ".join(store.noun for store in found)
        names = " or ".join(f"stepwell.stores.{store.__name__}.open" for store in found)
        raise KindError(f"expected one store, got {both}: use {names}", path=url)
    if not found:
        marks = ", ".join(f"{mark} ({store.noun})" for mark, store in _MARKS.items())
        raise KindError(f"expected {marks}, {SUFFIX} files, .npy or a pack, found none", path=url)
    return found[0]


def can_open(path: Path) -> bool:
    """Whether a path holds a store, or a file or folder of a format that is read."""
    return store_at(path) is not None or _format_at(path) is not None


def _format_at(path: Path) -> Format | None:
    found = format_at(path)
    if found is None or not found.reader or found.name == "folder":  # any folder looks like that
        return None
    return found


def open_lazily(path: str, **options: Any) -> Store:
    """What is at a path or URL, its rows not loaded where they can be mapped."""
    if not is_url(path):  # there they come as they are needed
        store = store_at(Path(path))
        if store is not None and store.kind in ("steps", "npy"):
            options["memory"] = "map"
    return open(path, **options)
