"""Batches as JAX arrays, on the devices where the model is."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Unpack

from numpy.typing import NDArray

from stepwell import loader as _loader
from stepwell.errors import SchemaError
from stepwell.source import Batch, Ragged, Source

try:
    import jax
except ImportError as error:
    raise ImportError("stepwell.jax needs an extra: pip install 'stepwell[jax]'") from error

__all__ = ["Loader"]


class Loader(_loader.Loader):
    """`stepwell.Loader` whose batches are JAX arrays, moved one batch ahead of the consumer.

    `device` is a device or a `Sharding`. With a sharding, the batch of each process is its
    part of one global array. Fields of 64 bits need `jax_enable_x64`: without it JAX would
    cut their upper half off, so they are refused.
    """

    _ahead = 2

    def __init__(
        self,
        source: Source | Mapping[str, Any] | Any,
        batch_size: int,
        *,
        device: jax.Device | jax.sharding.Sharding | None = None,
        **options: Unpack[_loader.LoaderOptions],
    ) -> None:
        super().__init__(source, batch_size, **options)
        self._device = device

    if TYPE_CHECKING:

        def __iter__(self) -> Iterator[dict[str, jax.Array]]: ...
        def forever(self) -> Iterator[dict[str, jax.Array]]: ...

    def _start(self, batch: Batch) -> dict[str, Any]:
        if not isinstance(batch, Mapping):
            raise TypeError(
                f"expected a dict of arrays, as a transform too must give, got {type(batch)}"
            )
        for name, values in batch.items():
            if isinstance(values, Ragged):
                raise SchemaError(f"field {name!r} is ragged; pad it with transform= first")
            if jax.dtypes.canonicalize_dtype(values.dtype) != values.dtype:
                raise SchemaError(
                    f"field {name!r} is {values.dtype}, which JAX would cut to 32 bits; set "
                    "jax.config.update('jax_enable_x64', True) or convert it with transform="
                )
        if isinstance(self._device, jax.sharding.Sharding):
            return {name: self._shard(values) for name, values in batch.items()}
        return {name: jax.device_put(values, self._device) for name, values in batch.items()}

    def _shard(self, values: NDArray[Any]) -> Any:
        return jax.make_array_from_process_local_data(self._device, values)
