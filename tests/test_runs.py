"""`Run`: both encodings against a second reading of the page, what makes a run, and files."""

import copy
import os
import pickle
import struct
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from stepwell import FormatError, SchemaError, StepwellError, game2048
from stepwell.game2048 import RunMeta
from tests.reference import runs
from tests.reference.runs import (
    Run,
    encode_v1,
    encode_v2,
)
from tests.runs import RUN_V1, RUN_V2, any_runs, assert_run, made_of, random_run

# The page's files.


def test_the_v1_file_of_the_page() -> None:
    run = game2048.Run.from_bytes(RUN_V1)
    assert_run(run, runs.decode(RUN_V1))
    assert run.to_bytes(1) == RUN_V1
    assert run.meta == RunMeta(
        2, 1_700_000_000, np.float32(12.34).item(), 12345, 2048, "test-engine"
    )


def test_the_v2_file_of_the_page() -> None:
    run = game2048.Run.from_bytes(RUN_V2)
    assert run.meta == RunMeta(3, 1_700_000_000, 5.25, 4096, 512, "test-engine-v2")
    assert run.boards.tolist() == [0x1 << 60, 0x11 << 56, 0x111 << 52]
    assert run.moves.tolist() == [0, 3, 1]
    assert run.ev_legal.tolist() == [11, 13, 0]
    values = [[0.8, 0.2, 0, 0.5], [0.9, 0, 0.1, 0], [0, 0, 0, 0]]
    assert np.array_equal(run.ev_values, np.array(values, np.float32))
    assert run.has_branches.tolist() == [True, True, False]
    assert run.final_board == 0x2220000000000000
    assert run.to_bytes() == run.to_bytes(2) == RUN_V2
    assert_run(run, runs.decode(RUN_V2))


@pytest.mark.parametrize("name", ["run-v1", "run-v2", "pack-v1", "pack-v2"])
def test_the_breakdown_is_the_file(name: str) -> None:
    at, page = 0, f"{name.partition('-')[0]}.md".replace("run.", "runs.")
    whole = runs.file_of(page, name)
    for offset, part in runs.breakdown_of(page, name):
        assert (offset, part) == (at, whole[at : at + len(part)])
        at += len(part)
    assert at == len(whole)


def test_crc() -> None:
    assert runs.crc32c(b"123456789") == 0xE3069283
    assert runs.crc32c(RUN_V1) == 0x48674BC7


# Any run.


@given(any_runs(nan=True))
def test_v2_is_read_and_written(run: Run) -> None:
    data = encode_v2(run)
    assert_run(game2048.Run.from_bytes(data), runs.decode_v2(data))
    assert game2048.Run.from_bytes(data).to_bytes() == data
    assert made_of(run).to_bytes() == data


@given(any_runs(v1=True, nan=True))
def test_v1_is_read_and_written(run: Run) -> None:
    data = encode_v1(run)
    got = game2048.Run.from_bytes(data)
    assert_run(got, runs.decode_v1(data))
    assert got.to_bytes(1) == made_of(run).to_bytes(1) == data


@given(any_runs())
def test_v1_leaves_out_branches(run: Run) -> None:
    assert made_of(run).to_bytes(1) == encode_v1(run)
    back = game2048.Run.from_bytes(made_of(run).to_bytes(1))
    assert not back.has_branches.any()
    assert back.meta.engine == (run.meta.engine or "")


def test_long_runs() -> None:
    random = Random(1)
    for steps in (1, 31, 32, 33, 4000):
        run = random_run(random, most_steps=0)
        run.steps = [step for _ in range(steps) for step in random_run(random).steps][:steps]
        run.meta.steps = len(run.steps)
        got = game2048.Run.from_bytes(encode_v2(run))
        assert_run(got, run)
        assert got.to_bytes() == encode_v2(run)
        assert got.to_bytes(1) == encode_v1(run)


@pytest.mark.parametrize("bits", [0x7FC00000, 0xFFC12345, 0x7F800001, 0xFFBFFFFF, 0x80000000])
def test_floats_survive_bit_for_bit(bits: int) -> None:
    value = struct.pack("<I", bits)
    data = RUN_V2[:6] + value + RUN_V2[10:43] + value + RUN_V2[47:]
    run = game2048.Run.from_bytes(data)
    assert run.to_bytes() == data
    assert run.copy().to_bytes() == pickle.loads(pickle.dumps(run)).to_bytes() == data
    assert run.ev_values[0, 0].tobytes() == value
    assert run.to_bytes(1)[18:22] == value
    assert run == run.copy()
    again = game2048.Run(run.boards, run.moves, 0, ev_values=run.ev_values, ev_legal=run.ev_legal)
    assert again.ev_values.tobytes() == run.ev_values.tobytes()


@pytest.mark.parametrize("payload", ["text", None, 5, [1, 2]], ids=repr)
def test_payloads_are_bytes(payload: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        game2048.Run.from_bytes(payload)


def test_payloads_may_be_any_buffer() -> None:
    want = game2048.Run.from_bytes(RUN_V2)
    padded = b"xyz" + RUN_V2 + b"abc"
    for payload in (
        bytearray(RUN_V2),
        memoryview(padded)[3:-3],
        np.frombuffer(padded, np.uint8)[3:-3],
    ):
        assert game2048.Run.from_bytes(payload) == want


# The constructor.


def test_score_and_highest_tile_are_of_the_final_board() -> None:
    for board in (0, 1, 0x2300, 0x1B00, 2**64 - 1, 0xF000000000000001):
        meta = game2048.Run([], [], board).meta
        assert meta == RunMeta(0, 0, 0.0, runs.score(board), runs.highest_tile(board), None)
    given = game2048.Run([], [], 0x2300, max_score=7, highest_tile=9).meta
    assert (given.max_score, given.highest_tile) == (7, 9)


def test_what_makes_a_run() -> None:
    top = 0xF000000000000001
    want = game2048.Run(np.array([1, top], np.uint64), np.array([0, 3], np.uint8), 5)
    many: list[tuple[Any, Any, Any]] = [
        ([1, top], [0, 3], 5),  # NumPy makes floats of these numbers
        ((1, top), (0, 3), np.uint64(5)),
        (np.array([1, top], object), np.array([0, 3], np.int64), np.int8(5)),
        (np.array([1, 0, top], np.uint64)[::2], np.array([3, 0], ">i8")[::-1], 5),
        (np.array([1, top], ">u8"), [np.uint8(0), np.uint8(3)], 5),
    ]
    for boards, moves, final in many:
        assert game2048.Run(boards, moves, final) == want
    numbers: list[Any] = [2, np.uint64(2), np.int16(2)]
    for start in numbers:
        assert game2048.Run([], [], 0, start_unix_s=start).meta.start_unix_s == 2
    for elapsed in [*numbers, 2.0, np.float32(2), np.float64(2)]:
        assert game2048.Run([], [], 0, elapsed_s=elapsed).meta.elapsed_s == 2.0


def test_branches_on_some_steps() -> None:
    values = np.arange(12, dtype=np.float64).reshape(3, 4)
    run = game2048.Run(
        [1, 2, 3],
        [0, 1, 2],
        4,
        ev_values=values,
        ev_legal=[15, 5, 15],
        has_branches=[True, True, False],
    )
    assert run.ev_legal.tolist() == [15, 5, 0]
    assert run.ev_values.tolist() == [[0, 1, 2, 3], [4, 0, 6, 0], [0, 0, 0, 0]]
    assert run.has_branches.tolist() == [True, True, False]
    assert not game2048.Run([1], [0], 4).has_branches.any()
    assert game2048.Run([1], [0], 4, ev_values=[[0.0] * 4], ev_legal=[0]).has_branches.all()


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        *(({name: [-1, 0]}, ValueError, f"{name}: expected 0 to") for name in ("boards", "moves")),
        *(
            ({name: -1}, ValueError, f"{name}: expected 0 to")
            for name in ("final_board", "start_unix_s", "max_score", "highest_tile")
        ),
        *(
            ({name: 1.5}, TypeError, f"{name}: expected whole numbers")
            for name in ("final_board", "start_unix_s", "max_score", "highest_tile")
        ),
        ({"boards": [1, 2, 3]}, SchemaError, "moves: expected shape"),
        ({"boards": [[1, 2]]}, SchemaError, "boards: expected shape"),
        ({"boards": 5}, TypeError, "unsized"),
        ({"boards": [1, 2**64]}, ValueError, "boards: expected 0 to"),
        ({"boards": np.array([1, 2.5], object)}, TypeError, "boards: expected whole numbers"),
        ({"moves": [0, 4]}, ValueError, "move 1: expected 0 to 3, got 4"),
        ({"moves": [0, 256]}, ValueError, "moves: expected 0 to 255, got 256"),
        ({"ev_values": np.zeros((2, 4))}, ValueError, "both ev_values and ev_legal"),
        ({"ev_legal": [1, 1]}, ValueError, "both ev_values and ev_legal"),
        ({"ev_values": np.zeros((2, 3)), "ev_legal": [1, 1]}, SchemaError, "ev_values"),
        ({"ev_values": np.zeros((2, 4), "c8"), "ev_legal": [1, 1]}, SchemaError, "ev_values"),
        ({"ev_values": np.zeros((2, 4)), "ev_legal": [1, 16]}, ValueError, "0 to 15, got 16"),
        ({"ev_values": np.zeros((2, 4)), "ev_legal": [1]}, SchemaError, "ev_legal"),
        ({"has_branches": [1, 0]}, SchemaError, "has_branches: expected True or False"),
        ({"has_branches": [True]}, SchemaError, "has_branches: expected shape"),
        ({"highest_tile": 2**32}, ValueError, "highest_tile"),
        ({"elapsed_s": "1"}, SchemaError, "elapsed_s: expected numbers"),
        ({"elapsed_s": [1.0]}, SchemaError, "elapsed_s: expected shape"),
        ({"engine": "\ud800"}, UnicodeEncodeError, "surrogates"),
        ({"engine": b"name"}, TypeError, "engine: expected a string"),
    ],
    ids=repr,
)
def test_what_makes_no_run(change: dict[str, Any], error: Any, match: str) -> None:
    good: dict[str, Any] = {"boards": [1, 2], "moves": [0, 1], "final_board": 3}
    game2048.Run(**good)
    with pytest.raises(error, match=match):
        game2048.Run(**{**good, **change})


def test_long_engines() -> None:
    run = game2048.Run([], [], 0, engine="x" * 65_535)
    assert game2048.Run.from_bytes(run.to_bytes(1)).meta.engine == "x" * 65_535
    run = game2048.Run([], [], 0, engine="\u00e9" * 40_000)
    assert game2048.Run.from_bytes(run.to_bytes(2)) == run
    with pytest.raises(ValueError, match="65,535"):
        run.to_bytes(1)
    with pytest.raises(ValueError, match="1 or 2"):
        run.to_bytes(3)  # type: ignore[arg-type]


# As an object.


def test_equality() -> None:
    run = game2048.Run.from_bytes(RUN_V2)
    assert run == game2048.Run.from_bytes(RUN_V2)
    assert run != game2048.Run.from_bytes(RUN_V1)
    assert run != RUN_V2
    names = ("boards", "moves", "ev_values", "ev_legal", "has_branches", "final_board")
    same: dict[str, Any] = {name: getattr(run, name) for name in names} | run.meta._asdict()
    del same["steps"]
    assert game2048.Run(**same) == run
    changes = {"moves": 3 - run.moves, "final_board": 1, "engine": None, "start_unix_s": 1}
    for name, value in changes.items():
        assert game2048.Run(**{**same, name: value}) != run
    with pytest.raises(TypeError, match="unhashable"):
        hash(run)


def test_copies() -> None:
    run = game2048.Run.from_bytes(RUN_V2)
    for again in (run.copy(), copy.copy(run), copy.deepcopy(run), pickle.loads(pickle.dumps(run))):
        assert type(again) is game2048.Run
        assert again == run
        assert not np.shares_memory(again.boards, run.boards)
    other = run.copy()
    other.boards[0] = 0
    assert run.boards[0] != 0


def test_length_states_and_repr() -> None:
    run = game2048.Run.from_bytes(RUN_V2)
    assert len(run) == 3
    assert run.states.dtype == np.uint64
    assert run.states.tolist() == [*run.boards.tolist(), run.final_board]
    assert repr(run) == "Run(3 steps, score 4,096, highest tile 512, engine 'test-engine-v2')"
    empty = game2048.Run([], [], 7)
    assert len(empty) == 0
    assert empty.states.tolist() == [7]
    assert repr(empty) == "Run(0 steps, score 768, highest tile 128, engine None)"


# Files.


@pytest.mark.parametrize(("version", "whole"), [(1, RUN_V1), (2, RUN_V2)])
def test_save_and_load(tmp_path: Path, version: Any, whole: bytes) -> None:
    path = tmp_path / "any name at all"  # what a file is, its bytes say
    run = game2048.Run.from_bytes(whole)
    for _ in range(2):
        run.save(str(path), version)
        assert path.read_bytes() == whole
        assert game2048.Run.load(path) == run
    assert os.listdir(tmp_path) == [path.name]


def test_load_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "game.a2run"
    for data in (b"", RUN_V1[:-1], RUN_V2 + b"\0"):
        path.write_bytes(data)
        with pytest.raises(FormatError) as info:
            game2048.Run.load(path)
        assert info.value.path == str(path)
        assert str(path) in str(info.value)


def test_load_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        game2048.Run.load(tmp_path / "nothing")
    with pytest.raises(IsADirectoryError):
        game2048.Run.load(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StepwellError, match="regular file"):
        game2048.Run.load(tmp_path / "pipe")
