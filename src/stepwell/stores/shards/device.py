"""Rows in order on a CUDA device: threads put them into pinned memory and begin the copy."""

import os
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.feed import make_feed
from stepwell.ordered import in_order
from stepwell.source import Field
from stepwell.stores.shards.layout import HEADER_BYTES
from stepwell.stores.shards.local import Corpus, Span

_THREADS = 16
_Convert = Callable[[NDArray[np.uint8], NDArray[Any], str, int], None]


class Device:
    """A device as torch names it. torch is an edge, which is imported when somebody wants it."""

    def __init__(self, name: Any) -> None:
        self._torch = import_module("stepwell.torch.feed")
        self.number: int = self._torch.device_number(name)

    def stream(self) -> int:
        """The stream that the caller works on."""
        return int(self._torch.current_stream(self.number))

    def tensor(self, capsule: Any) -> Any:
        """What the caller gets."""
        return self._torch.of_capsule(capsule)


class Crossing:
    """Memory that batches cross in. To pin it takes as long as to copy some gigabytes, so a reader
    keeps that of its last pass for the next."""

    def __init__(self) -> None:
        self._kept: tuple[tuple[Any, ...], _core.CudaFeed] | None = None

    def feed(self, device: Device, field: Field, step: int) -> _core.CudaFeed:
        """For batches of up to `step` rows."""
        key = (os.getpid(), device.number, field.dtype, field.shape, step)
        if self._kept is None or self._kept[0] != key:
            self._kept = None
            number, threads = device.number, min(_core.usable_cores(), _THREADS)
            feed = make_feed(number, {"data": field}, step, threads=threads, prefetch=2, together=1)
            self._kept = key, feed
        return self._kept[1]


def tensors(
    shards: Corpus,
    span: Span,
    step: int,
    window_bytes: int,
    field: Field,
    convert: _Convert,
    device: Any,
    feed: _core.CudaFeed,
) -> Iterator[Any]:
    """The rows of each of the cuts as a tensor; `convert` puts those of a file into an array."""
    threads = min(_core.usable_cores(), _THREADS)
    batch_bytes = step * shards.shards[0].row_bytes
    parts = shards.parts(span, step, max(window_bytes, (threads + 2) * batch_bytes))

    def sent(part: Any) -> _core.Crossing:
        lane, (number, begin, end), data = part
        where, rows = shards.where(number), end - begin
        try:
            shards.check_rows(number, begin, end)
            crossing = feed.begin(rows)
            here = crossing.array(rows * field.row_bytes).view(field.dtype)
            at = HEADER_BYTES + begin * shards.shards[number].row_bytes
            convert(data, here.reshape(rows, *field.shape), where, at)
            feed.send(crossing, lane)
        except MemoryError as error:
            error.add_note(f"in the batch of {rows} rows at row {begin} of {where}")
            raise
        return crossing

    cuts = shards.cuts(span, step)
    try:
        for crossing in in_order(sent, zip(count(), cuts, parts, strict=False), threads):
            yield feed.hand_over(crossing, device.stream(), device.tensor)["data"]
    finally:
        feed.trim()  # of the device's memory; that of the host stays
