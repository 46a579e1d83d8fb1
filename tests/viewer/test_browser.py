"""`sw.view`: a browser outside notebooks, the proxy of a notebook or a static page inside."""

import gc
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

import httpx
import numpy as np
import pytest
from playwright.sync_api import Browser, Frame, expect

import stepwell as sw
from stepwell.viewer.browser import proxy_base
from stepwell.viewer.server import shelf
from tests import children
from tests.viewer.conftest import TIMEOUT_MS, watched
from tests.viewer.notebook import PREFIX, notebook


@pytest.fixture(autouse=True)
def no_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SSH_CONNECTION", "JUPYTERHUB_SERVICE_PREFIX"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if this process were the kernel of a notebook."""
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))


@pytest.fixture
def proxy(kernel: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As if that notebook had a proxy."""
    (tmp_path / "jupyter_server_proxy.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("JUPYTERHUB_SERVICE_PREFIX", PREFIX)


def test_outside_a_notebook_the_address_is_printed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        sw.view(folder / "steps") as view,
        httpx.Client(follow_redirects=True, timeout=60) as client,
    ):
        assert capsys.readouterr().out == f"{view.url}\n"
        assert repr(view) == f"View({view.url!r})"
        parts = urlsplit(view.url)
        assert client.get(view.url).status_code == 200
        number = parts.path.removeprefix("/s/")
        about = client.get(f"http://{parts.netloc}/data/{number}/about").json()
        assert about["path"] == str(folder / "steps")
    with pytest.raises(httpx.ConnectError):
        httpx.get(view.url, timeout=60)


def test_a_view_that_is_closed_holds_nothing(folder: Path) -> None:
    before = shelf.entries
    store = sw.open(folder / "steps")
    held = weakref.ref(store)
    views = [sw.view(store), sw.view(folder / "games"), sw.view(folder / "games")]
    numbers = {urlsplit(view.url).path for view in views}
    assert len(numbers) == 2  # a path has one
    for view in views:
        view.close()
        view.close()
    assert shelf.entries == before
    del store, view, views
    gc.collect()
    assert held() is None
    with pytest.raises(KeyError):
        sw.view(folder / "steps", episode=99)
    assert shelf.entries == before


def test_a_folder_of_stores_begins_with_all_of_them(folder: Path) -> None:
    with sw.view(folder) as view:
        assert urlsplit(view.url).path == "/"


def test_one_episode_by_its_id(folder: Path) -> None:
    with (
        sw.open(folder / "replays") as store,
        sw.view(store, episode="flat-ep0000") as view,
    ):
        parts = urlsplit(view.url)
        assert parts.path.endswith("/play")
        assert parse_qs(parts.query)["run"] == ["flat-ep0000"]
        with pytest.raises(KeyError, match="no run 'flat-ep0099' - at "):
            sw.view(store, episode="flat-ep0099")
        with pytest.raises(ValueError, match="its rows have no runs"):
            sw.view(sw.ArraySource(np.arange(5)), episode=1)


@pytest.mark.parametrize("what", [{"x": [1]}, 5, None])
def test_what_is_neither_a_store_nor_a_path(what: object) -> None:
    with pytest.raises(TypeError, match="expected a store or a path, got "):
        sw.view(what)  # type: ignore[arg-type]


def test_a_path_that_is_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        sw.view(tmp_path / "nowhere")
    with pytest.raises(sw.KindError, match="or a folder of them, got none"):
        sw.view(tmp_path)


@pytest.mark.usefixtures("proxy")
def test_in_a_notebook_through_its_proxy(
    folder: Path, browser: Browser, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole viewer in the cell, with links, pictures and the socket of its pages."""
    context = browser.new_context()
    context.set_default_timeout(TIMEOUT_MS)
    with notebook() as server, sw.view(folder / "games") as view, watched(context) as page:
        assert capsys.readouterr().out == ""
        server.cell = view._repr_html_()
        assert view._server.token not in server.cell
        page.goto(server.address)
        inside = page.frame_locator("iframe")
        inside.get_by_role("link", name="Runs").click()
        row = inside.get_by_role("row").filter(has_text="stepwell-expectimax")
        expect(row).to_have_count(3)
        frame = page.frames[1]
        assert (
            urlsplit(frame.url).path
            == f"{PREFIX}proxy/{view._server.port}{urlsplit(view.url).path}/runs"
        )
        assert "token" not in frame.url
        frame.goto(frame.url.replace("/runs", "/play?run=1"))
        expect(inside.locator("canvas").first).to_be_visible()
        assert_plays(frame)
        # The cell that the notebook keeps shows the viewer again to whoever was let in, only.
        page.goto(server.address)
        expect(inside.get_by_role("link", name="Runs")).to_be_visible()
        stranger = browser.new_page()
        stranger.goto(server.address)
        expect(stranger.frame_locator("iframe").locator("body")).to_contain_text("token is wrong")
        stranger.close()
    context.close()


def assert_plays(frame: Frame) -> None:
    """Steps get there, and are drawn."""
    frame.wait_for_function("window.stepwellStats?.drawn > 0")
    before = frame.evaluate("stepwellStats.drawn")
    frame.evaluate("stepwellPlayer.seek(100)")
    frame.wait_for_function(f"stepwellPlayer.step === 100 && stepwellStats.drawn > {before}")


@pytest.mark.usefixtures("kernel")
def test_in_a_notebook_without_a_proxy_the_static_page(folder: Path, browser: Browser) -> None:
    context = browser.new_context()
    context.set_default_timeout(TIMEOUT_MS)
    with notebook() as server, sw.view(folder / "games", episode=1) as view:
        server.cell = view._repr_html_()
        assert "srcdoc" in server.cell
        with watched(context) as page:
            page.goto(server.address)
            expect(page.frame_locator("iframe").locator("canvas").first).to_be_visible()
            assert_plays(page.frames[1])
    context.close()


@pytest.mark.usefixtures("kernel")
def test_in_a_notebook_rows_without_runs_show_what_they_are(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.arange(5))
    with sw.open(tmp_path / "rows.npy") as store, sw.view(store) as view:
        assert view._repr_html_() == store._repr_html_()


def test_where_a_notebook_shows_ports(tmp_path: Path) -> None:
    """By the hub, by the server that started this kernel, or at the root."""
    assert proxy_base() is None
    (tmp_path / "jupyter_server_proxy.py").write_text("")
    script = "from stepwell.viewer.browser import proxy_base; print(proxy_base())"

    def base(**environment: str) -> str:
        return children.answer(script, env={"PYTHONPATH": str(tmp_path), **environment})

    assert base() == "/"
    assert base(JUPYTERHUB_SERVICE_PREFIX="/user/ada/") == "/user/ada/"
    (tmp_path / "jupyter_server").mkdir()
    (tmp_path / "jupyter_server" / "__init__.py").write_text("")
    servers = [{"pid": 7, "base_url": "/other/"}, {"pid": 8, "base_url": "/mine/"}]
    text = f"def list_running_servers():\n    yield from {servers}\n"
    (tmp_path / "jupyter_server" / "serverapp.py").write_text(text)
    assert base(JPY_PARENT_PID="8") == "/mine/"
    assert base(JPY_PARENT_PID="9") == "/"
