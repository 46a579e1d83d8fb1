"""Compression, one payload or many at once.

zstd comes with stepwell; lz4 is an extra. Payloads have no header of ours: the length of
what comes out is known to the caller, and is checked.
"""

import enum
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any, Literal, NamedTuple

import numpy as np

from stepwell.errors import FormatError


class CodecNumbers(NamedTuple):
    """What each format calls a codec; None where it has it not."""

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
    """How a payload is stored; the number is what files say."""

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
    if codec is Codec.NONE:
        return packed
    if not packed:
        return []
    if codec is Codec.LZ4:
        return _unpack_lz4(packed, lengths, threads)
    return _unpack_zstd(packed, lengths, dictionary, threads)


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


def _unpack_lz4(packed: Sequence[Any], lengths: Sequence[int], threads: int) -> Sequence[Any]:
    decompress = _lz4().decompress

    def one(i: int) -> Any:
        if not lengths[i]:
            if (
                bytes(packed[i]) != b"\0"
            ):  # the one block that is empty; the library takes no size 0
                raise Damaged(i, "lz4: expected 0 bytes, got more")
            return b""
        try:
            result = decompress(packed[i], uncompressed_size=lengths[i])
        except Exception as error:  # the library has no error class of its own to name
            raise Damaged(i, f"lz4: {error}") from None
        if len(result) != lengths[i]:
            raise Damaged(i, f"lz4: expected {lengths[i]} bytes, got {len(result)}")
        return result

    def some(numbers: range) -> list[Any]:
        return [one(i) for i in numbers]

    count = len(packed)
    if threads <= 1 or sum(lengths) < _WORTH_A_THREAD:
        return some(range(count))
    cuts = [k * count // threads for k in range(threads + 1)]
    with ThreadPoolExecutor(threads) as pool:
        return list(chain.from_iterable(pool.map(some, map(range, cuts, cuts[1:]))))


def _unpack_zstd(
    packed: Sequence[Any], lengths: Sequence[int], dictionary: bytes | None, threads: int
) -> Sequence[Any]:
    import zstandard

    for i, (data, length) in enumerate(zip(packed, lengths, strict=True)):
        try:
            stated = zstandard.frame_content_size(data)  # trusted by what follows
        except zstandard.ZstdError as error:
            raise Damaged(i, f"zstd: {error}") from None
        if stated not in (-1, length):
            raise Damaged(i, f"zstd: expected {length} bytes, the frame has {stated}")
    try:
        words = None if dictionary is None else zstandard.ZstdCompressionDict(dictionary)
        decompressor = zstandard.ZstdDecompressor(dict_data=words)
        sizes = np.array(lengths, "<u8")
        if sizes.min() > 0 and sizes.sum() < _AT_ONCE:
            many: Any = decompressor.multi_decompress_to_buffer(
                list(packed), decompressed_sizes=sizes.tobytes(), threads=threads
            )
            return [many[i] for i in range(len(many))]
    except (zstandard.ZstdError, ValueError):  # the latter for nothing but empty frames
        pass  # which one it was is found below
    results = []
    for i, (data, length) in enumerate(zip(packed, lengths, strict=True)):
        try:
            words = None if dictionary is None else zstandard.ZstdCompressionDict(dictionary)
            decompressor = zstandard.ZstdDecompressor(dict_data=words)
            result = decompressor.decompress(data, max_output_size=max(length, 1))
        except zstandard.ZstdError as error:
            raise Damaged(i, f"zstd: {error}") from None
        if len(result) != length:
            raise Damaged(i, f"zstd: expected {length} bytes, got {len(result)}")
        results.append(result)
    return results


def _lz4() -> Any:
    try:
        import lz4.block
    except ImportError as error:
        raise ImportError("lz4 needs an extra: pip install 'stepwell[lz4]'") from error
    return lz4.block
