"""A loader as a dataset of torch's, for DataLoader and StatefulDataLoader."""

import copy
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Unpack

import torch
from torch.utils import data

from stepwell import loader as _loader
from stepwell.source import Source
from stepwell.torch import sharing
from stepwell.torch.loader import Loader
from stepwell.torch.tensors import Tensors


class IterableDataset(data.IterableDataset[Any]):
    """A `stepwell.Loader` for torch's DataLoader (`batch_size=None`) and StatefulDataLoader.

    Takes the loader's arguments and gives whole batches of tensors, the same ones in the
    same order with any number of worker processes. Each loop is the next epoch, also where
    DataLoader makes new workers for it. `state_dict` and `load_state_dict` follow torchdata's
    protocol. A DataLoader that would batch these batches, and a framework that would share out
    this rank's part among ranks, are refused.
    """

    def __init__(
        self,
        source: Source | Mapping[str, Any] | Any,
        batch_size: int,
        *,
        device: torch.device | str | int | None = None,
        as_int64: Sequence[str] = (),
        **options: Unpack[_loader.LoaderOptions],
    ) -> None:
        self._loader = Loader(source, batch_size, device=device, as_int64=as_int64, **options)
        self._mine: tuple[int, Loader] | None = None  # a worker's process, and its loader
        self._loaded = False  # a worker's loader has a state, and no loop has begun since
        self._epochs = _Epochs()

    def __len__(self) -> int:
        return len(self._loader)

    def __repr__(self) -> str:
        return f"IterableDataset({self._loader!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mine": None}

    def __iter__(self) -> Iterator[Tensors]:
        self._check_reader()
        worker, loader = data.get_worker_info(), self._local()
        if worker is not None:
            epoch = self._epochs.begin(worker, loader.epoch if self._loaded else None)
            loader.set_epoch(epoch)
            if not self._loaded:  # worker 0 is asked first, wherever a state of the main process is
                done = len(self._loader) - self._loader._steps_from(loader.position)
                loader._worker = ((worker.id + done) % worker.num_workers, worker.num_workers)
            self._loaded = False
        return iter(loader)

    def set_epoch(self, epoch: int) -> None:
        """Have the next loop begin this epoch, in worker processes too."""
        self._check_reader()
        self._local().set_epoch(epoch)
        self._epochs.name(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the loader of this process stands, for StatefulDataLoader."""
        return self._local().state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Have the next loop continue where `state` was taken, exactly."""
        loader = self._local()
        loader.load_state_dict(state)
        if data.get_worker_info() is None:
            self._epochs.name(loader.epoch)
        else:
            self._loaded = True

    def _local(self) -> Loader:
        """The loader of this process: a worker's makes every Nth batch."""
        worker = data.get_worker_info()
        if worker is None:
            return self._loader
        if self._mine is None or self._mine[0] != os.getpid():  # a fork brings its parent's
            loader = copy.copy(self._loader)
            loader._worker = (worker.id, worker.num_workers)
            self._mine = (os.getpid(), loader)
        return self._mine[1]

    def _check_reader(self) -> None:
        reader = sharing.reader()
        given = self._loader._given
        if reader.batches:
            raise RuntimeError(
                "expected DataLoader(dataset, batch_size=None) around batches that are complete, "
                "got a DataLoader that makes batches of them; where a framework makes it, as "
                "transformers' Trainer does, give that stepwell.torch.MapDataset(source)"
            )
        if reader.shares is not None and (given is None or given.size > 1):
            raise sharing.shared_twice(reader.shares)


_loader.show_options(IterableDataset, Loader)


class _Epochs:
    """Which epoch the workers of a DataLoader begin, in memory that they share.

    DataLoader may make new workers for each loop, which know nothing of the loops before. Each
    has a word here, with the epoch that it began last and a mark that all workers of one loop have
    in common. So a worker joins those of its loop that came first, or it is the first and begins
    the next epoch; two that are first at the same time find the same one. Word 0 is for the main
    process, which names an epoch by clearing the rest.
    """

    _MARKS = 2**20
    _WORKERS = 1023

    def __init__(self) -> None:
        self._words = torch.zeros(1 + self._WORKERS, dtype=torch.int64).share_memory_()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._words = state["_words"]
        if not self._words.is_shared():  # a copy, not a worker's
            self._words = self._words.share_memory_()

    def name(self, epoch: int) -> None:
        """Have the next loop of workers begin this epoch."""
        self._words.zero_()
        self._words[0] = epoch

    def begin(self, worker: Any, epoch: int | None) -> int:
        """The epoch that a worker is to begin: the one given, or that of its loop."""
        mark = 1 + (worker.seed - worker.id) % (self._MARKS - 1)
        named, *words = self._words.tolist()
        began = {i: divmod(word, self._MARKS) for i, word in enumerate(words) if word}
        mine = began.get(worker.id)
        others = [at for at, their_mark in began.values() if their_mark == mark]
        if epoch is None:
            if mine is not None and mine[1] == mark:
                epoch = mine[0] + 1  # the same workers again
            elif others:
                epoch = max(others)
            else:
                epoch = max((at for at, _ in began.values()), default=named - 1) + 1
        self._words[1 + worker.id] = epoch * self._MARKS + mark
        return epoch
