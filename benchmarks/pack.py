"""Runs of different lengths in one file: against separate files, LMDB, JSON and plain Python.

All files are in the page cache. `--rows` is the number of games, `--only` asks one question
instead of all.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import stepwell as sw
from benchmarks import measure, pack_data, pack_peers
from benchmarks.machine import Quiet
from benchmarks.measure import Candidate
from benchmarks.pack_data import GAMES, Games
from benchmarks.pack_jsonl import jsonl_cases
from benchmarks.pack_slices import slice_cases
from benchmarks.pack_write import codec_cases, packing_cases
from benchmarks.results import Case, Measured, Target, arguments, console, publish, save

_DECODE = "stepwell"
_WORKERS = ("stepwell, workers=1", "stepwell, workers=2")
_UNCHECKED_DECODE = "stepwell, checksums=False"

_CALLS = pack_peers.CALLS
_ENTRIES = 100_000
_TILES = "highest_tile >= 2048"


def main() -> None:
    parser = arguments(__doc__, rows=GAMES)
    parser.add_argument("--batch", type=int, default=256, help="runs of a batch (%(default)s)")
    parser.add_argument("--rounds", type=int, default=10, help="turns of each (%(default)s)")
    parser.add_argument("--only", choices=_QUESTIONS, help="one question instead of all")
    args = parser.parse_args()
    quiet = Quiet()
    # The report's --rows is for tables: more games than these would only take longer.
    games = min(args.rows, GAMES)
    if args.only:
        cases = _answer(args.only, games, args.batch, args.rounds)
        publish(cases, args.json)
    else:
        cases = [case for name in _QUESTIONS for case in _ask(name, games, args.batch, args.rounds)]
        save(cases, args.json)
    console.print(f"[dim]other programs used {quiet.others():.0%} of the machine[/]")


def _ask(question: str, games: int, batch: int, rounds: int) -> list[Case]:
    """The answer of a fresh process, which prints it.

    What one question leaves in memory is not to change the numbers of the next.
    """
    options = [f"--only={question}", f"--rows={games}", f"--batch={batch}", f"--rounds={rounds}"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cases.json"
        command = [sys.executable, "-m", "benchmarks.pack", f"--json={path}", *options]
        subprocess.run(command, check=True)
        return [Case.from_json(case) for case in json.loads(path.read_text())]


def _answer(question: str, count: int, batch: int, rounds: int) -> list[Case]:
    measure.keep_freed_memory()
    with pack_data.games(count, batch=batch, rounds=rounds) as games:
        return [_with_command(case, question) for case in _QUESTIONS[question](games)]


def _with_command(case: Case, question: str) -> Case:
    command = f"alone: `python -m benchmarks.pack --only {question}`"
    return replace(case, note=f"{case.note}; {command}" if case.note else command)


def _decode_cases(games: Games) -> list[Case]:
    pack = sw.PackReader.open(games.pack)
    unchecked = sw.PackReader.open(games.pack, checksums=False)
    rows = games.random()
    rss_before = measure.reset_peak()
    with measure.AnonymousPeak() as peak:
        for _ in range(50):
            pack.decode_batch(rows())
    rss = measure.peak_bytes() - rss_before
    _same_runs(games, rows())
    candidates = [
        Candidate.of(_DECODE, pack.decode_batch, calls=_CALLS),
        *(
            Candidate.of(name, partial(pack.decode_batch, workers=workers), calls=_CALLS)
            for workers, name in enumerate(_WORKERS, 1)
        ),
        Candidate.of(_UNCHECKED_DECODE, unchecked.decode_batch, calls=_CALLS),
        *pack_peers.decoders(games.files),
    ]
    seconds = measure.race(candidates, rows, rounds=games.rounds)
    found = {name: Measured.of([s * 1e3 for s in each]) for name, each in seconds.items()}
    ours = replace(found.pop(_DECODE), rss_bytes=rss, anonymous_bytes=peak.bytes - peak.before)
    files = min(found[name].median for name in (pack_peers.FILES, pack_peers.FILES_THREADS))
    one, two = (found[name].median for name in _WORKERS)
    alone = found[pack_peers.ALONE].median
    python = found[pack_peers.PYTHON].median
    return [
        Case(
            f"decode_batch: {games.size}",
            "ms",
            ours,
            found,
            [
                Target("times faster than plain Python", python / ours.median, at_least=100),
                Target("times faster than separate files", files / ours.median, at_least=3),
                Target("times decoding alone", ours.median / alone, at_most=1.5),
                Target("times faster with two threads than with one", one / two, at_least=1.7),
            ],
            f"{pack.stats.mean_len:,.0f} steps and {pack.stored_bytes / len(pack) / 1e3:.0f} kB "
            "a run; plain Python has the payloads in memory and makes lists of numbers; decoding "
            "alone is the core on payloads in memory, without checksums, on all cores; memory "
            "counts the pages of the mapped pack, anonymous memory does not",
        )
    ]


def _open_cases(games: Games) -> list[Case]:
    path = games.scratch / "tiny.a2pack"
    pack_data.write_tiny(path, _ENTRIES)
    before = measure.reset_peak()
    with measure.AnonymousPeak() as peak:
        opened = sw.PackReader.open(path)
    rss = measure.peak_bytes() - before
    assert len(opened) == _ENTRIES
    seconds = measure.race(
        [Candidate.of("open", sw.PackReader.open, calls=20)], lambda: path, rounds=games.rounds
    )
    ours = Measured.of(
        [s * 1e3 for s in seconds["open"]],
        rss_bytes=rss,
        anonymous_bytes=peak.bytes - peak.before,
    )
    return [
        Case(
            f"open a pack of {_ENTRIES:,} entries",
            "ms",
            ours,
            {},
            [Target("median, ms", ours.median, at_most=50)],
            "entries of 16 bytes, 64 bytes apart; the index is summed up and every entry checked",
        )
    ]


def _where_cases(games: Games) -> list[Case]:
    first, later = [], []
    for _ in range(5):
        pack = sw.PackReader.open(games.pack)
        ask = partial(pack.where, _TILES)
        first.append(_milliseconds(ask))
        later += [_milliseconds(ask) for _ in range(20)]
    return [
        Case(
            f'where("{_TILES}"): {len(pack.where(_TILES)):,} runs of {len(pack):,}',
            "ms",
            Measured.of(later),
            {"stepwell, the first, which reads the heads": Measured.of(first)},
            note="asked through SQLite, of a table in memory",
        )
    ]


_QUESTIONS: dict[str, Callable[[Games], list[Case]]] = {
    "decode": _decode_cases,
    "slices": slice_cases,
    "jsonl": jsonl_cases,
    "packing": packing_cases,
    "codecs": codec_cases,
    "open": _open_cases,
    "where": _where_cases,
}


def _milliseconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return (time.perf_counter() - begin) * 1e3


def _same_runs(games: Games, rows: NDArray[np.int64]) -> None:
    """A benchmark of wrong answers would be worth nothing."""
    runs = sw.PackReader.open(games.pack).decode_batch(rows)
    for row, run in zip(rows[:16], runs, strict=False):
        plain = pack_peers.python_decode(games.files[row].read_bytes())
        assert run.boards.tolist() == plain.boards
        assert run.moves.tolist() == plain.moves
        assert run.ev_legal.tolist() == plain.legal
        assert run.ev_values.tolist() == [list(four) for four in plain.values]
        assert (run.final_board, len(run)) == (plain.final_board, plain.head[0])


if __name__ == "__main__":
    main()
