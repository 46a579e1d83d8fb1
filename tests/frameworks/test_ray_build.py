"""Conversions as Ray tasks, and Ray Data: the answers of `ray_build_program`."""

from typing import Any

import pytest

from tests import SANITIZED
from tests.frameworks.conftest import Launch
from tests.frameworks.notes import Seen
from tests.frameworks.ray_sources import ROWS
from tests.test_cli import stepwell

pytestmark = [
    pytest.mark.skipif(SANITIZED, reason="Ray's processes take minutes to begin"),
    pytest.mark.xdist_group("ray"),
]

PIECE = 16_384
PIECES = list(range(0, ROWS, PIECE))


@pytest.fixture
def seen(launch: Launch) -> Seen:
    return launch("ray_build_program")


def answer(seen: Seen, name: str) -> Any:
    (found,) = seen(name, ranks=1)
    assert not isinstance(found, dict) or {*found} != {"error"}, found
    return found


def check_same(found: dict[str, Any]) -> None:
    one, tasks = found["reports"]
    assert one == tasks
    assert one[0] > 0
    assert (found["problems"], found["left"]) == ([], [])


@pytest.mark.parametrize("name", ["pack", "pack zstd-dict", "shards", "shards of steps"])
def test_files_are_those_of_one_process(seen: Seen, name: str) -> None:
    found = answer(seen, name)
    check_same(found)
    assert found["files"] == []


@pytest.mark.parametrize("name", ["steps", "steps in files", "steps of rows"])
def test_step_datasets_are_those_of_one_process(seen: Seen, name: str) -> None:
    """All files but the database, which has a random id, and `created` in the manifest."""
    found = answer(seen, name)
    check_same(found)
    assert found["files"] == []
    runs, manifests = found["runs"], found["manifest"]
    assert runs[0] == runs[1]
    assert len(runs[0]) == found["reports"][0][1]
    assert manifests[0] == manifests[1]
    assert sum(run[2] for run in runs[0]) == manifests[0]["rows"]


@pytest.mark.parametrize(
    ("name", "chunks"), [("records", 31), ("records of steps", 0), ("zstd-dict", 4), ("parquet", 4)]
)
def test_record_stores_have_the_same_records(seen: Seen, name: str, chunks: int) -> None:
    found = answer(seen, name)
    check_same(found)
    assert (found["rows"], found["chunks"]) == (True, chunks)


def test_bad_runs_end_it_or_are_left_out(seen: Seen) -> None:
    for name in ("bad run", "bad run of a pack"):
        assert answer(seen, name).startswith("FormatError: final board: truncated")
    for name in ("skipped", "skipped in a pack"):
        found = answer(seen, name)
        assert found["files"] == []
        (one,), (tasks,) = (report[2] for report in found["reports"])
        assert one[0].endswith("000050.a2run2")
        assert tasks[0].endswith("000050.a2run2")
        assert [report[1] for report in found["reports"]] == [129, 129]


def test_a_killed_worker_costs_its_piece(seen: Seen) -> None:
    found = answer(seen, "killed worker")
    assert found["read"] == sorted([*PIECES, ROWS // 2])  # that one twice
    assert (found["rows"], found["files"]) == (ROWS, [])


def test_an_error_leaves_nothing_and_the_same_call_goes_on(seen: Seen) -> None:
    found = answer(seen, "continued")
    assert found["error"] == f"ValueError: row {ROWS - 1} is not to be had"
    assert not found["there"]
    assert "continued-steps.part is of a different conversion" in found["other"]
    kept, damaged = found["kept"], found["kept"][0]
    assert found["again"] == sorted({*PIECES} - {*kept} | {damaged})
    assert found["resumed"] == PIECE * (len(kept) - 1)
    assert found["files"] == []


def test_a_killed_head_is_an_error_and_the_same_call_goes_on(seen: Seen) -> None:
    found = answer(seen, "killed head")
    assert found["error"].startswith("ConnectionError: Ray's head at ")
    assert found["error"].endswith("head-steps.part keeps what is done; the same call goes on")
    assert not found["there"]
    assert found["kept"]
    assert found["again"] == sorted({*PIECES} - {*found["kept"]})
    assert (found["resumed"], found["files"]) == (PIECE * len(found["kept"]), [])


def test_the_command_works_at_an_address(seen: Seen) -> None:
    found = answer(seen, "command")
    assert (found["code"], found["same"]) == (0, True)
    facts = found["facts"]
    assert (facts["rows"], facts["to"], facts["resumed_at"]) == (30_000, "steps", 0)


def test_what_is_refused(seen: Seen) -> None:
    assert answer(seen, "exists").endswith("right exists; force=True (--force) replaces it")
    assert answer(seen, "forced") == 30_000
    assert "which can be built in pieces, got npz" in answer(seen, "npz")
    assert "got rows in memory or a view of some; save them" in answer(seen, "memory")
    assert "this process has joined Ray at" in answer(seen, "elsewhere")
    assert answer(seen, "nobody").startswith(
        "ConnectionError: address: nobody answers at 127.0.0.1:1"
    )


def test_read_is_a_dataset_of_the_same_rows(seen: Seen) -> None:
    found = answer(seen, "reading")
    assert (found["blocks"], found["same"], found["shape"]) == (5, True, [4])
    assert found["estimate"] == found["nbytes"]
    assert found["chosen"] == [["move"], found["expected"]]
    assert 0 < found["expected"] < found["rows"]


def test_a_store_that_changed_is_not_read(seen: Seen) -> None:
    text = answer(seen, "changed")
    assert text.startswith("RayTaskError(StateError)")
    assert "changing.npy has changed since the dataset was made" in text


def test_write_is_a_store_of_the_same_rows(seen: Seen) -> None:
    found = answer(seen, "writing")
    assert found["report"] == ["ray", *found["expected"]]
    assert all(found[name] for name in ("rows", "moves", "texts", "lists"))
    assert found["left"] == []


def test_the_example(seen: Seen) -> None:
    first, *moves = answer(seen, "example")
    assert first.startswith("built ")
    assert first.endswith(" rows of 64 games")
    counts = [int(line.split()[1]) for line in moves]
    assert [line.split()[0] for line in moves] == ["up", "down", "left", "right"]
    assert sum(counts) == int(first.split()[1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("b --ray local --append", "expected a new store built in pieces, got --append"),
        ("b --ray local --fps 3", "expected a new store built in pieces, got --fps"),
        ("b --workers 2", "--workers: expected --ray beside it"),
        ("- --to npz --ray local", "expected a path to build, got -"),
    ],
)
def test_options_that_pieces_cannot_have(options: str, message: str) -> None:
    done = stepwell("convert", "a", *options.split())
    assert done.returncode == 2
    assert message in done.stderr
