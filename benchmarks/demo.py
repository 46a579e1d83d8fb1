"""What stepwell does, in a minute: `make demo`.

Two thousand games of 2048 are played and packed, and their steps become a dataset. A shuffled
epoch of it is streamed, stopped in the middle, and resumed by a loader with another batch
size and number of threads. Last, the same epoch is timed with stepwell, with NumPy and with
torch. The last line shows how to look at what was made.
"""

import json
import shutil
import sys
import time
from itertools import islice
from pathlib import Path

import numpy as np
from rich.table import Table

import stepwell as sw
from benchmarks.loader import GETITEMS, NUMPY, OURS, OURS_TORCH, installed, measured, run_epochs
from benchmarks.results import console, number
from benchmarks.rows import row_numbers
from stepwell import game2048

_GAMES = 2000
_BATCH = 4096
_FOLDER = Path("demo-data")
_COMPARED = {
    OURS: "stepwell.Loader",
    OURS_TORCH: "stepwell.torch.Loader",
    NUMPY: "NumPy: permutation, np.take, split into fields",
    GETITEMS[0]: "torch DataLoader, a batch in one call (__getitems__)",
}


def main() -> None:
    pack = _play_and_pack()
    steps = _build(pack)
    _stream(steps)
    _stop_and_resume(steps)
    _compare(steps)
    _say("look", f"at all of it in a browser: {_view_command()}")


def _play_and_pack() -> sw.PackReader:
    """Games by the built-in player, in one file, and what that file says about them."""
    runs, path = _FOLDER / "runs", _FOLDER / "games.a2pack"
    begin = time.perf_counter()
    game2048.play_to(runs, _GAMES, depth=2, seed=1)
    _say("played", f"{_GAMES:,} games of 2048 into {runs}, {_since(begin)}")
    begin = time.perf_counter()
    report = game2048.pack_runs(runs, path, replace=True)
    _say("packed", f"{report.bytes / 1e6:,.1f} MB into {path}, {_since(begin)}")
    pack = sw.PackReader.open(path)
    stats = pack.stats
    table = Table(show_header=False)
    lengths = f"p50 {stats.p50_len:,}, p90 {stats.p90_len:,}, p99 {stats.p99_len:,}"
    table.add_row("runs", f"{stats.count:,} with {stats.total_steps:,} steps")
    table.add_row("steps of a run", f"{stats.min_len:,} to {stats.max_len:,}; {lengths}")
    for tile, count in stats.highest_tile_hist.items():
        table.add_row(f"reached {tile:,}", f"{'■' * round(40 * count / stats.count)} {count}")
    console.print(table)
    random, begin = np.random.default_rng(0), time.perf_counter()
    for _ in range(10):
        pack.decode_batch(random.integers(len(pack), size=256))
    _say("decoded", f"10 times 256 random runs, {_since(begin)}")
    return pack


def _build(pack: sw.PackReader) -> sw.StepReader:
    """The steps of all games, ready to train on; some of them by a question."""
    path = _FOLDER / "steps"
    shutil.rmtree(path, ignore_errors=True)
    begin = time.perf_counter()
    sw.convert(pack, path, to="steps")
    _say("built", f"a dataset in {path}, {_since(begin)}")
    begin = time.perf_counter()
    steps = sw.StepReader.open(path)
    _say("opened", f"{len(steps):,} steps, {steps.nbytes / 1e6:,.0f} MB, {_since(begin)}")
    begin = time.perf_counter()
    good = steps.where("highest_tile >= ?", 4096)
    _say("filtered", f"{len(good):,} steps of {len(good.runs)} runs to 4,096, {_since(begin)}")
    return steps


def _stream(steps: sw.StepReader) -> None:
    """One shuffled epoch, as a training loop would see it."""
    begin = time.perf_counter()
    loader = sw.Loader(steps, _BATCH, seed=7)
    for _ in loader:
        pass
    _say("streamed", f"{len(loader):,} shuffled batches of {_BATCH:,}, {_since(begin)}")


def _stop_and_resume(steps: sw.StepReader) -> None:
    """One epoch by two loaders that have only a few numbers in common."""
    firsts = steps.runs["first_step_idx"]
    seen = np.zeros(len(steps), np.int64)

    def see(batch: sw.Batch) -> None:
        np.add.at(seen, row_numbers(batch, firsts), 1)

    loader = sw.Loader(steps, _BATCH, seed=7)
    for batch in islice(loader, len(loader) // 2):
        see(batch)
    state = _FOLDER / "state.json"
    state.write_text(json.dumps(loader.state_dict()))
    _say("stopped", f"after {seen.sum():,} rows; state in {state}, {state.stat().st_size} bytes")

    other = sw.Loader(steps, 1000, seed=7, threads=1)
    other.load_state_dict(json.loads(state.read_text()))
    for batch in other:
        see(batch)
    once = int((seen == 1).sum())
    _say("resumed", "with batches of 1,000 and one thread")
    _say("checked", f"{once:,} of {len(steps):,} rows were seen exactly once")
    if once != len(steps):
        raise SystemExit("rows were lost or repeated")


def _compare(steps: sw.StepReader) -> None:
    """The same epoch by everybody, each in a fresh process."""
    names = [name for name in _COMPARED if installed(name)]
    with console.status("timing the same epoch with NumPy and torch"):
        epochs = run_epochs(names, Path(steps.path) / "steps.npy", len(steps), _BATCH, rounds=1)
    table = Table()
    table.add_column("")
    for heading in ("million rows/s", "first batch, ms", "memory above the data, MB"):
        table.add_column(heading, justify="right")
    for name in names:
        shown = _COMPARED[name]
        found = measured(epochs[name], len(steps))
        known = (found.rows_per_s or 0) / 1e6, (found.first_batch_s or 0) * 1e3
        memory = (found.rss_bytes or 0) / 1e6
        style = "bold green" if shown.startswith("stepwell") else None
        table.add_row(shown, *map(number, (*known, memory)), style=style)
    console.print("\n[bold]one shuffled epoch, one array per field[/]", table, sep="\n")


def _view_command() -> str:
    """The command that shows what was made, here and now."""
    program = Path(sys.executable).with_name("stepwell")
    here = Path.cwd()
    shown = program.relative_to(here) if program.is_relative_to(here) else "stepwell"
    return f"{shown} view {_FOLDER}"


def _say(what: str, how: str) -> None:
    console.print(f"[bold]{what:9}[/] {how}")


def _since(begin: float) -> str:
    return f"{time.perf_counter() - begin:.2f} s"


if __name__ == "__main__":
    main()
