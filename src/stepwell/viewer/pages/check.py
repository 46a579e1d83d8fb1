"""The loader on this data, for a few seconds: how fast it is, beside plain NumPy."""

from fastapi import Request
from nicegui import html, ui

from stepwell.description import Description
from stepwell.viewer.batches import part, unlike_where
from stepwell.viewer.pages import charts, frame
from stepwell.viewer.pages.rows import number_input, whole
from stepwell.viewer.shelf import Entry, Shelf
from stepwell.viewer.trial import Measured, Trial, latency_bins

_LOOK_S = 0.15
_MAX_SECONDS = 60


def register(shelf: Shelf) -> None:
    @frame.tab(shelf, "check")
    async def check(entry: Entry, request: Request, main: ui.element) -> None:
        await frame.fill(entry, main, entry.about, _Check(entry, request).lay_out)


class _Check:
    """What one browser measures."""

    def __init__(self, entry: Entry, request: Request) -> None:
        self._entry = entry
        self._where = frame.query_text(request, "where")
        self._trial: Trial | None = None
        ui.context.client.on_delete(self._cancel)

    def lay_out(self, about: Description) -> None:
        self._where = self._where or unlike_where(about)
        if about.runs is None:
            frame.without_runs()
        html.h1("How fast is the loader on this data?")
        ui.label(
            "Shuffled batches as a training loop gets them, then the same by a permutation and "
            "np.take over arrays in memory. It runs in this process, on this machine."
        ).classes("sw-dim")
        with html.div().classes("sw-row sw-controls"):
            self._batch = number_input("Batch", min(4096, max(about.rows, 1)), None, 120)
            self._seconds = number_input("Seconds", 3, None, 100)
            self._condition = None
            if about.runs is not None:
                self._condition = ui.input("Runs where", value=self._where)
                self._condition.props("outlined dense clearable spellcheck=false autocomplete=off")
                self._condition.classes("sw-mono sw-where")
            self._start = ui.button("Run", icon="play_arrow", on_click=self._begin)
            self._start.props("unelevated no-caps")
            self._stop = ui.button("Cancel", on_click=self._cancel, color=None)
            self._stop.props("flat no-caps")
        with html.div().style("min-height: 24px"), html.div().classes("sw-row") as self._working:
            self._bar = ui.linear_progress(0, show_value=False, size="6px").style("width: 240px")
            self._phase = ui.label("").classes("sw-dim sw-small").props("aria-live=polite")
        self._result = html.div().classes("sw-stack").style("min-height: 420px; gap: 20px")
        self._timer = ui.timer(_LOOK_S, self._look, active=False)
        self._busy(False)

    async def _begin(self) -> None:
        where = "" if self._condition is None else self._condition.value or ""
        batch, seconds = max(1, whole(self._batch)), min(max(1, whole(self._seconds)), _MAX_SECONDS)
        self._busy(True)
        self._result.clear()
        try:
            source = await frame.in_thread(self._entry, lambda: part(self._entry, where))
            self._trial = Trial(source, min(batch, max(len(source), 1)), seconds=seconds)
        except Exception as error:
            self._busy(False)
            with self._result:
                frame.problem(error, entry=self._entry)
            return
        self._trial.start()
        self._timer.activate()

    def _cancel(self) -> None:
        if self._trial is not None:
            self._trial.cancel()

    def _busy(self, busy: bool) -> None:
        self._start.set_enabled(not busy)
        self._stop.set_visibility(busy)
        self._working.set_visibility(busy)

    def _look(self) -> None:
        trial = self._trial
        if trial is None:
            return
        self._bar.set_value(min(trial.share, 1))
        self._phase.set_text(trial.phase)
        if trial.running:
            return
        self._timer.deactivate()
        self._busy(False)
        self._result.clear()
        with self._result:
            if trial.error is not None:
                frame.problem(trial.error, entry=self._entry)
            elif trial.stopped or trial.loader is None:
                ui.label("Cancelled.").classes("sw-dim")
            else:
                _show(trial, trial.loader)


def _show(trial: Trial, ours: Measured) -> None:
    other = trial.numpy
    with html.div().classes("sw-panel sw-figures"):
        frame.figure(frame.number(round(ours.rows_per_s)), "rows/s by the loader")
        if other is not None:
            words = "rows/s by NumPy" if trial.alike else "rows/s by NumPy, of some fields"
            frame.figure(frame.number(round(other.rows_per_s)), words)
            if trial.alike:
                frame.figure(f"{ours.rows_per_s / other.rows_per_s:.2g} x", "NumPy's speed")
        frame.figure(f"{frame.size(ours.bytes / ours.seconds)}/s", "by the loader")
        frame.figure(frame.size(max(trial.memory_bytes, 0)), "more memory, at most")
    with html.div().classes("sw-panel sw-section"):
        html.h2("How long a batch is waited for")
        with html.div().classes("sw-scroll"), html.table().classes("sw-table"):
            with html.thead(), html.tr():
                html.th("")
                for words in ("batches", "median ms", "p99 ms", "max ms"):
                    html.th(words).classes("sw-number")
            with html.tbody():
                for name, each in (("loader", ours), ("NumPy", other)):
                    if each is not None:
                        with html.tr():
                            html.td(name)
                            html.td(f"{len(each.latencies_s):,}").classes("sw-number")
                            for share in (0.5, 0.99, 1.0):
                                html.td(f"{each.quantile_ms(share):.3f}").classes("sw-number")
        with html.div().classes("sw-chart").style("padding: 0"):
            charts.beside(*latency_bins(trial))
        ui.label(
            f"Batches of {trial.batch_size:,} rows, {trial.seconds:g} s each. The loader waits for "
            f"batches that its threads made meanwhile. {trial.note}"
        ).classes("sw-dim sw-small")
