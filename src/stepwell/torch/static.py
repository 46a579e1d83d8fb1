"""Batches in the same tensors each time, which a captured step finds again."""

from typing import Any

import torch

from stepwell.engine import NOWHERE, Engine, Place
from stepwell.errors import SchemaError
from stepwell.torch.feed import CudaEngine
from stepwell.torch.resident import ResidentEngine
from stepwell.torch.tensors import Tensors


class StaticBatch:
    """Tensors that each batch is copied into; none until the first one.

    `place` is where an engine may put batches at once, which it then gives as None.
    """

    def __init__(self) -> None:
        self._tensors: Tensors = {}
        self._block: torch.Tensor | None = None  # the memory of all of them, where that is a tensor
        self.place = NOWHERE

    def filled(self, batch: Tensors | None, engine: Engine | None) -> Tensors:
        """The tensors with this batch, on the current stream; None is one that is there already.

        Of an engine that made the batch on the device, it is one copy.
        """
        there = engine if isinstance(engine, ResidentEngine) else None
        if batch is None:
            if there is not None and self._block is not None:
                self._block.copy_(there.block)
        elif not self._tensors:
            for name, values in batch.items():
                if not isinstance(values, torch.Tensor):
                    raise SchemaError(f"static_batches: field {name!r} is ragged; pad it first")
            if there is not None:
                self._block = there.block.clone()
                self._tensors = there.views(self._block)
                self.place = Place(self._block.data_ptr(), there.rows)
            elif isinstance(engine, CudaEngine) and engine.has(first := next(iter(batch.values()))):
                self._tensors, self.place = batch, Place(first.data_ptr(), len(first))
            else:
                self._tensors = {name: values.clone() for name, values in batch.items()}
        else:
            before, now = ({n: _shape(t) for n, t in b.items()} for b in (self._tensors, batch))
            if before != now:
                raise ValueError(f"static_batches: expected {before}, as before, got {now}")
            torch._foreach_copy_(list(self._tensors.values()), [batch[n] for n in before])
        return self._tensors


def _shape(values: Any) -> tuple[int, ...] | None:
    return tuple(values.shape) if isinstance(values, torch.Tensor) else None
