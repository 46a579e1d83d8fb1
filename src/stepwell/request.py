"""What a conversion was asked for: checked, and small enough to be sent to whoever does a part."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from stepwell.errors import KindError, SchemaError
from stepwell.exchange import as_source
from stepwell.formats import BY_NAME
from stepwell.formats.folder import classes_of
from stepwell.formats.into_records import original_names
from stepwell.formats.minari import PREFIX
from stepwell.kinds import kind_at, kind_of, target_kind
from stepwell.source import Ragged, Source
from stepwell.store import Store, what_is_at
from stepwell.stores import (
    STORES,
    ArrayRecordSource,
    ArraySource,
    PackReader,
    ReplayReader,
    StepReader,
)


@dataclass(frozen=True)
class Request:
    """A source, a target, and what was chosen of both."""

    source: str | os.PathLike[str] | Source
    source_kind: str
    target: str
    kind: str
    """Of the target."""
    fields: list[str] | None
    where: str | None
    mode: str
    force: bool
    options: dict[str, Any]
    """Those of the target."""
    games: dict[str, Any]
    """Those of `GameSteps`."""

    @classmethod
    def of(
        cls,
        source: Any,
        target: str | os.PathLike[str],
        *,
        to: str | None = None,
        field: str | Sequence[str] | None = None,
        where: str | None = None,
        mode: str = "x",
        compress: str = "none",
        level: int | None = None,
        chunk_records: int = 8192,
        part_bytes: int | None = None,
        skip_bad: bool = False,
        without_values: bool = False,
        again: bool = False,
        threads: int | None = None,
        force: bool = False,
        options: dict[str, Any] | None = None,
    ) -> Self:
        """The arguments of `convert`. Raises `ValueError` for those that do not go together."""
        options = dict(options or {})
        if mode not in ("x", "a"):
            raise ValueError(f"mode: expected 'x' or 'a', got {mode!r}")
        if mode == "a" and force:
            raise ValueError("expected mode='a', which appends, or force, which replaces, got both")
        fields = [field] if isinstance(field, str) else None if field is None else list(field)
        if not isinstance(source, str | os.PathLike):
            source = as_source(source)
        source_kind = kind_of(source)
        kind = target_kind(source, source_kind, os.fspath(target), to, mode)
        for name, wanted, noun in (
            ("fps", "video", "a video"),
            ("env", "minari", "a Minari dataset"),
        ):
            if name in options and kind != wanted:
                raise ValueError(f"{name}: expected {noun} to write, got {kind}")
        steps_of = {"runs": kind != "pack", "pack": kind == "steps"}
        if without_values and not steps_of.get(source_kind or ""):
            raise ValueError(
                "without_values: expected games of 2048 and their steps, "
                f"got {source_kind} to {kind}"
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
        if kind in ("pack", "replay") and (where is not None or fields is not None):
            raise ValueError(f"where and field: not for {kind}, which takes everything")
        games = {"skip_bad": skip_bad, "without_values": without_values, "threads": threads}
        path = os.fspath(target)
        return cls(
            *(source, source_kind or "", path, kind, fields, where, mode, force, options, games)
        )

    @property
    def is_open(self) -> bool:
        """Whether the source is one that the caller opened, and will close."""
        return isinstance(self.source, Source)

    def opened(self, *, verify: bool = True) -> Source:
        """The rows that are to be converted, of the runs that are wanted.

        A store whose reads compare no checksums is verified first.
        """
        source, kind = self.source, self.source_kind
        text = str(source) if isinstance(source, Source) else os.fspath(source)
        store = next((each for each in STORES if each.kind == kind), None)
        if not kind:
            names = sorted({*(each.kind for each in STORES), *BY_NAME})
            raise KindError(
                f"expected one of {', '.join(names)}, got {what_is_at(Path(text))}", path=text
            )
        if self.where is not None and store is None and not isinstance(source, Store):
            raise ValueError(f"{text} is {kind}: there are no runs to choose by where=")
        games = self.game_source()
        if games is not None:
            return _steps_of_games(games, self.games)
        if isinstance(source, Source):
            found = source
        elif store is not None:
            found = store.open(text, **open_options(store, self.kind))
        else:
            if kind == "folder":
                _refuse_stores_inside(Path(text))
            path = text if text.startswith(PREFIX) else Path(text)
            return BY_NAME[kind].read(path, self.fields)
        if verify and isinstance(found, Store) and not found.checks_rows and "://" not in text:
            for problem in found.verify().problems:
                raise problem  # before it is copied under new checksums
        if self.where is not None and isinstance(found, Store):
            found = found.where(self.where)
        return found

    def game_source(self) -> str | PackReader | None:
        """The run files or the pack whose steps are the rows; None where rows are something else.

        A pack compares its checksums as it is read.
        """
        if isinstance(self.source, Source):
            pack: Source | str = self.source
        else:
            pack = os.fspath(self.source)
            if self.source_kind == "runs":
                return pack
        if self.source_kind != "pack" or self.kind != "steps":
            return None
        found = pack if isinstance(pack, PackReader) else PackReader.open(str(pack))
        return found if self.where is None else found.where(self.where)

    def rows(self, source: Source) -> Source:
        """The fields that are to be written, under the names they had where they came from."""
        rows = original_names(_plain(source))
        if self.fields is None:
            return rows
        for name in self.fields:
            if name not in rows.schema:
                raise SchemaError(
                    f"{source.path}: expected a field of {', '.join(rows.schema)}, got {name!r}"
                )
        return rows.columns(self.fields)


def _steps_of_games(games: Any, options: dict[str, Any]) -> Source:
    from stepwell.game2048 import GameSteps

    return GameSteps(games, **options)


def open_options(store: type[Store], target: str) -> dict[str, Any]:
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
