"""Records that can be appended to, changed and deleted while others read."""

from stepwell.stores.records.reader import RecordColumn, RecordReader
from stepwell.stores.records.salvage import SalvageReport
from stepwell.stores.records.writer import RecordWriter

__all__ = ["RecordColumn", "RecordReader", "RecordWriter", "SalvageReport"]
