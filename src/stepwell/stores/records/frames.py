"""Values become frames in chunks: packed by several threads, with dictionaries that are learned."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.errors import FormatError
from stepwell.files.atomic import write_file
from stepwell.files.codecs import train_dictionary
from stepwell.files.regular import read_inside
from stepwell.source import Field, Rows
from stepwell.stores.records.chunk import ChunkFile, OpenChunks
from stepwell.stores.records.layout import codec_number, dictionary_name, packing_level
from stepwell.stores.records.meta import Meta
from stepwell.stores.records.staging import entry_bytes, joined
from stepwell.stores.records.values import Values

_SLAB_BYTES = 1 << 20
_SAMPLE_BYTES = 1 << 24
MAX_DICTIONARY = 1 << 26


class FrameWriter:
    """Puts frames into the chunks of a store that take some."""

    def __init__(self, root: Path, meta: Meta, chunks: OpenChunks, threads: int) -> None:
        self._root, self._fields, self._chunk_records = root, meta.fields, meta.chunk_records
        self._chunks, self._threads = chunks, threads
        self._numbers = meta.numbers
        self._dictionaries = {
            name: load_dictionary(root, name, field)
            for name, field in meta.fields.items()
            if field.compress == "zstd-dict"
        }

    def write(
        self, values: Mapping[str, Values], numbers: Rows, *, newest: bool
    ) -> dict[int, bytes]:
        """Write all frames or none; return the entries of each field that is given."""
        before = self._chunks.states()
        try:
            self._train(values)
            return self._write(values, numbers, newest=newest)
        except BaseException:
            self._chunks.back_to(before)
            raise

    def _write(
        self, values: Mapping[str, Values], numbers: Rows, *, newest: bool
    ) -> dict[int, bytes]:
        given = [self._numbers[name] for name in values]
        if not len(numbers):
            return dict.fromkeys(given, b"")
        sizes = sum(
            (v.sizes(self._fields[name].row_bytes) for name, v in values.items()),
            start=np.zeros(len(numbers), np.int64),
        )
        ends = np.cumsum(sizes + 32 * len(given))
        threads = 1 if newest or int(ends[-1]) < _SLAB_BYTES // 8 else self._threads
        cuts = [len(numbers) * k // threads for k in range(threads + 1)]

        # Each of them has a chunk of its own from the beginning to the end.
        own = [self._chunks.newest()] if newest else self._chunks.with_room(threads)

        def part(thread: int) -> dict[int, bytes]:
            made, at, chunk = [], cuts[thread], own[thread]
            while at < cuts[thread + 1]:
                if chunk.records >= self._chunk_records:
                    chunk.rest()
                    chunk = self._chunks.begin()
                room = self._chunk_records - chunk.records
                limit = (int(ends[at - 1]) if at else 0) + _SLAB_BYTES
                fit = max(int(np.searchsorted(ends, limit, "right")), at + 1)
                end = min(fit, at + room, cuts[thread + 1])
                places = self._write_frames(values, numbers, at, end, chunk)
                made.append(entry_bytes(places, given, end - at))
                at = end
            return joined(made)

        if threads == 1:
            return part(0)
        with ThreadPoolExecutor(threads) as pool:
            return joined([made for made in pool.map(part, range(threads)) if made])

    def _write_frames(
        self, values: Mapping[str, Values], numbers: Rows, begin: int, end: int, chunk: ChunkFile
    ) -> NDArray[np.uint8]:
        """Their entries. The memory of the frames is free afterwards, for the next ones."""
        fields = []
        for name, given in values.items():
            field = self._fields[name]
            dictionary, codec = self._dictionaries.get(name), codec_number(field.compress)
            if field.compress == "zstd-dict" and dictionary is None:
                codec = codec_number("zstd")
            size = field.row_bytes
            ends = None if given.ends is None else given.ends[begin : end + 1]
            data = given.data[begin * size : end * size] if ends is None else given.data
            there = None if given.there is None else given.there[begin:end]
            level = packing_level(field)
            fields.append((self._numbers[name], codec, level, dictionary, data, ends, size, there))
        frames, places = _core.make_frames(fields, numbers[begin:end], chunk.id, chunk.position)
        chunk.write(frames, end - begin)
        return places

    def _train(self, values: Mapping[str, Values]) -> None:
        """Make the dictionaries that are still to be made, if there is enough to learn from."""
        for name, given in values.items():
            if name not in self._dictionaries or self._dictionaries[name] is not None:
                continue
            field = self._fields[name]
            size = field.row_bytes
            ends = given.ends if given.ends is not None else np.arange(given.count + 1) * size
            last = int(np.searchsorted(ends, ends[0] + _SAMPLE_BYTES, "right")) - 1
            samples = [given.data[a:b] for a, b in pairwise(ends[: last + 1]) if b > a]
            try:
                made = train_dictionary(samples) if len(samples) >= 16 else None
            except ValueError:
                made = None
            if made is None:
                continue
            crc = _core.crc32c(np.frombuffer(made, np.uint8)).to_bytes(4, "little")
            write_file(self._root / dictionary_name(name), made + crc, follow=False)
            self._dictionaries[name] = load_dictionary(self._root, name, field)


def load_dictionary(root: Path, name: str, field: Field) -> _core.Dictionary | None:
    """The dictionary of a field; None while there is none."""
    file = dictionary_name(name)
    try:
        data = read_inside(root, file, MAX_DICTIONARY)
    except FileNotFoundError:
        return None
    words = np.frombuffer(data[:-4], np.uint8)
    if len(data) < 5 or _core.crc32c(words) != int.from_bytes(data[-4:], "little"):
        raise FormatError("a damaged dictionary", path=str(root / file))
    return _core.Dictionary(words, packing_level(field))
