"""Step datasets in a world that moves: other folders, other datasets, Ctrl-C, odd names."""

import json
import pickle
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell as sw
from stepwell import FormatError, PackReader, StepReader, StepWriter
from stepwell.game2048 import play_to
from stepwell.store import Store
from tests import children, packs, scaled
from tests.runs import RUN_V2
from tests.steps import tampered

STEP = np.dtype([("x", "<f4"), ("run_id", "<u4"), ("step_index", "<u2")])


def build(path: Path, runs: int, first: float = 0, length: int = 4) -> StepReader:
    with StepWriter(path, STEP, {"s": int}) as writer:
        for run in range(runs):
            writer.append({"x": np.full(length, first + run, "f4")}, s=int(first) + run)
    return StepReader.open(path)


# A reader whose dataset is another one now.


@pytest.mark.parametrize("memory", ["ram", "map", "shared"])
def test_a_replaced_dataset_is_noticed(tmp_path: Path, memory: Any) -> None:
    path = tmp_path / "v"
    build(path, 5)
    dataset = StepReader.open(path, memory=memory)
    part = dataset.where("s >= 2")
    pickled = pickle.dumps(dataset), pickle.dumps(part)
    path.rename(tmp_path / "before")
    build(path, 9, first=50, length=6)
    for ask in (lambda: dataset.where("1"), dataset.refresh, lambda: list(dataset.runs)):
        with pytest.raises(FormatError, match="another dataset is here now"):
            ask()
    for data in pickled:
        with pytest.raises(FormatError, match="another dataset is here now"):
            pickle.loads(data)
    assert part[:]["x"].tolist() == np.repeat([2, 3, 4], 4).tolist()  # what it has, it has


@pytest.mark.parametrize("memory", ["ram", "map", "shared"])
def test_a_dataset_that_was_built_again_is_another_one(tmp_path: Path, memory: Any) -> None:
    """Even with the same runs and more: its rows are others."""
    path = tmp_path / "v"
    build(path, 20)
    dataset = StepReader.open(path, memory=memory)
    pickled = pickle.dumps(dataset)
    shutil.rmtree(path)
    with StepWriter(path, STEP, {"s": int}) as writer:
        for run in range(25):
            writer.append({"x": np.full(4, 1000 + run, "f4")}, s=run)
    for call in (dataset.refresh, lambda: dataset.where("1"), lambda: pickle.loads(pickled)):
        with pytest.raises(FormatError, match="another dataset is here now"):
            call()
    assert dataset[:]["x"].max() == 19


def test_a_dataset_without_an_id(tmp_path: Path) -> None:
    """Those of today have none, and are known by their first runs."""
    dataset, path = build(tmp_path / "v", 5), tmp_path / "v"
    with tampered(path) as database:
        database.execute("DELETE FROM meta WHERE key = 'id'")
    with pytest.raises(FormatError, match="another dataset is here now"):
        dataset.refresh()
    dataset = StepReader.open(path)
    with StepWriter(path, mode="a") as writer:
        writer.append({"x": np.zeros(2, "f4")}, s=9)
    assert len(pickle.loads(pickle.dumps(dataset))) == 20
    assert dataset.refresh()
    path.rename(tmp_path / "before")
    build(path, 9, first=50)
    with pytest.raises(FormatError, match="another dataset is here now"):
        dataset.refresh()


def test_a_dataset_that_grew_is_the_same_one(tmp_path: Path) -> None:
    for runs in (1, 5, 30):
        path = tmp_path / str(runs)
        dataset = build(path, runs)
        with StepWriter(path, mode="a") as writer:
            for run in range(40):
                writer.append({"x": np.zeros(2, "f4")}, s=100 + run)
        assert len(dataset.where("1")) == len(dataset) == 4 * runs
        assert dataset.refresh()
        assert len(dataset) == 4 * runs + 80
        assert len(dataset.runs) == runs + 40


# Interruptions.


def test_ctrl_c_anywhere_in_append(tmp_path: Path) -> None:
    """Whoever catches it and goes on has whole runs and right checksums, or has to roll back."""
    script = """
import os, signal, sys, threading, time
import numpy as np, stepwell as sw
step = np.dtype([("x", "<f4", (900,)), ("run_id", "<u4"), ("step_index", "<u2")])
stop = threading.Event()
def disturb():
    pause = 0.002
    while not stop.wait(pause):
        os.kill(os.getpid(), signal.SIGINT)
        pause *= 1.01  # where an append takes longer than that, it must get through in the end
def interrupt(_, frame):
    while frame is not None:
        if frame.f_code.co_name == "append":
            raise KeyboardInterrupt
        frame = frame.f_back
signal.signal(signal.SIGINT, interrupt)
writer = sw.StepWriter(sys.argv[1], step, {"s": int})
threading.Thread(target=disturb, daemon=True).start()
done = 0
while done < 300:
    try:
        writer.append({"x": np.full((100, 900), done, "f4")}, s=done)
        done += 1
    except KeyboardInterrupt:
        continue
    except ValueError as error:
        assert "rollback() drops it" in str(error)
        writer.rollback()
        break
signal.signal(signal.SIGINT, signal.SIG_IGN)
stop.set()
writer.close()
"""
    for turn in range(scaled(3)):
        path = tmp_path / str(turn)
        children.answer(script, path)
        with StepWriter(path, mode="a"):
            pass
        assert StepReader.open(path, memory="map").verify().ok


@pytest.mark.parametrize("kind", ["steps", "pack"])
def test_a_fork_beside_threads_that_filter(tmp_path: Path, kind: str) -> None:
    """Of both stores that keep their runs in SQLite, in a file and in memory."""
    source: Store = build(tmp_path / "v", 20)
    if kind == "pack":
        source = PackReader.open(packs.write(tmp_path / "p", [RUN_V2] * 20))
    condition = "s > 3" if kind == "steps" else "run > 3"
    names, stop = list(source.schema), threading.Event()

    def ask(first: int) -> None:
        while not stop.is_set():
            part = source.where(f"{condition} + ?", first)
            part.take([1])
            assert len(part) == (4 if kind == "steps" else 1) * (16 - first)

    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(ask, first) for first in range(4)]
        try:
            for _ in range(scaled(15)):
                assert children.in_fork(lambda: list(source.where(condition).take([1]))) == names
        finally:
            stop.set()
    for each in asked:
        each.result()


# What is kept, and what is not.


@pytest.mark.parametrize("key", ["rows", "runs"])
def test_headers_and_sums_are_never_ahead(tmp_path: Path, key: str) -> None:
    path = tmp_path / "v"
    dataset = build(path, 3)
    manifest = json.loads((path / "manifest.json").read_bytes())
    (path / "manifest.json").write_text(json.dumps({**manifest, key: manifest[key] + 1}))
    with pytest.raises(FormatError, match=r"as manifest\.json states, got 12 of 3 runs"):
        StepWriter(path, mode="a")
    (problem,) = dataset.verify().problems
    assert "expected at most 12 rows of 3 runs" in str(problem)
    data = bytearray((path / "steps.npy").read_bytes())
    at = data.index(b"(12,)")
    data[at : at + 5] = b"(99,)"
    (path / "steps.npy").write_bytes(data)
    assert "header: expected at most 12 rows, got 99" in str(dataset.verify().problems[-1])


def test_runs_in_files_with_odd_names(tmp_path: Path) -> None:
    (path,) = play_to(tmp_path / "runs", 1, depth=1)
    path.with_name("bad\udcff.a2run2").write_bytes(path.read_bytes())
    sw.convert(tmp_path / "runs", tmp_path / "out")
    sources = sw.StepReader.open(tmp_path / "out").runs["source"].tolist()
    assert sources == ["bad\\xff.a2run2", path.name]


def test_a_program_that_ends_with_an_open_writer_is_quiet(quick_path: Path) -> None:
    script = """
import sys, threading, stepwell as sw
writer = sw.StepWriter(sys.argv[1], {"x": "<f4"})
threading.current_thread().writer = writer  # until modules have gone
writer.append({"x": [1.0]})
writer.commit()
"""
    ended = children.python(script, quick_path / "a")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert len(StepReader.open(quick_path / "a")) == 1
