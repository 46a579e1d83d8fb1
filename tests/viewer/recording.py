"""A process that records: `python -m tests.viewer.recording ROOT RUN_ID`.

It takes a line for each thing to do, a number of steps or "close", and answers with a line when
that is done and on the disk. The frames are of one colour: 16 for each episode, and one more for
each step of it.
"""

import sys
from typing import Any

from stepwell.replay import Record
from tests.environments import Everything

LENGTH = 12
"""Steps of an episode."""


def main(root: str, run_id: str) -> None:
    env: Any = Record(Everything(LENGTH), root, run_id=run_id, lane=True)
    env.reset(seed=1)
    env.action_space.seed(1)
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "close":
            env.close()
        else:
            for _ in range(int(line)):
                *_, terminated, truncated, _ = env.step(env.action_space.sample())
                if terminated or truncated:
                    env.reset()
            env.writer.commit()
        print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
