"""The words of the house, in what users read: messages, docstrings, pages.

The left word of each pair is not used for what the right one means; `ALLOWED` has the places
where it means something else.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

ODD = {
    r"anew": "again, new",
    r"told|tells?|telling": "report, show, distinguish",
    r"says?|said|saying": "report, have, show",
    r"questions?": "query",
    r"sums?": "checksum",
    r"so[- ]many(-th)?": "`count`, every Nth",
    r"another (one|sum|checksum|length)": "a second, a different; expected N, got M",
    r"what others (use|have)": "import and export",
}
ODD_NAME = re.compile(r"(^|_)(most|least|told|said|asked|anew|question|sums?)(_|$)", re.IGNORECASE)

ALLOWED = {
    "docs/sampling.md": ("sum", "sums"),  # of weights, of words
    "docs/formats/runs.md": ("sum",),  # the score of a board
    "docs/formats/steps.md": ("sum",),  # of steps
    "src/stepwell/formats/runs.py": ("sum",),  # of rewards
    "src/stepwell/sampler.py": ("sum",),  # of weights
    "src/stepwell/stores/replay/reader.py": ("sum",),  # of rewards
}

PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md"))]
MODULES = sorted((ROOT / "src/stepwell").rglob("*.py"))
CORE = sorted((ROOT / "native").rglob("*.cpp"))


def odd_words(text: str, allowed: tuple[str, ...] = ()) -> list[str]:
    found = re.finditer(rf"\b({'|'.join(ODD)})\b", re.sub(r"`[^`]*`", "", text), re.IGNORECASE)
    return [match[0] for match in found if match[0].lower() not in allowed]


def texts_of(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Docstrings, those behind attributes too, and the strings of messages and options."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.lineno, str(node.value.value)
        elif is_message(node):
            for inner in ast.walk(node):
                if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                    yield inner.lineno, inner.value


def is_message(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        name = getattr(node.func, "id", "") or getattr(node.func, "attr", "")
        return name.endswith("Error") or name in ("Option", "Argument", "refuse", "broken", "warn")
    return isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "message"


def names_of(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The names that a module gives."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.lineno, node.name


def prose_of(page: str) -> Iterator[tuple[int, str]]:
    """The lines of a page outside its blocks of code; of the changelog those since 0.1.0."""
    inside = False
    for number, line in enumerate(page.partition("\n## 0.1.0")[0].splitlines(), 1):
        if line.lstrip().startswith("```"):
            inside = not inside
        elif not inside:
            yield number, line


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_messages_docstrings_and_names(path: Path) -> None:
    where = str(path.relative_to(ROOT))
    tree = ast.parse(path.read_text())
    words = [
        f"{where}:{line}: {word!r}"
        for line, text in texts_of(tree)
        for word in odd_words(text, ALLOWED.get(where, ()))
    ]
    names = [f"{where}:{line}: {name}" for line, name in names_of(tree) if ODD_NAME.search(name)]
    assert words + names == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_pages(path: Path) -> None:
    where = str(path.relative_to(ROOT))
    found = [
        f"{where}:{line}: {word!r}"
        for line, text in prose_of(path.read_text())
        for word in odd_words(text, ALLOWED.get(where, ()))
    ]
    assert found == []


@pytest.mark.parametrize("path", CORE, ids=lambda path: str(path.relative_to(ROOT)))
def test_messages_of_the_core(path: Path) -> None:
    texts = re.findall(r'"((?:[^"\\\n]|\\.)*)"', path.read_text())
    assert [word for text in texts for word in odd_words(text)] == []


@pytest.mark.parametrize(
    "text",
    ["counted anew", "expected a question", "another sum", "every so-many-th row", "it says npy"],
)
def test_odd_words_are_found(text: str) -> None:
    assert odd_words(text)


def test_what_is_searched() -> None:
    code = ast.parse(
        'X = 1\n"""anew"""\ndef f(most_rows):\n    """told"""\n    raise ValueError(f"says {X}")\n'
    )
    found = [word for _, text in texts_of(code) for word in odd_words(text)]
    assert sorted(found) == ["anew", "says", "told"]
    assert [name for _, name in names_of(code) if ODD_NAME.search(name)] == ["most_rows"]
    assert list(prose_of("a\n```\nb\n```\nc")) == [(1, "a"), (5, "c")]
