"""Viewers, a store of each kind with runs, and a real browser.

    page             a new page of Chromium; errors of its scripts fail the test
    viewer_of        viewer_of(path) shows a store; returns the address of its page

Playwright has a loop of its own running in this thread for as long as there is a browser, so tests
of this folder cannot use `asyncio.run` in it.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

import stepwell as sw
from stepwell.game2048 import play
from stepwell.store import Store
from tests import SANITIZED, packs, replays
from tests.viewer.serving import Viewer, serving

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--mute-audio"]
TIMEOUT_MS = 20_000  # of a condition that is waited for; other tests share the machine

ViewerOf = Callable[[Path | Store], str]


@pytest.fixture(scope="module")
def viewer() -> Iterator[Viewer]:
    with serving() as made:
        yield made


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of each kind."""
    root = tmp_path_factory.mktemp("stores")
    fields = [("obs", "<f4", (2,)), ("reward", "<f8"), ("big", "<u8"), ("flag", "?"), ("h", "<f2")]
    columns: dict[str, Any] = {"score": int, "name": sw.stores.RunColumn(str, optional=True)}
    with sw.StepWriter(root / "steps", fields, columns=columns) as writer:
        for run in range(30):
            random, length = np.random.default_rng(run), 5 + run
            writer.append(
                {
                    "obs": random.random((length, 2), "f4"),
                    "reward": random.random(length),
                    "big": random.integers(0, 2**64, length, np.uint64),
                    "flag": random.random(length) > 0.5,
                    "h": random.random(length).astype("f2"),
                },
                score=run * (2**58 if run == 7 else 1),
                name=f"<b>run {run}</b>" if run % 2 else None,
            )
    packs.write(root / "games.a2pack", [run.to_bytes() for run in play(3, depth=1, seed=1)])
    sw.convert(root / "games.a2pack", root / "games", to="steps")
    replays.record_all(root / "replays", "deep", range(20))
    with sw.ReplayWriter(root / "replays", "flat") as replay:
        for number in range(4):
            seen = np.array([number], np.float32)
            replay.record_step(observation=seen, action=number, reward=1.0)
    return root


# Of this folder: where tests of others come in between, the browser ends and its loop with it.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Chromium, without a screen."""
    if SANITIZED:
        pytest.skip("a browser does not start with the sanitizers in its processes")
    if CHROMIUM is None:
        pytest.skip("chromium is not installed, and make test could not install it: make browser")
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        yield made
        made.close()


@pytest.fixture(scope="package")
def shown() -> Iterator[Viewer]:
    """A viewer, of all tests of this folder that need no other."""
    with serving() as made:
        yield made


@pytest.fixture
def viewer_of(shown: Viewer) -> ViewerOf:
    """A function that shows a store and returns the address of its page."""
    base = f"http://127.0.0.1:{shown.server.port}"
    return lambda store: f"{base}/s/{shown.add(store).number}"


@pytest.fixture(scope="package")
def window(browser: Browser, shown: Viewer) -> Iterator[BrowserContext]:
    """A window that `shown` lets in. Its pages share what a browser keeps of a site."""
    made = browser.new_context(viewport={"width": 1280, "height": 800})
    made.set_default_timeout(TIMEOUT_MS)
    made.request.get(shown.server.address)
    yield made
    made.close()


@pytest.fixture
def page(window: BrowserContext) -> Iterator[Page]:
    """A new page. What its scripts raise fails the test."""
    with watched(window) as made:
        yield made


@contextmanager
def watched(window: BrowserContext) -> Iterator[Page]:
    """A page whose scripts must raise nothing, and break no rule that it came with."""
    problems: list[str] = []
    made = window.new_page()
    made.on("pageerror", lambda error: problems.append(str(error)))
    made.on("console", lambda said: problems.append(said.text) if is_refusal(said.text) else None)
    yield made
    made.close()
    assert problems == []


def is_refusal(text: str) -> bool:
    """Whether a browser reports that a page broke the rules that it came with."""
    return "Content Security Policy" in text or "Content-Security-Policy" in text
