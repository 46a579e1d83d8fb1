"""Directories of files with labels: `root/<class>/<file>`, as torchvision's ImageFolder reads them.

In: the fields `data` (bytes), `label` (int64) and `name` (text: the path below the class's
folder). Classes are numbered in the order of their names, which the attribute `classes` keeps,
those without files too. Files right in the root, and what begins with a dot, are left out.
Out: the same, for a store with `data` and `label`; without `name` files are numbered, without
`classes` folders are.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from stepwell.converters.incoming import BATCH_BYTES, Column, Incoming, files_sum
from stepwell.converters.outgoing import Outgoing
from stepwell.converters.parts import PartFolder
from stepwell.errors import FormatError, SchemaError
from stepwell.source import Batch, Ragged

__all__ = ["open_folder", "write_folder"]

_MOST_FILES = 4096
_RESERVED = {".", "..", ""}


def open_folder(path: Path) -> Incoming:
    """The files below each class's folder, sorted. Memory is the names of the largest class."""
    classes = sorted(
        entry.name
        for entry in os.scandir(path)
        if entry.is_dir() and not entry.name.startswith(".")
    )
    if not classes:
        raise FormatError("expected a folder for each class", path=str(path))
    counts: list[int] = []

    def listed() -> Iterator[tuple[str, os.stat_result]]:
        for name in classes:
            files = _files(path / name)
            counts.append(len(files))
            for file in files:
                yield f"{name}/{file}", (path / name / file).stat()

    for name in classes:
        _text(path / name, name)
    total_sum = files_sum(listed())

    def batches(first: int) -> Iterator[Batch]:
        datas: list[bytes] = []
        labels: list[int] = []
        names: list[bytes] = []
        size = begin = 0
        for label, (name, count) in enumerate(zip(classes, counts, strict=True)):
            begin += count
            if begin <= first:
                continue
            skipped = max(0, first - (begin - count))
            for file in _files(path / name)[skipped:]:
                datas.append((path / name / file).read_bytes())
                labels.append(label)
                names.append(_text(path / name / file, file))
                size += len(datas[-1])
                if size >= BATCH_BYTES or len(datas) == _MOST_FILES:
                    yield _batch(datas, labels, names)
                    datas, labels, names, size = [], [], [], 0
        if datas:
            yield _batch(datas, labels, names)

    columns = {
        "data": Column(bytes, ragged=True),
        "label": Column(np.dtype(np.int64)),
        "name": Column(str, ragged=True),
    }
    return Incoming("folder", columns, sum(counts), total_sum, batches, {"classes": classes})


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


def _text(path: Path, name: str) -> bytes:
    try:
        return name.encode()
    except UnicodeEncodeError:
        raise FormatError("expected a name in UTF-8", path=ascii(str(path))) from None


def _batch(datas: list[bytes], labels: list[int], names: list[bytes]) -> Batch:
    return {"data": _joined(datas), "label": np.array(labels, np.int64), "name": _joined(names)}


def _joined(parts: list[bytes]) -> Ragged:
    offsets = np.zeros(len(parts) + 1, np.int64)
    np.cumsum([len(part) for part in parts], out=offsets[1:])
    return Ragged(np.frombuffer(b"".join(parts), np.uint8), offsets)


def write_folder(
    source: Outgoing, folder: PartFolder, on_progress: Callable[[int, int], None]
) -> None:
    """Write a file for each record. Raises `SchemaError` for two records of one name."""
    names = _names_of(source)
    classes = source.store.attributes.get("classes")
    if not isinstance(classes, list):
        classes = None
    for name in classes or []:
        _safe(str(name), "a class", single=True)
        (folder.path / str(name)).mkdir(exist_ok=True)
    done: int = folder["done"] or 0
    # Up to here files may be there already: those that were being written when it was killed.
    written: int = folder["until"] or 0
    on_progress(done, source.total)
    for batch in source.batches(done):
        count = len(batch["label"])
        folder.save(done=done, until=max(written, done + count))
        for i in range(count):
            row = done + i
            label = int(batch["label"][i])
            if classes is None:
                kind = str(label)
            elif 0 <= label < len(classes):
                kind = str(classes[label])
            else:
                raise SchemaError(f"row {row}: expected a label below {len(classes)}, got {label}")
            name = batch["name"][i].tobytes().decode() if "name" in names else f"{row:08d}"
            _safe(name, f"row {row}: a name")
            path = folder.path / kind / name
            path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
            flags |= os.O_TRUNC if row < written else os.O_EXCL
            try:
                file = os.open(path, flags, 0o666)
            except FileExistsError:
                raise SchemaError(f"row {row}: {kind}/{name} is there already") from None
            with open(file, "wb") as out:
                out.write(batch["data"][i].data)
                out.flush()
                os.fsync(file)
        done += count
        on_progress(done, source.total)
    folder.save(done=done, until=done)
    # Two of one name are seen above, unless a kill came between them.
    root = str(folder.path)
    found = sum(len(files) for at, _, files in os.walk(root) if at != root)
    if found != source.total:
        raise SchemaError(f"{source.total} records have {found} different names")


def _names_of(source: Outgoing) -> list[str]:
    columns = source.columns
    data, label, name = (columns.get(n) for n in ("data", "label", "name"))
    if data is None or not isinstance(data.dtype, type):
        got = source.describe("data") if data else ", ".join(columns)
        raise SchemaError(f"expected a field 'data' of bytes, got {got}")
    if label is None or not _is_whole(label):
        got = source.describe("label") if label else ", ".join(columns)
        raise SchemaError(f"expected a field 'label' of whole numbers, got {got}")
    if name is not None and name.dtype is not str:
        raise SchemaError(f"expected a field 'name' of text, got {source.describe('name')}")
    return list(columns)


def _is_whole(column: Column) -> bool:
    dtype: Any = column.dtype
    return not column.ragged and not column.shape and dtype.kind in "iu"


def _safe(name: str, what: str, single: bool = False) -> None:
    """Refuse a name that would be elsewhere, or nowhere."""
    parts = name.split("/")
    if "\0" in name or any(part in _RESERVED for part in parts) or (single and len(parts) > 1):
        raise SchemaError(f"{what} must be a path inside the folder, got {name!r}")
