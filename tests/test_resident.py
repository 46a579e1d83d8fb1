"""Rows on a device give what the same loader gives on the host: here the device is the CPU, and
tests/gpu has the same on a real one."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import stepwell as sw
from stepwell import game2048
from stepwell.memory import Arrays
from stepwell.source import Batch, Rows
from tests import children, steps
from tests.arrays import random_array
from tests.plain import PlainSource
from tests.test_decode import as_batch, random_steps

LENGTHS = [*steps.LENGTHS, 230, 3, 100]
N = sum(LENGTHS)
SHARES = [1.0, 0.6]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> sw.StepReader:
    path = tmp_path_factory.mktemp("resident") / "steps"
    steps.build(path, LENGTHS)
    return sw.StepReader.open(path)


@pytest.fixture
def device() -> str:
    return "cpu"


def assert_same(got: Any, want: Any) -> None:
    """The same fields, types and bits."""
    assert list(got) == list(want)
    for name, values in want.items():
        assert got[name].dtype == values.dtype, name
        assert got[name].shape == values.shape, name
        assert got[name].cpu().numpy().tobytes() == values.cpu().numpy().tobytes(), name


def assert_same_loops(got: Any, want: Any) -> None:
    count = 0
    for mine, other in zip(got, want, strict=True):
        assert_same(mine, other)
        count += 1
    assert count > 0


# Order and state.


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("batch_size", [1, 16, 33, N, 10**9])
def test_epochs_are_those_of_the_host(
    dataset: Any, batch_size: int, share: float, device: str
) -> None:
    there = sw.torch.Loader(dataset.to(device, resident=share), batch_size, seed=7)
    here = sw.torch.Loader(dataset, batch_size, seed=7)
    for _ in range(2):
        assert_same_loops(there, here)


SAMPLERS = [
    sw.Sequential(window=3, stride=2),
    sw.Block(4, seed=1),
    sw.Block(4, seed=1, group=7, lanes=3),
    sw.Block(4, seed=1, group=8, lanes=4),
    sw.Iid(3),
    sw.Weighted(np.arange(N) + 1),
]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda each: each.name)
@pytest.mark.parametrize("drop_last", [False, True])
def test_every_sampler_and_rank(dataset: Any, sampler: Any, drop_last: bool, device: str) -> None:
    resident = dataset.to(device)
    for rank in range(3):
        options = {"sampler": sampler, "drop_last": drop_last, "rank": rank, "world_size": 3}
        here = sw.torch.Loader(dataset, 7, **options)
        assert_same_loops(sw.torch.Loader(resident, 7, **options), here)


def test_a_sampler_of_ones_own(dataset: Any, device: str) -> None:
    class Backwards:
        name, seed, length = "Backwards", 0, N

        def order(self, length: int) -> "Backwards":
            return self

        def rows(self, epoch: int, start: int, count: int) -> Rows:
            return np.arange(N)[::-1][start : start + count].copy()

    got = [
        batch["run_id"] for batch in sw.torch.Loader(dataset.to(device), 50, sampler=Backwards())
    ]
    assert torch.cat(got).tolist() == dataset[::-1]["run_id"].tolist()


@pytest.mark.parametrize("share", SHARES)
def test_a_run_stops_on_the_host_and_goes_on_with_rows_on_a_device(
    dataset: Any, share: float, device: str
) -> None:
    """Each part takes some batches, in the middle of what is made ahead, and hands its state on."""
    resident = dataset.to(device, resident=share)
    want = np.concatenate([sw.Shuffle(5).order(N).rows(epoch, 0, N) for epoch in range(3)])
    got: list[Any] = []
    state: Any = None
    for part in range(40):
        source = (dataset, resident)[part % 2]
        loader = sw.torch.Loader(source, 3 + part % 5, seed=5)
        if state is not None:
            loader.load_state_dict(state)
        loop = loader.forever()
        got += [next(loop) for _ in range(part % 7)]
        state = loader.state_dict()
        loader.close()
    expected = sw.torch.as_tensors(dataset.take(want))
    done = {name: torch.cat([batch[name].cpu() for batch in got]) for name in expected}
    count = len(done["move"])
    assert N < count < 3 * N
    assert_same(done, {name: values[:count] for name, values in expected.items()})


def test_batches_are_ones_own_to_keep_and_to_change(dataset: Any, device: str) -> None:
    loader = sw.torch.Loader(dataset.to(device), 8, seed=1)
    kept = list(loader)
    for batch in sw.torch.Loader(dataset.to(device), 8, seed=2):
        batch["move"].zero_()
    assert_same_loops(kept, sw.torch.Loader(dataset, 8, seed=1))
    kept[0]["move"].zero_()
    kept[1]["ev"].zero_()
    assert_same_loops(
        sw.torch.Loader(loader.source, 8, seed=1), sw.torch.Loader(dataset, 8, seed=1)
    )


# Views.

VIEWS: dict[str, Callable[[Any], Any]] = {
    "where": lambda s: s.where("max_score >= ?", 30),
    "where twice": lambda s: s.where("max_score >= 10").where("max_score <> 30"),
    "split": lambda s: s.split(0.5, seed=3)[1],
    "select": lambda s: s.select(np.array([5, 5, 301, 0])),
    "slice": lambda s: s.select(slice(300, 10, -3)),
    "columns": lambda s: s.columns({"a": "move", "b": "ev", "again": "move"}),
    "windows": lambda s: s.windows(5, 2),
    "padded": lambda s: s.windows(4, 3, pad=True),
    "windows of windows": lambda s: s.windows(3).windows(2),
    "padded windows of windows": lambda s: s.windows(3).windows(2, 2, pad=True).windows(2),
    "padded by nothing": lambda s: s.windows(3).windows(1, pad=True).windows(2),
    "many": lambda s: (
        s.where("max_score >= 30")
        .split(0.7)[0]
        .columns(["ev", "board", "step_index"])
        .select(slice(1, None))
        .windows(6, pad=True)
        .select(slice(None, None, 2))
    ),
}


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_views_are_those_of_the_host(dataset: Any, view: Any, share: float, device: str) -> None:
    resident = dataset.to(device, resident=share)
    there, here = view(resident), view(dataset)
    assert there.fingerprint == here.fingerprint
    assert there._table is resident._table  # no second copy of a row
    assert_same_loops(sw.torch.Loader(there, 16, seed=7), sw.torch.Loader(here, 16, seed=7))
    rows = np.arange(len(here))[::-1].copy()
    want = here.take(rows)
    assert_same(there.tensors(rows), sw.torch.as_tensors(want))
    assert {n: v.tobytes() for n, v in there.take(rows).items()} == {
        n: v.tobytes() for n, v in want.items()
    }


def test_a_part_of_a_part_that_went_to_the_device(dataset: Any, device: str) -> None:
    part = dataset.where("max_score >= 20")
    there, here = part.to(device).where("max_score > 50"), part.where("max_score > 50")
    assert len(there) == len(here) > 0
    assert_same(there.tensors([0, len(here) - 1]), sw.torch.as_tensors(here[[0, len(here) - 1]]))


def test_runs_and_queries_are_those_of_the_dataset(dataset: Any, device: str) -> None:
    resident = dataset.to(device)
    assert len(resident.runs) == len(LENGTHS)
    sql = "SELECT count(*) FROM runs WHERE max_score > ?"
    assert resident.query(sql, 30).rows == dataset.query(sql, 30).rows


# Types.

KINDS = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 5), (130,), (0,)], ids=str)
def test_every_type_and_shape(shape: tuple[int, ...], share: float, device: str) -> None:
    fields = {kind: random_array(kind, (70, *shape), seed=i) for i, kind in enumerate(KINDS)}
    source = sw.ArraySource(fields)
    whole = [kind for kind in KINDS if kind[0] in "iu"]
    for as_int64 in ([], whole):
        options: Any = {"seed": 3, "as_int64": as_int64}
        there = sw.torch.Loader(source.to(device, resident=share), 16, **options)
        assert_same_loops(there, sw.torch.Loader(source, 16, **options))


def test_a_source_that_only_python_reads(dataset: Any, device: str) -> None:
    values = {"x": random_array("u2", (90, 3)), "y": random_array("f4", 90)}
    for share in SHARES:
        there = sw.torch.Loader(PlainSource(values).to(device, resident=share), 8, seed=1)
        assert_same_loops(there, sw.torch.Loader(PlainSource(values), 8, seed=1))


# A transform, and tensors that stay.


class Shift:
    """Adds the epoch, in torch."""

    def __init__(self, epoch: int = -1) -> None:
        self.epoch = epoch

    def in_epoch(self, epoch: int) -> "Shift":
        return Shift(epoch)

    def __call__(self, batch: Any) -> Any:
        assert all(isinstance(each, torch.Tensor) for each in batch.values())
        return {"step": batch["step_index"] + self.epoch, "board": batch["board"]}


def test_a_transform_gets_tensors_and_its_epoch(dataset: Any, device: str) -> None:
    loader = sw.torch.Loader(
        dataset.to(device), 50, shuffle=False, transform=Shift(), as_int64=["board"]
    )
    for epoch in range(2):
        got = list(loader)
        step = torch.cat([batch["step"] for batch in got])
        assert step.tolist() == (dataset["step_index"][:] + np.uint8(epoch)).tolist()
        assert got[0]["board"].dtype == torch.int64


@pytest.mark.parametrize("transform", [None, dict], ids=["as it is", "transformed"])
@pytest.mark.parametrize("place", ["host", "device"])
def test_static_batches_fill_the_same_tensors(
    dataset: Any, place: str, transform: Any, device: str
) -> None:
    source = dataset if place == "host" else dataset.to(device)
    options: Any = {"seed": 7, "drop_last": True, "transform": transform}
    loader, plain = (sw.torch.Loader(s, 32, **options) for s in (source, dataset))
    places = set()
    for _ in range(2):
        for got, want in zip(loader.static_batches(), plain, strict=True):
            assert_same(got, want)
            places.add(tuple(each.data_ptr() for each in got.values()))
            for each in got.values():
                each.zero_()  # a step may use them up
    assert len(places) == 1
    assert loader.state_dict() == plain.state_dict()


def test_static_batches_of_unlike_sizes_are_refused(dataset: Any, device: str) -> None:
    with pytest.raises(ValueError, match=f"the last of an epoch has {N % 32} rows instead of 32"):
        sw.torch.Loader(dataset.to(device), 32).static_batches()
    assert len(list(sw.torch.Loader(dataset, N).static_batches())) == 1
    resumed = sw.torch.Loader(dataset, 1)
    next(iter(resumed))
    loader = sw.torch.Loader(dataset, 13 * 31)
    assert N % loader.batch_size == 0
    loader.load_state_dict(resumed.state_dict())
    assert next(loader.static_batches())["move"].shape == (N - 1,)
    with pytest.raises(ValueError, match="static_batches: expected"):
        next(loader.static_batches())


# Bad input.


def test_what_does_not_fit_is_refused_with_both_sizes(device: str) -> None:
    source = Arrays({"x": np.broadcast_to(np.uint64(7), 1 << 45)})
    with pytest.raises(MemoryError, match=rf"at most [\d,]+ bytes.* got {1 << 48:,}"):
        source.to(device)


def test_row_numbers_of_more_than_32_bits(device: str) -> None:
    source = Arrays({"x": np.broadcast_to(np.uint64(7), 1 << 40)})
    resident = source.to(device, resident=1e-9)
    assert resident._table.number == torch.int64
    got = resident.tensors([0, 1 << 39, 1000, (1 << 40) - 1])
    assert got["x"].tolist() == [7] * 4
    batch = next(iter(sw.torch.Loader(resident, 1000, seed=1)))
    assert batch["x"].tolist() == [7] * 1000


def test_fields_that_cannot_be_there_are_named(device: str) -> None:
    ragged = PlainSource({"tokens": [np.arange(2), np.arange(3)]})
    with pytest.raises(sw.SchemaError, match="'tokens'"):
        ragged.to(device)
    with pytest.raises(sw.SchemaError, match=r"'odd'.*>f4"):
        sw.ArraySource({"odd": np.zeros(3, ">f4")}).to(device)


@pytest.mark.parametrize("name", ["cuda:99", "nothing", "meta", 3.5])
def test_a_device_that_is_not_here(dataset: Any, name: Any, device: str) -> None:
    with pytest.raises(ValueError, match="device: expected"):
        dataset.to(name)
    with pytest.raises(ValueError, match="device: expected"):
        sw.torch.Loader(dataset.to(device), 8, device=name)


@pytest.mark.parametrize("share", [0, 1.5, -1, float("nan")])
def test_a_share_that_makes_no_sense(dataset: Any, share: float, device: str) -> None:
    with pytest.raises(ValueError, match=r"resident: expected .* got"):
        dataset.to(device, resident=share)


def test_rows_out_of_range(dataset: Any, device: str) -> None:
    with pytest.raises(IndexError, match=f"row {N} "):
        dataset.to(device).tensors([0, N])


def test_what_has_to_be_done_on_the_host(dataset: Any, device: str) -> None:
    resident = dataset.to(device)
    calls: list[Callable[[], Any]] = [
        lambda: resident.concat(resident),
        lambda: resident.map(lambda batch: batch),
        resident.transitions,
        resident.returns_to_go,
        lambda: resident.windows(2, pad=True).columns(["ev"]).windows(2, pad=True),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=rf"expected rows on the host.*\.to\('{device}"):
            call()
    with pytest.raises(ValueError, match="where: expected rows of a step dataset"):
        resident.columns(["move"]).where("1")
    with pytest.raises(TypeError, match="pickle the source"):
        pickle.dumps(resident)


def test_after_close(tmp_path: Path, device: str) -> None:
    steps.build(tmp_path / "s")
    resident = sw.StepReader.open(tmp_path / "s").to(device)
    part = resident.where("max_score >= 30")
    loader = sw.torch.Loader(resident, 8)
    loop = iter(loader)
    batch = next(loop)
    resident.close()
    resident.close()
    assert "closed" in repr(resident)
    assert len(batch["move"]) == 8
    loader.close()
    for call in (
        lambda: next(loop),
        lambda: resident.tensors([0]),
        lambda: resident.columns(["ev"]),
    ):
        with pytest.raises(ValueError, match="closed"):
            call()
    assert len(part.tensors([0, 1])["move"]) == 2


def test_a_dataset_that_has_grown(tmp_path: Path, device: str) -> None:
    rows = steps.build(tmp_path / "s")
    reader = sw.StepReader.open(tmp_path / "s")
    resident = reader.to(device)
    state = sw.torch.Loader(resident, 8).state_dict()
    steps.build(tmp_path / "s", [*steps.LENGTHS, 9])
    assert reader.refresh()
    assert len(resident) == len(rows)
    sw.torch.Loader(resident, 8).load_state_dict(state)
    assert sum(len(batch["move"]) for batch in sw.torch.Loader(resident, 8)) == len(rows)
    with pytest.raises(IndexError, match=f"row {len(rows)} "):
        resident.take([len(rows)])
    with pytest.raises(ValueError, match="the source has"):
        resident.where("1")


def test_what_it_shows(dataset: Any, device: str) -> None:
    assert repr(dataset.to(device)).startswith(f"Resident({N} rows, {len(LENGTHS)} runs, ")
    assert f", device='{device}" in repr(dataset.to(device))
    assert f"{-(-N * 3 // 5)} rows there" in repr(dataset.to(device, resident=0.6))


class Damaged(PlainSource):
    """One row cannot be read."""

    bad = -1

    def _fill(self, rows: Rows, out: Batch) -> None:
        if self.bad in rows:
            raise sw.FormatError(f"row {self.bad} is damaged")
        super()._fill(rows, out)


def test_a_damaged_row_on_the_host_stops_its_own_batch_only(device: str) -> None:
    source = Damaged({"x": np.arange(1000)})
    resident = source.to(device, resident=0.5)
    resident._table.source.bad = 900  # type: ignore[attr-defined]
    loader = sw.torch.Loader(resident, 10, shuffle=False)
    got = []
    with pytest.raises(sw.FormatError, match="row 900") as caught:
        got += [batch["x"].tolist() for batch in loader]
    assert caught.value.__notes__ == ["in the batch of 10 rows at position 900 of epoch 0"]
    with pytest.raises(ValueError, match="on_corrupt='skip'"):
        next(iter(sw.torch.Loader(resident, 10, on_corrupt="skip")))
    source.bad = -1
    rest = sw.torch.Loader(resident, 10, shuffle=False)
    rest.load_state_dict(loader.state_dict())
    assert loader.position == 900
    assert next(iter(rest))["x"].tolist() == list(range(900, 910))


def test_a_forked_child_reads_too(dataset: Any) -> None:
    loader = sw.torch.Loader(dataset.to("cpu"), 10, seed=1)
    first = next(iter(loader))["run_id"].tolist()
    fresh = sw.torch.Loader(loader.source, 10, seed=1)
    assert children.in_fork(lambda: next(iter(fresh))["run_id"].tolist()) == first


def test_other_loaders_read_the_source(dataset: Any, device: str) -> None:
    resident = dataset.to(device)
    for got, want in zip(sw.Loader(resident, 50), sw.Loader(dataset, 50), strict=True):
        assert got["ev"].tobytes() == want["ev"].tobytes()
    assert isinstance(resident["move"][3], np.uint8)


# 2048.


@pytest.mark.parametrize("boards", ["exponents", "one_hot"])
@pytest.mark.parametrize("shape", [(0,), (1000,), (50, 20)], ids=str)
@pytest.mark.parametrize("turn", [None, 5, "each"], ids=str)
def test_decode_is_that_of_the_host(boards: Any, shape: tuple[int, ...], turn: Any) -> None:
    count = int(np.prod(shape))
    batch = as_batch(random_steps(count))
    batch = {n: v.reshape(*shape, *v.shape[1:]) for n, v in batch.items()}
    turns = np.random.default_rng(3).integers(0, 8, shape) if turn == "each" else turn
    want = game2048.decode(batch, boards=boards, symmetries=turns)
    tensors = sw.torch.as_tensors(batch)
    turned = torch.from_numpy(turns) if turn == "each" else turn
    got = sw.torch.game2048.decode(tensors, boards=boards, symmetries=turned)
    assert_same(got, sw.torch.as_tensors(want))


def test_decode_as_a_transform_draws_what_the_host_draws(device: str) -> None:
    source = sw.ArraySource(random_steps(500))
    options: Any = {"boards": "one_hot", "augment": True, "seed": 11}
    there = sw.torch.Loader(
        source.to(device), 64, seed=2, transform=sw.torch.game2048.Decode(**options)
    )
    here = sw.torch.Loader(source, 64, seed=2, transform=game2048.Decode(**options))
    for _ in range(2):
        assert_same_loops(there, here)


def test_decode_names_what_is_wrong() -> None:
    batch = sw.torch.as_tensors(as_batch(random_steps(3)))
    decode = sw.torch.game2048.decode
    with pytest.raises(ValueError, match="move: expected 0 to 3, got 9"):
        decode({**batch, "move": torch.tensor([0, 9, 1], dtype=torch.uint8)})
    with pytest.raises(ValueError, match="symmetries: expected 0 to 7, got 8"):
        decode(batch, symmetries=8)
    with pytest.raises(ValueError, match="symmetries: expected one or"):
        decode(batch, symmetries=torch.zeros(2, dtype=torch.int64))
    with pytest.raises(TypeError, match=r"board: expected .* got torch.float32"):
        decode({**batch, "board": torch.zeros(3)})
    with pytest.raises(KeyError, match="'ev_values'"):
        decode({name: batch[name] for name in ("board", "move", "ev_legal")})
