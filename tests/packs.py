"""Packs for tests: written by either hand, looked at as a source, and damaged with care."""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stepwell import PackWriter
from tests.contract import Expected
from tests.reference import pack, runs
from tests.reference.pack import ENTRY, FOOTER, HEADER
from tests.runs import columns_of


def write(path: Path, payloads: Sequence[bytes], kinds: Sequence[int] = (), **options: Any) -> Path:
    """A pack by `PackWriter`; without kinds, of runs."""
    with PackWriter(path, **options) as writer:
        for i, payload in enumerate(payloads):
            writer.append(payload, kinds[i] if kinds else None)
    return path


def entries_of(payloads: Sequence[bytes]) -> list[pack.Entry]:
    return [pack.Entry(runs.kind_of(payload), payload) for payload in payloads]


def reference_pack(payloads: Sequence[bytes], align: int = 64, **options: Any) -> bytes:
    """The bytes of a pack of runs, with its statistics, by the reference."""
    stats = pack.stats_of((runs.kind_of(payload), payload) for payload in payloads)
    return pack.write_pack(entries_of(payloads), align, **{"stats": stats, **options})


def expected_of(payloads: Sequence[bytes]) -> Expected:
    """The rows of a source of these runs."""
    decoded = [runs.decode(payload) for payload in payloads]
    columns = [columns_of(run) for run in decoded]
    metas = [run.meta for run in decoded]
    names = ("boards", "moves", "ev_legal", "ev_values", "has_branches")
    return {
        **{name: [column[name] for column in columns] for name in names},
        "final_board": np.array([run.final_board for run in decoded], np.uint64),
        "steps": np.array([meta.steps for meta in metas], np.uint32),
        "start_unix_s": np.array([meta.start_unix_s for meta in metas], np.uint64),
        "elapsed_s": np.array([meta.elapsed_s for meta in metas], np.float32),
        "max_score": np.array([meta.max_score for meta in metas], np.uint64),
        "highest_tile": np.array([meta.highest_tile for meta in metas], np.uint32),
        "engine": [np.frombuffer((meta.engine or "").encode(), np.uint8) for meta in metas],
    }


# Damage.


def summed(data: bytes) -> bytes:
    """The pack with the sums of header, index and footer made right again."""
    out = bytearray(data)
    out[24:28] = struct.pack("<I", runs.crc32c(bytes(out[:24])))
    (count,) = struct.unpack_from("<Q", out, 16)
    foot = len(out) - FOOTER
    index = bytes(out[HEADER : HEADER + ENTRY * count])
    out[foot + 8 : foot + 12] = struct.pack("<I", runs.crc32c(index))
    out[foot + 24 : foot + 28] = struct.pack("<I", runs.crc32c(bytes(out[foot : foot + 24])))
    return bytes(out)


def changed(data: bytes, offset: int, new: bytes) -> bytes:
    """The pack with other bytes at an offset, and right sums."""
    offset %= len(data)
    return summed(data[:offset] + new + data[offset + len(new) :])


def without_sums(data: bytes) -> bytes:
    """The pack as if it had never had a sum of any payload, nor of all data."""
    (count,) = struct.unpack_from("<Q", data, 16)
    for i in range(count):
        data = changed(data, HEADER + ENTRY * i + 16, bytes(4))
    return changed(data, -20, bytes(4))
