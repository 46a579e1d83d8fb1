"""Readers that keep files open while writers are killed, and files are made new under them; and
removals that are killed.
(What every store promises of kills is in tests/writer_contract.py.)"""

import os
import random
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import numpy as np

from stepwell import FormatError
from stepwell.errors import KindError
from stepwell.replay import ReplayReader, ReplayWriter, remove, remove_run
from tests.children import Child
from tests.crash.kills import KILLS, Victims
from tests.reference.replay import read_store
from tests.replays import camera
from tests.stores.test_replay_writer import KIT

FOLLOW = """
import sys
from pathlib import Path
from tests.crash.test_replay_kills import follow
print(follow(Path(sys.argv[1])))
"""


def follow(folder: Path) -> int:
    """Another process: looks at every row until it is told to stop; returns how often it did."""
    looks, parent = 0, os.getppid()
    reader: ReplayReader | None = None
    seen: list[int] = []
    while not (folder / "stop").exists() and os.getppid() == parent:
        try:
            reader = reader or ReplayReader.open(folder / KIT.name)
        except (FileNotFoundError, FormatError):  # nothing was committed yet
            continue
        reader.refresh()
        before, seen = seen, KIT.stamps(reader)
        assert seen == list(range(1, len(seen) + 1))
        assert len(seen) >= len(before)
        looks += 1
        time.sleep(0.01)
    return looks


def test_readers_across_kills(quick_path: Path) -> None:
    for first in range(0, KILLS, 50):  # a store that grows for ever takes ever longer to check
        folder = quick_path / str(first)
        folder.mkdir()
        kill_and_follow(folder, min(50, KILLS - first))
        shutil.rmtree(folder)


def kill_and_follow(folder: Path, kills: int) -> None:
    path, chance = folder / KIT.name, random.Random()
    last, longest_s, interrupted = 0, 0.04, 0
    followers = [Child("-c", FOLLOW, folder) for _ in range(2)]
    own: ReplayReader | None = None
    try:
        with Victims("tests.stores.test_replay_writer:KIT.work", folder) as victims:
            for _ in range(kills):
                acknowledged = victims.kill(last + 1, chance.uniform(0, longest_s))
                longest_s = min(longest_s * 1.2, 2) if acknowledged <= last else longest_s * 0.95
                try:
                    own = own or ReplayReader.open(path)
                except (FileNotFoundError, FormatError):
                    assert acknowledged == 0
                    continue
                own.refresh()
                last = len(KIT.stamps(own))
                assert acknowledged <= last <= acknowledged + 1
                run = own.recordings.get("run")  # none, if it was killed before its first row
                assert run is not None or last == 0
                interrupted += run is not None and run.state == "interrupted"
    finally:
        (folder / "stop").touch()
        looks = [int(follower.ends()) for follower in followers]
    assert min(looks) > 10
    # Otherwise no kill came at an interesting moment, or no file was made new.
    assert own is not None
    assert interrupted > 0
    assert "frames" in own.recordings["run"].rows
    own.close()
    # It can be gone on with, and then everything is right.
    with KIT.open(path, "a") as writer:
        KIT.append(writer, last + 1)
    assert KIT.read(path) == list(range(1, last + 2))
    read_store(path)
    assert not [name for name in os.listdir(path / "replay") if name.endswith(".tmp")]


def work(folder: Path, first: int) -> Iterator[int]:
    """A run of two episodes, of which the first is removed, and with it the run before the last."""
    root = folder / KIT.name
    for stamp in count(first):
        with suppress(FileNotFoundError, KindError):  # killed before there was a store
            remove(root, "run_id = ?", f"run{stamp}")
        with ReplayWriter(root, f"run{stamp}", mode="a", flush_every=1e9) as writer:
            KIT.append(writer, 2 * stamp)
            KIT.append(writer, 2 * stamp + 1)
        remove(root, "run_id = ? AND number = 0 OR run_id = ?", f"run{stamp}", f"run{stamp - 2}")
        yield stamp


def test_kills_while_removing(quick_path: Path) -> None:
    root, chance = quick_path / KIT.name, random.Random()
    last, longest_s, kills = 0, 0.1, 0
    with Victims("tests.crash.test_replay_kills:work", quick_path) as victims:
        while last < 2 or kills < KILLS // 5:
            kills += 1
            before, last = last, victims.kill(last + 1, chance.uniform(0, longest_s))
            longest_s *= 1.2 if last == before else 0.9
            try:
                reader = ReplayReader.open(root)
            except (FileNotFoundError, FormatError):
                assert last == 0
                continue
            with reader:
                report = reader.verify()
                assert report.ok, str(report)
                read_store(root)
                there = {e.episode_id for e in reader.episodes}
                kept = {f"run{stamp}-ep0001" for stamp in (last - 1, last) if stamp > 0}
                # What the killed one had begun, and what it had begun to remove.
                maybe = {f"run{last + 1}-ep0000", f"run{last + 1}-ep0001", f"run{last - 1}-ep0001"}
                assert kept - maybe <= there <= kept | maybe
                for row in range(len(reader)):
                    found = reader[row]
                    assert np.array_equal(found["observation/camera"], camera(int(found["reward"])))
    remove(root, "0")
    with suppress(KeyError):
        remove_run(root, f"run{last + 1}")
    store = read_store(root)
    names = [name for name in os.listdir(root / "replay") if name.endswith((".h5", ".tmp"))]
    assert {f"{run}.h5" for run, found in store.runs.items() if found.datasets} == set(names)
