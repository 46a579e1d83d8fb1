"""One store at a glance: how much there is, what its values look like, whether it is sound."""

import asyncio
import json
from collections.abc import Awaitable, Mapping
from typing import Any

from fastapi import Request
from nicegui import html, ui

from stepwell.description import Description
from stepwell.errors import FormatError, StepwellError
from stepwell.store import Report
from stepwell.viewer import distributions, verification
from stepwell.viewer.distributions import Amount, Curve, FieldSample, Histogram, Sample
from stepwell.viewer.drawings import is_board
from stepwell.viewer.pages import charts, frame
from stepwell.viewer.shelf import Entry, Shelf
from stepwell.viewer.verification import Verification

_LOOK_S = 0.4
_SHOWN_PROBLEMS = 20
_CURVES = 2


def register(shelf: Shelf) -> None:
    @frame.tab(shelf, "")
    async def overview(entry: Entry, request: Request, main: ui.element) -> None:
        with html.div().classes("sw-stack").style("gap: 16px") as top:
            html.h1(entry.name).classes("sw-cut")
            ui.skeleton("rect", height="72px")
        below = html.div().classes("sw-stack").style("gap: 20px")
        health = _Health()
        show = lambda found: _top(entry, found[0], health)  # noqa: E731
        found = await frame.fill(entry, top, lambda: _first(entry), show)
        if found is not None:
            with below:
                about, amounts, problem = found
                work = _sections(entry, about, amounts, problem, health)
            await asyncio.gather(*work)


class _Health:
    """The figure of a store's health: as it was opened, until damage is seen below."""

    def lay_out(self, entry: Entry, about: Description) -> None:
        with html.div():
            words = {"fine": "fine", "a writer is at work": "in use"}.get(about.health, "look")
            self._figure = frame.health(words, entry.problem and "old")
            shown = entry.problem or ("health" if words == "fine" else about.health)
            ui.label(shown).classes("sw-dim sw-small")

    def is_damaged(self) -> None:
        """Damage was seen; no other look makes that undone."""
        self._figure.set_text("damaged")
        self._figure.classes(replace="sw-dot sw-bad")


def _first(entry: Entry) -> tuple[Description, list[Amount], Exception | None]:
    """What the page is laid out by: the description, and which charts there will be."""
    about = entry.about()
    if not about.runs:
        return about, [], None
    store = entry.store
    try:
        return about, entry.remembered("amounts", lambda: distributions.amounts(store)), None
    except (StepwellError, OSError, ValueError) as error:  # of a damaged table, or one too large
        return about, [], error


def _sections(
    entry: Entry,
    about: Description,
    amounts: list[Amount],
    problem: Exception | None,
    health: _Health,
) -> list[Awaitable[object]]:
    """The parts of the page, each as high as it will be, and the work that fills them."""
    work: list[Awaitable[object]] = []
    if about.runs is None:
        frame.without_runs()
    if problem is not None:
        if isinstance(problem, FormatError):
            health.is_damaged()
        frame.problem(problem, "So there are no charts of the runs.")
    if amounts:
        with html.section().classes("sw-charts"):
            for each in amounts:
                work.append(_histogram(entry, each))
        for each in list(filter(distributions.is_score, amounts))[:_CURVES]:
            work.append(_curves(entry, each))
    with html.section().classes("sw-panel sw-section"), html.div().classes("sw-section") as fields:
        html.h2("Fields")
        has_sizes = about.rows > 0 and any(each.ragged for each in about.fields.values())
        lines = max(len(about.fields), 1) + has_sizes
        ui.skeleton("rect", height=f"{29 + 41 * lines}px")
    show_fields = lambda found: _fields(found, health)  # noqa: E731
    sampled = frame.fill(entry, fields, lambda: _samples(entry), show_fields, slow=True)
    with html.section().classes("sw-panel sw-section"):
        html.h2("Health")
        with html.div().classes("sw-section sw-health") as place:
            ui.skeleton("text", width="50%")
        _full_check(entry, health)
    show_report = lambda report: _report(report, health)  # noqa: E731
    checked = frame.fill(
        entry, place, lambda: entry.store.verify(quick=True), show_report, slow=True
    )
    if about.facts:
        with html.section().classes("sw-panel sw-section"):
            html.h2("Facts")
            _facts(about.facts)
    return [*work, sampled, checked]


def _top(entry: Entry, about: Description, health: _Health) -> None:
    with html.div().classes("sw-row"):
        html.h1(entry.name).classes("sw-cut")
        ui.label(frame.kind_of(about)).classes("sw-kind")
        ui.label(about.path).classes("sw-mono sw-dim sw-cut").tooltip(about.path)
    with html.div().classes("sw-panel sw-figures"):
        frame.amounts(entry, about)
        if about.rows:
            frame.figure(frame.size(about.bytes / about.rows), "a row")
        if about.fields:
            frame.figure(len(about.fields), "fields")
        health.lay_out(entry, about)


# What the runs are like.


def _histogram(entry: Entry, each: Amount) -> Awaitable[object]:
    def make() -> Histogram:
        store = entry.store
        key = ("histogram", each.name)
        return entry.remembered(key, lambda: distributions.run_histogram(store, each))

    with html.div().classes("sw-panel sw-chart"):
        _titled(each.name, f"mean {frame.number(each.mean)}")
        place = html.div().classes("sw-plot")
        with place:
            ui.skeleton("rect", height="100%")
    return frame.fill(entry, place, make, charts.histogram, slow=True)


def _curves(entry: Entry, each: Amount) -> Awaitable[object]:
    def make() -> dict[str, Curve]:
        store = entry.store
        key = ("curves", each.name)
        return entry.remembered(key, lambda: distributions.run_curves(store, each))

    def show(found: dict[str, Curve]) -> None:
        if found:
            charts.curves(found, each.name)
        else:
            ui.label("one run has no course over time").classes("sw-dim")

    with html.div().classes("sw-panel sw-chart"):
        _titled(f"{each.name} over time", "in the order of recording")
        place = html.div().classes("sw-plot")
        with place:
            ui.skeleton("rect", height="100%")
    return frame.fill(entry, place, make, show, slow=True)


def _titled(title: str, note: str) -> None:
    with html.div().classes("sw-row sw-apart"):
        html.h2(title).classes("sw-mono")
        ui.label(note).classes("sw-dim sw-small")


# What the fields are like.


def _samples(entry: Entry) -> dict[str, tuple[Sample, Histogram | None]]:
    def make() -> dict[str, tuple[Sample, Histogram | None]]:
        return {
            name: (distributions.sample(part), distributions.record_sizes(part))
            for name, part in distributions.parts(entry.store).items()
        }

    entry.store  # noqa: B018  what is remembered is not older than a second
    return entry.remembered("samples", make)


def _fields(found: Mapping[str, tuple[Sample, Histogram | None]], health: _Health) -> None:
    for title, (sample, sizes) in found.items():
        with html.div().classes("sw-row sw-apart"):
            html.h2(f"Fields of {title}" if title else "Fields")
            ui.label(_sampled(sample)).classes("sw-dim sw-small")
        if sample.problem:
            health.is_damaged()
            frame.problem(sample.problem, "These rows are left out here. A full check lists all.")
        with html.div().classes("sw-scroll"), html.table().classes("sw-table sw-fields"):
            with html.thead(), html.tr():
                for words in ("field", "type", "distribution"):
                    html.th(words)
                for words in ("min", "mean", "max"):
                    html.th(words).classes("sw-number")
                html.th("")
            with html.tbody():
                schema = {name: each.field for name, each in sample.fields.items()}
                for name, each in sample.fields.items():
                    _field(name, each, is_board(name, schema))
                if sizes is not None:
                    _sizes(sizes)


def _sampled(sample: Sample) -> str:
    rows = f"{sample.rows:,} {frame.one_or_more(sample.rows, 'rows')}"
    return f"of all {rows}" if sample.rows == sample.of else f"of {rows} out of {sample.of:,}"


def _field(name: str, each: FieldSample, board: bool) -> None:
    found = None if board else each.histogram
    with html.tr():
        html.td(name).classes("sw-mono")
        html.td(str(each.field)).classes("sw-mono sw-dim").style("white-space: nowrap")
        with html.td():
            if found is not None:
                charts.bars(found.counts, f"{name}: {_words(found)}")
        for value in () if found is None else (found.low, found.mean, found.high):
            html.td(frame.number(value)).classes("sw-number")
        if found is None:
            html.td().props("colspan=3")
        html.td(_note(each, board)).classes("sw-dim sw-small sw-cut")


def _note(each: FieldSample, board: bool) -> str:
    if board:
        return "boards of 2048"
    example = each.example if len(each.example) <= 60 else each.example[:60] + "…"
    notes = [f"{each.of}" if each.of == "lengths" else "", f"“{example}”" if example else ""]
    if each.histogram is not None and each.histogram.missing:
        notes.append(f"{each.histogram.missing:,} not finite")
    return ", ".join(filter(None, notes))


def _sizes(found: Histogram) -> None:
    with html.tr():
        html.td("bytes of a record").classes("sw-dim")
        html.td("stored").classes("sw-dim")
        with html.td():
            charts.bars(found.counts, f"bytes: {_words(found)}")
        for value in (found.low, found.mean, found.high):
            html.td(frame.number(round(value))).classes("sw-number")
        html.td("fields without a fixed size").classes("sw-dim sw-small")


def _words(found: Histogram) -> str:
    low, mean, high = map(frame.number, (found.low, found.mean, found.high))
    return f"{low} to {high}, mean {mean}"


# Whether it is sound.


def _report(report: Report, health: _Health) -> None:
    count = len(report.problems)
    if count:
        health.is_damaged()
    words = "nothing wrong" if report.ok else "1 problem" if count == 1 else f"{count:,} problems"
    ui.label(words).classes("sw-dot " + ("sw-good" if report.ok else "sw-bad"))
    for each in report.problems[:_SHOWN_PROBLEMS]:
        frame.problem(str(each))
    if count > _SHOWN_PROBLEMS:
        ui.label(f"and {count - _SHOWN_PROBLEMS:,} more").classes("sw-dim")
    with html.div():
        for title, lines in (("checked", report.checked), ("not checked", report.unchecked)):
            for line in lines:
                ui.label(f"{title}: {line}").classes("sw-dim sw-small")


def _full_check(entry: Entry, health: _Health) -> None:
    """The button of the full check, and what became of it."""
    shown: list[Verification | None] = [None]

    async def begin() -> None:
        try:
            await frame.in_thread(entry, lambda: verification.start(entry))
        except Exception as error:
            result.clear()
            with result:
                frame.problem(error, entry=entry)
        look()

    def cancel() -> None:
        known = verification.last(entry)
        if known is not None:
            known.cancel()

    def look() -> None:
        known = verification.last(entry)
        running = known is not None and known.running
        start.set_visibility(not running)
        working.set_visibility(running)
        if known is None:
            return
        if running:
            done, total = known.done, known.total
            bar.set_value(done / total if total else 0)
            amount.set_text(f"{done:,} of {total:,}" if total else "reading")
        elif shown[0] is not known:
            shown[0] = known
            result.clear()
            with result:
                if known.report is not None:
                    ui.label("Everything was read:").classes("sw-dim")
                    _report(known.report, health)
                elif known.error is not None:
                    frame.problem(known.error, entry=entry)
                else:
                    ui.label(f"cancelled after {amount.text}").classes("sw-dim")

    with html.div().style("min-height: 36px"):
        start = ui.button("Check everything", icon="fact_check", on_click=begin)
        start.props("outline dense no-caps padding='4px 12px'")
        with html.div().classes("sw-row") as working:
            bar = ui.linear_progress(0, show_value=False, size="6px").style("width: 240px")
            amount = ui.label("").classes("sw-dim sw-small")
            ui.button("Cancel", on_click=cancel).props("flat dense no-caps")
    result = html.div().classes("sw-section").props("aria-live=polite")
    look()
    ui.timer(_LOOK_S, look)


# What only stores of its kind have.


def _facts(facts: Mapping[str, Any]) -> None:
    with html.div().classes("sw-facts sw-small"):
        for name, value in facts.items():
            ui.label(name.replace("_", " "))
            if isinstance(value, Mapping) and value:
                with html.div().classes("sw-facts"):
                    for inner, each in value.items():
                        ui.label(str(inner)).classes("sw-mono")
                        ui.label(_plain(each))
            else:
                ui.label(_plain(value))


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {_plain(each)}" for name, each in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(_plain, value)) or "none"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return frame.number(value)
    return value if isinstance(value, str) else json.dumps(value, default=str)
