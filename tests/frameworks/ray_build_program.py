"""Conversions on one local Ray, with workers and a head that are killed; and Ray Data."""

import contextlib
import io
import json
import os
import runpy
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import ray
import ray.data

import stepwell as sw
from stepwell.ray.reading import StoreDatasource
from tests import ROOT
from tests.frameworks.notes import Notes
from tests.frameworks.ray_sources import ROWS, Noted

HERE = Path.cwd()
UNLIKE = ("metadata.db", "metadata.db-shm", "metadata.db-wal", "writer.lock")
"""A database has a random id; a lock is there where a `StepWriter` was."""


def different(a: Path, b: Path) -> list[str]:
    """The files that two outputs do not both have, byte for byte."""
    if a.is_file():
        return [] if a.read_bytes() == b.read_bytes() else [a.name]
    names = {p.relative_to(each) for each in (a, b) for p in each.rglob("*") if p.is_file()}

    def same(name: Path) -> bool:
        one, other = a / name, b / name
        return one.exists() and other.exists() and one.read_bytes() == other.read_bytes()

    return [str(n) for n in sorted(names) if n.name not in UNLIKE and not same(n)]


def manifest(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / "manifest.json").read_text())
    return found


def both(source: Any, name: str, **options: Any) -> dict[str, Any]:
    """What is different between what one process makes and what tasks make."""
    one, other = HERE / f"one-{name}", HERE / f"ray-{name}"
    a = sw.convert(source, one, **options)
    b = sw.ray.convert(source, other, **options)
    answer: dict[str, Any] = {
        "files": [n for n in different(one, other) if n != "manifest.json"],
        "reports": [[r.rows, r.runs, r.skipped, r.resumed_at, r.target_kind] for r in (a, b)],
        "left": [p.name for p in HERE.glob("ray-*.part")],
    }
    with sw.open(one) as x, sw.open(other) as y:
        answer["problems"] = [str(problem) for problem in y.verify().problems]
        if isinstance(x, sw.StepReader) and isinstance(y, sw.StepReader):
            answer["runs"] = [store.query("SELECT * FROM runs")._rows for store in (x, y)]
            about = [manifest(path) for path in (one, other)]
            for each in about:
                del each["created"]
            answer["manifest"] = about
        if isinstance(x, sw.RecordReader):
            rows = np.arange(len(x))
            made = zip(x.take(rows).values(), y.take(rows).values(), strict=True)
            answer["rows"] = all(np.array_equal(np.asarray(v), np.asarray(w)) for v, w in made)
            answer["chunks"] = len(list(other.glob("chunk/*.zr")))
    return answer


def refusal(call: Callable[[], Any]) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


# What is killed.


def killed_worker() -> dict[str, Any]:
    source = Noted(HERE / "killed")
    source.note("dies", ROWS // 2)
    report = sw.ray.convert(source, "killed-steps", to="steps")
    return {"read": source.read(), "rows": report.rows, "files": expected("killed-steps")}


def expected(path: str) -> list[str]:
    """The files that are not those of the same rows, made by one process."""
    right = HERE / "right"
    if not right.exists():
        x = np.arange(ROWS)[:, None] * np.full(16, 0.5, np.float32)
        sw.convert({"x": x.astype(np.float32)}, right, to="steps")
    return [name for name in different(right, HERE / path) if name != "manifest.json"]


def continued() -> dict[str, Any]:
    """A conversion that an error ends, and the same call again, with one damaged document."""
    source = Noted(HERE / "continued")
    source.note("fails", ROWS - 1)
    error = refusal(lambda: sw.ray.convert(source, "continued-steps", to="steps"))
    answer: dict[str, Any] = {"error": error, "there": Path("continued-steps").exists()}
    source.forget("fails")
    other = refusal(lambda: sw.ray.convert(source, "continued-steps", to="shards"))
    documents = sorted(Path("continued-steps.part/pieces").glob("rows-*.json"))
    kept = [json.loads(path.read_text())["range"][0] for path in documents]
    documents[0].write_bytes(documents[0].read_bytes().replace(b'"blocks": "', b'"blocks": "0'))
    before = source.read()
    report = sw.ray.convert(source, "continued-steps", to="steps")
    again = Counter(source.read()) - Counter(before)
    answer |= {"other": other, "kept": kept, "again": sorted(again.elements())}
    return answer | {"resumed": report.resumed_at, "files": expected("continued-steps")}


def head_dies() -> NoReturn:
    """In a process of its own: Ray's head is killed behind the first piece."""
    source = Noted(Path("head"))

    def kill(done: int, total: int) -> None:
        if done and total == ROWS:
            for entry in Path("/proc").iterdir():
                try:
                    stat = (entry / "stat").read_text() if entry.name.isdecimal() else ""
                except OSError:
                    continue
                if (
                    "(gcs_server)" in stat
                    and int(stat.rpartition(")")[2].split()[1]) == os.getpid()
                ):
                    os.kill(int(entry.name), signal.SIGKILL)

    text = refusal(lambda: sw.ray.convert(source, "head-steps", to="steps", progress=kill))
    Path("head/error").write_text(text)
    sys.exit()


def killed_head() -> dict[str, Any]:
    """What that process saw; and the same call with another Ray."""
    source = Noted(Path("head"))
    answer: dict[str, Any] = {
        "error": Path("head/error").read_text(),
        "there": Path("head-steps").exists(),
    }
    documents = Path("head-steps.part/pieces").glob("rows-*.json")
    kept = [json.loads(path.read_text())["range"][0] for path in documents]
    before = Counter(source.read())
    report = sw.ray.convert(source, "head-steps", to="steps")
    again = Counter(source.read()) - before
    answer |= {"kept": sorted(kept), "again": sorted(again.elements())}
    return answer | {"resumed": report.resumed_at, "files": expected("head-steps")}


def command() -> dict[str, Any]:
    """`stepwell convert --ray` at the address of the Ray that runs here."""
    address = ray.get_runtime_context().gcs_address
    line = ["x.npy", "by-command", "--to", "steps", "--ray", address, "--workers", "2", "--json"]
    done = subprocess.run(
        [sys.executable, "-c", "from stepwell.cli import main; main()", "convert", *line],
        capture_output=True,
        text=True,
    )
    return {
        "code": done.returncode,
        "facts": json.loads(done.stdout or "{}"),
        "same": Path("by-command/steps.npy").read_bytes()
        == Path("one-rows/steps.npy").read_bytes(),
    }


# Ray Data.


def reading() -> dict[str, Any]:
    store = sw.StepReader.open("one-games")
    dataset = sw.ray.read("one-games", override_num_blocks=5).materialize()
    rows = list(dataset.iter_batches(batch_size=None, batch_format="numpy"))
    whole = {name: np.concatenate([batch[name] for batch in rows]) for name in store.schema}
    order = np.lexsort((whole["step_index"], whole["run_id"]))  # Ray's blocks come as they are done
    whole = {name: values[order] for name, values in whole.items()}
    (score,) = store.query("SELECT avg(max_score) FROM runs")._rows[0]
    better = f"max_score >= {score}"
    chosen = sw.ray.read("one-games", fields=["move"], where=better)
    return {
        "blocks": dataset.num_blocks(),
        "same": all(np.array_equal(whole[name], store[name][:]) for name in store.schema),
        "shape": list(whole["ev_values"].shape[1:]),
        "estimate": StoreDatasource(store).estimate_inmemory_data_size(),
        "nbytes": store.nbytes,
        "rows": len(store),
        "chosen": [chosen.columns(), chosen.count()],
        "expected": len(store.where(better)),
    }


def changed() -> str:
    np.save("changing.npy", np.arange(100))
    dataset = sw.ray.read("changing.npy")
    np.save("changing.npy", np.arange(100) + 1)
    return refusal(dataset.materialize)


def writing() -> dict[str, Any]:
    dataset = sw.ray.read("one-games", override_num_blocks=7)
    report = sw.ray.write(dataset, "written", to="steps")
    more = dataset.map_batches(lambda batch: {**batch, "move": batch["move"] + 1})
    sw.ray.write(more, "written-records", to="records")
    store = sw.StepReader.open("one-games")
    with sw.RecordReader.open("written-records") as made:
        moves = np.array_equal(made["move"][:], store["move"][:] + 1)
    texts = ray.data.from_items(
        [{"text": f"Zeile {i} ä", "n": [i] * (i % 3 + 1)} for i in range(99)]
    )
    sw.ray.write(texts, "written-texts", to="records")
    with sw.RecordReader.open("written-texts") as made:
        found = made.take(np.arange(99))
        words, lists = found["text"].to_list(), [list(map(int, n)) for n in found["n"]]
    return {
        "report": [report.source_kind, report.rows, report.runs],
        "expected": [len(store), len(store.runs)],
        "rows": Path("one-games/steps.npy").read_bytes() == Path("written/steps.npy").read_bytes(),
        "moves": moves,
        "texts": words == [f"Zeile {i} ä" for i in range(99)],
        "lists": lists == [[i] * (i % 3 + 1) for i in range(99)],
        "left": [path.name for path in HERE.glob("*.blocks")],
    }


def example() -> list[str]:
    """What the example prints, in the Ray that is here."""
    sys.argv = ["build_with_ray.py", "example"]
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        runpy.run_path(str(ROOT / "examples/build_with_ray.py"), run_name="__main__")
    return shown.getvalue().splitlines()


if __name__ == "__main__":
    if sys.argv[1:] == ["head"]:
        head_dies()
    notes = Notes(0)
    module = ["-m", "tests.frameworks.ray_build_program", "head"]
    process = subprocess.Popen([sys.executable, *module])  # beside the rest: a Ray of its own
    sw.game2048.play_to("played", 130, depth=1)
    np.save("x.npy", np.random.default_rng(0).random((30_000, 64), np.float32))
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    notes.ask("pack", lambda: both("played", "p.a2pack"))
    notes.ask("pack zstd-dict", lambda: both("played", "d.a2pack", compress="zstd-dict"))
    notes.ask("steps", lambda: both("played", "games"))
    notes.ask("steps in files", lambda: both("one-p.a2pack", "parts", part_bytes=1_000_003))
    notes.ask("steps of rows", lambda: both("x.npy", "rows", to="steps"))
    notes.ask("shards", lambda: both("x.npy", "shards", to="shards", part_bytes=1_000_000))
    notes.ask(
        "shards of steps", lambda: both("one-games", "values", to="shards", field="ev_values")
    )
    notes.ask(
        "records", lambda: both("x.npy", "r", to="records", compress="zstd", chunk_records=999)
    )
    notes.ask("records of steps", lambda: both("one-games", "columns", to="records"))
    notes.ask("zstd-dict", lambda: both("x.npy", "words", to="records", compress="zstd-dict"))
    sw.convert("x.npy", "x.parquet")
    notes.ask("parquet", lambda: both("x.parquet", "of-parquet", to="records", compress="zstd"))
    bad = sorted(Path("played").iterdir())[50]
    bad.write_bytes(bad.read_bytes()[:-9])
    notes.ask("bad run", lambda: refusal(lambda: sw.ray.convert("played", "bad")))
    notes.ask("bad run of a pack", lambda: refusal(lambda: sw.ray.convert("played", "bad.a2pack")))
    notes.ask("skipped", lambda: both("played", "skipped", skip_bad=True))
    notes.ask("skipped in a pack", lambda: both("played", "skipped.a2pack", skip_bad=True))
    notes.ask("killed worker", killed_worker)
    notes.ask("continued", continued)
    process.wait()
    notes.ask("killed head", killed_head)
    notes.ask("command", command)
    notes.ask("exists", lambda: refusal(lambda: sw.ray.convert("x.npy", "right", to="steps")))
    notes.ask("forced", lambda: sw.ray.convert("x.npy", "right", to="steps", force=True).rows)
    notes.ask("npz", lambda: refusal(lambda: sw.ray.convert("x.npy", "x.npz")))
    memory = sw.as_source({"x": np.zeros(9)})
    notes.ask("memory", lambda: refusal(lambda: sw.ray.convert(memory, "m", to="steps")))
    notes.ask("elsewhere", lambda: refusal(lambda: sw.ray.convert("x.npy", "m", address="a:1")))
    notes.ask("reading", reading)
    notes.ask("changed", changed)
    notes.ask("writing", writing)
    notes.ask("example", example)
    notes.ask(
        "nobody",
        lambda: refusal(lambda: sw.ray.convert("x.npy", "m", address="127.0.0.1:1", to="steps")),
    )
