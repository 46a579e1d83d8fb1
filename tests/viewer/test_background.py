"""What pages do in threads of their own: full checks, and trials of the loader."""

import threading
from pathlib import Path

import numpy as np
import pytest

import stepwell as sw
from stepwell.batches import Progress
from stepwell.store import Report
from stepwell.viewer import verification
from stepwell.viewer.shelf import Entry, Shelf
from stepwell.viewer.trial import Trial, latency_bins
from stepwell.viewer.verification import Verification


class Endless(sw.ArraySource):
    """A store whose full check goes on until it is stopped."""

    began: threading.Event

    def _verified(self, quick: bool, progress: Progress) -> Report:
        if quick:
            return super()._verified(quick, progress)
        done = 0
        while True:
            progress(done, 1 << 40)
            done += 1
            self.began.set()


def endless() -> Endless:
    store = Endless(np.arange(10))
    store.began = threading.Event()
    return store


def entry_of(store: sw.Store) -> Entry:
    return Shelf().add_store(store)


def finished(entry: Entry) -> Verification:
    begun = verification.start(entry)
    begun.join()
    return begun


def test_a_full_check_reports_what_verify_does(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(10))
    entry = Shelf([str(tmp_path / "a.npy")])[0]
    done = finished(entry)
    assert done.report == entry.store.verify()
    assert (done.running, done.stopped, done.error) == (False, False, None)
    assert done.done == done.total == 10
    assert verification.last(entry) is done


def test_a_check_can_be_cancelled_and_begun_again() -> None:
    store = endless()
    entry = entry_of(store)
    first = verification.start(entry)
    assert store.began.wait(60)
    assert verification.start(entry) is first  # of another browser
    assert first.running
    assert first.total == 1 << 40
    first.cancel()
    first.join()
    assert (first.stopped, first.report, first.error) == (True, None, None)
    second = verification.start(entry)
    assert second is not first
    second.cancel()
    second.join()


def test_a_check_is_seen_once_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    store = endless()
    entry, seen, begin = entry_of(store), [], threading.Thread.start

    def started(thread: threading.Thread) -> None:
        seen.append(verification.last(entry))
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", started)
    verification.start(entry).cancel()
    assert seen == [None]  # one that is seen and does not run has been cancelled, for a page


def test_a_check_that_fails_has_the_error() -> None:
    class Failing(sw.ArraySource):
        def _verified(self, quick: bool, progress: Progress) -> Report:
            raise OSError("the disk is gone")

    done = finished(entry_of(Failing(np.arange(3))))
    assert str(done.error) == "the disk is gone"
    assert done.report is None
    assert not done.stopped


def tried(source: sw.Source, batch: int = 10) -> Trial:
    trial = Trial(source, batch, seconds=0.02)
    trial.start()
    trial.join()
    return trial


def test_a_trial_has_both_and_their_latencies() -> None:
    trial = tried(sw.ArraySource({"x": np.zeros((1000, 4), "f4"), "y": np.arange(1000)}))
    assert trial.error is None
    assert trial.phase == "done"
    assert trial.loader is not None
    assert trial.numpy is not None
    for each in (trial.loader, trial.numpy):
        assert each.rows == 10 * len(each.latencies_s)
        assert each.bytes == each.rows * 24
        assert each.rows_per_s == each.rows / each.seconds
        assert each.latencies_s.sum() == pytest.approx(each.seconds)
    edges, ours, other = latency_bins(trial)
    assert len(ours) == len(other) == len(edges) - 1
    assert sum(ours) == pytest.approx(1)
    assert sum(other) == pytest.approx(1)
    assert (trial.note, trial.alike) == ("", True)


def test_a_trial_of_some_fields_is_no_comparison(tmp_path: Path) -> None:
    with sw.RecordWriter(tmp_path / "records", {"text": str, "x": "<i4"}) as writer:
        writer.append({"text": ["a", "bc"] * 20, "x": np.arange(40, dtype="i4")})
    trial = tried(sw.RecordReader.open(tmp_path / "records"))
    assert trial.numpy is not None
    assert not trial.alike
    assert trial.note == "NumPy: x only, the other fields have no fixed length."


def test_a_trial_without_arrays_has_no_numpy(tmp_path: Path) -> None:
    with sw.RecordWriter(tmp_path / "records", {"text": str}) as writer:
        writer.append({"text": ["a", "bc"] * 20})
    trial = tried(sw.RecordReader.open(tmp_path / "records"))
    assert trial.loader is not None
    assert trial.numpy is None
    assert trial.note == "NumPy has no array for rows of different lengths."
    _, ours, other = latency_bins(trial)
    assert sum(ours) == pytest.approx(1)
    assert other == []


def test_a_trial_of_nothing_is_an_error() -> None:
    trial = tried(sw.ArraySource(np.empty(0)))
    assert str(trial.error) == "expected rows to read, got none"


def test_a_trial_can_be_cancelled() -> None:
    trial = Trial(sw.ArraySource(np.arange(1000)), 10, seconds=1e9)
    trial.start()
    trial.cancel()
    trial.join()
    assert trial.stopped
    assert trial.numpy is None
