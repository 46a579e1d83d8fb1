"""torch's own class, for frameworks that insist on it."""

from collections.abc import Iterator, Sequence
from typing import Any

from torch.utils import data

from stepwell.sampler import Sequential
from stepwell.source import Source
from stepwell.torch import sharing
from stepwell.torch.dataset import MapDataset, collate
from stepwell.torch.loader import Loader


class DataLoader(data.DataLoader[Any]):
    """A `torch.utils.data.DataLoader` in stepwell's order, for Fabric, Ray and accelerate.

    A loop over it is a loop of a `Loader` that finds its rank: with `num_workers=0`, and without
    a `collate_fn` of one's own, it is that very loop. A framework that rebuilds it
    with a sampler of its own, to give each rank a part, or that takes `dataset`, `sampler` and
    `batch_sampler` out of it, gets the whole order of each epoch and shares it out. It has no
    state, as torch's has none: frameworks resume it by skipping batches, and `Loader` resumes by
    its own. `sampler` is one of stepwell's or, as in torch, numbers of rows; other options are
    those of torch.
    """

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
                raise ValueError("transform and as_int64 are the dataset's: give them to MapDataset")
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
        whole = WholeSampler(self._loader)
        sequential = isinstance(self._loader._sampler, Sequential)
        order = data.SequentialSampler(dataset) if sequential else whole
        super().__init__(dataset, batch_size, sampler=order, **options)
        # transformers sets the epoch here when it skips batches.
        self.batch_sampler.set_epoch = whole.set_epoch

    def set_epoch(self, epoch: int) -> None:
        """Have the next loop begin this epoch."""
        if self._loader is not None:
            self._loader.set_epoch(epoch)
        elif hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)

    @property
    def _index_sampler(self) -> Any:
        return super()._index_sampler if self._loader is None else self._loader.batch_sampler

    def __iter__(self) -> Iterator[Any]:
        plain = self.num_workers == 0 and self.collate_fn is collate and not self.pin_memory
        return iter(self._loader) if self._loader is not None and plain else super().__iter__()


class WholeSampler(data.Sampler[int]):
    """The order of a whole epoch, for frameworks that give each rank a part of it."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Have the next loop begin this epoch, whoever does the reading."""
        self._loader.set_epoch(epoch)
        self._epoch = epoch

    def __len__(self) -> int:
        return self._loader.order.length

    def __iter__(self) -> Iterator[int]:
        world = self._loader._find()
        if world.size > 1 and sharing.reader().shares is None:
            raise RuntimeError(
                f"expected a framework that gives each of {world.size} ranks its part, got one that "
                "reads every row on all of them; prepare the loader first, or loop over "
                "stepwell.torch.Loader(source, batch_size) as it is"
            )
        order, epoch = self._loader.order, self._epoch
        self._epoch = epoch + 1
        for start in range(0, order.length, 65536):
            yield from order.rows(epoch, start, min(65536, order.length - start)).tolist()
