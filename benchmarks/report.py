"""Every benchmark, written down: docs/performance.md, docs/performance.svg and docs/epoch.svg.

The scripts run one after another, each in a process of its own, and print their tables on
the way. `--rows` makes all of them smaller, to try the report itself.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import machine, plot
from benchmarks.results import Case, cells, number, table

_SCRIPTS = (
    *("take", "loader", "shuffle", "pack", "steps", "ranks"),
    *("records", "shards", "checksums", "replay", "lane", "viewer", "ahead", "cold", "remote"),
)
_ELSEWHERE = ("scale", "cuda")  # on a larger machine, with --only: their sections stay otherwise
_FRONT = "one shuffled epoch, one array per field"  # the picture of README.md
_TRAINED = "train "  # the pictures of a GPU
_DRAWN = ("raw take:", "one shuffled epoch", "row numbers of a shuffled epoch of 100,000,000")

_INTRODUCTION = """\
# Performance

Written by `make bench`, which runs the scripts in [benchmarks](../benchmarks): every
candidate in one run, in turns, because the machine is noisy and only ratios inside one run
count. Medians; *times ours* is how many times more a candidate costs than stepwell.

![What everybody's rows cost](performance.svg)

Each peer is in the form that suits it best: NumPy takes opaque rows into a buffer that is
used again, its hand-written loop shuffles 32-bit numbers, torch's DataLoader fetches a
batch in one call, grain shuffles row numbers only. The *C++ probe* is the limit: a bare
loop ([probe.cpp](../benchmarks/probe.cpp)) over the same memory, without checks, without
prefetching, with helpers that spin. stepwell can be faster than it because it requests
rows ahead of time.

Takes are measured many in a row, as a loop makes them. After a pause, or when another large
table was read in between, the first ones are slower for everybody and stepwell's lead is
smaller: the table of the first takes after a pause shows by how much.

Packs are read from the page cache, as are all they are compared with. *Memory* is what is
resident, which counts the mapped pages of a pack; *anonymous* leaves out what is a file's.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, help="rows for every script, instead of its own")
    parser.add_argument("--out", type=Path, default=Path("docs"), help="folder (%(default)s)")
    every = (*_SCRIPTS, *_ELSEWHERE)
    leave = "leave the others as they are"
    parser.add_argument("--only", nargs="+", choices=every, metavar="SCRIPT", help=leave)
    given = "what the script of --only wrote with --json, on a machine that is not this one"
    parser.add_argument("--cases", type=Path, metavar="FILE", help=given)
    args = parser.parse_args()
    page = args.out / "performance.md"
    quiet = machine.Quiet()
    if args.only:
        found = {
            name: _read(args.cases) if args.cases else _run(name, args.rows) for name in args.only
        }
        made = "\n".join(_page(found, quiet.others())) + "\n"
        page.write_text(_spliced(page.read_text(), made, args.only))
        _draw_front(found, args.out)
        return
    found = {name: _run(name, args.rows) for name in _SCRIPTS}
    cases = [case for each in found.values() for case in each]
    drawn = [case for start in _DRAWN for case in cases if case.case.startswith(start)]
    plot.draw(drawn, args.out / "performance.svg")
    _draw_front(found, args.out)
    made = "\n".join(_page(found, quiet.others())) + "\n"
    page.write_text(_spliced(made, page.read_text(), _ELSEWHERE) if page.exists() else made)


def _draw_front(found: dict[str, list[Case]], out: Path) -> None:
    for case in found.get("loader", ()):
        if case.case.startswith(_FRONT):
            plot.draw([case], out / "epoch.svg")
    trained = [case for case in found.get("cuda", ()) if case.case.startswith(_TRAINED)]
    if trained:
        plot.draw(trained, out / "cuda.svg")


def _run(name: str, rows: int | None) -> list[Case]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cases.json"
        command = [sys.executable, "-m", f"benchmarks.{name}", f"--json={path}"]
        subprocess.run([*command, *([f"--rows={rows}"] if rows else [])], check=True)
        return _read(path)


def _read(path: Path) -> list[Case]:
    return [Case.from_json(case) for case in json.loads(path.read_text())]


def _page(found: dict[str, list[Case]], others: float) -> Iterator[str]:
    yield _INTRODUCTION
    yield "## Promises\n"
    yield from table(["", "promised", "measured", ""], list(_promises(found)))
    for name, cases in found.items():
        yield f"\n## `python -m benchmarks.{name}`\n"
        if name == "cuda":
            yield "![A step of training, by what feeds it](cuda.svg)\n"
        for case in cases:
            yield f"### {case.case[0].upper()}{case.case[1:]}\n"
            yield from table(*cells(case))
            yield ""
            if case.note:
                yield f"{case.note[0].upper()}{case.note[1:]}.\n"
    yield "## Machine\n"
    facts = {**machine.describe(), "used by other programs meanwhile": f"{others:.0%}"}
    yield from (f"- {name}: {fact}" for name, fact in facts.items())


def _promises(found: dict[str, list[Case]]) -> Iterator[list[str]]:
    for cases in found.values():
        for case in cases:
            subject = case.case.partition(":")[0]
            for target in case.target:
                met = "met" if target.met else "**missed**"
                yield [f"{subject}, {target.what}", target.promise, number(target.value), met]


def _spliced(old: str, new: str, names: Sequence[str]) -> str:
    """A page with what another one has of the promises of some scripts and of their sections."""
    before = _parts(old)
    after = {name: part for name, part in _parts(new).items() if name in names}
    promises = {name: rows for part in (before, after) for name, (_, rows) in part.items()}
    sections = {name: text for part in (before, after) for name, (text, _) in part.items()}
    head, _, rest = old.partition("## Promises\n")
    tail = rest[rest.index("## Machine\n") :]
    titles = rest[: rest.index("| ---")] + "| --- | ---: | ---: | --- |\n"
    all_ = [name for name in (*_SCRIPTS, *_ELSEWHERE) if name in sections]
    rows = "".join(row for name in all_ for row in promises[name])
    return f"{head}## Promises\n{titles}{rows}\n" + "".join(sections[n] for n in all_) + tail


def _parts(page: str) -> dict[str, tuple[str, list[str]]]:
    """Of each script its section, and its rows in the table of promises."""
    table, *rest = re.split(
        r"(?m)^(?=## `python -m benchmarks\.)", page.partition("## Machine\n")[0]
    )
    rows = [line + "\n" for line in table.splitlines() if line.startswith("| ")][2:]
    parts = {}
    for section in rest:
        name = section.partition("`\n")[0].rpartition(".")[2]
        subjects = [case.partition(":")[0] for case in re.findall(r"(?m)^### (.*)$", section)]
        mine = [
            row
            for row in rows
            if any(row[2:].lower().startswith(f"{subject.lower()}, ") for subject in subjects)
        ]
        parts[name] = section, mine
    return parts


if __name__ == "__main__":
    main()
