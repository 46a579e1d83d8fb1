"""docs/coming-from.md: every name on the right of its tables exists, with the arguments it gets."""

import ast
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

import stepwell as sw
from tests import ROOT
from tests.test_names import built

PAGE = ROOT / "docs" / "coming-from.md"
FROM = ["torch DataLoader", "grain", "MosaicML streaming", "TorchRL", "Minari"]
FROM += ["Step datasets", "a2pack", "loaderx", "gam", "mosaic"]

OURS = re.compile(r"(sw|source|steps|records|acts|replays|pack|loader|state)[.\[]")
# Names that stand for what a reader has, and are of no type of ours.
GIVEN = {"array", "batch", "batch_size", "columns", "done", "dtype", "env", "f", "fields", "i"}
GIVEN |= {"name", "path", "root", "rows", "runs", "url", "weights", "x", "y", "ids", "values"}
GIVEN |= {"int", "len"}


def rows_of(page: str) -> Iterator[list[str]]:
    """The three cells of each line of the tables: there, here, and a note."""
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| ") and cells[0] != "there":
            yield [cells[0].removeprefix("| "), *cells[1:]]


def codes() -> Iterator[str]:
    """The code on the right; in notes, as far as it begins with one of our names."""
    for _, here, note in rows_of(PAGE.read_text()):
        yield from re.findall(r"`([^`]+)`", here)
        yield from (code for code in re.findall(r"`([^`]+)`", note) if OURS.match(code))


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("stores")
    kinds = {"steps": "steps", "records": "records", "acts": "shards", "replays": "replay"}
    stores = {name: sw.open(built(kind, folder / kind)) for name, kind in kinds.items()}
    pack = sw.PackReader.open(built("pack", folder / "pack"))
    source = stores["steps"]
    return {
        **stores,
        "sw": sw,
        "source": source,
        "pack": pack,
        "run": pack.decode(0),
        "loader": sw.Loader(source, 4),
        "state": sw.stores.RowState(folder / "state", width=2),
    }


def check(code: str, objects: dict[str, Any]) -> None:
    """Raise unless every name and every argument of an expression is there."""
    for node in ast.walk(ast.parse(code, mode="eval")):
        if isinstance(node, ast.Name):
            assert node.id in objects or node.id in GIVEN, f"{code}: what is {node.id}?"
        elif isinstance(node, ast.Attribute):
            found(node, objects)
        elif isinstance(node, ast.Call) and node.keywords:
            call = found(node.func, objects)
            takes = inspect.signature(call).parameters
            if getattr(call, "__name__", "") == "open" and inspect.isclass(call.__self__):
                takes = inspect.signature(call.__self__).parameters
            flexible = any(each.kind is each.VAR_KEYWORD for each in takes.values())
            unknown = {each.arg for each in node.keywords} - takes.keys()
            assert flexible or not unknown, f"{code}: {unknown}"


def found(node: ast.expr, objects: dict[str, Any]) -> Any:
    """What a dotted name stands for; None for what a call has returned."""
    if isinstance(node, ast.Name):
        return objects.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = found(node.value, objects)
        return None if owner is None else getattr(owner, node.attr)
    return None


def test_every_name_on_the_right_exists(objects: dict[str, Any]) -> None:
    commands = (ROOT / "docs" / "cli.md").read_text()
    wrong, counted = [], 0
    for code in codes():
        counted += 1
        try:
            if code.startswith(("stepwell ", "a2pack ")):
                assert re.search(rf"^#+ {code}\b", commands, re.MULTILINE), f"{code}: no command"
            else:
                check(code, objects)
        except (AssertionError, AttributeError, SyntaxError) as error:
            wrong.append(f"{code}: {error}")
    assert wrong == []
    assert counted > 120


@pytest.mark.parametrize(
    "code", ["sw.Lodaer", "loader.state()", "sw.Loader(source, 64, workers=2)", "steps.(", "a.b"]
)
def test_a_wrong_name_is_found(code: str, objects: dict[str, Any]) -> None:
    with pytest.raises((AssertionError, AttributeError, SyntaxError)):
        check(code, objects)


def test_everybody_is_there() -> None:
    sections = PAGE.read_text().split("\n## ")
    assert [section.partition("\n")[0] for section in sections[1:]] == FROM
    assert all(len(list(rows_of(section))) >= 9 for section in sections[1:])


@pytest.mark.parametrize(
    "name",
    [
        *("NPDataset", "ARDataset", "DataLoader(dataset, labelset)", "converter", "get_slice"),
        *("decode_auto_v2", "MmapShardSource", "next_batch", "reset", "RowWarmCache"),
        *("TelemetryDBSink", "StepRecord", "episode_steps", "get_batch", "run_ranges"),
        "DatasetBuilder",
    ],
)
def test_names_of_the_seeds(name: str) -> None:
    assert any(name in there for there, *_ in rows_of(PAGE.read_text()))
