"""Recorded episodes, and the frames of a run that is still going on."""

from stepwell.stores.replay.lane import LaneFrame, LaneInfo, LaneReader, LaneWriter, lanes

__all__ = ["LaneFrame", "LaneInfo", "LaneReader", "LaneWriter", "lanes"]
