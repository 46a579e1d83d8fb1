"""Everything that can be wrong with a pack whose structure is right, looked for."""

from dataclasses import fields
from typing import TYPE_CHECKING

import numpy as np

from stepwell import _core
from stepwell.errors import ChecksumError, FormatError
from stepwell.sampler import Shuffle
from stepwell.source import Rows
from stepwell.store import Progress, Report
from stepwell.stores.pack.file import PackFile
from stepwell.stores.pack.layout import INDEX_AT
from stepwell.stores.pack.payload import by_type

if TYPE_CHECKING:
    from stepwell.stores.pack.reader import PackReader

SAMPLE = 256
"""Entries that a quick look reads."""
_AT_ONCE = 64
_CHECKSUM_BYTES = 1 << 26


def check_pack(pack: "PackReader", quick: bool, progress: Progress) -> Report:
    """Read entries, all or some of them; of a whole pack everything else too.

    Checksums are compared even when the pack was opened without.
    """
    rows: Rows = np.arange(len(pack))
    if quick and len(pack) > SAMPLE:
        rows = np.sort(Shuffle(0).order(len(pack)).rows(0, 0, SAMPLE))
    problems: list[FormatError] = []
    for at in range(0, len(rows), _AT_ONCE):
        part = rows[at : at + _AT_ONCE]
        problems += _broken_entries(pack, part)
        pack._scanned(part)
        progress(at + len(part), len(rows))
    checked = [
        "header, index, footer and dictionary, when it was opened",
        f"checksums and contents of {len(rows):,} of {len(pack):,} entries",
    ]
    unchecked = []
    if quick or not pack._is_whole:
        unchecked.append("padding, statistics and the checksum of all data: not all was read")
    else:
        layout = pack._layout
        problems += [*_broken_data(pack._opened), *_broken_padding(pack._opened)]
        checked.append("padding")
        if layout.data_crc:
            checked.append("checksum of all data")
        else:
            unchecked.append("checksum of all data: the pack has none")
        if layout.stats is not None and problems:
            unchecked.append("statistics: not all entries can be counted")
        elif layout.stats is not None:
            problems += _broken_stats(pack)
            checked.append("statistics")
    if not len(rows):
        progress(0, 0)
    return Report(pack.kind, pack.path, tuple(problems), tuple(checked), tuple(unchecked))


def _broken_entries(pack: "PackReader", rows: Rows) -> list[FormatError]:
    file, threads = pack._opened, _core.usable_cores()
    numbers = pack._numbers[rows]
    entries = file.layout.index[numbers]
    raw = np.ones(len(entries), np.bool)
    try:
        file.checked(entries, numbers, threads)
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
    """The checksum of all data, padding included."""
    layout, found = file.layout, 0
    if not layout.data_crc:
        return []
    for begin in range(layout.data_start, layout.data_end, _CHECKSUM_BYTES):
        end = min(begin + _CHECKSUM_BYTES, layout.data_end)
        found = _core.crc32c(file.data[begin:end], found)
        file.give_back(begin, end)
    if found == layout.data_crc:
        return []
    message = f"data: expected CRC32C {layout.data_crc:08x}, got {found:08x}"
    return [ChecksumError(message, path=str(file.path), offset=layout.data_start)]


def _broken_padding(file: PackFile) -> list[FormatError]:
    # Looked at by itself: the checksum of the data leaves some of it out, and may be absent.
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
    names = (field.name for field in fields(pack._type.stats))
    return [
        FormatError(
            f"statistics: expected {name} {expected}, got {value}",
            path=pack.path,
            offset=pack._opened.layout.data_end + 4,
        )
        for name, value, expected in zip(names, stored, pack._count_stats(), strict=False)
        if value != expected
    ]
