"""The exam of stores whose rows have runs: SQL that people phrase freely.

`WriterContract` has it for every store that gets runs there.
"""

import ctypes
import gc
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stepwell.store import Store
from tests.children import in_fork

ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c"

NO_CONDITIONS = (
    *("0) UNION SELECT (1", "0) UNION SELECT ('abc'", "0) UNION ALL SELECT (1) --", "0) OR (1"),
    *(
        "0)) UNION SELECT 1, 1 FROM (SELECT (1",
        "1 THEN 1 END --",
        "1, 1",
        "SELECT 1",
        "1; SELECT 1",
    ),
    *("1) LIMIT (1", "1) ORDER BY (1", "", "--", "1 /*", "$a(') IS NULL) UNION SELECT (1) --')"),
)


def raised(call: Callable[[], Any]) -> str:
    """What a call raises that would not end without."""
    try:
        call()
    except BaseException as error:
        return type(error).__name__
    return "nothing"


def _interruptible() -> None:
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    gc.callbacks.clear()  # Hypothesis has one, and what is raised in it gets lost


def interrupted(call: Callable[[], Any]) -> str:
    """The same, when Ctrl-C comes."""
    _interruptible()
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    return raised(call)


def interrupted_anywhere(call: Callable[[], Any]) -> set[str]:
    """What it raises when Ctrl-C comes a little later each time."""
    _interruptible()
    found = set()
    for times in range(1, 201):
        try:
            signal.setitimer(signal.ITIMER_REAL, times * 2e-5)
            call()
        except BaseException as error:
            found.add(type(error).__name__)
    return found


class QueryContract:
    """Subclasses provide `queried`, and a fixture `path`."""

    def queried(self, path: Path) -> Store | None:
        """An open store with rows; None where they have no runs."""
        pytest.fail("an exam needs a method `queried`")

    def test_only_conditions_are_conditions(self, path: Path) -> None:
        if store := self.queried(path):
            for condition in NO_CONDITIONS:
                with pytest.raises(ValueError, match="where"):
                    store.where(condition)
            for condition in ("1 -- all", "(0) OR (1)", "1 /* all */", "')' <> '('", "1\n"):
                assert len(store.where(condition)) == len(store)

    def test_the_steps_of_each_run(self, path: Path) -> None:
        if store := self.queried(path):
            assert store.runs is not None
            assert store.runs_key in store.runs.columns
            counted = "num_steps" if "num_steps" in store.runs.columns else "steps"
            sql = f"SELECT {store.runs_key}, {counted} FROM {store.runs_table}"
            found = store.query(sql).rows
            assert len(found) == len(store.runs)
            for key, steps in found:
                rows = store.steps_of(key)
                assert len(rows) == steps
                assert len(rows.take(range(steps))[next(iter(rows.schema))]) == steps
            for missing in (10**6, "no run", -1):
                with pytest.raises(KeyError, match=f"no run {missing!r} - at "):
                    store.steps_of(missing)
            store.close()
            with pytest.raises(ValueError, match="closed"):
                store.steps_of(found[0][0])

    def test_a_query_that_never_ends(self, path: Path) -> None:
        if store := self.queried(path):
            for call in (store.query, store.where):
                sql = ENDLESS if call == store.query else f"({ENDLESS}) > 0"
                assert in_fork(partial(interrupted, partial(call, sql))) == "KeyboardInterrupt"
                late = partial(call, sql, timeout_s=60)
                assert in_fork(partial(interrupted_anywhere, late)) == {"KeyboardInterrupt"}
                with pytest.raises(TimeoutError, match=r"not done within 0\.01 s"):
                    call(sql, timeout_s=0.01)
                # Few steps of SQLite, of which each takes long.
                slow = "SELECT count(*) FROM n WHERE randomblob(5000000) LIKE '%a%'"
                slow = f"WITH n(i) AS (VALUES (1){', (1)' * 99}) {slow}"
                with pytest.raises(TimeoutError, match="not done within"):
                    call(slow if call == store.query else f"({slow}) > 0", timeout_s=0.01)
                with pytest.raises(TimeoutError, match="not done within"):
                    call(slow if call == store.query else f"({slow}) > 0", timeout_s=1e-9)
                one = "SELECT 1" if call == store.query else "1"
                assert call(one, timeout_s=60)
                for seconds in (0, -1, float("nan")):
                    with pytest.raises(ValueError, match="timeout_s must be above 0"):
                        call(one, timeout_s=seconds)

    def test_nobody_waits_for_a_query(self, path: Path) -> None:
        """Neither other threads, nor a process that forks."""
        store = self.queried(path)
        if store is None:
            return
        ended = []

        def work() -> None:
            ended.append(raised(lambda: store.query(ENDLESS)))

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        assert thread.ident is not None
        while True:  # until it is inside
            frame = sys._current_frames()[thread.ident]
            if frame.f_code.co_filename.endswith("files/catalog.py"):
                break
        assert store.query("SELECT 1 AS one").rows == [(1,)]
        assert len(store.where("1")) == len(store)
        assert in_fork(lambda: len(store.where("1"))) == len(store)
        assert not ended
        ident = ctypes.c_ulong(thread.ident)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(KeyboardInterrupt))
        thread.join()
        assert ended == ["KeyboardInterrupt"]
