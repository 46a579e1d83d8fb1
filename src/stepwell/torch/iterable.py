"""A loader as a dataset of torch's, for DataLoader and StatefulDataLoader."""

import copy
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Unpack

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
        self._begun: list[_Place] = []  # by workers, when the main process last began a loop

    def __len__(self) -> int:
        return len(self._loader)

    def __repr__(self) -> str:
        return f"IterableDataset({self._loader!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mine": None}

    def __iter__(self) -> Iterator[Tensors]:
        self._check_reader()
        worker, loader = data.get_worker_info(), self._local()
        if worker is None:
            self._begun = self._epochs.begun()
        elif self._loaded:  # by StatefulDataLoader, which asks the worker first whose turn it is
            self._epochs.begin(worker, self._loader._steps_from, loader.epoch)
            self._loaded = False
        else:
            loader._stand(*self._epochs.begin(worker, self._loader._steps_from))
            done = len(self._loader) - self._loader._steps_from(loader.position)
            share = (worker.id + done) % worker.num_workers, worker.num_workers  # 0 is asked first
            if share != loader._worker:
                loader._stop()  # the threads made batches of the other one ahead
            loader._worker = share
        return iter(loader)

    def set_epoch(self, epoch: int) -> None:
        """Have the next loop begin this epoch, in worker processes too."""
        self._check_reader()
        loader = self._local()
        if self._workers_moved():  # a state that was loaded is theirs no more
            loader._loaded = None
        loader.set_epoch(epoch)
        self._epochs.name(loader.epoch, loader.position)

    def state_dict(self) -> dict[str, Any]:
        """Where the loader of this process stands, for StatefulDataLoader.

        Raises `RuntimeError` in a main process whose workers do the reading: only they, and
        StatefulDataLoader which asks them, know how far they are.
        """
        if self._workers_moved():
            raise RuntimeError(
                "expected the process that reads, got the main process of a DataLoader with "
                "workers, which are elsewhere; torchdata's StatefulDataLoader has a state_dict of "
                "theirs, stepwell.torch.Loader(source, batch_size) needs no workers"
            )
        return self._local().state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Have the next loop continue where `state` was taken, exactly."""
        loader = self._local()
        loader.load_state_dict(state)
        if data.get_worker_info() is None:
            self._epochs.name(loader.epoch, loader.position)
        else:
            self._loaded = True

    def _workers_moved(self) -> bool:
        """Whether workers have begun a loop since the loader of the main process was moved."""
        begun = self._epochs.begun() if data.get_worker_info() is None else []
        return begun not in ([], self._begun)

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


class _Place(NamedTuple):
    """Where a loop begins, in a worker's words or, without mark and loop, as the main process
    named it."""

    mark: int = 0  # of the processes that a DataLoader made together; 0 where none has begun
    loop: int = 0  # of these processes, which may have several
    named: int = 0  # how often the main process had named a place before it
    epoch: int = 0
    position: int = 0


class _Epochs:
    """Where the workers of a DataLoader begin, in memory that they share.

    DataLoader may make new workers for each loop, which know nothing of the loops before. Each has
    its words here: where it began last, with what all workers of that loop have in common. So a
    worker joins those of its loop that came first, however late it comes, or it is the first and
    begins what was named, or the next epoch. Two that are first at the same time find the same
    one. The words end with a checksum, because others read them while they are written.
    """

    _WORKERS = 1023

    def __init__(self) -> None:
        size = len(_Place._fields) + 1
        self._words = torch.zeros((1 + self._WORKERS, size), dtype=torch.int64).share_memory_()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._words = state["_words"]
        if not self._words.is_shared():  # a copy, not a worker's
            self._words = self._words.share_memory_()

    def name(self, epoch: int, position: int) -> None:
        """Have the next loop of workers begin here."""
        named, _ = self._read()
        self._write(0, _Place(named=named.named + 1, epoch=epoch, position=position))

    def begun(self) -> list[_Place]:
        """Where workers began, since a place was named."""
        named, workers = self._read()
        return [each for each in workers.values() if each.named == named.named]

    def begin(
        self, worker: Any, steps_from: Callable[[int], int], epoch: int | None = None
    ) -> tuple[int, int]:
        """The epoch and position that a worker is to begin: those of its loop, or that epoch."""
        mark = (worker.seed - worker.id) or -1
        named, workers = self._read()
        mine = workers.get(worker.id, _Place())
        loop = mine.loop + 1 if mine.mark == mark else 0
        joined = [at for at in workers.values() if (at.mark, at.loop) == (mark, loop)]
        before = [at.epoch for at in workers.values() if at.named == named.named]
        at = named
        if joined and epoch is None:
            at = max(joined, key=lambda each: each.epoch)
        elif epoch is not None:
            at = named._replace(epoch=epoch, position=0)
        elif before:
            at = named._replace(epoch=max(before) + 1, position=0)
        elif not steps_from(named.position):  # nothing is left of what was loaded
            at = named._replace(epoch=named.epoch + 1, position=0)
        self._write(1 + worker.id, at._replace(mark=mark, loop=loop))
        return at.epoch, at.position

    def _read(self) -> tuple[_Place, dict[int, _Place]]:
        """What the main process named, and where each worker began."""
        for _ in range(1000):
            rows = self._words.tolist()
            places = {i: _Place(*row[:-1]) for i, row in enumerate(rows) if any(row)}
            if all(hash(place) == rows[i][-1] for i, place in places.items()):
                break
        named = places.pop(0, _Place())
        return named, {i - 1: place for i, place in places.items()}

    def _write(self, i: int, place: _Place) -> None:
        self._words[i] = torch.tensor([*place, hash(place)])
