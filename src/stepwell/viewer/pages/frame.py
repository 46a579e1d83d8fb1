"""What every page has: header, navigation, light or dark, and sentences for what goes wrong."""

import asyncio
import html
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from time import monotonic
from typing import TypeVar

from anyio import to_thread
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import PlainTextResponse, Response
from nicegui import Client, app, ui

from stepwell.description import Description
from stepwell.errors import (
    BusyError,
    FetchError,
    FormatError,
    KindError,
    SchemaError,
    VersionError,
)
from stepwell.viewer.shelf import Entry, Shelf

T = TypeVar("T")

_STATIC = Path(__file__).parent.parent / "static"
_TABS = {"": "Overview", "runs": "Runs", "rows": "Rows", "check": "Loader"}
_THEMES = {"auto": ("brightness_auto", "light"), "light": ("light_mode", "dark"),
           "dark": ("dark_mode", "auto")}  # fmt: skip
_THEME = "stepwell-theme"
_NO_PAGES = ("/static/", "/data/", "/_nicegui")
_AT_ONCE_S = 0.4
"""What is there by then is part of the page; the rest follows."""
_WAITS_S = 1.0
"""Then a page reports what it waits for, and how long it has."""
_ANSWERS_S = 60.0
_MAX_SENTENCE = 600
_STAIRS = (
    '<svg viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="2.4" '
    'aria-hidden="true"><path d="M2 5h5v5h5v5h5v5h5"/></svg>'
)
_BACKGROUND = (
    "<style>html{background:#f6f7f8}%s{html{background:#111417}}</style>"  # before anything loads
)


def register(shelf: Shelf) -> None:
    """The stylesheet and scripts of the pages, and a page for addresses that lead nowhere."""
    app.add_static_files("/static", _STATIC)

    @app.exception_handler(404)
    @app.exception_handler(RequestValidationError)
    async def nowhere(request: Request, error: Exception) -> Response:
        if request.url.path.startswith(_NO_PAGES):
            return PlainTextResponse("not found\n", 404)
        with Client(ui.page(""), request=request) as client:
            _not_found(f"expected the address of a page, got {request.url.path}")
        return client.build_response(request, 404)


def at(path: str) -> ui.page:
    """A page at this address. On a machine that is busy it comes late, not as an error."""
    return ui.page(path, response_timeout=_ANSWERS_S)


def prefix() -> str:
    """What addresses begin with behind a proxy."""
    request = ui.context.client.request
    forwarded = request.headers.get("x-forwarded-prefix", "")
    return str(forwarded + request.scope.get("root_path", ""))


@contextmanager
def page(title: str, entry: Entry | None = None, tab: str | None = None) -> Iterator[ui.element]:
    """The frame of a page; the block fills it. `tab` is what its address has behind the store."""
    names = [title, *([entry.name] if entry else []), "stepwell"]
    ui.page_title(" · ".join(dict.fromkeys(names)))
    theme = ui.context.client.request.cookies.get(_THEME, "auto")
    theme = theme if theme in _THEMES else "auto"
    media = {"auto": "@media (prefers-color-scheme: dark)", "dark": "@media all"}
    ui.add_head_html(_BACKGROUND % media.get(theme, "@media not all"))
    ui.add_head_html(f'<link rel="stylesheet" href="{_static("viewer.css")}">')
    ui.add_head_html(f'<script type="module" src="{_static("away.js")}"></script>')
    ui.colors(primary="#0d8276", negative="#c02f2f", positive="#22863a")
    with ui.element("header").classes("sw-header"):
        with ui.link(target="/").classes("sw-brand").props('aria-label="All stores"'):
            ui.html(_STAIRS, sanitize=False).style("display: contents")
            ui.label("stepwell")
        with ui.element("nav").classes("sw-crumb").props("aria-label=Place"):
            if entry is not None:
                ui.label("/")
                ui.link(entry.name, f"/s/{entry.number}").classes("sw-here").tooltip(entry.path)
            if tab is None and (entry is None or title != entry.name) and title != "Stores":
                ui.label("/")
                ui.label(title).classes("sw-here")
        if entry is not None:
            with ui.element("nav").classes("sw-tabs").props("aria-label=Views"):
                for name, words in _TABS.items():
                    target = f"/s/{entry.number}" + (f"/{name}" if name else "")
                    link = ui.link(words, target)
                    if name == tab:
                        link.props('aria-current="page"')
        ui.element("div").classes("sw-grow")
        with ui.link(target="/live").classes("sw-live"):
            ui.icon("sensors")
            ui.label("Live")
        _theme_switch(theme)
    with ui.element("div").classes("sw") as main:
        yield main


def _static(name: str) -> str:
    """The address of a file, for HTML. Browsers keep it until it changes."""
    written = int((_STATIC / name).stat().st_mtime)
    return html.escape(f"{prefix()}/static/{name}?{written}")


def _theme_switch(theme: str) -> None:
    """Auto, light, dark, in turn. The browser remembers it, in a cookie that this reads."""
    mode = ui.dark_mode({"light": False, "dark": True}.get(theme))

    def show(name: str) -> None:
        nonlocal theme
        theme = name
        button.props(f"icon={_THEMES[name][0]}")
        tip.set_text(f"Colours: {name}")

    def turn() -> None:
        show(_THEMES[theme][1])
        mode.set_value({"light": False, "dark": True}.get(theme))
        kept = f"{_THEME}={theme}; path=/; max-age=31536000; samesite=lax"
        ui.run_javascript(f"document.cookie = {kept!r}")

    button = ui.button(on_click=turn, color=None).props(
        'flat dense round aria-label="Light or dark"'
    )
    with button:
        tip = ui.tooltip()
    show(theme)


def number(value: float) -> str:
    """A number as people read it: `1,234`, `0.0312`, `1.2e+19`."""
    if value != value or value in (float("inf"), float("-inf")):
        return str(value)
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    if 1e-3 <= abs(value) < 1e6:
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.1f}"
    return f"{value:.3g}"


def size(count: float) -> str:
    """Bytes as people read them."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:,.0f} {unit}" if unit == "bytes" else f"{count:,.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"


def kind_of(about: Description) -> str:
    """What people call such a store."""
    words = {"steps": "step dataset", "records": "record store", "shards": "activation shards",
             "replay": "replay store", "npy": "array", "arrayrecord": "array records"}  # fmt: skip
    return words.get(about.kind, about.kind)


def one_or_more(value: float, words: str) -> str:
    """What is counted: `run` where it is one."""
    return words.removesuffix("s") if value == 1 else words


def figure(value: float | str, words: str) -> None:
    """A number, and what it counts."""
    with ui.element("div"):
        if isinstance(value, str):
            ui.label(value).classes("sw-figure")
        else:
            ui.label(number(value)).classes("sw-figure")
            words = one_or_more(value, words)
        ui.label(words).classes("sw-dim sw-small")


def amounts(entry: Entry, about: Description) -> None:
    """How much there is in a store."""
    figure(about.rows, "rows")
    if about.runs is not None:
        figure(about.runs, entry.store.runs_table)
    figure(size(about.bytes), "on disk")


def health(words: str, problem: str | None) -> ui.label:
    """A line about the health of a store."""
    shown = problem or words
    return ui.label(shown).classes("sw-dot " + ("sw-good" if shown == "fine" else "sw-warn"))


# What went wrong.


def problem(error: BaseException | str, advice: str = "", entry: Entry | None = None) -> ui.element:
    """A sentence that names what is wrong with a store, and one about what to do."""
    with ui.element("div").classes("sw-problem").props("role=alert") as shown:
        ui.icon("error_outline")
        with ui.element("div"):
            ui.label(error if isinstance(error, str) else sentence(error))
            hint = advice or (advice_for(error, entry) if isinstance(error, BaseException) else "")
            if hint:
                ui.label(hint).classes("sw-dim")
    return shown


def sentence(error: BaseException) -> str:
    """An error in words; of those that have none, its name."""
    if isinstance(error, KeyError) and error.args:
        return _short(str(error.args[0]))
    if isinstance(error, FileNotFoundError) and error.filename:
        return f"expected something at {error.filename}, there is nothing"
    return _short(str(error)) or type(error).__name__


def _short(words: str) -> str:
    """A sentence without the middle of a long one: it repeats what was typed, and ends with why."""
    half = _MAX_SENTENCE // 2
    return words if len(words) <= _MAX_SENTENCE else f"{words[:half]} … {words[-half:]}"


def advice_for(error: BaseException, entry: Entry | None = None) -> str:
    """What whoever looks at it can do."""
    if isinstance(error, FileNotFoundError):
        return "It was moved or removed. Open the viewer with the path that it has now."
    if isinstance(error, VersionError):
        return "It was written by a newer stepwell. Install that one to look at it."
    if isinstance(error, KindError):
        return "Open the viewer with the path of a store, or of a folder that holds some."
    if isinstance(error, FormatError):
        where = entry.path if entry is not None else "PATH"  # what the error names is a part of it
        return f"It is damaged. `stepwell verify {quote(where)}` lists all that is wrong with it."
    if isinstance(error, BusyError):
        return "Somebody is writing there. Load the page again in a moment."
    if isinstance(error, FetchError):
        return "Look at the address and at the network, then load the page again."
    if isinstance(error, TimeoutError):
        return "Ask for less: a condition over columns is answered in milliseconds."
    if isinstance(error, SchemaError):
        return "Choose runs that go together by a condition."
    if isinstance(error, MemoryError):
        return "There is not enough memory for it on this machine."
    return ""


Shows = Callable[[Entry, Request, ui.element], Awaitable[None]]


def tab(shelf: Shelf, name: str) -> Callable[[Shows], Shows]:
    """Have a function fill the page that a store has behind this tab."""

    def decorated(shows: Shows) -> Shows:
        @at("/s/{number}" + (f"/{name}" if name else ""))
        async def shown(number: int, request: Request) -> None:
            entry = entry_at(shelf, number)
            if entry is not None:
                with page(_TABS[name] if name else entry.name, entry, name) as main:
                    await shows(entry, request, main)

        return shows

    return decorated


def entry_at(shelf: Shelf, number: int) -> Entry | None:
    """The store with this number; without one the page reports it."""
    try:
        return shelf[number]
    except KeyError as error:
        ui.status_code(404)
        _not_found(sentence(error))
        return None


def without_runs() -> None:
    """Have the tab of runs look as if it led nowhere: it does."""
    ui.query(".sw-tabs a[href$='/runs']").classes("sw-off")


def _not_found(words: str) -> None:
    with page("Not found"):
        problem(words, "Go back to all stores, and look for it there.")
        ui.link("All stores", "/").classes("sw-link")


# Filling pages in.


async def in_thread(entry: Entry, work: Callable[[], T], *, slow: bool = False) -> T:
    """What `work` returns. A store has a few threads, of which what is `slow` gets some only."""
    return await to_thread.run_sync(work, limiter=entry.slow_threads if slow else entry.threads)


class Latest:
    """What one browser asks a store for, of which only the last counts."""

    def __init__(self, entry: Entry, refuse: Callable[[Exception], object]) -> None:
        self._entry, self._refuse, self._count = entry, refuse, 0

    async def answer(self, work: Callable[[], T]) -> T | None:
        """What `work` returns. None where something else was asked for meanwhile, and for an error,
        which is handed to `refuse`."""
        self._count += 1
        number = self._count
        try:
            async with self._entry.slow_threads:
                if number != self._count:
                    return None
                found = await in_thread(self._entry, work)
        except Exception as error:
            if number == self._count:
                self._refuse(error)
            return None
        return found if number == self._count else None


async def fill(
    entry: Entry,
    place: ui.element,
    work: Callable[[], T],
    show: Callable[[T], object],
    broken: Callable[[Exception], object] | None = None,
    *,
    slow: bool = False,
) -> T | None:
    """Show what `work` returns in a place that has a skeleton until then. It runs in a thread.

    What it raises is shown in its place, and None is returned.
    """
    begin = monotonic()
    task = asyncio.ensure_future(in_thread(entry, work, slow=slow))
    await asyncio.wait({task}, timeout=_AT_ONCE_S)
    if not task.done():
        await place.client.connected()
        await _wait(task, entry, place, begin)
    try:
        found = await task
    except Exception as error:  # whatever a store raises, somebody should read it
        if not place.is_deleted:
            place.clear()
            with place:
                broken(error) if broken is not None else problem(error, entry=entry)
        return None
    if place.is_deleted:
        return None
    place.clear()
    with place:
        show(found)
    return found


async def _wait(task: "asyncio.Task[T]", entry: Entry, place: ui.element, begin: float) -> None:
    """Wait for what a place is filled with; report it there while that takes long."""
    await asyncio.wait({task}, timeout=max(0.0, begin + _WAITS_S - monotonic()))
    if task.done() or place.is_deleted:
        return
    with place:
        words = ui.label().classes("sw-dim").props("role=status")
        words.move(place, 0)
    rest = " A URL without an answer is given up after about a minute." if entry.is_remote else ""
    while not task.done() and not place.is_deleted:
        words.set_text(f"Waiting for {entry.path}, {monotonic() - begin:.0f} s so far.{rest}")
        await asyncio.wait({task}, timeout=1.0)


def query_text(request: Request, name: str, otherwise: str = "") -> str:
    """A part of the address."""
    return request.query_params.get(name, otherwise)


def query_number(request: Request, name: str, otherwise: int) -> int:
    """A whole number of the address; what is none counts as not given."""
    given = request.query_params.get(name, "")
    return int(given) if given.isdecimal() and len(given) < 19 else otherwise
