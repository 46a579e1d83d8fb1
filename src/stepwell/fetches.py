"""How many bytes a loader fetches for each byte that it uses, known before it fetches one.

A unit that comes again is fetched again unless it was kept meanwhile. The steps at the beginning of
an epoch show how far apart the uses of a unit are; those behind the sample are as many as the bytes
of a unit imply, and taken to be anywhere. Of all of these gaps the shortest are kept, as many as
there is room for at a time: that is what Belady's rule comes to.
"""

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from stepwell.engine import rows_of
from stepwell.sampler import Block, Order
from stepwell.source import Rows, Source
from stepwell.units import Units

if TYPE_CHECKING:
    from stepwell.loader import Loader

FAR_ABOVE = 4.0
"""Bytes fetched for a byte used that are worth a warning."""

_ENOUGH = 1.25
_ROWS = 1 << 18
_MAX_ROWS = 1 << 21


def fetched_per_used(loader: "Loader", order: Order, rows: int = _ROWS) -> float | None:
    """Bytes fetched for each byte of a row, by the first steps of an epoch of this rank.

    None where the rows are at hand, where only reading shows how long they are, and for no rows.
    """
    source, units = loader._source, loader._source._units()
    if units is None:
        return None
    uses, used, count = [], 0, 0
    for some in _steps(loader, order):
        size = _bytes_of(source, some)
        if size is None:
            return None
        uses.append(units.of(some))
        used, count = used + size, count + len(some)
        if count >= rows:
            break
    if not used:
        return None
    links = np.concatenate(uses)
    there = max(used / count * len(source) / units.unit_bytes, 1.0)  # units of all rows
    room = units.budget_bytes // units.unit_bytes
    epoch = len(links) / count * order.length
    return _missed(links, room, there, epoch) * len(links) * units.unit_bytes / used


def warn_of_fetches(loader: "Loader") -> None:
    """Warn where much more is fetched than used."""
    try:
        cost, units = fetched_per_used(loader, loader._order), loader._source._units()
    except Exception:
        return  # the step that fails reports it when it has its turn
    if cost is None or units is None or cost < FAR_ABOVE:
        return
    k = _enough_block(loader, units)
    instead = f"; sampler=Block({k}) would fetch little more than it uses" if k else ""
    warnings.warn(
        f"{loader._sampler!r} fetches {cost:.0f} bytes for each byte that it uses, with "
        f"{units.budget_bytes / 1e6:,.0f} MB to keep what comes again{instead}",
        stacklevel=6,  # the loop
    )


def _enough_block(loader: "Loader", units: Units) -> int | None:
    """A `k` with which `Block(k)` fetches little more than it uses; None if there is none."""
    source, group = loader._source, Block(1).group
    size = _bytes_of(source, np.zeros(1, np.int64))
    if not size:
        return None
    k = 1 << (4 * units.unit_bytes // size).bit_length()
    while k * size * group <= units.budget_bytes and k < len(source):
        rows = min(max(2 * k * group, _ROWS), _MAX_ROWS)
        cost = fetched_per_used(loader, Block(k).order(len(source)), rows)
        if cost is not None and cost <= _ENOUGH:
            return k
        k *= 4
    return None


def _steps(loader: "Loader", order: Order) -> Iterator[Rows]:
    """The rows of each step of this rank, from the beginning of an epoch on."""
    schedule = loader._schedule(0, 0, loader._find(), order)
    for number in range(schedule.steps_from(0)):
        epoch, start, count, _, stride = schedule.step(number)
        yield rows_of(order, epoch, start, count, stride)


def _bytes_of(source: Source, rows: Rows) -> int | None:
    """What is stored of these rows; None where only reading shows."""
    fixed = sum(field.row_bytes for field in source.schema.values() if not field.ragged)
    ragged = [name for name, field in source.schema.items() if field.ragged]
    if not ragged:
        return len(rows) * fixed
    sizes = source._sizes(rows, ragged)
    return None if sizes is None else len(rows) * fixed + int(sizes.sum())


def _missed(links: NDArray[np.int64], room: int, there: float, epoch: float) -> float:
    """The share of uses that find their unit gone, or are the first of it.

    `links` are units as they are used, the first of an epoch that has `epoch` uses of `there`
    units.
    """
    order = np.argsort(links, kind="stable")
    again = np.flatnonzero(np.diff(links[order]) == 0)
    gaps = np.sort(order[again + 1] - order[again]).astype(np.float64)
    count, distinct = len(links), len(links) - len(gaps)
    later = max(epoch / there * distinct - count, 0.0)  # uses of these units behind the sample
    mean = max(epoch - count, 1.0) * distinct / later if later else np.inf
    occupied = np.cumsum(gaps)

    def kept(longest: float) -> tuple[float, float]:
        """How many gaps up to this length there are, and the units that are kept through them."""
        short = int(np.searchsorted(gaps, longest, side="right"))
        x = longest / mean
        unseen = -np.expm1(-x) * distinct
        load = mean * distinct * (1 - (1 + x) * np.exp(-x)) if later else 0.0
        return short + unseen, ((occupied[short - 1] if short else 0.0) + load) / count

    low, high = 0.0, 64 * max(epoch, float(count))
    for _ in range(64):
        middle = (low + high) / 2
        low, high = (middle, high) if kept(middle)[1] <= room else (low, middle)
    return max(1 - kept(low)[0] / count, min(there / epoch, 1.0))
