"""What a benchmark found: one shape for all, as JSON and as a table.

A list with one object a case:

    {"case": "raw take", "unit": "ms",
     "ours": {"median": 0.046, "p99": 0.09, "samples": 1600},
     "peers": {"np.take": {...}},
     "ratio": {"np.take": 2.1},
     "target": [{"what": "times faster than np.take", "value": 2.1, "at_least": 2, "met": true}],
     "met": true, "rss_bytes": 1048576, "note": "..."}

`unit` is a cost, so less is better, and `ratio` says how many times more a peer costs than
ours. Whatever else is known of a candidate stands beside its median.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)


@dataclass(frozen=True)
class Measured:
    """One candidate's cost, in the unit of its case."""

    median: float
    p99: float
    samples: int
    rows_per_s: float | None = None
    first_batch_s: float | None = None
    rss_bytes: int | None = None
    """Memory the candidate needed besides the data."""
    anonymous_bytes: int | None = None
    """The part of it that is not a file's."""
    note: str | None = None

    @classmethod
    def of(cls, costs: Sequence[float], **known: Any) -> "Measured":
        return cls(float(np.median(costs)), float(np.percentile(costs, 99)), len(costs), **known)

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class Target:
    """A number that was promised, and what came of it. Exactly one limit is given."""

    what: str
    value: float
    at_least: float | None = None
    at_most: float | None = None

    @property
    def met(self) -> bool:
        if self.at_least is not None:
            return bool(self.value >= self.at_least)
        assert self.at_most is not None
        return bool(self.value <= self.at_most)

    @property
    def promise(self) -> str:
        if self.at_least is not None:
            return f"at least {self.at_least:g}"
        return f"at most {self.at_most:g}"

    def to_json(self) -> dict[str, Any]:
        stated = {name: value for name, value in asdict(self).items() if value is not None}
        return {**stated, "met": self.met}


@dataclass(frozen=True)
class Case:
    """One question with everybody's answer."""

    case: str
    unit: str
    ours: Measured
    peers: dict[str, Measured]
    target: list[Target] = field(default_factory=list)
    note: str | None = None

    @property
    def ratio(self) -> dict[str, float]:
        return {name: peer.median / self.ours.median for name, peer in self.peers.items()}

    def to_json(self) -> dict[str, Any]:
        return {
            "case": self.case,
            "unit": self.unit,
            "ours": self.ours.to_json(),
            "peers": {name: peer.to_json() for name, peer in self.peers.items()},
            "ratio": self.ratio,
            "target": [target.to_json() for target in self.target],
            "met": all(target.met for target in self.target),
            "rss_bytes": self.ours.rss_bytes,
            "note": self.note,
        }

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> "Case":
        return cls(
            found["case"],
            found["unit"],
            Measured(**found["ours"]),
            {name: Measured(**peer) for name, peer in found["peers"].items()},
            [
                Target(t["what"], t["value"], t.get("at_least"), t.get("at_most"))
                for t in found["target"]
            ],
            found["note"],
        )


def arguments(doc: str | None, *, rows: int) -> argparse.ArgumentParser:
    """The options all scripts share; `rows` is this one's default."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=rows, help="rows of the data (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    return parser


def publish(cases: Sequence[Case], json_path: Path | None) -> None:
    """Print every case as a table, and write the JSON where it is wanted."""
    for case in cases:
        _show(case)
    save(cases, json_path)


def save(cases: Sequence[Case], json_path: Path | None) -> None:
    """Write the JSON where it is wanted."""
    if json_path is not None:
        json_path.write_text(json.dumps([case.to_json() for case in cases], indent=2) + "\n")


COLUMNS: dict[str, tuple[str, float]] = {
    "rows_per_s": ("million rows/s", 1e-6),
    "first_batch_s": ("first batch, ms", 1e3),
    "rss_bytes": ("memory, MiB", 2**-20),
    "anonymous_bytes": ("anonymous, MiB", 2**-20),
}
"""What is known of some candidates only: heading and scale."""

_SAMPLES_FOR_P99 = 50


def cells(case: Case) -> tuple[list[str], list[list[str]]]:
    """A case as text: headings, and a line for each candidate, the cheapest first."""
    lines = {"stepwell": case.ours, **case.peers}
    tail = min(m.samples for m in lines.values()) >= _SAMPLES_FOR_P99
    extra = [key for key in COLUMNS if any(getattr(m, key) is not None for m in lines.values())]
    notes = any(m.note for m in lines.values())
    headings = ["", case.unit, *(["p99"] if tail else []), "times ours"]
    headings += [COLUMNS[key][0] for key in extra] + [""] * notes
    body = []
    for name, measured in sorted(lines.items(), key=lambda line: line[1].median):
        line = [name, number(measured.median)]
        line += [number(measured.p99)] * tail
        line.append(number(measured.median / case.ours.median))
        for key in extra:
            value = getattr(measured, key)
            line.append("" if value is None else number(value * COLUMNS[key][1]))
        body.append(line + [measured.note or ""] * notes)
    return headings, body


def number(value: float) -> str:
    """Three digits that count, without exponents."""
    if value == 0 or not np.isfinite(value):
        return f"{value:g}"
    digits = max(0, 2 - int(np.floor(np.log10(abs(value)))))
    return f"{value:,.{digits}f}"


def table(headings: Sequence[str], body: Sequence[Sequence[str]]) -> Iterator[str]:
    """A Markdown table; columns with a heading hold numbers."""
    sides = ["---:" if i > 0 and heading else "---" for i, heading in enumerate(headings)]
    for line in (headings, sides, *body):
        cells_ = (f"**{cell}**" if line[0] == "stepwell" and cell else cell for cell in line)
        yield f"| {' | '.join(cells_)} |"


def _show(case: Case) -> None:
    headings, body = cells(case)
    table = Table()
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="left" if i == 0 or not heading else "right")
    for line in body:
        table.add_row(*map(escape, line), style="bold green" if line[0] == "stepwell" else None)
    console.print(f"[bold]{escape(case.case)}[/]", table, sep="\n")
    if case.note:
        console.print(f"  [dim]{escape(case.note)}[/]")
    for target in case.target:
        mark = "[green]met[/]   " if target.met else "[red]missed[/]"
        what = escape(target.what)
        console.print(f"  {mark} {what}: {number(target.value)} ({target.promise})")
    console.print()
