"""`convert`: from stores and formats to stores and formats.

    convert("train.parquet", "train", compress="zstd")           a record store of a file
    convert("train", "labels.npy", field="label")                one field of it as an array
    convert("hopper.hdf5", "hopper", to="steps")                 a step dataset, with its runs
    convert("replays", "game.gif", where="episode_id = 'a-ep0003'")
    convert("games.a2pack", "games")                             steps of 2048, to train on
    convert("old.sqlite", "replays")                             old telemetry, moved over

A source is opened, or made of a format (`stepwell.formats`), and written as another: so there
is no code for pairs, but for packs of run files and for old telemetry. docs/converting.md has the
table of those that make sense.
"""

import hashlib
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stepwell.errors import BusyError
from stepwell.files.lock import is_locked
from stepwell.files.regular import bytes_on_disk
from stepwell.files.remote import is_url
from stepwell.formats import (
    BY_NAME,
    Format,
    into_records,
    into_shards,
    into_steps,
)
from stepwell.formats.into_records import OVERHEAD, overhead
from stepwell.formats.minari import PREFIX
from stepwell.formats.parts import Part, sweep_part
from stepwell.kinds import MADE, begun_at, kind_at
from stepwell.opening import store_at
from stepwell.request import Request, open_options
from stepwell.source import Source
from stepwell.store import Progress, what_is_at

_FILL: dict[str, Callable[..., int | None]] = {
    "records": into_records.fill,
    "shards": into_shards.fill,
    "steps": into_steps.fill,
}
_LOCKS = {"records": "writer.lock", "shards": ".writer.lock", "steps": "writer.lock"}
_GROWS_BY = 1.5
_WORTH_A_WARNING = 1 << 20


@dataclass(frozen=True)
class ConvertReport:
    """The result of a conversion."""

    path: str
    source_kind: str
    target_kind: str
    rows: int
    runs: int | None
    """None where the target has no runs. Rows and runs are those of the source: where they were
    appended, the target has others too."""
    resumed_at: int
    """The rows that an earlier attempt had converted."""
    source_bytes: int | None
    """On the disk; None where that is not known."""
    target_bytes: int | None
    skipped: tuple[tuple[str, str], ...] = ()
    """Items that `skip_bad` left out, each with the reason."""

    @property
    def ratio(self) -> float | None:
        """Bytes of the target over those of the source."""
        if not self.source_bytes or self.target_bytes is None:
            return None
        return self.target_bytes / self.source_bytes


def convert(
    source: str | os.PathLike[str] | Source | Any,
    target: str | os.PathLike[str],
    *,
    to: str | None = None,
    field: str | Sequence[str] | None = None,
    where: str | None = None,
    mode: Literal["x", "a"] = "x",
    compress: str = "none",
    level: int | None = None,
    chunk_records: int = 8192,
    part_bytes: int | None = None,
    skip_bad: bool = False,
    without_values: bool = False,
    again: bool = False,
    threads: int | None = None,
    force: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> ConvertReport:
    """Make a store or a file of another store or file, or of whatever `as_source` takes.

    The names of paths decide what is made, and `to` where they do not: records, shards, steps or a
    format. `minari:name` is a dataset of Minari's. `field` chooses fields, `where` runs, by SQL.
    `compress`, `level` and `chunk_records` are those of a record store; `part_bytes` is the size
    of each file where there are several. Games of 2048 and old telemetry are decoded by `threads`,
    and with `skip_bad` what is bad among them is left out; with `without_values` games that
    recorded no values become steps too. Other options go to the format: `fps` of a video, `env` of
    Minari. Runs are kept where the target has them.

    A step dataset or shards are verified first: reading them does not compare checksums. After a
    kill or an error the same call goes on where it was, except to a single file that is
    not npy or safetensors; nothing has its final name before it is whole, and what is unfinished
    is in `<target>.part`. A URL is of a bucket, where a step dataset or shards are made or appended
    to in one commit; after a kill the call begins again, and `stepwell clean` removes what it left.

    Raises `FileExistsError` when `target` exists. With `force` it is
    replaced, once the new one is whole, by one of the same kind, unless another process is
    writing to it; with mode "a" a store goes on. Games that a step dataset has already raise it,
    too; with `again` they are added once more.
    """
    request = Request.of(
        source,
        target,
        to=to,
        field=field,
        where=where,
        mode=mode,
        compress=compress,
        level=level,
        chunk_records=chunk_records,
        part_bytes=part_bytes,
        skip_bad=skip_bad,
        without_values=without_values,
        again=again,
        threads=threads,
        force=force,
        options=options,
    )
    report_to = progress or (lambda *_: None)
    if request.kind in ("pack", "replay"):
        given, path = Path(os.fspath(request.source)), Path(request.target)  # type: ignore[arg-type]
        more = {**request.options, "skip_bad": skip_bad, "progress": report_to}
        if request.kind == "replay":
            return _move_telemetry(given, path, force, more)
        return _pack(given, path, force, threads, more)
    opened = request.opened()
    call = _Call(request, opened, report_to)
    with nullcontext() if request.is_open else opened:  # the caller's stays open
        return call.write()


@dataclass(frozen=True)
class _Call:
    """A conversion whose source is open."""

    request: Request
    source: Source
    progress: Progress

    def write(self) -> ConvertReport:
        request = self.request
        kind, target, options = request.kind, request.target, request.options
        rows = request.rows(self.source)
        if target.startswith(PREFIX):
            write, _ = BY_NAME["minari"].writer(None)
            made = write(rows, target, progress=self.progress, **options)
            return self._report(target, kind, int(made.total_steps), int(made.total_episodes), 0)
        if is_url(target):
            return self._into_bucket(rows)
        path = Path(target)
        check_apart(path, self.source.path)
        if request.mode == "a" and path.exists():
            warn_of_growth(request, self.source.path, rows)
            return self._append(kind, rows, path, options)
        check_target(path, kind, force=request.force)
        warn_of_growth(request, self.source.path, rows)
        write, resumes = (_FILL[kind], True) if kind in MADE else BY_NAME[kind].writer(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not resumes:
            write(rows, path, progress=self.progress, **options)
            return self._report(target, kind, len(rows), None, 0)
        begun: list[int] = []

        def progress(done: int, total: int) -> None:
            begun[:] = begun or [done]  # the first call has where it begins
            self.progress(done, total)

        with Part(path, self._about(kind, rows, options), force=request.force) as part:
            try:
                runs = write(
                    rows, part.path if kind in MADE else part, progress=progress, **options
                )
            except Exception:
                if kind in MADE and not _has_rows(part.path):
                    part.discard()  # nothing in it that a second attempt could use
                raise
            # Again: others may have made it meanwhile.
            check_target(path, kind, force=request.force)
            part.finish()
        return self._report(target, kind, len(rows), runs, begun[0] if begun else 0)

    def _into_bucket(self, rows: Source) -> ConvertReport:
        """In one commit: readers see all of it or nothing, and after an error it begins again."""
        request = self.request
        kind, url = request.kind, request.target
        if request.force:
            raise ValueError(f"force: nothing in a bucket is replaced: {url}")
        if self.source.path == url:
            raise ValueError(f"{url} is the source itself")
        append = request.mode == "a" and begun_at(url) == kind
        write = _FILL[kind]
        runs = write(rows, url, append=append, progress=self.progress, **request.options)
        return self._report(url, kind, len(rows), runs, 0)

    def _append(
        self, kind: str, rows: Source, path: Path, options: dict[str, Any]
    ) -> ConvertReport:
        found = kind_at(path)
        if kind not in MADE or found != kind:
            wanted = kind if kind in MADE else " or ".join(MADE)
            got = found or what_is_at(path)
            raise FileExistsError(f"mode='a': expected {wanted} to append to, got {got}: {path}")
        runs = _FILL[kind](rows, path, append=True, progress=self.progress, **options)
        return self._report(str(path), kind, len(rows), runs, 0)

    def _about(self, kind: str, rows: Source, options: dict[str, Any]) -> dict[str, Any]:
        """The identity of this conversion, and of its source as it is now."""
        about = {"to": kind, "rows": len(rows), "fields": list(rows.schema), **options}
        if self.request.where is not None:
            about["where"] = self.request.where
        if self.source.path is None or not os.path.exists(self.source.path):
            return {"source": self.source.path, "fingerprint": self.source.fingerprint, **about}
        path = os.path.realpath(self.source.path)
        return {"source": path, "files": files_checksum(Path(path)), **about}

    def _report(
        self, target: str, kind: str, rows: int, runs: int | None, resumed: int
    ) -> ConvertReport:
        source = self.source
        skipped = tuple(getattr(source, "skipped", ()))
        return report_of(self.request, source.path, target, rows, runs, resumed, skipped)


def check_target(path: Path, kind: str, *, force: bool) -> None:
    """Refuse what is there, unless it may be replaced."""
    if not os.path.lexists(path):
        return
    if path.is_symlink():
        raise FileExistsError(f"{path} is a link; give the path that it leads to")
    if path.is_dir() and not any(path.iterdir()):
        return
    if not force:
        sweep_part(path)
        raise FileExistsError(f"{path} exists; force=True (--force) replaces it")
    found = kind_at(path)
    known = BY_NAME.get(kind)
    if found != kind or (path.is_dir() and known is not None and not _is_pure(path, known)):
        raise FileExistsError(
            f"force: expected {kind} without other files to replace, "
            f"got {found or what_is_at(path)}: {path}"
        )
    if kind in _LOCKS and is_locked(path / _LOCKS[kind]):
        raise BusyError(f"{path} is being written to by another process")


def warn_of_growth(request: Request, source: str | None, rows: Source) -> None:
    """Warn that small records would grow, before they do."""
    before, compress = _bytes_at(source), request.options.get("compress", "none")
    if request.kind != "records" or before is None:
        return
    after = len(rows) * overhead(rows.schema, compress)
    if compress == "none":
        after += rows.nbytes
    if after - before > _WORTH_A_WARNING and after > _GROWS_BY * before:
        warnings.warn(
            f"{request.target}: {len(rows):,} records would take about {after:,} bytes, the source "
            f"has {before:,}: a record store costs {OVERHEAD} bytes for each field of a "
            "record that is compressed, ragged or larger than 64 bytes; a step dataset or "
            "shards cost nothing",
            stacklevel=4,
        )


def check_apart(path: Path, source: str | None) -> None:
    """Refuse to make something of itself, or inside itself."""
    if source is not None and _is_inside(path, Path(source)):
        raise ValueError(f"{path} is the source itself, or inside it")


def report_of(
    request: Request,
    source: str | None,
    target: str,
    rows: int,
    runs: int | None,
    resumed: int,
    skipped: tuple[tuple[str, str], ...],
) -> ConvertReport:
    """The report about a conversion that is done."""
    there = None
    if not target.startswith(PREFIX) and not is_url(target):
        there = bytes_on_disk(Path(target))
    return ConvertReport(
        *(target, request.source_kind, request.kind, rows, runs, resumed),
        *(_bytes_at(source), there, skipped),
    )


def _bytes_at(path: str | None) -> int | None:
    return None if path is None or not os.path.exists(path) else bytes_on_disk(Path(path).resolve())


# Conversions that are not of rows.


def _pack(
    runs: Path, path: Path, force: bool, threads: int | None, options: dict[str, Any]
) -> ConvertReport:
    """A pack of a directory of run files."""
    from stepwell.game2048 import pack_runs

    given = {name: value for name, value in options.items() if value is not None}
    made = pack_runs(runs, path, threads=threads, replace=force, **given)
    skipped = tuple((str(file), reason) for file, reason in made.skipped)
    size = path.stat().st_size
    return ConvertReport(
        str(path), "runs", "pack", made.packed, made.packed, 0, made.bytes, size, skipped
    )


def _move_telemetry(old: Path, root: Path, force: bool, options: dict[str, Any]) -> ConvertReport:
    """A replay store of an old telemetry database; what it has already is left out."""
    from stepwell.telemetry import migrate_telemetry  # which loads HDF5

    if force:
        raise ValueError("force: a replay store is added to, never replaced")
    made = migrate_telemetry(old, root, **options)
    skipped = tuple((str(file), reason) for file, reason in made.skipped)
    there = made.database_bytes + made.array_bytes
    return ConvertReport(
        *(str(root), "telemetry", "replay", made.steps, len(made.runs)),
        *(made.steps - made.added, made.old_bytes, there, skipped),
    )


def _has_rows(path: Path) -> bool:
    """Whether something was committed to a store that is being made."""
    try:
        store = store_at(path)
        if store is None:
            return False
        with store.open(path, **open_options(store, "")) as made:
            return len(made) > 0
    except (OSError, ValueError):
        return False


def _is_pure(path: Path, known: Format) -> bool:
    """Whether everything in a folder is of a format, so that nothing else goes with it."""
    if not known.inside or known.name == "folder":
        return False
    own = {"stepwell.json"} if known.name == "arrayrecord" else set()
    return all(each.match(known.inside) or each.name in own for each in path.iterdir())


def _is_inside(path: Path, source: Path) -> bool:
    """Whether a target is the source, or a part of it."""
    real, other = os.path.realpath(path), os.path.realpath(source)
    return real == other or real.startswith(other.rstrip("/") + "/")


def files_checksum(path: Path) -> str:
    """A checksum of names, sizes and times, to see whether files are still the same."""
    total = hashlib.blake2b(digest_size=16)
    for name, stat in sorted(_files(path), key=lambda file: file[0].split("/")):
        if not name.endswith((".lock", "-wal", "-shm")):  # which reading may change
            line = f"{name}\0{stat.st_size}\0{stat.st_mtime_ns}\n"
            total.update(line.encode(errors="surrogateescape"))
    return total.hexdigest()


def _files(path: Path) -> Iterator[tuple[str, os.stat_result]]:
    """The files at a path, by their names below it; there may be a million of them."""
    if path.is_file():
        yield ".", path.stat()
        return
    folders = [""]
    while folders:
        inside = folders.pop()
        with os.scandir(path / inside) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(f"{inside}{entry.name}/")
                elif entry.is_file():
                    yield f"{inside}{entry.name}", entry.stat()
