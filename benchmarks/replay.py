"""Replay stores: recording and reading Atari, against JSON in SQLite and plain h5py.

Frames of 210 x 160 x 3 and observations of 84 x 84 x 4 from three games. All files are in the
page cache. `--rows` is the number of steps of the store that random ones are read from; `--only`
asks one question instead of all.
"""

import gc
import os
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
from benchmarks.questions import answer
from benchmarks.replay_common import JSON, LZF, OURS, RUN, record, seconds_of
from benchmarks.replay_recording import loop_cases, pace_cases, record_cases
from benchmarks.replay_sizes import codec_cases, size_cases
from benchmarks.results import Case, Measured, Target, arguments
from stepwell import _core
from stepwell.replay import ReplayReader

_STEPS = 100_000
_EPISODE = 1000
_BATCH = 256


def main() -> None:
    parser = arguments(__doc__, rows=_STEPS)
    parser.add_argument("--rounds", type=int, default=7, help="turns of each (%(default)s)")
    parser.add_argument("--only", choices=_QUESTIONS, help="one question instead of all")
    args = parser.parse_args()
    rows = max(2 * _EPISODE, min(args.rows, _STEPS))
    data.all_played()
    options = [f"--rows={rows}", f"--rounds={args.rounds}"]
    questions = {name: partial(q, rows, args.rounds) for name, q in _QUESTIONS.items()}
    answer("replay", questions, args, options)


# Reading


def _episode_cases(rows: int, rounds: int) -> list[Case]:
    """A whole episode with all its arrays, fresh ones each time."""
    played = data.all_played()
    few = peers.BATCH
    with data.scratch("episode") as path:
        record(path, played, _EPISODE)
        peers.write_json(path / "a.sqlite", played.around(few))
        for codec in ("lzf", "zstd"):
            peers.write_hdf5(path / f"{codec}.h5", played.around(_EPISODE), codec)
        with (
            ReplayReader.open(path) as reader,
            h5py.File(path / "lzf.h5") as lzf,
            h5py.File(path / "zstd.h5") as zstd,
            _limits(path / "replay" / f"{RUN}.h5") as limits,
        ):
            ways: dict[str, Callable[[], object]] = {
                OURS: lambda: reader.episode(f"{RUN}-ep0000"),
                JSON: lambda: peers.read_json(path / "a.sqlite", few),
                LZF: lambda: peers.read_hdf5(lzf, _EPISODE),
                "h5py, zstd": lambda: peers.read_hdf5(zstd, _EPISODE),
                **limits,
            }
            got = reader.episode(f"{RUN}-ep0000")
            np.testing.assert_array_equal(got.frames, played.frames[:_EPISODE])
            np.testing.assert_array_equal(got.observations, played.observations[:_EPISODE])
            del got
            before = measure.AnonymousPeak()
            with before:
                kept = reader.episode(f"{RUN}-ep0000")
            extra = before.bytes - before.before - kept.frames.nbytes - kept.observations.nbytes
            del kept
            costs = _turns(ways, rounds, {JSON: few}, _EPISODE, slow=(JSON,))
    found = {n: Measured.of(each, rows_per_s=1e6 / np.median(each)) for n, each in costs.items()}
    ours = replace(found.pop(OURS), anonymous_bytes=max(0, extra))
    limit = min(limits, key=lambda name: found[name].median)
    return [
        Case(
            f"load an episode of {_EPISODE:,} steps with frames and observations",
            "us a step",
            ours,
            found,
            [
                Target("times JSON in SQLite", found[JSON].median / ours.median, at_least=300),
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
        record(path, played, rows)
        for name, codec, chunk in (("lzf", "lzf", 16), ("zstd", "zstd", 16), ("one", "zstd", 1)):
            with peers.hdf5_writer(path / f"{name}.h5", codec, chunk) as append:
                for begin in range(0, rows, peers.BATCH):
                    wanted = np.arange(begin, min(begin + peers.BATCH, rows)) % len(played)
                    append(played.frames[wanted], played.observations[wanted])
        os.sync()
        with (
            ReplayReader.open(path, frames=True, next_observation=False) as shown,
            ReplayReader.open(path) as pairs,
            h5py.File(path / "lzf.h5") as lzf,
            h5py.File(path / "zstd.h5") as zstd,
            h5py.File(path / "one.h5") as one,
        ):
            for what, source, names in (
                ("frame and observation", shown, ("frames", "observations")),
                ("observation and the next one", pairs, ("observations", "observations")),
            ):
                ways: dict[str, Callable[[Any], object]] = {
                    OURS: source.take,
                    LZF: partial(_take_both, lzf, names),
                    "h5py, zstd": partial(_take_both, zstd, names),
                    "h5py, zstd, one step a chunk, row by row": partial(_take_each, one, names),
                }
                candidates = [
                    measure.Candidate.of(name, way, calls=20 if name == OURS else 2)
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
                ours = replace(found.pop(OURS), anonymous_bytes=peak.bytes - peak.before)
                cases.append(
                    Case(
                        f"{_BATCH} random steps of {rows:,}: {what}",
                        "us a step",
                        ours,
                        found,
                        [
                            Target(
                                "times h5py with lzf", found[LZF].median / ours.median, at_least=5
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


_QUESTIONS: dict[str, Callable[[int, int], list[Case]]] = {
    "record": record_cases,
    "pace": pace_cases,
    "loop": loop_cases,
    "size": size_cases,
    "episode": _episode_cases,
    "random": _random_cases,
    "codecs": codec_cases,
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
                costs[name].append(seconds_of(ways[name]) / steps.get(name, usual) * 1e6)
    return costs


if __name__ == "__main__":
    main()
