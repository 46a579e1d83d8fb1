"""Training on data that grows: each epoch has the rows of its beginning, whatever is resumed."""

import json
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell as sw
from stepwell.source import Rows
from stepwell.store import Store

SEED = 3


def grow(kind: str, path: Path, rows: range) -> None:
    """What comes every hour: rows that carry their numbers."""
    numbers: Any = np.arange(rows.start, rows.stop)
    writer: Any
    if kind == "shards":
        numbers = numbers.astype(np.float32)[:, None]
        writer = sw.ShardWriter(path, 1, mode="a")
    elif kind == "steps":
        writer = sw.StepWriter(path, [("x", "<i8")], mode="a")
    else:
        writer = sw.RecordWriter(path, {"x": "<i8"}, mode="a")
    with writer:
        writer.append(numbers if kind == "shards" else {"x": numbers})


def train(
    kind: str, path: Path, torch: bool, state: Any, world: int, batch: int, stops: tuple[int, int]
) -> tuple[list[tuple[int, list[int]]], dict[str, Any]]:
    """Global steps of the ranks, an hour's rows in the middle of them, and the state at the end."""
    source: Store = sw.open(path)
    options: Any = {"seed": SEED, "world_size": world}
    make: Any = sw.torch.Loader if torch else sw.Loader
    loaders = [make(source, batch, rank=rank, **options) for rank in range(world)]
    for loader in loaders:
        if state is not None:
            loader.load_state_dict(state)
    read: list[tuple[int, list[int]]] = []
    (first,) = source.schema

    def steps() -> Iterator[None]:
        loops = [loader.forever() for loader in loaders]
        while True:
            begun = loaders[0].state_dict()["position"]
            parts = [np.asarray(next(loop)[first]).reshape(-1) for loop in loops]
            # What a shared tail repeats is padding, not progress.
            rows = np.concatenate(parts)[: loaders[0].position - begun]
            read.append((loaders[0].epoch, rows.astype(int).tolist()))
            assert len({json.dumps(loader.state_dict()) for loader in loaders}) == 1
            yield

    going = steps()
    list(islice(going, stops[0]))
    before = loaders[0].state_dict()
    grow(kind, path, range(len(source), len(source) + 100))
    assert source.refresh()
    if before["position"]:
        assert loaders[0].state_dict() == before
        assert loaders[0].rows == before["length"] < len(source)
    list(islice(going, stops[1]))
    return read, json.loads(json.dumps(loaders[0].state_dict()))


@pytest.mark.parametrize("kind", ["steps", "records", "shards"])
@pytest.mark.parametrize("torch", [False, True], ids=["numpy", "torch"])
def test_rows_that_come_every_hour(
    kind: str, torch: bool, tmp_path: Path, children: dict[str, ProcessPoolExecutor]
) -> None:
    path = tmp_path / kind
    grow(kind, path, range(200))
    read: list[tuple[int, list[int]]] = []
    state: Any = None
    # World, batch size, steps before and after the rows of an hour come.
    parts = [(1, 30, (2, 1)), (3, 7, (2, 2)), (2, 16, (9, 1)), (1, 50, (7, 1)), (1, 64, (9, 5))]
    for number, (world, batch, stops) in enumerate(parts):
        call = (kind, path, torch, state, world, batch, stops)
        fresh = number % 2 == 1
        some, state = children["spawn"].submit(train, *call).result(100) if fresh else train(*call)
        read += some
    epochs: dict[int, list[int]] = {}
    for epoch, rows in read:
        epochs.setdefault(epoch, []).extend(rows)
    whole = list(epochs.values())[:-1]  # the last one is not at its end
    assert len(whole) > 2
    lengths = [len(rows) for rows in whole]
    assert lengths[0] == 200
    assert lengths == sorted(set(lengths))
    for epoch, rows in enumerate(whole):
        order = sw.Shuffle(SEED).order(len(rows))
        assert rows == order.rows(epoch, 0, len(rows)).tolist()


def after(source: sw.Source, seen: int) -> dict[str, Any]:
    """The state of a loader that stands inside its first epoch."""
    loader = sw.Loader(source, 8, seed=SEED)
    list(islice(loader, seen))
    return loader.state_dict()


def rest(source: sw.Source, state: dict[str, Any]) -> Rows:
    loader = sw.Loader(source, 5, seed=SEED)
    loader.load_state_dict(state)
    return np.concatenate([batch["x"].reshape(len(batch["x"]), -1)[:, 0] for batch in loader])


VIEWS: dict[str, Callable[[Any], sw.Source]] = {
    "select": lambda source: source.select([5, 99, 0, 7, 1, 8, 30, 2, 3, 64, 50, 41]),
    "columns": lambda source: source.columns(["x"]),
    "map": lambda source: source.map(dict),
    "slice": lambda source: source.select(slice(3, None)),
    "windows": lambda source: source.windows(3),
    "padded": lambda source: source.windows(3, pad=True),
    "transitions": lambda source: source.transitions(
        2, observation="x", reward="x", terminated=True
    ),
    "returns": lambda source: source.returns_to_go(reward="x"),
    "concat": lambda source: sw.ArraySource({"x": np.arange(-40, 0)}).concat(source),
    "part": lambda source: source.where("id >= 1"),
    "join": lambda source: sw.as_source({"x": source}),
}


@pytest.mark.parametrize("view", VIEWS)
def test_views_of_what_has_grown(tmp_path: Path, view: str) -> None:
    for rows in (range(60), range(60, 100)):
        grow("steps", tmp_path / "s", rows)
    source = sw.StepReader.open(tmp_path / "s")
    one = VIEWS[view](source)
    state, begin = after(one, 1), after(one, 0)
    want = rest(one, state)
    grow("steps", tmp_path / "s", range(100, 150))
    source.refresh()
    for grown in (one, VIEWS[view](sw.StepReader.open(tmp_path / "s"))):
        assert rest(grown, state).tolist() == want.tolist()
        assert len(rest(grown, begin)) == len(grown)  # nothing was read: all that is there
    there = pickle.loads(pickle.dumps(one))  # as a worker process gets it
    assert (len(there), there.fingerprint) == (len(one), one.fingerprint)
    assert repr(there[:]) == repr(one[:])


def test_rows_from_the_end_of_what_has_grown(tmp_path: Path) -> None:
    grow("steps", tmp_path / "s", range(5))
    source = sw.StepReader.open(tmp_path / "s")
    backwards, none = source.select(slice(None, None, -1)), source.select(slice(9, None))
    grow("steps", tmp_path / "s", range(5, 20))
    source.refresh()
    assert pickle.loads(pickle.dumps(backwards))["x"][:].tolist() == [4, 3, 2, 1, 0]
    assert len(pickle.loads(pickle.dumps(none))) == 0


def test_runs_of_parts_of_which_one_has_grown(tmp_path: Path) -> None:
    grow("steps", tmp_path / "s", range(4))
    source = sw.StepReader.open(tmp_path / "s")
    both = source.concat(sw.ArraySource({"x": np.arange(100, 104)}))
    windows = [[0, 1, 2], [1, 2, 3], [100, 101, 102], [101, 102, 103]]
    assert both.windows(3)["x"][:].tolist() == windows
    grow("steps", tmp_path / "s", range(4, 10))
    source.refresh()
    assert both.windows(3)["x"][:].tolist() == windows
    assert both.returns_to_go(reward="x").windows(3)["x"][:].tolist() == windows


def test_rows_that_are_not_those_of_the_state(tmp_path: Path) -> None:
    """Neither a source that is shorter now, nor one that begins with others."""
    grow("records", tmp_path / "r", range(50))
    state = after(sw.RecordReader.open(tmp_path / "r"), 2)
    for other, field in ((np.arange(49), "length"), (np.arange(60) // 2, "fingerprint")):
        with pytest.raises(sw.StateError, match=field):
            rest(sw.ArraySource({"x": other}), state)
    assert sorted(rest(sw.ArraySource({"x": np.arange(60)}), state))[-1] < 50
    with pytest.raises(sw.StateError, match="sampler"):  # of weights for rows that there were
        sw.Loader(
            {"x": np.arange(60)}, 5, sampler=sw.Weighted(np.ones(60), seed=SEED)
        ).load_state_dict(
            sw.Loader(
                {"x": np.arange(50)}, 5, sampler=sw.Weighted(np.ones(50), seed=SEED)
            ).state_dict()
        )


def test_a_loop_under_way_and_the_next_one(tmp_path: Path) -> None:
    grow("records", tmp_path / "r", range(10))
    with sw.RecordReader.open(tmp_path / "r") as source:
        loader = sw.Loader(source, 2, seed=SEED)
        loop = iter(loader)
        begun = [next(loop)["x"] for _ in range(4)]
        grow("records", tmp_path / "r", range(10, 20))
        source.refresh()
        assert (loader.rows, len(loader), loader.remaining) == (10, 5, 1)
        assert "rows=10" in repr(loader)
        loader.close()  # which forgets what was made ahead, not the order
        begun += [next(loop)["x"]]
        assert (loader.rows, len(loader), loader.state_dict()["length"]) == (20, 10, 20)
        assert next(loop, None) is None
        assert np.concatenate(begun).tolist() == sw.Shuffle(SEED).order(10).rows(0, 0, 10).tolist()
        rows = np.concatenate([batch["x"] for batch in loader])
        assert rows.tolist() == sw.Shuffle(SEED).order(20).rows(1, 0, 20).tolist()
