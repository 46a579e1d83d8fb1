"""A disk that fails: the n-th call to the system ends in an error, or does half of its work.

for number in count():
    with fault("ENOSPC", number) as injected:
        ...
    if injected.name is None:
        break               every call has had its turn
"""

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from tests import ROOT
from tests.crash.disk import patched

__all__ = ["Fault", "Kind", "fault", "on_a_small_disk"]

Kind = Literal["EIO", "ENOSPC", "short", "full"]
"""EIO: that call fails. ENOSPC: so does every later write. short: it writes or reads only a
part, which is no error. full: a part, and then ENOSPC."""

_READS = ("pread", "readv")
_WRITES = ("write", "pwrite")
_OTHERS = ("open", "fsync", "fdatasync", "ftruncate", "replace", "close")


@dataclass
class Fault:
    """What has been injected."""

    name: str | None = None
    """The call that failed; None when there were not as many calls."""


@contextmanager
def fault(kind: Kind, number: int) -> Iterator[Fault]:
    """Let the call of this number fail, counted over all calls that can fail in this way."""
    watched: tuple[str, ...] = _READS + _WRITES
    if kind == "full":
        watched = _WRITES
    elif kind == "EIO":
        watched = _READS + _WRITES + _OTHERS
    elif kind == "ENOSPC":
        watched = (*_WRITES, "open", "fsync", "fdatasync")
    injected = Fault()
    seen = 0

    def faulty(name: str) -> Callable[..., Any]:
        call = getattr(os, name)

        def wrapped(*args: Any, **options: Any) -> Any:
            nonlocal seen
            if name == "open" and not args[1] & os.O_CREAT and kind == "ENOSPC":
                return call(*args, **options)
            seen += 1
            if seen - 1 != number:
                if injected.name and kind in ("ENOSPC", "full") and name in _WRITES:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                return call(*args, **options)
            injected.name = name
            if kind in ("short", "full"):
                return _half(name, call, *args)
            if name == "close":
                call(*args)  # the descriptor is gone in any case
            raise OSError(getattr(errno, kind), os.strerror(getattr(errno, kind)))

        return wrapped

    with patched({name: faulty(name) for name in watched}):
        yield injected


def _half(name: str, call: Callable[..., Any], file: int, what: Any, *rest: int) -> Any:
    if name == "readv":
        return call(file, [view[: len(view) // 2 + 1] for view in what])
    if name == "pread":
        return call(file, what // 2 + 1, *rest)
    return call(file, memoryview(what)[: len(what) // 2 + 1], *rest)


def on_a_small_disk(folder: Path, size: str, script: str, *args: str) -> str:
    """What a script prints on a file system of this size; its first argument is the folder.

    The mount is in a namespace that goes with the process. Skips the test where that is not
    allowed.
    """
    mount = f'mount -t tmpfs -o size={size} stepwell-test "$1" 2>/dev/null || exit 77'
    run = (
        f'{mount}; folder=$1; python=$2; script=$3; shift 3; "$python" -c "$script" "$folder" "$@"'
    )
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", run, "sh", folder, sys.executable, script, *args],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
    )
    if done.returncode == 77 or "unshare failed" in done.stderr:
        pytest.skip("mounting is not allowed here")
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout
