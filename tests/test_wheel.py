"""The wheel, in an environment with nothing but what it asks for, and no compiler.

`make wheel` names the wheel to look at (STEPWELL_WHEEL). Otherwise one is made of the folder that
the installed core was compiled in, where nothing is left to compile.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterable
from email.parser import BytesParser
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import stepwell as sw
from tests import ROOT, SANITIZED

pytestmark = pytest.mark.skipif(SANITIZED, reason="the wheel has the plain core")

PROGRAM = """
import ctypes, pathlib, sys
core, = pathlib.Path(sys.prefix).glob("lib/python*/site-packages/stepwell/_core*.so")
maps = lambda: {line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}
before = maps()
ctypes.CDLL(str(core))
print(*{pathlib.Path(path).name.partition(".so")[0] for path in maps() - before})

import numpy as np
import stepwell as sw
assert pathlib.Path(sw.__file__).is_relative_to(sys.prefix)
with sw.StepWriter("steps", [("obs", "<f4", (4,))], columns={"score": int}) as writer:
    writer.append({"obs": np.ones((50, 4), "f4")}, score=9)
with sw.RecordWriter("records", {"text": sw.Field(str, compress="zstd")}) as writer:
    writer.append({"text": ["a", "bc"]})
with sw.ShardWriter("shards", width=16) as writer:
    writer.append(np.zeros((100, 16)))
sw.game2048.play_to("runs", games=2, depth=1, seed=1)
sw.convert("runs", "games.a2pack")
sw.convert("games.a2pack", "games", to="steps")
for path in ("steps", "records", "shards", "games.a2pack", "games"):
    store = sw.open(path)
    assert store.verify().ok, path
    rows = [len(next(iter(batch.values()))) for batch in sw.Loader(store, 7, seed=1)]
    assert sum(rows) == len(store) > 0, path
print(sw.__version__)
for module in ("torch", "jax"):
    try:
        getattr(sw, module)
    except ImportError as error:
        print(error)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if given := os.environ.get("STEPWELL_WHEEL"):
        return Path(given).resolve()
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    platform = sysconfig.get_platform().replace("-", "_")
    folder = ROOT / "build" / f"{tag}-{tag}-{platform}"
    if not list(folder.glob("_core*.so")):
        pytest.skip(f"nothing was compiled in {folder.relative_to(ROOT)}: make test does that")
    out = tmp_path_factory.mktemp("wheel")
    options = ["--no-deps", "--no-build-isolation", "--quiet", "--disable-pip-version-check"]
    run(sys.executable, "-m", "pip", "wheel", *options, f"--wheel-dir={out}", str(ROOT))
    (made,) = out.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel and the packages that it depends on, as links."""
    place = tmp_path_factory.mktemp("environment") / "venv"
    venv.create(place, symlinks=True)
    options = ["--no-deps", "--no-index", "--quiet", "--disable-pip-version-check"]
    python = f"--python={place / 'bin' / 'python'}"
    run(sys.executable, "-m", "pip", python, "install", *options, str(wheel))
    (packages,) = place.glob("lib/python*/site-packages")
    about = BytesParser().parsebytes(zipfile.ZipFile(wheel).read(name_of("METADATA", wheel)))
    for path in needed(about.get_all("Requires-Dist") or []):
        if not (link := packages / path.name).exists():
            link.symlink_to(path)
    return place


def run(*command: str, cwd: Path = ROOT, path: str | None = None) -> str:
    env = {**os.environ, **({"PATH": path} if path else {})}
    env = {name: value for name, value in env.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def name_of(file: str, wheel: Path) -> str:
    version = "-".join(wheel.name.split("-")[:2])
    return f"{version}.dist-info/{file}"


def needed(requirements: Iterable[str], seen: set[str] | None = None) -> Iterable[Path]:
    """The files and folders of packages that are asked for, and of those that these ask for."""
    seen = set() if seen is None else seen
    for each in map(Requirement, requirements):
        name = re.sub(r"[-_.]+", "-", each.name).lower()
        if name not in seen and (each.marker is None or each.marker.evaluate({"extra": ""})):
            seen.add(name)
            found = metadata.distribution(name)
            tops = {file.parts[0] for file in found.files or []} - {"..", "__pycache__"}
            yield from (Path(str(found.locate_file(top))) for top in sorted(tops))
            yield from needed(found.requires or [], seen)


def test_it_has_every_file(wheel: Path) -> None:
    source = ROOT / "src"
    kinds = (".py", ".pyi", ".js", ".css")
    ours = [p for p in source.rglob("*") if p.suffix in kinds or p.name == "py.typed"]
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {str(path.relative_to(source)) for path in ours} <= names
    assert len([name for name in names if re.match(r"stepwell/_core.*\.so$", name)]) == 1
    assert name_of("licenses/LICENSE", wheel) in names
    strangers = {name.split("/")[0] for name in names} - {"stepwell", name_of("", wheel)[:-1]}
    assert strangers == set()


def test_it_works_without_a_compiler(environment: Path, tmp_path: Path) -> None:
    path = str(environment / "bin")
    assert [name for name in ("cc", "gcc", "c++", "cmake") if shutil.which(name, path=path)] == []
    python = str(environment / "bin" / "python")
    libraries, version, *refused = run(
        python, "-I", "-W", "error", "-c", PROGRAM, cwd=tmp_path, path=path
    ).splitlines()
    system = {"libc", "libdl", "libgcc_s", "libm", "libpthread", "libstdc++"}
    assert {name for name in libraries.split() if not name.startswith("_core")} <= system
    assert version == sw.__version__
    assert [re.findall(r"pip install '(.*)'", line) for line in refused] == [
        ["stepwell[torch]"],
        ["stepwell[jax]"],
    ]


def test_its_commands_work(environment: Path, tmp_path: Path) -> None:
    path = str(environment / "bin")
    assert sw.__version__ in run(f"{path}/stepwell", "--version", path=path)
    run(f"{path}/stepwell", "2048", "play", "--games=1", "--depth=1", "--out=runs", cwd=tmp_path)
    run(f"{path}/a2pack", "pack", "--input=runs", "--output=a.a2pack", cwd=tmp_path, path=path)
    shown = run(f"{path}/stepwell", "info", "a.a2pack", "--json", cwd=tmp_path, path=path)
    assert json.loads(shown)["rows"] == 1


def test_the_bindings_use_the_stable_interface_only() -> None:
    """From Python 3.12 on they are compiled with it, which has none of the macros."""
    for path in sorted((ROOT / "native" / "bind").glob("*.[ch]pp")):
        found = re.findall(r"\bPy\w+_(?:GET|AS|SET|Fast)_\w+|\bPy_TYPE\(\w+\)->", path.read_text())
        assert found == [], f"{path.name} does not compile from Python 3.12 on"
