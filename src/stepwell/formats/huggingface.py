"""Datasets as `Dataset.save_to_disk` of Hugging Face's `datasets` writes them.

A folder with `state.json`, which names the Arrow files, and `dataset_info.json`, which knows what
columns mean; its features become attributes.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.arrow import items_of, library
from stepwell.errors import FormatError
from stepwell.files.extras import damage_in
from stepwell.formats import arrow

if TYPE_CHECKING:
    import pyarrow as pa

_STATE = "state.json"
_INFO = "dataset_info.json"
_SPLITS = "dataset_dict.json"
_ARRAYS = ("Array2D", "Array3D", "Array4D", "Array5D")


class HuggingFaceSource(arrow.ArrowTables):
    """The rows of one split. Memory is the largest record batch in it, 1,000 rows as a rule."""

    kind = "huggingface"
    noun = "a Hugging Face dataset"

    def __init__(self, path: str | os.PathLike[str], fields: Sequence[str] | None = None) -> None:
        where = Path(path)
        if (where / _SPLITS).is_file():
            splits = _json(where / _SPLITS).get("splits", [])
            raise FormatError(
                f"expected one split, got {len(splits)}; "
                f"convert {', '.join(map(str, splits))} alone",
                path=str(where),
            )
        state = _json(where / _STATE)
        if state.get("_indices_data_files") or state.get("_indices_files"):
            raise FormatError(
                "the rows are chosen by an index; save it again after flatten_indices()",
                path=str(where / _STATE),
            )
        try:
            files = [where / str(Path(part["filename"]).name) for part in state["_data_files"]]
        except (KeyError, TypeError):
            raise FormatError("expected _data_files with names", path=str(where / _STATE)) from None
        if not files:
            raise FormatError("expected at least one data file, got none", path=str(where / _STATE))
        attributes = _attributes(where)
        self._shapes = _shapes(attributes.get("features", {}))
        super().__init__(where, files, attributes)

    def _look(self, file: Path) -> "tuple[pa.Schema, int]":
        """The schema, in which arrays of a known shape are such: the file has lists of lists."""
        schema, count = super()._look(file)
        for name, shape in self._shapes.items():
            i = schema.get_field_index(name)
            kind = items_of(schema.field(i).type)
            for size in reversed(shape):
                kind = library().list_(kind, size)
            schema = schema.set(i, library().field(name, kind))
        return schema, count


def _shapes(features: dict[str, Any]) -> dict[str, list[int]]:
    """The shapes of the columns that are arrays, where the features have them in full."""
    found = {
        name: feature["shape"]
        for name, feature in features.items()
        if isinstance(feature, dict) and str(feature.get("_type")) in _ARRAYS
    }
    return {name: shape for name, shape in found.items() if all(shape)}


def _attributes(path: Path) -> dict[str, Any]:
    """The attributes of the columns; `classes` are the names of the column `label`."""
    features = _json(path / _INFO).get("features") if (path / _INFO).is_file() else None
    if not isinstance(features, dict):
        return {}
    label = features.get("label")
    classes = label.get("names") if isinstance(label, dict) else None
    return {"features": features} | ({"classes": classes} if isinstance(classes, list) else {})


def _json(path: Path) -> dict[str, Any]:
    with damage_in(path, ValueError):
        found = json.loads(path.read_bytes())
        if not isinstance(found, dict):
            raise ValueError("expected an object")
        return found
