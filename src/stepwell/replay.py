"""Record what agents do, step by step, and get it back.

writer = ReplayWriter("replays", "run_1")      arrays need the extra `replay`: h5py, hdf5plugin
reader = ReplayReader.open("replays")          needs NumPy only

env = Record(env, "replays")                   an environment that records itself; extra `gym`
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stepwell.stores.replay.database import Episode
from stepwell.stores.replay.episodes import EpisodeSteps, RecordedStep
from stepwell.stores.replay.lane import LaneFrame, LaneInfo, LaneReader, LaneWriter, lanes
from stepwell.stores.replay.reader import ReplayReader
from stepwell.stores.replay.refs import FrameRef
from stepwell.stores.replay.remove import Removed, remove, remove_run
from stepwell.stores.replay.resolver import FrameResolver

if TYPE_CHECKING:
    from stepwell.stores.replay.recorder import Record, RecordedEnv, RecordedVectorEnv
    from stepwell.stores.replay.sink import ReplaySink
    from stepwell.stores.replay.writer import ReplayWriter, StepRefs

__all__ = [
    "Episode",
    "EpisodeSteps",
    "FrameRef",
    "FrameResolver",
    "LaneFrame",
    "LaneInfo",
    "LaneReader",
    "LaneWriter",
    "Record",
    "RecordedEnv",
    "RecordedStep",
    "RecordedVectorEnv",
    "Removed",
    "ReplayReader",
    "ReplaySink",
    "ReplayWriter",
    "StepRefs",
    "lanes",
    "remove",
    "remove_run",
]

_LATER = {
    "Record": "recorder",
    "RecordedEnv": "recorder",
    "RecordedVectorEnv": "recorder",
    "ReplaySink": "sink",
    "ReplayWriter": "writer",
    "StepRefs": "writer",
}
_EXTRAS = {"h5py": "replay", "hdf5plugin": "replay", "gymnasium": "gym"}


if not TYPE_CHECKING:  # a checker that saw it would take any name for one of ours

    def __getattr__(name: str) -> Any:
        # What needs more than NumPy is imported when it is asked for.
        if name not in _LATER:
            raise AttributeError(f"module 'stepwell.replay' has no attribute {name!r}")
        try:
            module = import_module(f"stepwell.stores.replay.{_LATER[name]}")
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            if missing not in _EXTRAS:
                raise
            extra = "gym" if _LATER[name] == "recorder" else _EXTRAS[missing]
            raise ImportError(f"{name} needs an extra: pip install 'stepwell[{extra}]'") from error
        return getattr(module, name)


def __dir__() -> list[str]:
    # Without names whose extra is not there: help() gets every name that is listed.
    from importlib.util import find_spec

    missing = "recorder" if find_spec("gymnasium") is None else ""
    return [name for name in __all__ if _LATER.get(name, "") != missing or not missing]
