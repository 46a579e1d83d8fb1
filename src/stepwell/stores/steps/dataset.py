"""`dataset.json`: which objects a dataset is that was written in a bucket, as of its last commit.

Shards and metadata never change under their names, so who has read this document has a whole
commit, however many follow.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from stepwell.errors import FormatError
from stepwell.files.document import Document, whole_number
from stepwell.files.npy import dtype_from_json, dtype_to_json
from stepwell.files.regular import check_inside, read_inside
from stepwell.stores.steps import database
from stepwell.stores.steps.database import Seen
from stepwell.stores.steps.layout import DATABASE, DATASET, Metadata, Part

DOCUMENT = Document(DATASET, "stepwell-dataset", 1, checksummed=True)
_MAX = 1 << 62
_NUMBERS = ("rows", "runs", "next_run", "change")


@dataclass(frozen=True)
class Dataset:
    """What the document has."""

    id: str
    """Of the dataset, as the database has it."""
    dtype: np.dtype[Any]
    metadata: Metadata
    rows: int = 0
    runs: int = 0
    parts: tuple[Part, ...] = ()
    next_run: int = 0
    """The first id of a run that no writer has."""
    change: int = 0
    """How many documents there were before this one."""
    by: str = ""
    """Who wrote it: no two writers write the same document."""

    def changed(self, by: str, **changes: Any) -> "Dataset":
        """The next document of the dataset."""
        return replace(self, change=self.change + 1, by=by, **changes)

    def dump(self) -> bytes:
        """The document. Raises `ValueError` for one that nobody could read."""
        self._check()
        name, size, crc = self.metadata
        return DOCUMENT.dump(
            {
                "id": self.id,
                "change": self.change,
                "by": self.by,
                "next_run": self.next_run,
                "dtype": dtype_to_json(self.dtype),
                "rows": self.rows,
                "runs": self.runs,
                "metadata": {"name": name, "bytes": size, "crc32c": f"{crc:08x}"},
                "shards": [part._asdict() for part in self.parts],
            }
        )

    @classmethod
    def parse(cls, data: bytes, path: str) -> "Dataset":
        """Raises `FormatError` for what is no such document, and its kinds."""
        with DOCUMENT.parsing_bytes(data, path) as text:
            about = text["metadata"]
            metadata = Metadata(
                _name(about["name"], "metadata/", ".db"),
                whole_number(about["bytes"], _MAX),
                whole_number(int(about["crc32c"], 16), 1 << 32),
            )
            made = cls(
                str(text["id"]),
                dtype_from_json(text["dtype"]),
                metadata,
                parts=tuple(map(_part, text["shards"])),
                by=str(text["by"]),
                **{key: whole_number(text[key], _MAX) for key in _NUMBERS},
            )
            made._check()
            return made

    def _check(self) -> None:
        if not self.dtype.names or not self.dtype.itemsize:
            raise ValueError(f"expected a dtype with fields, got {self.dtype}")
        if sum(part.rows for part in self.parts) != self.rows:
            raise ValueError(f"expected shards of {self.rows} rows")
        if len({part.name for part in self.parts}) < len(self.parts):
            raise ValueError("a shard is named more than once")
        for part in self.parts:
            if part.bytes < part.rows * self.dtype.itemsize:
                raise ValueError(f"{part.name}: {part.bytes} bytes for {part.rows} rows")

    @property
    def names(self) -> set[str]:
        """Every object that it names, and those that these have beside them."""
        shards = {name for part in self.parts for name in (part.name, part.checksums)}
        return {DATASET, self.metadata.name} | shards

    def look(self, path: Path, identity: str = "") -> Seen:
        """The state of this commit; `path` is where its database is.

        Raises `FormatError` where the two contradict each other.
        """
        seen = database.look(path, identity)
        wanted = (self.rows, self.runs, f"id:{self.id}", self.dtype)
        if (seen.rows, seen.runs, seen.identity, seen.dtype) != wanted:
            message = (
                f"expected {self.rows} rows of {self.runs} runs of {self.dtype} in the dataset "
                f"{self.id}, as {DATASET} has, got {seen.rows} of {seen.runs} of {seen.dtype} in "
                f"{seen.identity.removeprefix('id:')}"
            )
            raise FormatError(message, path=str(path))
        if self.rows and not seen.block_bytes:
            raise FormatError("expected checksums of blocks, got none", path=str(path))
        return seen._replace(parts=self.parts, metadata=self.metadata, shard_rows=0)


def _part(text: Any) -> Part:
    name = _name(text["name"], "shards/", ".npy")
    return Part(name, *(whole_number(text[key], _MAX, min_=1) for key in ("rows", "bytes")))


def _name(name: Any, begin: str, end: str) -> str:
    """A name directly in its folder, which leads nowhere else."""
    inside = name[len(begin) : -len(end)] if isinstance(name, str) else ""
    good = name == begin + inside + end and inside and not {"/", "\0"} & set(inside)
    if not good or inside.startswith(".") or len(name) > 200:
        raise ValueError(f"expected a name like {begin}…{end}, got {name!r}")
    return str(name)


def is_dataset(root: Path) -> bool:
    """Whether a folder is a copy of a dataset that was written in a bucket."""
    return not (root / DATABASE).exists() and (root / DATASET).exists()


def look(root: Path, identity: str = "") -> tuple[Path, Seen]:
    """The newest state of the dataset in a folder, and where its database is."""
    if not is_dataset(root):
        return root / DATABASE, database.look(root / DATABASE, identity)
    found = Dataset.parse(read_inside(root, DATASET, DOCUMENT.max_bytes), str(root / DATASET))
    path = database_of(root, found.metadata)
    return path, found.look(path, identity)


def database_of(root: Path, metadata: Metadata | None) -> Path:
    """The database of a commit in a folder; without a list of shards, that of all commits."""
    if metadata is None:
        return root / DATABASE
    check_inside(root, metadata.name)
    return root / metadata.name
