"""What the site has besides the pages in docs/: a hook of MkDocs, used by `make docs`.

README.md is its home, and CONTRIBUTING.md, CHANGELOG.md and the examples are pages, too. Pages of
the reference are lists of public names, and their text are the docstrings. In the repository links
lead from file to file; here they lead to the page of that file, and are no links where it has none.
"""

import ast
import inspect
import posixpath
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
_EDGES = ("torch", "jax", "ray", "replay")
MODULES = ("stepwell", *_EDGES, "stores", "formats", "game2048", "telemetry")

_PAGES = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    **{f"examples/{p.stem}.md": f"examples/{p.name}" for p in sorted(ROOT.glob("examples/*.py"))},
}
_PAGE_OF = {file: page for page, file in _PAGES.items()}
_PAGE_OF["examples"] = "examples/train_resume.md"
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|`[^`]*`)*)\]\((?!https?:|#)([^()\s#]+)(#[^()\s]+)?\)")
_NAMED = re.compile(r"^( *```)(\w+) [\w-]+$", re.MULTILINE)
_FENCE = re.compile(r"(^ *```.*?^ *```|`[^`\n]+`(?!\]))", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are no file in docs/."""
    for page, file in _PAGES.items():
        text = (ROOT / file).read_text()
        made = _example(text) if file.endswith(".py") else text
        if page == "index.md":  # it has no neighbours to list beside it
            made = f"---\nhide: [navigation]\n---\n{made}"
        files.append(File.generated(config, page, content=made))
    for name in MODULES:
        made = "\n".join(_reference(name))
        files.append(File.generated(config, f"reference/{name}.md", content=made))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Lead links to pages of the site, and leave out the names that tests know blocks by."""
    here = page.file.src_uri
    folder = posixpath.dirname(_PAGES.get(here, f"docs/{here}"))

    def follow(match: re.Match[str]) -> str:
        picture, text, target, anchor = match.groups()
        file = posixpath.normpath(posixpath.join(folder, target))
        found = file.removeprefix("docs/") if file.startswith("docs/") else _PAGE_OF.get(file)
        if found is None:  # a file of the repository without a page
            assert (ROOT / file).exists(), f"{here}: no such file: {target}"
            return f"`{file}`" if "`" not in text else text
        there = posixpath.relpath(found, posixpath.dirname(here) or ".")
        return f"{picture}[{text}]({there}{anchor or ''})"

    parts = _FENCE.split(_NAMED.sub(r"\1\2", markdown))
    return "".join(part if i % 2 else _LINK.sub(follow, part) for i, part in enumerate(parts))


def _example(text: str) -> str:
    title, _, rest = (ast.get_docstring(ast.parse(text)) or "").partition("\n")
    usage, _, prose = rest.strip().partition("\n")
    code = text.partition('"""\n\n')[2]
    return f"# {title}\n\n```sh\n{usage}\n```\n\n{prose.strip()}\n\n```python\n{code}```\n"


def _reference(name: str) -> Iterator[str]:
    module = import_module("stepwell" if name == "stepwell" else f"stepwell.{name}")
    yield f"# {module.__name__}\n"
    summary, _, rest = inspect.cleandoc(module.__doc__ or "").partition("\n\n")
    yield f"{summary}\n"
    for paragraph in filter(None, rest.split("\n\n")):
        table = re.search(r"\S {3,}\S", paragraph)
        yield f"```text\n{paragraph}\n```\n" if table else f"{paragraph}\n"
    top = import_module("stepwell")
    for each in sorted(module.__all__, key=str.lower):
        found = getattr(module, each)
        if isinstance(found, int):
            yield f"## {each}\n\n`{found!r}`\n"
        elif name != "stepwell" and each in top.__all__ and getattr(top, each) is found:
            yield f"## {each}\n\nSee [stepwell.{each}](stepwell.md#{_path(module, each)}).\n"
        else:
            yield f"::: {_path(module, each)}\n    options:\n      heading: {each}\n"


def _path(module: Any, name: str) -> str:
    """Where a public name is defined."""
    found = getattr(module, name)
    if inspect.isclass(found) or inspect.isroutine(found):
        return f"{found.__module__}.{found.__qualname__}"
    for node in ast.walk(ast.parse(inspect.getsource(module))):  # a value, imported or not
        if isinstance(node, ast.ImportFrom) and any(each.name == name for each in node.names):
            return f"{node.module}.{name}"
    return f"{module.__name__}.{name}"
