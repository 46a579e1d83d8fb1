"""Rows as they are read: pictures, sparklines and text, in order or as a loader gives them."""

import base64
from dataclasses import asdict, replace
from random import SystemRandom
from typing import Any
from urllib.parse import urlencode

from fastapi import Request
from nicegui import html, ui

from stepwell.description import Description
from stepwell.viewer.batches import Choice, Line, Lines, chosen, unlike_where
from stepwell.viewer.pages import charts, frame
from stepwell.viewer.shelf import Entry, Shelf
from stepwell.viewer.tracks import board_picture, png

PAGE_ROWS = 20

_MAX = 2**53

# Every text goes through Vue, which escapes it; paths and pictures are made here.
_CELL = """
<q-td :props="props">
  <template v-if="props.value === null"
    ><span class="sw-absent">{{ props.row.absent }}</span></template>
  <img v-else-if="props.value.image" :src="props.value.image" class="sw-picture" alt="">
  <div v-else-if="props.value.path !== undefined" class="sw-vector" :title="props.value.words">
    <svg v-if="props.value.path" class="sw-spark" viewBox="0 0 120 28" preserveAspectRatio="none"
      ><path :d="props.value.path"/></svg>
    <span class="sw-dim">{{ props.value.words }}</span>
  </div>
  <div v-else-if="props.value.text !== undefined" class="sw-text" :title="props.value.text"
    >{{ props.value.text }}</div>
  <template v-else>{{ props.value }}</template>
</q-td>
"""
_ROW_CELL = """
<q-td :props="props"><span class="sw-mono" :class="{'sw-damaged': props.row.damage}"
  :title="props.row.damage">{{ props.value }}</span></q-td>
"""


def register(shelf: Shelf) -> None:
    @frame.tab(shelf, "rows")
    async def rows(entry: Entry, request: Request, main: ui.element) -> None:
        view = _Rows(entry, request)
        if await frame.fill(entry, main, entry.about, view.lay_out):
            await view.show()


class _Rows:
    """What one browser looks at."""

    def __init__(self, entry: Entry, request: Request) -> None:
        self._entry, self._prefix = entry, frame.prefix()
        seed = frame.query_number(request, "seed", 0)
        self._choice = Choice(
            row=frame.query_number(request, "row", 0),
            where=frame.query_text(request, "where"),
            seed=seed if "seed" in request.query_params else None,
            step=frame.query_number(request, "step", 0),
            batch=frame.query_number(request, "batch", 16),
            window=frame.query_number(request, "window", 0),
        )
        self._latest = frame.Latest(entry, self._refuse)
        self._count = 0

    def lay_out(self, about: Description) -> None:
        """The controls, and the place of the rows."""
        choice, runs = self._choice, about.runs is not None
        if not runs:
            frame.without_runs()
        if not choice.where:
            self._choice = choice = replace(choice, where=unlike_where(about))
        with html.div().classes("sw-row sw-controls"):
            modes = {"order": "In order", "loader": "As a loader gives them"}
            mode = "order" if choice.seed is None else "loader"
            ui.toggle(modes, value=mode, on_change=lambda e: self._switch(e.value)).props(
                "no-caps dense unelevated padding='4px 12px' toggle-color=primary"
            )
            with html.div().classes("sw-row") as self._ordered:
                self._row = number_input("Row", choice.row, self._jump, 150)
                _step_button("chevron_left", "Rows before", lambda: self._move(-1))
                _step_button("chevron_right", "Rows after", lambda: self._move(1))
                _step_button("casino", "A random row", self._anywhere)
            with html.div().classes("sw-row") as self._drawn:
                self._seed = number_input("Seed", choice.seed or 0, self._draw, 110)
                self._step = number_input("Step", choice.step, self._draw, 110)
                self._batch = number_input("Batch", choice.batch, self._draw, 90)
                _step_button("chevron_left", "Step before", lambda: self._turn(-1))
                _step_button("chevron_right", "Next step", lambda: self._turn(1))
            ragged = any(field.ragged for field in about.fields.values())
            self._window: ui.number | None = None
            if runs and not ragged:
                self._window = number_input("Window", choice.window, self._reload, 90)
                self._window.tooltip("Steps of a padded window; 0 for single rows")
            self._where: ui.input | None = None
            if runs:
                self._where = ui.input("Runs where", value=choice.where)
                self._where.props("outlined dense clearable spellcheck=false autocomplete=off")
                self._where.classes("sw-mono sw-where")
                self._where.on("keydown.enter", self._reload).on("clear", self._reload)
                self._where.on("blur", self._reload)
        with html.div().classes("sw-row sw-apart sw-bar"):
            self._words = ui.label("…").classes("sw-dim").props("aria-live=polite")
            self._code = ui.label("").classes("sw-mono sw-dim sw-cut")
        self._problem = html.div()
        with html.div().classes("sw-rows") as self._place:
            ui.skeleton("rect", height="640px")
        self._show_controls()

    async def show(self) -> None:
        """The rows that the address asks for."""
        await frame.fill(self._entry, self._place, self._fetch, self._lines, self._refuse)

    # Asking.

    def _fetch(self) -> Lines:
        return chosen(self._entry, self._choice, PAGE_ROWS)

    async def _again(self, **changes: Any) -> None:
        self._choice = replace(self._choice, **changes)
        self._show_controls()
        found = await self._latest.answer(self._fetch)
        if found is None:
            return
        self._problem.clear()
        self._place.clear()
        with self._place:
            self._lines(found)
        ui.navigate.history.replace(self._prefix + self._address())

    def _refuse(self, error: Exception) -> None:
        self._problem.clear()
        self._place.clear()
        self._words.set_text("")
        with self._problem:
            frame.problem(error, entry=self._entry)

    async def _switch(self, mode: str) -> None:
        await self._again(seed=None if mode == "order" else int(self._seed.value or 0))

    async def _jump(self) -> None:
        if whole(self._row) != self._choice.row:
            await self._again(row=whole(self._row))

    async def _move(self, by: int) -> None:
        last = max(0, self._count - 1)
        many = max(1, PAGE_ROWS // max(self._choice.window, 1))
        await self._again(row=min(max(0, self._choice.row + by * many), last))

    async def _anywhere(self) -> None:
        await self._again(row=SystemRandom().randrange(self._count) if self._count else 0)

    async def _draw(self) -> None:
        numbers = {"seed": self._seed, "step": self._step, "batch": self._batch}
        given: dict[str, Any] = {name: whole(each) for name, each in numbers.items()}
        if replace(self._choice, **given) != self._choice:
            await self._again(**given)

    async def _turn(self, by: int) -> None:
        await self._again(step=max(0, self._choice.step + by))

    async def _reload(self) -> None:
        where = "" if self._where is None else self._where.value or ""
        window = 0 if self._window is None else whole(self._window)
        if (where, window) != (self._choice.where, self._choice.window):
            await self._again(where=where, window=window)

    # Showing.

    def _show_controls(self) -> None:
        choice = self._choice
        self._ordered.set_visibility(choice.seed is None)
        self._drawn.set_visibility(choice.seed is not None)
        self._row.set_value(choice.row)
        self._step.set_value(choice.step)
        part = f".where({choice.where!r})" if choice.where.strip() else ""
        part += f".windows({choice.window}, pad=True)" if choice.window else ""
        code = f"source{part}[{choice.row}:]"
        if choice.seed is not None:
            code = f"sw.Loader(source{part}, {choice.batch}, seed={choice.seed})"
        self._code.set_text(code)

    def _lines(self, found: Lines) -> None:
        self._count = found.count
        noun = "windows" if self._choice.window else "rows"
        words = [f"{found.count:,} {frame.one_or_more(found.count, noun)}"]
        if self._choice.seed is not None:
            steps = -(-found.count // max(self._choice.batch, 1))
            words.append(f"step {self._choice.step % max(steps, 1):,} of {steps:,} of an epoch")
        if found.short:
            words.append(f"the last batch is {found.short:,} short")
        self._words.set_text(", ".join([*words, *found.notes]))
        damaged = [line.damage for line in found.lines if line.damage]
        if damaged:
            count = f"{len(damaged)} of these rows cannot be read" if len(damaged) > 1 else ""
            frame.problem(damaged[0], count or "The other rows can be read.")
        columns: list[dict[str, Any]] = [
            {"name": "row", "field": "row", "label": noun[:-1], "align": "left"}
        ]
        for i, (name, kind) in enumerate(found.fields.items()):
            right = found.draw[name] == "value"
            column = {"name": f"c{i}", "field": f"c{i}", "label": f"{name} · {kind}"}
            columns.append({**column, "align": "right" if right else "left"})
        rows = [self._shown(number, line, found) for number, line in enumerate(found.lines)]
        table = ui.table(columns=columns, rows=rows, row_key="number").props("dense flat")
        table.props["rows-per-page-options"] = [0]
        table.props["no-data-label"] = "There are no rows."
        table.props[":table-row-class-fn"] = (
            "row => (row.padding ? 'sw-padding ' : '') + (row.first ? 'sw-first' : '')"
        )
        table.add_slot("body-cell", _CELL)
        table.add_slot("body-cell-row", _ROW_CELL)

    def _shown(self, number: int, line: Line, found: Lines) -> dict[str, Any]:
        label = f"{line.row:,}" if line.step is None else f"{line.row:,} · {line.step}"
        made: dict[str, Any] = {
            "number": number,
            "row": label,
            "damage": line.damage or "",
            "padding": line.padding,
            "first": line.step == 0 and number > 0,
            "absent": "damaged" if line.damage else "padding" if line.padding else "absent",
        }
        for i, name in enumerate(found.fields):
            made[f"c{i}"] = _cell(line.cells.get(name), found.draw[name])
        return made

    def _address(self) -> str:
        choice = {name: value for name, value in asdict(self._choice).items() if value}
        if self._choice.seed is None:
            choice = {name: choice[name] for name in ("row", "where", "window") if name in choice}
        else:
            choice |= {"seed": self._choice.seed, "step": self._choice.step}
            choice.pop("row", None)
        query = urlencode(choice)
        return f"/s/{self._entry.number}/rows" + (f"?{query}" if query else "")


def _cell(value: Any, draw: str) -> Any:
    """A value for the table: a picture, the path of a sparkline, text, or a number in words."""
    if value is None:
        return None
    if draw == "board" and str(value).isdecimal():
        return {"image": _picture(board_picture(int(value)))}
    if isinstance(value, dict):
        if "image" in value:
            return value
        known = [each if isinstance(each, int | float) else None for each in value["values"]]
        size = " x ".join(f"{each:,}" for each in value["shape"])
        few = ", ".join(frame.number(each) if each is not None else "-" for each in known[:8])
        many = f"the first {len(known)} of {size}" if value["more"] else f"{size} values"
        words = few if len(known) <= 8 else many
        return {"path": charts.path(known), "words": words or "empty"}
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return frame.number(value)
    return {"text": str(value)}


def _picture(pixels: Any) -> str:
    return "data:image/png;base64," + base64.b64encode(png(pixels)).decode()


def number_input(label: str, value: int, then: Any, width: int) -> ui.number:
    """A whole number that counts once Enter is pressed, or something else is clicked."""
    made = ui.number(label, value=value, min=0, max=_MAX, precision=0, format="%d")
    made.props("outlined dense hide-bottom-space").style(f"width: {width}px")
    return made.on("keydown.enter", then).on("blur", then) if then is not None else made


def _step_button(icon: str, words: str, then: Any) -> None:
    button = ui.button(icon=icon, on_click=then, color=None).props("flat dense round")
    button.props["aria-label"] = words
    button.tooltip(words)


def whole(given: ui.number) -> int:
    """What is in such an input."""
    value = given.value
    return int(value) if value is not None and 0 <= value <= _MAX else 0
