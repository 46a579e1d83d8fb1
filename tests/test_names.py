"""What people find: the public names, their docstrings, signatures and examples, and what each
object shows of itself."""

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import stepwell as sw
from stepwell.lazy import lazy
from stepwell.loader import LoaderOptions
from tests import ROOT, children, packs, records, replays, shards, steps
from tests.test_docs import BLOCK

MODULES = ["formats", "game2048", "jax", "ray", "replay", "stores", "telemetry", "torch"]
PUBLIC = [sw, *(import_module(f"stepwell.{name}") for name in MODULES)]


def names_of(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """The classes and functions that a module shows."""
    for name in module.__all__:
        found = getattr(module, name)
        if inspect.isclass(found) or inspect.isroutine(found):
            yield f"{module.__name__}.{name}", found


def members_of(owner: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties that a class has of ours."""
    for name in dir(owner):
        home = next(each for each in owner.__mro__ if name in each.__dict__)
        member = inspect.getattr_static(owner, name)
        ours = home.__module__.startswith("stepwell") and not name.startswith("_")
        if ours and (isinstance(member, property | lazy) or inspect.isroutine(member)):
            yield name, member if isinstance(member, lazy) else getattr(owner, name)


def test_there_are_about_35_names() -> None:
    assert 33 <= len(sw.__all__) <= 38


def test_every_public_name_and_member_has_a_docstring() -> None:
    missing = [module.__name__ for module in PUBLIC if not module.__doc__]
    counted = 0
    for module in PUBLIC:
        for name, found in names_of(module):
            members = members_of(found) if inspect.isclass(found) else ()
            for path, each in [(name, found), *((f"{name}.{m}", each) for m, each in members)]:
                counted += 1
                if not inspect.getdoc(each):
                    missing.append(path)
    assert missing == []
    assert counted > 500


def test_every_name_has_an_example_that_runs() -> None:
    """`test_docs` runs the page."""
    code = "\n".join(BLOCK.findall((ROOT / "docs" / "names.md").read_text()))
    assert [name for name in sw.__all__ if not re.search(rf"\bsw\.{name}\b", code)] == []


def test_tab_completion_finds_names_and_modules() -> None:
    script = "import stepwell as sw, sys; print(*dir(sw)); print('torch' in sys.modules)"
    found, loaded = children.answer(script).splitlines()
    assert found.split() == sorted([*sw.__all__, *MODULES, "__version__"])
    assert loaded == "False"
    assert dir(sw.replay) == sw.replay.__all__


@pytest.mark.parametrize("module", PUBLIC, ids=lambda module: str(module.__name__))
def test_signatures_show_nothing_internal(module: ModuleType) -> None:
    for name, found in names_of(module):
        if inspect.isclass(found) and issubclass(found, tuple | Exception):
            continue
        shown = inspect.signature(found).parameters
        assert not [each for each in shown if each.startswith("_")], name


@pytest.mark.parametrize("loader", [sw.torch.Loader, sw.jax.Loader, sw.torch.IterableDataset])
def test_loaders_of_frameworks_show_their_options(loader: type) -> None:
    own = dict(inspect.signature(sw.Loader).parameters)
    shown = dict(inspect.signature(loader).parameters)
    assert shown.pop("device").default is None
    assert "torch" not in loader.__module__ or shown.pop("as_int64").default == ()
    if loader is sw.jax.Loader:
        assert shown.pop("pad_last").default is False
    assert shown == own
    options = [name for name, each in own.items() if each.kind is inspect.Parameter.KEYWORD_ONLY]
    assert list(LoaderOptions.__annotations__) == options


def test_a_loader_of_ones_own_may_take_what_it_likes() -> None:
    class Mine(sw.Loader):
        def __init__(self, *args: Any, name: str, **options: Any) -> None:
            super().__init__(*args, **options)

    shown = inspect.signature(Mine).parameters
    assert list(shown)[:3] == ["args", "name", "shuffle"]
    assert "options" not in shown
    assert len(Mine(np.arange(9), 3, name="a", seed=7)) == 3


# What objects show of themselves.


def built(kind: str, path: Path) -> Path:
    """A small store of a kind."""
    if kind == "steps":
        steps.build(path)
    elif kind == "pack":
        sw.game2048.play_to(path / "runs", games=2, depth=1, seed=1)
        sw.game2048.pack_runs(path / "runs", path / "games.a2pack")
        return path / "games.a2pack"
    elif kind == "raw":
        path.mkdir()
        return packs.write(path / "raw.a2pack", [b"a", b"bc"], [16, 17])
    elif kind == "records":
        records.build(path, range(20))
    elif kind == "shards":
        shards.build(path, [5, 5])
    elif kind == "replay":
        replays.record_all(path, "run", range(20))
    elif kind == "npz":
        path.mkdir()
        np.savez(path / "a.npz", x=np.arange(9))
        return path / "a.npz"
    else:
        path.mkdir()
        np.save(path / "a.npy", np.arange(9))
        return path / "a.npy"
    return path


KINDS = ["steps", "pack", "raw", "records", "shards", "replay", "npz", "npy"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_shows_itself_open_closed_and_gone(kind: str, tmp_path: Path) -> None:
    place = tmp_path / "<i>&"
    place.mkdir()
    path = built(kind, place / "store")
    store = sw.open(path)
    name = type(store).__name__
    assert repr(store).startswith(f"{name}({len(store):,} rows, ")
    if store.runs is not None:
        assert f"{len(store.runs):,} runs" in repr(store)
    page = store._repr_html_()
    assert "<i>" not in page
    assert "&lt;i&gt;&amp;" in page
    assert f"{store.describe().bytes:,}" in page
    assert "<i>" not in store.describe()._repr_html_()
    assert "not checked" in store.verify()._repr_html_()
    for field in store.schema:
        assert field in store
        assert len(store[field]) == len(store)
    place.rename(tmp_path / "gone")
    assert repr(store).startswith(f"{name}(")
    assert store._repr_html_().startswith("<table>")
    store.close()
    assert repr(store).startswith(f"{name}(")
    assert repr(store).endswith(", closed)")
    assert "closed: " in store._repr_html_()
    half_made = type(store).__new__(type(store))
    assert repr(half_made).startswith(f"{name}(")


def test_no_object_shows_its_address() -> None:
    classes = {each for module in PUBLIC for _, each in names_of(module) if inspect.isclass(each)}
    plain = {each for each in classes if each.__repr__ is object.__repr__}
    assert plain <= {sw.Sampler, sw.game2048.RunPayloads}


def test_a_repr_reads_no_rows() -> None:
    class Rows(sw.Source):
        @property
        def schema(self) -> dict[str, sw.Field]:
            return {"x": sw.Field("<i4")}

        def __len__(self) -> int:
            return 9

        def _fill(self, rows: Any, out: sw.Batch) -> None:
            raise AssertionError("read")

    rows = Rows()
    assert repr(rows) == "Rows(9 rows, 36 bytes, {x: int32})"
    assert repr(rows.select([1, 2])) == "Select(2 rows, 8 bytes, {x: int32})"
    assert repr(rows["x"]).startswith("Column(9 rows")
    assert "int32" in rows._repr_html_()


def test_tables_loaders_and_writers_show_themselves(tmp_path: Path) -> None:
    steps.build(tmp_path / "steps")
    with sw.StepReader.open(tmp_path / "steps") as opened:
        page = opened.runs._repr_html_()
        assert page.count("<tr>") == 1 + min(len(opened.runs), 10)
        assert "&lt;b&gt;" in opened.query("SELECT '<b>' AS a")._repr_html_()
        loader = sw.Loader(opened, 4, seed=7)
        next(iter(loader))
        shown = loader._repr_html_()
    for text in ("batch_size", "remaining", "Shuffle(seed=7)", "StepReader("):
        assert text in shown
    writer = sw.RecordWriter(tmp_path / "new", {"a": "<i4"})
    assert repr(writer) == f"RecordWriter({str(tmp_path / 'new')!r}, open)"
    writer.close()
    assert repr(writer) == f"RecordWriter({str(tmp_path / 'new')!r}, closed)"
    assert repr(sw.StepWriter.__new__(sw.StepWriter)) == "StepWriter('', closed)"


# Sources and loaders feel like containers.


def test_a_loader_shows_where_it_stands() -> None:
    source = sw.ArraySource(np.arange(10))
    loader = sw.Loader(source, 4, seed=7)
    assert loader.source is source
    assert (loader.batch_size, loader.epoch, loader.position, loader.remaining) == (4, 0, 0, 3)
    loop = iter(loader)
    first = next(loop)
    assert (loader.epoch, loader.position, loader.remaining) == (0, 4, 2)
    assert loader.order.rows(0, 0, 4).tolist() == first["data"].tolist()
    assert len(list(loop)) == 2
    assert (loader.epoch, loader.position, loader.remaining) == (1, 0, 3)
    many = sw.Loader(source, 2, rank=1, world_size=2)
    next(iter(many))
    assert (many.position, many.remaining) == (4, 2)
    with pytest.raises(AttributeError):
        loader.batch_size = 5  # type: ignore[misc]


@pytest.mark.parametrize("given", ["shuffle", sw.Shuffle, 7, np.arange(9)], ids=str)
@pytest.mark.parametrize("loader", [sw.Loader, sw.torch.Loader])
def test_what_is_not_a_sampler(loader: Any, given: Any) -> None:
    with pytest.raises(TypeError, match=r"sampler: expected Shuffle\(seed\), Block.* got "):
        loader(np.arange(9), 3, sampler=given)
