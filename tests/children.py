"""Work for other processes, and ways to have it done there."""

import multiprocessing
import os
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable
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
    """What `call` returns in a forked child of this very process, threads and all."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_report, args=(call, sender))
    with warnings.catch_warnings():
        # Python 3.12 warns of fork beside threads and JAX of any fork: just what is tested.
        warnings.simplefilter("ignore")
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
