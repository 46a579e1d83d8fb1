"""CRC32C: the published answers, and the same one from instruction and tables."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.typing import NDArray

from stepwell import _core
from tests import SANITIZED

Bytes = NDArray[np.uint8]


def as_bytes(data: bytes) -> Bytes:
    return np.frombuffer(data, np.uint8)


def bit_by_bit(data: bytes, crc: int = 0) -> int:
    """The definition: a division by the Castagnoli polynomial, its bits reversed."""
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


VECTORS = {
    b"": 0x00000000,
    b"123456789": 0xE3069283,  # the check value of every CRC catalogue
    # RFC 3720, appendix B.4
    bytes(32): 0x8A9136AA,
    b"\xff" * 32: 0x62A8AB43,
    bytes(range(32)): 0x46DD794E,
    bytes(reversed(range(32))): 0x113FDB5C,
    bytes.fromhex(
        "01c00000 00000000 00000000 00000000 14000000 00000400 00000014 00000018"
        "28000000 00000000 02000000 00000000"
    ): 0xD9963A56,
}


@pytest.mark.parametrize("data", VECTORS, ids=lambda data: f"{len(data)} bytes {data[:4].hex()}")
def test_published_vectors(data: bytes) -> None:
    assert bit_by_bit(data) == VECTORS[data]
    assert _core.crc32c(as_bytes(data)) == VECTORS[data]
    assert _core.crc32c_portable(as_bytes(data)) == VECTORS[data]


def noise(size: int) -> Bytes:
    return np.random.default_rng(size).integers(0, 256, size, np.uint8)


def test_instruction_and_tables_agree_at_every_length() -> None:
    # Three lanes of 2048 bytes are summed at once, so lengths up to 20000 pass each of the
    # loops none, one, two and three times, with every remainder.
    data = noise(20_000)
    for length in range(0, 20_001, 37 if SANITIZED else 1):
        part = data[:length]
        assert _core.crc32c(part) == _core.crc32c_portable(part), length


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 63, 2048, 6143, 6144, 6145, 12_288, 18_500])
def test_instruction_and_tables_agree_at_every_alignment(length: int) -> None:
    data = noise(length + 64)
    for offset in range(64):
        part = data[offset : offset + length]
        assert _core.crc32c(part) == _core.crc32c_portable(part), offset


@given(st.binary(max_size=300), st.integers(0, 2**32 - 1))
def test_both_follow_the_definition(data: bytes, crc: int) -> None:
    expected = bit_by_bit(data, crc)
    assert _core.crc32c(as_bytes(data), crc) == expected
    assert _core.crc32c_portable(as_bytes(data), crc=crc) == expected


@given(st.lists(st.integers(0, 20_000), max_size=6))
def test_parts_continue_one_another(cuts: list[int]) -> None:
    data = noise(20_000)
    whole = _core.crc32c(data)
    for function in (_core.crc32c, _core.crc32c_portable):
        crc = 0
        for begin, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(data)], strict=True):
            crc = function(data[begin:end], crc)
        assert crc == whole


@pytest.mark.parametrize("crc", [-1, 2**32, 1.5, "0"])
def test_a_start_that_is_no_checksum_is_refused(crc: object) -> None:
    with pytest.raises(TypeError):
        _core.crc32c(noise(8), crc)  # type: ignore[arg-type]
