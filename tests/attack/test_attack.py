"""3,000 cases of random damage; `make attack` has 100,000."""

import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from stepwell import FormatError
from tests import ROOT, scaled
from tests.attack.targets import TARGETS
from tests.children import in_fork

CASES = scaled(750)


def attack(*given: str) -> None:
    """In an interpreter of its own: obstore cannot follow the forks of one that has used it."""
    command = [sys.executable, "-m", "tests.attack", "--jobs", "1", *given]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_what_failed_once() -> None:
    attack("--kept", "--cases", "0")


@pytest.mark.parametrize("chunk", range(4))
def test_right_data_or_an_error(chunk: int) -> None:
    attack("--cases", str(CASES), "--first", str(chunk * CASES))


ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x FROM c"


@pytest.mark.parametrize("kind", ["view", "trigger"])
@pytest.mark.parametrize(
    ("name", "database", "table"),
    [("steps", "metadata.db", "runs"), ("replay", "telemetry/telemetry.sqlite", "episodes")],
)
def test_a_database_that_never_ends(
    quick_path: Path, name: str, database: str, table: str, kind: str
) -> None:
    """It has statements of its own: a view where a table should be, a trigger on one."""
    target, path = TARGETS[name], quick_path / "store"
    target.make(path, "closed")
    with closing(sqlite3.connect(path / database)) as opened:
        if kind == "view":
            opened.execute(f"ALTER TABLE {table} RENAME TO hidden")
            opened.execute(f"CREATE VIEW {table} AS SELECT hidden.* FROM hidden, ({ENDLESS})")
        else:
            begin = f"CREATE TRIGGER t BEFORE INSERT ON {table}"
            opened.execute(f"{begin} BEGIN SELECT count(*) FROM ({ENDLESS}); END")
        opened.commit()

    def look() -> None:
        calls = [target.do_append] + [target.do_take, target.do_query] * (kind == "view")
        for call in calls:
            with pytest.raises(FormatError, match=f"{table} to be a plain table, got a {kind}"):
                call(path)

    in_fork(look)


def test_the_page_names_tests_that_exist() -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page)
    assert len(named) > 20
    gone = [name for file, name in named if f"def {name}(" not in (ROOT / file).read_text()]
    assert not gone
