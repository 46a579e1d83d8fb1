"""Every page but the player's, in a real browser: what it shows, and what it answers."""

import re
import shutil
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

import stepwell as sw
from stepwell.stores import RunColumn
from stepwell.viewer import listing
from tests.query_contract import ENDLESS
from tests.viewer.conftest import ViewerOf
from tests.viewer.serving import Viewer
from tests.viewer.test_background import endless

RUNS = 120


@pytest.fixture(scope="module", autouse=True)
def _wait() -> Iterator[None]:
    expect.set_options(timeout=20_000)
    yield
    expect.set_options(timeout=5_000)


@pytest.fixture(scope="module")
def stores(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of each kind, one of them with more runs than a page has."""
    root = tmp_path_factory.mktemp("pages")
    for name in ("steps", "games.a2pack", "games", "replays"):
        (root / name).symlink_to(folder / name)
    random = np.random.default_rng(0)
    step = [("x", "<i4"), ("obs", "<f4", (12,)), ("run_id", "<u4"), ("step_index", "<u2")]
    columns: dict[str, Any] = {"score": int, "agent": RunColumn(str, optional=True)}
    with sw.StepWriter(root / "many", step, columns=columns) as writer:
        for run in range(RUNS):
            rows = np.arange(5, dtype="i4") + 5 * run
            obs = random.random((5, 12)).astype("f4")
            writer.append({"x": rows, "obs": obs}, score=run * 37 % RUNS, agent=f"<i>{run % 3}</i>")
    fields = {
        "image": sw.Field("u1", (9, 9)),
        "caption": sw.Field(str, optional=True),
        "tokens": sw.Field("<i4", ragged=True),
    }
    with sw.RecordWriter(root / "records", fields) as writer:
        images = random.integers(0, 255, (40, 9, 9)).astype("u1")
        tokens = [np.arange(i % 7, dtype="i4") for i in range(40)]
        captions = [f"<script>alert({i})</script>" for i in range(39)]
        writer.append({"image": images[:39], "caption": captions, "tokens": tokens[:39]})
        writer.append({"image": images[39:], "tokens": tokens[39:]})
    with sw.ShardWriter(root / "shards", width=64) as writer:
        writer.append(random.standard_normal((100, 64)))
    np.save(root / "array.npy", random.random((70, 8)))
    return root


def opened(page: Page, address: str, path: str = "") -> Page:
    """A page that has everything it will have, and is connected."""
    page.goto(address + path)
    expect(page.locator(".sw-header")).to_be_visible()
    page.wait_for_function("window.did_handshake")
    expect(page.locator(".q-skeleton")).to_have_count(0)
    return page


def query(page: Page) -> dict[str, str]:
    return {name: texts[0] for name, texts in parse_qs(urlsplit(page.url).query).items()}


def cells(page: Page, place: int) -> list[str]:
    """The texts of a column of the table."""
    return page.locator(f"tbody tr td:nth-child({place + 1})").all_inner_texts()


def column(page: Page, name: str) -> list[str]:
    headings = page.locator("thead th").all_inner_texts()
    return cells(page, next(i for i, words in enumerate(headings) if name in words))


# Overviews.

KINDS = {
    "steps": ("step dataset", "30", "runs"),
    "games.a2pack": ("pack", "3", "runs"),
    "games": ("step dataset", "3", "runs"),
    "replays": ("replay store", "", "episodes"),
    "records": ("record store", "40", "rows"),
    "shards": ("activation shards", "100", "rows"),
    "array.npy": ("array", "70", "rows"),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_store_of_each_kind(page: Page, viewer_of: ViewerOf, stores: Path, name: str) -> None:
    kind, count, noun = KINDS[name]
    opened(page, viewer_of(stores / name))
    expect(page.locator(".sw-kind")).to_have_text(kind)
    figures = page.locator(".sw-figures > div")
    expect(figures.filter(has_text=re.compile(f"^{count}.*{noun}$"))).to_have_count(1)
    expect(page.get_by_text("nothing wrong")).to_be_visible()
    expect(page.locator("[role=alert]")).to_have_count(0)
    assert page.locator(".sw-fields tbody tr").count() > 0
    if noun != "rows":
        expect(page.locator(".nicegui-echart canvas").first).to_be_visible()
        assert page.get_by_role("link", name="Runs").is_visible()


def test_all_stores_have_a_card(page: Page, viewer_of: ViewerOf, stores: Path) -> None:
    address = viewer_of(stores / "records")
    opened(page, address.partition("/s/")[0])
    card = page.locator(".sw-card").filter(has_text=str(stores / "records"))
    expect(card).to_contain_text("40")
    expect(card).to_contain_text("fine")
    card.click()
    page.wait_for_url(address)
    expect(page.get_by_role("heading", name="records", exact=True)).to_be_visible()


def test_a_store_that_is_being_written(page: Page, viewer_of: ViewerOf, tmp_path: Path) -> None:
    with sw.StepWriter(tmp_path / "steps", [("x", "<i4")]) as writer:
        writer.append({"x": np.arange(4, dtype="i4")})
        writer.commit()
        opened(page, viewer_of(tmp_path / "steps"))
        expect(page.locator(".sw-figures")).to_contain_text("in use")
        expect(page.locator(".sw-figures")).to_contain_text("a writer is at work")


def test_everything_is_checked_on_a_click(page: Page, viewer_of: ViewerOf, stores: Path) -> None:
    opened(page, viewer_of(stores / "steps"))
    page.get_by_role("button", name="Check everything").click()
    expect(page.get_by_text("Everything was read:")).to_be_visible()
    expect(page.get_by_text("nothing wrong")).to_have_count(2)


def test_a_full_check_can_be_cancelled(page: Page, viewer_of: ViewerOf) -> None:
    store = endless()
    opened(page, viewer_of(store))
    page.get_by_role("button", name="Check everything").click()
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_text(re.compile("^cancelled after"))).to_be_visible()
    expect(page.get_by_role("button", name="Check everything")).to_be_visible()


# Runs.


def runs_page(page: Page, viewer_of: ViewerOf, stores: Path, query: str = "") -> Page:
    return opened(page, viewer_of(stores / "many"), f"/runs{query}")


def counted(page: Page) -> Locator:
    return page.locator(".sw-bar > div").first


def enter(page: Page, condition: str) -> None:
    box = page.get_by_label("Condition")
    box.fill(condition)
    box.press("Enter")


def test_a_filter_and_its_address(page: Page, viewer_of: ViewerOf, stores: Path) -> None:
    runs_page(page, viewer_of, stores)
    expect(counted(page)).to_have_text(re.compile(r"^120 runs · \d+ ms$"))
    assert set(column(page, "agent")) == {"<i>0</i>", "<i>1</i>", "<i>2</i>"}  # text, not HTML
    enter(page, "score BETWEEN 10 AND 13")
    expect(counted(page)).to_have_text(re.compile(r"^4 runs fit"))
    assert sorted(map(int, column(page, "score"))) == [10, 11, 12, 13]
    page.wait_for_function("location.search.includes('where')")
    assert query(page) == {"where": "score BETWEEN 10 AND 13"}
    page.reload()
    expect(counted(page)).to_have_text(re.compile(r"^4 runs fit"))
    assert sorted(map(int, column(page, "score"))) == [10, 11, 12, 13]


WRONG = {
    "scor > 1": "no such column: scor; the columns are id, first_step_idx, num_steps, score, agent",
    "score >": "the condition ends too early",
    "1) UNION SELECT 1": "syntax error",
    "1; DELETE FROM runs": "syntax error",
    "score > load_extension('x')": "not authorized",
}


def test_wrong_filters_are_explained(page: Page, viewer_of: ViewerOf, stores: Path) -> None:
    runs_page(page, viewer_of, stores)
    for condition, words in WRONG.items():
        enter(page, condition)
        expect(page.get_by_role("alert")).to_contain_text(words)
        assert len(cells(page, 1)) == 50  # those of before
    enter(page, "score = 7")
    expect(counted(page)).to_have_text(re.compile(r"^1 run fits"))
    expect(page.get_by_role("alert")).to_have_count(0)


def test_a_wrong_filter_in_an_address(page: Page, viewer_of: ViewerOf, stores: Path) -> None:
    runs_page(page, viewer_of, stores, "?where=scor")
    expect(page.get_by_role("alert")).to_contain_text("no such column: scor")
    enter(page, "score < 2")
    expect(counted(page)).to_have_text(re.compile(r"^2 runs fit"))
    assert sorted(column(page, "score")) == ["0", "1"]


def test_a_filter_without_an_end_is_stopped(
    page: Page, viewer_of: ViewerOf, stores: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "TIMEOUT_S", 0.5)
    runs_page(page, viewer_of, stores)
    enter(page, f"({ENDLESS}) > 0")
    expect(page.get_by_role("alert")).to_contain_text("not done within 0.5 s")
    enter(page, "score = 5")
    expect(counted(page)).to_have_text(re.compile(r"^1 run fits"))


def test_sorting_by_every_column(page: Page, viewer_of: ViewerOf, stores: Path) -> None:
    runs_page(page, viewer_of, stores, "?where=score<12")
    for name in ("score", "id", "num_steps", "first_step_idx", "agent"):
        heading = page.get_by_role("columnheader", name=name, exact=True)
        for direction in ("ascending", "descending"):
            heading.click()
            page.wait_for_function(
                "([name, desc]) => new URLSearchParams(location.search).get('sort') === name"
                " && (new URLSearchParams(location.search).get('desc') === '1') === desc",
                arg=[name, direction == "descending"],
            )
            shown: list[Any] = column(page, name)
            if name != "agent":
                shown = [int(text.replace(",", "")) for text in shown]
            assert shown == sorted(shown, reverse=direction == "descending")
    assert query(page) == {"where": "score<12", "sort": "agent", "desc": "1"}


def test_pages(page: Page, viewer_of: ViewerOf, stores: Path) -> None:
    runs_page(page, viewer_of, stores, "?sort=score")
    assert column(page, "score") == [str(n) for n in range(50)]
    page.get_by_role("button", name="Next page").click()
    expect(page.locator(".q-table__bottom")).to_contain_text("51-100 of 120")
    expect(page.locator("tbody tr").first).to_contain_text("50")
    assert column(page, "score") == [str(n) for n in range(50, 100)]
    page.wait_for_function("location.search.includes('page=2')")
    page.reload()
    expect(page.locator(".q-table__bottom")).to_contain_text("51-100 of 120")
    page.get_by_role("button", name="Last page").click()
    expect(page.locator(".q-table__bottom")).to_contain_text("101-120 of 120")
    assert column(page, "score") == [str(n) for n in range(100, 120)]


def test_a_click_plays_a_run(page: Page, viewer_of: ViewerOf, stores: Path) -> None:
    runs_page(page, viewer_of, stores, "?where=score%3D8")
    page.locator("tbody td").last.click()
    page.wait_for_url("**/play?*")
    assert query(page)["run"] == str(8 * pow(37, -1, RUNS) % RUNS)
    assert query(page)["where"] == "score=8"


def test_two_runs_side_by_side(page: Page, viewer_of: ViewerOf, stores: Path) -> None:
    runs_page(page, viewer_of, stores)
    button = page.locator(".sw-bar .q-btn")
    expect(button).to_be_disabled()
    boxes = page.locator("tbody .q-checkbox")
    for i in (0, 3, 5):  # the first one gives way to the third
        boxes.nth(i).click()
    expect(boxes.nth(0)).to_have_attribute("aria-checked", "false")
    expect(boxes.nth(5)).to_have_attribute("aria-checked", "true")
    expect(button).to_have_attribute("href", re.compile("run=3&beside=5"))
    button.click()
    page.wait_for_url("**/play?run=3&beside=5")


def test_runs_with_pictures_have_thumbnails(page: Page, viewer_of: ViewerOf, stores: Path) -> None:
    opened(page, viewer_of(stores / "games"), "/runs")
    expect(page.locator("tbody img").first).to_be_visible()
    page.wait_for_function("[...document.querySelectorAll('tbody img')].every(i => i.naturalWidth)")
    opened(page, viewer_of(stores / "replays"), "/runs")  # where one recording has no pictures
    expect(page.locator("tbody img").first).to_be_visible()
    flat = page.locator("tbody tr").filter(has_text="flat")
    expect(flat).not_to_have_count(0)
    expect(flat.locator("img")).to_have_count(0)


def test_a_store_without_runs_names_its_rows(page: Page, viewer_of: ViewerOf, stores: Path) -> None:
    opened(page, viewer_of(stores / "array.npy"), "/runs")
    expect(page.get_by_text("The rows of an array have no runs.")).to_be_visible()
    page.get_by_role("link", name="Look at the rows").click()
    page.wait_for_url("**/rows")


# Rows.


def test_a_jump_to_a_row(page: Page, viewer_of: ViewerOf, stores: Path) -> None:
    opened(page, viewer_of(stores / "many"), "/rows")
    assert [int(x) for x in column(page, "x ·")] == list(range(20))
    box = page.get_by_label("Row", exact=True)
    box.fill("590")
    box.press("Enter")
    expect(page.locator("tbody tr").first).to_contain_text("590")
    assert [int(x) for x in column(page, "x ·")] == list(range(590, 600))
    page.wait_for_function("location.search === '?row=590'")
    page.get_by_role("button", name="Rows before").click()
    expect(page.locator("tbody tr").first).to_contain_text("570")
    box.fill("600")
    box.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("expected a row below 600, got 600")


def test_a_batch_is_the_one_of_the_loader(page: Page, viewer_of: ViewerOf, stores: Path) -> None:
    loader = sw.Loader(sw.open(stores / "many"), 32, seed=9)
    given = [batch["x"].tolist() for batch in islice(loader.forever(), 2 * len(loader))]
    opened(page, viewer_of(stores / "many"), "/rows?seed=9&step=3&batch=32")
    assert [int(x) for x in column(page, "x ·")] == given[3]
    step = page.get_by_label("Step", exact=True)
    for number in (len(loader) - 1, len(loader) + 1):  # the last of an epoch, one of the next
        step.fill(str(number))
        step.press("Enter")
        page.wait_for_function(f"location.search.includes('step={number}')")
        assert [int(x) for x in column(page, "x ·")] == given[number]
        assert query(page) == {"seed": "9", "step": str(number), "batch": "32"}
    page.get_by_role("button", name="Next step").click()
    page.wait_for_function(f"location.search.includes('step={len(loader) + 2}')")
    assert [int(x) for x in column(page, "x ·")] == given[len(loader) + 2]


def test_padding_of_windows_is_shown(page: Page, viewer_of: ViewerOf, stores: Path) -> None:
    windows = sw.open(stores / "many").windows(4, pad=True)
    batch = next(iter(sw.Loader(windows, 8, seed=2)))
    opened(page, viewer_of(stores / "many"), "/rows?seed=2&step=0&batch=8&window=4")
    expected = [
        str(x) if own else "padding"
        for x, own in zip(batch["x"].flat, batch["mask"].flat, strict=True)
    ]
    assert "padding" in expected
    assert column(page, "x ·") == expected
    assert page.locator("tr.sw-padding").count() == expected.count("padding")


def test_rows_of_records(page: Page, viewer_of: ViewerOf, stores: Path) -> None:
    opened(page, viewer_of(stores / "records"), "/rows?row=35")
    assert page.locator("tbody img").count() == 5
    captions = column(page, "caption")
    assert captions == [f"<script>alert({i})</script>" for i in range(35, 39)] + ["absent"]
    paths = page.locator("tbody svg path")
    assert paths.count() == sum(i % 7 > 1 for i in range(35, 40))


def test_rows_of_recordings_that_are_unlike(page: Page, viewer_of: ViewerOf, stores: Path) -> None:
    opened(page, viewer_of(stores / "replays"), "/rows")
    expect(page.get_by_label("Runs where")).to_have_value("run_id = 'deep'")
    expect(page.get_by_role("alert")).to_have_count(0)
    box = page.get_by_label("Runs where")
    box.fill("run_id = 'flat'")
    box.press("Enter")
    expect(page.locator("tbody tr")).to_have_count(3)  # after the fourth nothing was observed


# The loader.


def test_a_trial_of_the_loader(page: Page, viewer_of: ViewerOf, stores: Path) -> None:
    opened(page, viewer_of(stores / "many"), "/check")
    page.get_by_label("Batch").fill("64")
    page.get_by_label("Seconds").fill("1")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_text("rows/s by the loader")).to_be_visible()
    expect(page.get_by_text("rows/s by NumPy")).to_be_visible()
    expect(page.locator(".nicegui-echart canvas")).to_be_visible()
    assert page.locator(".sw-table tbody tr").count() == 2


# What goes wrong.


NOWHERE = {
    "/s/999/runs": "expected the number of a store that is shown, got 999",
    "/s/first": "expected the address of a page",
    "/s/0/rums": "expected the address of a page",
}


def test_addresses_that_lead_nowhere(page: Page, viewer_of: ViewerOf, stores: Path) -> None:
    base = viewer_of(stores / "many").partition("/s/")[0]
    for path, words in NOWHERE.items():
        answer = page.goto(base + path)
        assert answer is not None
        assert answer.status == 404
        expect(page.get_by_role("alert")).to_contain_text(words)
        expect(page.get_by_role("link", name="All stores").last).to_be_visible()


def test_a_name_is_text_whatever_is_in_it(page: Page, viewer_of: ViewerOf, tmp_path: Path) -> None:
    name = "<b>bold <img src=x onerror=alert(1)>.npy"
    np.save(tmp_path / name, np.arange(5))
    address = viewer_of(tmp_path / name)
    for path in (address, address.partition("/s/")[0]):
        opened(page, path)
        expect(page.get_by_role("heading", name=name)).to_be_visible()
        assert page.locator("b, img").count() == 0


def damage_database(path: Path) -> None:
    (path / "metadata.db").write_bytes(b"nonsense" * 1000)


BROKEN: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "gone": (shutil.rmtree, "there is nothing", "moved or removed"),
    "damaged": (damage_database, "metadata.db", "It is damaged. `stepwell verify PATH` lists"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_store_that_cannot_be_opened(
    page: Page, shown: Viewer, stores: Path, tmp_path: Path, name: str
) -> None:
    breaks, words, advice = BROKEN[name]
    path = tmp_path / "a broken one"
    shutil.copytree(stores / "many", path)
    entry = shown.add(path)
    breaks(path)
    base = f"http://127.0.0.1:{shown.server.port}"
    for tab in ("", "/runs", "/rows", "/check", "/play"):
        opened(page, f"{base}/s/{entry.number}{tab}")
        expect(page.get_by_role("alert")).to_contain_text(words)
        expect(page.get_by_role("alert")).to_contain_text(advice.replace("PATH", f"'{path}'"))
    opened(page, base)
    card = page.locator(f".sw-card[href='/s/{entry.number}']")
    expect(card.locator(".sw-bad")).to_contain_text(words)


def test_damaged_rows_are_named_and_the_rest_is_shown(
    page: Page, viewer_of: ViewerOf, tmp_path: Path
) -> None:
    with sw.StepWriter(tmp_path / "steps", [("x", "<i4")]) as writer:
        writer.append({"x": np.arange(4000, dtype="i4")})
    with (tmp_path / "steps" / "steps.npy").open("r+b") as file:
        file.seek(5000)
        file.write(b"damage")
    address = viewer_of(tmp_path / "steps")
    opened(page, address, "/rows?row=1010")
    expect(page.get_by_role("alert")).to_contain_text("steps.npy")
    shown = column(page, "x ·")
    assert (
        set(shown[:14]) == {"1,010"} | {f"{n:,}" for n in range(1011, 1024)} or "damaged" in shown
    )
    assert "damaged" in shown
    opened(page, address)
    page.get_by_role("button", name="Check everything").click()
    expect(page.get_by_text("1 problem", exact=True)).to_be_visible()


# Looks.


def test_dark_follows_the_system_until_it_is_chosen(
    browser: Browser, shown: Viewer, viewer_of: ViewerOf, stores: Path
) -> None:
    address = viewer_of(stores / "array.npy")
    context = browser.new_context(color_scheme="dark")
    context.request.get(shown.server.address)
    page = opened(context.new_page(), address)
    body, button = page.locator("body"), page.get_by_role("button", name="Light or dark")
    expect(body).to_have_class(re.compile("body--dark"))
    button.click()
    expect(body).to_have_class(re.compile("body--light"))
    opened(page, address, "/rows")
    expect(body).to_have_class(re.compile("body--light"))  # the browser remembers it
    back = page.evaluate("getComputedStyle(document.body).backgroundColor")
    button.click()
    expect(body).to_have_class(re.compile("body--dark"))
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != back
    context.close()


def test_a_phone_is_wide_enough(page: Page, viewer_of: ViewerOf, stores: Path) -> None:
    page.set_viewport_size({"width": 380, "height": 800})
    address = viewer_of(stores / "replays")
    for tab in ("", "/runs", "/rows?seed=1", "/check"):
        opened(page, address, tab)
        assert page.evaluate("document.documentElement.scrollWidth") <= 380
