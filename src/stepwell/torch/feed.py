"""Batches that the core copies to a CUDA device, as tensors."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from stepwell import _core, loader as _loader
from stepwell.engine import FeedEngine
from stepwell.source import Batch

# The public function looks at what it was given first; a capsule is all that we have.
of_capsule: Callable[[Any], torch.Tensor] = getattr(torch._C, "_from_dlpack", from_dlpack)


def _stream_of_torch(device: int) -> int:
    return int(torch.cuda.current_stream(device).cuda_stream)


# As Triton does: the public way makes an object, and takes 5 us.
current_stream: Callable[[int], int] = getattr(
    torch._C, "_cuda_getCurrentRawStream", _stream_of_torch
)
"""The number of the stream that this thread works on, on a device."""


def device_number(device: torch.device | str | int) -> int:
    """Which of CUDA's devices is meant. Raises `ValueError` for one of another kind."""
    named = torch.device(device)
    if named.type != "cuda":
        raise ValueError(f"device: expected 'cuda' or 'cuda:N', got {device!r}")
    index: int | None = named.index
    if index is not None:
        return index
    return torch.cuda.current_device() if torch.cuda.is_available() else 0


class CudaEngine(FeedEngine):
    """Tensors of a feed, for the stream that is current when they are handed out."""

    def __init__(
        self,
        loader: _loader.Loader,
        reader: _core.Reader,
        order: _core.Order,
        feed: _core.CudaFeed,
        moved: Callable[[Batch], Any],
    ) -> None:
        torch.cuda.init()
        stream = partial(current_stream, feed.device)
        super().__init__(loader, reader, order, feed, stream, of_capsule)
        self._move = moved

    def has(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies in the memory of the feed, where a batch is one block."""
        return self._feed.record_stream(tensor.data_ptr(), current_stream(self._feed.device))

    def _moved(self, batch: Batch) -> Any:
        return self._move(batch)
