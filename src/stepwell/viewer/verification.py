"""Full checks of stores that pages start: each in a thread of its own, seen by every browser."""

import threading
from weakref import WeakKeyDictionary

from stepwell.store import Report, Store
from stepwell.viewer.shelf import Entry


class _Stopped(Exception):
    """Raised out of `verify` by its progress."""


class Verification:
    """One `verify` of a store. It stops where it next reports progress once it is cancelled."""

    def __init__(self, store: Store) -> None:
        self.done = self.total = 0
        self.report: Report | None = None
        self.error: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(store,), name="stepwell verify", daemon=True
        )

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    @property
    def stopped(self) -> bool:
        """Whether it was cancelled before its end."""
        return self._stop.is_set() and self.report is None

    def cancel(self) -> None:
        """Have it end soon."""
        self._stop.set()

    def join(self) -> None:
        """Wait for its end."""
        self._thread.join()

    def _run(self, store: Store) -> None:
        try:
            self.report = store.verify(progress=self._progress)
        except _Stopped:
            pass
        except Exception as error:  # shown by whoever looks
            self.error = error

    def _progress(self, done: int, total: int) -> None:
        self.done, self.total = done, total
        if self._stop.is_set():
            raise _Stopped


_lock = threading.Lock()
_last: WeakKeyDictionary[Entry, Verification] = WeakKeyDictionary()


def last(entry: Entry) -> Verification | None:
    """The check of a store that runs, or was the last to."""
    return _last.get(entry)


def start(entry: Entry) -> Verification:
    """Begin a check, unless one is under way: then that one."""
    store = entry.store
    with _lock:
        known = _last.get(entry)
        if known is None or not known.running:
            known = Verification(store)
            known._thread.start()  # before others see it: one that does not run has ended
            _last[entry] = known
        return known
