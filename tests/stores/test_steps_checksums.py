"""The manifest of a step dataset: damage to it, and damage that it finds."""

import json
from pathlib import Path
from typing import Any

import pytest

from stepwell import ChecksumError, SchemaError, StepReader, StepWriter, VersionError
from stepwell.files.npy import header_bytes
from stepwell.stores.steps import RunColumn, manifest, verify
from tests.contract import assert_batch
from tests.steps import LENGTHS, STEP, build, built, fields, of_before, rows_of_all, tampered

ROWS = rows_of_all()
HEADER = len(header_bytes(STEP, 0))


@pytest.fixture
def path(quick_path: Path) -> Path:
    return built(quick_path / "a")


@pytest.mark.parametrize(
    "change",
    [
        *(b"", b"{", b"\xff", b"[" * 100_000, b'{"format": "stepwell-steps"}'),
        *({"rows": rows} for rows in (-1, 10**30, 70.0, True, "70")),
        *({"blocks": crcs} for crcs in ([], ["x"], [5], ["100000000"], ["-1"], ["0", "0"], None)),
        *({"block_bytes": 5}, {"version": 2}),
    ],
    ids=lambda change: str(change)[:40],
)
def test_a_manifest_that_is_wrong(path: Path, change: Any) -> None:
    """Readers do not need it, verify names it, a writer makes it again."""
    text = json.loads((path / "manifest.json").read_text())
    data = change if isinstance(change, bytes) else json.dumps({**text, **change}).encode()
    (path / "manifest.json").write_bytes(data)
    dataset = StepReader.open(path)
    assert_batch(dataset[:], fields(ROWS))
    (problem,) = dataset.verify().problems
    assert isinstance(problem, VersionError) == (change == {"version": 2})
    assert problem.path == str(path / "manifest.json")
    build(path, [*LENGTHS, 4])
    dataset = StepReader.open(path)
    assert_batch(dataset[:], fields(rows_of_all([*LENGTHS, 4])))
    assert dataset.verify().ok


def test_no_manifest_or_another_program_s(path: Path) -> None:
    for content in (None, b'{"total_steps": 70}', b"[1, 2]"):
        (path / "manifest.json").unlink()
        if content:
            (path / "manifest.json").write_bytes(content)
        assert StepReader.open(path).verify().ok
        StepWriter(path, mode="a").close()
        assert json.loads((path / "manifest.json").read_text())["rows"] == len(ROWS)


@pytest.mark.parametrize("length", [4, 0])
def test_a_manifest_that_is_behind(path: Path, length: int) -> None:
    """A writer was killed inside a commit; of an empty run, the rows say nothing."""
    before = (path / "manifest.json").read_bytes()
    build(path, [*LENGTHS, length])
    (path / "manifest.json").write_bytes(before)
    assert StepReader.open(path).verify().ok
    StepWriter(path, mode="a").close()
    text = json.loads((path / "manifest.json").read_text())
    assert (text["rows"], text["runs"]) == (len(ROWS) + length, len(LENGTHS) + 1)
    assert StepReader.open(path).verify().ok


@pytest.mark.parametrize("shard_rows", [None, 9])
def test_a_flipped_bit_in_every_block(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch, shard_rows: int | None
) -> None:
    """With blocks of 100 bytes, which end inside rows of 22 and inside shards."""
    for module in (manifest, verify):
        monkeypatch.setattr(module, "BLOCK_BYTES", 100)
    path = quick_path / "b"
    for count in (1, 4, len(LENGTHS)):
        build(path, LENGTHS[:count], shard_rows=shard_rows)
        with StepWriter(path, mode="a") as writer:  # checksums go back to the last commit
            writer.append(rows_of_all(), max_score=0)
            writer._flush()
            writer.rollback()
    of_before(path)
    files = sorted(path.rglob("*.npy"))
    stored = [file.read_bytes() for file in files]
    size = STEP.itemsize * (shard_rows or len(ROWS))
    assert StepReader.open(path, memory="map").verify().ok
    for at in range(0, ROWS.nbytes, 17):
        number, inside = divmod(at, size)
        damaged = bytearray(stored[number])
        damaged[HEADER + inside] ^= 1 << at % 8
        files[number].write_bytes(damaged)
        problems = StepReader.open(path, memory="map").verify().problems
        files[number].write_bytes(stored[number])
        (wrong,) = [str(p) for p in problems if isinstance(p, ChecksumError)]
        first, last = at // 100 * 100 // 22, min((at // 100 * 100 + 99) // 22, len(ROWS) - 1)
        assert wrong.startswith(f"block {at // 100} (rows {first} to {last}): expected CRC32C ")


@pytest.mark.parametrize("memory", ["ram", "map", "shared"])
def test_damage_since_it_was_opened(path: Path, memory: Any) -> None:
    """The files are checked, not what was read of them."""
    dataset = StepReader.open(path, memory=memory)
    with (path / "steps.npy").open("r+b") as file:
        file.seek(HEADER)
        file.write(b"changed!")
    (problem,) = dataset.verify().problems
    assert type(problem) is ChecksumError
    assert dataset.verify(quick=True).ok  # which leaves rows out, and says so


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE runs SET score = 9 WHERE id = 1",
        "UPDATE runs SET name = 'a' WHERE id = 1",
        "UPDATE runs SET name = NULL WHERE id = 1",
        "UPDATE runs SET seen = x'61' WHERE id = 1",
        "DELETE FROM run_checksums WHERE id = 1",
        "UPDATE run_checksums SET checksum = 7 WHERE id = 1",
    ],
)
def test_a_run_column_that_was_changed(quick_path: Path, change: str) -> None:
    path = quick_path / "a"
    name = RunColumn(str, optional=True)
    columns: dict[str, type | RunColumn] = {"score": float, "name": name, "seen": bytes}
    with StepWriter(path, {"x": "<i8"}, columns=columns) as writer:
        for number in range(3):
            writer.append({"x": [number]}, score=number, name="b\0c", seen=b"a\0")
    with StepReader.open(path) as reader:
        assert reader.verify().ok
    with tampered(path) as database:
        assert database.execute(change).rowcount
    with StepReader.open(path) as reader:
        (problem,) = reader.verify().problems
    assert isinstance(problem, ChecksumError)
    assert "run 1: expected a checksum" in str(problem)


def test_columns_of_another_programs_making(quick_path: Path) -> None:
    """Types that change what they are given, and columns that came later."""
    path = quick_path / "a"
    with StepWriter(path, {"x": "<i8"}) as writer:
        writer.append({"x": [1]})
    with tampered(path) as database:
        for kind in ("NUMERIC", "DATETIME", "VARCHAR(20)", "JSON"):
            database.execute(f"ALTER TABLE runs ADD COLUMN {kind[:4]} {kind}")
    with StepWriter(path, mode="a") as writer:
        writer.append({"x": [2]}, NUME="12", DATE="2020", VARC=5, JSON=2.0)
    with StepReader.open(path) as reader:
        assert reader.verify().ok
        assert reader.runs["NUME"].tolist() == [None, 12]


def test_a_whole_number_that_a_float_column_cannot_hold(quick_path: Path) -> None:
    with StepWriter(quick_path / "a", {"x": "<i8"}, columns={"t": float}) as writer:
        with pytest.raises(SchemaError, match="t: 9007199254740993 does not fit a float"):
            writer.append({"x": [1]}, t=2**53 + 1)
        writer.append({"x": [1]}, t=2**53)
    with StepReader.open(quick_path / "a") as reader:
        assert reader.verify().ok


def test_runs_from_before_there_were_checksums_of_them(path: Path) -> None:
    with tampered(path) as database:
        database.execute("DROP TABLE run_checksums")
    runs = len(LENGTHS)
    for more in range(2):
        with StepReader.open(path) as reader:
            report = reader.verify()
        assert report.ok
        assert f"the columns of {runs} runs, which were written without" in str(report.unchecked)
        assert f"the columns of {more} runs against checksums" in report.checked
        build(path, [*LENGTHS, *[3] * (more + 1)])
