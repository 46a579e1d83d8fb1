"""Packs: many payloads of a type, or any bytes, in one immutable file (docs/formats/pack.md)."""

from stepwell.stores.pack.payload import PayloadType, set_payload_types
from stepwell.stores.pack.reader import PackReader
from stepwell.stores.pack.stats import PackStats
from stepwell.stores.pack.writer import PackWriter

__all__ = ["PackReader", "PackStats", "PackWriter", "PayloadType", "set_payload_types"]
