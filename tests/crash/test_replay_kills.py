"""Replay stores whose writers are killed while files are made new, beside readers that keep the old
ones open. (What every store promises of kills is in tests/writer_contract.py.)"""

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import h5py

from stepwell import FormatError
from stepwell.replay import FrameResolver, ReplayReader, ReplayWriter
from tests import ROOT
from tests.crash.kills import KILLS, Victims
from tests.reference.replay import read_store
from tests.replays import assert_tree, camera, observation, step

STEPS_OF_A_RUN = 80


def run_of(number: int) -> str:
    return f"run_{number // STEPS_OF_A_RUN}"


def given(number: int) -> dict[str, Any]:
    """A step. Actions come to a run after a while, and then frames: each time the file is made
    anew, for HDF5 adds no dataset to one that others may read."""
    within = number % STEPS_OF_A_RUN
    made = {**step(number), "agent_id": f"agent {number % 2}"}
    made["action"] = number if within >= 25 else None
    made["frame"] = made["frame"] if within >= 50 else None
    made["terminated"] = number % 7 == 6
    return made


def work(folder: Path, first: int) -> Generator[int, None, None]:
    """Runs one after the other, each by several writers. The stamp is the last step on the disk."""
    chance = random.Random(first)
    number = first
    while True:
        run = run_of(number)
        with ReplayWriter(folder, run, mode="a", flush_every=chance.choice([0.001, 10])) as writer:
            for _ in range(chance.randrange(1, 40)):
                if run_of(number) != run:
                    break
                writer.record_step(**given(number))
                if number % 7 == 6:
                    writer.end_episode(
                        observation=observation(number + 1), agent_id=f"agent {number % 2}"
                    )
                number += 1
                if chance.random() < 0.3:
                    writer.commit()
                    yield number - 1
        yield number - 1


def check(rows: list[tuple[Any, ...]], resolver: FrameResolver) -> list[int]:
    """Every row resolves to what its number says; return the numbers."""
    numbers = [int(row[0]) for row in rows]
    seen = resolver.resolve_batch([row[3] for row in rows], missing="raise")
    frames = resolver.resolve_batch([row[2] for row in rows], missing="raise")
    for number, row, saw, frame in zip(numbers, rows, seen, frames, strict=True):
        _, action, frame_ref, _, info, agent, run = row
        want = given(number)
        assert run == run_of(number)
        assert (agent, action) == (want["agent_id"], want["action"])
        assert json.loads(info) == want["info"]
        assert (frame_ref is None) == (want["frame"] is None)
        assert_tree(saw, want["observation"])
        assert_tree(frame, want["frame"])
    return numbers


COLUMNS = "reward, action, frame_ref, obs_ref, info, agent_id, run_id"


def look(reader: ReplayReader, runs: list[str], most: int = 10**6) -> list[int]:
    """The numbers of the last steps of some runs, every one of them checked."""
    places = ", ".join("?" * len(runs))
    sql = f"SELECT {COLUMNS} FROM steps WHERE run_id IN ({places}) ORDER BY reward DESC LIMIT ?"
    return check(reader.query(sql, *runs, most).rows[::-1], reader.resolver)


def opened(folder: Path, **options: Any) -> ReplayReader:
    """A reader, as soon as something can be read."""
    while True:
        try:
            return ReplayReader.open(folder, **options)
        except (FileNotFoundError, FormatError):
            time.sleep(0.01)


def follow(folder: Path) -> int:
    """Another process: looks at the last runs until it is told to stop, with files kept open."""
    looks = 0
    with opened(folder, open_files=3) as reader:
        parent = os.getppid()
        while not (folder / "stop").exists() and os.getppid() == parent:
            reader.refresh()
            known = list(reader.recordings)[-2:]
            found = look(reader, known, most=25)
            rows = reader.where("run_id = ?", known[-1])[-5:] if known and looks % 20 == 0 else {}
            for i, number in enumerate(rows.get("reward", ())):
                assert_tree(rows["observation/camera"][i], camera(int(number)))
            time.sleep(0.01)
            # One commit after the other: what is seen has no gaps.
            assert found == list(range(found[0], found[-1] + 1)) if found else True
            looks += 1
    return looks


def test_kills(quick_path: Path) -> None:
    for first in range(0, KILLS, 100):  # a store that grows for ever takes ever longer to check
        folder = quick_path / str(first)
        folder.mkdir()
        kill_and_follow(folder, min(100, KILLS - first))
        shutil.rmtree(folder)


def kill_and_follow(folder: Path, kills: int) -> None:
    chance = random.Random()
    last, longest_s = -1, 0.04
    script = (
        "import sys; from pathlib import Path; from tests.crash.test_replay_kills import follow; "
    )
    script += "print(follow(Path(sys.argv[1])))"
    followers = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(folder)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    interrupted = rebuilt = 0
    try:
        with Victims("tests.crash.test_replay_kills:work", folder) as victims:
            for number in range(kills):
                acknowledged = victims.kill(last + 1, chance.uniform(0, longest_s))
                longest_s = min(longest_s * 1.2, 2) if acknowledged <= last else longest_s * 0.95
                try:
                    reader = ReplayReader.open(folder)
                except (FileNotFoundError, FormatError):
                    assert acknowledged == -1
                    continue
                with reader:
                    states = {name: run.state for name, run in reader.recordings.items()}
                    runs = list(states)
                    interrupted += "interrupted" in states.values()
                    latest = runs[-3:]
                    found = look(reader, latest)
                if found:
                    assert found == list(range(found[0], found[-1] + 1))
                    assert found[0] % STEPS_OF_A_RUN == 0
                    last, before = found[-1], last
                    assert last >= max(acknowledged, before)
                else:
                    assert acknowledged == -1
                for run in latest:
                    path = folder / "replay" / f"{run}.h5"
                    if path.exists():
                        with h5py.File(path, "r", swmr=True, locking=False) as file:
                            rebuilt += "frames" in file
                if number % 40 == 39:
                    read_store(folder)
    finally:
        (folder / "stop").touch()
        ends = [follower.communicate(timeout=60) for follower in followers]
    for _, error in ends:
        assert error == ""
    assert all(int(out) > 10 for out, _ in ends)
    # Otherwise no kill came at an interesting moment.
    assert interrupted > 0
    assert rebuilt > 0
    assert last > STEPS_OF_A_RUN
    # It can be gone on with, and then everything is right.
    worker = work(folder, last + 1)
    for _ in range(20):
        last = next(worker)
    worker.close()
    with ReplayReader.open(folder) as reader:
        runs = list(reader.recordings)
        found = look(reader, runs)
        assert reader.verify().ok
        assert found[: last + 1] == list(range(last + 1))
    read_store(folder)
    assert not [name for name in os.listdir(folder / "replay") if name.endswith(".tmp")]
