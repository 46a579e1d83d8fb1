"""What takes long to answer, or never does: pages report it, and nobody else waits with them."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlencode

import numpy as np
import pytest
from playwright.sync_api import Page, expect

import stepwell as sw
from stepwell.errors import FetchError, FormatError
from stepwell.opening import open_lazily
from stepwell.viewer.server import shelf
from stepwell.viewer.shelf import Entry, Shelf
from tests.query_contract import ENDLESS
from tests.viewer.conftest import ViewerOf
from tests.viewer.serving import Viewer

URL = "s3://bucket/silent"
MANY = 40


class Silent:
    """What is behind a URL: nothing, until it is told what to answer."""

    def __init__(self) -> None:
        self.asked, self.answers = threading.Semaphore(0), threading.Event()
        self.times = 0
        self.answer: sw.Store | Exception = FetchError("no answer", url=URL)

    def open(self, path: str) -> sw.Store:
        self.times += 1
        self.asked.release()
        self.answers.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Silent]:
    made = Silent()
    monkeypatch.setattr(
        "stepwell.viewer.shelf.open_lazily",
        lambda path: made.open(path) if path == URL else open_lazily(path),
    )
    yield made
    made.answers.set()


@pytest.fixture
def entry(silent: Silent) -> Iterator[Entry]:
    """Of the shelf that is served."""
    (made,) = shelf.add(URL)
    yield made
    silent.answers.set()
    shelf.remove(made)


class Bucket(sw.ArraySource):
    """A store that was open before its bucket fell silent."""

    refreshes: Callable[[], bool] = staticmethod(lambda: False)

    def refresh(self) -> bool:
        return self.refreshes()


def test_all_who_wait_have_what_one_look_found(silent: Silent) -> None:
    (entry,) = Shelf().add(URL)
    with ThreadPoolExecutor(MANY) as pool:
        waiting = [pool.submit(lambda: entry.store) for _ in range(MANY)]
        silent.asked.acquire()
        silent.answers.set()
        errors = {waiter.exception() for waiter in waiting}
    assert errors == {silent.answer}
    assert silent.times <= 2  # those that were late have looked once more, together
    silent.answer = store = sw.ArraySource(np.arange(3))
    assert entry.store is store
    assert entry.store is store


def opened_before(silent: Silent, monkeypatch: pytest.MonkeyPatch) -> tuple[Entry, Bucket]:
    monkeypatch.setattr("stepwell.viewer.shelf._REMOTE_REFRESH_S", 0.0)
    (entry,) = Shelf().add(URL)
    silent.answer = store = Bucket(np.arange(3))
    silent.answers.set()
    assert entry.store is store
    return entry, store


def test_what_was_there_is_shown_while_what_is_new_is_waited_for(
    silent: Silent, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry, store = opened_before(silent, monkeypatch)
    monkeypatch.setattr("stepwell.viewer.shelf._PATIENCE_S", 0.0)
    begun, answers, found = (threading.Event() for _ in range(3))

    def refreshes() -> bool:
        begun.set()
        answers.wait()
        return True

    def is_new() -> bool:
        found.set()
        return False

    store.refreshes = refreshes
    assert [entry.store, entry.store, entry.version] == [store, store, 0]
    begun.wait()
    store.refreshes = is_new
    answers.set()
    while not found.is_set():  # until the first refresh has ended, and another one begun
        assert entry.store is store
    assert entry.version == 1


def test_a_bucket_that_falls_silent_is_not_opened_again(
    silent: Silent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which takes as long as the refresh did."""
    entry, store = opened_before(silent, monkeypatch)

    def fails(error: Exception) -> Callable[[], bool]:
        def refreshes() -> bool:
            raise error

        return refreshes

    store.refreshes = fails(FetchError("no answer", url=URL))
    assert entry.store is store
    assert silent.times == 1
    assert "no answer" in str(entry.problem)
    store.refreshes = fails(FormatError("another store is here now"))
    silent.answer = sw.ArraySource(np.arange(4))
    assert entry.store is silent.answer
    assert (silent.times, entry.version) == (2, 1)
    assert not entry.problem


def test_other_stores_are_answered_meanwhile(
    shown: Viewer, silent: Silent, entry: Entry, tmp_path: Path
) -> None:
    np.save(tmp_path / "rows.npy", np.arange(70))
    other = shown.add(tmp_path / "rows.npy").number
    paths = [f"/data/{entry.number}/run", f"/data/{entry.number}/runs", f"/s/{entry.number}/play"]
    with ThreadPoolExecutor(MANY) as pool:
        waiting = [pool.submit(shown.get, paths[i % 3]) for i in range(MANY)]
        silent.asked.acquire()
        assert shown.json(f"/data/{other}/about")["rows"] == 70
        assert shown.get(f"/s/{other}").status_code == 200
        assert shown.get(f"/s/{entry.number}/play").status_code == 200
        silent.answers.set()
        assert {waiter.result().status_code for waiter in waiting} == {200, 422}


@pytest.mark.parametrize("tab", ["", "/runs", "/rows", "/check", "/play", "/play?run=1"])
def test_a_page_reports_what_it_waits_for_and_then_why_it_has_nothing(
    page: Page, shown: Viewer, silent: Silent, entry: Entry, tab: str
) -> None:
    base = f"http://127.0.0.1:{shown.server.port}"
    page.goto(f"{base}/s/{entry.number}{tab}")
    expect(page.get_by_role("status")).to_contain_text(f"Waiting for {URL}, ")
    silent.answers.set()
    expect(page.get_by_role("alert")).to_contain_text(f"no answer - at {URL}")
    expect(page.get_by_role("status").filter(has_text="Waiting")).to_have_count(0)


def test_a_condition_without_an_end_finds_no_run_to_play(
    page: Page, viewer_of: ViewerOf, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepwell.viewer.listing.TIMEOUT_S", 0.5)
    page.goto(viewer_of(folder / "steps") + "/play?" + urlencode({"where": f"({ENDLESS}) > 0"}))
    expect(page.get_by_role("alert")).to_contain_text("not done within 0.5 s")


def test_a_store_that_answers_late_is_played(
    page: Page, shown: Viewer, silent: Silent, entry: Entry, folder: Path
) -> None:
    """The player comes when the page is there already."""
    silent.answer = sw.open(folder / "games.a2pack")
    page.goto(f"http://127.0.0.1:{shown.server.port}/s/{entry.number}/play?run=1&step=2")
    expect(page.get_by_role("status")).to_contain_text(f"Waiting for {URL}, ")
    silent.answers.set()
    page.wait_for_function("window.stepwellStats?.drawn > 0")
    assert page.evaluate("[stepwellPlayer.keys[0], stepwellPlayer.step]") == ["1", 2]
