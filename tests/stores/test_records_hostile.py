"""Damaged and contradictory record stores: exactly the last commit, or an error that says where."""

from pathlib import Path
from random import Random
from typing import Any

import pytest
import zstandard

from stepwell import RecordReader, RecordWriter
from tests import SANITIZED
from tests.damaged_records import NAMES, Sample, before_the_journal, look, make, put
from tests.records import CODECS, batch, copy, fields
from tests.reference.records import (
    Field,
    Record,
    Store,
    build_commit,
    parse_journal,
    read_store,
    write_store,
)


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Sample]:
    folder = tmp_path_factory.mktemp("samples")
    made = {f"{c}, closed": make(folder, c, deletes=False, closed=True) for c in CODECS}
    made["raw, deleted"] = make(folder, "raw", deletes=True, closed=True)
    made["raw, in use"] = make(folder, "raw", deletes=True, closed=False)
    made["zstd, in use"] = make(folder, "zstd", deletes=True, closed=False)
    lost = dict(made["raw, in use"].files)
    del lost["writer.lock"]  # what the machine knew before it was restarted
    made["raw, restarted"] = Sample(lost, made["raw, in use"].states)
    return made


EACH = pytest.mark.parametrize(
    "name",
    [*(f"{c}, closed" for c in CODECS), "raw, deleted", "raw, in use", "raw, restarted"],
)


def damaged(name: str, sample: Sample) -> list[tuple[str, bytes]]:
    """The files to damage: with a codec other than raw, those that it changes."""
    # After a restart, nothing tells a last commit that is damaged from one that was never written
    # to its end; test_a_journal_cut_anywhere is about those.
    spared = "journal.zr" if "restarted" in name else ""
    return [
        (file, data)
        for file, data in sample.files.items()
        if file != spared and (name.startswith("raw") or file.startswith("chunk"))
    ]


@EACH
def test_undamaged(quick_path: Path, samples: dict[str, Sample], name: str) -> None:
    sample = samples[name]
    for mode in ("r", "a", "r"):
        path = put(quick_path / "a", sample.files)
        assert look(path, mode) == sample.states[-1]
        assert read_store(path).records == sample.states[-1]
        with RecordReader.open(path) as store:
            assert store.verify().ok
    commits = parse_journal(sample.files.get("journal.zr", b""), len(NAMES))
    assert len(commits) == {"closed": 0, "deleted": 0}.get(name.split(", ")[-1], 2)


def become(path: Path, sample: Sample, file: str, data: bytes, mode: str) -> str | None:
    """What is wrong with what a store becomes by another content of a file."""
    if mode == "a" or not path.exists():
        put(path, sample.files)
    _replace(path / file, data)
    try:
        got = look(path, mode)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:  # a reader has changed nothing else
        put(path, sample.files) if mode == "a" else _replace(path / file, sample.files[file])
    # A commit in the journal that is not whole is one that has not been.
    right = sample.states if file == "journal.zr" else sample.states[-1:]
    return None if got is None or got in right else f"{len(got)} records that never were"


def _replace(file: Path, data: bytes) -> None:
    file.unlink()  # what is mapped stays as it was
    file.write_bytes(data)


@EACH
def test_every_byte_changed(quick_path: Path, samples: dict[str, Sample], name: str) -> None:
    sample, random = samples[name], Random(name)
    wrong = []
    for file, data in damaged(name, sample):
        for at in range(0, len(data), 7 if SANITIZED else 1):
            for mode in "ra" if at % 8 == 0 else "r":
                broken = bytearray(data)
                broken[at] ^= 1 << random.randrange(8)
                what = become(quick_path / "a", sample, file, bytes(broken), mode)
                if what is not None:
                    wrong.append(f"{file} {at}, {data[at]} -> {broken[at]}, {mode}: {what}")
    assert wrong[:5] == []


@EACH
def test_every_truncation(quick_path: Path, samples: dict[str, Sample], name: str) -> None:
    sample = samples[name]
    wrong = []
    for file, data in damaged(name, sample):
        for size in range(0, len(data), 7 if SANITIZED else 1):
            for mode in "ra" if size % 8 == 0 else "r":
                what = become(quick_path / "a", sample, file, data[:size], mode)
                if what is not None:
                    wrong.append(f"{file} cut to {size}, {mode}: {what}")
    assert wrong[:5] == []


def test_a_table_that_is_damaged_before_a_restart(quick_path: Path) -> None:
    """One bit makes the entry of record 0 that of record 1, and the block is summed anew: only
    the number in the frame tells, and `verify` looks at it."""
    path, there = quick_path / "a", quick_path / "b"
    with RecordWriter(path, fields("raw", ["n"])) as store:
        store.append(batch([0, 1, 2], ["n"]))
    with RecordWriter(path, mode="a") as store:
        store.append(batch([3], ["n"]))
        store.commit()
        copy(path, there)
    (there / "writer.lock").unlink()
    with (there / "n.offset").open("r+b") as file:
        assert file.read(1) == b"\x18"
        file.seek(0)
        file.write(b"\x38")
    assert look(there) != read_store(path).records
    (problem, *_) = RecordReader.open(there).verify().problems
    assert "the frame is that of record 1" in str(problem)


def test_a_journal_cut_anywhere(quick_path: Path, samples: dict[str, Sample]) -> None:
    """Power is lost while a commit is written: the tables do not have it yet."""
    for name in ("raw, in use", "zstd, in use"):
        sample = samples[name]
        before = before_the_journal(sample)
        journal = sample.files["journal.zr"]
        ends = [0]
        for commit in parse_journal(journal, len(NAMES)):
            ends.append(ends[-1] + len(build_commit(commit)))
        assert len(ends) == 3
        random = Random(1)
        for size in range(ends[-1] + 1):
            noise = random.randbytes(size % 3 * 20)
            path = put(quick_path / "a", {**before, "journal.zr": journal[:size] + noise})
            kept = sample.states[1 + sum(end <= size for end in ends[1:])]
            assert look(path, "r") == kept
            assert look(path, "a") == kept
            assert look(path, "r") == kept
            assert read_store(path).records == kept


def test_a_dictionary_that_is_damaged(quick_path: Path) -> None:
    samples: list[Any] = [b"known by heart, %d and %d of it" % (i % 3, i) for i in range(500)]
    known = zstandard.train_dictionary(512, samples).as_bytes()
    records: list[Record] = [{"text": samples[i] * 2} for i in range(4)]
    path = quick_path / "a"
    store = Store(
        [Field("text", "str", [None], "zstd-dict")], records, dictionaries={"text": known}
    )
    write_store(path, store)
    assert look(path) == records
    data = (path / "text.dict").read_bytes()
    for at in range(len(data)):
        broken = bytearray(data)
        broken[at] ^= 1 << at % 8
        for content in (bytes(broken), data[:at]):
            (path / "text.dict").write_bytes(content)
            assert look(path, "a" if at % 9 == 0 else "r") is None
    (path / "text.dict").unlink()
    assert look(path) is None
