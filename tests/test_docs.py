"""Every Python block in README.md, CONTRIBUTING.md and docs/ runs as written, and once only where
it writes a store."""

import re
from pathlib import Path

import pytest

from tests import ROOT
from tests.writer_contract import snapshot

BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = [
    page
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md")))
    if BLOCK.search(page.read_text())
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {"__name__": "__main__"}
    text = page.read_text()
    for block in BLOCK.finditer(text):
        above = "\n" * text.count("\n", 0, block.start(1))  # tracebacks name the page's lines
        exec(compile(above + block[1], page, "exec"), scope)


def test_a_block_that_writes_a_store_is_refused_the_second_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {"__name__": "__main__"}
    refused = 0
    for block in BLOCK.finditer((ROOT / "README.md").read_text()):
        code = compile(block[1], "README.md", "exec")
        exec(code, scope)
        if not re.search(r"(Step|Record|Shard|Pack|Replay)Writer\(|replay\.Record\(", block[1]):
            continue
        before = snapshot(tmp_path)
        with pytest.raises(FileExistsError, match="exists"):
            exec(code, scope)
        assert snapshot(tmp_path) == before
        refused += 1
    assert refused >= 4
