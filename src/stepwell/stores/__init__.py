"""The stores. `STORES` is what `stepwell.open` chooses from."""

from stepwell.store import Store
from stepwell.stores.arrayrecord import ArrayRecordSource
from stepwell.stores.arrays import ArraySource
from stepwell.stores.pack import PackReader, PackWriter
from stepwell.stores.records import RecordReader, RecordWriter
from stepwell.stores.replay.reader import ReplayReader
from stepwell.stores.shards import RowState, ShardReader, ShardWriter, encode_shard
from stepwell.stores.steps import RunColumn, StepReader, StepWriter

__all__ = [
    "STORES",
    "ArrayRecordSource",
    "ArraySource",
    "PackReader",
    "PackWriter",
    "RecordReader",
    "RecordWriter",
    "ReplayReader",
    "RowState",
    "RunColumn",
    "ShardReader",
    "ShardWriter",
    "StepReader",
    "StepWriter",
    "encode_shard",
]

STORES: tuple[type[Store], ...] = (
    ArraySource,
    PackReader,
    StepReader,
    RecordReader,
    ArrayRecordSource,
    ReplayReader,
    ShardReader,
)
