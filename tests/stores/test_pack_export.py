"""Packs as JSON lines, and their steps as rows: what others read is what is in the pack."""

import json
import os
import threading
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.json as pa_json
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st

from stepwell import ChecksumError, PackReader, SchemaError, convert
from stepwell.game2048 import Run, RunSteps
from stepwell.stores.pack import reader
from tests import packs, scaled
from tests.contract import Expected, SourceContract
from tests.reference import runs
from tests.reference.pack import Number, end_line, read_pack, run_line, step_lines
from tests.runs import RUN_V1, RUN_V2, any_runs, columns_of, random_payloads

PAYLOADS = random_payloads(3, 90, most_steps=25)


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> PackReader:
    return PackReader.open(packs.write(tmp_path_factory.mktemp("export") / "p.a2pack", PAYLOADS))


def lines_of(
    payloads: Sequence[bytes],
    *,
    steps: bool = False,
    seed: bool = False,
    ends: bool = False,
    hex_boards: bool = False,
    start: int = 0,
) -> bytes:
    """The file that the page describes."""
    lines: list[str] = []
    for i, payload in enumerate(payloads, start):
        if steps or seed:
            lines += step_lines(i, payload, seed, hex_boards)
        elif not ends:
            lines.append(run_line(i, runs.decode(payload), hex_boards))
        if ends:
            lines.append(end_line(i, payload, hex_boards))
    return "".join(line + "\n" for line in lines).encode()


def written(packed: PackReader, path: Path, **options: Any) -> bytes:
    packed.to_jsonl(path, **options)
    return path.read_bytes()


def assert_layouts(folder: Path, found: Sequence[bytes]) -> Path:
    """Every choice of lines that there is for steps; the last is in the file that is returned."""
    packed = PackReader.open(packs.write(folder / "p", found, align=1))
    out = folder / "out.jsonl"
    assert written(packed, out) == lines_of(found)
    assert written(packed, out, boards="hex") == lines_of(found, hex_boards=True)
    assert written(packed, out, steps=True) == lines_of(found, steps=True)
    for boards in ("number", "hex"):
        as_hex = {"hex_boards": boards == "hex"}
        assert written(packed, out, ends=True, boards=boards) == lines_of(
            found, ends=True, **as_hex
        )
        assert written(packed, out, layout="seed", ends=False, boards=boards) == lines_of(
            found, seed=True, **as_hex
        )
        assert written(packed, out, layout="seed", boards=boards) == lines_of(
            found, seed=True, ends=True, **as_hex
        )
    assert written(packed, out, steps=True, ends=True) == lines_of(found, steps=True, ends=True)
    return out


# JSON lines.


def test_the_lines_of_the_page(tmp_path: Path) -> None:
    packed = PackReader.open(packs.write(tmp_path / "p.a2pack", [RUN_V1, RUN_V2]))
    out = tmp_path / "out.jsonl"
    assert written(packed, out).decode() == runs.block("pack.md", "jsonl", "runs")
    assert written(packed, out, steps=True).decode() == runs.block("pack.md", "jsonl", "steps")
    assert written(packed, out, layout="seed").decode() == runs.block("pack.md", "jsonl", "seed")
    as_hex = written(packed, out, boards="hex").decode().splitlines(keepends=True)
    assert as_hex[0] == runs.block("pack.md", "jsonl", "runs-hex")


@settings(max_examples=25)
@given(
    found=st.lists(
        any_runs(nan=True).map(runs.encode_v2) | any_runs(v1=True, nan=True).map(runs.encode_v1),
        min_size=1,
        max_size=4,
    )
)
def test_any_run(tmp_path: Path, found: list[bytes]) -> None:
    out = assert_layouts(tmp_path, found)
    for line in out.read_bytes().splitlines():
        json.loads(line)


def test_names_and_branches_of_every_sort(tmp_path: Path) -> None:
    engines = [None, "", *map(chr, range(0x80)), "\u2028", "\U0010ffff", '"' * 50, "\x00" * 50]
    inf, nan = float("inf"), float("nan")
    branches: list[runs.Branches | None] = [
        None,
        [None] * 4,
        [nan, inf, -inf, -0.0],
        [runs.BEST] * 4,
        [1.0, 2.0, 0.9999985, None],
    ]
    random = Random(5)
    found = []
    for engine in engines:
        steps = [runs.Step(2**64 - 1, m, random.choice(branches)) for m in (0, 1, 2, 3)]
        steps = steps[: random.randrange(5)]
        meta = runs.Meta(len(steps), 2**64 - 1, random.choice([nan, 1e-45, -inf]), 0, 0, engine)
        found.append(runs.encode_v2(runs.Run(meta, steps, 2**64 - 1)))
    assert_layouts(tmp_path, found)


def test_floats_of_every_size(tmp_path: Path) -> None:
    random = np.random.default_rng(7)
    count = scaled(20_000)
    powers = [np.float32(f"1e{e}") for e in range(-45, 39)]
    values = np.concatenate(
        [
            random.integers(0, 2**32, count, np.uint32).view(np.float32),
            (np.arange(512, dtype=np.uint32) << np.uint32(23)).view(np.float32),
            np.array([*powers, *np.nextafter(powers, np.float32(0))], np.float32),
            (10 ** random.uniform(-8, 16, count)).astype(np.float32),
            random.integers(0, 2**31, 2000).astype(np.float32),
            random.random(2000, np.float32),
        ]
    )
    values = values[: len(values) // 4 * 4].reshape(-1, 4)
    zeros = np.zeros(len(values), np.uint8)
    run = Run(zeros, zeros, 0, ev_values=values, ev_legal=zeros + 15)
    packed = PackReader.open(packs.write(tmp_path / "p", [run.to_bytes()]))
    line = written(packed, tmp_path / "out.jsonl").decode()
    text = line[line.index('"branches":[[') + 13 : -4].replace("],[", ",").split(",")
    assert text == [Number(value).text() for value in values.flat]
    back = np.array([np.nan if t == "null" else t for t in text], np.float32)
    finite = np.isfinite(values.reshape(-1))
    assert back[finite].tobytes() == values.reshape(-1)[finite].tobytes()


@pytest.mark.parametrize("steps", [False, True], ids=["runs", "steps"])
def test_threads_change_nothing(
    pack: PackReader, tmp_path: Path, steps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = lines_of(PAYLOADS, steps=steps)
    monkeypatch.setattr(reader, "_TEXT_BYTES", 300)  # many chunks out of a small pack
    assert written(pack, tmp_path / "serial", parallel=False, steps=steps) == want
    for workers in (1, 3, 8, None):
        assert written(pack, tmp_path / "out", workers=workers, steps=steps) == want
    order = [
        (line["run_idx"], line.get("step_idx", 0)) for line in map(json.loads, want.splitlines())
    ]
    assert order == sorted(order)


@pytest.mark.parametrize("compress", ["zstd", "lz4", "zstd-dict"])
def test_compression_changes_nothing(tmp_path: Path, compress: str) -> None:
    packed = PackReader.open(packs.write(tmp_path / "p", PAYLOADS, compress=compress))
    for steps in (False, True):
        assert written(packed, tmp_path / "out", steps=steps) == lines_of(PAYLOADS, steps=steps)


def test_a_part_keeps_its_numbers(pack: PackReader, tmp_path: Path) -> None:
    part = pack.where("run >= 80")
    for steps in (False, True):
        want = lines_of(PAYLOADS[80:], steps=steps, start=80)
        assert written(part, tmp_path / "out", steps=steps) == want
    assert written(pack.where("run < 0"), tmp_path / "out") == b""


def test_mistakes(pack: PackReader, tmp_path: Path) -> None:
    wrong: Any = "octal"
    with pytest.raises(ValueError, match="boards: expected 'number' or 'hex', got 'octal'"):
        pack.to_jsonl(tmp_path / "out", boards=wrong)
    with pytest.raises(ValueError, match="layout: expected 'original' or 'seed', got 'octal'"):
        pack.to_jsonl(tmp_path / "out", layout=wrong)
    with pytest.raises(TypeError, match="steps, layout, ends and boards, got"):
        pack.to_jsonl(tmp_path / "out", end=True)
    with pytest.raises(ValueError, match="workers"):
        pack.to_jsonl(tmp_path / "out", workers=0)
    with pytest.raises(FileNotFoundError):
        pack.to_jsonl(tmp_path / "no" / "out")
    assert os.listdir(tmp_path) == []


# Other payloads, and damage.


def test_only_runs_are_exported(tmp_path: Path) -> None:
    packed = PackReader.open(packs.write(tmp_path / "p", [RUN_V2, b"hello"], [2, 16]))
    for export in (lambda: packed.to_jsonl(tmp_path / "out"), lambda: RunSteps(packed)):
        with pytest.raises(SchemaError, match="expected runs only, got raw:16 as entry 1"):
            export()
    assert os.listdir(tmp_path) == ["p"]
    assert written(packed.where("kind = 2"), tmp_path / "out") == lines_of([RUN_V2])
    assert written(packed.where("kind = 1"), tmp_path / "out") == b""


def test_a_failure_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = packs.write(tmp_path / "p", PAYLOADS, align=1)
    data = bytearray(path.read_bytes())
    data[read_pack(bytes(data)).offsets[70]] ^= 1
    path.write_bytes(data)
    monkeypatch.setattr(reader, "_TEXT_BYTES", 300)
    out = tmp_path / "out"
    out.write_bytes(b"old")
    with pytest.raises(ChecksumError, match="entry 70: "):
        PackReader.open(path).to_jsonl(out)

    def stop(done: int, of: int) -> None:
        if done > 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        PackReader.open(packs.write(tmp_path / "q", PAYLOADS)).to_jsonl(out, progress=stop)
    assert out.read_bytes() == b"old"
    assert sorted(os.listdir(tmp_path)) == ["out", "p", "q"]


def test_progress(pack: PackReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_TEXT_BYTES", 900)
    seen: list[tuple[int, int]] = []
    pack.to_jsonl(tmp_path / "out", progress=lambda *now: seen.append(now))
    assert seen[-1] == (90, 90)
    assert len(seen) > 5
    assert seen == sorted(seen)


# Steps as rows.


@cache
def steps_of(payloads: tuple[bytes, ...]) -> dict[str, np.ndarray[Any, Any]]:
    """The steps of all runs, a column each."""
    columns = [columns_of(runs.decode(payload)) for payload in payloads]
    counts = [len(column["boards"]) for column in columns]
    names = {"board": "boards", "move": "moves"}
    return {
        "run_idx": np.repeat(np.arange(len(payloads)), counts),
        "step_idx": np.concatenate([np.arange(count, dtype=np.uint32) for count in counts]),
        **{
            name: np.concatenate([column[names.get(name, name)] for column in columns])
            for name in ("board", "move", "ev_legal", "ev_values", "has_branches")
        },
    }


class TestSteps(SourceContract):
    @pytest.fixture
    def expected(self) -> Expected:
        return dict(steps_of(tuple(PAYLOADS[:8])))

    @pytest.fixture
    def source(self, pack: PackReader) -> RunSteps:
        return RunSteps(pack.where("run < 8"))

    def runs(self, expected: Expected) -> list[range]:
        bounds = np.searchsorted(expected["run_idx"], range(9)).tolist()
        return [range(begin, end) for begin, end in pairwise(bounds)]


@pytest.mark.parametrize("name", ["steps.parquet", "steps.arrow"])
def test_parquet_and_arrow(pack: PackReader, tmp_path: Path, name: str) -> None:
    part = pack.where("run >= 40")
    convert(RunSteps(part), tmp_path / name)
    want = steps_of(tuple(PAYLOADS))
    if name == "steps.parquet":
        table = pq.read_table(tmp_path / name)
    else:
        with pa.memory_map(str(tmp_path / name)) as file:
            table = pa.ipc.open_file(file).read_all()
    assert table.column_names == list(want)
    for field, column in want.items():
        found = table[field].combine_chunks()
        if field == "ev_values":
            assert found.type == pa.list_(pa.field("item", pa.float32(), nullable=False), 4)
            found = found.flatten()
        array = found.to_numpy(zero_copy_only=False)
        assert array.dtype == column.dtype
        assert array.tobytes() == column[want["run_idx"] >= 40].tobytes()
    assert len(RunSteps(pack.where("run < 0"))) == 0
    with pytest.raises(ValueError, match="expected runs to make a pack of"):
        convert(RunSteps(pack), pack.path, to="parquet", force=True)


def test_duckdb_reads_all_of_it(pack: PackReader, tmp_path: Path) -> None:
    convert(RunSteps(pack), tmp_path / "steps.parquet")
    pack.to_jsonl(tmp_path / "runs.jsonl", boards="hex")
    pack.to_jsonl(tmp_path / "steps.jsonl", steps=True)
    decoded = [runs.decode(payload) for payload in PAYLOADS]
    steps = [step for run in decoded for step in run.steps]
    with duckdb.connect() as database:
        database.execute(f"SET home_directory = '{tmp_path}'")

        def ask(question: str) -> Any:
            return database.execute(question).fetchall()

        table = f"read_parquet('{tmp_path}/steps.parquet')"
        assert ask(f"SELECT count(*), max(run_idx), sum(move) FROM {table}") == [
            (
                len(steps),
                max(i for i, r in enumerate(decoded) if r.steps),
                sum(s.chosen for s in steps),
            )
        ]
        assert ask(f"SELECT board FROM {table}") == [(step.pre_board,) for step in steps]
        table = f"read_json_auto('{tmp_path}/runs.jsonl')"
        found = ask(f"SELECT run_idx, steps, final_board, engine, len(states) FROM {table}")
        assert found == [
            (i, r.meta.steps, f"{r.final_board:016x}", r.meta.engine, len(r.steps) + 1)
            for i, r in enumerate(decoded)
        ]
        table = f"read_json_auto('{tmp_path}/steps.jsonl')"
        found = ask(f"SELECT pre_board, chosen, branches[1].legal FROM {table}")
        assert [(cells, move) for cells, move, _ in found] == [
            (runs.cells(step.pre_board), runs.MOVES[step.chosen]) for step in steps
        ]
        legal = [
            runs.legal(s.pre_board) & 1 if s.branches is None else s.branches[0] is not None
            for s in steps
        ]
        assert [first for _, _, first in found] == legal


def read_duckdb(path: Path) -> list[dict[str, Any]]:
    with duckdb.connect() as database:
        database.execute(f"SET home_directory = '{path.parent}'")
        found = database.execute(f"SELECT * FROM read_json_auto('{path}')")
        names = [column[0] for column in found.description or ()]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def read_pyarrow(path: Path) -> list[dict[str, Any]]:
    return list(pa_json.read_json(path).to_pylist())


def read_uint64(path: Path) -> list[dict[str, Any]]:
    schema = pa.schema([("pre_board", pa.uint64()), ("final_board", pa.uint64())])
    options = pa_json.ParseOptions(explicit_schema=schema)
    return list(pa_json.read_json(path, parse_options=options).to_pylist())


def read_datasets(path: Path) -> list[dict[str, Any]]:
    datasets = pytest.importorskip("datasets")
    made = datasets.Dataset.from_json(str(path), cache_dir=str(path.parent / "cache"))
    rows: list[dict[str, Any]] = made.to_list()
    return rows


READERS = [
    (read_duckdb, "number"),
    (read_duckdb, "hex"),
    (read_pyarrow, "hex"),
    (read_uint64, "number"),
    (read_datasets, "hex"),
]


@pytest.mark.parametrize(("read", "boards"), READERS)
def test_boards_above_2_63_come_back(
    read: Callable[[Path], list[dict[str, Any]]], boards: str, tmp_path: Path
) -> None:
    """Each reader, with the kind of boards that the page has for it; steps and ends of runs."""
    high = [2**64 - 1, 2**63 + 1, 2**53 + 1, 1]
    run = Run(
        *(high, [0, 1, 2, 3], 2**64 - 3),
        ev_values=[[0.5, 0.25, 0.0, 0.75]] * 4,
        ev_legal=[15, 7, 0, 15],
        has_branches=[True, True, True, False],
        max_score=12,
        engine="e",
    )
    packed = PackReader.open(packs.write(tmp_path / "p", [run.to_bytes(), RUN_V2]))
    packed.to_jsonl(tmp_path / "steps.jsonl", layout="seed", boards=boards)
    *steps, end = read(tmp_path / "steps.jsonl")[:5]

    def board(value: Any) -> int:
        return int(value, 16) if boards == "hex" else value

    assert [board(step["pre_board"]) for step in steps] == high
    assert [step["step_idx"] for step in steps] == [0, 1, 2, 3]
    assert [step["branches"] for step in steps] == [
        [0.5, 0.25, 0.0, 0.75],
        [0.5, 0.25, 0.0, None],
        [None] * 4,
        None,
    ]
    assert board(end["final_board"]) == 2**64 - 3
    assert (end["steps"], end["max_score"], end["engine"], end["pre_board"]) == (4, 12, "e", None)


# Where exports go.


def test_an_export_never_replaces_its_pack(pack: PackReader, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(pack.path)
    before = Path(pack.path).read_bytes()
    for target in (pack.path, link):
        with pytest.raises(ValueError, match="is the pack itself"):
            pack.to_jsonl(target)
    assert Path(pack.path).read_bytes() == before
    assert link.is_symlink()


def test_an_export_writes_through_links_and_pipes(pack: PackReader, tmp_path: Path) -> None:
    pack.to_jsonl(tmp_path / "plain.jsonl")
    plain = (tmp_path / "plain.jsonl").read_bytes()
    link, pipe = tmp_path / "link.jsonl", tmp_path / "pipe"
    link.symlink_to(tmp_path / "real.jsonl")
    pack.to_jsonl(link)
    assert link.is_symlink()
    assert (tmp_path / "real.jsonl").read_bytes() == plain
    os.mkfifo(pipe)
    got: list[bytes] = []
    other = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    other.start()
    pack.to_jsonl(pipe)
    other.join()
    assert got == [plain]
    assert pipe.is_fifo()
