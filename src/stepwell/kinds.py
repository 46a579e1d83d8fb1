"""The kind of store or format at a path, and of a conversion's target, by names and magic."""

import os
from pathlib import Path

from stepwell.files.regular import open_regular
from stepwell.files.remote import RemoteFiles, is_url
from stepwell.formats import BY_NAME, FORMATS, format_at
from stepwell.formats.minari import PREFIX
from stepwell.opening import store_at, store_at_url
from stepwell.source import Source
from stepwell.stores.shards.layout import LIST
from stepwell.stores.steps.layout import DATASET

MADE = ("records", "shards", "steps")
"""Stores that can be made of others' rows."""

IN_BUCKETS = {"shards": LIST.name, "steps": DATASET}
"""Those that can be made in a bucket, and the document that each begins with there."""

_HAVE_RUNS = ("minari", "hdf5", "replay", "pack", "runs")
"""Kinds whose rows are steps of runs: a step dataset is what they usually become."""

_MADE_OF = {"pack": "runs", "replay": "telemetry"}
"""Stores that are made of one kind of source only."""

_SQLITE = b"SQLite format 3\0"


def kind_at(path: Path) -> str | None:
    """The kind of store or format at a path; None for anything else."""
    store = store_at(path)
    if store is not None:
        return store.kind
    if path.is_file():
        with open_regular(path) as file:
            if file.read(len(_SQLITE)) == _SQLITE:
                return "telemetry"
    known = format_at(path)
    if known in (None, BY_NAME["folder"]) and next(path.rglob("*.a2run*"), None) is not None:
        return "runs"
    return known.name if known else None


def kind_of(source: str | os.PathLike[str] | Source) -> str | None:
    """The kind that rows are kept in; None where nothing here reads it."""
    if isinstance(source, Source):
        return getattr(source, "kind", type(source).__name__)
    text = os.fspath(source)
    if text.startswith(PREFIX):
        return "minari"
    return store_at_url(text).kind if is_url(text) else kind_at(Path(text))


def target_kind(
    source: str | os.PathLike[str] | Source,
    source_kind: str | None,
    target: str,
    to: str | None,
    mode: str,
) -> str:
    """The kind to write. Raises `ValueError` when neither the name nor `to` decides it."""
    if target.startswith(PREFIX):
        if to not in (None, "minari"):
            raise ValueError(f"to: expected 'minari' for {target}, got {to!r}")
        return "minari"
    if is_url(target):
        return _kind_in_bucket(source_kind, target, to, mode)
    suffix = Path(target).suffix.lower()
    made = "replay" if source_kind == "telemetry" else "pack" if suffix == ".a2pack" else None
    if made is not None:
        if to not in (None, made) or source_kind != _MADE_OF[made]:
            raise ValueError(
                f"{target}: expected runs to make a pack of, or telemetry to make replay of, "
                f"got {source_kind} to {to or made}"
            )
        return made
    named = next((known for known in FORMATS if suffix in known.suffixes), None)
    if to is None:
        if named is not None:
            return named.name
        if mode == "a" and os.path.exists(target):
            return kind_at(Path(target)) or "records"
        # A name without a suffix stands for a store that the source is not yet.
        if isinstance(source, Source) or source_kind in MADE:
            raise ValueError(
                f"{target}: expected to= (--to) {', '.join(MADE)} or a format, or a name that "
                f"ends in {', '.join(suffix for known in FORMATS for suffix in known.suffixes)}"
            )
        return "steps" if source_kind in _HAVE_RUNS else "records"
    writable = [*MADE, *(f.name for f in FORMATS if f.file_writer or f.part_writer)]
    if to not in writable:
        raise ValueError(f"to: expected one of {', '.join(writable)}, got {to!r}")
    if named is not None and named.name != to:
        raise ValueError(f"to: expected {named.name!r} for {target}, got {to!r}")
    known = BY_NAME.get(to)
    if known is not None and named is None and known.suffixes and not known.inside:
        raise ValueError(f"{target}: expected a name that ends in {' or '.join(known.suffixes)}")
    if to == "minari":
        raise ValueError(f"{target}: expected a name like minari:pong/random-v0")
    return to


def begun_at(url: str) -> str | None:
    """The kind that a writer has begun at a URL, if one has."""
    files = RemoteFiles(url)
    return next((kind for kind, name in IN_BUCKETS.items() if files.about(name) is not None), None)


def _kind_in_bucket(source_kind: str | None, url: str, to: str | None, mode: str) -> str:
    named = next((known.name for known in FORMATS if url.endswith(known.suffixes)), None)
    kind = to or named or (begun_at(url) if mode == "a" else None)
    if kind is None:
        kind = "steps" if source_kind in _HAVE_RUNS else source_kind
    if kind not in IN_BUCKETS:
        raise ValueError(
            f"{url} is a URL: expected to= (--to) {' or '.join(IN_BUCKETS)} to write there, got "
            f"{kind}; of others upload what was made here"
        )
    return kind
