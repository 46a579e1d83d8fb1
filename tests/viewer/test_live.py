"""Runs as they are recorded: by a process that is then closed or killed, in a real browser."""

import json
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from stepwell.replay import LaneInfo, LaneWriter, lanes
from stepwell.viewer import live
from tests.children import Child
from tests.lanes import run_id as run_id
from tests.reference.lane import path_of
from tests.viewer.drawn import SIDE, picture, wait_for
from tests.viewer.recording import LENGTH
from tests.viewer.serving import Viewer, parse

MINUS = "\N{MINUS SIGN}"
Recorder = Callable[[Path], tuple[str, "Recording"]]


class Recording:
    """A process that records when it is told to."""

    def __init__(self, root: Path, run_id: str) -> None:
        self._child = Child("-m", "tests.viewer.recording", root, run_id)
        assert self._child.says() == "ready"

    def do(self, what: str | int) -> None:
        self._child.go(str(what))
        assert self._child.says() == "done"

    def kill(self) -> None:
        self._child.kill()


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    """Starts recordings, which have ended afterwards."""
    with ExitStack() as stack:

        def start(root: Path) -> tuple[str, Recording]:
            name = f"test-{secrets.token_hex(8)}"
            made = Recording(root, name)
            stack.callback(path_of(name).unlink, missing_ok=True)
            stack.callback(made.kill)
            return name, made

        yield start


def tile(page: Page, run_id: str) -> Locator:
    return page.get_by_role("article", name=run_id)


def cell(page: Page, run_id: str, name: str) -> Locator:
    box = tile(page, run_id).locator(".sp-cell", has=page.locator(f"dt:text-is('{name}')"))
    return box.locator("dd")


def wait_for_shade(page: Page, run_id: str, shade: int) -> None:
    """Wait until the newest frame is of this shade."""
    page.wait_for_function(
        """([name, shade]) => {
             const canvas = document.querySelector(`[aria-label="newest frame of ${name}"]`);
             if (!canvas?.width) return false;
             return canvas.getContext("2d").getImageData(1, 1, 1, 1).data[0] === shade; }""",
        arg=[run_id, shade],
    )


def test_a_recording_is_seen_and_its_end(
    page: Page, shown: Viewer, recorder: Recorder, tmp_path: Path
) -> None:
    name, recording = recorder(tmp_path / "replays")
    recording.do(5)
    number = shown.add(tmp_path / "replays").number
    base = f"http://127.0.0.1:{shown.server.port}"
    page.goto(f"{base}/live?run={name}")
    wait_for_shade(page, name, 16 + 4)
    expect(tile(page, name)).to_have_attribute("data-state", "live")
    expect(cell(page, name, "step")).to_have_text("4")
    recording.do(LENGTH - 5)
    wait_for_shade(page, name, 16 + LENGTH - 1)
    recording.do(3)
    wait_for_shade(page, name, 2 * 16 + 2)
    expect(cell(page, name, "step")).to_have_text("2")

    recording.kill()
    expect(tile(page, name)).to_have_attribute("data-state", "killed")
    expect(tile(page, name).get_by_role("status")).to_contain_text("it was killed, or it crashed")
    link = tile(page, name).get_by_role("link", name="Recording so far")
    expect(link).to_have_attribute("href", re.compile(f"run={name}-ep0001"))
    link.click()
    page.wait_for_url(f"**/s/{number}/play?**")
    expect(page.get_by_role("heading", level=2)).to_have_text(f"{name}-ep0001")
    page.keyboard.press("p")
    expect(page.get_by_role("heading", level=2)).to_have_text(f"{name}-ep0000")
    page.keyboard.press("End")
    shade = 16 + LENGTH - 1
    wait_for(page, shade, shade + 256 * shade)


def test_a_writer_that_closes_and_one_that_comes_back(
    page: Page, shown: Viewer, recorder: Recorder, tmp_path: Path
) -> None:
    name, recording = recorder(tmp_path / "replays")
    recording.do(2)
    page.goto(f"http://127.0.0.1:{shown.server.port}/live?run={name}")
    wait_for_shade(page, name, 17)
    recording.do("close")
    expect(tile(page, name)).to_have_attribute("data-state", "closed")
    expect(tile(page, name).get_by_role("status")).to_contain_text("has closed this run")
    with LaneWriter(name, (SIDE, SIDE, 3)) as lane:
        lane.publish(picture(0, 99))
        wait_for_shade(page, name, 99)
        expect(tile(page, name)).to_have_attribute("data-state", "live")


def test_a_frame_that_is_unpacked_after_the_end(page: Page, shown: Viewer, run_id: str) -> None:
    page.add_init_script("""
      const unpack = createImageBitmap;
      window.createImageBitmap = async (...given) => {
        const made = await unpack(...given);
        await window.held;
        return made;
      };""")
    with LaneWriter(run_id, (SIDE, SIDE, 3)) as lane:
        lane.publish(picture(0, 1))
        page.goto(f"http://127.0.0.1:{shown.server.port}/live?run={run_id}")
        wait_for_shade(page, run_id, 1)
        page.evaluate("() => { window.held = new Promise((done) => { window.release = done; }); }")
        lane.publish(picture(0, 2))
    expect(tile(page, run_id)).to_have_attribute("data-state", "closed")
    page.evaluate("window.release()")
    wait_for_shade(page, run_id, 2)
    expect(tile(page, run_id)).to_have_attribute("data-state", "closed")
    expect(cell(page, run_id, "dropped")).to_have_text("0")


def test_several_at_once_and_all_of_the_machine(page: Page, shown: Viewer) -> None:
    names = [f"test-{secrets.token_hex(8)}" for _ in range(3)]
    with ExitStack() as stack:
        lanes = [stack.enter_context(LaneWriter(name, (SIDE, SIDE, 3))) for name in names]
        for shade, lane in enumerate(lanes, 50):
            lane.publish(picture(0, shade), reward=1.5, rolling_return=-shade, step_rate_hz=12.25)
        page.goto(f"http://127.0.0.1:{shown.server.port}/live")  # those of other tests may be there
        for shade, name in enumerate(names, 50):
            wait_for_shade(page, name, shade)
            expect(cell(page, name, "reward")).to_have_text("1.500")
            expect(cell(page, name, "return")).to_have_text(f"{MINUS}{shade}")
            expect(cell(page, name, "steps/s")).to_have_text("12.3")
        page.get_by_role("button", name=names[1]).click()
        expect(tile(page, names[1])).to_have_count(0)
        page.wait_for_function(
            "(names) => names.every((name) => location.search.includes(name))", arg=names[::2]
        )
        assert names[1] not in page.url


def test_a_lane_that_is_not_there_is_waited_for(page: Page, shown: Viewer, run_id: str) -> None:
    page.goto(f"http://127.0.0.1:{shown.server.port}/live?run={run_id}&run=%3Cb%3E..%2F..")
    for name in (run_id, "<b>../.."):
        expect(tile(page, name)).to_have_attribute("data-state", "none")
        expect(tile(page, name).get_by_role("status")).to_contain_text("No writer has a lane")
    with LaneWriter(run_id, (SIDE, SIDE)) as lane:
        lane.publish(picture(0, 33)[:, :, 0])
        wait_for_shade(page, run_id, 33)


# A browser that is slow, as a client that reports what it has drawn.


def looking(shown: Viewer, run_id: str) -> ClientConnection:
    cookies = "; ".join(f"{name}={value}" for name, value in shown.client.cookies.items())
    base = f"127.0.0.1:{shown.server.port}"
    headers = {"Cookie": cookies, "Origin": f"http://{base}"}
    return connect(f"ws://{base}/data/lane?run={run_id}", additional_headers=headers)


def about(message: Any) -> Any:
    (text,) = parse(message)[1]["about"]
    return json.loads(text)


def test_a_slow_browser_gets_the_newest_frame_and_no_queue(shown: Viewer, run_id: str) -> None:
    with LaneWriter(run_id, (SIDE, SIDE, 3)) as lane, looking(shown, run_id) as socket:
        lane.publish(picture(0, 1), metadata={"step": 1})
        assert about(socket.recv(10))["number"] == 1
        lane.publish(picture(0, 2), metadata={"step": 2})
        assert about(socket.recv(10))["step"] == {"step": 2}
        for number in range(3, 1000):  # two are on the way: no more are sent
            lane.publish(picture(0, number))
        with pytest.raises(TimeoutError):
            socket.recv(0.3)
        socket.send("1")
        assert about(socket.recv(10))["number"] == 999
        socket.send("1")
        lane.close()
        assert json.loads(socket.recv(10)) == {"end": "closed"}
        with pytest.raises(ConnectionClosed):
            socket.recv(10)


def test_a_lane_that_is_closed_but_not_yet_removed(
    shown: Viewer, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter([[LaneInfo(run_id, False)]])  # the first one, as the writer is between the two
    with LaneWriter(run_id, (SIDE, SIDE, 3)) as lane, looking(shown, run_id) as socket:
        lane.publish(picture(0, 1))
        assert about(socket.recv(10))["number"] == 1
        monkeypatch.setattr(live, "lanes", lambda: next(looks, None) or lanes())
        lane.close()
        assert json.loads(socket.recv(10)) == {"end": "closed"}


def test_colours_are_those_of_the_writer(page: Page, shown: Viewer, run_id: str) -> None:
    frame = picture(30, 10 + 256 * 20)  # 10, 20, 30
    with LaneWriter(run_id, (SIDE, SIDE, 3), pixel_format="BGR") as lane:
        lane.publish(frame, metadata=b"no JSON")
        page.goto(f"http://127.0.0.1:{shown.server.port}/live?run={run_id}")
        wait_for_shade(page, run_id, 30)


def test_lanes_are_listed_with_their_recordings(
    shown: Viewer, recorder: Recorder, tmp_path: Path
) -> None:
    name, recording = recorder(tmp_path / "replays")
    recording.do(1)
    found = {each["run_id"]: each for each in shown.json("/data/lanes")}[name]
    assert (found["alive"], found["recording"]) == (True, None)  # of a store that is not shown
    number = shown.add(tmp_path / "replays").number
    found = {each["run_id"]: each for each in shown.json("/data/lanes")}[name]
    assert found["recording"] == {
        "store": number,
        "run": f"{name}-ep0000",
        "where": f"run_id = '{name}'",
    }
    recording.kill()
    found = {each["run_id"]: each for each in shown.json("/data/lanes")}[name]
    assert found["alive"] is False
