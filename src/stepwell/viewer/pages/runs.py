"""The runs or episodes of a store: filtered by SQL, sorted, a page at a time, with thumbnails."""

import re
from functools import partial
from time import perf_counter
from typing import Any
from urllib.parse import urlencode

from fastapi import Request
from nicegui import html, ui
from nicegui.events import GenericEventArguments

from stepwell.errors import StepwellError
from stepwell.viewer.episodes import open_episode
from stepwell.viewer.listing import list_runs
from stepwell.viewer.pages import frame
from stepwell.viewer.shelf import Entry, Shelf

PAGE_ROWS = 50

_CHOOSE, _CHOSEN = "Choose two to play side by side", "Play side by side"
_PLAIN = re.compile(r"(^|_)(id|idx|index|unix_s|year|seed|number|version)$")
_AMOUNT = re.compile("score|reward|return|tile|(^|_)(steps|length)$")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]*(\+00:00|Z)?$")

# `row.play` and `row.thumb` are addresses; every text goes through Vue, which escapes it.
_KEY_CELL = """
<q-td :props="props"><a class="sw-link sw-mono" :href="props.row.play">{{ props.value }}</a></q-td>
"""
_THUMB_CELL = """
<q-td :props="props" class="sw-thumb"><a :href="props.row.play" tabindex="-1" aria-hidden="true"
><img v-if="props.row.thumb" :src="props.row.thumb" loading="lazy" alt=""
@error="e => e.target.style.opacity = 0"></a></q-td>
"""
_CELL = """
<q-td :props="props"><div class="sw-cell" :title="props.value">{{ props.value }}</div></q-td>
"""
_PLACE = """(first, last, count) => {
  const [a, b, n] = [first, last, count].map(each => each.toLocaleString('en-US'));
  return `${a}-${b} of ${n}`;
}"""
_TO_PLAY = """(event, row) => {
  if (event.target.closest('a, .q-checkbox') || getSelection().toString()) return;
  location.href = row.play;
}"""


def register(shelf: Shelf) -> None:
    @frame.tab(shelf, "runs")
    async def runs(entry: Entry, request: Request, main: ui.element) -> None:
        view = _Runs(entry, request)
        if await frame.fill(entry, main, entry.about, lambda about: view.lay_out(about.runs)):
            await view.show()


class _Runs:
    """What one browser looks at."""

    def __init__(self, entry: Entry, request: Request) -> None:
        self._entry, self._prefix = entry, frame.prefix()
        self._where = frame.query_text(request, "where")
        self._sort = frame.query_text(request, "sort")
        self._descending = frame.query_text(request, "desc") in ("1", "true")
        self._page = max(1, frame.query_number(request, "page", 1))
        self._latest = frame.Latest(entry, self._refuse)
        self._place: ui.element | None = None
        self._table: ui.table | None = None

    def lay_out(self, count: int | None) -> None:
        """The parts of the page, before a row is there."""
        if count is None:
            noun = self._entry.store.noun
            ui.label(f"The rows of {noun} have no runs.").classes("sw-dim")
            ui.link("Look at the rows", f"/s/{self._entry.number}/rows").classes("sw-link")
            return
        with html.div().classes("sw-row sw-filter"):
            self._input = ui.input(placeholder="all", value=self._where)
            self._input.props('outlined dense clearable aria-label="Condition" spellcheck=false')
            self._input.props("autocomplete=off autocapitalize=off").classes("sw-mono")
            with self._input.add_slot("prepend"):
                ui.label("WHERE").classes("sw-small sw-dim")
            # The condition is in the event: two events may change places until a page is connected.
            typed = f"() => emit(getHtmlElement({self._input.id}).value)"
            self._input.on("keydown.enter", self._filter, js_handler=typed)
            self._input.on("clear", self._filter, js_handler="() => emit('')")
            button = ui.button("Filter").props("unelevated no-caps")
            button.on("click", self._filter, js_handler=typed)
            with ui.button("Columns", icon="list", color=None).props("flat no-caps"):
                self._menu = ui.menu().props("max-height=60vh")
        with html.div().classes("sw-row sw-apart sw-bar"):
            self._count = ui.label("…").classes("sw-dim").props("aria-live=polite")
            self._compare = ui.button(_CHOOSE, icon="splitscreen")
            self._compare.props("flat dense no-caps disable")
        self._problem = html.div()
        with html.div().classes("sw-busy"):  # of its own: the table would be sent again with it
            self._busy = ui.linear_progress(show_value=False, size="2px").props("indeterminate")
            self._busy.set_visibility(False)
        with html.div().classes("sw-runs") as self._place:
            ui.skeleton("rect", height="640px")

    async def show(self) -> None:
        """The rows that the address asks for."""
        if self._place is not None:
            await frame.fill(self._entry, self._place, self._fetch, self._first, self._refuse)

    # Asking.

    def _fetch(self) -> dict[str, Any]:
        begin = perf_counter()
        found = self._listed()
        if not found["rows"] and found["count"]:  # an address of a list that was longer
            self._page = -(-found["count"] // PAGE_ROWS)
            found = self._listed()
        return {**found, "took_s": perf_counter() - begin, "pictured": self._pictured(found)}

    def _listed(self) -> dict[str, Any]:
        return list_runs(
            self._entry,
            where=self._where,
            sort=self._sort,
            descending=self._descending,
            offset=(self._page - 1) * PAGE_ROWS,
            limit=PAGE_ROWS,
        )

    def _pictured(self, found: dict[str, Any]) -> list[bool]:
        """Which of these runs have thumbnails; those of one recording all do, or none."""
        columns, key = found["columns"], found["columns"].index(found["key"])
        group = columns.index("run_id") if "run_id" in columns else None
        pictured = []
        for row in found["rows"]:
            known = ("pictured", None if group is None else row[group])
            pictured.append(self._entry.remembered(known, partial(self._draws, str(row[key]))))
        return pictured

    def _draws(self, key: str) -> bool:
        try:
            drawings = open_episode(self._entry, key).drawings
        except (StepwellError, OSError, KeyError):
            return False
        return bool(drawings) and drawings[0].draw in ("board", "image", "planes")

    async def _again(self) -> None:
        """Show what was asked for last; what is wrong with it stands above the rows of before."""
        self._busy.set_visibility(True)
        found = await self._latest.answer(self._fetch)
        if found is None:
            return
        self._problem.clear()
        if self._table is None:
            assert self._place is not None
            with self._place:
                self._first(found)
        else:
            self._fill(self._table, found)
        ui.navigate.history.replace(self._prefix + self._address())

    def _refuse(self, error: Exception) -> None:
        self._busy.set_visibility(False)
        self._count.set_text("")
        self._problem.clear()
        with self._problem:
            frame.problem(error, entry=self._entry)

    async def _filter(self, event: GenericEventArguments) -> None:
        self._where, self._page = str(event.args), 1
        if self._table is None:  # nothing could be listed; the order may be why
            self._sort, self._descending = "", False
        await self._again()

    async def _turn(self, event: GenericEventArguments) -> None:
        wanted = event.args["pagination"]
        sort = self._columns.get(wanted.get("sortBy") or "", "")
        if (sort, bool(wanted.get("descending"))) != (self._sort, self._descending):
            self._page = 1
        else:
            self._page = int(wanted["page"])
        self._sort, self._descending = sort, bool(sort and wanted.get("descending"))
        await self._again()

    # Showing.

    def _first(self, found: dict[str, Any]) -> None:
        """The table, and the menu of columns, once these are known."""
        names, key = found["columns"], found["key"]
        self._columns = {f"c{i}": name for i, name in enumerate(names)}
        numeric = [
            any(isinstance(row[i], int | float) for row in found["rows"]) for i in range(len(names))
        ]
        columns: list[dict[str, Any]] = [
            {
                "name": f"c{i}",
                "field": f"c{i}",
                "label": name,
                "sortable": True,
                "align": "right" if numeric[i] and name != key else "left",
            }
            for i, name in enumerate(names)
        ]
        at = names.index(key)
        columns.sort(key=lambda each: (each["label"] != key, not _AMOUNT.search(each["label"])))
        if any(found["pictured"]):
            columns.insert(0, {"name": "thumb", "field": "thumb", "label": "", "align": "left"})
        table = self._table = ui.table(
            columns=columns, rows=[], row_key="key", selection="multiple", on_select=self._select
        ).props("dense flat")
        table.props["hide-pagination"] = False
        table.props["hide-selected-banner"] = True
        table.props[":pagination-label"] = _PLACE
        table.props["rows-per-page-options"] = [PAGE_ROWS]
        table.on("request", self._turn).on("rowClick", js_handler=_TO_PLAY)
        table.add_slot("header-selection", "<span></span>")  # all of them is never two
        table.add_slot("body-cell", _CELL)
        table.add_slot(f"body-cell-c{at}", _KEY_CELL)
        table.add_slot("body-cell-thumb", _THUMB_CELL)
        with self._menu:
            for name in names:
                ui.menu_item(name, on_click=lambda name=name: self._insert(name)).classes("sw-mono")
        known = [
            name for name, is_one in zip(names, numeric, strict=True) if is_one and name != key
        ]
        example = next((name for name in known if _AMOUNT.search(name)), known[0] if known else key)
        self._input.props["placeholder"] = f"all of them, or a condition like {example} > 100"
        self._fill(table, found)

    def _fill(self, table: ui.table, found: dict[str, Any]) -> None:
        names, at = found["columns"], found["columns"].index(found["key"])
        rows = []
        for row, pictured in zip(found["rows"], found["pictured"], strict=True):
            key = str(row[at])
            made = {f"c{i}": _shown(name, row[i]) for i, name in enumerate(names)}
            made |= {"key": key, "play": self._play(run=key)}
            if pictured:
                query = urlencode({"key": key, "v": self._entry.version})
                made["thumb"] = f"{self._prefix}/data/{self._entry.number}/thumb?{query}"
            rows.append(made)
        sorted_by = next((c for c, name in self._columns.items() if name == self._sort), None)
        table.props["pagination"] = {
            "page": self._page,
            "rowsPerPage": PAGE_ROWS,
            "rowsNumber": found["count"],
            "sortBy": sorted_by,
            "descending": self._descending,
        }
        filtered = bool(self._where.strip())
        nothing = f"There are no {self._entry.store.runs_table} yet."
        table.props["no-data-label"] = "No run fits the condition." if filtered else nothing
        self._busy.set_visibility(False)
        table.rows = rows
        table.update()
        noun = frame.one_or_more(found["count"], self._entry.store.runs_table)
        fit = "" if not filtered else " fits" if found["count"] == 1 else " fit"
        self._count.set_text(f"{found['count']:,} {noun}{fit} · {found['took_s'] * 1e3:.0f} ms")
        if "damage" in found:
            with self._problem:
                frame.problem(found["damage"], "So runs cannot be filtered or sorted here.")

    def _select(self) -> None:
        """Two runs, no more: a third one takes the place of the first."""
        assert self._table is not None
        self._table.selected = self._table.selected[-2:]
        chosen = [row["key"] for row in self._table.selected]
        self._compare.set_text(_CHOSEN if len(chosen) == 2 else _CHOOSE)
        if len(chosen) == 2:
            self._compare.props(remove="disable")
            self._compare.props["href"] = self._play(run=chosen[0], beside=chosen[1])
        else:
            self._compare.props("disable").props(remove="href")
        self._compare.update()

    def _insert(self, name: str) -> None:
        """Write a column into the condition."""
        quoted = (
            name if re.fullmatch(r"[A-Za-z_]\w*", name) else '"' + name.replace('"', '""') + '"'
        )
        self._input.set_value(f"{self._input.value} AND {quoted}" if self._input.value else quoted)
        self._input.run_method("focus")

    def _play(self, **about: str) -> str:
        query = {**about, **self._state()}
        return f"{self._prefix}/s/{self._entry.number}/play?{urlencode(query)}"

    def _address(self) -> str:
        page = {"page": str(self._page)} if self._page > 1 else {}
        query = urlencode({**self._state(), **page})
        return f"/s/{self._entry.number}/runs" + (f"?{query}" if query else "")

    def _state(self) -> dict[str, str]:
        state = {"where": self._where, "sort": self._sort, "desc": "1" * self._descending}
        return {name: text for name, text in state.items() if text.strip()}


def _shown(name: str, value: Any) -> str:
    """A value of a run as people read it; what names something is left as it is."""
    if value is None:
        return "-"
    if isinstance(value, bool) or (isinstance(value, int) and _PLAIN.search(name)):
        return str(value)
    if isinstance(value, int | float):
        return frame.number(value)
    return value[:19].replace("T", " ") if _TIME.match(value) else str(value)
