"""Batches as JAX arrays, on the devices where the model is."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import NDArray

from stepwell import _core, loader as _loader
from stepwell.engine import Engine, FeedEngine
from stepwell.errors import SchemaError
from stepwell.feed import make_feed
from stepwell.source import Batch, Ragged, Source

try:
    import jax
    from jax.sharding import NamedSharding, PartitionSpec, Sharding
except ImportError as error:
    raise ImportError("stepwell.jax needs an extra: pip install 'stepwell[jax]'") from error

__all__ = ["Loader"]


class Loader(_loader.Loader):
    """`stepwell.Loader` whose batches are JAX arrays, moved ahead of the consumer.

    On a CUDA device native threads copy the batches there, and each is complete when it is handed
    out. Shardings, `pad_last` and sources that only Python can read are moved by `jax.device_put`,
    one batch ahead.

    `device` is a device or a `Sharding`, of which a field of fewer dimensions takes the first
    ones. With a sharding over several processes, the batch of each is its part of one global
    array; `rank` and `world_size` then come from the sharding, so that processes which hold the
    same rows read the same ones.

    When the last batch of an epoch cannot be divided among the shards, it is filled up with its
    own first rows, fewer than there are shards; `drop_last` leaves it out. With `pad_last` every
    batch has `batch_size` rows and a field `mask`, which is True for each row of the epoch
    exactly once and False for those that fill a batch up: one shape, compiled once.

    Fields of 64 bits need `jax_enable_x64`: without it JAX would cut their upper half off, so
    they are refused.
    """

    _ahead = 2

    def __init__(
        self,
        source: Source | Mapping[str, Any] | Any,
        batch_size: int,
        *,
        device: jax.Device | Sharding | None = None,
        pad_last: bool = False,
        **options: Unpack[_loader.LoaderOptions],
    ) -> None:
        self._shards, self._global = 1, False
        if isinstance(device, Sharding):
            rank, world_size, self._shards = _share_of(device)
            self._global = not device.is_fully_addressable
            if self._global:
                found = {"rank": rank, "world_size": world_size}
                given = {name: options.get(name) for name in found}
                if given not in (found, dict.fromkeys(found)):
                    raise ValueError(f"expected {found}, as the sharding has it, got {given}")
                options["rank"], options["world_size"] = rank, world_size
        if pad_last and options.get("drop_last"):
            raise ValueError("give either drop_last or pad_last")
        super().__init__(source, batch_size, **options)
        self._device, self._pad_last = device, bool(pad_last)
        self._feed: _core.CudaFeed | None = None
        if self._batch_size % self._shards:
            raise ValueError(
                f"batch_size: expected a multiple of {self._shards}, the shards in a process, "
                f"got {batch_size}"
            )

    if TYPE_CHECKING:

        def __iter__(self) -> Iterator[dict[str, jax.Array]]: ...
        def forever(self) -> Iterator[dict[str, jax.Array]]: ...

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_feed": None}

    def _make_engine(self) -> Engine:
        device, source, order = _cuda_device(self._device), self._source, self._order
        reader = source._reader if device is not None else None
        plain = self._pad_last or self._transform is not None or source._units() is not None
        if device is None or reader is None or plain or not isinstance(order, _core.Order):
            self._ahead = 2
            return super()._make_engine()
        for name, field in source.schema.items():
            _check_width(name, field.dtype)
        if self._feed is None:
            number: int = device.local_hardware_id
            size, threads, ahead = self._batch_size, self._threads, self._prefetch
            self._feed = make_feed(number, source.schema, size, threads=threads, prefetch=ahead)
        self._ahead = 1
        return _JaxEngine(self, reader, order, self._feed, device)

    def _start(self, batch: Batch) -> dict[str, Any]:
        if isinstance(self._engine, _JaxEngine):
            return batch
        if not isinstance(batch, Mapping):
            raise TypeError(
                f"expected a dict of arrays, as a transform too must give, got {type(batch)}"
            )
        for name, values in batch.items():
            if isinstance(values, Ragged):
                raise SchemaError(f"field {name!r} is ragged; pad it with transform= first")
            _check_width(name, values.dtype)
        if self._pad_last or isinstance(self._device, Sharding):
            batch = self._fit(batch)
        return {name: self._put(values) for name, values in batch.items()}

    def _fit(self, batch: Batch) -> Batch:
        """The batch with as many rows as shards or `pad_last` need, and with its mask."""
        assert self._engine is not None
        count = self._engine.step[2]
        lengths = {len(values) if values.ndim else -1 for values in batch.values()}
        rows = max(lengths, default=0)
        fixed = self._pad_last or self._global  # then others count on the number of rows
        if len(lengths) != 1 or (fixed and rows != count and self._on_corrupt != "skip"):
            got = " and ".join(map(str, sorted(lengths)))
            raise ValueError(f"expected {count} rows in each field of a batch, got {got or 0}")
        wanted = self._batch_size if self._pad_last else count if self._global else rows
        wanted += -wanted % self._shards
        if rows != wanted:
            if rows > wanted or (rows == 0 and not self._pad_last):
                raise ValueError(f"expected 1 to {wanted} rows in a batch, got {rows}")
            shapes = {name: (wanted, *values.shape[1:]) for name, values in batch.items()}
            batch = {name: np.resize(values, shapes[name]) for name, values in batch.items()}
        if not self._pad_last:
            return batch
        if "mask" in batch:
            raise SchemaError("field 'mask': expected another name, pad_last adds a field of it")
        return {**batch, "mask": np.arange(wanted) < self._own(rows)}

    def _own(self, rows: int) -> int:
        """Of the batch's rows, those that this rank is the one to see; others follow them.

        The last ranks go on with the first rows of the epoch when its tail runs out.
        """
        assert self._engine is not None
        epoch, start, count, _, stride = self._engine.step
        length, before = self._order.length, self._world.rank * (count if stride == 1 else 1)
        left = length - before - (start - before) % length
        own = min(max((left - 1) // stride + 1, 0), count)
        if rows == count or own == count:
            return min(own, rows)
        others = self._engine._rows(epoch, (start + own * stride) % length, count - own, stride)
        return rows - sum(map(len, self._engine._sound(others, {})))  # the damaged are not there

    def _put(self, values: NDArray[Any]) -> Any:
        device = self._device
        if not isinstance(device, Sharding):
            return jax.device_put(values, device)
        if isinstance(device, NamedSharding) and len(device.spec) > values.ndim:
            device = NamedSharding(device.mesh, PartitionSpec(*device.spec[: values.ndim]))
        if not self._global:
            return jax.make_array_from_process_local_data(device, values)
        shape = (len(values) * self._world.size, *values.shape[1:])
        return jax.make_array_from_process_local_data(device, values, shape)


def _check_width(name: str, dtype: Any) -> None:
    """Raise `SchemaError` for values that JAX would cut."""
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise SchemaError(
            f"field {name!r} is {dtype}, which JAX would cut to 32 bits; set "
            "jax.config.update('jax_enable_x64', True) or convert it with transform="
        )


def _cuda_device(given: Any) -> Any:
    """The one CUDA device that batches go to; None for other devices and for several."""
    if isinstance(given, Sharding):
        return None
    config: Any = jax.config
    chosen = given or config.jax_default_device or jax.local_devices()[0]
    is_cuda = getattr(chosen, "platform", "") == "gpu"  # ROCm's devices are called so as well
    return chosen if is_cuda and "cuda" in chosen.client.platform_version.lower() else None


class _Exported:
    """A DLPack capsule with the methods that JAX wants of an array."""

    def __init__(self, capsule: Any, device: int) -> None:
        self._capsule, self._device = capsule, device

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule  # complete, for whatever stream

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self._device  # CUDA


class _JaxEngine(FeedEngine):
    """Arrays of a feed. JAX has no current stream, so each is complete when it is handed out."""

    def __init__(
        self,
        loader: Loader,
        reader: _core.Reader,
        order: _core.Order,
        feed: _core.CudaFeed,
        device: Any,
    ) -> None:
        def array(capsule: Any) -> Any:
            return jax.dlpack.from_dlpack(_Exported(capsule, feed.device))

        super().__init__(loader, reader, order, feed, lambda: None, array)
        self._device = device

    def _moved(self, batch: Batch) -> Any:
        return {name: jax.device_put(values, self._device) for name, values in batch.items()}


def _share_of(sharding: Sharding) -> tuple[int, int, int]:
    """Which part of the rows this process holds, of how many, and the shards in that part.

    Raises `ValueError` when processes hold parts that overlap, or are of unlike size.
    """
    spec = sharding.spec if isinstance(sharding, NamedSharding) else ()
    shape = (len(sharding.device_set),) * max(len(spec), 1)  # fits any mesh of these devices
    parts: dict[int, set[int]] = defaultdict(set)
    device: Any
    for device, index in sharding.devices_indices_map(shape).items():
        parts[device.process_index].add((index or (slice(None),))[0].start or 0)
    mine = tuple(sorted(parts[jax.process_index()]))
    shares = sorted({tuple(sorted(part)) for part in parts.values()})
    disjoint = sum(map(len, shares)) == len(set().union(*shares))
    if not disjoint or any(len(share) != len(mine) for share in shares):
        raise ValueError(
            "device: expected every process to hold the same rows as another or as many of its "
            f"own, got {sharding}"
        )
    return shares.index(mine), len(shares), len(mine)
