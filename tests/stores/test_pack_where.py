"""`where`: SQL against a filter in Python, and an index beside the pack that is never trusted."""

import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from stepwell import ChecksumError, PackReader
from tests import packs
from tests.packs import reference_pack
from tests.query_contract import QueryContract
from tests.reference import runs
from tests.runs import RUN_V1, RUN_V2, random_run

COLUMNS = "run, kind, steps, start_unix_s, elapsed_s, max_score, highest_tile, engine"


@dataclass
class Row:
    """What SQL sees of a run; numbers that SQLite has no room for are floats there."""

    run: int
    kind: int
    steps: int
    start_unix_s: float
    elapsed_s: float
    max_score: float
    highest_tile: int
    engine: str | None


def some_payloads(seed: int, count: int) -> list[bytes]:
    random = Random(seed)
    return [
        runs.encode_v1(random_run(random, 9, v1=True))
        if i % 3
        else runs.encode_v2(random_run(random, 9))
        for i in range(count)
    ]


PAYLOADS = some_payloads(6, 60)
METAS = [runs.decode(payload).meta for payload in PAYLOADS]
ROWS = [
    Row(i, runs.kind_of(payload), *vars(meta).values())
    for i, (payload, meta) in enumerate(zip(PAYLOADS, METAS, strict=True))
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return packs.write(tmp_path / "p.a2pack", PAYLOADS, align=1)


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> PackReader:
    return PackReader.open(packs.write(tmp_path_factory.mktemp("where") / "p.a2pack", PAYLOADS))


def numbers(packed: PackReader) -> list[int]:
    found: list[int] = packed.numbers.tolist()
    return found


class TestQueries(QueryContract):
    def queried(self, path: Path) -> PackReader:
        return PackReader.open(path)


# Conditions.


comparisons = st.builds(
    lambda column, sign, row, more: f"{column} {sign} {max(0, getattr(row, column) + more)}",
    st.sampled_from(["run", "kind", "steps", "max_score", "highest_tile", "start_unix_s"]),
    st.sampled_from(["<", "<=", "=", "!=", ">=", ">"]),
    st.sampled_from([row for row in ROWS if max(row.max_score, row.start_unix_s) < 2**63]),
    st.integers(-1, 1),
)
conditions = st.recursive(
    comparisons,
    lambda inner: (
        st.builds("({}) {} ({})".format, inner, st.sampled_from(["AND", "OR"]), inner)
        | inner.map("NOT ({})".format)
    ),
    max_leaves=4,
)


def chosen_by(condition: str) -> list[int]:
    """By Python, which has the same words for these conditions."""
    code = compile(condition.lower().replace(" = ", " == "), "condition", "eval")
    return [row.run for row in ROWS if eval(code, {}, vars(row))]


@given(condition=conditions, second=conditions)
def test_conditions(pack: PackReader, condition: str, second: str) -> None:
    found = pack.where(condition)
    assert numbers(found) == chosen_by(condition)
    assert numbers(found.where(second)) == chosen_by(f"({condition}) AND ({second})")


def test_where_of_split_and_back(pack: PackReader) -> None:
    one, other = pack.split(0.5, seed=9)
    found = [*numbers(one.where("steps > 4")), *numbers(other.where("steps > 4"))]
    assert sorted(found) == [row.run for row in ROWS if row.steps > 4]
    chosen = pack.where("steps > 4")
    halves = chosen.split(0.25)
    assert sorted(numbers(halves[0]) + numbers(halves[1])) == numbers(chosen)
    assert len(halves[0]) == round(len(chosen) / 4)
    assert halves[0].decode(0).to_bytes() == pack.decode(halves[0].numbers[0]).to_bytes()


@pytest.mark.parametrize(
    ("condition", "values", "test"),
    [
        ("engine LIKE 'EXPECT%'", [], lambda r: (r.engine or "").startswith("expect")),
        ("engine IS ?", [None], lambda r: r.engine is None),
        ("engine = ?", [np.str_("expectimax")], lambda r: r.engine == "expectimax"),
        ("steps > ?", [np.uint8(5)], lambda r: r.steps > 5),
        ("elapsed_s >= ?", [100.0], lambda r: r.elapsed_s >= 100),
        ("run % 7 = 3 -- a comment", [], lambda r: r.run % 7 == 3),
        ("steps = (SELECT max(steps) FROM runs)", [], lambda r: r.steps == 9),
        ("max_score >= 9223372036854775808.0", [], lambda r: r.max_score >= 2**63),
        ("start_unix_s >= ?", [float(2**63)], lambda r: r.start_unix_s >= 2**63),
        ("max_score < ?", [2**63 - 1], lambda r: r.max_score < 2**63 - 1),
    ],
)
def test_more_conditions(
    pack: PackReader, condition: str, values: list[Any], test: Callable[[Row], bool]
) -> None:
    assert numbers(pack.where(condition, *values)) == [row.run for row in ROWS if test(row)]


def test_large_numbers_are_there() -> None:
    assert any(row.max_score >= 2**63 for row in ROWS)
    assert any(row.start_unix_s >= 2**63 for row in ROWS)


@pytest.mark.parametrize(
    ("condition", "values"),
    [
        ("score > 3", []),
        ("1) UNION SELECT load_extension('x') WHERE (1", []),
        ("max_score > ?", [2**63]),
    ],
)
def test_what_is_no_condition(pack: PackReader, condition: str, values: list[Any]) -> None:
    with pytest.raises(ValueError, match="where") as info:
        pack.where(condition, *values)
    assert COLUMNS in str(info.value)
    assert numbers(pack.where("1")) == list(range(60))


def test_payloads_that_are_not_runs_are_not_asked(tmp_path: Path) -> None:
    packed = PackReader.open(
        packs.write(tmp_path / "p", [b"raw", RUN_V1, b"", RUN_V2], [16, 1, 17, 2])
    )
    assert numbers(packed.where("1")) == [1, 3]
    assert [packed.where("1").kind(i) for i in range(2)] == ["v1", "v2"]
    assert packed.runs is not None
    assert packed.runs.starts.tolist() == packed.runs["run"].tolist() == [1, 3]
    raw = PackReader.open(packs.write(tmp_path / "raw", [b"raw"], [16]))
    assert raw.runs is None


def test_floats_that_sql_has_not(tmp_path: Path) -> None:
    metas = [
        replace(METAS[0], elapsed_s=value, steps=0) for value in (float("nan"), float("inf"), 1.0)
    ]
    payloads = [runs.encode_v2(runs.Run(meta, [], 0)) for meta in metas]
    packed = PackReader.open(packs.write(tmp_path / "p", payloads))
    assert numbers(packed.where("elapsed_s IS NULL")) == [0]
    assert numbers(packed.where("elapsed_s > 5")) == [1]


# The table.


def test_it_is_made_once_and_nothing_is_written(path: Path) -> None:
    packed = PackReader.open(path)
    assert len(packed.where("1")) == 60
    made = packed._opened.table
    assert len(packed.where("steps > 4").where("steps > 5")) > 0
    assert packed._opened.table is made
    assert os.listdir(path.parent) == ["p.a2pack"]


def test_another_pack_at_the_same_path(path: Path) -> None:
    old = PackReader.open(path)
    assert len(old.where("1")) == 60
    packs.write(path, PAYLOADS[::-1], align=1)
    steps = [row.run for row in ROWS if row.steps > 4]
    assert numbers(PackReader.open(path).where("steps > 4")) == sorted(59 - run for run in steps)
    assert numbers(old.where("steps > 4")) == steps  # the file it has open is still the old one


@pytest.mark.parametrize("data_crc", [True, False])
def test_runs_with_equal_checksums(tmp_path: Path, data_crc: bool) -> None:
    path = tmp_path / "p.a2pack"
    run, seen = runs.decode(RUN_V1), set()
    for place in range(3):
        payloads = [RUN_V1] * 3
        payloads[place] = runs.encode_v1(replace(run, meta=replace(run.meta, max_score=7)))
        path.write_bytes(reference_pack(payloads, 64, stats=None, data_crc=data_crc))
        assert numbers(PackReader.open(path).where("max_score = 7")) == [place]
        seen.add(PackReader.open(path).fingerprint)
    assert len(seen) == 3  # every v1 run has the same CRC, and leaves that of all data the same


def test_a_broken_run_is_named(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-300] ^= 1
    broken = path.with_name("broken.a2pack")
    broken.write_bytes(data)
    (problem, *_) = PackReader.open(broken).verify().problems
    with pytest.raises(ChecksumError, match=str(problem).split(":")[0]):
        PackReader.open(broken).where("1")


# The table of runs.


def test_runs_are_a_table(pack: PackReader) -> None:
    table = pack.runs
    assert table is not None
    assert (len(table), table.columns) == (60, COLUMNS.split(", "))
    assert table[7]["steps"] == ROWS[7].steps
    assert table["engine"].tolist() == [row.engine for row in ROWS]
    assert [row["run"] for row in table[10:13]] == [10, 11, 12]
    assert (table.starts.tolist(), table.counts.tolist()) == ([*range(60)], [1] * 60)
    part = pack.where("steps > 4")
    assert part.runs is not None
    assert part.runs["run"].tolist() == numbers(part)
    assert part.runs[0]["max_score"] == ROWS[numbers(part)[0]].max_score
    assert pack.describe().columns == tuple(table.columns)


def test_query(pack: PackReader) -> None:
    found = pack.query("SELECT kind, count(*) AS many FROM runs WHERE steps > ? GROUP BY kind", 4)
    assert found.columns == ["kind", "many"]
    kinds = [row.kind for row in ROWS if row.steps > 4]
    assert found.rows == [(kind, kinds.count(kind)) for kind in (1, 2)]
    part = pack.where("kind = 1").split(0.5)[0]
    assert part.query("SELECT run FROM runs ORDER BY run")["run"].tolist() == numbers(part)
    for sql in ("DROP VIEW runs", "SELECT nothing FROM runs"):
        with pytest.raises(ValueError, match=sql):
            part.query(sql)
    assert pack.query("SELECT count(*) FROM runs").rows == [(60,)]


def test_a_pack_is_found_again_from_another_folder(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    opened = PackReader.open("p.a2pack")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert len(opened.where("1")) == 60
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert len(pickle.loads(pickle.dumps(opened))) == 60
