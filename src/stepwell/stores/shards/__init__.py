"""Activation shards: a corpus larger than memory, in a fixed order."""

from stepwell.stores.shards.layout import Shard
from stepwell.stores.shards.reader import RowBatch, ShardReader, Subsample
from stepwell.stores.shards.state import RowState
from stepwell.stores.shards.writer import ShardWriter

__all__ = ["RowBatch", "RowState", "Shard", "ShardReader", "ShardWriter", "Subsample"]
