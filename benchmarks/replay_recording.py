"""Recording Atari: as fast as it goes, at a pace, and beside the games themselves."""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import measure, replay_data as data, replay_peers as peers
from benchmarks.replay_common import JSON, LZF, OURS, RUN, record, seconds_of
from benchmarks.results import Case, Measured, Target
from stepwell.replay import ReplayWriter

__all__ = ["loop_cases", "pace_cases", "record_cases"]

_WARM = 600  # steps before one counts: until then memory is made that is used from there on


def record_cases(rows: int, rounds: int) -> list[Case]:
    """From the first step to the end of `close`, when everything is on the disk."""
    played = data.all_played()
    many, some, few = min(rows, 6000), min(rows, 1920), 2 * peers.BATCH
    ways: dict[str, tuple[int, Callable[[Path], None]]] = {
        OURS: (many, lambda path: record(path, played, many)),
        JSON: (few, lambda path: peers.write_json(path / "a.sqlite", played.around(few))),
        LZF: (some, lambda path: peers.write_hdf5(path / "a.h5", played.around(some), "lzf")),
        "h5py, zstd": (
            some,
            lambda path: peers.write_hdf5(path / "b.h5", played.around(some), "zstd"),
        ),
    }
    with data.scratch("record") as path, measure.AnonymousPeak() as peak:
        record(path, played, many)
    costs: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds):
        for name in sorted(ways, reverse=turn % 2 == 1):
            if name == JSON and turn > 2:
                continue
            count, write = ways[name]
            with data.scratch("record") as path:
                os.sync()
                costs[name].append(seconds_of(partial(write, path)) / count * 1e6)
    found = {n: Measured.of(each, rows_per_s=1e6 / np.median(each)) for n, each in costs.items()}
    ours = replace(found.pop(OURS), anonymous_bytes=peak.bytes - peak.before)
    return [
        Case(
            "record frames and observations of Atari, as fast as it goes",
            "us a step",
            ours,
            found,
            [
                Target("steps/s", 1e6 / ours.median, at_least=5000),
                Target("times JSON in SQLite", found[JSON].median / ours.median, at_least=150),
            ],
            f"{many:,} steps of three games in turn, with an action and a reward; the queue holds "
            "128 MiB. h5py alone keeps no steps in a database and syncs nothing",
        )
    ]


def pace_cases(rows: int, rounds: int) -> list[Case]:
    """A step each 500 microseconds: what the caller waits for."""
    played = data.all_played()
    count, interval = min(rows, 2000), 1 / 2000
    took: list[float] = []
    dry: list[float] = []
    for _ in range(rounds):
        with data.scratch("pace") as path, ReplayWriter(path, RUN) as writer:
            for step in played.around(_WARM):
                writer.record_step(**step)
            writer.commit()
            took += _paced(played, count, interval, partial(_put, writer))
        dry += _paced(played, count, interval, _copy)
    ours, copying = (Measured.of([s * 1e6 for s in each]) for each in (took, dry))
    return [
        Case(
            "one call of record_step, at 2,000 steps/s",
            "us",
            ours,
            {"a copy of both arrays, nothing else": copying},
            [Target("99th percentile, us", ours.p99, at_most=100)],
            "frame and observation in every step; the writer's thread is at work meanwhile",
        )
    ]


def _put(writer: ReplayWriter, step: dict[str, Any]) -> None:
    writer.record_step(**step)


def _copy(step: dict[str, Any]) -> None:
    step["frame"].tobytes()
    step["observation"].tobytes()


def _paced(
    played: data.Played, count: int, interval: float, call: Callable[[dict[str, Any]], object]
) -> list[float]:
    took = []
    due = time.perf_counter()
    for step in played.around(count):
        due += interval
        while (left := due - time.perf_counter()) > 0:
            time.sleep(left)
        begin = time.perf_counter()
        call(step)
        took.append(time.perf_counter() - begin)
    return took


def loop_cases(rows: int, rounds: int) -> list[Case]:
    """Games played at their own speed, with and without a recorder.

    The same moment of the machine for both, and many of them: turns are short, and compared one by
    one. One writer records all of a game's, as it does in a run of hours.
    """
    count, turns = min(rows, 2000), 3 * rounds
    cases = []
    for game in data.GAMES:
        costs: dict[str, list[float]] = {"not recorded": [], OURS: []}
        calls: list[float] = []
        env = data.environment(game)
        with data.scratch("loop") as path, ReplayWriter(path, RUN) as writer:
            _play(env, count, writer, [])
            for turn in range(turns):
                for name in sorted(costs, reverse=turn % 2 == 1):
                    writer.commit()
                    recorder = writer if name == OURS else None
                    costs[name].append(_play(env, count, recorder, calls) / count * 1e6)
        env.close()
        found = {
            n: Measured.of(each, rows_per_s=1e6 / np.median(each)) for n, each in costs.items()
        }
        ours = found.pop(OURS)
        slower = np.median([a / b for a, b in zip(costs[OURS], costs["not recorded"], strict=True)])
        cases.append(
            Case(
                f"play {game} and record it: every observation, every fourth frame",
                "us a step",
                ours,
                found,
                [
                    Target("slower than without, %", (float(slower) - 1) * 100, at_most=10),
                    Target(
                        "99th percentile of record_step, us",
                        float(np.percentile(calls, 99)) * 1e6,
                        at_most=100,
                    ),
                ],
                f"{turns} turns of {count:,} steps after {_WARM}, the environment at its own speed",
            )
        )
    return cases


def _play(env: Any, count: int, recorder: ReplayWriter | None, calls: list[float]) -> float:
    rng = np.random.default_rng(0)
    frame, _ = env.reset(seed=0)
    sight = data.Sight()
    seen = sight(frame)
    begin = 0.0
    for i in range(-_WARM, count):
        if i == 0:
            begin = time.perf_counter()
        action = int(rng.integers(env.action_space.n))
        after, reward, terminated, truncated, _ = env.step(action)
        if recorder is not None:
            called = time.perf_counter()
            recorder.record_step(
                observation=seen,
                frame=frame if i % 4 == 0 else None,
                action=action,
                reward=float(reward),
                terminated=terminated,
                truncated=truncated,
            )
            if i >= 0:
                calls.append(time.perf_counter() - called)
        frame = after
        if terminated or truncated:
            frame, _ = env.reset()
            sight = data.Sight()
        seen = sight(frame)
    return time.perf_counter() - begin
