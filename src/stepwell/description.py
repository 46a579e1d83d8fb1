"""What a source is, in words: what `describe` returns, and what `repr` and notebooks show of it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from stepwell.source import Field, Source

T = TypeVar("T")


@dataclass(frozen=True)
class Description:
    """What is at a path, found without reading rows."""

    kind: str
    path: str
    rows: int
    bytes: int
    """On the disk, everything included."""
    fields: Mapping[str, "Field"]
    runs: int | None = None
    columns: tuple[str, ...] = ()
    """What is known of each run."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What only stores of this kind have: versions, chunks, codecs."""
    health: str = "fine"
    """"fine", or what should be looked at; `verify` looks at everything."""

    def to_json(self) -> dict[str, Any]:
        """The same as JSON can hold it."""
        about: dict[str, Any] = {
            "kind": self.kind,
            "path": self.path,
            "rows": self.rows,
            "bytes": self.bytes,
            "fields": {name: str(each) for name, each in self.fields.items()},
        }
        if self.runs is not None:
            about |= {"runs": self.runs, "columns": list(self.columns)}
        return {**about, **self.facts, "health": self.health}

    def _repr_html_(self) -> str:
        about = self.to_json()
        title = " at ".join(filter(None, (about.pop("kind"), about.pop("path"))))
        return html(title, about)


def outline(source: "Source", size: Callable[[], int], *, columns: bool) -> Description:
    """What is known of a source at no cost: neither rows nor indices are read.

    It raises nothing, because `repr` is also asked of what is closed, damaged or half made.
    """
    health = "fine"

    def known(ask: Callable[[], T], otherwise: T) -> T:
        nonlocal health
        try:
            return ask()
        except Exception as error:
            if health == "fine":
                health = str(error) or type(error).__name__
            return otherwise

    known(source._check_open, None)
    runs = known(lambda: getattr(source, "runs", None), None)
    about = Description(
        str(getattr(source, "kind", type(source).__name__)),
        known(lambda: source.path, None) or "",
        known(lambda: len(source), 0),
        known(size, 0),
        known(lambda: source.schema, {}),
        None if runs is None else known(lambda: len(runs), 0),
        () if runs is None or not columns else known(lambda: tuple(runs.columns), ()),
    )
    return replace(about, health=health)


def text(source: "Source") -> str:
    """One line: `StepReader(1,000 rows, 20 runs, 16,000 bytes, {score: int64}, path='games')`."""

    size = getattr(source, "_stored_bytes", lambda: source.nbytes)  # views have no files
    about = outline(source, size, columns=False)
    parts = []
    if about.fields:
        parts.append(f"{about.rows:,} rows")
    if about.runs is not None:
        parts.append(f"{about.runs:,} runs")
    if about.fields:
        fields = ", ".join(f"{name}: {each}" for name, each in about.fields.items())
        parts += [f"{about.bytes:,} bytes", f"{{{fields}}}"]
    if about.path:
        parts.append(f"path={about.path!r}")
    if about.health != "fine":
        parts.append("closed" if about.health.startswith("closed") else about.health)
    return f"{type(source).__name__}({', '.join(parts)})"


def html(title: str, facts: Mapping[str, Any]) -> str:
    """A table for notebooks: one name and its value a line."""
    return _table(title, (), ((name, _shown(value)) for name, value in facts.items()))


def html_rows(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table for notebooks: a row a line."""
    return _table(title, columns, (map(_shown, row) for row in rows))


def _table(title: str, columns: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    from html import escape  # only notebooks need it

    def line(tag: str, cells: Iterable[str]) -> str:
        style = 'style="text-align: left"'
        made = "".join(f"<{tag} {style}>{escape(cell)}</{tag}>" for cell in cells)
        return f"<tr>{made}</tr>"

    head = f"<thead>{line('th', columns)}</thead>" if columns else ""
    body = "".join(line("td", row) for row in rows)
    caption = f'<caption style="text-align: left">{escape(title)}</caption>'
    return f"<table>{caption}{head}<tbody>{body}</tbody></table>"


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {_shown(each)}" for name, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_shown, value))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
