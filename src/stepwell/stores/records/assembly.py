"""A record store whose records several processes write, each some chunks of its own.

    learned(folder, fields, batch)                        dictionaries, where fields have them
    part = PartRecords(folder, fields, size, first)       in any process
    part.append(batch); facts = part.finish()             on the disk on return
    adopt(writer, folder, facts)                          part by part: chunks by a rename

Chunks have their final numbers from the beginning, so frames are never read again; entries of
tables go through the writer's own commit. A part has whole chunks, but for the last one.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from stepwell.errors import SchemaError
from stepwell.field import Field
from stepwell.files.atomic import sync_path
from stepwell.source import Batch
from stepwell.stores.records.chunk import FrameWriter, OpenChunks, entries_of
from stepwell.stores.records.layout import (
    CHUNKS,
    ChunkState,
    Meta,
    checked,
    chunk_name,
    dictionary_name,
    fit_for_columns,
)
from stepwell.stores.records.values import as_values
from stepwell.stores.records.writer import GROW_BYTES, RecordWriter

Facts = Mapping[str, Any]
"""What is known of a part, as JSON can keep it."""


def _begun(
    root: Path, fields: Mapping[str, Field], size: int, chunk: int
) -> tuple[Meta, OpenChunks, FrameWriter]:
    fields = checked(fields)
    meta = Meta(fields, size, next_chunk=chunk, columns=fit_for_columns(fields))
    chunks = OpenChunks(root, meta, GROW_BYTES)
    return meta, chunks, FrameWriter(root, meta, chunks, 1)


def learned(folder: Path, fields: Mapping[str, Field], batch: Batch) -> list[Path]:
    """The dictionaries that all parts use, in a folder; they learn from the first records.

    Raises `SchemaError` where there is too little to learn from.
    """
    packed = [name for name, field in fields.items() if field.compress == "zstd-dict"]
    if not packed:
        return []
    folder.mkdir(exist_ok=True)
    meta, _, frames = _begun(folder, fields, 1, 0)
    frames.train(as_values(batch, meta.fields, whole=True))
    made = [folder / dictionary_name(name) for name in packed]
    for name, path in zip(packed, made, strict=True):
        if not path.exists():
            raise SchemaError(f"{name}: too few records to learn a dictionary from; use zstd")
    return made


class PartRecords:
    """Writes the records of one part, from number `first` on, to chunks in a folder."""

    def __init__(
        self,
        folder: Path,
        fields: Mapping[str, Field],
        chunk_records: int,
        first: int,
        dictionaries: list[Path],
    ) -> None:
        shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed
        (folder / CHUNKS).mkdir(parents=True)
        for path in dictionaries:
            shutil.copyfile(path, folder / path.name)
        self._folder, self._first, self.count = folder, first, 0
        begun = _begun(folder, fields, chunk_records, first // chunk_records)
        self._meta, self._chunks, self._frames = begun
        self._tables = [_table(folder, number).open("wb") for number in self._meta.numbers.values()]

    def append(self, batch: Mapping[str, Any]) -> None:
        """Add records."""
        values = as_values(batch, self._meta.fields, whole=True)
        count, begin = next(iter(values.values())).count, self._first + self.count
        numbers = np.arange(begin, begin + count, dtype=np.int64)
        made = entries_of(self._meta, self._frames, values, numbers, newest=False)
        for number, table in enumerate(self._tables):
            table.write(np.ascontiguousarray(made[number]).view(np.uint8).data)
        self.count += count

    def finish(self) -> dict[str, Any]:
        """Wait until all of it is on the disk; return what `adopt` needs to know."""
        self._chunks.sync()
        states = [list(state) for state in self._chunks.states()]
        self.close()
        for path in self._folder.iterdir():
            sync_path(path)
        sync_path(self._folder)
        return {"count": self.count, "chunks": states}

    def close(self) -> None:
        self._chunks.close(cut=True)
        for table in self._tables:
            table.close()


def adopt(writer: RecordWriter, folder: Path, facts: Facts) -> None:
    """Add the records of the next part, and commit."""
    with writer._turn():
        writer._check_usable()
        meta, chunks = writer._meta, [ChunkState(*state) for state in facts["chunks"]]
        entries = {
            number: np.fromfile(_table(folder, number), meta.entry(name))
            for name, number in meta.numbers.items()
        }
        for each in entries.values():
            if len(each) != facts["count"]:
                raise SchemaError(f"{folder}: expected {facts['count']} entries, got {len(each)}")
        with writer._changing():
            for state in chunks:
                (folder / chunk_name(state.id)).rename(Path(writer.path) / chunk_name(state.id))
            writer._chunks.adopt(chunks)
            writer._staging.append(facts["count"], entries)
        writer._commit()


def give_back(store: Path, folder: Path, facts: Facts) -> None:
    """Move the chunks of a part back from a store that was not finished."""
    for number, *_ in facts["chunks"]:
        there = store / chunk_name(number)
        if there.exists():
            there.rename(folder / chunk_name(number))


def _table(folder: Path, number: int) -> Path:
    return folder / f"{number}.entries"
