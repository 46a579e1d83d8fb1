"""Pages of one episode that need no server, opened from a disk in a real browser."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect

import stepwell as sw
from stepwell.viewer.export import bundle, episode_html, export_episode
from tests import ROOT
from tests.viewer.conftest import TIMEOUT_MS, watched
from tests.viewer.drawn import NAUGHTY, SIDE, picture, wait_for, wait_past, write_drawn

STATIC = ROOT / "src" / "stepwell" / "viewer" / "static"


@pytest.fixture
def alone(browser: Browser) -> Iterator[Page]:
    """A page of a browser without a network."""
    context = browser.new_context(offline=True)
    context.set_default_timeout(TIMEOUT_MS)
    with watched(context) as page:
        yield page
    context.close()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sw.StepReader]:
    with sw.StepReader.open(write_drawn(tmp_path_factory.mktemp("drawn") / "s", [40, 90])) as made:
        yield made


def test_it_plays_from_a_disk(alone: Page, store: sw.StepReader, tmp_path: Path) -> None:
    folder = export_episode(store, 1, tmp_path / "a page" / "of one")
    alone.goto((folder / "index.html").as_uri() + "#step=40")
    wait_for(alone, 1, 40)
    alone.keyboard.press("Space")
    wait_past(alone, 50)
    alone.keyboard.press("Space")
    alone.keyboard.press("End")
    wait_for(alone, 1, 89)
    alone.keyboard.press("Home")
    wait_for(alone, 1, 0)
    expect(alone.locator(".sp-columns")).to_contain_text(NAUGHTY)
    assert alone.evaluate("window.hacked") is None


def test_it_has_many_chunks(alone: Page, tmp_path: Path) -> None:
    with sw.StepWriter(tmp_path / "steps", [("frame", "u1", (256, 256, 3))]) as writer:
        frames = np.zeros((70, 256, 256, 3), np.uint8)
        for step in range(70):
            frames[step] = picture(1, step)[0, 0]
        writer.append({"frame": frames})
    with sw.open(tmp_path / "steps") as reader:
        folder = export_episode(reader, 0, tmp_path / "page")
    assert len(list((folder / "chunks").iterdir())) > 3
    alone.goto((folder / "index.html").as_uri())
    wait_for(alone, 1, 0)
    for key, step in (("End", 69), ("5", 35), ("Home", 0)):
        alone.keyboard.press(key)
        wait_for(alone, 1, step)
    (folder / "chunks" / "63.js").unlink()
    alone.reload()
    wait_for(alone, 1, 0)
    alone.keyboard.press("End")
    expect(alone.get_by_role("alert")).to_contain_text("expected the file chunks/63.js")
    alone.keyboard.press("Home")
    wait_for(alone, 1, 0)


def test_what_is_there_is_not_touched(store: sw.StepReader, tmp_path: Path) -> None:
    (tmp_path / "page").mkdir()
    export_episode(store, 0, tmp_path / "page")  # nothing is in it
    before = {path: path.read_bytes() for path in (tmp_path / "page").rglob("*") if path.is_file()}
    with pytest.raises(FileExistsError, match="expected a new folder"):
        export_episode(store, 1, tmp_path / "page")
    with pytest.raises(KeyError, match="no run '7'"):
        export_episode(store, 7, tmp_path / "other")
    assert before == {
        path: path.read_bytes() for path in (tmp_path / "page").rglob("*") if path.is_file()
    }
    assert [path.name for path in tmp_path.iterdir()] == ["page"]


def test_a_page_in_a_notebook(alone: Page, store: sw.StepReader) -> None:
    alone.set_content(episode_html(store, 0))
    wait_for(alone, 0, 0)
    alone.keyboard.press("End")
    wait_for(alone, 0, 39)


def test_a_long_run_is_cut_in_a_notebook(
    alone: Page, store: sw.StepReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepwell.viewer.export._INLINE_BYTES", 1)
    with sw.StepWriter(tmp_path / "s", [("frame", "u1", (SIDE, SIDE, 3))]) as writer:
        writer.append({"frame": np.stack([picture(3, step) for step in range(6000)])})
    with sw.open(tmp_path / "s") as reader:
        alone.set_content(episode_html(reader, 0))
    wait_for(alone, 3, 0)
    expect(alone.locator(".sp-damage")).to_have_text(
        "The first 1,024 of 6,000 steps are in this page."
    )
    alone.keyboard.press("End")
    wait_for(alone, 3, 1023)


def test_modules_are_those_that_a_script_can_be_made_of() -> None:
    script = bundle("page")
    assert not re.search(r"^\s*(import|export)\b", script, re.MULTILINE)
    assert "</script" not in script
    for path in STATIC.glob("*.js"):  # what the page does not use must be understood as well
        for line in path.read_text().splitlines():
            if line.startswith("import "):
                assert re.fullmatch(r'import \{ [\w, ]+ \} from "(\./|stepwell/)\w+\.js";', line)


def test_nothing_is_fetched_from_elsewhere() -> None:
    for path in STATIC.iterdir():
        found = re.findall(r"\b(?:https?:)?//[\w.]+\.\w+", path.read_text())
        assert set(found) <= {"http://www.w3.org"}, path.name
