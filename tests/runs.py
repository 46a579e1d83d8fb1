"""Runs for tests: any that hypothesis thinks of, many random ones, and how to compare them."""

import struct
from random import Random
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from stepwell import game2048
from tests.contract import assert_array
from tests.reference import runs
from tests.reference.runs import Meta, Run, Step

RUN_V1 = runs.file_of("runs.md", "run-v1")
RUN_V2 = runs.file_of("runs.md", "run-v2")

u32, u64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@st.composite
def any_runs(draw: st.DrawFn, v1: bool = False, nan: bool = False) -> Run:
    """Any run that v2 can hold, or v1; NaN is not equal to itself and has to be asked for."""
    f32 = st.floats(width=32, allow_nan=nan)
    branches = st.lists(st.none() | f32, min_size=4, max_size=4)
    step = st.builds(Step, u64, st.integers(0, 3), st.none() if v1 else st.none() | branches)
    steps = draw(st.lists(step, max_size=8))
    engine = draw(texts if v1 else st.none() | texts)
    meta = Meta(len(steps), draw(u64), draw(f32), draw(u64), draw(u32), engine)
    return Run(meta, steps, draw(u64))


def random_run(random: Random, most_steps: int = 30, v1: bool = False) -> Run:
    """A run as hard to write down as any, without hypothesis' price."""

    def board() -> int:
        return random.getrandbits(64) >> random.choice([0, 0, 3, 17, 40, 60])

    def value() -> float | None:
        return random.choice(
            [None, 0.0, runs.BEST, random.random(), random.gauss(0, 1e9), -0.0, float("inf")]
        )

    with_branches = not v1 and random.random() < 0.8
    steps = [
        Step(
            board(),
            random.randrange(4),
            [value() for _ in range(4)] if with_branches and random.random() < 0.8 else None,
        )
        for _ in range(random.randrange(most_steps + 1))
    ]
    engine = random.choice(["", "expectimax", "n-tuple 4\u00b76", 'a "b"\\\n\x1f', "\U0001d11e"])
    meta = Meta(
        len(steps),
        random.getrandbits(random.choice([31, 64])),
        f32_of(random.expovariate(0.01)),
        random.getrandbits(random.choice([20, 64])),
        random.choice([0, 2, 512, 2048, 65536, 2**32 - 1]),
        engine if v1 or random.random() < 0.8 else None,
    )
    return Run(meta, [_with_f32(step) for step in steps], board())


def random_payloads(seed: int, count: int, most_steps: int = 30) -> list[bytes]:
    """Files of runs, v1 and v2 mixed."""
    random = Random(seed)
    return [
        runs.encode_v1(random_run(random, most_steps, v1=True))
        if random.random() < 0.3
        else runs.encode_v2(random_run(random, most_steps))
        for _ in range(count)
    ]


def f32_of(value: float) -> float:
    return float(np.float32(value))


def _with_f32(step: Step) -> Step:
    if step.branches is not None:
        step.branches = [None if value is None else f32_of(value) for value in step.branches]
    return step


# How a run looks in Python.


def columns_of(run: Run) -> dict[str, NDArray[Any]]:
    """The arrays that stepwell makes of a run's steps."""
    branches = [step.branches or [None] * 4 for step in run.steps]
    return {
        "boards": np.array([step.pre_board for step in run.steps], np.uint64),
        "moves": np.array([step.chosen for step in run.steps], np.uint8),
        "ev_legal": np.array(
            [sum((v is not None) << i for i, v in enumerate(four)) for four in branches], np.uint8
        ),
        "ev_values": np.array(
            [[0.0 if v is None else v for v in four] for four in branches], np.float32
        ).reshape(-1, 4),
        "has_branches": np.array([step.branches is not None for step in run.steps], np.bool),
    }


def made_of(run: Run) -> game2048.Run:
    """The same run, made by its constructor."""
    meta = run.meta
    return game2048.Run(
        **columns_of(run),
        final_board=run.final_board,
        start_unix_s=meta.start_unix_s,
        elapsed_s=meta.elapsed_s,
        max_score=meta.max_score,
        highest_tile=meta.highest_tile,
        engine=meta.engine,
    )


def assert_run(got: game2048.Run, want: Run) -> None:
    """Every field the same, NaN bit for bit."""
    assert got.meta.steps == len(got) == want.meta.steps
    assert got.meta.start_unix_s == want.meta.start_unix_s
    assert struct.pack("<f", got.meta.elapsed_s) == struct.pack("<f", want.meta.elapsed_s)
    assert got.meta.max_score == want.meta.max_score
    assert got.meta.highest_tile == want.meta.highest_tile
    assert got.meta.engine == want.meta.engine
    assert got.final_board == want.final_board
    for name, column in columns_of(want).items():
        assert_array(getattr(got, name), column)
    assert got.states.tolist() == [step.pre_board for step in want.steps] + [want.final_board]
