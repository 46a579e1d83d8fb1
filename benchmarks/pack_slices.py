"""Stored bytes of random entries: against LMDB and a file for each, read or only found."""

from dataclasses import replace

import numpy as np

import stepwell as sw
from benchmarks import measure, pack_peers
from benchmarks.measure import Candidate
from benchmarks.pack_data import Games
from benchmarks.results import Case, Measured, Target, console

_SLICES, _LOOP = "stepwell, slices", "stepwell, slice, one at a time"
_SLICES_COPIED = "stepwell, slices, copied"
_TAKE = "stepwell, take of a raw pack"
_VIEWS, _VIEWS_LOOP = "stepwell, slices, unchecked", "stepwell, loop of slice, unchecked"
_COPIES = "stepwell, slices, unchecked, copied"
_DROPPED = "stepwell, slice, unchecked, copied, one at a time"


def slice_cases(games: Games) -> list[Case]:
    checked = sw.PackReader.open(games.pack)
    unchecked = sw.PackReader.open(games.pack, checksums=False)
    raw = sw.PackReader.open(games.raw_pack)
    candidates = [
        Candidate.of(_SLICES, checked.slices, calls=50),
        Candidate.of(_LOOP, pack_peers.one_at_a_time(checked.slice), calls=50),
        Candidate.of(_SLICES_COPIED, lambda rows: list(map(bytes, checked.slices(rows))), calls=50),
        Candidate.of(_TAKE, raw.take, calls=50),
        Candidate.of(_VIEWS, unchecked.slices, calls=50),
        Candidate.of(
            _VIEWS_LOOP, lambda rows: [unchecked.slice(row) for row in rows.tolist()], calls=50
        ),
        Candidate.of(_COPIES, lambda rows: list(map(bytes, unchecked.slices(rows))), calls=50),
        Candidate.of(
            _DROPPED, pack_peers.one_at_a_time(lambda row: bytes(unchecked.slice(row))), calls=50
        ),
        *pack_peers.file_reads(games.files),
    ]
    if pack_peers.has_lmdb():
        candidates += pack_peers.lmdb_reads(games.files, games.scratch)
    else:
        console.print("[dim]lmdb is not installed: left out[/]")
    pack_peers.read_all(candidates, games.files, games.batch)
    memory = {}
    for name, reader in ((_SLICES, checked), (_VIEWS, unchecked)):
        before = measure.reset_peak()
        with measure.AnonymousPeak() as peak:
            for _ in range(50):
                reader.slices(np.arange(games.batch))
        memory[name] = (measure.peak_bytes() - before, peak.bytes - peak.before)
    seconds = measure.race(candidates, games.random(), rounds=games.rounds)
    found = {name: Measured.of([s * 1e3 for s in each]) for name, each in seconds.items()}
    for name, (rss, anonymous) in memory.items():
        found[name] = replace(found[name], rss_bytes=rss, anonymous_bytes=anonymous)
    return [_copied_case(found, games), _viewed_case(found, games)]


def _copied_case(found: dict[str, Measured], games: Games) -> Case:
    batches, single = pack_peers.LMDB_COPIES, pack_peers.LMDB_DROPPED
    ours_too = (_LOOP, _SLICES_COPIED, _TAKE, _COPIES, _DROPPED)
    names = (*ours_too, *pack_peers.READ_FILES, *batches, single)
    cost = {name: measured.median for name, measured in found.items()}
    files, file_by_file = (cost[name] for name in pack_peers.READ_FILES)
    targets = [
        Target("slices, times faster than separate files", files / cost[_SLICES], at_least=3),
        Target("slice, times faster than separate files", file_by_file / cost[_LOOP], at_least=3),
    ]
    if single in cost:
        lmdb = min(cost[name] for name in batches)
        targets += [
            Target("slices, times LMDB's cost", cost[_SLICES] / lmdb, at_most=1),
            Target("slices copied unchecked, times LMDB's cost", cost[_COPIES] / lmdb, at_most=1),
            Target("slice, times LMDB's cost", cost[_LOOP] / cost[single], at_most=1),
        ]
    return Case(
        f"payloads, read: {games.size}",
        "ms",
        found[_SLICES],
        {name: found[name] for name in names if name in found},
        targets,
        "stepwell is `slices`: views of the mapped file, each checked by its checksum; `take` "
        "checks and copies, on all cores; LMDB and files copy without a checksum. Targets compare "
        "batches with batches, and payloads that are dropped one by one, whose copies stay in the "
        "caches, with such",
    )


def _viewed_case(found: dict[str, Measured], games: Games) -> Case:
    names = (_VIEWS_LOOP, *pack_peers.LMDB_VIEWS)
    peers = {name: found[name] for name in names if name in found}
    ours = found[_VIEWS]
    targets = []
    if pack_peers.LMDB_VIEWS[0] in found:
        lmdb = min(found[name].median for name in pack_peers.LMDB_VIEWS)
        targets = [
            Target("slices, times LMDB's cost", ours.median / lmdb, at_most=1),
            Target(
                "slice, times LMDB's cost",
                found[_VIEWS_LOOP].median / lmdb,
                at_most=1,
            ),
        ]
    return Case(
        f"payloads, only found: {games.size}",
        "ms",
        ours,
        peers,
        targets,
        "views of mapped memory that nobody reads: no sum, no copy, on either side",
    )
