"""What steps of Atari take on the disk, by game, by the order of planes and by codec."""

import gc
import os
import tempfile
from functools import partial
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from benchmarks import replay_data as data, replay_peers as peers
from benchmarks.replay_common import JSON, OURS, RUN, record, seconds_of
from benchmarks.results import Case, Measured, Target
from stepwell import _core
from stepwell.replay import ReplayReader

__all__ = ["codec_cases", "size_cases"]


def size_cases(rows: int, rounds: int) -> list[Case]:
    cases = []
    for game in data.GAMES:
        played = data.played(game)
        with data.scratch("size") as path:
            record(path, played, len(played))
            with h5py.File(path / "replay" / f"{RUN}.h5") as file:
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
                    JSON: Measured.of([text / peers.BATCH]),
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
        self._count, self._row_bytes = len(rows), rows[0].nbytes
        self._rows = _core.RowBuffer(self._row_bytes)
        for number, row in enumerate(rows):
            self._rows.put(number, row)
        self._planes, self._times = planes, times
        packed = self._pack()
        stored = [packed.stored(i) for i in range(self._count)]
        sizes = np.array([len(each) for each in stored], np.uint32)
        offsets = np.cumsum(sizes, dtype=np.uint64) - sizes
        raw = np.array([packed.raw(i) for i in range(self._count)], np.uint8)
        self._cells: tuple[NDArray[Any], ...] = (offsets, sizes, raw)
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed when all are measured
        self._file.write(b"".join(stored))
        self._file.flush()
        self._costs: list[tuple[float, float]] = []

    def measure(self) -> None:
        self._costs.append((seconds_of(self._pack), seconds_of(self._read) * self._times))

    def _pack(self) -> _core.PackedRows:
        return self._rows.packed(0, self._count, 2, 3, self._planes, False)

    def _read(self) -> None:
        file, size, none = self._file.fileno(), self._row_bytes, np.empty(0, np.uint32)
        some = 8  # what one thread takes at a time
        out = np.empty(some * size, np.uint8)
        for i in range(0, self._count - some + 1, some):
            at, sizes, raw = (column[i : i + some] for column in self._cells)
            _core.read_cells(file, "", 2, at, sizes, raw, none, size, out, self._planes)

    def measured(self) -> Measured:
        self._file.close()
        pack, read = np.median(self._costs, axis=0) / self._count * 1e6
        note = f"{pack:.1f} us to pack, {read:.1f} us to read"
        return Measured.of([float(self._cells[1].mean())], note=note)


def codec_cases(rows: int, rounds: int) -> list[Case]:
    """Size, writing and reading, of a store with each codec and of h5py with the same; and of the
    store's files by h5py."""
    played = data.all_played()
    count = len(played)
    sizes: dict[str, float] = {}
    costs: dict[str, dict[str, list[float]]] = {"write": {}, "read": {}}
    names = [(who, codec) for codec in peers.CODECS for who in (OURS, "h5py")]
    for _ in range(max(1, rounds // 2)):
        for who, codec in names:
            name = f"{who}, {codec}"
            with data.scratch("codec") as path:
                os.sync()
                if who == OURS:
                    took = seconds_of(partial(record, path, played, count, codec))
                    with ReplayReader.open(path) as reader:
                        read = seconds_of(partial(reader.episode, f"{RUN}-ep0000"))
                    sizes[name] = data.size_of(path / "replay") / count
                    with h5py.File(path / "replay" / f"{RUN}.h5") as opened:
                        plain = seconds_of(partial(peers.read_hdf5, opened, count))
                    sizes[f"h5py, {codec} of {OURS}"] = sizes[name]
                    costs["read"].setdefault(f"h5py, {codec} of {OURS}", []).append(
                        plain / count * 1e6
                    )
                else:
                    file = path / "a.h5"
                    steps = played.around(count)
                    took = seconds_of(partial(peers.write_hdf5, file, steps, codec))
                    with h5py.File(file) as opened:
                        read = seconds_of(partial(peers.read_hdf5, opened, count))
                    sizes[name] = file.stat().st_size / count
            gc.collect()
            for what, seconds in (("write", took), ("read", read)):
                costs[what].setdefault(name, []).append(seconds / count * 1e6)
    ours = f"{OURS}, zstd"
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
