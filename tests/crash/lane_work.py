"""What the processes of test_lane_processes.py do: `python -m tests.crash.lane_work WHAT RUN_ID`.

Frames are made of their number, so that a mix of two is noticed.
"""

import sys
import time
from collections.abc import Callable

import numpy as np

from stepwell.stores.replay.lane import LaneFrame, LaneReader, LaneWriter
from tests.lanes import number_of, numbered

WORDS = 8  # of a small frame


def shape(words: int) -> tuple[int, int]:
    return 1, words * 8


def write(run_id: str, count: str, words: str = str(WORDS), capacity: str = "8") -> None:
    """Publish so many frames as fast as possible; says when it begins and when it is done."""
    size, first = int(words), np.arange(1, int(words) + 1, dtype=np.uint64)
    with LaneWriter(run_id, shape(size), capacity=int(capacity), metadata_bytes=8) as lane:
        say("begins")
        sys.stdin.readline()
        for number in range(1, int(count) + 1):
            frame = (np.uint64(number) * first).view(np.uint8).reshape(1, -1)
            lane.publish(frame, reward=number, metadata=number.to_bytes(8, "little"))
        say("done")


def write_for_ever(run_id: str, words: str = str(WORDS), pause_s: str = "0") -> None:
    """Publish until it is killed."""
    lane = LaneWriter(run_id, shape(int(words)), metadata_bytes=8)
    say("begins")
    number = 0
    while True:
        number += 1
        text = number.to_bytes(8, "little")
        lane.publish(numbered(number, int(words)), reward=number, metadata=text)
        if float(pause_s):
            time.sleep(float(pause_s))


def read(run_id: str, how: str = "frames", most: str = "0") -> None:
    """Check frames until the writer is gone; says how many it has seen and missed."""
    seen = last = 0
    with LaneReader(run_id, timeout_s=60) as lane:
        say("begins")
        while lane.wait() and not 0 < int(most) <= seen:
            found = lane.frames() if how == "frames" else [lane.latest()]
            for frame in found:
                if frame is None:
                    continue
                check(frame)
                if frame.number <= last and lane.restarts == 0:
                    raise SystemExit(f"{frame.number} after {last}")
                last = frame.number
                seen += 1
        say(f"{seen} {lane.skipped} {last}")


def check(frame: LaneFrame) -> None:
    of = (number_of(frame.pixels), int(frame.reward), int.from_bytes(frame.metadata, "little"))
    if of != (frame.number,) * 3:
        raise SystemExit(f"frame {frame.number} is torn or another one: {of}")


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    works: dict[str, Callable[..., None]] = {
        "write": write,
        "write_for_ever": write_for_ever,
        "read": read,
    }
    works[sys.argv[1]](*sys.argv[2:])
