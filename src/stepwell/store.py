"""A store: a source at a path, that can be opened, described, checked and closed.

    Store.recognizes(path)      whether it is one, by names and magic
    Store.open(path, …)         the way in
    store.describe()            what is there: rows, runs, bytes on disk, fields, health
    store.runs, where, query    where rows have runs: the table of them, and SQL over it
    store.steps_of(key)         the steps of one run, a row each
    store.verify()              a report of everything that is wrong, and of what was checked
    store.refresh()             whether there is something new

A new store gives what a `Source` needs, `kind`, `noun`, `recognizes`, `_verified`
and what of `_facts` and `_health` there is; docs/architecture.md follows a batch through two of
them.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stepwell.batches import Progress as Progress
from stepwell.description import Description, html, html_rows, outline
from stepwell.errors import FormatError, KindError
from stepwell.files.extras import library
from stepwell.files.regular import bytes_on_disk
from stepwell.source import Rows, Source

Row = TypeVar("Row")

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    P = ParamSpec("P")
    S = TypeVar("S")

    class constructing:
        """A class method that takes what the constructor takes, as editors then show it."""

        def __init__(self, method: Callable[..., Any]) -> None: ...
        def __get__(self, store: object, cls: Callable[P, S]) -> Callable[P, S]: ...

else:
    constructing = classmethod


@dataclass(frozen=True)
class Report:
    """What `verify` found."""

    kind: str
    path: str
    problems: tuple[FormatError, ...] = ()
    checked: tuple[str, ...] = ()
    """What was read and compared, a sentence each."""
    unchecked: tuple[str, ...] = ()
    """What could not be checked, and why."""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong with what was checked."""
        return not self.problems

    def __str__(self) -> str:
        some = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        verdict = "OK" if self.ok else some
        lines = [f"{self.path}: {verdict}", *map(str, self.problems)]
        lines += [f"checked: {each}" for each in self.checked]
        return "\n".join([*lines, *(f"not checked: {each}" for each in self.unchecked)])

    def _repr_html_(self) -> str:
        found = {"problems": self.problems, "checked": self.checked, "not checked": self.unchecked}
        facts = {name: each or "none" for name, each in found.items()}
        return html(f"{self.kind} at {self.path}", facts)


class Table(Sequence[Row], ABC):
    """Rows of named columns: `table[7]`, `table["score"]`, iteration, pandas, Arrow."""

    @property
    @abstractmethod
    def columns(self) -> list[str]:
        """The names of the columns, in order."""

    @abstractmethod
    def _select(self, names: Sequence[str], wanted: range) -> list[tuple[Any, ...]]:
        """These columns of the rows from one place in the table to another."""

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """Every row as a tuple."""
        return self._select(self.columns, range(len(self)))

    def __getitem__(self, key: Any) -> Any:
        """A row as a dictionary, several as a list, or a column as an array."""
        if isinstance(key, str):
            if key not in self.columns:
                raise KeyError(f"no column {key!r}; there are {', '.join(self.columns)}")
            found = [row[0] for row in self._select([key], range(len(self)))]
            return _column(found)
        if isinstance(key, slice):
            wanted = range(len(self))[key]
            return self._dicts(wanted) if wanted.step == 1 else list(self)[key]
        try:
            i = range(len(self))[key]
        except IndexError:
            raise IndexError(f"no row {key} in a table of {len(self)}") from None
        return self._dicts(range(i, i + 1))[0]

    def __iter__(self) -> Iterator[Row]:
        return iter(self._dicts(range(len(self))))

    def _dicts(self, wanted: range) -> list[Any]:
        names = self.columns
        return [dict(zip(names, row, strict=True)) for row in self._select(names, wanted)]

    def to_pandas(self) -> "pd.DataFrame":
        """The table as a data frame."""
        import pandas

        return pandas.DataFrame.from_records(self.rows, columns=self.columns)

    def to_arrow(self) -> "pa.Table":
        """The table as an Arrow table (extra `parquet`)."""
        pyarrow = library("pyarrow", "parquet")
        names, rows = self.columns, self.rows
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(names)
        return pyarrow.table([pyarrow.array(list(c)) for c in columns], names=names)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The table for DuckDB, Polars and others that read Arrow."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self):,} rows, {', '.join(self.columns)})"

    def _repr_html_(self) -> str:
        first = self._select(self.columns, range(min(len(self), 10)))
        return html_rows(f"{len(self):,} rows", self.columns, first)


class QueryTable(Table[dict[str, Any]]):
    """What a query returned."""

    def __init__(self, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
        self._columns = list(columns)
        self._rows = list(rows)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def columns(self) -> list[str]:
        return self._columns

    def _select(self, names: Sequence[str], wanted: range) -> list[tuple[Any, ...]]:
        places = [self._columns.index(name) for name in names]
        return [tuple(self._rows[i][k] for k in places) for i in wanted]


class Runs(Table[dict[str, Any]]):
    """The runs or episodes that the rows of a store belong to, in the order of their rows."""

    @property
    @abstractmethod
    def starts(self) -> Rows:
        """The first row of each run."""

    @property
    @abstractmethod
    def counts(self) -> Rows:
        """The number of rows of each run."""


class Store(Source):
    """A source at a path. `open` it, `close` it, or use it in a `with`."""

    kind: ClassVar[str]
    """What `info` and reports call it: "steps", "pack", …"""
    noun: ClassVar[str]
    """What sentences call it: "a step dataset"."""
    runs_table: ClassVar[str] = "runs"
    """The table of `query` that has a row for each run."""
    runs_key: ClassVar[str] = "id"
    """The column of it that names a run."""
    checks_rows: bool = True
    """Whether damaged rows are an error when they are read, not only to `verify`."""

    _closed = False

    @classmethod
    @abstractmethod
    def recognizes(cls, path: Path) -> bool:
        """Whether this path holds such a store, by names and magic alone; reads no rows."""

    @constructing
    def open(cls: Any, path: Any, **options: Any) -> Any:
        """Open the store at a path or URL, or whatever else the class takes; so with the options.

        Raises `FileNotFoundError`, `FormatError` when something else is there or it is damaged.
        """
        try:
            return cls(path, **options)
        except (OSError, FormatError):
            if isinstance(path, str | os.PathLike) and "://" not in str(path):
                where = Path(path)
                where.stat()
                if not cls.recognizes(where):
                    found = f"expected {cls.noun}, got {what_is_at(where)}"
                    raise KindError(found, path=str(where)) from None
            raise

    @property
    @abstractmethod
    def path(self) -> str:
        """The path or URL."""

    @property
    def runs(self) -> Runs | None:
        """The runs of the rows; None where rows have no runs."""
        return None

    def where(self, condition: str, *values: Any, timeout_s: float | None = None) -> Source:
        """The rows of the runs for which an SQL condition holds; values stand for its `?`.

        Raises `TimeoutError` when finding them takes longer than `timeout_s`.
        """
        raise ValueError(f"{self.path} is {self.noun}: its rows have no runs to choose by SQL")

    def query(
        self, sql: str, *values: Any, timeout_s: float | None = None
    ) -> Table[dict[str, Any]]:
        """What any SQL query over the runs returns; nothing can be changed by it.

        Raises `TimeoutError` when it takes longer than `timeout_s`.
        """
        raise ValueError(f"{self.path} is {self.noun}: it has no runs to query")

    def steps_of(self, key: Any) -> Source:
        """The steps of one run, a row each, with all that was recorded of them.

        `key` is what `runs_key` has for the run; where runs have no such column, its number in
        `runs`. Raises `KeyError` when there is none.
        """
        runs = self.runs
        if runs is None:
            raise ValueError(f"{self.path} is {self.noun}: its rows have no runs")
        named = self.runs_key in runs.columns
        keys = runs[self.runs_key].tolist() if named else range(len(runs))
        if key not in keys:
            raise self._no_run(key)
        number = keys.index(key)
        start, count = int(runs.starts[number]), int(runs.counts[number])
        return self.select(slice(start, start + count))

    def present(self, rows: ArrayLike) -> dict[str, NDArray[np.bool]]:
        """Which of these rows have each field that may be missing; it reads as zeros or empty."""
        return {}

    def describe(self) -> Description:
        """What is there, found without reading rows."""
        self._check_open()
        runs = self.runs
        return Description(
            str(self.kind),
            self.path or "",
            len(self),
            self._stored_bytes(),
            self.schema,
            None if runs is None else len(runs),
            () if runs is None else tuple(runs.columns),
            self._facts(),
            self._health(),
        )

    def verify(self, *, quick: bool = False, progress: Progress | None = None) -> Report:
        """Check everything, or with `quick` what can be checked without reading all rows.

        Never raises for damage; the report lists what was checked and what could not be.
        """
        if os.path.isabs(self.path or "") and not os.path.lexists(self.path):
            self._check_open()
            gone = FormatError("nothing is there any more", path=self.path)
            return Report(self.kind, self.path, (gone,))
        try:
            self._check_open()
            return self._verified(quick, progress or (lambda done, total: None))
        except FormatError as error:
            return Report(self.kind, self.path, (error,))
        except FileNotFoundError as error:
            gone = FormatError("expected a file, there is none", path=str(error.filename))
            return Report(self.kind, self.path, (gone,))

    def refresh(self) -> bool:
        """See what has been committed since; return whether there is something new."""
        self._check_open()
        return False

    def close(self) -> None:
        """Let go of the files. Batches that were handed out stay valid."""
        self._closed = True
        self._forget()

    # What a store provides, besides what a source does.

    def _stored_bytes(self) -> int:
        """What it takes on the disk, everything included."""
        return bytes_on_disk(Path(self.path).resolve())  # a link that the user named is followed

    def _repr_html_(self) -> str:
        return outline(self, self._stored_bytes, columns=True)._repr_html_()

    def _facts(self) -> Mapping[str, Any]:
        """Facts that only stores of this kind have."""
        return {}

    def _health(self) -> str:
        """ "fine", or what should be looked at."""
        return "fine"

    @abstractmethod
    def _verified(self, quick: bool, progress: Progress) -> Report: ...

    # Below this line: for this package.

    def _no_run(self, key: Any) -> KeyError:
        return KeyError(f"no run {key!r} - at {self.path}")

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError(f"closed: {self.noun}" + (f" at {self.path}" if self.path else ""))


def what_is_at(path: Path) -> str:
    """What a path holds, in words: a store of one of the known kinds, a folder, a file."""
    for store in Store.__subclasses__():
        if store.recognizes(path):
            return store.noun
    if path.is_dir():
        return "a folder" if any(path.iterdir()) else "an empty folder"
    return "a file" if path.is_file() else "neither a file nor a folder"


def _column(values: list[Any]) -> NDArray[Any]:
    """Values of one column. NumPy would cut zeros off the end of bytes and of text."""
    if any(isinstance(v, bytes) or (isinstance(v, str) and v.endswith("\0")) for v in values):
        made = np.empty(len(values), object)
        made[:] = values
        return made
    return np.array(values)
