"""Pages whose viewer has ended, and was started again at the same port with another token."""

from pathlib import Path

from playwright.sync_api import Browser, expect

from stepwell.viewer.server import Server
from tests.viewer.conftest import TIMEOUT_MS
from tests.viewer.serving import Viewer


def test_a_viewer_that_was_started_again_wants_its_new_address(
    browser: Browser, shown: Viewer, folder: Path
) -> None:
    number = shown.add(folder / "steps").number
    first = Server(port=0)
    first.start()
    window = browser.new_context()
    window.set_default_timeout(TIMEOUT_MS)
    page, player = window.new_page(), window.new_page()
    page.goto(first.url(f"/s/{number}/runs"))
    player.goto(first.url(f"/s/{number}/play", {"run": "3"}))
    for each in (page, player):
        each.wait_for_function("window.did_handshake")
    first.stop()
    second = Server(port=first.port)
    second.start()
    note = page.get_by_text("The viewer was started again.")
    expect(note).to_be_visible(timeout=TIMEOUT_MS)
    expect(page.get_by_text("Open the address that it printed")).to_be_visible()
    player.evaluate("stepwellPlayer.load('4')")
    alert = player.get_by_role("alert")
    expect(alert).to_contain_text("open the address that the viewer printed", timeout=TIMEOUT_MS)

    window.new_page().goto(second.address)
    expect(note).to_be_hidden(timeout=TIMEOUT_MS)
    expect(page.get_by_role("link", name="29", exact=True)).to_be_visible(timeout=TIMEOUT_MS)
    window.close()
    second.stop()
