"""Small pictures of numbers: sparklines in SVG, charts by ECharts.

Both work on light and on dark: an SVG has the colours of the page, and those of a chart lie
between the two.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from nicegui import ui

from stepwell.viewer.distributions import Curve, Histogram
from stepwell.viewer.pages.frame import number

_ACCENT = "#16a394"
_OTHER = "#8b93a1"
_COLOURS = (_ACCENT, "#d98a3d", "#7d7fd8", "#c55a8f", "#8b93a1", "#5a9bd5")
_TEXT = {"color": "#757e89", "fontSize": 11}
_LINE = {"lineStyle": {"color": "#858e9930"}}
_TIP = {
    "trigger": "axis",
    "backgroundColor": "#20262cf2",
    "borderWidth": 0,
    "padding": [6, 10],
    "textStyle": {"color": "#eef1f3", "fontSize": 12},
    "confine": True,
    "axisPointer": {"type": "shadow", "shadowStyle": {"color": "#858e9918"}},
}
_LEGEND = {"textStyle": _TEXT, "right": 0, "top": 0, "itemWidth": 10, "itemHeight": 10}
_SHORT = (
    "v => Math.abs(v) >= 1e6 ? +(v / 1e6).toPrecision(3) + 'M' : "
    "Math.abs(v) >= 1e4 ? +(v / 1e3).toPrecision(3) + 'k' : +v.toPrecision(3)"
)

_PERCENT = "v => +(v * 100).toPrecision(2) + ' %'"

_WIDTH, _HEIGHT = 120, 28


def bars(counts: Sequence[float], words: str) -> ui.html:
    """A histogram as small as a word."""
    top, step = max(counts, default=0) or 1, min(_WIDTH / max(len(counts), 1), 12)
    made = "".join(
        f'<rect x="{i * step:.2f}" y="{_HEIGHT - _tall(count, top):.2f}" '
        f'width="{max(step * 0.85, 0.6):.2f}" height="{_tall(count, top):.2f}"/>'
        for i, count in enumerate(counts)
        if count
    )
    return _svg(made, words)


def path(values: Sequence[float | None]) -> str:
    """A curve as small as a word, as an SVG path. Values that are missing are left out."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return ""
    low, high = min(known), max(known)
    span, step = (high - low) or 1, _WIDTH / max(len(values) - 1, 1)
    parts, gap = [], True
    for i, value in enumerate(values):
        if value is not None:
            y = _HEIGHT - 2 - (value - low) / span * (_HEIGHT - 4)
            parts.append(f"{'M' if gap else 'L'}{i * step:.1f} {y:.1f}")
        gap = value is None
    return " ".join(parts)


def _tall(count: float, top: float) -> float:
    return max(1.0, count / top * _HEIGHT) if count else 0.0


def _svg(inner: str, words: str) -> ui.html:
    """Numbers only get here; the words are set as a property, not as HTML."""
    made = ui.html(
        f'<svg class="sw-spark" viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none">'
        f"{inner}</svg>",
        sanitize=False,
    )
    made.props["role"], made.props["aria-label"], made.props["title"] = "img", words, words
    return made


def histogram(found: Histogram, unit: str = "runs", *, log: bool = False) -> ui.echart:
    """How often values occur, as a chart with axes."""
    if found.exact:
        labels = [number(value) for value in found.edges]
    else:
        ends = zip(found.edges, found.edges[1:], strict=False)
        labels = [f"{number(low)} to {number(high)}" for low, high in ends]
    options = _options(unit)
    options["xAxis"] |= {"type": "category", "data": labels}
    if not found.exact:
        first = [number(value) for value in found.edges]
        options["xAxis"]["axisLabel"] |= {
            ":formatter": f"(v, i) => {first!r}[i]",
            "interval": max(1, len(found.counts) // 5),
        }
    if log:
        options["yAxis"] |= {"type": "log", "min": 0.9}
    options["series"] = [
        {
            "type": "bar",
            "name": unit,
            "data": list(found.counts),
            "barCategoryGap": "30%" if found.exact else "8%",
            "barMaxWidth": 36,
            "itemStyle": {"color": _ACCENT, "borderRadius": [2, 2, 0, 0]},
        }
    ]
    return ui.echart(options)


def curves(found: Mapping[str, Curve], name: str) -> ui.echart:
    """A column over the runs: its mean, and of one recording between which limits it lay."""
    options = _options(name)
    options["xAxis"] |= {"type": "value", "min": 0, "splitLine": {"show": False}}
    options["xAxis"] |= {"max": max(each.x[-1] for each in found.values()), "minInterval": 1}
    options["yAxis"] |= {"scale": True}
    options["grid"]["right"] = 26
    options["tooltip"] = {**_TIP, "axisPointer": {"type": "line"}, ":valueFormatter": _SHORT}
    options["series"] = []
    for (title, each), colour in zip(found.items(), itertools.cycle(_COLOURS), strict=False):
        one = {"type": "line", "symbol": "none", "itemStyle": {"color": colour}}
        line = {
            **one,
            "name": title or "mean",
            "lineStyle": {"color": colour, "width": 1.5},
            "z": 3,
        }
        options["series"].append({**line, "data": _pairs(each.x, each.mean)})
        if len(found) == 1 and each.low != each.high:
            side = {**one, "lineStyle": {"width": 0.6, "opacity": 0.55, "color": colour}}
            options["series"] += [
                {**side, "name": "min", "data": _pairs(each.x, each.low)},
                {**side, "name": "max", "data": _pairs(each.x, each.high)},
            ]
    if len(found) > 1:
        options["legend"] = dict(_LEGEND)
        options["grid"]["top"] = 28
    return ui.echart(options)


def _pairs(x: Sequence[float], y: Sequence[float]) -> list[list[float]]:
    return [list(pair) for pair in zip(x, y, strict=True)]


def beside(edges: Sequence[float], ours: Sequence[float], others: Sequence[float]) -> ui.echart:
    """Two histograms of milliseconds over the same bins: the loader's, and NumPy's, as shares."""
    options = _options("share of batches")
    options["yAxis"]["axisLabel"][":formatter"] = _PERCENT
    if max(*ours, *others) > 0.75:  # the axis would go on beyond the whole
        options["yAxis"] |= {"max": 1, "interval": 0.25}
    options["tooltip"][":valueFormatter"] = _PERCENT
    options["xAxis"] |= {"type": "category", "data": [f"{low:.3g} ms" for low in edges[:-1]]}
    options["legend"] = dict(_LEGEND)
    options["grid"]["top"] = 28
    options["series"] = [
        {"type": "bar", "name": name, "data": list(counts), "itemStyle": {"color": colour},
         "barGap": "0%", "barCategoryGap": "10%"}
        for name, counts, colour in (("loader", ours, _ACCENT), ("NumPy", others, _OTHER))
        if any(counts)
    ]  # fmt: skip
    return ui.echart(options)


def _options(unit: str) -> dict[str, Any]:
    return {
        "animation": False,
        "grid": {"left": 4, "right": 8, "top": 10, "bottom": 2, "containLabel": True},
        "tooltip": dict(_TIP),
        "xAxis": {
            "axisLabel": {**_TEXT, "hideOverlap": True},
            "axisTick": {"show": False},
            "axisLine": {"lineStyle": {"color": "#858e9960"}},
        },
        "yAxis": {
            "type": "value",
            "axisLabel": {**_TEXT, ":formatter": _SHORT},
            "splitLine": _LINE,
            "splitNumber": 3,
        },
        "aria": {"enabled": True, "label": {"description": unit}},
    }
