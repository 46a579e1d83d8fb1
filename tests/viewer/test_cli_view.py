"""`stepwell view`, `replay watch` and `record --watch`, run as a user runs them."""

import json
import os
import pty
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import numpy as np
import pytest
from websockets.sync.client import connect
from websockets.typing import Origin

from tests import children, replays
from tests.query_contract import ENDLESS
from tests.test_cli import stepwell

MAIN = "from stepwell.cli import main; main()"


@contextmanager
def running(*args: str | Path, **environment: str) -> Iterator["subprocess.Popen[str]"]:
    """The command, until the block ends."""
    env = {name: value for name, value in os.environ.items() if name != "SSH_CONNECTION"}
    with subprocess.Popen(
        [sys.executable, "-c", MAIN, *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**env, **environment},
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def line_of(child: "subprocess.Popen[str]") -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def interrupted(child: "subprocess.Popen[str]") -> tuple[int, str, str]:
    """The exit code, and what was printed since, after Ctrl-C."""
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    return child.returncode, out, err


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "rows.npy"
    np.save(path, np.arange(5))
    return path


def test_it_serves_until_ctrl_c(rows: Path) -> None:
    with running("view", rows, "--port", "0", "--no-open") as child:
        url = line_of(child)
        with httpx.Client(follow_redirects=True, timeout=60) as client:
            assert client.get(url).status_code == 200
            found = client.get(f"{url.partition('/?')[0]}/data/0/about").json()
        assert (found["path"], found["rows"]) == (str(rows), 5)
        assert interrupted(child) == (130, "", "")


def test_in_a_terminal_the_prompt_has_a_line_of_its_own_again(rows: Path) -> None:
    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)
    command = [sys.executable, "-c", MAIN, "view", str(rows), "--port", "0", "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, text=True) as child:
        try:
            assert line_of(child).startswith("http://127.0.0.1:")
            child.send_signal(signal.SIGINT)
            assert child.wait(timeout=60) == 130
            assert os.read(ours, 100) == b"\r\n"
        finally:
            child.kill()
            os.close(ours)
            os.close(theirs)


def test_ctrl_c_ends_it_whoever_is_connected(folder: Path) -> None:
    """A page, a WebSocket that says nothing, and a condition that never ends."""
    with running("view", folder / "steps", "--port", "0", "--no-open", "--json") as child:
        about = json.loads(line_of(child))
        assert (about["stores"], about["host"]) == ([str(folder / "steps")], "127.0.0.1")
        parts = urlsplit(about["url"])
        assert (parts.port, parts.path) == (about["port"], "/")
        assert len(parse_qs(parts.query)["token"][0]) == 32
        base = f"http://127.0.0.1:{about['port']}"
        socket_url = (
            f"ws://127.0.0.1:{about['port']}/_nicegui_ws/socket.io/?EIO=4&transport=websocket"
        )
        with httpx.Client(follow_redirects=True, timeout=60) as client:
            client.get(about["url"])
            cookie = "; ".join(f"{name}={value}" for name, value in client.cookies.items())

            def ask() -> None:
                with suppress(httpx.HTTPError):
                    client.get(f"{base}/data/0/runs", params={"where": f"({ENDLESS}) > 0"})

            asking = threading.Thread(target=ask)
            asking.start()
            headers = {"cookie": cookie}
            with connect(socket_url, origin=Origin(base), additional_headers=headers) as opened:
                assert opened.recv()
                assert interrupted(child) == (130, "", "")
            asking.join()


def test_a_port_in_use_and_a_host_that_others_reach(rows: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        with running("view", rows, "--host", "0.0.0.0", "--port", port, "--no-open") as child:
            first, warning, url = (line_of(child) for _ in range(3))
    parts = urlsplit(url)
    assert first == f"port {port} is in use: at {parts.port} instead"
    assert warning == "other machines can reach this address; whoever has it can see the stores"
    assert parts.hostname == socket.gethostname().lower()
    assert parse_qs(parts.query)["token"]


def test_over_ssh_it_says_how_to_get_there(rows: Path) -> None:
    with running("view", rows, "--port", "0", SSH_CONNECTION="a b c d", DISPLAY=":9") as child:
        hint, url = line_of(child), line_of(child)
    port = urlsplit(url).port
    assert hint.startswith(f"from another machine: ssh -L {port}:127.0.0.1:{port} ")


def test_a_browser_is_given_a_file_that_only_this_user_reads(rows: Path, tmp_path: Path) -> None:
    """Command lines are no secret: the token is not in one."""
    browser = tmp_path / "browser"
    browser.write_text(
        f'#!/bin/sh\necho "$@" > {tmp_path}/given.part\nmv {tmp_path}/given.part {tmp_path}/given\n'
    )
    browser.chmod(0o755)
    place = {"DISPLAY": ":9", "BROWSER": str(browser), "TMPDIR": str(tmp_path)}
    with running("view", rows, "--port", "0", **place) as child:
        url = line_of(child)
        while not (tmp_path / "given").exists():
            assert child.poll() is None
        given = (tmp_path / "given").read_text().strip()
    file = Path(urlsplit(given).path)
    assert given.startswith(f"file://{tmp_path}/stepwell-")
    assert url.replace("&", "&amp;") in file.read_text()
    assert file.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("nowhere", "nowhere: No such file or directory"),
        ("text.txt", "expected an array, a pack, a step dataset, a record store"),
        ("empty", "a folder of shards, or a folder of them, got none - at "),
        ("", "PATH: expected a path or a URL, got an empty text"),
    ],
)
def test_a_path_that_is_nothing_of_ours(tmp_path: Path, path: str, words: str) -> None:
    (tmp_path / "text.txt").write_text("words")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "other.txt").write_text("words")
    done = stepwell("view", str(tmp_path / path) if path else "", "--no-open")
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr.replace("\n", " ")


def test_a_folder_of_stores(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "games").symlink_to(folder / "games")  # links are not followed
    (tmp_path / ".hidden").mkdir()
    np.save(tmp_path / "deep" / "rows.npy", np.arange(5))
    np.save(tmp_path / ".hidden" / "rows.npy", np.arange(5))
    with running("view", folder, tmp_path, "--port", "0", "--no-open", "--json") as child:
        found = json.loads(line_of(child))["stores"]
    names = ("games", "games.a2pack", "replays", "steps")
    assert found == [*(str(folder / name) for name in names), str(tmp_path / "deep" / "rows.npy")]


def test_one_episode(folder: Path) -> None:
    with running("view", folder, "--episode", "flat-ep0000", "--port", "0", "--no-open") as child:
        parts = urlsplit(line_of(child))
    assert parts.path == "/s/2/play"
    assert parse_qs(parts.query)["run"] == ["flat-ep0000"]
    done = stepwell("view", folder / "steps", "--episode", "99", "--no-open")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no run '99' in " in done.stderr


def test_export_writes_a_page_and_ends(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "page"
    done = stepwell("view", folder / "games", "--episode", "2", "--export", out, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["path"] == str(out)
    assert json.loads(done.stdout)["episode"] == "2"
    assert (out / "index.html").read_text().startswith("<!doctype html>")
    again = stepwell("view", folder / "games", "--export", out)
    assert again.returncode == 2
    assert "expected a new folder" in again.stderr


# Live.


def test_replay_watch_opens_the_live_page(tmp_path: Path) -> None:
    replays.record_all(tmp_path, "run", range(3))
    with running("replay", "watch", tmp_path, "--run", "a", "--run", "b", "--port", "0") as child:
        parts = urlsplit(line_of(child))
        assert parts.path == "/live"
        assert parse_qs(parts.query)["run"] == ["a", "b"]
        assert interrupted(child)[0] == 130
    done = stepwell("replay", "watch", tmp_path / "nowhere")
    assert (done.returncode, done.stdout) == (2, "")


def test_record_watch_shows_the_run_that_it_records(tmp_path: Path) -> None:
    with running(
        *("record", "--env", "CartPole-v1", "--out", tmp_path / "out", "--run-id", "seen"),
        *("--watch", "--frames", "none", "--steps", "1000000", "--json"),
    ) as child:
        assert child.stderr is not None
        url = child.stderr.readline().strip()
        parts = urlsplit(url)
        assert (parts.path, parse_qs(parts.query)["run"]) == ("/live", ["seen"])
        with httpx.Client(follow_redirects=True, timeout=60) as client:
            assert client.get(url).status_code == 200
            found = client.get(f"http://{parts.netloc}/data/lanes").json()
            assert [each["alive"] for each in found if each["run_id"] == "seen"] == [True]
            about = client.get(f"http://{parts.netloc}/data/0/about").json()
            assert about["kind"] == "replay"
        code, out, _ = interrupted(child)
        assert code == 130
        assert json.loads(out)["run_id"] == "seen"


def test_without_the_extra_it_says_how_to_get_it(rows: Path) -> None:
    script = f"""
import sys
sys.modules["nicegui"] = None
sys.argv[1:] = ["view", {str(rows)!r}]
{MAIN}
"""
    done = children.python(script)
    assert (done.returncode, done.stdout) == (2, "")
    assert "nicegui needs an extra: pip install 'stepwell[viewer]'" in done.stderr
