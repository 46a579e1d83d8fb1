"""Records that can be appended to, changed and deleted while others read."""

from stepwell.stores.records.column import RecordColumn
from stepwell.stores.records.layout import RecordField
from stepwell.stores.records.salvage import SalvageReport
from stepwell.stores.records.store import RecordStore

__all__ = ["RecordColumn", "RecordField", "RecordStore", "SalvageReport"]
