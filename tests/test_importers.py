"""What others have recorded becomes a step dataset, or a clear error and no dataset."""

import gc
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import minari
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import stepwell as sw
from stepwell import FormatError, SchemaError, importers
from tests import children

Arrays = dict[str, NDArray[Any]]


def d4rl(rows: int = 1000, seed: int = 0) -> Arrays:
    """What a file of D4RL has, where a run ends by itself or is cut off; the last one goes on."""
    random = np.random.default_rng(seed)
    return {
        "observations": random.normal(size=(rows, 3, 2)),
        "actions": random.normal(size=(rows, 2)).astype(np.float32),
        "rewards": random.normal(size=rows).astype(np.float32),
        "terminals": random.random(rows) < 0.02,
        "timeouts": random.random(rows) < 0.01,
        "next_observations": random.normal(size=(rows, 3, 2)),
        "infos/goal": random.integers(-9, 9, (rows, 2), np.int16),
    }


def run_bounds(ends: NDArray[np.bool]) -> list[tuple[int, int]]:
    """First row and the one behind the last, of each run, found row by row."""
    bounds, begin = [], 0
    for row, end in enumerate(ends):
        if end or row == len(ends) - 1:
            bounds.append((begin, row + 1))
            begin = row + 1
    return bounds


def assert_steps(steps: sw.StepReader, want: Arrays, bounds: list[tuple[int, int]]) -> None:
    assert list(steps.schema) == list(want)
    got = steps.take(np.arange(len(steps)))
    for name, values in want.items():
        assert got[name].dtype == values.dtype
        np.testing.assert_array_equal(got[name], values, err_msg=name)
    runs = steps.runs
    assert [(r["first_step_idx"], r["num_steps"]) for r in runs] == [
        (begin, end - begin) for begin, end in bounds
    ]
    assert steps.verify().ok


# Arrays.


def test_arrays_of_any_shape(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    arrays: Arrays = {
        "x": random.normal(size=(50, 2, 3)),
        "flag": random.random(50) < 0.5,
        "small": random.integers(0, 9, 50, np.uint8),
        "none": np.zeros((50, 0), np.float32),
        "wave": random.normal(size=50) + 1j,
    }
    steps = importers.from_arrays(tmp_path / "out", arrays)
    assert isinstance(steps, sw.StepReader)
    assert_steps(steps, arrays, [(0, 50)])
    assert np.load(tmp_path / "out" / "steps.npy").dtype.itemsize == 48 + 1 + 1 + 16


def test_arrays_as_lists_views_and_foreign_bytes(tmp_path: Path) -> None:
    columns: dict[str, Any] = {
        "list": [1, 2, 3],
        "view": np.arange(30).reshape(10, 3)[::4, ::-1],
        "big": np.array([1, 2, 3], ">f4"),
    }
    steps = importers.from_arrays(tmp_path / "out", columns)
    want = {"list": np.array([1, 2, 3]), "view": columns["view"], "big": np.array([1, 2, 3], "f4")}
    assert_steps(steps, want, [(0, 3)])
    assert sw.torch.as_tensors(steps.take([0]))["big"].item() == 1


def test_runs_by_length(tmp_path: Path) -> None:
    x = {"x": np.arange(10)}
    steps = importers.from_arrays(
        tmp_path / "out",
        x,
        run_lengths=[3, 0, 7],
        run_columns={
            "score": [1, 2.5, None],
            "level": np.array([7, 8, 9]),
            "won": [True, False, None],
            "who": ["a", None, "c"],
            "raw": [b"a", b"b", b""],
        },
    )
    assert_steps(steps, x, [(0, 3), (3, 3), (3, 10)])
    assert [tuple(run.values())[3:] for run in steps.runs] == [
        (1.0, 7, 1, "a", b"a"),
        (2.5, 8, 0, None, b"b"),
        (None, 9, None, "c", b""),
    ]
    assert len(steps.where("score > 2 OR who = 'c'")) == 7


@pytest.mark.parametrize("last", [False, True])
def test_runs_by_their_ends(last: bool, tmp_path: Path) -> None:
    ends = np.random.default_rng(1).random(500) < 0.1
    ends[[0, -1]] = True, last
    x = {"x": np.arange(500)}
    steps = importers.from_arrays(tmp_path / "out", x, ends=ends)
    assert_steps(steps, x, run_bounds(ends))


def test_shards(tmp_path: Path) -> None:
    arrays = d4rl()
    del arrays["infos/goal"]
    ends = arrays["terminals"] | arrays["timeouts"]
    row = sum(values[0].nbytes for values in arrays.values())
    steps = importers.from_arrays(tmp_path / "out", arrays, ends=ends, shard_bytes=row * 300 + 5)
    assert_steps(steps, arrays, run_bounds(ends))
    shards = sorted((tmp_path / "out" / "shards").iterdir())
    assert [len(np.load(shard)) for shard in shards] == [300, 300, 300, 100]


def test_slices_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs begin and end anywhere in the slices that are read, and are longer than some."""
    arrays = d4rl()
    np.savez(tmp_path / "x.npz", allow_pickle=False, **arrays)
    want = {name.replace("/", "."): values for name, values in arrays.items()}
    bounds = run_bounds(arrays["terminals"] | arrays["timeouts"])
    for size in (1, 7 * 119, 100 * 119, 1000 * 119):
        monkeypatch.setattr(importers, "_SLICE_BYTES", size)
        assert_steps(importers.import_npz(tmp_path / "x.npz", tmp_path / str(size)), want, bounds)


WRONG: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"a": [1, 2], "b": [1]}, {}, "equally long, got {'a': 2, 'b': 1}"),
    ({"a": 1}, {}, "equally long, got {'a': None}"),
    ({}, {}, "equally long"),
    ({"a": []}, {}, "no rows"),
    ({"a": ["x", "y"]}, {}, "a: expected numbers, got <U1"),
    ({"a": [b"x"]}, {}, "a: expected numbers, got |S1"),
    ({"a": [None, {}]}, {}, "a: expected numbers, got object"),
    ({"a": np.zeros(2, "M8[s]")}, {}, "a: expected numbers, got datetime64"),
    ({"a": np.zeros(2, [("x", "f4")])}, {}, "a: expected numbers, got"),
    ({"a b": [1]}, {}, "'a b' cannot name a field"),
    ({"": [1]}, {}, "'' cannot name a field"),
    ({"1": [1]}, {}, "'1' cannot name a field"),
    ({"é": [1]}, {}, "'é' cannot name a field"),
    ({"run_id": [1]}, {}, "run_id: filled in"),
    ({"a": [1, 2]}, {"run_lengths": [1, 2]}, "run_lengths: expected 2 rows in all, got 3"),
    ({"a": [1, 2]}, {"run_lengths": [3, -1]}, "run_lengths: expected 2 rows"),
    ({"a": [1, 2]}, {"run_lengths": [1.0, 1.0]}, "run_lengths: expected whole numbers"),
    ({"a": [1, 2]}, {"run_lengths": 2}, "run_lengths: expected whole numbers"),
    ({"a": [1, 2]}, {"run_lengths": []}, "run_lengths: expected 2 rows in all, got 0"),
    ({"a": [1, 2]}, {"ends": [True]}, "ends: expected 2 booleans, got bool (1,)"),
    ({"a": [1, 2]}, {"ends": [1, 0]}, "ends: expected 2 booleans, got int64"),
    ({"a": [1, 2]}, {"ends": [True, True], "run_lengths": [2]}, "either run_lengths or ends"),
    ({"a": [1, 2]}, {"run_columns": {"x": [1, 2]}}, "x: expected a value for 1 runs, got 2"),
    ({"a": [1]}, {"run_columns": {"x": [[1]]}}, "x: expected numbers, texts or bytes, got list"),
    ({"a": [1]}, {"run_columns": {"x": [2**63]}}, "x: 9223372036854775808 is beyond"),
    ({"a": [1]}, {"run_columns": {"no good": [1]}}, "'no good' cannot name a run column"),
    ({"a": [1]}, {"run_columns": {"id": [1]}}, "'id' cannot name a run column"),
    ({"a": [1]}, {"shard_bytes": 7}, "shard_bytes must be at least 8, got 7"),
]


@pytest.mark.parametrize(("columns", "options", "words"), WRONG, ids=[w[2] for w in WRONG])
def test_wrong_arrays_are_refused(
    columns: dict[str, Any], options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError) as caught:
        importers.from_arrays(tmp_path / "out", columns, **options)
    assert words in str(caught.value)
    assert list(tmp_path.iterdir()) == []


# Dictionaries in files.


def write_npz(path: Path, arrays: Arrays) -> None:
    with path.open("wb") as file:
        np.savez(file, allow_pickle=True, **arrays)


def write_compressed(path: Path, arrays: Arrays) -> None:
    with path.open("wb") as file:
        np.savez_compressed(file, allow_pickle=True, **arrays)


def write_hdf5(path: Path, arrays: Arrays) -> None:
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            text = values.dtype.kind == "U"
            file.create_dataset(name, data=values.astype(object) if text else values)


def write_chunks(path: Path, arrays: Arrays) -> None:
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            chunked = {"chunks": True, "compression": "gzip"} if values.ndim else {}
            file.create_dataset(name, data=values, **chunked)


Importer = Callable[[Path, Path], sw.StepReader]
FILES: dict[str, tuple[Callable[[Path, Arrays], None], Importer]] = {
    "npz": (write_npz, importers.import_npz),
    "npz, compressed": (write_compressed, importers.import_npz),
    "hdf5": (write_hdf5, importers.import_hdf5),
    "hdf5, chunks": (write_chunks, importers.import_hdf5),
}
each_file = pytest.mark.parametrize(("write", "read"), FILES.values(), ids=FILES)
two_files = pytest.mark.parametrize(
    ("write", "read"), [FILES["npz"], FILES["hdf5"]], ids=["npz", "hdf5"]
)


@each_file
def test_a_dictionary_of_d4rl(write: Any, read: Importer, tmp_path: Path) -> None:
    arrays = d4rl()
    write(tmp_path / "file", arrays)
    steps = read(tmp_path / "file", tmp_path / "out")
    order = list(steps.schema)  # HDF5 sorts
    want = {name.replace("/", "."): values for name, values in arrays.items()}
    assert sorted(order) == sorted(want)
    bounds = run_bounds(arrays["terminals"] | arrays["timeouts"])
    assert len(bounds) > 20
    assert_steps(steps, {name: want[name] for name in order}, bounds)
    totals = [arrays["rewards"][a:b].sum(dtype=np.float64) for a, b in bounds]
    np.testing.assert_allclose(steps.runs["total_reward"], totals)


@two_files
def test_arrays_of_other_lengths_are_left_out_and_named(
    write: Any, read: Importer, tmp_path: Path
) -> None:
    arrays = d4rl(rows=100)
    other: Arrays = {
        "metadata/version": np.array(3),
        "metadata/weights": np.zeros((4, 4)),
        "step_index": np.arange(100),
    }
    write(tmp_path / "file", arrays | other)
    with pytest.warns(UserWarning, match="100 rows; left out: ") as caught:
        steps = read(tmp_path / "file", tmp_path / "out")
    (warning,) = caught
    for words in ("metadata/version (())", "metadata/weights ((4, 4))", "step_index (a name"):
        assert words in str(warning.message)
    assert warning.filename == __file__
    assert set(steps.schema) == {name.replace("/", ".") for name in arrays}


@two_files
def test_what_a_flag_may_look_like(write: Any, read: Importer, tmp_path: Path) -> None:
    ends = np.arange(20) % 4 == 3
    flags = [
        ends.astype(np.uint8),
        ends.astype(np.float32),
        ends[:, None],
        ends.astype(np.int64) * -1,
    ]
    for i, flag in enumerate(flags):
        for name in ("terminals", "truncations", "dones"):
            write(tmp_path / "file", {"observations": np.arange(20), name: flag})
            steps = read(tmp_path / "file", tmp_path / f"{name}{i}")
            assert steps.runs["num_steps"].tolist() == [4] * 5
            assert "total_reward" not in steps.runs.columns


def test_an_array_in_the_order_of_fortran(tmp_path: Path) -> None:
    arrays = d4rl(rows=300) | {"observations": np.asfortranarray(np.random.rand(300, 4, 5))}
    write_npz(tmp_path / "file", arrays)
    steps = importers.import_npz(tmp_path / "file", tmp_path / "out")
    got = steps.take(np.arange(300))["observations"]
    np.testing.assert_array_equal(got, arrays["observations"])


@two_files
def test_dictionaries_that_are_none(write: Any, read: Importer, tmp_path: Path) -> None:
    good = d4rl(rows=20)

    def without(*names: str) -> Arrays:
        return {name: values for name, values in good.items() if name not in names}

    cases: list[tuple[Arrays, str]] = [
        ({}, "there are no arrays"),
        (without("observations"), "expected an array 'observations', got actions, infos/goal"),
        (without("terminals", "timeouts"), "expected 20 flags that end runs"),
        ({**good, "observations": np.zeros((0, 3))}, "observations: there are no rows"),
        ({**good, "observations": np.array(3.0)}, "observations: there are no rows"),
        ({**good, "names": np.array(["x"] * 20)}, "names: expected numbers, got"),
        ({**good, "bad name": np.zeros(20)}, "'bad name' cannot name a field"),
        ({**good, "infos.goal": np.zeros(20)}, "two arrays have the same name"),
    ]
    for arrays, words in cases:
        write(tmp_path / "file", arrays)
        with pytest.raises((FormatError, SchemaError)) as caught:
            read(tmp_path / "file", tmp_path / "out")
        assert words in str(caught.value)
        assert str(tmp_path / "file") in str(caught.value)
        assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_objects_are_never_unpickled(tmp_path: Path) -> None:
    bad = d4rl(rows=20) | {"infos/what": np.array([print] * 20, object)}
    write_npz(tmp_path / "file", bad)
    with pytest.raises(SchemaError, match=r"infos\.what: expected numbers, got object"):
        importers.import_npz(tmp_path / "file", tmp_path / "out")


@each_file
def test_files_that_are_damaged(write: Any, read: Importer, tmp_path: Path) -> None:
    write(tmp_path / "file", d4rl(rows=400))
    data = (tmp_path / "file").read_bytes()
    damaged = [b"", b"something else", data[:50], data[: len(data) // 2]]
    for i in range(4):  # in the middle of the data, of which archives have sums
        changed = bytearray(data)
        changed[len(data) // 5 * (i + 1)] ^= 0x55
        damaged.append(bytes(changed))
    refused = 0
    for bad in damaged:
        (tmp_path / "file").write_bytes(bad)
        problem = None
        try:
            read(tmp_path / "file", tmp_path / f"out{refused}")
        except (FormatError, SchemaError) as error:
            problem = str(error)
        if problem is None:  # HDF5 has no sums of its own
            assert read is importers.import_hdf5
            break
        assert str(tmp_path / "file") in problem
        assert not (tmp_path / f"out{refused}").exists()
        refused += 1
    assert refused >= 4
    assert not list(tmp_path.glob(".*"))


def test_a_header_that_promises_too_much(tmp_path: Path) -> None:
    write_npz(tmp_path / "file", d4rl(rows=400))
    with (
        zipfile.ZipFile(tmp_path / "file") as good,
        zipfile.ZipFile(tmp_path / "bad", "w") as bad,
    ):
        for name in good.namelist():
            header = good.read(name)
            bad.writestr(name, header.replace(b"(400, 3, 2)", b"(400, 3, 9)"))
    with pytest.raises(FormatError, match="bytes of data in a file of"):
        importers.import_npz(tmp_path / "bad", tmp_path / "out")


@two_files
def test_what_is_missing_or_there_already(write: Any, read: Importer, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "file", tmp_path / "out")
    write(tmp_path / "file", d4rl(rows=20))
    (tmp_path / "out").mkdir()
    with pytest.raises(FileExistsError, match="out exists"):
        read(tmp_path / "file", tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_memory_does_not_grow_with_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importers, "_SLICE_BYTES", 1 << 18)
    rows = 300_000  # 36 MB
    arrays = d4rl(rows)
    arrays["terminals"][:] = np.arange(rows) % 1000 == 0
    arrays["timeouts"][:] = False
    for (write, read), name in ((FILES["npz"], "npz"), (FILES["hdf5"], "hdf5")):
        write(tmp_path / name, arrays)
        tracemalloc.start()
        read(tmp_path / name, tmp_path / f"{name}.out")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 24e6  # of which the writer holds 8 MiB before it writes, twice


# Minari.


@pytest.fixture(autouse=True, scope="module")
def minari_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where Minari looks for datasets: not in the home of whoever runs the tests."""
    home = tmp_path_factory.mktemp("minari")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(home))
        yield home


def record(env: gymnasium.Env[Any, Any], name: str, policy: Any, seeds: list[int | None]) -> Any:
    """A Minari dataset of an episode for each seed, recorded as Minari's page tells to."""
    with warnings.catch_warnings():
        # Of what the dataset is not told (author, score), and of a folder it forgets to remove.
        warnings.simplefilter("ignore")
        collector = minari.DataCollector(env)
        for seed in seeds:
            seen, _ = collector.reset(seed=seed)
            over = False
            while not over:
                seen, _, terminated, truncated, _ = collector.step(policy(seen))
                over = terminated or truncated
        dataset = collector.create_dataset(dataset_id=name)
        collector.close()
        del collector
        gc.collect()
    return dataset


@pytest.fixture(scope="module")
def cartpole(minari_home: Path) -> Any:
    """Episodes of a policy that is good; the longest are truncated at 100 steps."""
    env = gymnasium.make("CartPole-v1", max_episode_steps=100)

    def push(seen: Any) -> int:
        return int(seen[2] + 0.5 * seen[3] > 0)

    return record(env, "cartpole/test-v0", push, [*range(11), None])


def test_episodes_become_runs(cartpole: Any, tmp_path: Path) -> None:
    steps = importers.import_minari("cartpole/test-v0", tmp_path / "out")
    want: dict[str, list[NDArray[Any]]] = {}
    for episode in cartpole.iterate_episodes():
        for name, values in (
            ("observation", episode.observations[:-1]),
            ("action", episode.actions),
            ("reward", episode.rewards),
            ("terminated", episode.terminations),
            ("truncated", episode.truncations),
            ("next_observation", episode.observations[1:]),
        ):
            want.setdefault(name, []).append(values)
    ends = np.cumsum([len(values) for values in want["reward"]]).tolist()
    assert_steps(
        steps,
        {name: np.concatenate(values) for name, values in want.items()},
        list(zip([0, *ends], ends, strict=False)),
    )
    assert steps.dtype["observation"] == np.dtype(("<f4", (4,)))
    assert steps.dtype["action"] == np.int64
    runs = steps.runs
    assert runs["episode"].tolist() == list(range(12))
    assert runs["total_reward"].tolist() == [float(rewards.sum()) for rewards in want["reward"]]
    assert runs["seed"].tolist()[:11] == [str(i) for i in range(11)]
    assert int(runs["seed"][11]) > 0  # Minari's own choice, of 64 bits
    assert len(steps.where("seed = 3")) == len(want["reward"][3])
    # A row stands alone: what it leads to is the next row's beginning, or the end of the run.
    run = steps.run(0)
    np.testing.assert_array_equal(run["next_observation"][:-1], run["observation"][1:])
    assert run["truncated"][-1] or run["terminated"][-1]


def test_a_part_of_a_minari_dataset(cartpole: Any, tmp_path: Path) -> None:
    part = minari.split_dataset(cartpole, sizes=[4, 8], seed=1)[0]
    steps = importers.import_minari(part, tmp_path / "out", shard_bytes=10_000)
    assert steps.runs["episode"].tolist() == part.episode_indices.tolist()
    assert len(steps) == part.total_steps


def test_it_trains(cartpole: Any, tmp_path: Path) -> None:
    """The whole way: recorded, imported, and behaviour cloned in one epoch."""
    steps = importers.import_minari(cartpole, tmp_path / "out").where("episode < 11")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2))

    def loss_of(batch: Any) -> torch.Tensor:
        scores = model(batch["observation"] * 10)  # angles are small
        return torch.nn.functional.cross_entropy(scores, batch["action"])

    everything = next(iter(sw.torch.Loader(steps, len(steps))))
    before = loss_of(everything).item()
    for batch in sw.torch.Loader(steps, 16, seed=1):
        gradients = torch.autograd.grad(loss_of(batch), list(model.parameters()))
        with torch.no_grad():
            for weights, gradient in zip(model.parameters(), gradients, strict=True):
                weights.sub_(0.3 * gradient)
    assert loss_of(everything).item() < 0.6 * before


class Odd(gymnasium.Env[Any, Any]):
    """Observations in dictionaries and tuples, actions too; five steps, then cut off."""

    observation_space = gymnasium.spaces.Dict(
        {
            "place": gymnasium.spaces.Box(-1, 1, (2, 2), np.float64),
            "both": gymnasium.spaces.Tuple(
                (gymnasium.spaces.Discrete(5), gymnasium.spaces.MultiBinary(3))
            ),
        }
    )
    action_space = gymnasium.spaces.Tuple(
        (gymnasium.spaces.Discrete(3), gymnasium.spaces.Box(0, 1, (), np.float32))
    )

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.step_number = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, int, bool, bool, dict[str, Any]]:
        self.step_number += 1
        return self.observation_space.sample(), 1, False, self.step_number == 5, {}


def test_spaces_in_spaces(tmp_path: Path) -> None:
    env = Odd()
    env.action_space.seed(1)
    dataset = record(env, "odd/test-v0", lambda _: env.action_space.sample(), [1, 2])
    steps = importers.import_minari(dataset, tmp_path / "out")
    assert list(steps.schema) == [
        *("observation.both.0", "observation.both.1", "observation.place"),
        *("action.0", "action.1", "reward", "terminated", "truncated"),
        *("next_observation.both.0", "next_observation.both.1", "next_observation.place"),
    ]
    for i, episode in enumerate(dataset):
        run = steps.run(i)
        seen = episode.observations
        np.testing.assert_array_equal(run["observation.place"], seen["place"][:-1])
        np.testing.assert_array_equal(run["next_observation.both.1"], seen["both"][1][1:])
        np.testing.assert_array_equal(run["action.1"], episode.actions[1])
        assert run["reward"].tolist() == [1.0] * 5
        assert run["truncated"].tolist() == [False] * 4 + [True]


def test_a_minari_dataset_that_is_not_there(cartpole: Any, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nobody/nothing-v0 not found locally"):
        importers.import_minari("nobody/nothing-v0", tmp_path / "out")
    none = minari.MinariDataset(cartpole.storage, episode_indices=np.array([], np.int64))
    with pytest.raises(SchemaError, match="cartpole/test-v0: no episodes"):
        importers.import_minari(none, tmp_path / "out")
    (tmp_path / "out").mkdir()
    with pytest.raises(FileExistsError):
        importers.import_minari(cartpole, tmp_path / "out")


def test_texts_are_refused(tmp_path: Path) -> None:
    class Talking(Odd):
        observation_space = gymnasium.spaces.Text(5)  # type: ignore[assignment]

    env = Talking()
    dataset = record(env, "odd/text-v0", lambda _: env.action_space.sample(), [1])
    with pytest.raises(SchemaError, match="observation: expected numbers, got <U"):
        importers.import_minari(dataset, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


# What it costs those who do not need it.


def test_importers_come_when_they_are_asked_for() -> None:
    script = """
import sys
import stepwell as sw
before = "stepwell.importers" in sys.modules
sw.importers.from_arrays
print(before, "h5py" in sys.modules, "minari" in sys.modules, "gymnasium" in sys.modules)
"""
    assert children.answer(script) == "False False False False"


@pytest.mark.parametrize("name", ["hdf5", "minari"])
def test_missing_extras(name: str) -> None:
    module = {"hdf5": "h5py", "minari": "minari"}[name]
    script = f"""
import sys
import stepwell as sw
sys.modules["{module}"] = None
try:
    sw.importers.import_{name}("x", "y")
except ImportError as error:
    print(error)
"""
    words = f"import_{name} needs an extra: pip install 'stepwell[{name}]'"
    assert children.answer(script) == words
