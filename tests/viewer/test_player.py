"""The player, in a real browser: what is on its canvas, and what keys and clicks do."""

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

import numpy as np
import pytest
from playwright.sync_api import BrowserContext, Page, Route, expect

import stepwell as sw
from stepwell.game2048 import UP, play
from tests import packs
from tests.replays import flipped
from tests.viewer.conftest import ViewerOf, watched
from tests.viewer.drawn import NAUGHTY, picture, seen, wait_for, wait_past, write_drawn
from tests.viewer.serving import Viewer

LENGTHS = [60, 300, 30, 120]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_drawn(tmp_path_factory.mktemp("drawn") / "steps", LENGTHS)


@pytest.fixture(scope="module")
def opened(window: BrowserContext, shown: Viewer, drawn: Path) -> Iterator[Page]:
    number = shown.add(drawn).number
    with watched(window) as page:
        page.goto(f"http://127.0.0.1:{shown.server.port}/s/{number}/play?run=1")
        yield page


@pytest.fixture
def player(opened: Page) -> Page:
    """Run 1, of 300 steps, at its beginning. Tests share the page: loading one takes a second."""
    opened.wait_for_function("window.stepwellPlayer !== undefined")
    opened.evaluate(
        """async () => { document.querySelectorAll("dialog").forEach((each) => each.close());
             stepwellPlayer.setRate(30);
             await stepwellPlayer.load("1");
             for (const name of ["drawn", "late", "skipped"]) stepwellStats[name] = 0; }"""
    )
    wait_for(opened, 1, 0)
    return opened


def hud(page: Page, name: str, place: int = 0) -> str:
    cells = (
        page.locator(".sp-screen")
        .nth(place)
        .locator(".sp-cell", has=page.locator(f"dt:text-is('{name}')"))
    )
    return cells.locator("dd").inner_text()


def wait_for_address(page: Page, **wanted: str) -> None:
    page.wait_for_function(
        """(wanted) => Object.entries(wanted).every(([name, value]) =>
             new URL(location.href).searchParams.get(name) === value)""",
        arg=wanted,
    )


def test_it_plays_and_pauses(player: Page) -> None:
    expect(player.get_by_role("button", name="Play", exact=True)).to_be_visible()
    player.keyboard.press("Space")
    expect(player.get_by_role("button", name="Pause")).to_be_visible()
    wait_past(player, 20)
    player.get_by_role("button", name="Pause").click()
    step = player.evaluate("stepwellPlayer.step")
    assert 20 < step < 299
    wait_for(player, 1, step)
    wait_for_address(player, run="1", step=str(step))
    player.keyboard.press("Space")  # also after a click on a button
    wait_past(player, step)


def test_it_stops_behind_the_last_step_and_begins_again(player: Page) -> None:
    player.keyboard.press("9")
    player.get_by_label("Steps a second").select_option("240")
    player.keyboard.press("Space")
    wait_for(player, 1, 299)
    expect(player.get_by_role("button", name="Play", exact=True)).to_be_visible()
    player.keyboard.press("Space")
    player.wait_for_function("stepwellPlayer.step < 250")


def test_keys_seek(player: Page) -> None:
    field = player.get_by_label("Step", exact=True).and_(player.locator("input"))
    for keys, step in {
        "End": 299,
        "End ArrowRight": 299,
        "Home": 0,
        "ArrowLeft": 0,
        "5": 150,
        "9": 269,
        "0": 0,
        "ArrowRight ArrowRight": 2,
        "Home Shift+ArrowRight Shift+ArrowRight Shift+ArrowRight": 30,
        "End ArrowLeft Shift+ArrowLeft": 288,
    }.items():
        for key in keys.split():
            player.keyboard.press(key)
        wait_for(player, 1, step)
        expect(field).to_have_value(str(step))
        wait_for_address(player, step=str(step))


def test_keys_that_are_typed_into_a_field_are_text(player: Page) -> None:
    field = player.get_by_label("Step", exact=True).and_(player.locator("input"))
    field.fill("77")
    field.press("Enter")
    wait_for(player, 1, 77)
    assert player.evaluate("stepwellPlayer.playing") is False


def test_a_page_of_keys_comes_and_goes(player: Page) -> None:
    player.keyboard.press("?")
    expect(player.get_by_role("dialog", name="Keys")).to_be_visible()
    player.keyboard.press("Escape")
    expect(player.get_by_role("dialog", name="Keys")).to_be_hidden()


def test_rates(player: Page) -> None:
    rate = player.get_by_label("Steps a second")
    rate.select_option("60")
    player.keyboard.press("+")
    expect(rate).to_have_value("120")
    for _ in range(20):
        player.keyboard.press("-")
    expect(rate).to_have_value("1")
    rate.select_option("600")  # every tenth step, at most
    player.keyboard.press("Space")
    wait_for(player, 1, 299)
    assert player.evaluate("stepwellStats.drawn") < 200


def test_scrubbing(player: Page) -> None:
    bar = player.get_by_role("slider", name="Step")
    box = bar.bounding_box()
    assert box is not None
    room = box["width"] - 20

    def at(share: float) -> tuple[float, float]:
        return box["x"] + 10 + share * room, box["y"] + 20

    player.mouse.move(*at(0.25))
    player.mouse.down()
    wait_for(player, 1, round(0.25 * 299))
    player.mouse.move(*at(0.5), steps=4)
    player.mouse.move(*at(0.8), steps=4)
    wait_for(player, 1, round(0.8 * 299))
    player.mouse.up()
    wait_for_address(player, step=str(round(0.8 * 299)))
    expect(bar).to_have_attribute("aria-valuenow", str(round(0.8 * 299)))
    expect(bar).to_have_attribute("aria-valuemax", "299")


def test_scrubbing_while_it_plays_goes_on_playing(player: Page) -> None:
    player.keyboard.press("Space")
    wait_past(player, 2)
    box = player.get_by_role("slider", name="Step").bounding_box()
    assert box is not None
    player.mouse.click(box["x"] + box["width"] / 2, box["y"] + 10)
    wait_past(player, 160)
    assert player.evaluate("stepwellPlayer.playing") is True


def test_every_step_is_drawn_in_order(player: Page) -> None:
    """None is left out, none twice, at a rate that a display has."""
    player.evaluate(
        """() => { window.seenSteps = [];
                   const keep = ({ detail }) => seenSteps.push(detail.step);
                   stepwellPlayer.addEventListener("step", keep); }"""
    )
    player.keyboard.press("Space")
    wait_for(player, 1, 40)
    player.keyboard.press("Space")
    found = player.evaluate("seenSteps")
    late = player.evaluate("stepwellStats.skipped")
    assert found == sorted(set(found))
    assert len(found) >= found[-1] - found[0] + 1 - late  # a busy machine may leap, and counts it


def test_a_link_leads_to_a_step(page: Page, viewer_of: ViewerOf, drawn: Path) -> None:
    page.goto(f"{viewer_of(drawn)}/play?run=3&step=37")
    wait_for(page, 3, 37)
    assert hud(page, "action") == str(37 % 5)
    assert hud(page, "reward") == "0"
    assert hud(page, "return") == "4"


def test_a_step_behind_the_end_is_the_last_one(
    page: Page, viewer_of: ViewerOf, drawn: Path
) -> None:
    page.goto(f"{viewer_of(drawn)}/play?run=2&step=1000")
    wait_for(page, 2, 29)


def test_next_and_previous_follow_filter_and_order(
    page: Page, viewer_of: ViewerOf, drawn: Path
) -> None:
    where = quote("num_steps > 30")  # runs 1, 3, 0 by length
    page.goto(f"{viewer_of(drawn)}/play?run=3&where={where}&sort=num_steps&desc=1")
    wait_for(page, 3, 0)
    expect(page.get_by_text("2 of 3")).to_be_visible()
    page.get_by_role("button", name="Next episode").click()
    wait_for(page, 0, 0)
    expect(page.get_by_role("button", name="Next episode")).to_be_disabled()
    page.keyboard.press("p")
    wait_for(page, 3, 0)
    page.keyboard.press("p")
    wait_for(page, 1, 0)
    expect(page.get_by_role("button", name="Previous episode")).to_be_disabled()
    wait_for_address(page, run="1")
    assert parse_qs(urlsplit(page.url).query)["where"] == ["num_steps > 30"]


def test_without_a_run_it_is_the_first_of_the_list(
    page: Page, viewer_of: ViewerOf, drawn: Path
) -> None:
    page.goto(f"{viewer_of(drawn)}/play?sort=num_steps")
    wait_for(page, 2, 0)


def test_two_side_by_side(page: Page, viewer_of: ViewerOf, drawn: Path) -> None:
    page.goto(f"{viewer_of(drawn)}/play?run=0&beside=2&step=20")
    wait_for(page, 0, 20, place=0)
    wait_for(page, 2, 20, place=1)
    assert [hud(page, "action", place) for place in (0, 1)] == ["0", "0"]
    page.keyboard.press("End")  # of the longer one
    wait_for(page, 0, 59, place=0)
    wait_for(page, 2, 29, place=1)
    expect(page.locator(".sp-screen").nth(1)).to_have_class(re.compile("sp-over"))
    page.keyboard.press("Home")
    page.keyboard.press("Space")
    page.wait_for_function("stepwellPlayer.step > 10")
    page.keyboard.press("Space")
    step = page.evaluate("stepwellPlayer.step")
    wait_for(page, 0, step, place=0)
    wait_for(page, 2, min(step, 29), place=1)


def test_beside_one_that_is_not_there(page: Page, viewer_of: ViewerOf, drawn: Path) -> None:
    page.goto(f"{viewer_of(drawn)}/play?run=1&beside=99&step=7")
    wait_for(page, 1, 7)
    expect(page.get_by_role("alert")).to_have_text(re.compile("no run '99'"))
    expect(page.locator(".sp-screen")).to_have_count(1)


def test_the_next_one_is_beside_the_same(page: Page, viewer_of: ViewerOf, drawn: Path) -> None:
    page.goto(f"{viewer_of(drawn)}/play?run=0&beside=2")
    wait_for(page, 2, 0, place=1)
    page.keyboard.press("n")
    wait_for(page, 1, 0, place=0)
    wait_for(page, 2, 0, place=1)
    wait_for_address(page, run="1", beside="2")
    expect(page).to_have_title(f"1 · {drawn.name} · stepwell")


def test_a_second_one_is_chosen_from_a_list(player: Page) -> None:
    player.get_by_role("button", name="Side by side").click()
    dialog = player.get_by_role("dialog", name="Choose an episode")
    expect(dialog.get_by_role("button")).to_have_count(3)
    dialog.get_by_label("Which episodes, in SQL").fill("num_steps = ")
    dialog.get_by_label("Which episodes, in SQL").press("Enter")
    expect(dialog.get_by_role("status")).to_contain_text("ends too early")
    dialog.get_by_label("Which episodes, in SQL").fill("num_steps = 120")
    dialog.get_by_label("Which episodes, in SQL").press("Enter")
    expect(dialog.get_by_role("button")).to_have_count(1)
    dialog.get_by_role("button").click()
    wait_for(player, 3, 0, place=1)
    wait_for_address(player, run="1", beside="3")
    player.get_by_role("button", name="Side by side").click()
    expect(player.locator(".sp-screen")).to_have_count(1)


def test_boards_have_their_moves_and_values(
    page: Page, viewer_of: ViewerOf, tmp_path: Path
) -> None:
    packs.write(tmp_path / "games.a2pack", [run.to_bytes() for run in play(2, depth=1, seed=3)])
    sw.convert(tmp_path / "games.a2pack", tmp_path / "games", to="steps")
    step = 40
    with sw.open(tmp_path / "games") as games:
        row = {name: values[0] for name, values in games.take([step]).items()}
    names, chosen = ["UP", "DOWN", "LEFT", "RIGHT"], int(row["move"])
    assert UP == 0
    for store, run in ((tmp_path / "games", 0), (tmp_path / "games.a2pack", 0)):
        page.goto(f"{viewer_of(store)}/play?run={run}&step={step}")
        bars = page.locator(".sp-bar")
        expect(bars.nth(chosen)).to_have_class(re.compile("sp-chosen"))
        assert hud(page, "action") == names[chosen]
        for move in range(4):
            legal = bool(int(row["ev_legal"]) >> move & 1)
            expect(bars.nth(move).locator(".sp-bar-value")).to_have_text(
                f"{float(row['ev_values'][move]):.3f}" if legal else "illegal"
            )
        tiles = int(row["board"]).to_bytes(8, "big").hex()
        assert hud(page, "highest") == str(2 ** max(int(digit, 16) for digit in tiles))
        shades = page.evaluate(
            """() => { const canvas = document.querySelector(".sp-stage canvas");
                 const side = canvas.width, data = canvas.getContext("2d");
                 return [...Array(16).keys()].map((i) => {
                   const x = side * (0.1 + 0.228 * (i % 4)), y = side * (0.1 + 0.228 * (i >> 2));
                   return data.getImageData(x, y, 1, 1).data.join(); }); }"""
        )
        assert len(set(zip(tiles, shades, strict=True))) == len(set(tiles)) == len(set(shades))


def test_vectors_are_curves(page: Page, viewer_of: ViewerOf, tmp_path: Path) -> None:
    with sw.StepWriter(tmp_path / "s", [("obs", "<f4", (4,)), ("long", "<f8", (40,))]) as writer:
        writer.append({"obs": np.ones((50, 4), "f4"), "long": np.zeros((50, 40))})
    page.goto(f"{viewer_of(tmp_path / 's')}/play?run=0&step=10")
    page.wait_for_function(
        """() => { const canvas = document.querySelector(".sp-stage canvas");
             return canvas?.width && canvas.getContext("2d")
               .getImageData(0, 0, canvas.width, canvas.height).data.some((value) => value); }"""
    )
    page.get_by_role("button", name="Show long large").click()
    expect(page.get_by_role("button", name="Show obs large")).to_be_visible()


def test_a_small_picture_becomes_the_large_one(
    page: Page, viewer_of: ViewerOf, tmp_path: Path
) -> None:
    fields = [("frame", "u1", (8, 8, 3)), ("camera", "u1", (8, 8))]
    with sw.StepWriter(tmp_path / "s", fields) as writer:
        frames = np.stack([picture(7, step)[:8, :8] for step in range(9)])
        writer.append({"frame": frames, "camera": np.full((9, 8, 8), 200, "u1")})
    page.goto(f"{viewer_of(tmp_path / 's')}/play?run=0&step=5")
    wait_for(page, 7, 5)
    page.get_by_role("button", name="Show camera large").click()
    wait_for(page, 200, 200 + 256 * 200)


def test_a_damaged_step_is_shown_as_damaged_and_the_rest_plays(
    page: Page, viewer_of: ViewerOf, tmp_path: Path
) -> None:
    path = write_drawn(tmp_path / "steps", [30])
    with sw.open(path) as store:
        size = sum(field.row_bytes for field in store.schema.values())
    with flipped(path / "steps.npy", (path / "steps.npy").stat().st_size - 20 * size):
        page.goto(f"{viewer_of(path)}/play?run=0&step=1")
        wait_for(page, 0, 1)
        note = page.locator(".sp-screen .sp-damage")
        expect(note).to_be_hidden()
        page.keyboard.press("3")  # step 9 of 29, in a block that is damaged
        expect(note).to_contain_text(re.compile("Step 9 is damaged: .*CRC32C"))
        assert seen(page) == (0, 0)  # nothing, not the picture of another step
        page.keyboard.press("Home")
        page.keyboard.press("Space")
        wait_for(page, 0, 29)
        expect(note).to_be_hidden()


def test_a_run_that_is_not_there(page: Page, viewer_of: ViewerOf, drawn: Path) -> None:
    page.goto(f"{viewer_of(drawn)}/play?run=99")
    expect(page.get_by_role("alert")).to_contain_text("no run '99'")
    page.goto(f"{viewer_of(drawn)}/play?where=nothing")
    expect(page.get_by_role("alert")).to_contain_text("nothing")


def test_it_tries_again_when_the_viewer_does_not_answer(
    page: Page, viewer_of: ViewerOf, drawn: Path
) -> None:
    def fail(route: Route) -> None:
        route.abort("connectionrefused")

    page.route(re.compile(r"/chunk\?"), fail)
    page.goto(f"{viewer_of(drawn)}/play?run=1&step=7")
    expect(page.get_by_role("alert")).to_have_text("the viewer does not answer; trying again")
    page.unroute(re.compile(r"/chunk\?"))
    wait_for(page, 1, 7)
    expect(page.get_by_role("alert")).to_be_hidden()


def test_names_are_text(page: Page, viewer_of: ViewerOf, drawn: Path) -> None:
    page.goto(f"{viewer_of(drawn)}/play?run=0&beside={quote(NAUGHTY)}")
    expect(page.get_by_role("alert")).to_contain_text("<b>bold</b>")
    page.goto(f"{viewer_of(drawn)}/play?run=0")
    wait_for(page, 0, 0)
    expect(page.locator(".sp-columns")).to_contain_text(NAUGHTY)
    page.get_by_role("button", name="Side by side").click()
    expect(page.get_by_role("dialog", name="Choose an episode")).to_be_visible()
    assert page.evaluate("window.hacked") is None


def test_times_are_those_of_the_list(page: Page, viewer_of: ViewerOf, folder: Path) -> None:
    page.goto(viewer_of(folder / "replays") + "/play")
    times = page.locator(".sp-columns dd").filter(has_text=re.compile(r"^\d{4}-"))
    expect(times).to_have_text([re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d$")] * 2)


def test_what_was_recorded_since_is_added(page: Page, viewer_of: ViewerOf, tmp_path: Path) -> None:
    writer = sw.ReplayWriter(tmp_path / "replays", "run", flush_every=0.01)
    for step in range(5):
        writer.record_step(
            observation=np.array([step], "f4"), action=0, frame=picture(1, step), reward=1.0
        )
    writer.commit()
    page.goto(f"{viewer_of(tmp_path / 'replays')}/play?run=run-ep0000")
    wait_for(page, 1, 0)
    page.keyboard.press("End")
    wait_for(page, 1, 4)
    for step in range(5, 9):
        writer.record_step(
            observation=np.array([step], "f4"), action=0, frame=picture(1, step), reward=1.0
        )
    writer.commit()
    wait_for(page, 1, 8)  # the end moves, and whoever is there with it
    writer.close()


def test_on_a_phone_nothing_is_wider_than_the_screen(
    page: Page, viewer_of: ViewerOf, drawn: Path
) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    page.goto(f"{viewer_of(drawn)}/play?run=1&step=3")
    wait_for(page, 1, 3)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    play_button = page.get_by_role("button", name="Play", exact=True)
    expect(play_button).to_be_in_viewport()
    play_button.click()
    wait_past(page, 5)


def test_two_games_fit_on_a_phone(page: Page, viewer_of: ViewerOf, folder: Path) -> None:
    """Values of moves are bars there, too, and a long name leaves the header its two lines."""
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{viewer_of(folder / 'games')}/play?run=1&beside=2&step=3")
    page.wait_for_function("window.stepwellStats?.drawn > 0")
    widths = page.evaluate(
        "[...document.querySelectorAll('.sp-bar-track')].map(each => each.clientWidth)"
    )
    assert len(widths) == 8
    assert min(widths) >= 24
    assert len(set(widths)) == 1  # or lengths of bars could not be compared
    name = "document.querySelector('.sw-crumb .sw-here').textContent = 'a long name '.repeat(9)"
    page.evaluate(name)
    assert page.evaluate("document.querySelector('.sw-header').clientHeight") <= 92
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_nothing_moves_while_it_plays(player: Page) -> None:
    boxes = """() => {
      const parts = ".sp-stage, .sp-side, .sp-cell, .sp-controls > *, .sp-scrubber";
      const boxOf = (each) => Object.values(each.getBoundingClientRect().toJSON()).map(Math.round);
      return [...document.querySelectorAll(parts)].map(boxOf);
    }"""
    before = player.evaluate(boxes)
    assert len(before) > 8
    player.keyboard.press("Space")
    wait_past(player, 30)
    assert player.evaluate(boxes) == before
