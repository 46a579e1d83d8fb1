"""Work for other processes, and ways to have it done there."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from stepwell import Source
from stepwell.source import Batch, Rows
from tests import ROOT


def read(source: Source, rows: Rows) -> Batch:
    return source.take(rows)


def fingerprint(source: Source) -> str:
    return source.fingerprint


def in_fork(call: Callable[[], Any]) -> Any:
    """What `call` returns in a forked child of this very process, threads and all.

    The child is killed when it has answered. An EOFError says that it ended without an answer.
    """
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_report, args=(call, sender))
    process.start()
    sender.close()
    try:
        if not receiver.poll(60):
            raise TimeoutError("the forked child hangs")
        result, error = receiver.recv()
    finally:
        process.kill()
        process.join()
        receiver.close()
    if error is not None:
        raise AssertionError(f"in the forked child:\n{error}")
    return result


def _report(call: Callable[[], Any], sender: Connection) -> None:
    try:
        sender.send((call(), None))
    except BaseException:
        sender.send((None, traceback.format_exc()))
    signal.pause()  # until it is killed: nothing that runs at exit is to run


def python(
    script: str, *args: str | Path, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a script in a fresh interpreter that can import stepwell and these tests."""
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, args)],
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=110,
    )


def answer(script: str, *args: str | Path, env: dict[str, str] | None = None) -> str:
    """What such a script prints, when it succeeds."""
    done = python(script, *args, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


class Child:
    """An interpreter beside this one, with which one talks in lines."""

    def __init__(self, *args: object) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, *map(str, args)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def says(self) -> str:
        assert self._popen.stdout is not None
        return self._popen.stdout.readline().strip()

    def go(self, line: str = "") -> None:
        assert self._popen.stdin is not None
        print(line, file=self._popen.stdin, flush=True)

    def dies(self) -> None:
        """Wait until it has ended in whatever way."""
        self._popen.wait()

    def stop(self) -> None:
        """Kill it; another thread may be listening to it."""
        self._popen.kill()

    def kill(self) -> None:
        assert self._popen.stdout is not None
        if not self._popen.stdout.closed:
            self._popen.kill()
            self._popen.communicate()

    def ends(self) -> str:
        """What else it says when nobody talks to it any more; it must succeed."""
        said, _ = self._popen.communicate(timeout=60)
        assert self._popen.returncode == 0
        return said.strip()


def at_once(*works: Callable[[], Any]) -> list[Any]:
    """What each returns, in threads of their own that begin at the same moment."""
    ready = threading.Barrier(len(works))

    def begin(work: Callable[[], Any]) -> Any:
        ready.wait()
        return work()

    with ThreadPoolExecutor(len(works)) as pool:
        return list(pool.map(begin, works))
