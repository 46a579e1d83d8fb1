"""Folders of files with labels: `root/<class>/<file>`, as torchvision's ImageFolder reads them.

The fields are `data` (bytes), `label` (int64) and `name` (text: the path below the class's folder).
Classes are numbered in the order of their names, which the attribute `classes` keeps, those without
files too. Files right in the root, and what begins with a dot, are left out. Written from a
source with `data` and `label`; without `name` files are numbered, without `classes` folders are.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stepwell.batches import attributes_of, in_order
from stepwell.errors import FormatError, SchemaError
from stepwell.formats.parts import Part
from stepwell.formats.streams import Progress, Stream, batches_of
from stepwell.source import Batch, Field, Source

_RESERVED = {".", "..", ""}


def classes_of(path: Path) -> list[str]:
    """The folders in a folder, sorted."""
    return sorted(
        entry.name
        for entry in os.scandir(path)
        if entry.is_dir() and not entry.name.startswith(".")
    )


class FolderSource(Stream):
    """The files below each class's folder, sorted. Memory is the names of the largest class."""

    kind = "folder"
    noun = "a folder of labelled files"

    def __init__(self, path: str | os.PathLike[str], fields: Sequence[str] | None = None) -> None:
        where = Path(path)
        self._classes = classes_of(where)
        if not self._classes:
            raise FormatError("expected a folder for each class", path=str(where))
        for name in self._classes:
            _check_text(where / name, name)
        self._counts = [len(_files(where / name)) for name in self._classes]
        made = {"data": Field(bytes), "label": Field(np.dtype(np.int64)), "name": Field(str)}
        super().__init__(str(where), made, sum(self._counts), {"classes": self._classes})

    def _from(self, first: int, names: Sequence[str]) -> Iterator[Batch]:
        return batches_of(self._rows_from(first), names, self.schema)

    def _rows_from(self, first: int) -> Iterator[tuple[dict[str, Any], int]]:
        """The files from one on, and their sizes."""
        root = Path(str(self.path))
        begin = 0
        for label, (name, count) in enumerate(zip(self._classes, self._counts, strict=True)):
            begin += count
            if begin <= first:
                continue
            for file in _files(root / name)[max(0, first - (begin - count)) :]:
                _check_text(root / name / file, file)
                data = (root / name / file).read_bytes()
                yield {"data": data, "label": label, "name": file}, len(data)


def _files(folder: Path) -> list[str]:
    """The plain files below a folder, by their path from there."""
    found = []
    for at, folders, names in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        inside = os.path.relpath(at, folder)
        for name in names:
            if not name.startswith(".") and os.path.isfile(os.path.join(at, name)):
                found.append(name if inside == "." else f"{inside}/{name}")
    return sorted(found)


def _check_text(path: Path, name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise FormatError("expected a name in UTF-8", path=ascii(str(path))) from None


def write_folder(source: Source, part: Part, *, progress: Progress) -> None:
    """Write a file for each row. Raises `SchemaError` for two rows of one name."""
    _check(source)
    classes = attributes_of(source).get("classes")
    if not isinstance(classes, list):
        classes = None
    for name in classes or []:
        _safe(str(name), "a class", single=True)
    part.path.mkdir(exist_ok=True)
    for name in classes or []:
        (part.path / str(name)).mkdir(exist_ok=True)
    total: int = len(source)
    done: int = part["done"] or 0
    # Up to here files may be there already: those that were being written when it was killed.
    written: int = part["until"] or 0
    for batch in in_order(source, done, progress):
        count = len(batch["label"])
        part.save(done=done, until=max(written, done + count))
        for row, label, data, name in _files_of(batch, done):
            if classes is None:
                kind = str(label)
            elif 0 <= label < len(classes):
                kind = str(classes[label])
            else:
                raise SchemaError(f"row {row}: expected a label below {len(classes)}, got {label}")
            _safe(name, f"row {row}: a name")
            path = part.path / kind / name
            path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
            flags |= os.O_TRUNC if row < written else os.O_EXCL
            try:
                file = os.open(path, flags, 0o666)
            except FileExistsError:
                raise SchemaError(f"row {row}: {kind}/{name} is there already") from None
            with open(file, "wb") as out:
                out.write(data)
                out.flush()
                os.fsync(file)
        done += count
    part.save(done=done, until=done)
    # Two of one name are seen above, unless a kill came between them.
    found = sum(len(files) for _, _, files in os.walk(part.path))
    if found != total:
        raise SchemaError(f"{total} rows have {found} different names")


def _files_of(batch: Batch, first: int) -> Iterator[tuple[int, int, Any, str]]:
    """The number, label, contents and name of each row."""
    data = batch["data"]
    for i, label in enumerate(batch["label"].tolist()):
        low, high = data.offsets[i : i + 2]
        name = batch["name"][i] if "name" in batch else f"{first + i:08d}"
        yield first + i, label, data.values[low:high].data, name


def _check(source: Source) -> None:
    """Refuse fields that are no files with labels."""
    schema = source.schema
    data, label, name = (schema.get(n) for n in ("data", "label", "name"))
    if data is None or data.kind == "array":
        raise SchemaError(f"expected a field 'data' of bytes, got {data or ', '.join(schema)}")
    if label is None or label.ragged or label.shape or label.dtype.kind not in "iu":
        raise SchemaError(
            f"expected a field 'label' of whole numbers, got {label or ', '.join(schema)}"
        )
    if name is not None and name.kind != "str":
        raise SchemaError(f"expected a field 'name' of text, got {name}")


def _safe(name: str, what: str, single: bool = False) -> None:
    """Refuse a name that would be elsewhere, or nowhere."""
    parts = name.split("/")
    if "\0" in name or any(part in _RESERVED for part in parts) or (single and len(parts) > 1):
        raise SchemaError(f"{what} must be a path inside the folder, got {name!r}")
