"""Packs for tests: written by either hand, looked at as a source, and damaged with care."""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lz4.block
import numpy as np
import zstandard

from stepwell import FormatError, PackReader, PackWriter, StepwellError
from tests.contract import Expected
from tests.reference import pack, runs
from tests.reference.pack import ENTRY, FOOTER, HEADER
from tests.runs import RUN_V1, RUN_V2, columns_of


def write(path: Path, payloads: Sequence[bytes], kinds: Sequence[int] = (), **options: Any) -> Path:
    """A pack by `PackWriter`; without kinds, of runs."""
    path.unlink(missing_ok=True)
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
    """The pack with the checksums of header, index and footer made right again."""
    out = bytearray(data)
    out[24:28] = struct.pack("<I", runs.crc32c(bytes(out[:24])))
    (count,) = struct.unpack_from("<Q", out, 16)
    foot = len(out) - FOOTER
    index = bytes(out[HEADER : HEADER + ENTRY * count])
    out[foot + 8 : foot + 12] = struct.pack("<I", runs.crc32c(index))
    out[foot + 24 : foot + 28] = struct.pack("<I", runs.crc32c(bytes(out[foot : foot + 24])))
    return bytes(out)


def changed(data: bytes, offset: int, new: bytes) -> bytes:
    """The pack with other bytes at an offset, and right checksums."""
    offset %= len(data)
    return summed(data[:offset] + new + data[offset + len(new) :])


def without_checksums(data: bytes) -> bytes:
    """The pack as if it had never had a sum of any payload, nor of all data."""
    (count,) = struct.unpack_from("<Q", data, 16)
    for i in range(count):
        data = changed(data, HEADER + ENTRY * i + 16, bytes(4))
    return changed(data, -20, bytes(4))


# Small packs to damage.

PAYLOAD = b"many words, many words, many words, many words"
WORDS = b"words that are many " * 8


def dictionary_pack() -> bytes:
    words = zstandard.ZstdCompressionDict(WORDS)
    packed = zstandard.ZstdCompressor(dict_data=words).compress(PAYLOAD)
    entries = [
        pack.Entry(16, packed, pack.ZSTD_DICTIONARY, len(PAYLOAD)),
        pack.Entry(17, zstandard.compress(PAYLOAD), pack.ZSTD, len(PAYLOAD)),
        pack.Entry(2, lz4.block.compress(RUN_V2, store_size=False), pack.LZ4, len(RUN_V2)),
        pack.Entry(18, b"as it is"),
    ]
    stats = pack.stats_of([(16, b""), (16, b""), (2, RUN_V2), (16, b"")])
    return pack.write_pack(entries, 8, stats, WORDS)


PACKS = {
    "v1": runs.file_of("pack.md", "pack-v1"),
    "v2": runs.file_of("pack.md", "pack-v2"),
    "codecs": dictionary_pack(),
    "no checksums": without_checksums(reference_pack([RUN_V1, RUN_V2], 32)),
}


def contents(packed: PackReader) -> tuple[Any, ...]:
    """Everything a pack can be asked for."""
    payloads = [bytes(view) for view in packed.slices(range(len(packed)))]
    kinds = [packed.kind(i) for i in range(len(packed))]
    decoded = [
        packed.decode(i).to_bytes() if kind.startswith("v") else None
        for i, kind in enumerate(kinds)
    ]
    rows = {name: repr(values) for name, values in packed[:].items()}
    return payloads, kinds, decoded, rows, packed.stats


def check_error(error: StepwellError, path: Path) -> None:
    """An error says which file it is, and where in it."""
    assert isinstance(error, FormatError)
    assert error.path == str(path)
    assert error.offset is not None
    assert 0 <= error.offset <= path.stat().st_size
