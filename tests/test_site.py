"""The site of `make docs`: every link leads somewhere, and nothing comes from another server."""

import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import stepwell as sw
from tests import ROOT

LOADED = ("script", "link", "img", "iframe", "source", "object")


class Html(HTMLParser):
    """The ids, links and loaded files of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids |= {name for key in ("id", "name") if (name := found.get(key))}
        target = found.get("href") or found.get("src") or found.get("data")
        if target and tag in LOADED:
            self.loads.append(target)
        elif target and tag == "a":
            self.links.append(target)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    # Not --quiet: it drops the warnings before --strict can count them.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", f"--site-dir={folder}"]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Html]:
    return {page: Html(page.read_text()) for page in sorted(site.rglob("*.html"))}


def test_every_link_leads_somewhere(pages: dict[Path, Html], site: Path) -> None:
    broken, counted = [], 0
    for page, html in pages.items():
        for target in html.links + html.loads:
            url = urlsplit(target)
            if url.scheme or page.name == "404.html":  # whose links begin at the server's root
                continue
            counted += 1
            there = (page.parent / unquote(url.path)).resolve() if url.path else page
            there = there / "index.html" if there.is_dir() else there
            known = pages.get(there)
            if not there.is_file() or (
                url.fragment and known and unquote(url.fragment) not in known.ids
            ):
                broken.append(f"{page.relative_to(site)}: {target}")
    assert broken == []
    assert counted > 1000


def test_nothing_is_loaded_from_elsewhere(pages: dict[Path, Html], site: Path) -> None:
    assert [load for html in pages.values() for load in html.loads if urlsplit(load).netloc] == []
    styles = [path.read_text() for path in site.rglob("*.css")]
    assert not any("url(http" in style or "url(//" in style for style in styles)


def test_blocks_are_blocks(pages: dict[Path, Html]) -> None:
    """Of the fences there is nothing left."""
    assert [page for page in pages if "```" in page.read_text()] == []


def test_every_page_and_every_public_name_is_there(pages: dict[Path, Html], site: Path) -> None:
    written = {path.relative_to(ROOT / "docs") for path in ROOT.glob("docs/**/*.md")}
    assert {path.with_suffix(".html") for path in written} <= {p.relative_to(site) for p in pages}
    reference = pages[site / "reference" / "stepwell.html"]
    assert [n for n in sw.__all__ if not any(i.endswith(f".{n}") for i in reference.ids)] == []
    assert "stepwell.loader.Loader.state_dict" in reference.ids
