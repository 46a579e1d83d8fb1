"""What people write, for type checkers: mypy and pyright accept it and see the types it names."""

from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

import stepwell as sw
from stepwell.views import Column


def stores(path: str) -> None:
    store = sw.open(path)
    assert_type(store, sw.Store)
    assert_type(store.where("score > ?", 9), sw.Source)
    assert_type(store["obs"], Column)
    assert_type(store["obs"][2:5], Any)
    assert_type(store[7], dict[str, Any])
    assert_type(store[2:5], dict[str, Any])
    assert_type(store[[1, 9]], dict[str, Any])
    assert_type(store.take(np.arange(3)), dict[str, Any])
    assert_type("obs" in store, bool)
    assert_type(store.query("SELECT * FROM runs").rows, list[tuple[Any, ...]])
    assert_type(store.describe().rows, int)
    assert_type(store.verify(quick=True).ok, bool)
    with store as opened:
        opened.refresh()
    steps = sw.StepReader.open(path, memory="map")
    assert_type(steps, sw.StepReader)
    assert_type(steps.where("score > ?", 9).split(0.9), tuple[sw.StepReader, sw.StepReader])
    assert_type(steps.runs["score"], Any)
    assert_type(steps.take([0, 9]), dict[str, Any])
    assert_type(steps.take([0, 9], packed=True), NDArray[Any])
    assert_type(sw.PackReader.open(path).where("steps > 9"), sw.PackReader)
    assert_type(sw.ReplayReader.open(path, n_step=3).episode("a"), sw.replay.EpisodeSteps)


def writers(path: str) -> None:
    columns: dict[str, type | sw.stores.RunColumn] = {"score": int}
    with sw.StepWriter(path, [("obs", "<f4", (4,))], columns, mode="a") as steps:
        steps.append({"obs": np.zeros((3, 4), "f4")}, score=7)
    fields = {"label": sw.Field("<i8"), "text": sw.Field(str, compress="zstd", optional=True)}
    with sw.RecordWriter(path, fields) as records:
        records.append({"label": [1, 2], "text": ["a", "b"]})
        records.commit()
    with sw.ReplayWriter(path, "run") as replay:
        assert_type(replay, sw.ReplayWriter)


def loaders(source: sw.Source) -> None:
    loader = sw.Loader(source, 256, seed=7, on_corrupt="skip")
    for batch in loader:
        assert_type(batch, dict[str, Any])
    assert_type(loader.batch_size, int)
    assert_type(loader.source, sw.Source)
    assert_type(loader.order.rows(0, 0, 9).tolist(), Any)
    assert_type((loader.epoch, loader.position, loader.remaining), tuple[int, int, int])
    for sampler in (sw.Shuffle(7), sw.Block(64), sw.Sequential(), sw.Iid(), sw.Weighted([1.0])):
        sw.Loader(source, 256, sampler=sampler)
    for tensors in sw.torch.Loader(source, 256, seed=7, threads=2, device="cpu"):
        assert_type(tensors, dict[str, Any])
    for arrays in sw.jax.Loader(source, 256, drop_last=True):
        arrays["obs"].sum()
    sw.torch.IterableDataset(source, 256, prefetch=2)


def modules(path: str) -> None:
    sw.game2048.pack_runs(path, f"{path}.a2pack")
    sw.convert(sw.formats.arrays({"obs": np.zeros(9)}, ends=np.zeros(9, bool)), path, to="steps")
    print(sw.replay.Record, sw.telemetry.migrate_telemetry)
    try:
        sw.open(path)
    except sw.KindError as error:
        assert_type(error.path, str | None)
