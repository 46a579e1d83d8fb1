"""The stores that are attacked, a few kB each, and what is done with them."""

import hashlib
import os
import pickle
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import stepwell as sw
from stepwell.replay import ReplayReader, ReplayWriter
from stepwell.store import Store
from stepwell.stores import ArrayRecordSource, RowState
from tests import packs, records, replays, steps
from tests.runs import RUN_V1, RUN_V2

Answer = Any
"""Something that can be compared: what a healthy store answered is what is right."""


def digest(value: Any) -> Answer:
    """Rows by type, shape and bytes, everything else by what it prints."""
    if isinstance(value, dict):
        return {name: digest(each) for name, each in value.items()}
    if isinstance(value, sw.Ragged):
        begin, end = value.offsets[[0, -1]] if len(value.offsets) else (0, 0)
        return digest(value.values[begin:end]), value.lengths.tolist(), value.kind
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "O":
            return repr(value.tolist())
        data = hashlib.sha1(np.ascontiguousarray(value).tobytes()).hexdigest()
        return str(value.dtype), value.shape, data
    if isinstance(value, list | tuple):
        return [digest(each) for each in value]
    return repr(value)


class Target(ABC):
    """A store in a folder of its own. Its files are those below the folder."""

    name: ClassVar[str]
    states: ClassVar[tuple[str, ...]] = ("closed", "killed")
    """Whether its writer came to an end, or left what a kill leaves, or that and a power cut."""
    outside: ClassVar[str] = ""
    """Files of this folder are not on a disk, so there are no links or pipes among them."""
    left_out: ClassVar[tuple[str, ...]] = ()
    """Calls that it does not have."""
    refuses: ClassVar[tuple[type[Exception], ...]] = ()
    """Errors for a file that the user named, as Python's `open` has them."""
    condition: ClassVar[str] = ""
    """An SQL condition that some of its runs fulfil."""

    @abstractmethod
    def write(self, path: Path, stamps: range) -> Iterator[None]:
        """Add these in a way that the writer is between two commits at each yield."""

    def placed(self, path: Path) -> None:
        """A copy was put there."""

    def file(self, path: Path, name: str) -> Path:
        """Where a file of the store is."""
        return path / name

    def open(self, path: Path) -> Any:
        return sw.open(path)

    def rows(self, store: Any) -> Answer:
        return digest(store[:])

    # What is done with it, a method each: with the folder, or a store opened before the damage.

    def do_open(self, path: Path) -> Answer:
        with self.open(path) as store:
            repr(store)
            return len(store), digest(store.schema)

    def do_take(self, path: Path) -> Answer:
        with self.open(path) as store:
            return self.rows(store)

    def do_some(self, path: Path) -> Answer:
        with self.open(path) as store:
            if len(store) < 4:  # too few: the answer is wrong, not the call
                return len(store)
            return digest(store.take([3, 0, 3])), digest(store[1])

    def do_loader(self, path: Path) -> Answer:
        with self.open(path) as store:
            if not len(store):
                return 0
            loader = sw.Loader(store, 7, seed=5, threads=2)
            try:
                return [digest(batch) for batch in loader]
            finally:
                loader.close()

    def do_describe(self, path: Path) -> Answer:
        with self.open(path) as store:
            found = store.describe()
            if found.health != "fine" and not found.rows:
                raise sw.FormatError(found.health, path=str(path))
            return found.rows, found.runs, digest(found.fields), found.columns

    def do_verify(self, path: Path) -> Answer:
        """It may not raise; and what it calls sound has to be."""
        with self.open(path) as store:
            try:
                report = store.verify()
            except Exception as error:
                raise AssertionError(f"verify raised {error!r}") from error
            if report.problems:
                raise report.problems[0]
            return self.rows(store)

    def do_where(self, path: Path) -> Answer:
        with self.open(path) as store:
            return self.rows(store.where(self.condition))

    def do_query(self, path: Path) -> Answer:
        with self.open(path) as store:
            return digest([store.query("SELECT count(*) FROM runs").rows, store.runs.rows])

    def do_append(self, path: Path) -> Answer:
        for _ in self.write(path, range(7, 9)):
            pass
        return self.do_take(path)

    def do_reopen(self, path: Path) -> Answer:
        """A writer comes, changes nothing, and goes."""
        for _ in self.write(path, range(0)):
            pass
        return self.do_take(path)

    def do_refresh(self, store: Any) -> Answer:
        store.refresh()
        return self.rows(store)

    def do_later(self, store: Any) -> Answer:
        return self.rows(store)

    def do_unpickle(self, store: Any) -> Answer:
        """Pickled before the damage."""
        with pickle.loads(store) as copy:
            return self.rows(copy)

    @property
    def calls(self) -> dict[str, Callable[[Any], Answer]]:
        found = {
            name[3:]: getattr(self, name) for name in sorted(dir(self)) if name.startswith("do_")
        }
        left_out = self.left_out if self.condition else (*self.left_out, "where", "query")
        return {name: do for name, do in found.items() if name not in left_out}

    # Making one.

    def make(self, path: Path, state: str) -> None:
        pid = os.fork()
        if not pid:
            try:
                for number, _ in enumerate(self.write(path, range(1, 7))):
                    if state != "closed" and number == 4:
                        os.kill(os.getpid(), signal.SIGKILL)
                os._exit(0)
            finally:
                os._exit(1)
        _, status = os.waitpid(pid, 0)
        assert status == (0 if state == "closed" else signal.SIGKILL), f"{self.name}: {status}"
        if state == "rebooted":  # so the lock is not of a writer that anyone remembers
            (path / "writer.lock").unlink()


WRITERS = ("append", "reopen", "rebalance")
BEFORE = ("refresh", "later")
"""Calls of a store that was opened before the damage."""


class Steps(Target):
    name = "steps"
    condition = "max_score > 20"
    shard_rows: ClassVar[int | None] = None

    def write(self, path: Path, stamps: range) -> Iterator[None]:
        with sw.StepWriter(
            path, steps.STEP, steps.COLUMNS, mode="a", shard_rows=self.shard_rows
        ) as writer:
            for stamp in stamps:
                writer.append(steps.rows_of(stamp - 1, 5 + stamp % 3), **steps.columns(stamp))
                writer.commit()
                yield

    def do_map(self, path: Path) -> Answer:
        with sw.StepReader.open(path, memory="map") as store:
            return self.rows(store)

    def do_run(self, path: Path) -> Answer:
        with self.open(path) as store:
            return digest([[store.run(i) for i in store.runs["id"]], store.runs.rows])


class ShardedSteps(Steps):
    name = "sharded-steps"
    shard_rows = 8


class Records(Target):
    name = "records"
    states = ("closed", "killed", "rebooted")

    def write(self, path: Path, stamps: range) -> Iterator[None]:
        fields = records.fields("zstd", ["n", "text", "image"]) | records.fields("raw", ["x"])
        with sw.RecordWriter(
            path, fields, mode="a", chunk_records=5, grow_bytes=512, threads=1
        ) as writer:
            for stamp in stamps:
                numbers = range(stamp * 3, stamp * 3 + 3)
                writer.append(records.batch(numbers, list(fields)))
                if stamp % 3 == 2:
                    writer.update([1], records.batch([stamp], list(fields)))
                    writer.delete([0])
                writer.set_attributes({"stamp": stamp})
                writer.commit()
                yield

    def rows(self, store: Any) -> Answer:
        return digest([store[:], store.attributes, store.present(range(len(store)))])

    def do_views(self, path: Path) -> Answer:
        with self.open(path) as store:
            return digest([np.array(each) for each in store["n"].views(range(len(store)))])

    def do_rebalance(self, path: Path) -> Answer:
        with sw.RecordWriter(path, mode="a", threads=1) as writer:
            writer.rebalance()
        return self.do_take(path)


class Shards(Target):
    name = "shards"

    def write(self, path: Path, stamps: range) -> Iterator[None]:
        with sw.ShardWriter(path, 4, mode="a") as writer:
            for stamp in stamps:
                writer.append(np.arange(8.0).reshape(2, 4) + stamp * 100)
                writer.commit()
                yield

    def do_batches(self, path: Path) -> Answer:
        with self.open(path) as store:
            return [digest([batch.rows, batch.row_ids]) for batch in store.batches(5)]


class Cached(Shards):
    """Shards in a bucket, some of them kept in a cache, in a folder that is named after it."""

    name = "cached"
    states = ("closed",)
    outside = "bucket"
    left_out = ("append", "reopen", "unpickle")

    def write(self, path: Path, stamps: range) -> Iterator[None]:
        yield from super().write(path / "bucket", stamps)
        self.open(path).take([0, 5, 11])
        yield

    def open(self, path: Path) -> Any:
        from obstore.store import LocalStore

        bucket = LocalStore(path / "bucket")
        return sw.ShardReader.open(bucket, cache=path / "cache", cache_bytes=1000)

    def make(self, path: Path, state: str) -> None:
        super().make(path, state)
        (folder,) = (path / "cache").iterdir()
        folder.rename(path / "cache" / "kept")

    def placed(self, path: Path) -> None:
        kept = path / "cache" / "kept"
        kept.rename(path / "aside")
        self.open(path).close()
        (folder,) = (path / "cache").iterdir()
        folder.rmdir()
        (path / "aside").rename(folder)
        self._kept = folder.name

    def file(self, path: Path, name: str) -> Path:
        return path / name.replace("cache/kept", f"cache/{self._kept}")


class Pack(Target):
    """And what a killed packer left beside it, in the way of another pack."""

    name = "pack"
    refuses = (IsADirectoryError,)
    condition = "steps > 2"

    def write(self, path: Path, stamps: range) -> Iterator[None]:
        with sw.PackWriter(path / "new.a2pack") as writer:
            for stamp in stamps:
                writer.append(b"raw %d" % stamp * 100, 17)
                yield

    def make(self, path: Path, state: str) -> None:
        path.mkdir()
        super().make(path, state)
        (path / "new.a2pack").unlink(missing_ok=True)
        packs.write(path / "store.a2pack", [RUN_V1, RUN_V2] * 6)

    def open(self, path: Path) -> Any:
        return sw.open(path / "store.a2pack")

    def do_append(self, path: Path) -> Answer:
        for _ in self.write(path, range(7, 9)):
            pass
        with sw.PackReader.open(path / "new.a2pack") as store:
            return self.rows(store)

    def do_reopen(self, path: Path) -> Answer:
        with self.open(path) as store:
            return digest([bytes(each) for each in store.slices(range(len(store)))])

    def do_decode(self, path: Path) -> Answer:
        with self.open(path) as store:
            return digest([run.to_bytes() for run in store.decode_batch([1, 0])])

    def do_stats(self, path: Path) -> Answer:
        with self.open(path) as store:
            return digest(store.stats)


class Replay(Target):
    name = "replay"
    condition = "total_reward > 4"

    def write(self, path: Path, stamps: range) -> Iterator[None]:
        with ReplayWriter(path, "run", mode="a", flush_every=1e9) as writer:
            for stamp in stamps:
                for last in (False, True):
                    writer.record_step(
                        reward=stamp,
                        observation={
                            "small": replays.camera(stamp)[:, :3],
                            "pose": replays.pose(1),
                        },
                        action=stamp,
                        terminated=last,
                        frame=replays.frame(stamp)[:4] if last else None,
                        info={"stamp": stamp},
                    )
                writer.commit()
                yield

    def do_episode(self, path: Path) -> Answer:
        with ReplayReader.open(path) as store:
            found = [store.episode(each.episode_id) for each in store.episodes]
            return [
                digest([each.observations, each.frames, each.rewards, each.infos, len(each)])
                for each in found
            ]

    def do_query(self, path: Path) -> Answer:
        with self.open(path) as store:
            return digest(
                [store.query("SELECT count(*), sum(reward) FROM steps").rows, store.runs.rows]
            )


class State(Target):
    """What is kept for rows: its writer is what reads it."""

    name = "rowstate"

    def write(self, path: Path, stamps: range) -> Iterator[None]:
        with RowState(path, 3) as state:
            for stamp in stamps:
                state.put([stamp, 60 - stamp], np.full((2, 3), stamp))
                if stamp % 2:
                    state.commit()
                yield

    def open(self, path: Path) -> Any:
        return RowState(path)

    def rows(self, store: Any) -> Answer:
        return digest([store.get(range(64)), store.present(range(64)), len(store)])

    @property
    def calls(self) -> dict[str, Callable[[Any], Answer]]:
        names = ("take", "append", "reopen", "later")
        return {name: getattr(self, f"do_{name}") for name in names}


class Array(Target):
    name = "npy"
    refuses = (IsADirectoryError,)
    states = ("closed",)
    left_out = ("append", "reopen")

    def write(self, path: Path, stamps: range) -> Iterator[None]:
        path.mkdir()
        np.save(path / "a.npy", steps.rows_of_all())
        yield

    def open(self, path: Path) -> Any:
        return sw.open(path / "a.npy")

    def do_map(self, path: Path) -> Answer:
        with sw.ArraySource.open(path / "a.npy", memory="map") as store:
            return self.rows(store)


class ArrayRecord(Target):
    name = "arrayrecord"
    states = ("closed",)
    left_out = ("append", "reopen")

    def write(self, path: Path, stamps: range) -> Iterator[None]:
        sw.convert(sw.ArraySource(np.arange(240.0).reshape(60, 4)), path, to="arrayrecord")
        yield

    def open(self, path: Path) -> Store:
        return ArrayRecordSource.open(path)


KINDS: tuple[type[Target], ...] = (
    *(Steps, ShardedSteps, Records, Shards, Cached, Pack, Replay, State, Array, ArrayRecord),
)
TARGETS = {kind.name: kind() for kind in KINDS}


@contextmanager
def called(target: Target, call: str, path: Path) -> Iterator[Callable[[], Answer]]:
    """Something to call after the damage; what has to be done before it is done."""
    do = target.calls[call]
    if call == "unpickle":
        with target.open(path) as store:
            pickled = pickle.dumps(store)
        yield lambda: do(pickled)
    elif call in BEFORE:
        with target.open(path) as store:
            yield lambda: do(store)
    else:
        yield lambda: do(path)
