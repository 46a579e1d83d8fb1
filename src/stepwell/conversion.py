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
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from stepwell.errors import BusyError, KindError, SchemaError
from stepwell.exchange import as_source
from stepwell.files.lock import is_locked
from stepwell.files.regular import bytes_on_disk
from stepwell.formats import (
    BY_NAME,
    Format,
    into_records,
    into_shards,
    into_steps,
)
from stepwell.formats.folder import classes_of
from stepwell.formats.into_records import OVERHEAD, original_names, overhead
from stepwell.formats.minari import PREFIX
from stepwell.formats.parts import Part, sweep_part
from stepwell.kinds import MADE, kind_at, kind_of, target_kind
from stepwell.opening import store_at
from stepwell.source import Ragged, Source
from stepwell.store import Progress, Store, what_is_at
from stepwell.stores import (
    STORES,
    ArrayRecordSource,
    ArraySource,
    PackReader,
    ReplayReader,
    StepReader,
)

_FILL: dict[str, Callable[..., None]] = {
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
    is in `<target>.part`. Raises `FileExistsError` when `target` exists. With `force` it is
    replaced, once the new one is whole, by one of the same kind, unless another process is
    writing to it; with mode "a" a store goes on. Games that a step dataset has already raise it,
    too; with `again` they are added once more.
    """
    if mode not in ("x", "a"):
        raise ValueError(f"mode: expected 'x' or 'a', got {mode!r}")
    if mode == "a" and force:
        raise ValueError("expected mode='a', which appends, or force, which replaces, got both")
    fields = [field] if isinstance(field, str) else None if field is None else list(field)
    if not isinstance(source, str | os.PathLike):
        source = as_source(source)
    source_kind = kind_of(source)
    kind = target_kind(source, source_kind, os.fspath(target), to, mode)
    for name, wanted, noun in (("fps", "video", "a video"), ("env", "minari", "a Minari dataset")):
        if name in options and kind != wanted:
            raise ValueError(f"{name}: expected {noun} to write, got {kind}")
    steps_of = {"runs": kind != "pack", "pack": kind == "steps"}
    if without_values and not steps_of.get(source_kind or ""):
        raise ValueError(
            f"without_values: expected games of 2048 and their steps, got {source_kind} to {kind}"
        )
    if again and (mode, kind) != ("a", "steps"):
        raise ValueError(
            f"again: expected mode='a' (--append) and a step dataset, got {mode!r} and {kind}"
        )
    if again:
        options["again"] = True
    if kind in ("records", "pack"):
        options |= {"compress": compress, "level": level}
    elif compress != "none" or level is not None:
        raise ValueError(f"compress: expected a record store or a pack to write, got {kind}")
    if kind == "records":
        options["chunk_records"] = chunk_records
    if part_bytes is not None and part_bytes < 1:
        raise ValueError(f"part_bytes: expected at least 1, got {part_bytes}")
    if part_bytes is not None and kind in ("shards", "steps", "parquet", "arrayrecord"):
        options["part_bytes"] = part_bytes
    report_to = progress or (lambda *_: None)
    if kind in ("pack", "replay"):
        if where is not None or fields is not None:
            raise ValueError(f"where and field: not for {kind}, which takes everything")
        options |= {"skip_bad": skip_bad, "progress": report_to}
        given, path = Path(os.fspath(source)), Path(target)  # type: ignore[arg-type]
        if kind == "replay":
            return _move_telemetry(given, path, force, options)
        return _pack(given, path, force, threads, options)
    games = {"skip_bad": skip_bad, "without_values": without_values, "threads": threads}
    opened = _opened(source, source_kind, kind, where, fields, games)
    call = _Call(opened, source_kind or "", fields, where, mode, force, report_to)
    with nullcontext() if isinstance(source, Source) else opened:  # the caller's stays open
        return call.write(kind, os.fspath(target), options)


@dataclass(frozen=True)
class _Call:
    """A conversion whose source is open."""

    source: Source
    source_kind: str
    fields: list[str] | None
    where: str | None
    mode: str
    force: bool
    progress: Progress

    def write(self, kind: str, target: str, options: dict[str, Any]) -> ConvertReport:
        rows = self._rows()
        if target.startswith(PREFIX):
            write, _ = BY_NAME["minari"].writer(None)
            made = write(rows, target, progress=self.progress, **options)
            return self._report(target, kind, int(made.total_steps), int(made.total_episodes), 0)
        path = Path(target)
        if self.source.path is not None and _is_inside(path, Path(self.source.path)):
            raise ValueError(f"{path} is the source itself, or inside it")
        if self.mode == "a" and path.exists():
            self._warn(kind, rows, target, options)
            return self._append(kind, rows, path, options)
        self._check_target(path, kind)
        self._warn(kind, rows, target, options)
        write, resumes = (_FILL[kind], True) if kind in MADE else BY_NAME[kind].writer(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not resumes:
            write(rows, path, progress=self.progress, **options)
            return self._report(target, kind, len(rows), None, 0)
        begun: list[int] = []

        def progress(done: int, total: int) -> None:
            begun[:] = begun or [done]  # the first call has where it begins
            self.progress(done, total)

        with Part(path, self._about(kind, rows, options), force=self.force) as part:
            try:
                write(rows, part.path if kind in MADE else part, progress=progress, **options)
            except Exception:
                if kind in MADE and not _has_rows(part.path):
                    part.discard()  # nothing in it that a second attempt could use
                raise
            self._check_target(path, kind)  # again: others may have made it meanwhile
            part.finish()
        return self._report(target, kind, len(rows), None, begun[0] if begun else 0)

    def _append(
        self, kind: str, rows: Source, path: Path, options: dict[str, Any]
    ) -> ConvertReport:
        found = kind_at(path)
        if kind not in MADE or found != kind:
            wanted = kind if kind in MADE else " or ".join(MADE)
            got = found or what_is_at(path)
            raise FileExistsError(f"mode='a': expected {wanted} to append to, got {got}: {path}")
        before = _run_count(path) if kind == "steps" else 0
        _FILL[kind](rows, path, append=True, progress=self.progress, **options)
        made = self._report(str(path), kind, len(rows), None, 0)
        return made if made.runs is None else replace(made, runs=made.runs - before)

    def _rows(self) -> Source:
        """The fields that are to be written, under the names they had where they came from."""
        rows = original_names(_plain(self.source))
        if self.fields is None:
            return rows
        for name in self.fields:
            if name not in rows.schema:
                raise SchemaError(
                    f"{self.source.path}: expected a field of {', '.join(rows.schema)}, "
                    f"got {name!r}"
                )
        return rows.columns(self.fields)

    def _warn(self, kind: str, rows: Source, target: str, options: dict[str, Any]) -> None:
        """Warn that small records would grow, before they do."""
        before = self._source_bytes()
        if kind != "records" or before is None:
            return
        compress = options.get("compress", "none")
        after = len(rows) * overhead(rows.schema, compress)
        if compress == "none":
            after += rows.nbytes
        if after - before > _WORTH_A_WARNING and after > _GROWS_BY * before:
            warnings.warn(
                f"{target}: {len(rows):,} records would take about {after:,} bytes, the source "
                f"has {before:,}: a record store costs {OVERHEAD} bytes for each field of a "
                "record that is compressed, ragged or larger than 64 bytes; a step dataset or "
                "shards cost nothing",
                stacklevel=4,
            )

    def _about(self, kind: str, rows: Source, options: dict[str, Any]) -> dict[str, Any]:
        """The identity of this conversion, and of its source as it is now."""
        about = {"to": kind, "rows": len(rows), "fields": list(rows.schema), **options}
        if self.where is not None:
            about["where"] = self.where
        if self.source.path is None or not os.path.exists(self.source.path):
            return {"source": self.source.path, "fingerprint": self.source.fingerprint, **about}
        path = os.path.realpath(self.source.path)
        return {"source": path, "files": _files_checksum(Path(path)), **about}

    def _check_target(self, path: Path, kind: str) -> None:
        """Refuse what is there, unless it may be replaced."""
        if not os.path.lexists(path):
            return
        if path.is_symlink():
            raise FileExistsError(f"{path} is a link; give the path that it leads to")
        if path.is_dir() and not any(path.iterdir()):
            return
        if not self.force:
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

    def _source_bytes(self) -> int | None:
        path = self.source.path
        return (
            None
            if path is None or not os.path.exists(path)
            else bytes_on_disk(Path(path).resolve())
        )

    def _report(
        self, target: str, kind: str, rows: int, runs: int | None, resumed: int
    ) -> ConvertReport:
        if kind == "steps":
            runs = _run_count(target)
        there = None if target.startswith(PREFIX) else bytes_on_disk(Path(target))
        skipped = tuple(getattr(self.source, "skipped", ()))
        return ConvertReport(
            *(target, self.source_kind, kind, rows, runs, resumed),
            *(self._source_bytes(), there, skipped),
        )


def _run_count(path: str | Path) -> int:
    with StepReader.open(path, memory="map") as made:
        return len(made.runs)


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


# Sources and targets.


def _opened(
    source: str | os.PathLike[str] | Source,
    kind: str | None,
    target: str,
    where: str | None,
    fields: list[str] | None,
    games: dict[str, Any],
) -> Source:
    """The rows that are to be converted, of the runs that are wanted."""
    text = str(source) if isinstance(source, Source) else os.fspath(source)
    store = next((each for each in STORES if each.kind == kind), None)
    if kind is None:
        names = sorted({*(each.kind for each in STORES), *BY_NAME})
        raise KindError(
            f"expected one of {', '.join(names)}, got {what_is_at(Path(text))}", path=text
        )
    if where is not None and store is None and not isinstance(source, Store):
        raise ValueError(f"{text} is {kind}: there are no runs to choose by where=")
    if isinstance(source, Source):
        found = source
    elif store is not None:
        found = store.open(text, **_options(store, target))
    elif kind == "runs":
        return _steps_of_games(text, games)
    else:
        if kind == "folder":
            _refuse_stores_inside(Path(text))
        return BY_NAME[kind].read(text if text.startswith(PREFIX) else Path(text), fields)
    if isinstance(found, Store) and not found.checks_rows and "://" not in text:
        for problem in found.verify().problems:
            raise problem  # before it is copied under new checksums
    if where is not None and isinstance(found, Store):
        found = found.where(where)
    if isinstance(found, PackReader) and target == "steps":
        return _steps_of_games(found, games)
    return found


def _steps_of_games(games: Any, options: dict[str, Any]) -> Source:
    from stepwell.game2048 import GameSteps

    return GameSteps(games, **options)


def _options(store: type[Store], target: str) -> dict[str, Any]:
    """How a store is opened that is read once, from one end to the other."""
    if store in (StepReader, ArraySource):
        return {"memory": "map"}
    if store is ReplayReader and target == "video":
        return {"frames": True, "next_observation": False}
    return {}


def _refuse_stores_inside(path: Path) -> None:
    """A folder of datasets is no folder of classes."""
    for name in classes_of(path):
        kind = kind_at(path / name)
        if kind not in (None, "folder") or any((path / name).glob("*.arrow")):
            raise KindError(
                f"expected files for each class; {name} is a dataset of its own "
                f"({kind or 'arrow'}): convert that",
                path=str(path),
            )


def _has_rows(path: Path) -> bool:
    """Whether something was committed to a store that is being made."""
    try:
        store = store_at(path)
        if store is None:
            return False
        with store.open(path, **_options(store, "")) as made:
            return len(made) > 0
    except (OSError, ValueError):
        return False


def _plain(source: Source) -> Source:
    """Records of ArrayRecord as what they are: bytes, or the fields of a structure."""
    if not isinstance(source, ArrayRecordSource):
        return source
    field = source.schema["data"]
    if field.ragged:
        return source.map(
            lambda rows: {"data": Ragged(rows["data"].values, rows["data"].offsets, "bytes")}
        )
    names = field.dtype.names if not field.shape else None
    return source.map(lambda rows: {n: rows["data"][n] for n in names}) if names else source


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


def _files_checksum(path: Path) -> str:
    """A checksum of names, sizes and times, to see whether files are still the same."""
    found = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
    total = hashlib.blake2b(digest_size=16)
    for file in found:
        if not file.name.endswith((".lock", "-wal", "-shm")):  # which reading may change
            stat = file.stat()
            line = f"{file.relative_to(path)}\0{stat.st_size}\0{stat.st_mtime_ns}\n"
            total.update(line.encode(errors="surrogateescape"))
    return total.hexdigest()
