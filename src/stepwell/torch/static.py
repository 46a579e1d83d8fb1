"""Batches in the same tensors each time, which a captured step finds again."""

from typing import Any

import torch

from stepwell.engine import Engine
from stepwell.errors import SchemaError
from stepwell.torch.resident import ResidentEngine
from stepwell.torch.tensors import Tensors


class StaticBatch:
    """Tensors that each batch is copied into; none until the first one."""

    def __init__(self) -> None:
        self._tensors: Tensors = {}
        self._block: torch.Tensor | None = None  # the memory of all of them, and its rows
        self._count = 0

    def filled(self, batch: Tensors, engine: Engine | None) -> Tensors:
        """The tensors with this batch, on the current stream.

        Of an engine that made the batch on the device, it is one copy.
        """
        there = engine if isinstance(engine, ResidentEngine) else None
        if not self._tensors:
            for name, values in batch.items():
                if not isinstance(values, torch.Tensor):
                    raise SchemaError(f"static_batches: field {name!r} is ragged; pad it first")
            if there is not None:
                self._block, self._count = there.block.clone(), there.step[2]
                self._tensors = there.views(self._block)
            else:
                self._tensors = {name: values.clone() for name, values in batch.items()}
        elif there is not None and self._block is not None and there.step[2] == self._count:
            self._block.copy_(there.block)
        else:
            before, now = ({n: _shape(t) for n, t in b.items()} for b in (self._tensors, batch))
            if before != now:
                raise ValueError(f"static_batches: expected {before}, as before, got {now}")
            torch._foreach_copy_(list(self._tensors.values()), [batch[n] for n in before])
        return self._tensors


def _shape(values: Any) -> tuple[int, ...] | None:
    return tuple(values.shape) if isinstance(values, torch.Tensor) else None
