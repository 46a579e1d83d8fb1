"""Batches that the core copies to a CUDA device, as tensors."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from stepwell import _core, loader as _loader
from stepwell.engine import FeedEngine
from stepwell.source import Batch

_raw_stream: Callable[[int], int] | None = getattr(torch._C, "_cuda_getCurrentRawStream", None)


def current_stream(device: int) -> int:
    """The number of the stream that this thread works on."""
    if _raw_stream is not None:  # as Triton does: the public way makes an object, and takes 5 us
        return _raw_stream(device)
    return int(torch.cuda.current_stream(device).cuda_stream)


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
        super().__init__(loader, reader, order, feed)
        self._device, self._move = feed.device, moved

    def _stream(self) -> int:
        return current_stream(self._device)

    def _tensor(self, capsule: Any) -> torch.Tensor:
        return from_dlpack(capsule)

    def _moved(self, batch: Batch) -> Any:
        return self._move(batch)
