"""Packs with broken runs: the first is named, by any number of threads, and none is skipped."""

import pickle
from pathlib import Path
from typing import Any

import pytest

from stepwell import ChecksumError, FormatError, Loader, PackReader
from tests import packs
from tests.packs import changed
from tests.reference import pack as reference, runs
from tests.runs import RUN_V2
from tests.stores.test_pack_reader import PAYLOADS, RUNS, V2, WORKERS, as_v2

# Broken runs.


@pytest.fixture(params=[False, True], ids=["plain", "zstd"])
def broken(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A pack with damage of several sorts in the runs 66, 70 and 90, the worst in the last."""
    path = packs.write(
        tmp_path / "p.a2pack",
        PAYLOADS,
        align=1,
        compress="zstd" if request.param else "none",
    )
    data = bytearray(path.read_bytes())
    offsets = reference.read_pack(bytes(data)).offsets
    ends = [*offsets[1:], offsets[-1]]
    data[ends[66] - 1] ^= 0x10
    data[offsets[70]] ^= 0xFF
    data[offsets[90] : offsets[90] + 10] = b"\xff" * 10
    path.write_bytes(data)
    return path


@WORKERS
@pytest.mark.parametrize("checksums", [True, False])
def test_the_first_broken_run_is_named(
    broken: Path, workers: int | None, checksums: bool, tmp_path: Path
) -> None:
    packed = PackReader.open(broken, checksums=checksums)
    first = 66 if checksums else 70
    if not checksums:  # without the sum nobody can tell whether the other two are damaged
        for i in (70, 90):
            with pytest.raises(FormatError, match=f"entry {i}: "):
                packed.decode(i)
    rows = [*range(60, 66), *range(first, 100)]
    for call in (
        lambda: packed.decode_batch(rows, workers=workers),
        lambda: packed.take(rows),
        lambda: list(packed.iter_indices(rows)),
        lambda: list(packed.select(rows).take(range(len(rows)))),
    ):
        with pytest.raises(FormatError, match=f"entry {first}: ") as info:
            call()
        assert info.value.path == str(broken)
        assert info.value.offset is not None
    if checksums:
        assert isinstance(info.value, ChecksumError)
        with pytest.raises(ChecksumError, match="entry 66: "):
            packed.slices(range(60, 100))
        with pytest.raises(ChecksumError, match="entry 66: "):
            packed.to_jsonl(tmp_path / "out", workers=workers or 3)


@pytest.mark.parametrize("checksums", [True, False])
def test_a_file_that_is_read_is_broken_in_the_same_places(broken: Path, checksums: bool) -> None:
    both = [PackReader.open(broken, checksums=checksums, memory=m) for m in ("map", "read")]

    def reported(call: Any, rows: list[int]) -> list[str]:
        with pytest.raises(FormatError) as caught:
            call(rows)
        return [type(caught.value).__name__, str(caught.value)]

    for i in (66, 70, 90) if checksums else (70, 90):
        for rows in ([i], [*range(60, 66), i, 99]):
            mapped, read = (reported(p.take, rows) for p in both)
            assert mapped == read
            if checksums:
                mapped, read = (reported(p.slices, rows) for p in both)
                assert mapped == read
    mapped, read = ([str(problem) for problem in p.verify().problems] for p in both)
    assert mapped == read
    assert len(read) > 3


def test_an_iteration_never_ends_early(broken: Path) -> None:
    packed = PackReader.open(broken)
    for loop in (iter(packed), packed.iter_batches(5), packed.iter_batches(150)):
        seen: list[Any] = []
        with pytest.raises(ChecksumError, match="entry 66: "):
            seen.extend(loop)
        assert sum(len(item) if isinstance(item, list) else 1 for item in seen) <= 66
    assert as_v2(packed.decode_batch(range(66))) == V2[:66]
    assert len(list(packed.iter_indices([*range(66), *range(91, 150)]))) == 66 + 59


def test_verify_names_every_broken_run(broken: Path) -> None:
    for checksums in (True, False):
        problems = PackReader.open(broken, checksums=checksums).verify().problems
        named = [str(problem).split(":")[0] for problem in problems]
        assert named[:3] == ["entry 66", "entry 70", "entry 90"]
        assert set(named[3:]) == {"data"}
        assert all(problem.path == str(broken) for problem in problems)


def test_the_loader_can_leave_broken_runs_out(broken: Path) -> None:
    loader = Loader(PackReader.open(broken), 16, on_corrupt="skip")
    scores = [score for batch in loader for score in batch["max_score"].tolist()]
    wanted = [run.meta.max_score for i, run in enumerate(RUNS) if i not in (66, 70, 90)]
    assert sorted(scores) == sorted(wanted)
    assert sorted(row for row, _ in loader.corrupt) == [66, 70, 90]
    with pytest.raises(ChecksumError):
        list(Loader(PackReader.open(broken), 16))


def test_without_checksums_bytes_are_as_they_are(tmp_path: Path) -> None:
    data = packs.write(tmp_path / "p", [RUN_V2], align=64).read_bytes()
    path = tmp_path / "q"
    path.write_bytes(data.replace(RUN_V2, RUN_V2[:-1] + b"\x23"))
    with pytest.raises(ChecksumError, match="entry 0"):
        PackReader.open(path).decode(0)
    packed = PackReader.open(path, checksums=False)
    assert packed.decode(0).final_board == runs.decode(RUN_V2).final_board + (1 << 56)
    assert bytes(packed.slice(0)) == RUN_V2[:-1] + b"\x23"
    assert pickle.loads(pickle.dumps(packed)).decode(0) == packed.decode(0)
    path.write_bytes(changed(path.read_bytes(), 44, bytes(4)))  # no sum was recorded
    assert PackReader.open(path).decode(0) == packed.decode(0)
