"""Lists of runs at odd addresses and of damaged stores, in a real browser."""

import re
from pathlib import Path

import numpy as np
from playwright.sync_api import Page, expect

import stepwell as sw
from tests.viewer.conftest import ViewerOf
from tests.viewer.test_changes import damaged_games
from tests.viewer.test_pages import column, opened

RUNS = 120


def test_a_page_behind_the_end_is_the_last_one(
    page: Page, viewer_of: ViewerOf, tmp_path: Path
) -> None:
    with sw.StepWriter(tmp_path / "steps", [("x", "<i4")], columns={"score": int}) as writer:
        for run in range(RUNS):
            writer.append({"x": [run]}, score=-run)
    address = viewer_of(tmp_path / "steps")
    for number in (4, 10**18 - 1):
        opened(page, address, f"/runs?sort=score&desc=1&page={number}")
        expect(page.locator(".q-table__bottom")).to_contain_text("101-120 of 120")
        assert column(page, "score") == [str(-n) for n in range(100, RUNS)]


def test_numbers_are_words_that_fit(page: Page, viewer_of: ViewerOf, tmp_path: Path) -> None:
    with sw.StepWriter(tmp_path / "many", [("x", "<i4")], columns={"score": int}) as writer:
        for run in range(1001):
            writer.append({"x": [run]}, score=run)
    opened(page, viewer_of(tmp_path / "many"), "/runs?page=2")
    expect(page.locator(".q-table__bottom")).to_contain_text("51-100 of 1,001")
    button = page.locator(".sw-bar .q-btn")
    expect(button).to_contain_text("Choose two to play side by side")
    for i in range(2):
        page.locator("tbody .q-checkbox").nth(i).click()
    expect(button).to_contain_text("Play side by side")
    expect(page.locator(".q-table__bottom")).not_to_contain_text("selected")

    with sw.StepWriter(tmp_path / "none", [("x", "<f4", (300,))], columns={"score": int}):
        pass
    opened(page, viewer_of(tmp_path / "none"), "/runs")
    expect(page.locator(".q-table__bottom")).to_contain_text("There are no runs yet.")
    opened(page, viewer_of(tmp_path / "none"), "/play")
    alert = page.get_by_role("alert").bounding_box()
    assert alert is not None
    assert alert["x"] >= 10  # not at the edge of the window

    with sw.StepWriter(tmp_path / "one", [("x", "<f4", (300,))], columns={"score": int}) as writer:
        writer.append({"x": np.ones((1, 300), "f4")}, score=1)
    opened(page, viewer_of(tmp_path / "one"), "/rows")
    expect(page.locator(".sw-bar > div").first).to_have_text("1 row")
    expect(page.locator("tbody")).to_contain_text("the first 256 of 300")


def test_a_long_mistake_is_cut_in_the_middle(page: Page, viewer_of: ViewerOf, folder: Path) -> None:
    opened(page, f"{viewer_of(folder / 'steps')}/runs?sort=nothing")
    expect(page.get_by_role("alert")).to_contain_text("expected one of")
    box = page.get_by_label("Condition")
    box.fill("score > 1 AND " * 500 + "nonsense")
    box.press("Enter")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("no such column: nonsense; the columns are id")
    assert len(alert.inner_text()) < 1000
    box.fill("score > 1")
    box.press("Enter")
    expect(alert).to_have_count(0)  # the order that is none is not asked for again
    expect(page.locator(".sw-bar > div").first).to_contain_text("runs fit")


def test_runs_beside_a_damaged_one_are_listed_and_play(
    page: Page, viewer_of: ViewerOf, folder: Path, tmp_path: Path
) -> None:
    address = viewer_of(damaged_games(folder, tmp_path / "games.a2pack"))
    opened(page, address)
    expect(page.locator(".sw-figures > div").last).to_have_text(re.compile("^damaged"))
    opened(page, address, "/runs")
    expect(page.get_by_role("alert")).to_contain_text("entry 1")
    highest = column(page, "highest_tile")
    assert [each == "-" for each in highest] == [False, True, False]
    page.get_by_role("link", name="2", exact=True).click()
    page.wait_for_url("**/play?run=2**")
    expect(page.locator(".sp-cell", has_text="score").locator("dd")).not_to_have_text("\N{EN DASH}")
    page.keyboard.press("p")
    expect(page.locator(".sp-damage.sp-shown")).to_contain_text("entry 1")
    page.keyboard.press("p")
    expect(page.get_by_role("heading", level=2)).to_have_text("0")
