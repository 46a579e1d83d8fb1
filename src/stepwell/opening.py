"""`stepwell.open`: whichever store or file of another format is at a path."""

import os
from pathlib import Path
from typing import Any, overload

from stepwell.errors import KindError
from stepwell.formats import Format, format_at
from stepwell.source import Source
from stepwell.store import Store, what_is_at
from stepwell.stores import STORES, ShardReader


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
    if "://" in os.fspath(path):
        return ShardReader.open(path, **options)
    where = Path(path)
    store = store_at(where)
    if store is not None:
        return store.open(where, **options)
    found = _format_at(where)
    if found is not None:
        return found.read(where, **options)
    nouns = ", ".join(each.noun for each in STORES)
    raise KindError(f"expected {nouns}, got {what_is_at(where)}", path=str(where))


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
    if "://" not in path:
        store = store_at(Path(path))
        if store is not None and store.kind in ("steps", "npy"):
            options["memory"] = "map"
    return open(path, **options)
