"""`stepwell.ray.read`: a store as a Ray Data dataset, whose tasks read the rows themselves."""

import os
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any

import pyarrow as pa
import ray.data
from ray.data import Datasource, ReadTask
from ray.data.block import BlockAccessor, BlockMetadata

from stepwell.arrow import record_batch, schema_of
from stepwell.batches import in_order, size_of
from stepwell.errors import StateError
from stepwell.opening import open_lazily
from stepwell.ray.origin import place_of
from stepwell.source import Field, Source, sample_rows
from stepwell.store import Store


@dataclass(frozen=True)
class _Chosen:
    """Rows that any process can open."""

    source: str | Source
    fields: tuple[str, ...] | None
    where: str | None

    def open(self) -> Source:
        source = open_lazily(self.source) if isinstance(self.source, str) else self.source
        if self.where is not None:
            if not isinstance(source, Store):
                raise ValueError(f"where: expected a store with runs, got {type(source).__name__}")
            source = source.where(self.where)
        return source if self.fields is None else source.columns(self.fields)


class StoreDatasource(Datasource):
    """Row ranges of a store as read tasks; what travels is a path and a range."""

    def __init__(
        self,
        source: str | os.PathLike[str] | Source,
        fields: Sequence[str] | None = None,
        where: str | None = None,
    ) -> None:
        if isinstance(source, Source):
            place_of(source)
            given: str | Source = source
        else:
            text = os.fspath(source)
            given = text if "://" in text else os.path.abspath(text)
        chosen = _Chosen(given, None if fields is None else tuple(fields), where)
        rows = chosen.open()
        schema_of(rows)  # fields that Arrow cannot have are refused here
        self._packed = pickle.dumps(chosen)
        self._count, self._fingerprint = len(rows), rows.fingerprint
        sample = sample_rows(len(rows))
        self._row_bytes = size_of(rows.take(sample)) / max(len(sample), 1)

    def get_name(self) -> str:
        return "stepwell"

    def estimate_inmemory_data_size(self) -> int:
        return int(self._row_bytes * self._count)

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        count = max(min(parallelism, self._count), 1)
        cuts = [self._count * k // count for k in range(count + 1)]
        tasks = []
        for begin, end in pairwise(cuts):
            stop = end if per_task_row_limit is None else min(end, begin + per_task_row_limit)
            size = int(self._row_bytes * (stop - begin))
            about = BlockMetadata(
                num_rows=stop - begin, size_bytes=size, input_files=None, exec_stats=None
            )
            work = partial(_blocks, self._packed, self._fingerprint, begin, stop)
            tasks.append(ReadTask(work, about))
        return tasks


def read(
    source: str | os.PathLike[str] | Source,
    *,
    fields: Sequence[str] | None = None,
    where: str | None = None,
    concurrency: int | None = None,
    override_num_blocks: int | None = None,
) -> "ray.data.Dataset":
    """The rows of a store, or of a file of a format, as a Ray Data dataset.

    Blocks are Arrow tables of neighbouring rows, in order where Ray keeps it, read by tasks that
    open the source themselves; none of them goes through this process. `fields` chooses columns,
    `where` runs, by SQL. `concurrency` and `override_num_blocks` are those of Ray Data. A task that
    finds other rows at the path than there were raises `StateError`.
    """
    made: ray.data.Dataset = ray.data.read_datasource(
        StoreDatasource(source, fields, where),
        concurrency=concurrency,
        override_num_blocks=override_num_blocks,
    )
    return made


def _blocks(packed: bytes, fingerprint: str, begin: int, end: int) -> Iterator[pa.Table]:
    rows = _opened(packed, fingerprint)
    schema = schema_of(rows)
    if begin == end:
        yield schema.empty_table()
        return
    for batch in in_order(rows.select(slice(begin, end))):
        table = pa.Table.from_batches([record_batch(batch, schema)])
        shaped = {name: batch[name] for name, field in rows.schema.items() if _has_shape(field)}
        if shaped:  # as Ray has arrays, which batches of NumPy's and tensors are made of
            arrays = BlockAccessor.batch_to_arrow_block(shaped)
            for name in shaped:
                place = table.schema.get_field_index(name)
                table = table.set_column(place, name, arrays.column(name))
        yield table


def _has_shape(field: Field) -> bool:
    return bool(field.shape) and not field.ragged


@lru_cache(maxsize=1)
def _opened(packed: bytes, fingerprint: str) -> Source:
    chosen: _Chosen = pickle.loads(packed)
    rows = chosen.open()
    if rows.fingerprint != fingerprint:
        raise StateError(f"{chosen.source} has changed since the dataset was made")
    return rows
