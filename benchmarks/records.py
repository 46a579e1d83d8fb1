"""Record stores: against every other format of records, plain arrays and plain files.

All files are in the page cache. `--rows` is the number of records of 2 KiB; there are as many
pieces of text, a picture for every 80 of them, and 50 tiny ones for each, to open. `--only`
asks one question instead of all.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import stepwell as sw
from benchmarks import measure, records_data as data
from benchmarks.questions import answer
from benchmarks.records_data import IMAGE, ROW_BYTES, ROWS, Codec, Records
from benchmarks.records_peers import Peer, Rows, formats, npy, numpy_slices, numpy_takes
from benchmarks.records_write import (
    append_cases,
    open_cases,
    rebalance_cases,
    small_cases,
    update_cases,
)
from benchmarks.results import Case, Measured, Target, arguments
from benchmarks.rows import folder_for

_OURS, _OUT = "stepwell", "stepwell, out="
_UNCHECKED, _UNCHECKED_OUT = "stepwell, checksums=False", "stepwell, checksums=False, out="
_SMALL_ROWS = 20_000
_SMALL_BYTES = 8
_MEMORY_BATCHES = (200, 2000)


@dataclass(frozen=True)
class Asked:
    """How much is measured, and where."""

    rows: int
    batch: int
    rounds: int
    folder: Path


def main() -> None:
    parser = arguments(__doc__, rows=ROWS)
    parser.add_argument("--small", action="store_true", help=f"{_SMALL_ROWS:,} rows: a minute")
    parser.add_argument("--batch", type=int, default=256, help="records of a take (%(default)s)")
    parser.add_argument("--rounds", type=int, default=8, help="turns of each (%(default)s)")
    parser.add_argument("--keep", action="store_true", help="keep the data for the next run")
    parser.add_argument("--only", choices=_QUESTIONS, help="one question instead of all")
    args = parser.parse_args()
    # The report's --rows is for tables: more records than these would only take longer.
    rows = min(args.rows, _SMALL_ROWS if args.small else ROWS)
    with folder_for(f"records-{rows}", keep=args.keep) as folder:
        asked = Asked(rows, args.batch, args.rounds, folder)
        measure.keep_freed_memory()
        options = [f"--rows={rows}", f"--batch={args.batch}", f"--rounds={args.rounds}", "--keep"]
        answer(
            "records", {name: partial(q, asked) for name, q in _QUESTIONS.items()}, args, options
        )


def _fixed_cases(asked: Asked) -> list[Case]:
    records = data.fixed(asked.rows, (ROW_BYTES,))
    path = data.store(records, asked.folder / "fixed")
    places = _folder(asked, "fixed-peers")
    plain = list(numpy_takes(records, places, asked.batch))
    others = list(formats(records, places))
    source = sw.ArraySource(npy(records, places), memory="map")
    array = Peer("stepwell, ArraySource of the .npy, mapped", source.take, lambda got: got["data"])
    peers = [*_ours(path, records, asked.batch), array, *(peer for peer, _ in plain), *others]
    found = _race(peers, records, asked)
    fresh = [peer.name for peer, out in plain if not out]
    into = [peer.name for peer, out in plain if out]
    targets = [
        Target(
            "of the speed of np.take of a plain .npy",
            _quickest(found, fresh)[1] / found[_OURS].median,
            at_least=0.9,
        ),
        Target(
            "of the speed of np.take of a plain .npy, both with out=",
            _quickest(found, into)[1] / found[_OUT].median,
            at_least=0.9,
        ),
        Target(
            "of the speed of an ArraySource of a plain .npy",
            found[array.name].median / found[_OURS].median,
            at_least=0.7,
        ),
        Target("out=, times without", found[_OUT].median / found[_OURS].median, at_most=1.02),
        _faster(found, others),
    ]
    title = f"take records of one size: {_size(asked, records)}, {ROW_BYTES:,} bytes each, raw"
    return [_case(title, found, targets, _reading(path, records, asked.batch))]


def _ragged_cases(asked: Asked, *, zstd: bool) -> list[Case]:
    records = data.texts(asked.rows)
    codec: Codec = "zstd" if zstd else "none"
    path = data.store(records, asked.folder / f"texts-{codec}", codec)
    places = _folder(asked, "texts-peers")
    others = list(formats(records, places, zstd=zstd))
    if not zstd:
        others += numpy_slices(records, places)
    found = _race([*_ours(path, records, asked.batch), *others], records, asked)
    between = f"{data.SHORTEST} to {data.LONGEST:,} bytes each"
    title = f"take records of many sizes: {_size(asked, records)}, {between}, {codec}"
    memory = _reading(path, records, asked.batch)
    return [_case(title, found, [_faster(found, others)], memory)]


def _image_cases(asked: Asked) -> list[Case]:
    records = data.fixed(max(asked.batch, asked.rows // 80), IMAGE)
    path = data.store(records, asked.folder / "images")
    places = _folder(asked, "images-peers")
    copies = [
        *(peer for peer, out in numpy_takes(records, places, asked.batch) if out),
        *_copies(records, places, asked.batch),
    ]
    peers = [*_ours(path, records, asked.batch), *copies, *formats(records, places)]
    found = _race(peers, records, asked, share=0.04)
    name, cost = _quickest(found, [peer.name for peer in copies])
    targets = [
        Target(f"{what} of the speed of the quickest copy ({name})", cost / took, at_least=0.9)
        for what, took in (("take,", found[_OURS].median), ("out=,", found[_OUT].median))
    ]
    size = records.values.nbytes / len(records) / 1024
    title = f"take pictures: {_size(asked, records)}, {size:.0f} KiB each, raw"
    return [_case(title, found, targets, _reading(path, records, asked.batch))]


def _copies(records: Records, places: Path, batch: int) -> list[Peer]:
    """Bytes into memory that is used again, a call for each record."""
    out = np.empty((batch, *(records.shape or ())), np.uint8)
    pool = ThreadPoolExecutor(2)
    path = npy(records, places)
    tables = {"mapped": np.asarray(np.load(path, mmap_mode="r")), "loaded": np.load(path)}

    def copy(table: Any, rows: Rows, begin: int, end: int) -> None:
        for i, row in enumerate(rows[begin:end].tolist(), begin):
            np.copyto(out[i], table[row])

    def one(table: Any, rows: Rows) -> Any:
        copy(table, rows, 0, len(rows))
        return out

    def two(table: Any, rows: Rows) -> Any:
        half = len(rows) // 2
        first = pool.submit(copy, table, rows, 0, half)
        copy(table, rows, half, len(rows))
        first.result()
        return out

    return [
        Peer(f".npy, {kind}, {name}", partial(copying, table), lambda got: got)
        for kind, table in tables.items()
        for name, copying in (("np.copyto each", one), ("np.copyto each, 2 threads", two))
    ]


def _memory_cases(asked: Asked) -> list[Case]:
    """After few batches and after many."""
    stores = {
        "records of one size, raw": _fixed_store(asked),
        "records of many sizes, zstd": _text_store(asked, "zstd"),
    }
    cases = []
    for name, path in stores.items():
        rng = np.random.default_rng(1)
        taken, seen = 0, []
        with sw.RecordReader.open(path) as store:
            for batches in _MEMORY_BATCHES:
                while taken < batches:
                    store.take(rng.integers(0, len(store), asked.batch))
                    taken += 1
                seen.append((measure.resident_bytes(), measure.AnonymousPeak().before))
        few, many = (
            Measured.of([anonymous / 2**20], rss_bytes=rss, anonymous_bytes=anonymous)
            for rss, anonymous in seen
        )
        pages, grown = (after - before for before, after in zip(*seen, strict=True))
        cases.append(
            Case(
                f"memory of a reader, {_MEMORY_BATCHES[1]:,} batches: {name}",
                "MiB, anonymous",
                many,
                {f"after {_MEMORY_BATCHES[0]}": few},
                [Target("anonymous memory that the later ones took, MB", grown / 1e6, at_most=1)],
                "of the whole process; what is resident counts mapped pages of the store, the page "
                f"cache's: {(pages - grown) / 1e6:.0f} MB more of them with the later batches",
            )
        )
    return cases


def _fixed_store(asked: Asked) -> Path:
    return data.store(data.fixed(asked.rows, (ROW_BYTES,)), asked.folder / "fixed")


def _text_store(asked: Asked, codec: Codec) -> Path:
    return data.store(data.texts(asked.rows), asked.folder / f"texts-{codec}", codec)


def _loader_cases(asked: Asked) -> list[Case]:
    cases = []
    for size in (_SMALL_BYTES, ROW_BYTES):
        records = data.fixed(asked.rows, (size,))
        path = data.store(records, asked.folder / ("fixed" if size == ROW_BYTES else "small"))
        sources: dict[str, sw.Source] = {
            _OURS: sw.RecordReader.open(path),
            _UNCHECKED: sw.RecordReader.open(path, checksums=False),
            "stepwell, ArraySource of the same": sw.ArraySource(records.table),
        }
        costs: dict[str, list[float]] = {name: [] for name in sources}
        for turn in range(5):
            for name in sorted(sources, reverse=turn % 2 == 1):
                with sw.Loader(sources[name], asked.batch, seed=turn) as loader:
                    begin = time.perf_counter()
                    for _ in loader:
                        pass
                    costs[name].append((time.perf_counter() - begin) / len(records) * 1e9)
        found = {
            name: Measured.of(each, rows_per_s=1e9 / float(np.median(each)))
            for name, each in costs.items()
        }
        ours = found.pop(_OURS)
        title = f"one shuffled epoch through the loader: {len(records):,} records of {size:,} bytes"
        cases.append(Case(title, "ns a row", ours, found, note=f"batches of {asked.batch}"))
    return cases


_QUESTIONS: dict[str, Callable[[Asked], list[Case]]] = {
    "fixed": _fixed_cases,
    "ragged": partial(_ragged_cases, zstd=False),
    "zstd": partial(_ragged_cases, zstd=True),
    "images": _image_cases,
    "append": lambda asked: append_cases(asked.folder, asked.rounds),
    "small": lambda asked: small_cases(asked.rows * 5, asked.folder, asked.rounds),
    "update": lambda asked: update_cases(asked.rows, asked.folder, asked.rounds),
    "rebalance": lambda asked: rebalance_cases(asked.rows, asked.folder),
    "open": lambda asked: open_cases(asked.rows * 50, asked.folder, asked.rounds),
    "memory": _memory_cases,
    "loader": _loader_cases,
}


def _ours(path: Path, records: Records, batch: int) -> list[Peer]:
    checked = sw.RecordReader.open(path)
    unchecked = sw.RecordReader.open(path, checksums=False)
    ours = [Peer(_OURS, checked.take, _rows_of), Peer(_UNCHECKED, unchecked.take, _rows_of)]
    if records.shape is None:
        return ours
    out = {"x": np.empty((batch, *records.shape), np.uint8)}
    return [
        *ours,
        Peer(_OUT, partial(checked.take, out=out), _rows_of),
        Peer(_UNCHECKED_OUT, partial(unchecked.take, out=out), _rows_of),
    ]


def _rows_of(batch: sw.Batch) -> list[Any]:
    return list(batch["x"])


def _race(
    peers: Sequence[Peer], records: Records, asked: Asked, *, share: float = 1
) -> dict[str, Measured]:
    """Milliseconds of a batch, by name; `share` of the usual number of calls."""
    rows = records.random(asked.batch)
    for peer in peers:
        peer.check(records, rows())
    data.settle()
    candidates = [peer.candidate(share=share) for peer in peers]
    seconds = measure.race(candidates, rows, rounds=asked.rounds)
    return {
        name: Measured.of([s * 1e3 for s in each], rows_per_s=asked.batch / float(np.median(each)))
        for name, each in seconds.items()
    }


def _reading(path: Path, records: Records, batch: int) -> tuple[int, int]:
    """Memory of 50 batches: resident, and the part of it that is not a file's."""
    rows = records.random(batch)
    before = measure.reset_peak()
    with sw.RecordReader.open(path) as store, measure.AnonymousPeak() as peak:
        for _ in range(50):
            store.take(rows())
    return measure.peak_bytes() - before, peak.bytes - peak.before


def _case(
    title: str, found: dict[str, Measured], targets: list[Target], memory: tuple[int, int]
) -> Case:
    rss, anonymous = memory
    ours = replace(found[_OURS], rss_bytes=rss, anonymous_bytes=anonymous)
    peers = {name: measured for name, measured in found.items() if name != _OURS}
    return Case(
        title,
        "ms",
        ours,
        peers,
        targets,
        "stepwell checks the checksums of all that it reads by default; bagz, LMDB, HDF5 and "
        ".npy have none. Lists of bytes and tables of Arrow are left as they are. Memory counts "
        "the mapped pages of the store, anonymous memory does not",
    )


def _faster(found: dict[str, Measured], others: Sequence[Peer]) -> Target:
    name, cost = _quickest(found, [peer.name for peer in others])
    return Target(
        f"times faster than the quickest ({name})", cost / found[_OURS].median, at_least=1
    )


def _quickest(found: dict[str, Measured], names: Sequence[str]) -> tuple[str, float]:
    name = min(names, key=lambda name: found[name].median)
    return name, found[name].median


def _size(asked: Asked, records: Records) -> str:
    return f"{asked.batch:,} random of {len(records):,}"


def _folder(asked: Asked, name: str) -> Path:
    path = asked.folder / name
    path.mkdir(exist_ok=True)
    return path


if __name__ == "__main__":
    main()
