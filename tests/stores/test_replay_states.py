"""A replay store under any sequence of calls, against dicts."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stepwell import BusyError, SchemaError
from stepwell.replay import ReplayReader, ReplayWriter
from tests import scaled
from tests.reference.replay import read_store
from tests.replays import assert_tree, camera, frame, observation, pose, row_of, stack

FOLDER = "/dev/shm" if Path("/dev/shm").is_dir() else None
CODECS = st.sampled_from(["zstd", "gzip", "lzf", "none"])
AGENTS = st.sampled_from([None, "a", "b"])
KINDS: dict[str, Callable[[int], Any]] = {
    "plain": pose,
    "dict": observation,
    "stack": stack,
    "tuple": lambda number: (pose(number), {"x": camera(number)}),
}


class ReplayMachine(RuleBasedStateMachine):
    """The model: episodes by number, each a dict with its steps, of what was recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="stepwell-test-", dir=FOLDER))
        self.episodes: list[dict[str, Any]] = []
        self.open: dict[str | None, int] = {}
        self.made = 0
        self.committed = True
        self.writer: ReplayWriter | None = None
        self.reader: ReplayReader | None = None

    @initialize(kind=st.sampled_from(list(KINDS)), codec=CODECS)
    def begin(self, kind: str, codec: str) -> None:
        self.observed = KINDS[kind]
        self.open_writer(codec)

    def teardown(self) -> None:
        for thing in (self.writer, self.reader):
            if thing is not None:
                thing.close()
        if self.writer is not None or self.committed:
            self.compare()
        shutil.rmtree(self.root)

    def compare(self) -> None:
        store = read_store(self.root)
        assert len(store.episodes) == len(self.episodes)
        assert len(store.steps) == sum(len(e["steps"]) for e in self.episodes)
        with ReplayReader.open(self.root) as reader:
            self.look(reader)

    def look(self, reader: ReplayReader) -> None:
        found = reader.episodes
        assert sorted(e.number for e in found) == list(range(len(self.episodes)))
        for episode in found:
            want = self.episodes[episode.number]
            assert episode.agent_id == want["agent"]
            assert episode.steps == len(want["steps"])
            assert episode.over == (want["end"] is not None)
            assert episode.ended == (episode.terminated or episode.truncated)
            assert episode.terminated == (want["end"] == "terminated")
            assert episode.truncated == (want["end"] == "truncated")
            got = reader.episode(episode.episode_id)
            assert got.rewards.tolist() == [s["number"] for s in want["steps"]]
            seen = [s["number"] for s in want["steps"] if s["seen"]]
            shown = [s["number"] for s in want["steps"] if s["frame"]]
            assert len(got.observation_steps) == len(seen)
            for row, number in enumerate(seen):
                assert_tree(row_of(got.observations, row), self.observed(number))
            assert len(got.frame_steps) == len(shown)
            for row, number in enumerate(shown):
                assert_tree(got.frames[row], frame(number))
            final = want["final"]
            assert_tree(got.final_observation, None if final is None else self.observed(final))

    # The writer.

    @precondition(lambda self: self.writer is None)
    @rule(codec=CODECS)
    def open_writer(self, codec: str) -> None:
        self.writer = ReplayWriter(
            self.root, "run", mode="a", compress=codec, flush_every=1000, queue_bytes=20_000
        )
        self.open = {}

    @precondition(lambda self: self.writer is not None)
    @rule(
        agent=AGENTS,
        seen=st.integers(0, 5).map(bool),
        shown=st.integers(0, 3).map(lambda n: n == 0),
        end=st.sampled_from([None, None, None, "terminated", "truncated"]),
    )
    def record(self, agent: str | None, seen: bool, shown: bool, end: str | None) -> None:
        assert self.writer is not None
        number, self.made = self.made, self.made + 1
        at = self.open.get(agent)
        if at is None or self.episodes[at]["end"] is not None:
            at = self.open[agent] = len(self.episodes)
            self.episodes.append({"agent": agent, "steps": [], "end": None, "final": None})
        refs = self.writer.record_step(
            reward=number,
            observation=self.observed(number) if seen else None,
            frame=frame(number) if shown else None,
            action=number % 3,
            terminated=end == "terminated",
            truncated=end == "truncated",
            agent_id=agent,
        )
        assert refs is not None
        assert refs.episode_id == f"run-ep{at:04d}"
        assert refs.step_index == len(self.episodes[at]["steps"])
        self.episodes[at]["steps"].append({"number": number, "seen": seen, "frame": shown})
        self.episodes[at]["end"] = end
        self.committed = False

    @precondition(lambda self: self.writer is not None)
    @rule(agent=AGENTS, seen=st.booleans())
    def end_episode(self, agent: str | None, seen: bool) -> None:
        assert self.writer is not None
        number, self.made = self.made, self.made + 1
        at = self.open.pop(agent, None)
        if at is None:
            seen = False
        self.writer.end_episode(observation=self.observed(number) if seen else None, agent_id=agent)
        if at is not None:
            episode = self.episodes[at]
            episode["end"] = episode["end"] or "ended"
            episode["final"] = number if seen else None
            self.committed = False

    @precondition(lambda self: self.writer is not None)
    @rule()
    def refused(self) -> None:
        assert self.writer is not None
        with pytest.raises(SchemaError):
            self.writer.record_step(reward=0, observation="text", agent_id="c")
        with pytest.raises(BusyError):
            ReplayWriter(self.root, "run", mode="a")

    @precondition(lambda self: self.writer is not None)
    @rule()
    def commit(self) -> None:
        assert self.writer is not None
        self.writer.commit()
        self.committed = True

    @precondition(lambda self: self.writer is not None)
    @rule()
    def close_writer(self) -> None:
        assert self.writer is not None
        self.writer.close()
        self.writer = None
        self.committed = True

    # A reader in the same process.

    @precondition(lambda self: self.reader is None)
    @rule()
    def open_reader(self) -> None:
        self.reader = ReplayReader.open(self.root)

    @precondition(lambda self: self.reader is not None)
    @rule()
    def close_reader(self) -> None:
        assert self.reader is not None
        self.reader.close()
        self.reader = None

    @invariant()
    def what_is_committed_is_there(self) -> None:
        if self.reader is not None and self.committed:
            self.reader.refresh()
            self.look(self.reader)

    @precondition(lambda self: self.reader is not None and not self.committed)
    @rule()
    def look_in_between(self) -> None:
        """Some of the steps, in order, and all of their arrays."""
        assert self.reader is not None
        self.reader.refresh()
        for episode in self.reader.episodes:
            want = self.episodes[episode.number]["steps"]
            got = self.reader.episode(episode.episode_id)
            assert got.rewards.tolist() == [s["number"] for s in want[: len(got)]]
            seen = [s["number"] for s in want[: len(got)] if s["seen"]]
            for row, number in enumerate(seen):
                assert_tree(row_of(got.observations, row), self.observed(number))


ReplayMachine.TestCase.settings = settings(
    max_examples=scaled(40, smallest=5), stateful_step_count=25, deadline=None
)
TestReplayStates = ReplayMachine.TestCase
