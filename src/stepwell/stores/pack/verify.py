"""Everything that can be wrong with a pack whose structure is right, looked for."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from stepwell import _core
from stepwell.errors import ChecksumError, FormatError
from stepwell.sampler import Shuffle
from stepwell.source import Rows
from stepwell.stores.pack.file import PackFile
from stepwell.stores.pack.layout import INDEX_AT
from stepwell.stores.pack.payload import by_type

if TYPE_CHECKING:
    from stepwell.stores.pack.reader import PackReader

__all__ = ["find_problems"]

_AT_ONCE = 64
_SUM_BYTES = 1 << 26


def find_problems(
    pack: "PackReader", sample: int | None, on_progress: Callable[[int, int], None] | None
) -> list[FormatError]:
    """Read entries, all or `sample` of them; of a whole pack everything else too."""
    rows: Rows = np.arange(len(pack))
    if sample is not None and sample < len(pack):
        rows = np.sort(Shuffle(0).order(len(pack)).rows(0, 0, sample))
    problems: list[FormatError] = []
    for at in range(0, len(rows), _AT_ONCE):
        part = rows[at : at + _AT_ONCE]
        problems += _broken_entries(pack, part)
        pack._scanned(part)
        if on_progress is not None:
            on_progress(at + len(part), len(rows))
    if sample is None and pack._is_whole:
        file = pack._opened
        problems += [*_broken_data(file), *_broken_padding(file)]
        if file.layout.stats is not None and not problems:
            problems += _broken_stats(pack)
    return problems


def _broken_entries(pack: "PackReader", rows: Rows) -> list[FormatError]:
    file, threads = pack._opened, _core.usable_cores()
    entries, numbers = pack._entries[rows], pack._numbers[rows]
    raw = np.ones(len(entries), np.bool)
    try:
        file.check_sums(entries, numbers, threads)
        for known, mask in by_type(entries["kind"]):
            file.decode(known, entries[mask], numbers[mask], threads)
            raw &= ~mask
        file.unpacked(entries[raw], numbers[raw], threads)
    except FormatError as error:
        if len(rows) == 1:
            return [error]
        return [problem for row in rows for problem in _broken_entries(pack, np.array([row]))]
    return []


def _broken_data(file: PackFile) -> list[FormatError]:
    """The sum of all data, padding included."""
    layout, found = file.layout, 0
    if not layout.data_crc:
        return []
    for begin in range(layout.data_start, layout.data_end, _SUM_BYTES):
        end = min(begin + _SUM_BYTES, layout.data_end)
        found = _core.crc32c(file.data[begin:end], found)
        file.give_back(begin, end)
    if found == layout.data_crc:
        return []
    message = f"data: expected CRC32C {layout.data_crc:08x}, got {found:08x}"
    return [ChecksumError(message, path=str(file.path), offset=layout.data_start)]


def _broken_padding(file: PackFile) -> list[FormatError]:
    # Looked at by itself: the sum of the data leaves some of it out, and may be absent.
    index = file.layout.index
    ends = index["offset"].astype(np.int64)
    begins = np.append(INDEX_AT + index.nbytes, (ends + index["length"])[:-1])
    gaps = begins < ends
    problems = []
    for begin, end in zip(begins[gaps].tolist(), ends[gaps].tolist(), strict=True):
        if (padding := file.data[begin:end]).any():
            at = begin + int(padding.argmax())
            problems.append(
                FormatError("padding: expected zero bytes", path=str(file.path), offset=at)
            )
    return problems


def _broken_stats(pack: "PackReader") -> list[FormatError]:
    try:
        stored = pack._stored_stats()
    except FormatError as error:
        return [error]
    counted = pack._count_stats()
    return [
        FormatError(
            f"statistics: expected {name} {getattr(counted, name)}, got {value}",
            path=str(pack.path),
            offset=pack._opened.layout.data_end + 4,
        )
        for name, value in vars(stored).items()
        if value != getattr(counted, name)
    ]
