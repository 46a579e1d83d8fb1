"""Where a viewer is seen: in a browser, or in the cell of a notebook."""

import os
import sys
import tempfile
import threading
import webbrowser
from collections.abc import Mapping, Sequence
from html import escape
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from stepwell.errors import StepwellError
from stepwell.files.extras import library
from stepwell.store import Store

if TYPE_CHECKING:
    from stepwell.viewer import server
    from stepwell.viewer.shelf import Entry, Shelf

_OPENS_S = 60.0
_FRAME = 'style="width: 100%; height: 640px; border: 0" title="stepwell"'


class View:
    """A viewer that is running: `url` is for a browser, `close` ends it.

    As the result of a notebook's cell it shows itself.
    """

    def __init__(
        self, running: "server.Server", shelf: "Shelf", entries: "list[Entry]", episode: Any
    ) -> None:
        self._server, self._shelf, self._entries = running, shelf, entries
        self._episode = episode
        self._page = page_of(entries[0].number, episode)
        if len(entries) > 1 and episode is None:
            self._page = "/", {}

    @property
    def url(self) -> str:
        """The address, token included."""
        return self._server.url(*self._page)

    def close(self) -> None:
        """Stop the server, and let go of the store."""
        self._server.stop()
        for entry in self._entries:
            self._shelf.remove(entry)
        self._entries = []

    def __enter__(self) -> "View":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"View({self.url!r})"

    def _repr_html_(self) -> str:
        base = proxy_base()
        if base is None:
            return self._static()
        # What a notebook keeps of a cell opens nothing later: the code is good for one load.
        path, query = self._page
        given = urlencode({**query, "token": self._server.guard.one_time_code()})
        source = f"{base}proxy/{self._server.port}{path}?{given}"
        return f'<iframe src="{escape(source)}" {_FRAME}></iframe>'

    def _static(self) -> str:
        """One episode without a server; of a store without runs what it is."""
        store, key = self._entries[0].store, self._episode
        if key is None:
            key = _first_run(self._entries[0])
        if key is None:
            return store._repr_html_()
        from stepwell.viewer.export import episode_html

        return f'<iframe srcdoc="{escape(episode_html(store, key))}" {_FRAME}></iframe>'


def view(store: Store | str | os.PathLike[str], episode: Any = None) -> View:
    """Show a store, or what is at a path, in a browser: all of it, or one episode by its id.

    The address is printed, and opened where there is a screen. In a notebook the result shows
    itself instead: the whole viewer through jupyter-server-proxy, where there is one, else a page
    of one episode. Needs the extra `viewer`.

    Raises `KeyError` when there is no such episode, and what `stepwell.open` raises.
    """
    if not isinstance(store, Store | str | os.PathLike):
        raise TypeError(f"expected a store or a path, got {type(store).__name__}")
    shelf, make_server = load()
    entries = [shelf.add_store(store)] if isinstance(store, Store) else shelf.add(os.fspath(store))
    inside = in_notebook()
    try:
        if episode is not None:
            entries[0].store.steps_of(episode)  # `KeyError` here, not in the browser
        running = make_server(hosts=["*"] if inside and proxy_base() is not None else [])
        running.start()
    except BaseException:
        for entry in entries:
            shelf.remove(entry)
        raise
    made = View(running, shelf, entries, episode)
    if not inside:
        print(made.url)
        open_browser(made.url)
    return made


def load() -> "tuple[Shelf, type[server.Server]]":
    """The shelf of this process and the class of servers. Raises `ImportError` naming the extra."""
    for module in ("nicegui", "PIL"):
        library(module, "viewer")
    loaded = import_module("stepwell.viewer.server")
    return loaded.shelf, loaded.Server


def page_of(number: int, episode: Any) -> tuple[str, dict[str, str]]:
    """The path and the query of a store's page, or of one episode's."""
    if episode is None:
        return f"/s/{number}", {}
    return f"/s/{number}/play", {"run": str(episode)}


def find_episode(entries: "Sequence[Entry]", text: str | None) -> "tuple[Entry, Any]":
    """The store that has the run with this id, and its key; without an id the first run there is.

    Raises `KeyError` when there is none, or why a store could not be looked into.
    """
    from stepwell.viewer.listing import run_row

    problem: Exception | None = None
    for entry in entries:
        try:
            if entry.store.runs is None:
                continue
            key = _first_run(entry) if text is None else run_row(entry.store, text)[1]
            if key is not None:
                return entry, key
        except KeyError:
            continue
        except (StepwellError, OSError) as error:
            problem = problem or error
    if problem is not None:
        raise problem
    wanted = "run" if text is None else f"run {text!r}"
    raise KeyError(f"no {wanted} in {', '.join(entry.path for entry in entries)}")


def open_browser(url: str) -> bool:
    """Open a browser where there is a screen; return whether there is.

    Its command line is no secret on a machine with other users. So what it is given is a file that
    only this user can read, which leads to the address.
    """
    if "SSH_CONNECTION" in os.environ or not _has_screen(os.environ):
        return False
    with tempfile.NamedTemporaryFile("w", suffix=".html", prefix="stepwell-", delete=False) as file:
        refresh = f'<meta http-equiv="refresh" content="0; url={escape(url)}">'
        file.write(f'<!doctype html><meta charset="utf-8">{refresh}')
    path = Path(file.name)
    forget = threading.Timer(_OPENS_S, path.unlink, kwargs={"missing_ok": True})
    forget.daemon = True
    forget.start()
    return webbrowser.open(path.as_uri())


def _has_screen(environment: Mapping[str, str]) -> bool:
    return sys.platform != "linux" or bool(
        environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY")
    )


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython: Any = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


def proxy_base() -> str | None:
    """The path of the notebook's server below which it shows ports; None without a proxy."""
    if find_spec("jupyter_server_proxy") is None:
        return None
    given = os.environ.get("JUPYTERHUB_SERVICE_PREFIX")
    if given is not None:
        return given
    parent = os.environ.get("JPY_PARENT_PID")
    try:
        servers = list(import_module("jupyter_server.serverapp").list_running_servers())
    except ImportError:
        servers = []
    found = [each["base_url"] for each in servers if str(each.get("pid")) == parent]
    return str(found[0]) if found else "/"


def _first_run(entry: "Entry") -> Any:
    """The key of the first run; None when there are none."""
    from stepwell.viewer.listing import list_runs

    if entry.store.runs is None:
        return None
    found = list_runs(entry, limit=1)
    return found["rows"][0][found["columns"].index(found["key"])] if found["rows"] else None
