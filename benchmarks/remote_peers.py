"""Other ways to train over a bucket: MosaicML's shards, and batches of Parquet's row groups."""

import itertools
import os
import queue
import shutil
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import stepwell as sw
from benchmarks.results import console

_STREAMING, _PARQUET = "MosaicML streaming", "fsspec + Parquet"
_WORKERS = 2
_WRITTEN = 1 << 19  # rows: more would take minutes
_THREADS = 16

Start = Callable[[str, str], Generator[int]]
"""From the URL of a bucket and its endpoint to the lengths of batches."""


@dataclass(frozen=True)
class Dataset:
    """The same rows in several forms, each in a folder of its own."""

    root: Path
    rows: int
    block: int

    @property
    def folder(self) -> Path:
        return self.root / "steps"

    def folder_of(self, name: str) -> Path:
        return self.root / name.replace(" ", "-")


def peers(data: Dataset, batch: int, scope: int) -> Iterator[tuple[str, Start, int]]:
    """Those that are installed, and how many rows they have. Rows are shuffled within `scope` of
    them."""
    some = min(data.rows, _WRITTEN)
    for name, made, rows in ((_STREAMING, _streaming, some), (_PARQUET, _parquet, data.rows)):
        try:
            start = made(data, batch, scope)
        except ImportError as error:
            console.print(f"[dim]{name} is left out: {error}[/]")
            continue
        yield name, start, rows
        shutil.rmtree(data.folder_of(name))


def _parts(data: Dataset) -> Iterator[sw.Batch]:
    steps = sw.StepReader.open(data.folder)
    for begin in range(0, data.rows, data.block):
        yield steps[begin : min(begin + data.block, data.rows)]


# MosaicML streaming.


def _streaming(data: Dataset, batch: int, scope: int) -> Start:
    """Shards of a block each, kept on the disk once they are there; two processes read. Of the
    first rows: more would take minutes to write."""
    _without_pictures()
    import streaming

    folder, row = data.folder_of(_STREAMING), 16
    columns = {"board": "uint64", "reward": "float32", "action": "uint32"}

    def collated(rows: list[dict[str, Any]]) -> dict[str, Any]:
        return {name: np.array([row[name] for row in rows]) for name in columns}

    limit = data.block * (row + 8)  # four bytes a row for its place, and a head
    with streaming.MDSWriter(out=str(folder), columns=columns, size_limit=limit) as writer:
        for part in itertools.islice(_parts(data), _WRITTEN // data.block):
            for board, reward, action in zip(*(part[name] for name in columns), strict=True):
                writer.write({"board": board, "reward": reward, "action": action})

    def start(url: str, endpoint: str) -> Generator[int]:
        keys = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
        os.environ.update(keys, AWS_REGION="us-east-1", S3_ENDPOINT_URL=endpoint)
        streaming.base.util.clean_stale_shared_memory()
        local = data.root / "streamed"
        dataset = streaming.StreamingDataset(
            remote=url,
            local=str(local),
            shuffle=True,
            shuffle_algo="py1e",
            shuffle_block_size=scope,
            num_canonical_nodes=1,
            predownload=scope,
            batch_size=batch,
        )
        for stream in dataset.streams:
            # It has fetched the index. Both workers would read from the connection that is open
            # since then, each some of the answers: without TLS nobody notices but who reads rows.
            stream._downloader.clean_up()
        loader = streaming.StreamingDataLoader(
            dataset, batch, collate_fn=collated, num_workers=_WORKERS, prefetch_factor=4
        )
        yield from (len(each["board"]) for each in loader)

    return start


def _without_pictures() -> None:
    """streaming imports torchvision, whose operators are not there beside torch for the CPU."""
    import torch

    global _operators
    if _operators is None:
        _operators = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            _operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


_operators: Any = None


# fsspec and Parquet.


def _parquet(data: Dataset, batch: int, scope: int) -> Start:
    """Row groups of a block each, read by threads, a window of them ahead."""
    import aiohttp  # noqa: F401 - what fsspec has for HTTP
    import fsspec  # type: ignore[import-untyped]
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = data.folder_of(_PARQUET)
    folder.mkdir()
    schema = pa.schema([("board", pa.uint64()), ("reward", pa.float32()), ("action", pa.uint32())])
    with pq.ParquetWriter(
        folder / "rows.parquet", schema, compression="none", use_dictionary=False
    ) as writer:
        for part in _parts(data):
            writer.write_table(pa.table({name: part[name] for name in schema.names}, schema))

    def start(url: str, endpoint: str) -> Generator[int]:
        files = fsspec.filesystem("http")
        path = f"{endpoint}/{url.removeprefix('s3://')}/rows.parquet"
        about = pq.read_metadata(files.open(path, cache_type="none"))
        random = np.random.default_rng(7)
        groups, count = random.permutation(about.num_row_groups), scope // data.block
        mine = threading.local()

        def read(group: int) -> dict[str, Any]:
            if not hasattr(mine, "file"):
                opened = files.open(path, cache_type="none")
                mine.file = pq.ParquetFile(opened, metadata=about, pre_buffer=True)
            table = mine.file.read_row_group(group, use_threads=False)
            return {name: table[name].to_numpy() for name in table.column_names}

        windows: queue.Queue[Any] = queue.Queue(1)
        pool = ThreadPoolExecutor(_THREADS)

        def ahead() -> None:
            for at in range(0, len(groups), count):
                parts = list(pool.map(read, groups[at : at + count].tolist()))
                windows.put({n: np.concatenate([part[n] for part in parts]) for n in parts[0]})
            windows.put(None)

        threading.Thread(target=ahead, daemon=True).start()
        while (window := windows.get()) is not None:
            order = random.permutation(len(window["board"]))
            for at in range(0, len(order), batch):
                some = order[at : at + batch]
                yield len({name: values[some] for name, values in window.items()}["board"])

    return start
