"""The ways to go through a shuffled epoch, each in the form that suits it best.

Each is a function of file, rows (from the file's beginning) and batch size that loads the
data and returns another: `begin()` makes the loader and gives its batches, one contiguous
array or tensor per field, by name (two exceptions say so).
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import stepwell as sw
from benchmarks.probe import build, probe
from benchmarks.rows import FIELDS, ROW, as_void, split
from benchmarks.take_peers import open_array_record
from stepwell import _core

Begin = Callable[[], Iterator[Any]]

_WORKERS = _core.usable_cores()


def stepwell_numpy(path: Path, rows: int, batch: int) -> Begin:
    source, loader = _source(path, rows), sw.Loader  # the name imports its module
    return lambda: iter(loader(source, batch))


def stepwell_torch(path: Path, rows: int, batch: int) -> Begin:
    source, loader = _source(path, rows), sw.torch.Loader
    return lambda: iter(loader(source, batch))


def bare_loop(path: Path, rows: int, batch: int) -> Begin:
    """The limit: packed rows in an order that is given, and a buffer used again and again."""
    table = sw.ArraySource(path)._record  # the very memory that stepwell reads
    assert table is not None
    build()
    order = np.random.default_rng(0).permutation(rows)

    def batches() -> Iterator[NDArray[Any]]:
        out = np.empty(batch, ROW)
        with probe(table, out, threads=_core.usable_cores()) as take:
            for part in _parts(order, batch):
                take(part)
                yield out[: len(part)]

    return batches


def numpy_loop(path: Path, rows: int, batch: int, *, fields: bool) -> Begin:
    """What one writes by hand: a permutation, np.take, and, for fields, a split."""
    array = np.load(path)[:rows]
    void = as_void(array)

    def batches() -> Iterator[Any]:
        order = np.arange(rows, dtype=np.int32 if rows < 2**31 else np.int64)
        np.random.default_rng(0).shuffle(order)
        out = np.empty(batch, void.dtype)
        for part in _parts(order, batch):
            taken = np.take(void, part, out=out[: len(part)], mode="clip").view(ROW)
            yield split(taken) if fields else taken

    return batches


def torch_loop(path: Path, rows: int, batch: int) -> Begin:
    """The tensors of a TensorDataset, indexed with parts of a randperm."""
    import torch

    dataset = torch.utils.data.TensorDataset(*_tensors(split(np.load(path)[:rows])).values())

    def batches() -> Iterator[dict[str, Any]]:
        for part in torch.randperm(rows).split(batch):
            yield dict(zip(FIELDS, dataset[part], strict=True))

    return batches


def torch_getitems(path: Path, rows: int, batch: int, *, workers: int) -> Begin:
    """DataLoader whose dataset fetches a batch in one call."""
    from torch.utils.data import DataLoader, Dataset

    array = np.load(path)[:rows]

    class Steps(Dataset[Any]):
        def __len__(self) -> int:
            return len(array)

        def __getitems__(self, wanted: list[int]) -> dict[str, Any]:
            return _tensors(split(as_void(array).take(wanted).view(ROW)))

    return lambda: iter(
        DataLoader(Steps(), batch, shuffle=True, num_workers=workers, collate_fn=_as_it_is)
    )


def torch_sampler(path: Path, rows: int, batch: int) -> Begin:
    """DataLoader without its lists of ints: a sampler of whole batches, as tensors."""
    import torch
    from torch.utils.data import DataLoader, Dataset

    array = np.load(path)[:rows]

    class Steps(Dataset[Any]):
        def __getitem__(self, wanted: torch.Tensor) -> dict[str, Any]:
            return _tensors(split(as_void(array).take(wanted.numpy()).view(ROW)))

    class Batches:
        def __iter__(self) -> Iterator[torch.Tensor]:
            return iter(torch.randperm(rows).split(batch))

        def __len__(self) -> int:
            return -(-rows // batch)

    return lambda: iter(DataLoader(Steps(), batch_size=None, sampler=Batches()))


def torch_samples(
    path: Path, rows: int, batch: int, *, workers: int, default_collate: bool
) -> Begin:
    """DataLoader as the tutorials have it: a row at a time, then collated."""
    from torch.utils.data import DataLoader, Dataset

    array = np.load(path)[:rows]
    columns = _tensors(split(array)) if default_collate else {}

    class Rows(Dataset[Any]):
        def __len__(self) -> int:
            return len(array)

        def __getitem__(self, i: int) -> Any:
            if default_collate:
                return {name: column[i] for name, column in columns.items()}
            return array[i]

    def joined(samples: Sequence[Any]) -> dict[str, Any]:
        return _tensors(split(np.array(samples, ROW)))

    collate = None if default_collate else joined
    return lambda: iter(
        DataLoader(Rows(), batch, shuffle=True, num_workers=workers, collate_fn=collate)
    )


def tensordict_loop(path: Path, rows: int, batch: int) -> Begin:
    """A TensorDict of the columns, indexed with parts of a randperm."""
    import torch
    from tensordict import TensorDict

    table = TensorDict(_tensors(split(np.load(path)[:rows])), batch_size=[rows])

    def batches() -> Iterator[dict[str, Any]]:
        for part in torch.randperm(rows).split(batch):
            yield table[part].to_dict()

    return batches


def array_record(path: Path, rows: int, batch: int) -> Begin:
    """ArrayRecord's reader, asked for a batch of records in one call."""
    reader = open_array_record(np.load(path)[:rows])

    def batches() -> Iterator[dict[str, Any]]:
        for part in _parts(np.random.default_rng(0).permutation(rows), batch):
            yield split(np.frombuffer(b"".join(reader.read(part.tolist())), ROW))

    return batches


def grain_rows(path: Path, rows: int, batch: int) -> Begin:
    """grain as its guide has it: a source of rows, shuffled, batched."""
    import grain

    columns = split(np.load(path)[:rows])

    class Steps:
        def __len__(self) -> int:
            return rows

        def __getitem__(self, i: int) -> dict[str, Any]:
            return {name: column[i] for name, column in columns.items()}

    dataset = grain.MapDataset.source(Steps()).shuffle(seed=0).batch(batch)
    return lambda: (dataset[i] for i in range(len(dataset)))


def grain_indices(path: Path, rows: int, batch: int) -> Begin:
    """grain at its best here: row numbers are shuffled and batched, np.take does the rest."""
    import grain

    void = as_void(np.load(path)[:rows])

    def fetch(wanted: Sequence[int]) -> dict[str, Any]:
        return split(void.take(wanted).view(ROW))

    dataset = grain.MapDataset.range(rows).shuffle(seed=0).batch(batch, batch_fn=fetch)
    return lambda: (dataset[i] for i in range(len(dataset)))


LOADERS: dict[str, Callable[[Path, int, int], Begin]] = {
    "stepwell.Loader": stepwell_numpy,
    "stepwell.torch.Loader": stepwell_torch,
    "C++ probe": bare_loop,
    "NumPy loop": partial(numpy_loop, fields=True),
    "NumPy loop, packed rows": partial(numpy_loop, fields=False),
    "TensorDataset loop": torch_loop,
    "DataLoader, __getitems__": partial(torch_getitems, workers=0),
    "DataLoader, __getitems__, workers": partial(torch_getitems, workers=_WORKERS),
    "DataLoader, batch sampler": torch_sampler,
    "DataLoader, per sample": partial(torch_samples, workers=0, default_collate=True),
    "DataLoader, per sample, workers": partial(
        torch_samples, workers=_WORKERS, default_collate=False
    ),
    "DataLoader, per sample, own collate": partial(torch_samples, workers=0, default_collate=False),
    "array_record loop": array_record,
    "tensordict loop": tensordict_loop,
    "grain, row by row": grain_rows,
    "grain, row numbers": grain_indices,
}
"""By the names the tables use."""


def _source(path: Path, rows: int) -> Any:
    source = sw.ArraySource(path)
    return source if rows == len(source) else source.select(slice(rows))


def _parts(order: NDArray[Any], batch: int) -> Iterator[NDArray[Any]]:
    return (order[begin : begin + batch] for begin in range(0, len(order), batch))


def _tensors(columns: dict[str, NDArray[Any]]) -> dict[str, Any]:
    import torch

    return {name: torch.from_numpy(column) for name, column in columns.items()}


def _as_it_is(batch: Any) -> Any:
    return batch
