"""torch's own class, for frameworks that insist on it."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch.utils import data

from stepwell.sampler import Sequential
from stepwell.source import Source
from stepwell.torch import sharing
from stepwell.torch.dataset import MapDataset, collate
from stepwell.torch.loader import Loader


class DataLoader(data.DataLoader[Any]):
    """A `torch.utils.data.DataLoader` in stepwell's order, for frameworks that insist on torch's.

    Its loop is that of a `Loader`, which finds its rank. A framework that rebuilds it with a
    sampler of its own, or that takes `dataset` and `batch_sampler` out of it, gets the whole order
    of each epoch and gives each rank a part. `sampler` is one of stepwell's or, as in torch, one
    of row numbers; other options are torch's.

    `state_dict` and `load_state_dict` are there as long as the order is ours and nothing works
    ahead of the consumer: not in a rebuilt loader, with worker processes, pinned memory or
    a `collate_fn`. Those resume as torch's do, from the beginning of an epoch.
    """

    state_dict: Callable[[], dict[str, Any]]
    load_state_dict: Callable[[Mapping[str, Any]], None]

    def __init__(
        self,
        dataset: Source | MapDataset | Any,
        batch_size: int = 1,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        *,
        seed: int = 0,
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        transform: Any = None,
        as_int64: Sequence[str] = (),
        collate_fn: Any = None,
        **options: Any,
    ) -> None:
        if isinstance(dataset, MapDataset):
            if transform is not None or as_int64:
                raise ValueError("give transform and as_int64 to the MapDataset")
        else:
            dataset = MapDataset(dataset, transform, as_int64=as_int64)
        self._loader: Loader | None = None
        options.update(drop_last=drop_last, collate_fn=collate_fn or collate)
        if batch_sampler is not None or (sampler is not None and not hasattr(sampler, "order")):
            options.update(shuffle=shuffle or None, sampler=sampler, batch_sampler=batch_sampler)
            super().__init__(dataset, batch_size, **options)
            return
        self._loader = Loader(
            dataset._source,
            batch_size,
            shuffle=shuffle is not False,
            seed=seed,
            sampler=sampler,
            drop_last=drop_last,
            rank=rank,
            world_size=world_size,
            transform=dataset._transform,
            as_int64=dataset._as_int64,
        )
        sequential = isinstance(self._loader._sampler, Sequential)
        whole = (_SequentialWholeSampler if sequential else WholeSampler)(self._loader)
        dataset = copy.copy(dataset)
        super().__init__(dataset, batch_size, sampler=whole, **options)
        batches: Any = self.batch_sampler
        # When they skip batches, accelerate and transformers set the epoch of these.
        dataset.set_epoch = batches.set_epoch = whole.set_epoch
        if self._is_plain:
            self.state_dict = self._loader.state_dict
            self.load_state_dict = self._loader.load_state_dict

    def __repr__(self) -> str:
        shown = self.dataset if self._loader is None else self._loader
        return f"DataLoader({shown!r}, num_workers={self.num_workers})"

    def set_epoch(self, epoch: int) -> None:
        """Have the next loop begin this epoch."""
        for each in (self.batch_sampler, getattr(self.batch_sampler, "sampler", None)):
            getattr(each, "set_epoch", lambda _: None)(epoch)

    @property
    def _is_plain(self) -> bool:
        """Whether a loop of the loader is all that a loop of this one does."""
        return self.num_workers == 0 and self.collate_fn is collate and not self.pin_memory

    @property
    def _index_sampler(self) -> Any:
        return super()._index_sampler if self._loader is None else self._loader.batch_sampler

    def __iter__(self) -> Any:
        if self._loader is not None and self._is_plain:
            return iter(self._loader)
        return super().__iter__()


class WholeSampler(data.Sampler[int]):
    """The order of a whole epoch, for frameworks that give each rank a part of it."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Have the next loop begin this epoch, whoever does the reading."""
        loaded = self._loader._loaded
        if loaded is not None and loaded[0] != epoch:
            raise RuntimeError(
                f"expected set_epoch({loaded[0]}), the epoch whose state was loaded, "
                f"got set_epoch({epoch}), which would begin another; where a framework calls it, "
                "as Fabric does, loop over stepwell.torch.Loader(source, batch_size) as it is"
            )
        self._loader.set_epoch(epoch)
        self._epoch = epoch

    def __len__(self) -> int:
        return self._loader.order.length

    def __iter__(self) -> Iterator[int]:
        world = self._loader._find()
        if world.size > 1 and sharing.reader().shares is None:
            raise RuntimeError(
                f"expected a framework that gives each of {world.size} ranks its part, got one "
                "that reads every row on all of them; prepare the loader first, or loop over "
                "stepwell.torch.Loader(source, batch_size) as it is"
            )
        order, epoch = self._loader.order, self._epoch
        self._epoch = epoch + 1
        for start in range(0, order.length, 65536):
            yield from order.rows(epoch, start, min(65536, order.length - start)).tolist()


class _SequentialWholeSampler(WholeSampler, data.SequentialSampler):
    """Frameworks want to see from the class that rows are not shuffled."""
