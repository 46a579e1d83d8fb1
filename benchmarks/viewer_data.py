"""What the viewer is measured with: stores, a server in a process of its own, a real browser.

Stores are kept in bench-data for the next run.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

import stepwell as sw
from benchmarks import replay_data
from benchmarks.rows import FOLDER

STEPS = 6000
"""Of one long episode of Atari."""
EPISODES, EPISODE_STEPS = 40, 300
"""Of episodes to click through."""
GAMES = 12
ROWS = 100_000_000
LARGE = 4
"""Records of 100 MB."""
_OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


def stores(runs: int) -> dict[str, Path]:
    """A path for each name, made where it is missing."""
    wanted: dict[str, tuple[str, Callable[[Path], None]]] = {
        "atari": (f"viewer-atari-{STEPS}", _atari),
        "games": (f"viewer-games-{GAMES}.a2pack", _games),
        "runs": (f"viewer-runs-{runs}", lambda path: _runs(path, runs)),
        "rows": (f"viewer-rows-{ROWS}.npy", lambda path: _rows(path, ROWS)),
        "few rows": ("viewer-rows-1000.npy", lambda path: _rows(path, 1000)),
        "steps": (f"viewer-steps-{ROWS}", lambda path: _steps(path, ROWS)),
        "few steps": ("viewer-steps-1000", lambda path: _steps(path, 1000)),
        "large": (f"viewer-large-{LARGE}", _large),
    }
    FOLDER.mkdir(exist_ok=True)
    found = {}
    for name, (file, make) in wanted.items():
        found[name] = path = FOLDER / file
        if not path.exists():
            beside = path.with_name(f"new-{path.name}")
            shutil.rmtree(beside, ignore_errors=True)
            beside.unlink(missing_ok=True)
            make(beside)
            beside.rename(path)
    return found


def _atari(path: Path) -> None:
    """A long episode, and many shorter ones."""
    played = replay_data.all_played()
    with sw.ReplayWriter(path, "long") as writer:
        for step in played.around(STEPS):
            writer.record_step(**step)
    with sw.ReplayWriter(path, "short") as writer:
        for number, step in enumerate(played.around(EPISODES * EPISODE_STEPS), 1):
            writer.record_step(**step, terminated=number % EPISODE_STEPS == 0)


def _games(path: Path) -> None:
    runs = path.with_name("new-viewer-runs")
    sw.game2048.play_to(runs, games=GAMES, depth=1, seed=7)
    sw.convert(runs, path, to="pack")
    shutil.rmtree(runs)


def _runs(path: Path, count: int) -> None:
    random = np.random.default_rng(0)
    scores = random.gamma(4, 3000, count).astype(np.int64)
    columns = {"score": int, "engine": str, "mean": float}
    with sw.StepWriter(path, [("obs", "<f4", (4,)), ("reward", "<f4")], columns=columns) as writer:
        for score in scores.tolist():
            steps = np.zeros((3, 4), "f4")
            given = {"obs": steps, "reward": steps[:, 0]}
            writer.append(given, score=score, engine=f"engine-{score % 7}", mean=score / 3)


def _rows(path: Path, count: int) -> None:
    """An array of zeros that takes no room on the disk."""
    header = path.with_suffix(".header")
    with header.open("wb") as file:
        about = {"descr": "<f8", "fortran_order": False, "shape": (count, 4)}
        np.lib.format.write_array_header_1_0(file, about)
    header.rename(path)
    os.truncate(path, path.stat().st_size + count * 32)


def _steps(path: Path, count: int) -> None:
    """A step dataset of ten runs."""
    random = np.random.default_rng(0)
    with sw.StepWriter(path, [("x", "<f2")], columns={"score": int}) as writer:
        for score in range(10):
            writer.append({"x": random.random(count // 10, "f4").astype("f2")}, score=score)


def _large(path: Path) -> None:
    random = np.random.default_rng(0)
    with sw.RecordWriter(path, {"bytes": sw.Field("u1", ragged=True)}) as writer:
        for _ in range(LARGE):
            writer.append({"bytes": [random.integers(0, 256, 100_000_000, "u1")]})
            writer.commit()


class Served:
    """`stepwell view` in a process of its own."""

    def __init__(self, process: "subprocess.Popen[str]", url: str, paths: list[str]) -> None:
        self.pid, self.address = process.pid, url
        self.base = url.partition("/?")[0]
        self._paths = paths

    def number(self, path: Path) -> int:
        """Of a store, in addresses."""
        return self._paths.index(str(path.absolute()))

    def anonymous_bytes(self) -> int:
        """Memory that is its own, not pages of files, which the system takes back as it likes."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition("RssAnon:")[2].split()[0]) * 1024


@contextmanager
def serving(*paths: Path) -> Iterator[Served]:
    command = "import sys; from stepwell.cli import main; main()"
    given = ["view", *map(str, paths), "--no-open", "--port=0", "--json"]
    process = subprocess.Popen(
        [sys.executable, "-c", command, *given], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        text = ""
        while not text.rstrip().endswith("}"):
            line = process.stdout.readline()
            if not line:
                raise OSError("the viewer ended before it had an address")
            text += line
        about = json.loads(text)
        yield Served(process, about["url"], about["stores"])
    finally:
        process.terminate()
        process.wait()


@contextmanager
def chromium() -> Iterator[Browser]:
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        raise SystemExit("expected chromium, there is none: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_OPTIONS)
        yield browser
        browser.close()


def window(browser: Browser, served: Served, **options: Any) -> BrowserContext:
    """A window without a memory of its own that the viewer lets in."""
    made = browser.new_context(viewport={"width": 1280, "height": 800}, **options)
    made.set_default_timeout(60_000)
    made.request.get(served.address)
    return made


@contextmanager
def page(browser: Browser, served: Served, address: str) -> Iterator[Page]:
    """A page in a window of its own."""
    context = window(browser, served)
    made = context.new_page()
    made.goto(served.base + address)
    yield made
    context.close()
