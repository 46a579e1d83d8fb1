"""Activation shards: a corpus larger than memory, in a fixed order."""

from stepwell.stores.shards.batches import Batches, RowBatch
from stepwell.stores.shards.layout import Shard
from stepwell.stores.shards.reader import ShardReader, Subsample
from stepwell.stores.shards.state import RowState
from stepwell.stores.shards.writer import ShardWriter, encode_shard

__all__ = [
    "Batches",
    "RowBatch",
    "RowState",
    "Shard",
    "ShardReader",
    "ShardWriter",
    "Subsample",
    "encode_shard",
]
