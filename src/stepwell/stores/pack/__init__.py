"""Packs: many runs, or any payloads, in one immutable file (docs/formats/pack.md)."""

from stepwell.stores.pack.build import PackReport, pack_runs
from stepwell.stores.pack.reader import PackReader
from stepwell.stores.pack.stats import PackStats
from stepwell.stores.pack.writer import PackWriter

__all__ = ["PackReader", "PackReport", "PackStats", "PackWriter", "pack_runs"]
