"""Lists of runs at odd addresses and of damaged stores, in a real browser."""

from pathlib import Path

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


def test_runs_beside_a_damaged_one_are_listed_and_play(
    page: Page, viewer_of: ViewerOf, folder: Path, tmp_path: Path
) -> None:
    address = viewer_of(damaged_games(folder, tmp_path / "games.a2pack"))
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
