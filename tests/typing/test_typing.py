"""mypy and pyright accept `user_code.py`, and find a mistake in every line of `TYPOS`."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT

GOOD = Path(__file__).with_name("user_code.py")

TYPOS = """\
sw.Lodaer(source, 9)
sw.RowState("a")
sw.torch.Lodaer(source, 9)
sw.jax.Lodaer(source, 9)
sw.replay.Recorder
sw.game2048.pack("a", "b")
sw.formats.array({})
sw.telemetry.migrate("a")
sw.stores.RowStates("a")
sw.open("a").were("score > 9")
sw.open("a").episode("b")
sw.open("a")["obs"].shapes
sw.open("a").describe().row
sw.open("a").verify(quik=True)
sw.open("a").take([1]).obs
sw.StepReader.open("a").where("score > 9").splits(0.9)
sw.StepReader("a", memory="disk")
sw.StepWriter("a", "<i4", mode="w")
sw.Field("<i4", compres="zstd")
sw.Loader(source, "9")
sw.Loader(source, 9, sede=7)
sw.Loader(source, 9, sampler="shuffle")
sw.Loader(source, 9).batchsize
next(iter(sw.Loader(source, 9))).keyz()
sw.torch.Loader(source, 9, sede=7)
sw.torch.Loader(source, 9, on_corrupt="ignore")
sw.torch.IterableDataset(source, 9, sede=7)
sw.jax.Loader(source, 9, sede=7)
next(iter(sw.jax.Loader(source, 9)))["obs"].summ()
sw.convert("a", "b", mode="w")
""".splitlines()

# What mypy does not see: it takes any arguments where a signature comes from a ParamSpec.
ONLY_PYRIGHT = """\
sw.StepReader.open("a", memroy="map")
sw.ReplayReader.open("a", n_step="3")
""".splitlines()

HEAD = "import stepwell as sw\n\n\ndef user(source: sw.Source) -> None:\n"


def mistakes(lines: list[str], folder: Path) -> Path:
    path = folder / "typos.py"
    path.write_text(HEAD + "".join(f"    {line}\n" for line in lines))
    return path


def found(errors: list[tuple[str, int]], path: Path) -> list[str]:
    """The lines of a file in which there are errors; nowhere else are any."""
    assert {Path(name).name for name, _ in errors} <= {path.name}, errors
    lines = path.read_text().splitlines()
    return [lines[number - 1].strip() for number in sorted({number for _, number in errors})]


def test_mypy(tmp_path: Path) -> None:
    typos = mistakes(TYPOS, tmp_path)
    command = [sys.executable, "-m", "mypy", "--no-error-summary", str(GOOD), str(typos)]
    env = {**os.environ, "MYPYPATH": str(ROOT / "src")}  # the cache is that of `make lint`
    text = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True).stdout
    errors = re.findall(r"^(.*?):(\d+): error:", text, re.MULTILINE)
    assert found([(name, int(number)) for name, number in errors], typos) == TYPOS, text


def test_pyright(tmp_path: Path) -> None:
    pytest.importorskip("pyright")
    lines = TYPOS + ONLY_PYRIGHT
    typos = mistakes(lines, tmp_path)
    (tmp_path / GOOD.name).write_text(GOOD.read_text())
    config = {"extraPaths": [str(ROOT / "src")], "reportUnusedExpression": False}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config))
    command = [sys.executable, "-m", "pyright", "-p", str(tmp_path), "--outputjson"]
    command += ["--pythonpath", sys.executable]
    env = {**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}  # it would ask for newer versions
    text = subprocess.run(command, env=env, capture_output=True, text=True).stdout
    problems = json.loads(text)["generalDiagnostics"]
    errors = [(e["file"], e["range"]["start"]["line"] + 1) for e in problems]
    assert found(errors, typos) == lines, text
