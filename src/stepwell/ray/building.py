"""`stepwell.ray.convert`: a conversion as Ray tasks, piece by piece.

    sw.ray.convert("played", "games")                        on the cores of this machine
    sw.ray.convert("played", "games", address="auto")        on the cluster that it is in

Pieces that are finished are kept in `OUT.part`, so that the same call goes on after a kill of
anything: of a task, of Ray, or of this process. Nothing has its final name before it is whole.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from stepwell.conversion import (
    ConvertReport,
    check_apart,
    check_target,
    files_checksum,
    report_of,
    warn_of_growth,
)
from stepwell.errors import FormatError
from stepwell.files.remote import is_url
from stepwell.formats.minari import PREFIX
from stepwell.formats.parts import Part
from stepwell.ray import packs, records, shards, steps
from stepwell.ray.cluster import joined
from stepwell.ray.finished import Finished
from stepwell.ray.origin import Key, Origin, of_games, of_source, place_of
from stepwell.ray.work import Work
from stepwell.request import Request
from stepwell.source import Source
from stepwell.store import Progress
from stepwell.stores import PackReader

_BUILD: dict[str, Callable[[Work, Origin], int | None]] = {
    "records": records.build,
    "shards": shards.build,
    "steps": steps.build,
}
"""Of those that have them, they return the number of runs."""


def convert(
    source: str | os.PathLike[str] | Source,
    target: str | os.PathLike[str],
    *,
    address: str = "local",
    workers: int | None = None,
    to: str | None = None,
    field: str | Sequence[str] | None = None,
    where: str | None = None,
    compress: str = "none",
    level: int | None = None,
    chunk_records: int = 8192,
    part_bytes: int | None = None,
    skip_bad: bool = False,
    without_values: bool = False,
    force: bool = False,
    progress: Progress | None = None,
) -> ConvertReport:
    """Make a step dataset, shards, a record store or a pack, as `stepwell.convert` does, in tasks.

    `address` is "local", for a Ray of this machine's cores that ends with the call, or that of a
    cluster: "auto", "host:6379", "ray://host:10001". A Ray that this process has joined is used.
    At most `workers` tasks run at once. `source` is a path that every worker can open, or a store
    that was opened at one; `target` is on a disk that all of them share.

    Row files, shards and packs are byte for byte those of `stepwell.convert`. A task whose worker
    dies is run again, and costs its piece. After an error the same call makes what is missing.
    Raises as `stepwell.convert` does, `ConnectionError` where Ray is not or no longer there, and
    `ChildProcessError` where workers die of a piece again and again.
    """
    request = Request.of(
        source,
        target,
        to=to,
        field=field,
        where=where,
        compress=compress,
        level=level,
        chunk_records=chunk_records,
        part_bytes=part_bytes,
        skip_bad=skip_bad,
        without_values=without_values,
        force=force,
    )
    request, place = _absolute(request)
    path = Path(request.target)
    check_apart(path, place)
    check_target(path, request.kind, force=force)
    games = None if request.kind == "pack" else request.game_source()
    unread = request.kind == "pack" or games is not None  # by workers only
    opened = None if unread else request.opened()
    with nullcontext() if opened is None or request.is_open else opened:
        rows = None if opened is None else request.rows(opened)
        if rows is not None:
            warn_of_growth(request, place, rows)
        about = _about(request, place, rows)
        path.parent.mkdir(parents=True, exist_ok=True)
        with Part(path, about, force=force) as part, joined(address, workers) as cluster:
            finished = Finished(part.pieces, about)
            work = Work(request, part, cluster, finished, progress or (lambda *_: None))
            try:
                made = _built(work, Key.of(request, about), rows, games)
            except (ConnectionError, ChildProcessError) as error:
                kept = f"{part.pieces.parent} keeps what is done; the same call goes on"
                raise type(error)(f"{error}; {kept}") from None
            if _about(request, place, rows) != about:
                raise FormatError("the source changed while it was read", path=place)
            check_target(path, request.kind, force=force)  # others may have made it meanwhile
            part.finish()
    return report_of(request, place, os.fspath(target), *made)


_Made = tuple[int, int | None, int, tuple[tuple[str, str], ...]]
"""Rows, runs, rows that were there already, and what was left out, as a report has them."""


def _built(work: Work, key: Key, rows: Source | None, games: str | PackReader | None) -> _Made:
    if work.request.kind == "pack":
        packed = packs.build(work)
        return packed.runs, packed.runs, work.resumed, packed.skipped
    if games is not None:
        origin = of_games(work, key, games)
    else:
        assert rows is not None
        origin = of_source(key, rows)
    runs = _BUILD[work.request.kind](work, origin)
    return len(origin.rows), runs, work.resumed, tuple(getattr(origin.rows, "skipped", ()))


def _absolute(request: Request) -> tuple[Request, str]:
    """The request as any process of any folder understands it, and where its source is.

    Raises `ValueError` for a source that workers cannot open, and a target in a bucket.
    """
    check_built(request.kind)
    if is_url(request.target):
        raise ValueError(f"{request.target}: expected a path on a disk that all workers share")
    source, target = request.source, os.path.abspath(request.target)
    if isinstance(source, Source):
        place = place_of(source)
    else:
        place = os.fspath(source)
        if "://" not in place and not place.startswith(PREFIX):
            source = place = os.path.abspath(place)
    return replace(request, source=source, target=target), place


def check_built(kind: str) -> None:
    """Raise `ValueError` for a kind of target that one process writes from its first byte on."""
    if kind not in (*_BUILD, "pack"):
        raise ValueError(
            f"to: expected {', '.join(_BUILD)} or pack, which can be built in pieces, got {kind}, "
            "which one process writes from beginning to end: convert without Ray"
        )


def _about(request: Request, place: str, rows: Source | None) -> dict[str, Any]:
    """The identity of a conversion, and of its source as it is now."""
    about: dict[str, Any] = {"to": request.kind, "by": "pieces", "source": place, **request.options}
    given = {"where": request.where, "fields": request.fields, **request.games}
    about |= {name: value for name, value in given.items() if name != "threads" and value}
    if os.path.exists(place):
        about["source"] = os.path.realpath(place)
        about["files"] = files_checksum(Path(place))
    if rows is not None and (request.is_open or "files" not in about):
        about |= {"rows": len(rows), "fingerprint": rows.fingerprint}
    return about
