"""Every Python block in README.md, CONTRIBUTING.md and docs/ runs as written, and once only where
it writes a store."""

import re
from pathlib import Path

import pytest

from tests import ROOT
from tests.writer_contract import unchanged

BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = [
    page
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md")))
    if BLOCK.search(page.read_text())
]


WRITES = re.compile(r"(Step|Record|Shard|Pack|Replay)Writer\(|replay\.Record\(")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {"__name__": "__main__"}
    refused = 0
    once = page.name == "README.md" or page.parent.name == "guides"
    text = page.read_text()
    for block in BLOCK.finditer(text):
        above = "\n" * text.count("\n", 0, block.start(1))  # tracebacks name the page's lines
        code = compile(above + block[1], page, "exec")
        exec(code, scope)
        if once and WRITES.search(block[1]):
            with unchanged(tmp_path), pytest.raises(FileExistsError, match="exists"):
                exec(code, scope)
            refused += 1
    scope.clear()  # what a page leaves open is closed now, not by a collection in another test
    assert refused >= 4 or page.name != "README.md"


def test_the_readme_is_read_in_two_minutes() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 250


def test_the_picture_of_the_readme_has_the_numbers_of_the_page() -> None:
    page = (ROOT / "docs" / "performance.md").read_text()
    table = page.partition("### One shuffled epoch, one array per field")[2].partition("\n#")[0]
    rows = re.findall(r"^\| ([^*|]+) \| ([\d.,]+) \| ([\d.,]+) \|", table, re.MULTILINE)
    picture = (ROOT / "docs" / "epoch.svg").read_text()
    assert len(rows) > 9
    assert [name for name, cost, ratio in rows if f">{cost} ({ratio}x)<" not in picture] == []
