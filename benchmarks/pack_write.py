"""Packing: against a plain copy of the same bytes, and what compression gives and takes."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from importlib.util import find_spec
from io import FileIO
from pathlib import Path

import stepwell as sw
from benchmarks import measure
from benchmarks.measure import Call, Candidate
from benchmarks.pack_data import Games
from benchmarks.results import Case, Measured, Target, console
from stepwell import game2048
from stepwell.stores.pack.writer import Compress

OURS, OURS_ONE = "stepwell", "stepwell, workers=1"
COPIES = ("shutil.copyfileobj", "os.sendfile", "cat and sync")

_ROUNDS = 5
_CODEC_ROUNDS = 3


def packing_cases(games: Games) -> list[Case]:
    """Files into one file, all of it on the disk when the clock stops."""
    target = games.scratch / "target"

    def pack(_: object, workers: int | None = None) -> None:
        game2048.pack_runs(games.source, target, threads=workers)

    calls: dict[str, Call] = {
        OURS: pack,
        OURS_ONE: partial(pack, workers=1),
        COPIES[0]: lambda _: _copy(games.files, target, shutil.copyfileobj),
        COPIES[1]: lambda _: _copy(games.files, target, _send),
        COPIES[2]: lambda _: _cat(games.source, target),
    }
    candidates = [Candidate(name, _without(target, call), calls=1) for name, call in calls.items()]
    rss_before = measure.reset_peak()
    with measure.AnonymousPeak() as peak:
        pack(None)
    rss = measure.peak_bytes() - rss_before
    seconds = measure.race(candidates, lambda: None, rounds=_ROUNDS)
    found = {name: Measured.of(each) for name, each in seconds.items()}
    ours = Measured.of(seconds[OURS], rss_bytes=rss, anonymous_bytes=peak.bytes - peak.before)
    del found[OURS]
    size = sum(file.stat().st_size for file in games.files)
    fastest = min(COPIES, key=lambda name: found[name].median)
    return [
        Case(
            f"pack {len(games.files):,} files, {size / 1e6:.0f} MB",
            "s",
            ours,
            found,
            [
                Target(
                    f"times the fastest plain copy ({fastest})",
                    ours.median / found[fastest].median,
                    at_most=1.5,
                )
            ],
            "files in the page cache, output synced to the disk and removed before each turn; "
            "packing also decodes every run, computes its checksum and counts statistics",
        )
    ]


def codec_cases(games: Games) -> list[Case]:
    """The same games in packs of every codec: sizes, time to pack, time to decode."""
    codecs: list[Compress] = ["none", "zstd", "zstd-dict"]
    if find_spec("lz4"):
        codecs.append("lz4")
    else:
        console.print("[dim]lz4 is not installed: left out[/]")
    paths = {codec: games.scratch / f"{codec}.a2pack" for codec in codecs}

    def pack(codec: Compress) -> Call:
        return lambda _: game2048.pack_runs(games.source, paths[codec], compress=codec)

    packed = measure.race(
        [Candidate(codec, _without(paths[codec], pack(codec)), calls=1) for codec in codecs],
        lambda: None,
        rounds=_CODEC_ROUNDS,
    )
    packs = {codec: sw.PackReader.open(path) for codec, path in paths.items()}
    for each in packs.values():
        for at in range(0, len(each), games.batch):
            each.decode_batch(range(at, min(at + games.batch, len(each))))  # its pages are mapped
    decoded = measure.race(
        [Candidate.of(codec, packs[codec].decode_batch, calls=10) for codec in codecs],
        games.random(),
        rounds=games.rounds,
    )
    payload = packs["none"].stored_bytes
    plain = paths["none"].stat().st_size
    found = {}
    for codec in codecs:
        size = paths[codec].stat().st_size
        found[codec] = Measured.of(
            [s * 1e3 for s in decoded[codec]],
            note=f"file {size / 1e6:.0f} MB, {size / plain:.2f} of uncompressed; "
            f"stored {packs[codec].stored_bytes / payload:.3f} of the payloads; "
            f"packed in {Measured.of(packed[codec]).median:.2f} s",
        )
    ours = found.pop("none")
    for path in paths.values():
        path.unlink()
    return [
        Case(
            f"decode_batch by codec: {games.size}",
            "ms",
            ours,
            {f"stepwell, compress={codec!r}": measured for codec, measured in found.items()},
            note=f"stepwell is the pack without compression; its payloads, {payload / 1e6:.0f} MB, "
            "are varints already; level 3",
        )
    ]


def _without(target: Path, call: Call) -> Callable[[], AbstractContextManager[Call]]:
    """A turn that finds no target: giving the old one's blocks back takes its time too."""

    @contextmanager
    def ready() -> Iterator[Call]:
        target.unlink(missing_ok=True)
        yield call

    return ready


def _copy(files: Sequence[Path], target: Path, copy: Callable[..., object]) -> None:
    with target.open("wb", buffering=0) as out:
        for file in files:
            with open(file, "rb", buffering=0) as data:
                copy(data, out)
        os.fsync(out.fileno())


def _send(data: FileIO, out: FileIO) -> None:
    while os.sendfile(out.fileno(), data.fileno(), None, 1 << 30):
        pass


def _cat(folder: Path, target: Path) -> None:
    command = 'cat "$1"/*.a2run2 > "$2" && sync "$2"'
    subprocess.run(["sh", "-c", command, "sh", str(folder), str(target)], check=True)
