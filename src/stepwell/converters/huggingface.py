"""Datasets as `Dataset.save_to_disk` of Hugging Face's `datasets` writes them.

A directory with `state.json`, which names the Arrow files, and `dataset_info.json`, which knows
what columns mean; its features are kept in the store's attributes.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.converters import arrow
from stepwell.converters.incoming import Incoming, damage_in, files_sum, rows_of
from stepwell.errors import FormatError, SchemaError
from stepwell.source import Batch

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["is_huggingface", "open_huggingface"]

_STATE = "state.json"
_INFO = "dataset_info.json"
_SPLITS = "dataset_dict.json"


def is_huggingface(path: Path) -> bool:
    """Whether a directory is a dataset, or several splits of one."""
    return (path / _STATE).is_file() or (path / _SPLITS).is_file()


def open_huggingface(path: Path) -> Incoming:
    """The rows of one split. Memory is the largest record batch in it, 1,000 rows as a rule."""
    if not (path / _STATE).is_file():
        splits = _json(path / _SPLITS).get("splits", [])
        raise FormatError(
            f"expected one split, got {len(splits)}; convert {', '.join(map(str, splits))} alone",
            path=str(path),
        )
    state = _json(path / _STATE)
    if state.get("_indices_data_files") or state.get("_indices_files"):
        raise FormatError(
            "the rows are chosen by an index; save it again after flatten_indices()",
            path=str(path / _STATE),
        )
    try:
        files = [path / str(Path(part["filename"]).name) for part in state["_data_files"]]
    except (KeyError, TypeError):
        raise FormatError("does not name its files", path=str(path / _STATE)) from None
    if not files:
        raise FormatError("names no files", path=str(path / _STATE))
    counts = []
    schema: pa.Schema = None
    for file in files:
        found, count = _look(file)
        counts.append(count)
        if schema is None:
            schema = found
        elif not found.equals(schema):
            raise SchemaError(f"{file}: expected the columns of {files[0].name}, got others")
    try:
        columns = arrow.columns_of(schema)
    except SchemaError as error:
        raise SchemaError(f"{path}: {error}") from None

    def batches(first: int) -> Iterator[Batch]:
        begin = 0
        for file, count in zip(files, counts, strict=True):
            if first < begin + count:
                yield from _batches(file, begin, first)
            begin += count

    listed = [(file.name, file.stat()) for file in files]
    return Incoming(
        "huggingface",
        columns,
        sum(counts),
        files_sum(listed),
        batches,
        _attributes(path, schema),
    )


def _batches(file: Path, begin: int, first: int) -> Iterator[Batch]:
    """The rows of a file from `first` on; `begin` is the number of its first one."""
    pyarrow = arrow.library()
    with pyarrow.OSFile(str(file)) as opened, _damage_in(file):
        for rows in pyarrow.ipc.open_stream(opened):
            count = rows_of(rows.nbytes // max(1, len(rows)))
            skipped = max(0, first - begin)
            for at in range(skipped, len(rows), count):
                try:
                    yield arrow.batch_of(rows.slice(at, count), begin + at)
                except SchemaError as error:
                    raise SchemaError(f"{file}: {error}") from None
            begin += len(rows)


def _look(file: Path) -> "tuple[pa.Schema, int]":
    """The schema of a file and its number of rows; of a map only the headers are read."""
    pyarrow = arrow.library()
    file.stat()
    with _damage_in(file), pyarrow.memory_map(str(file)) as opened:
        stream = pyarrow.ipc.open_stream(opened)
        return stream.schema.remove_metadata(), sum(len(rows) for rows in stream)


def _damage_in(file: Path) -> Any:
    return damage_in(file, arrow.library().ArrowException, EOFError, OSError)


def _attributes(path: Path, schema: "pa.Schema") -> dict[str, Any]:
    """What is known of the columns; `classes` are the names of the column `label`."""
    made: dict[str, Any] = {}
    times = arrow.times_of(schema)
    if times:
        made[arrow.TYPES] = times
    features = _json(path / _INFO).get("features") if (path / _INFO).is_file() else None
    if isinstance(features, dict):
        made["features"] = features
        label = features.get("label")
        if isinstance(label, dict) and isinstance(label.get("names"), list):
            made["classes"] = label["names"]
    return made


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except ValueError as error:
        raise FormatError(f"is no JSON: {error}", path=str(path)) from None
    if not isinstance(found, dict):
        raise FormatError("expected an object", path=str(path))
    return found
