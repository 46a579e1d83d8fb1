"""The oracle, and the processes: many cases in one, which is killed when a case takes too long."""

import gc
import os
import pickle
import resource
import shutil
import signal
import stat
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import stepwell as sw
from tests import SANITIZED
from tests.attack.cases import Case, Templates, do_harm, make_templates, undo_flips
from tests.attack.known import known
from tests.attack.targets import TARGETS, WRITERS, Answer, called

TIME_S = 20.0 if not SANITIZED else 100.0
"""A case takes some milliseconds; but a machine may be busy."""
MEMORY_BYTES = 1 << 30
BATCH = 250

REFUSED = (sw.StepwellError, FileNotFoundError, FileExistsError)
"""What a call may end with."""

Right = dict[tuple[str, str, str], Answer]


@dataclass(frozen=True)
class Failure:
    case: str
    outcome: str
    """wrong, error, lost, touched, hang or crash"""
    detail: str
    item: str | None


class Field:
    """Where cases are run, one at a time, each in a folder of its own."""

    def __init__(self, folder: Path, templates: Templates) -> None:
        self._folder, self._number = folder, 0
        self._templates = templates

    def right(self) -> Right:
        """What healthy stores answer."""
        found = {}
        for name, state in self._templates:
            for call in TARGETS[name].calls:
                self._put(name, state)
                with called(TARGETS[name], call, self._store) as ask:
                    found[name, state, call] = ask()
        return found

    def run(self, case: Case, right: Right) -> tuple[str, str] | None:
        """How a case failed, and a line about it; None where it did not."""
        target = TARGETS[case.target]
        self._put(case.target, case.state)
        want = right[case.target, case.state, case.call]
        refused: tuple[type[Exception], ...] = (*REFUSED, *target.refuses)
        found: tuple[str, str] | None = None
        with called(target, case.call, self._store) as ask:
            for harm in case.harms:
                do_harm(harm, target, self._store, self._outside)
            before = _canary(self._outside)
            try:
                got = ask()
            except refused as error:
                if isinstance(error, sw.FormatError) and error.path is None:
                    found = "error", f"a FormatError without a path: {error}"
                elif case.call in WRITERS:
                    found = self._lost(case, right, error)
            except Exception as error:
                found = "error", _line(error)
            else:
                if got != want:
                    found = "wrong", _difference(got, want)
        if _canary(self._outside) != before:
            return "touched", "a file outside the store was changed"
        return found

    def _lost(self, case: Case, right: Right, refused: Exception) -> tuple[str, str] | None:
        """A writer that refuses has changed nothing: without the damage everything is there."""
        target, state = case.target, case.state
        try:
            if not undo_flips(case.harms, self._store, self._templates[target, state]):
                return None
            there = TARGETS[target].do_take(self._store)
        except Exception as error:
            return "lost", f"{_line(error)}, after {_line(refused)}"
        if there in (right[target, state, "take"], right[target, state, case.call]):
            return None
        return "lost", f"after {_line(refused)}"

    def _put(self, name: str, state: str) -> None:
        """A healthy store, where nobody has been before: threads may end late."""
        shutil.rmtree(self._folder / str(self._number), ignore_errors=True)
        self._number += 1
        place = self._folder / str(self._number)
        self._store, self._outside = place / "store", place / "outside"
        self._outside.mkdir(parents=True)
        self._templates[name, state].put(self._store)
        TARGETS[name].placed(self._store)


def _canary(path: Path) -> dict[str, Any]:
    """Everything outside, byte for byte; what is large, and mostly a hole, by size and time."""
    found: dict[str, Any] = {}
    for each in path.rglob("*"):
        about = each.lstat()
        is_small = stat.S_ISREG(about.st_mode) and about.st_size < 1 << 20
        found[str(each)] = (
            *(about.st_mode, about.st_size, about.st_mtime_ns),
            each.read_bytes() if is_small else None,
        )
    return found


def _line(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(frame.filename).name}:{frame.lineno})"


def _difference(got: Answer, want: Answer) -> str:
    mine, theirs = str(got), str(want)
    at = next((i for i, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b), 0)
    return f"expected {theirs[max(at - 40, 0) : at + 80]}, got {mine[max(at - 40, 0) : at + 80]}"


@contextmanager
def prepared() -> Iterator[tuple[Templates, Right, Path]]:
    """Stores to damage, what they answer, and a folder where a sync costs nothing."""
    shared = "/dev/shm" if Path("/dev/shm").is_dir() else None
    folder = Path(tempfile.mkdtemp(prefix="stepwell-attack-", dir=shared))
    try:
        templates = make_templates(folder)
        right = _in_child(lambda: Field(folder / "right", templates).right())
        yield templates, right, folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _forked(work: Callable[[Connection], None]) -> tuple[int, Connection]:
    """A child that does this, and the pipe that it sends to: threads and obstore stay there."""
    ours, theirs = Pipe(duplex=False)
    pid = os.fork()
    if not pid:
        try:
            ours.close()
            work(theirs)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    theirs.close()
    return pid, ours


def _in_child(call: Callable[[], Any]) -> Any:
    """What a call returns in a child."""
    pid, pipe = _forked(lambda theirs: theirs.send(call()))
    try:
        return pipe.recv()
    finally:
        pipe.close()
        os.waitpid(pid, 0)


class _Worker:
    """A process with a number of cases."""

    def __init__(self, cases: list[Case], begin: Callable[[list[Case], Connection], None]) -> None:
        self.cases, self.done = cases, 0
        self.pid, self.pipe = _forked(lambda theirs: begin(cases, theirs))
        self.since = time.monotonic()

    def end(self) -> int:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.pipe.close()
        return os.waitpid(self.pid, 0)[1]


def run_cases(
    cases: Iterable[Case],
    templates: Templates,
    right: Right,
    folder: Path,
    *,
    jobs: int = 1,
    progress: Callable[[int], None] = lambda done: None,
) -> Iterator[Failure]:
    """The failures among these cases, those that are known too, as they are found."""
    left = iter(cases)
    number = 0

    def begin(mine: list[Case], pipe: Connection) -> None:
        _work(mine, pipe, Field(folder / f"work-{number}", templates), right)

    waiting: list[list[Case]] = []
    workers: list[_Worker] = []
    done = 0
    try:
        while True:
            while len(workers) < jobs:
                batch = waiting.pop() if waiting else list(islice(left, BATCH))
                if not batch:
                    break
                number += 1
                workers.append(_Worker(batch, begin))
            if not workers:
                return
            wait([worker.pipe for worker in workers], timeout=0.5)
            for worker in list(workers):
                ended = False
                while not ended and worker.pipe.poll():
                    try:
                        found = worker.pipe.recv()
                    except (EOFError, pickle.UnpicklingError):
                        ended = True
                        break
                    worker.since = time.monotonic()
                    worker.done += 1
                    done += 1
                    if found is not None:
                        yield _failure(worker.cases[worker.done - 1], *found)
                late = time.monotonic() - worker.since > TIME_S
                if not (ended or late):
                    continue
                status = worker.end()
                workers.remove(worker)
                if worker.done < len(worker.cases):  # the case that it was at
                    case = worker.cases[worker.done]
                    how = f"more than {TIME_S:.0f} s" if late else _ending(status)
                    yield _failure(case, "hang" if late else "crash", how)
                    done += 1
                    if rest := worker.cases[worker.done + 1 :]:
                        waiting.append(rest)
            progress(done)
    finally:
        for worker in workers:
            worker.end()


def _ending(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"signal {signal.Signals(os.WTERMSIG(status)).name}"
    return f"exit status {os.waitstatus_to_exitcode(status)}"


def _failure(case: Case, outcome: str, detail: str) -> Failure:
    return Failure(str(case), outcome, detail, known(case, outcome, detail))


def _work(cases: Sequence[Case], pipe: Connection, field: Field, right: Right) -> None:
    warnings.simplefilter("ignore")
    if not SANITIZED:  # whose shadow memory is large
        limit_memory()
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, sys.stderr.fileno())  # of HDF5, and of threads
    for number, case in enumerate(cases):
        try:
            pipe.send(field.run(case, right))
        except Exception as error:  # before the damage, or in closing a store
            pipe.send(("error", f"around the call: {_line(error)}"))
        if number % 50 == 49:
            gc.collect()


def limit_memory() -> None:
    """From here on this process may get so much more; maps of files do not count."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (kilobytes,) = (int(line.split()[1]) for line in lines if line.startswith("VmData"))
    limit = kilobytes * 1024 + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
