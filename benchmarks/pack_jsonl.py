"""Steps as JSON lines: against libraries that are given the dicts, or make them.

Every file is on the disk when the clock stops, on all sides. The lines are the same but for
the notation of small floats, the spaces of `json.dumps`, and the floats of dicts that are made
on the way: those are doubles, with a double's digits.
"""

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
import orjson

import stepwell as sw
from benchmarks import measure
from benchmarks.measure import Candidate
from benchmarks.pack_data import Games
from benchmarks.results import Case, Measured, Target
from stepwell import _core, game2048

Write = Callable[[BinaryIO], object]
Step = dict[str, Any]

OURS = "stepwell"
JSON = ("json.dumps, ready dicts", "json encoder, ready dicts")
ORJSON, MSGSPEC = "orjson loop, ready dicts", "msgspec loop, ready dicts"
MADE = ("orjson loop, dicts made of arrays", "msgspec loop, dicts made of arrays")
LINES = "msgspec encode_lines, ready dicts"
BYTES = "the same bytes, only written"

_RUNS = 200
_FEW_RUNS = 20
_MOVES = ("UP", "DOWN", "LEFT", "RIGHT")
_SHIFTS = np.arange(60, -4, -4, dtype=np.uint64)
_BUFFER_BYTES = 1 << 20


def steps_of(runs: Iterable[tuple[int, int, game2048.Run]], *, short: bool) -> Iterator[Step]:
    """The steps of runs as dicts that dump to what stepwell writes: docs/formats/pack.md.

    `runs` are number, CRC32C and run. `short` floats have the digits of a float32; finding
    them takes longer than all else.
    """
    for number, crc, run in runs:
        uuid = f"a2r-{crc:08x}-{number:08x}"
        boards = (run.boards[:, None] >> _SHIFTS & np.uint64(15)).astype(np.uint8).tolist()
        moves = run.moves.tolist()
        legal = (run.ev_legal[:, None] >> np.arange(4, dtype=np.uint8) & 1).astype(bool).tolist()
        chosen = np.arange(4) == run.moves[:, None]
        best = chosen & (run.ev_values > np.float32(1 - 1e-6))
        wanted = np.where(best, np.float32(1), run.ev_values)
        values = wanted.tolist()
        if short:
            values = [[float(str(value)) for value in four] for four in wanted]
        for i, (board, move, mask, four) in enumerate(
            zip(boards, moves, legal, values, strict=True)
        ):
            a, b, c, d = mask
            v, w, x, y = four
            yield {
                "run_idx": number,
                "run_uuid": uuid,
                "step_idx": i,
                "pre_board": board,
                "chosen": _MOVES[move],
                "branches": [
                    {"legal": a, "value": v},
                    {"legal": b, "value": w},
                    {"legal": c, "value": x},
                    {"legal": d, "value": y},
                ],
            }


def jsonl_cases(games: Games) -> list[Case]:
    return [_step_case(games), _memory_case(games)]


def _step_case(games: Games) -> Case:
    pack = sw.PackReader.open(games.pack)
    runs = min(_RUNS, len(pack))
    part = pack.where("run < ?", runs)
    sums = [_core.crc32c(np.frombuffer(payload, np.uint8)) for payload in part.slices(range(runs))]
    numbered = list(zip(range(runs), sums, part.decode_batch(range(runs)), strict=True))
    few = numbered[:_FEW_RUNS]
    ready = list(steps_of(numbered, short=True))
    some = ready[: sum(len(run) for *_, run in few)]
    gc.freeze()  # nobody pays for looking through a million dicts
    target = games.scratch / "steps.jsonl"
    part.to_jsonl(target, steps=True)
    text = target.read_bytes()
    encode = json.JSONEncoder(separators=(",", ":")).encode
    if not text.startswith("".join(encode(step) + "\n" for step in some).encode()):
        raise SystemExit("the lines of stepwell and of the others differ")
    counts = dict.fromkeys((OURS, ORJSON, MSGSPEC, LINES, BYTES), len(ready))
    counts |= dict.fromkeys((*JSON, *MADE), len(some))
    dumps = msgspec.json.Encoder().encode

    def made(line: Callable[[Step], bytes]) -> Write:
        return lambda out: _loop(out, line, steps_of(few, short=False))

    writes: dict[str, Write] = {
        JSON[0]: lambda out: _loop(out, lambda step: json.dumps(step).encode() + b"\n", some),
        JSON[1]: lambda out: _loop(out, lambda step: encode(step).encode() + b"\n", some),
        ORJSON: lambda out: _loop(out, _orjson_line, ready),
        MSGSPEC: lambda out: _loop(out, lambda step: dumps(step) + b"\n", ready),
        MADE[0]: made(_orjson_line),
        MADE[1]: made(lambda step: dumps(step) + b"\n"),
        LINES: lambda out: _lines(out, ready),
        BYTES: lambda out: out.write(text),
    }
    candidates = [Candidate.of(OURS, lambda path: part.to_jsonl(path, steps=True), calls=2)]
    candidates += [Candidate.of(name, _to_file(write), calls=2) for name, write in writes.items()]
    with _removed(target):
        seconds = measure.race(candidates, lambda: _absent(target), rounds=games.rounds)
    gc.unfreeze()
    found = {
        name: Measured.of([s / counts[name] * 1e9 for s in each]) for name, each in seconds.items()
    }
    ours = found.pop(OURS)

    def times(*names: str) -> float:
        return min(found[name].median for name in names) / ours.median

    return Case(
        f"steps as JSON lines: {len(ready):,} steps of {runs} runs",
        "ns/step",
        ours,
        found,
        [
            Target("times faster than json", times(*JSON), at_least=20),
            Target("times faster than orjson, dicts ready", times(ORJSON), at_least=3),
            Target("times faster than msgspec, dicts ready", times(MSGSPEC), at_least=3),
        ],
        f"to a file that is on the disk at the end, {len(text) / len(ready):.0f} bytes a step; "
        "with ready dicts only dumping and writing is timed, stepwell decodes the pack too; "
        f"json and dicts that are made write {len(some):,} steps",
    )


def _memory_case(games: Games) -> Case:
    """All of the pack, once, in a fresh process."""
    target = games.scratch / "all.jsonl"
    command = [sys.executable, "-m", "benchmarks.pack_export", str(games.pack), str(target)]
    with _removed(target):
        child = subprocess.Popen(command, stdout=subprocess.PIPE)
        with measure.AnonymousPeak(child.pid) as peak:
            answer, _ = child.communicate()
        if child.returncode:
            raise SystemExit(f"{' '.join(command)}: exit status {child.returncode}")
        size = target.stat().st_size
    found = json.loads(answer)
    steps = sw.PackReader.open(games.pack).stats.total_steps
    ours = Measured.of(
        [found["seconds"] / steps * 1e9],
        rss_bytes=found["peak_bytes"],
        anonymous_bytes=peak.bytes,
    )
    return Case(
        f"steps of a whole pack as JSON lines: {steps:,} steps",
        "ns/step",
        ours,
        {},
        [Target("peak of anonymous memory, MB", peak.bytes / 1e6, at_most=200)],
        f"once, in a fresh process, {size / 1e9:.2f} GB of text; memory is the whole process's: "
        f"{found['peak_bytes'] / 1e6:.0f} MB resident (VmHWM), pages of files included, of "
        f"which {peak.bytes / 1e6:.0f} MB anonymous (RssAnon); the pack has "
        f"{games.pack.stat().st_size / 1e6:.0f} MB",
    )


def _orjson_line(step: Step) -> bytes:
    line: bytes = orjson.dumps(step, option=orjson.OPT_APPEND_NEWLINE)
    return line


def _loop(out: BinaryIO, line: Callable[[Step], bytes], steps: Iterable[Step]) -> None:
    write = out.write
    for step in steps:
        write(line(step))


def _lines(out: BinaryIO, steps: Sequence[Step]) -> None:
    """The quickest of all: thousands of lines with each call."""
    encode = msgspec.json.Encoder().encode_lines
    for at in range(0, len(steps), 8192):
        out.write(encode(steps[at : at + 8192]))


def _to_file(write: Write) -> Callable[[Path], None]:
    def call(path: Path) -> None:
        with path.open("wb", buffering=_BUFFER_BYTES) as out:
            write(out)
            out.flush()
            os.fsync(out.fileno())

    return call


def _absent(path: Path) -> Path:
    path.unlink(missing_ok=True)
    return path


@contextmanager
def _removed(path: Path) -> Iterator[None]:
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
