"""The pictures of the pages: what everybody's rows cost, and what waiting grows with."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import PercentFormatter

from benchmarks.results import Case, number

_OURS, _OTHERS, _LIMIT, _INK = "#0f766e", "#cbd5e1", "#64748b", "#1e293b"
_LINES = (("#94a3b8", "o-"), ("#b45309", "s--"), (_OURS, "o-"))
_BAR_INCHES = 0.27
_STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "svg.fonttype": "none",
    # The same numbers give the same file.
    "svg.hashsalt": "stepwell",
}


def draw(cases: Sequence[Case], path: Path) -> None:
    """Draw the cases one below the other."""
    bars = [len(case.peers) + 1 for case in cases]
    with mpl.rc_context(_STYLE):
        height = sum(bars) * _BAR_INCHES + len(cases) * 0.85
        figure = Figure(figsize=(8, height), layout="constrained", facecolor="white")
        grid = figure.subplots(len(cases), 1, height_ratios=bars, squeeze=False)
        for axes, case in zip(grid[:, 0], cases, strict=True):
            _panel(axes, case)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def lines(
    panels: Mapping[str, Mapping[str, Sequence[float]]],
    at: Sequence[int],
    path: Path,
    *,
    x: str,
    y: str,
) -> None:
    """Draw panels beside each other: shares, each as a line over numbers that double."""
    with mpl.rc_context(_STYLE):
        figure = Figure(
            figsize=(8, 3.4), layout=ConstrainedLayoutEngine(wspace=0.08), facecolor="white"
        )
        grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, (title, shares) in zip(grid, panels.items(), strict=True):
            for (name, values), (colour, dashes) in zip(shares.items(), _LINES, strict=True):
                axes.plot(at, values, dashes, label=name, color=colour, linewidth=2, clip_on=False)
            axes.set_xscale("log", base=2)
            axes.set_xticks(at, [f"{n:,}" for n in at])
            axes.minorticks_off()
            axes.set_xlim(at[0], at[-1])
            axes.set_ylim(0, 1)
            axes.yaxis.set_major_formatter(PercentFormatter(1))
            axes.set_xlabel(x)
            axes.set_title(title, fontsize=10, weight="bold", loc="left")
            axes.grid(axis="y", color="#e2e8f0")
            axes.spines[:].set_visible(False)
            axes.tick_params(length=0, pad=6)
        grid[0].set_ylabel(y)
        handles, names = grid[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside upper center", ncols=3, frameon=False)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _panel(axes: Axes, case: Case) -> None:
    lines = {"stepwell": case.ours, **case.peers}
    costs = {name: measured.median for name, measured in lines.items()}
    names = sorted(costs, key=lambda name: -costs[name])
    values = [costs[name] for name in names]
    bars = axes.barh(names, values, color=[_colour(name) for name in names], height=0.72)
    labels = [_label(costs[name], costs["stepwell"]) for name in names]
    axes.bar_label(bars, labels, padding=4, fontsize=8)
    axes.set_xscale("log")
    axes.set_xlim(min(values) / 2, max(values) * 6)
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.set_title(" ", fontsize=10)  # room for the line below, which begins further left
    axes.annotate(
        f"{case.case}, {case.unit}",
        (0.01, 1),
        (0, 6),
        xycoords=("figure fraction", "axes fraction"),
        textcoords="offset points",
        fontsize=10,
        weight="bold",
    )
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    for tick in axes.get_yticklabels():
        tick.set_fontweight("bold" if tick.get_text().startswith("stepwell") else "normal")


def _label(cost: float, ours: float) -> str:
    ratio = cost / ours
    return number(cost) if ratio == 1 else f"{number(cost)} ({number(ratio)}x)"


def _colour(name: str) -> str:
    if name.startswith("stepwell"):
        return _OURS
    return _LIMIT if "probe" in name else _OTHERS
