"""Compression and postcard, as files use them: what goes in comes out, or an error."""

import os
import struct
from concurrent.futures import ThreadPoolExecutor

import lz4.block
import pytest
import zstandard
from hypothesis import given, strategies as st

import stepwell as sw
from stepwell.files.codecs import Codec, Damaged, Packer, train_dictionary, unpack
from stepwell.files.postcard import PostcardReader, string, varint
from tests.reference import runs

SAMPLES = [b"%06d: the same words again, number %d\n" % (i, i * i) * 3 for i in range(500)]
DICTIONARY = train_dictionary(SAMPLES)
PACKED = [Codec.ZSTD, Codec.LZ4, Codec.ZSTD_DICT]


def words(codec: Codec) -> bytes | None:
    return DICTIONARY if codec is Codec.ZSTD_DICT else None


@pytest.mark.parametrize("codec", PACKED)
@pytest.mark.parametrize("threads", [1, 4])
def test_what_is_packed_is_unpacked(codec: Codec, threads: int) -> None:
    packer = Packer(codec, 3, words(codec))
    payloads = [*SAMPLES, b"a" * 100_000]
    packed = [packer.pack(payload) for payload in payloads]
    assert all(p is not None and len(p) < len(s) for p, s in zip(packed, payloads, strict=True))
    lengths = [len(payload) for payload in payloads]
    found = unpack(codec, packed, lengths, dictionary=words(codec), threads=threads)
    assert [bytes(data) for data in found] == payloads
    assert list(unpack(codec, [], [], dictionary=words(codec), threads=threads)) == []


@pytest.mark.parametrize("codec", PACKED)
def test_what_does_not_shrink(codec: Codec) -> None:
    packer = Packer(codec, 3, words(codec))
    for payload in (b"", b"x", os.urandom(1000), memoryview(os.urandom(10))):
        assert packer.pack(payload) is None
    assert Packer(Codec.NONE).pack(b"a" * 1000) is None


@pytest.mark.parametrize("codec", PACKED)
def test_a_packer_serves_many_threads(codec: Codec) -> None:
    packer = Packer(codec, 3, words(codec))
    alone = [packer.pack(payload) for payload in SAMPLES]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(packer.pack, SAMPLES)) == alone


@pytest.mark.parametrize("codec", PACKED)
@pytest.mark.parametrize("threads", [1, 4])
def test_damage_is_found_and_its_place_named(codec: Codec, threads: int) -> None:
    packer = Packer(codec, 3, words(codec))
    good = [packer.pack(payload) for payload in SAMPLES[:6]]
    lengths = [len(payload) for payload in SAMPLES[:6]]
    assert good[3] is not None
    for bad in (b"", b"\xff" * 20, good[3][:-1], good[3][:1]):
        packed = [*good[:3], bad, *good[4:]]
        with pytest.raises(Damaged) as caught:
            unpack(codec, packed, lengths, dictionary=words(codec), threads=threads)
        assert caught.value.position == 3
        assert isinstance(caught.value, sw.FormatError)
    for wrong in (lengths[3] - 1, lengths[3] + 1, 1, 0, 2**20):
        stated = [*lengths[:3], wrong, *lengths[4:]]
        with pytest.raises(Damaged) as caught:
            unpack(codec, good, stated, dictionary=words(codec), threads=threads)
        assert caught.value.position == 3


def test_a_frame_that_promises_a_lot_is_not_believed() -> None:
    """A header of 12 bytes that says 2^40 bytes follow."""
    frame = struct.pack("<IBQ", zstandard.MAGIC_NUMBER, 0xE0, 2**40) + b"\1\0\0"
    with pytest.raises(Damaged):
        unpack(Codec.ZSTD, [frame], [100])


def test_frames_of_other_writers() -> None:
    """With a checksum, or without a stated size: both are one zstd frame."""
    for writer in (
        zstandard.ZstdCompressor(write_checksum=True),
        zstandard.ZstdCompressor(write_content_size=False),
    ):
        frame = writer.compress(SAMPLES[0])
        (found,) = unpack(Codec.ZSTD, [frame], [len(SAMPLES[0])])
        assert bytes(found) == SAMPLES[0]
    block = lz4.block.compress(SAMPLES[0], mode="high_compression", store_size=False)
    assert unpack(Codec.LZ4, [block], [len(SAMPLES[0])]) == [SAMPLES[0]]


def test_nothing_packed() -> None:
    """Another writer may pack what is empty."""
    empty = zstandard.ZstdCompressor().compress(b"")
    assert [bytes(data) for data in unpack(Codec.ZSTD, [empty], [0])] == [b""]
    assert unpack(Codec.LZ4, [lz4.block.compress(b"", store_size=False)], [0]) == [b""]


def test_a_dictionary_is_needed_and_has_to_be_the_right_one() -> None:
    with pytest.raises(ValueError, match="needs a dictionary"):
        Packer(Codec.ZSTD_DICT)
    packed = Packer(Codec.ZSTD_DICT, 3, DICTIONARY).pack(SAMPLES[0])
    other = train_dictionary([sample[::-1] for sample in SAMPLES])
    for dictionary in (None, other):
        with pytest.raises(Damaged):
            unpack(Codec.ZSTD_DICT, [packed], [len(SAMPLES[0])], dictionary=dictionary)


@pytest.mark.parametrize("samples", [[], [b""], [b"", b""], [b"abc"] * 3])
def test_too_little_for_a_dictionary(samples: list[bytes]) -> None:
    with pytest.raises(
        ValueError, match=f"no dictionary can be trained on {len(samples)} payloads"
    ):
        train_dictionary(samples)


def test_a_dictionary_is_always_the_same() -> None:
    assert train_dictionary(SAMPLES) == DICTIONARY
    assert train_dictionary([memoryview(sample) for sample in SAMPLES]) == DICTIONARY


# Postcard.


@given(st.integers(0, 2**64 - 1))
def test_numbers(number: int) -> None:
    assert varint(number) == runs.varint(number)
    data = PostcardReader(varint(number))
    assert data.varint(64) == number
    assert data.left == 0
    if number >= 2**32:
        with pytest.raises(ValueError):
            PostcardReader(varint(number)).varint(32)


@given(st.text(), st.floats(allow_nan=False))
def test_strings_and_floats(text: str, number: float) -> None:
    assert string(text) == runs.string(text)
    data = PostcardReader(string(text) + struct.pack("<d", number))
    assert (data.string(), data.float64(), data.left) == (text, number, 0)


@pytest.mark.parametrize("data", [b"\1", b"\5abcd", b"\1\xff", b"\xff" * 9 + b"\1abc", b"\2\xc3("])
def test_strings_that_are_none(data: bytes) -> None:
    with pytest.raises(ValueError):
        PostcardReader(data).string()


def test_floats_that_are_cut() -> None:
    with pytest.raises(ValueError, match="truncated: expected 8 more bytes, got 7"):
        PostcardReader(bytes(7)).float64()


@given(st.binary(max_size=12), st.sampled_from([32, 64]))
def test_any_bytes_are_read_as_the_page_says(data: bytes, bits: int) -> None:
    cursor = runs.Cursor(data)
    try:
        expected = cursor.varint(bits, "number")
    except runs.Broken:
        with pytest.raises(ValueError):
            PostcardReader(data).varint(bits)
    else:
        reader = PostcardReader(data)
        assert reader.varint(bits) == expected
        assert reader.at == cursor.at
