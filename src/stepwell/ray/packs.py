"""A pack of run files: tasks check and compress them into images, which then go to their places."""

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stepwell import _core
from stepwell.errors import ChecksumError, FormatError
from stepwell.files.atomic import write_all
from stepwell.files.codecs import CODECS, Codec
from stepwell.game2048.packing import chunks_of, first_runs, load_chunk, payloads_of
from stepwell.game2048.run_files import Files, find_runs
from stepwell.ray.finished import Facts
from stepwell.ray.work import Piece, Work, piece_bytes
from stepwell.stores.pack.layout import ENTRY, align_up, groups
from stepwell.stores.pack.stats import Tally
from stepwell.stores.pack.writer import EntryMaker, PackWriter, dictionary_of, room_for

_ALIGN = 4096
_COPY_BYTES = 1 << 22


@dataclass(frozen=True)
class _Kind:
    """How runs are packed."""

    codec: Codec
    level: int
    dictionary: bytes | None
    skip_bad: bool


@dataclass
class Packed:
    """What became of the files."""

    runs: int = 0
    bytes: int = 0
    skipped: tuple[tuple[str, str], ...] = ()


def build(work: Work) -> Packed:
    """Make the pack."""
    request, folder = work.request, work.finished.folder
    compress, level = request.options["compress"], request.options["level"]
    files = find_runs(os.fspath(request.source))  # type: ignore[arg-type]
    codec, words = Codec(CODECS[compress].pack or 0), None
    level = 3 if level is None else level
    if codec is Codec.ZSTD_DICT:
        words = dictionary_of(payloads_of(first_runs(chunks_of(files, _ALIGN))))
    kind = _Kind(codec, level, words, request.games["skip_bad"])
    rooms = room_for([size for _, size in files], _ALIGN)
    pieces = []
    for number, some in enumerate(groups(rooms, piece_bytes(int(rooms.sum())))):
        part, path = range(some.start, some.stop), folder / f"runs-{number:06}.image"
        pieces.append(Piece(part, (path, kind, files[some]), path))
    found = work.do("runs", _prepared, pieces)
    made = Packed(*(sum(facts[name] for facts in found) for name in ("runs", "bytes")))
    made.skipped = tuple((name, reason) for facts in found for name, reason in facts["skipped"])
    if not made.runs:
        name, reason = made.skipped[0]
        raise FormatError(f"none of {len(files)} files is a run; {name}: {reason}")
    work.made.unlink(missing_ok=True)
    options: dict[str, Any] = {"compress": compress, "level": level, "expect": made.runs}
    with PackWriter(work.made, align=_ALIGN, **options) as writer:
        if words is not None:
            writer.use(words)
        places = []
        for piece, facts in zip(pieces, found, strict=True):
            entries = np.frombuffer(bytes.fromhex(facts["entries"]), ENTRY).copy()
            tally = Tally(
                np.array(facts["lengths"], np.uint32),
                Counter(dict(facts["numbers"])),
                Counter(dict(facts["names"])),
            )
            if len(entries):
                at = writer.reserve(entries, [tally], facts["crc"], facts["size"])
                places.append((piece.path, writer.beside, at, facts["crc"]))
        for _ in work.cluster.run(_placed, places, lambda number: f"image {number}"):
            pass
    return made


def _prepared(path: Path, kind: _Kind, files: Files) -> Facts:
    """Write the image of some files, as it will stand in the pack."""
    maker = EntryMaker(_ALIGN, kind.codec, kind.level, kind.dictionary)
    entries: list[Any] = [np.empty(0, ENTRY)]
    lengths: list[int] = []
    numbers, names = Counter[int](), Counter[str]()
    skipped: list[tuple[str, str]] = []
    end = crc = size = 0
    with path.open("wb") as file:
        for some in chunks_of(files, _ALIGN):
            chunk, made = load_chunk(maker, some)
            for name, found in chunk:
                if not isinstance(found, Exception):
                    size += len(found)
                elif kind.skip_bad:
                    skipped.append((str(name), str(found)))
                else:
                    raise found
            if not len(made.entries):
                continue
            begin = align_up(end, _ALIGN)
            for data in (np.zeros(begin - end, np.uint8), made.image):
                crc = _core.crc32c(data, crc)
            write_all(file.fileno(), made.image, begin, path)
            made.entries["offset"] += begin
            entries.append(made.entries)
            end = begin + len(made.image)
            for tally in made.tallies:
                lengths += tally.lengths.tolist()
                numbers.update(tally.numbers)
                names.update(tally.names)
    index = np.concatenate(entries)
    return {
        "runs": len(index),
        "bytes": size,
        "skipped": skipped,
        "entries": index.tobytes().hex(),
        "crc": crc,
        "size": end,
        "lengths": lengths,
        "numbers": list(numbers.items()),
        "names": list(names.items()),
    }


def _placed(image: Path, pack: Path, at: int, crc: int) -> None:
    """Copy an image to its place; the pack is synced when it is whole.

    Images are not, so what a power cut left is compared with its checksum.
    """
    found = 0
    with image.open("rb") as source, pack.open("r+b") as target:
        while data := source.read(_COPY_BYTES):
            part = np.frombuffer(data, np.uint8)
            found = _core.crc32c(part, found)
            write_all(target.fileno(), part, at, pack)
            at += len(part)
    if found != crc:
        image.unlink()
        message = f"expected CRC32C {crc:08x}, got {found:08x}; the same call makes it again"
        raise ChecksumError(message, path=str(image))
