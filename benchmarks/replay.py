"""Replay stores: recording and reading Atari, against JSON in SQLite and plain h5py.

Frames of 210 x 160 x 3 and observations of 84 x 84 x 4 from three games. All files are in the
page cache. `--rows` is the number of steps of the store that random ones are read from; `--only`
asks one question instead of all.
"""

import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import zstandard
from numpy.typing import NDArray

from benchmarks import measure, replay_data as data, replay_peers as peers
from benchmarks.machine import Quiet
from benchmarks.results import Case, Measured, Target, arguments, console, publish, save
from stepwell import _core
from stepwell.replay import ReplayReader, ReplayWriter

_OURS = "stepwell"
_JSON = "SQLite, JSON"
_LZF = "h5py, lzf"
_STEPS = 100_000
_EPISODE = 1000
_BATCH = 256
_WARM = 600  # steps before one counts: until then memory is made that is used from there on
_RUN = "run"


def main() -> None:
    parser = arguments(__doc__, rows=_STEPS)
    parser.add_argument("--rounds", type=int, default=7, help="turns of each (%(default)s)")
    parser.add_argument("--only", choices=_QUESTIONS, help="one question instead of all")
    args = parser.parse_args()
    quiet = Quiet()
    rows = max(2 * _EPISODE, min(args.rows, _STEPS))
    if args.only:
        cases = [_with_command(c, args.only) for c in _QUESTIONS[args.only](rows, args.rounds)]
        publish(cases, args.json)
    else:
        data.all_played()
        cases = [case for name in _QUESTIONS for case in _ask(name, rows, args.rounds)]
        save(cases, args.json)
    console.print(f"[dim]other programs used {quiet.others():.0%} of the machine[/]")


def _ask(question: str, rows: int, rounds: int) -> list[Case]:
    """The answer of a fresh process, which prints it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cases.json"
        options = [f"--only={question}", f"--rows={rows}", f"--rounds={rounds}", f"--json={path}"]
        subprocess.run([sys.executable, "-m", "benchmarks.replay", *options], check=True)
        return [Case.from_json(case) for case in json.loads(path.read_text())]


def _with_command(case: Case, question: str) -> Case:
    command = f"alone: `python -m benchmarks.replay --only {question}`"
    return replace(case, note=f"{case.note}; {command}" if case.note else command)


# Recording


def _record_cases(rows: int, rounds: int) -> list[Case]:
    """From the first step to the end of `close`, when everything is on the disk."""
    played = data.all_played()
    many, some, few = min(rows, 6000), min(rows, 1920), 2 * peers.BATCH
    ways: dict[str, tuple[int, Callable[[Path], None]]] = {
        _OURS: (many, lambda path: _record(path, played, many)),
        _JSON: (few, lambda path: peers.write_json(path / "a.sqlite", played.around(few))),
        _LZF: (some, lambda path: peers.write_hdf5(path / "a.h5", played.around(some), "lzf")),
        "h5py, zstd": (
            some,
            lambda path: peers.write_hdf5(path / "b.h5", played.around(some), "zstd"),
        ),
    }
    with data.scratch("record") as path, measure.AnonymousPeak() as peak:
        _record(path, played, many)
    costs: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds):
        for name in sorted(ways, reverse=turn % 2 == 1):
            if name == _JSON and turn > 2:
                continue
            count, write = ways[name]
            with data.scratch("record") as path:
                os.sync()
                costs[name].append(_seconds(partial(write, path)) / count * 1e6)
    found = {n: Measured.of(each, rows_per_s=1e6 / np.median(each)) for n, each in costs.items()}
    ours = replace(found.pop(_OURS), anonymous_bytes=peak.bytes - peak.before)
    return [
        Case(
            "record frames and observations of Atari, as fast as it goes",
            "us a step",
            ours,
            found,
            [
                Target("steps/s", 1e6 / ours.median, at_least=5000),
                Target("times JSON in SQLite", found[_JSON].median / ours.median, at_least=150),
            ],
            f"{many:,} steps of three games in turn, with an action and a reward; the queue holds "
            "128 MiB. h5py alone keeps no steps in a database and syncs nothing",
        )
    ]


def _record(path: Path, played: data.Played, count: int) -> None:
    with ReplayWriter(path, _RUN) as writer:
        for step in played.around(count):
            writer.record_step(**step)


def _pace_cases(rows: int, rounds: int) -> list[Case]:
    """A step each 500 microseconds: what the caller waits for."""
    played = data.all_played()
    count, interval = min(rows, 2000), 1 / 2000
    took: list[float] = []
    dry: list[float] = []
    for _ in range(rounds):
        with data.scratch("pace") as path, ReplayWriter(path, _RUN) as writer:
            for step in played.around(_WARM):
                writer.record_step(**step)
            writer.flush()
            took += _paced(played, count, interval, partial(_put, writer))
        dry += _paced(played, count, interval, _copy)
    ours, copying = (Measured.of([s * 1e6 for s in each]) for each in (took, dry))
    return [
        Case(
            "one call of record_step, at 2,000 steps/s",
            "us",
            ours,
            {"a copy of both arrays, nothing else": copying},
            [Target("99th percentile, us", ours.p99, at_most=100)],
            "frame and observation in every step; the writer's thread is at work meanwhile",
        )
    ]


def _put(writer: ReplayWriter, step: dict[str, Any]) -> None:
    writer.record_step(**step)


def _copy(step: dict[str, Any]) -> None:
    step["frame"].tobytes()
    step["observation"].tobytes()


def _paced(
    played: data.Played, count: int, interval: float, call: Callable[[dict[str, Any]], object]
) -> list[float]:
    took = []
    due = time.perf_counter()
    for step in played.around(count):
        due += interval
        while (left := due - time.perf_counter()) > 0:
            time.sleep(left)
        begin = time.perf_counter()
        call(step)
        took.append(time.perf_counter() - begin)
    return took


def _loop_cases(rows: int, rounds: int) -> list[Case]:
    """Games played at their own speed, with and without a recorder."""
    count = min(rows, 4000)
    cases = []
    for game in data.GAMES:
        costs: dict[str, list[float]] = {"not recorded": [], _OURS: []}
        env = data.environment(game)
        for turn in range(rounds):
            for name in sorted(costs, reverse=turn % 2 == 1):
                with data.scratch("loop") as path:
                    recorder = ReplayWriter(path, _RUN) if name == _OURS else None
                    costs[name].append(_play(env, count, recorder) / count * 1e6)
                    if recorder is not None:
                        recorder.close()
        env.close()
        found = {
            n: Measured.of(each, rows_per_s=1e6 / np.median(each)) for n, each in costs.items()
        }
        ours = found.pop(_OURS)
        # The same moment of the machine for both: rounds are compared one by one.
        slower = np.median(
            [a / b for a, b in zip(costs[_OURS], costs["not recorded"], strict=True)]
        )
        cases.append(
            Case(
                f"play {game} and record it: every observation, every fourth frame",
                "us a step",
                ours,
                found,
                [Target("slower than without, %", (float(slower) - 1) * 100, at_most=10)],
                f"{count:,} steps a turn after {_WARM}, the environment at its own speed",
            )
        )
    return cases


def _play(env: Any, count: int, recorder: ReplayWriter | None) -> float:
    rng = np.random.default_rng(0)
    frame, _ = env.reset(seed=0)
    sight = data.Sight()
    seen = sight(frame)
    begin = 0.0
    for i in range(-_WARM, count):
        if i == 0:
            begin = time.perf_counter()
        action = int(rng.integers(env.action_space.n))
        after, reward, terminated, truncated, _ = env.step(action)
        if recorder is not None:
            recorder.record_step(
                observation=seen,
                frame=frame if i % 4 == 0 else None,
                action=action,
                reward=float(reward),
                terminated=terminated,
                truncated=truncated,
            )
        frame = after
        if terminated or truncated:
            frame, _ = env.reset()
            sight = data.Sight()
        seen = sight(frame)
    return time.perf_counter() - begin


# Sizes


def _size_cases(rows: int, rounds: int) -> list[Case]:
    cases = []
    for game in data.GAMES:
        played = data.played(game)
        with data.scratch("size") as path:
            _record(path, played, len(played))
            with h5py.File(path / "replay" / f"{_RUN}.h5") as file:
                frames, seen = (
                    file[name].id.get_storage_size() / len(played)
                    for name in ("frames", "observations")
                )
            arrays = data.size_of(path / "replay") / len(played)
            database = data.size_of(path / "telemetry") / len(played)
            peers.write_json(path / "a.sqlite", played.around(peers.BATCH))
            text = data.size_of(path / "a.sqlite") or (path / "a.sqlite").stat().st_size
        raw = data.FRAME_BYTES + data.OBSERVATION_BYTES
        cases.append(
            Case(
                f"size of a step of {game}",
                "bytes",
                Measured.of([arrays + database], note="all of it"),
                {
                    "of it frames": Measured.of([frames]),
                    "of it observations": Measured.of([seen]),
                    "of it the rest of the HDF5 file": Measured.of([arrays - frames - seen]),
                    "of it SQLite": Measured.of([database]),
                    "raw arrays": Measured.of([raw]),
                    _JSON: Measured.of([text / peers.BATCH]),
                },
                [
                    Target("frames, times smaller", data.FRAME_BYTES / frames, at_least=20),
                    Target("observations, smaller", data.OBSERVATION_BYTES / seen, at_least=10),
                ],
                f"{len(played):,} steps, zstd, one step a chunk",
            )
        )
    return [*cases, *_plane_cases(rounds)]


def _plane_cases(rounds: int) -> list[Case]:
    """What is gained by storing the planes of an observation one behind the other, and what would
    be by keeping each once; and why the colours of a frame stay together."""
    cases = []
    for game in data.GAMES:
        played = data.played(game)
        seen, newest = played.observations, np.ascontiguousarray(played.observations[..., 3])
        apart, together = "one plane behind the other", "as they are"
        observations = {
            apart: _Packed(seen, 4),
            together: _Packed(seen),
            "the newest plane alone, read four times": _Packed(newest, times=4),
        }
        frames = {together: _Packed(played.frames), apart: _Packed(played.frames, 3)}
        for what, ways in (("stacked observations", observations), ("frames", frames)):
            for turn in range(rounds):
                for name in sorted(ways, reverse=turn % 2 == 1):
                    ways[name].measure()
            found = {name: way.measured() for name, way in ways.items()}
            stored = next(iter(found))
            ours = found.pop(stored)
            title = f"{what} of {game}, stored {stored}"
            note = "packed and read by the store's own core, by one thread"
            cases.append(Case(title, "bytes", ours, found, note=note))
    return cases


class _Packed:
    """Rows in a file of their own, as a store packs them."""

    def __init__(self, rows: NDArray[np.uint8], planes: int = 1, times: int = 1) -> None:
        """`times` as many of them are read."""
        self._rows = [row.tobytes() for row in rows]
        self._planes, self._times = planes, times
        packed, _ = _core.pack_each(2, 3, self._rows, False, planes)
        stored = [r if p is None else p for r, p in zip(self._rows, packed, strict=True)]
        sizes = np.array([len(each) for each in stored], np.uint32)
        offsets = np.cumsum(sizes, dtype=np.uint64) - sizes
        raw = np.array([p is None for p in packed], np.uint8)
        self._cells: tuple[NDArray[Any], ...] = (offsets, sizes, raw)
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed when all are measured
        self._file.write(b"".join(stored))
        self._file.flush()
        self._costs: list[tuple[float, float]] = []

    def measure(self) -> None:
        pack = _seconds(lambda: _core.pack_each(2, 3, self._rows, False, self._planes))
        self._costs.append((pack, _seconds(self._read) * self._times))

    def _read(self) -> None:
        file, size, none = self._file.fileno(), len(self._rows[0]), np.empty(0, np.uint32)
        some = 8  # what one thread takes at a time
        out = np.empty(some * size, np.uint8)
        for i in range(0, len(self._rows) - some + 1, some):
            at, sizes, raw = (column[i : i + some] for column in self._cells)
            _core.read_cells(file, "", 2, at, sizes, raw, none, size, out, self._planes)

    def measured(self) -> Measured:
        self._file.close()
        pack, read = np.median(self._costs, axis=0) / len(self._rows) * 1e6
        note = f"{pack:.1f} us to pack, {read:.1f} us to read"
        return Measured.of([float(self._cells[1].mean())], note=note)


# Reading


def _episode_cases(rows: int, rounds: int) -> list[Case]:
    """A whole episode with all its arrays, fresh ones each time."""
    played = data.all_played()
    few = peers.BATCH
    with data.scratch("episode") as path:
        _record(path, played, _EPISODE)
        peers.write_json(path / "a.sqlite", played.around(few))
        for codec in ("lzf", "zstd"):
            peers.write_hdf5(path / f"{codec}.h5", played.around(_EPISODE), codec)
        with (
            ReplayReader(path) as reader,
            h5py.File(path / "lzf.h5") as lzf,
            h5py.File(path / "zstd.h5") as zstd,
            _limits(path / "replay" / f"{_RUN}.h5") as limits,
        ):
            ways: dict[str, Callable[[], object]] = {
                _OURS: lambda: reader.episode(f"{_RUN}-ep0000"),
                _JSON: lambda: peers.read_json(path / "a.sqlite", few),
                _LZF: lambda: peers.read_hdf5(lzf, _EPISODE),
                "h5py, zstd": lambda: peers.read_hdf5(zstd, _EPISODE),
                **limits,
            }
            got = reader.episode(f"{_RUN}-ep0000")
            np.testing.assert_array_equal(got.frames, played.frames[:_EPISODE])
            np.testing.assert_array_equal(got.observations, played.observations[:_EPISODE])
            del got
            before = measure.AnonymousPeak()
            with before:
                kept = reader.episode(f"{_RUN}-ep0000")
            extra = before.bytes - before.before - kept.frames.nbytes - kept.observations.nbytes
            del kept
            costs = _turns(ways, rounds, {_JSON: few}, _EPISODE, slow=(_JSON,))
    found = {n: Measured.of(each, rows_per_s=1e6 / np.median(each)) for n, each in costs.items()}
    ours = replace(found.pop(_OURS), anonymous_bytes=max(0, extra))
    limit = min(limits, key=lambda name: found[name].median)
    return [
        Case(
            f"load an episode of {_EPISODE:,} steps with frames and observations",
            "us a step",
            ours,
            found,
            [
                Target("times JSON in SQLite", found[_JSON].median / ours.median, at_least=300),
                Target(f"of the limit ({limit})", found[limit].median / ours.median, at_least=0.7),
            ],
            f"129 MB of arrays; JSON is measured with {few} steps. The limits unpack the same "
            "payloads with all cores into fresh arrays of the same size and do nothing else: with "
            "zstandard from memory, which leaves the planes of observations apart, and with the "
            "store's own core from the file. stepwell uses memory again that earlier arrays left. "
            "Memory is what is needed besides the arrays",
        )
    ]


@contextmanager
def _limits(path: Path) -> Iterator[dict[str, Callable[[], object]]]:
    """Nothing but unpacking, of all rows of frames and observations."""
    everything: list[tuple[Any, ...]] = []
    with h5py.File(path) as file:
        for name in ("frames", "observations"):
            rows = file[name]
            infos = [rows.id.get_chunk_info(i) for i in range(len(rows))]
            infos.sort(key=lambda info: info.chunk_offset)
            planes = rows.dtype.itemsize  # a byte each
            size = int(np.prod(rows.shape[1:])) * planes
            stored = [rows.id.read_direct_chunk(info.chunk_offset)[1] for info in infos]
            sizes = np.full(len(infos), size, np.uint64).tobytes()
            everything.append((infos, size, stored, sizes, planes))
    opened = os.open(path, os.O_RDONLY)

    def zstandard_() -> object:
        unpack = zstandard.ZstdDecompressor().multi_decompress_to_buffer
        cores = _core.usable_cores()
        return [
            unpack(stored, decompressed_sizes=sizes, threads=cores)
            for _, _, stored, sizes, _ in everything
        ]

    def cells() -> object:
        made = []
        for cells_, (_, size, _, _, planes) in zip(places, everything, strict=True):
            out = np.empty(len(cells_[0]) * size, np.uint8)
            none = np.empty(0, np.uint32)
            _core.read_cells(opened, path, 2, *cells_, none, size, out, planes)
            made.append(out)
        return made

    places = [
        (
            np.array([info.byte_offset for info in infos], np.uint64),
            np.array([info.size for info in infos], np.uint32),
            np.array([info.filter_mask != 0 for info in infos], np.uint8),
        )
        for infos, *_ in everything
    ]
    try:
        yield {
            "unpacking alone, zstandard": zstandard_,
            "unpacking alone, read_cells": cells,
        }
    finally:
        os.close(opened)


def _random_cases(rows: int, rounds: int) -> list[Case]:
    played = data.all_played()
    rng = np.random.default_rng(1)
    cases = []
    with data.scratch("random") as path:
        _record(path, played, rows)
        for name, codec, chunk in (("lzf", "lzf", 16), ("zstd", "zstd", 16), ("one", "zstd", 1)):
            with peers.hdf5_writer(path / f"{name}.h5", codec, chunk) as append:
                for begin in range(0, rows, peers.BATCH):
                    wanted = np.arange(begin, min(begin + peers.BATCH, rows)) % len(played)
                    append(played.frames[wanted], played.observations[wanted])
        os.sync()
        with (
            ReplayReader(path) as reader,
            h5py.File(path / "lzf.h5") as lzf,
            h5py.File(path / "zstd.h5") as zstd,
            h5py.File(path / "one.h5") as one,
        ):
            shown = reader.steps(frames=True, next_observation=False)
            pairs = reader.steps()
            for what, source, names in (
                ("frame and observation", shown, ("frames", "observations")),
                ("observation and the next one", pairs, ("observations", "observations")),
            ):
                ways: dict[str, Callable[[Any], object]] = {
                    _OURS: source.take,
                    _LZF: partial(_take_both, lzf, names),
                    "h5py, zstd": partial(_take_both, zstd, names),
                    "h5py, zstd, one step a chunk, row by row": partial(_take_each, one, names),
                }
                candidates = [
                    measure.Candidate.of(name, way, calls=20 if name == _OURS else 2)
                    for name, way in ways.items()
                ]
                wanted = rng.integers(0, rows - 1, _BATCH)
                got = source.take(wanted)
                np.testing.assert_array_equal(
                    got["observation"], played.observations[wanted % len(played)]
                )
                with measure.AnonymousPeak() as peak:
                    for _ in range(10):
                        source.take(rng.integers(0, rows - 1, _BATCH))
                seconds = measure.race(
                    candidates, lambda: rng.integers(0, rows - 1, _BATCH), rounds=rounds
                )
                found = {
                    name: Measured.of([s / _BATCH * 1e6 for s in each])
                    for name, each in seconds.items()
                }
                ours = replace(found.pop(_OURS), anonymous_bytes=peak.bytes - peak.before)
                cases.append(
                    Case(
                        f"{_BATCH} random steps of {rows:,}: {what}",
                        "us a step",
                        ours,
                        found,
                        [
                            Target(
                                "times h5py with lzf", found[_LZF].median / ours.median, at_least=5
                            ),
                            Target("us a step", ours.median, at_most=60),
                        ],
                        f"h5py's chunks are of {peers.CHUNK} steps, its rows sorted first",
                    )
                )
    return cases


def _take_each(file: h5py.File, names: Sequence[str], wanted: NDArray[np.int64]) -> object:
    second = wanted + 1 if names[0] == names[1] else wanted
    taken = []
    for name, rows in zip(names, (wanted, second), strict=True):
        dataset = file[name]
        out = np.empty((len(rows), *dataset.shape[1:]), dataset.dtype)
        for i, row in enumerate(rows.tolist()):
            dataset.read_direct(out, np.s_[row], np.s_[i])
        taken.append(out)
    return taken


def _take_both(file: h5py.File, names: Sequence[str], wanted: NDArray[np.int64]) -> object:
    second = wanted + 1 if names[0] == names[1] else wanted
    return [
        peers.take_hdf5(file[name], rows)
        for name, rows in zip(names, (wanted, second), strict=True)
    ]


def _codec_cases(rows: int, rounds: int) -> list[Case]:
    """Size, writing and reading, of a store with each codec and of h5py with the same."""
    played = data.all_played()
    count = len(played)
    sizes: dict[str, float] = {}
    costs: dict[str, dict[str, list[float]]] = {"write": {}, "read": {}}
    names = [(who, codec) for codec in peers.CODECS for who in (_OURS, "h5py")]
    for _ in range(max(1, rounds // 2)):
        for who, codec in names:
            name = f"{who}, {codec}"
            with data.scratch("codec") as path:
                os.sync()
                if who == _OURS:
                    took = _seconds(partial(_record_with, path, played, count, codec))
                    with ReplayReader(path) as reader:
                        read = _seconds(partial(reader.episode, f"{_RUN}-ep0000"))
                    sizes[name] = data.size_of(path / "replay") / count
                else:
                    file = path / "a.h5"
                    steps = played.around(count)
                    took = _seconds(partial(peers.write_hdf5, file, steps, codec))
                    with h5py.File(file) as opened:
                        read = _seconds(partial(peers.read_hdf5, opened, count))
                    sizes[name] = file.stat().st_size / count
            gc.collect()
            for what, seconds in (("write", took), ("read", read)):
                costs[what].setdefault(name, []).append(seconds / count * 1e6)
    ours = f"{_OURS}, zstd"
    return [
        Case(
            f"{what} frames and observations with each codec",
            "us a step",
            Measured.of(each[ours], note=f"zstd, {sizes[ours]:,.0f} bytes a step"),
            {
                name: Measured.of(some, note=f"{sizes[name]:,.0f} bytes a step")
                for name, some in each.items()
                if name != ours
            },
            note=f"{count:,} steps, h5py in chunks of {peers.CHUNK}; ours with one step a chunk, "
            "rows of the database and syncs",
        )
        for what, each in costs.items()
    ]


def _record_with(path: Path, played: data.Played, count: int, codec: str) -> None:
    with ReplayWriter(path, _RUN, codec=codec) as writer:
        for step in played.around(count):
            writer.record_step(**step)


_QUESTIONS: dict[str, Callable[[int, int], list[Case]]] = {
    "record": _record_cases,
    "pace": _pace_cases,
    "loop": _loop_cases,
    "size": _size_cases,
    "episode": _episode_cases,
    "random": _random_cases,
    "codecs": _codec_cases,
}


def _turns(
    ways: dict[str, Callable[[], object]],
    rounds: int,
    steps: dict[str, int],
    usual: int,
    slow: Sequence[str],
) -> dict[str, list[float]]:
    """Microseconds a step of each, in turns; what is slow has few."""
    costs: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds):
        for name in sorted(ways, reverse=turn % 2 == 1):
            if name in slow and turn > 1:
                continue
            for _ in range(1 if name in slow else 3):
                gc.collect()
                costs[name].append(_seconds(ways[name]) / steps.get(name, usual) * 1e6)
    return costs


def _seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
