"""Small record stores in every state, to be damaged with care."""

import json
import shutil
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepwell import FormatError, RecordReader, RecordWriter, StepwellError
from tests.records import batch, contents, copy, fields
from tests.reference.records import (
    ENTRY,
    Compress,
    Record,
    build_commit,
    frames,
    parse_journal,
    read_store,
    table_sums,
)

NAMES = ["n", "image", "text"]
Files = dict[str, bytes]


@dataclass
class Sample:
    files: Files
    states: list[list[Record]]
    """What each commit had."""


def make(folder: Path, compress: Compress, *, deletes: bool, closed: bool) -> Sample:
    """A small store: appends, an update, a missing field, and in the end a delete."""
    path, there = folder / "made", folder / "there"
    states: list[list[Record]] = [[]]
    store = RecordWriter(path, fields(compress, NAMES), chunk_records=4)

    def commit() -> None:
        store.commit()
        states.append(read_store(path).records)

    store.append(batch([3, 1, 2], NAMES))
    commit()
    if not closed:  # some of it is in the tables alone
        store.close()
        store = RecordWriter(path, mode="a")
    store.append(batch([4, 5], ["n", "text"]))
    store.update([0], batch([7], NAMES))
    commit()
    if deletes:
        store.delete([1])
        commit()
    if closed:
        store.close()
    copy(path, there)
    store.close()
    found = {str(f.relative_to(there)): f for f in there.rglob("*") if f.is_file()}
    ends = {f"chunk/{chunk.number}.zr": chunk.end for chunk in read_store(there).unfull}
    ends |= {f"{name}.offset": 5 * ENTRY for name in NAMES} | {f"{name}.sums": 4 for name in NAMES}
    # The room to grow into is nothing to look at.
    files = {name: _beginning(file, ends.get(name, 1 << 16)) for name, file in found.items()}
    if "journal.zr" in files:
        commits = parse_journal(files["journal.zr"], len(NAMES))
        size = sum(len(build_commit(commit)) for commit in commits)
        files["journal.zr"] = files["journal.zr"][: size + 16]
    shutil.rmtree(path)
    shutil.rmtree(there)
    return Sample(files, states)


def _beginning(file: Path, size: int) -> bytes:
    with file.open("rb") as opened:
        return opened.read(size)


def put(path: Path, files: Files) -> Path:
    """A folder with these files and nothing else."""
    if path.exists():
        shutil.rmtree(path)
    (path / "chunk").mkdir(parents=True)
    for name, data in files.items():
        (path / name).write_bytes(data)
    return path


def look(path: Path, mode: Any = "r") -> list[Record] | None:
    """What is in the store; None for an error that names a file of it."""
    try:
        with RecordReader.open(path) if mode == "r" else RecordWriter(path, mode="a") as store:
            return contents(store)
    except FormatError as error:
        named = [error.path or "", str(error)]
    except (StepwellError, FileNotFoundError) as error:
        named = [str(error)]
    assert all(str(path) in text for text in named), named
    return None


def before_the_journal(sample: Sample) -> Files:
    """Tables as they were at the last checkpoint."""
    files = dict(sample.files)
    del files["writer.lock"]  # it says nothing once the machine has restarted
    length = json.loads(files["meta.json"])["peak"]
    chunk = files["chunk/0.zr"]
    assert length == 3
    for position, name in enumerate(NAMES):
        entries: list[bytes] = []
        for offset, row, field, _, payload in frames(chunk, len(chunk)):
            if field == position and len(entries) == row < length:
                entries.append(struct.pack("<QII", offset, 0, len(payload)))
        files[f"{name}.offset"] = b"".join(entries)
        files[f"{name}.sums"] = table_sums(files[f"{name}.offset"])
    return files
