"""Processes that are killed at work.

    victims = Victims("tests.crash.test_pack_kills:work", folder)
    stamp = victims.kill(first=stamp + 1, after_s=0.01)     the last that was acknowledged

`work(folder, first)` is a generator: it does something, yields the stamp of what is done from
then on for ever, and goes on. A warm process forks one such worker after another, so a kill
costs milliseconds.
"""

import importlib
import operator
import os
import signal
import sys
import time
from pathlib import Path
from typing import Self

from tests import scaled
from tests.children import Child

__all__ = ["KILLS", "Victims"]

KILLS = int(os.environ.get("STEPWELL_KILLS", scaled(100, smallest=40)))
"""How often each writer is killed; `make kills` asks for 10,000."""


class Victims:
    """Workers, one at a time, each of which ends by SIGKILL."""

    def __init__(self, work: str, folder: Path) -> None:
        self._child = Child("-m", "tests.crash.kills", work, folder)

    def kill(self, first: int, after_s: float) -> int:
        """Let a worker begin with a stamp, kill it; return the last stamp it acknowledged.

        That is `first - 1` when it acknowledged none. Raises when it ended by itself.
        """
        self._child.go(f"{first} {after_s}")
        answer = self._child.says().split()
        if len(answer) != 2 or int(answer[1]) != -signal.SIGKILL:
            raise AssertionError(f"the worker was not killed, it ended: {answer}")
        return int(answer[0])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._child.kill()


def main(work: str, folder: str) -> None:
    module, name = work.split(":")
    worker = operator.attrgetter(name)(importlib.import_module(module))
    for line in sys.stdin:
        first, after_s = line.split()
        receiver, sender = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(receiver)
            try:
                for stamp in worker(Path(folder), int(first)):
                    os.write(sender, b"%d\n" % stamp)
            except BaseException as error:
                print(f"the worker failed: {error!r}", file=sys.stderr)
            os._exit(1)
        os.close(sender)
        time.sleep(float(after_s))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        with os.fdopen(receiver, "rb") as pipe:
            stamps = [int(first) - 1, *map(int, pipe.read().split())]
        print(stamps[-1], os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
