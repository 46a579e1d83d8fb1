"""Compression, one payload or many at once.

zstd comes with stepwell; lz4 is an extra. Payloads have no header of ours: the length of
what comes out is known to the caller, and is checked.
"""

import enum
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from typing import Any, Literal, NamedTuple

import numpy as np

from stepwell.errors import FormatError
from stepwell.files.extras import library


class CodecNumbers(NamedTuple):
    """The name or number of a codec in each format; None where it is not there."""

    pack: int | None
    records: tuple[int, str] | None
    replay: str | None


CODECS = {
    "none": CodecNumbers(0, (0, "raw"), "none"),
    "zstd": CodecNumbers(1, (2, "zstd"), "zstd"),
    "zstd-dict": CodecNumbers(3, (3, "zstd-dict"), None),
    "lz4": CodecNumbers(2, (4, "lz4"), None),
    "gzip": CodecNumbers(None, (1, "flate"), "gzip"),
    "lzf": CodecNumbers(None, None, "lzf"),
}
"""The values of `compress=`, the same in every store, and what stands for each in the files."""


def codec_names(store: Literal["pack", "records", "replay"]) -> list[str]:
    """The codecs that a store has."""
    return [name for name, numbers in CODECS.items() if getattr(numbers, store) is not None]


_AT_ONCE = 1 << 30  # bytes unpacked by one call; what claims more is looked at one by one
_WORTH_A_THREAD = 1 << 18  # bytes; below, starting one costs more than it saves


class Codec(enum.IntEnum):
    """How a payload is stored; the number is that of files."""

    NONE = 0
    ZSTD = 1
    LZ4 = 2
    ZSTD_DICT = 3


class Packer:
    """Compresses payloads with one codec; safe from any thread."""

    def __init__(self, codec: Codec, level: int = 3, dictionary: bytes | None = None) -> None:
        self._codec = codec
        self._options: dict[str, Any] = {"level": level}
        if codec in (Codec.ZSTD, Codec.ZSTD_DICT):
            import zstandard

            if not 1 <= level <= zstandard.MAX_COMPRESSION_LEVEL:
                raise ValueError(f"level: expected 1 to 22, got {level}")
            if codec is Codec.ZSTD_DICT:
                if dictionary is None:
                    raise ValueError("this codec needs a dictionary")
                words = zstandard.ZstdCompressionDict(dictionary)
                words.precompute_compress(level=level)  # once, not for every payload
                self._options["dict_data"] = words
        elif codec is Codec.LZ4:
            _lz4()

    def pack(self, payload: Any) -> bytes | None:
        """Return the compressed payload, or None when it would not be smaller."""
        if self._codec is Codec.NONE:
            return None
        if self._codec is Codec.LZ4:
            packed: bytes = _lz4().compress(payload, store_size=False)
        else:
            import zstandard

            # A compressor serves one thread at a time, and costs little to make.
            packed = zstandard.ZstdCompressor(**self._options).compress(payload)
        return packed if len(packed) < len(memoryview(payload).cast("B")) else None


def unpack(
    codec: Codec,
    packed: Sequence[Any],
    lengths: Sequence[int],
    *,
    dictionary: bytes | None = None,
    threads: int = 1,
) -> Sequence[Any]:
    """Return each payload as a buffer of the length given for it.

    Raises `FormatError` naming the position of the first one that does not unpack to that.
    """
    if codec is Codec.NONE or not packed:
        return packed
    if codec is Codec.LZ4:
        decompress = _lz4().decompress
    else:
        found = _frames_at_once(packed, lengths, dictionary, threads)
        if found is not None:
            return found
        decompress = partial(_unpack_frame, dictionary)

    def some(numbers: range) -> list[Any]:
        return [one(i) for i in numbers]

    def one(i: int) -> Any:
        if not lengths[i] and codec is Codec.LZ4 and bytes(packed[i]) == b"\0":
            return b""  # a block of nothing; the library takes no size 0
        try:
            result = decompress(packed[i], uncompressed_size=lengths[i])
            if len(result) != lengths[i]:
                raise ValueError(f"expected {lengths[i]} bytes, got {len(result)}")
        except Exception as error:  # lz4 has no error class of its own to name
            raise Damaged(i, f"{codec.name.lower()}: {error}") from None
        return result

    count = len(packed)
    if threads <= 1 or sum(lengths) < _WORTH_A_THREAD:
        return some(range(count))
    cuts = [k * count // threads for k in range(threads + 1)]
    with ThreadPoolExecutor(threads) as pool:
        return list(chain.from_iterable(pool.map(some, map(range, cuts, cuts[1:]))))


class Damaged(FormatError):
    """The payload at `position` of those given does not unpack."""

    def __init__(self, position: int, message: str) -> None:
        super().__init__(message)
        self.position = position


def train_dictionary(samples: Sequence[Any], size: int = 112_640) -> bytes:
    """Return a dictionary for payloads like these. Raises `ValueError` when there are too few."""
    import zstandard

    try:
        return zstandard.train_dictionary(size, [bytes(sample) for sample in samples]).as_bytes()
    except zstandard.ZstdError as error:
        raise ValueError(
            f"no dictionary can be trained on {len(samples)} payloads: {error}"
        ) from None


def _unpack_frame(dictionary: bytes | None, frame: Any, uncompressed_size: int) -> Any:
    import zstandard

    stated = zstandard.frame_content_size(frame)  # trusted by what follows
    if stated not in (-1, uncompressed_size):
        raise ValueError(f"expected {uncompressed_size} bytes, got a frame of {stated}")
    words = None if dictionary is None else zstandard.ZstdCompressionDict(dictionary)
    decompressor = zstandard.ZstdDecompressor(dict_data=words)
    return decompressor.decompress(frame, max_output_size=max(uncompressed_size, 1))


def _frames_at_once(
    packed: Sequence[Any], lengths: Sequence[int], dictionary: bytes | None, threads: int
) -> list[Any] | None:
    """All payloads; None where they have to be looked at one by one."""
    import zstandard

    sizes = np.array(lengths, "<u8")
    try:
        stated = map(zstandard.frame_content_size, packed)
        sound = all(size in (-1, length) for size, length in zip(stated, lengths, strict=True))
        if not sound or sizes.min() == 0 or sizes.sum() >= _AT_ONCE:
            return None
        words = None if dictionary is None else zstandard.ZstdCompressionDict(dictionary)
        many: Any = zstandard.ZstdDecompressor(dict_data=words).multi_decompress_to_buffer(
            list(packed), decompressed_sizes=sizes.tobytes(), threads=threads
        )
        return [many[i] for i in range(len(many))]
    except (zstandard.ZstdError, ValueError):  # the latter for nothing but empty frames
        return None


_lz4 = partial(library, "lz4.block", "lz4")
