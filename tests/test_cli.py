"""The command line, run as a user runs it."""

import io
import json
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell as sw
from stepwell import cli
from tests.cli_page import PAGE, page
from tests.reference import runs


def stepwell(*args: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command in this process, not on a terminal."""
    streams = [io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2)]
    before, sys.argv = sys.argv, ["stepwell", *map(str, args)]
    code: Any = 0
    try:
        with redirect_stdout(streams[0]), redirect_stderr(streams[1]):
            cli.main()
    except SystemExit as end:
        code = end.code or 0
    finally:
        sys.argv = before
    texts = [stream.buffer.getvalue().decode() for stream in streams]
    return subprocess.CompletedProcess(args, code, *texts)


def process(*args: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the installed command."""
    command = [str(Path(sys.executable).with_name("stepwell"))]
    if not Path(command[0]).exists():
        command = [sys.executable, "-c", "from stepwell.cli import main; main()"]
    return subprocess.run(
        [*command, *map(str, args)], capture_output=True, text=True, timeout=110, check=False
    )


@pytest.fixture
def npy(tmp_path: Path) -> Path:
    rows = np.zeros(5000, [("board", "<u8"), ("ev", "<f4", (4,))])
    rows["board"] = np.arange(5000)
    np.save(tmp_path / "steps.npy", rows)
    return tmp_path / "steps.npy"


def test_version() -> None:
    done = process("--version")
    assert (done.returncode, done.stdout) == (0, f"stepwell {sw.__version__}\n")


def test_info(npy: Path) -> None:
    done = process("info", npy)
    assert done.returncode == 0
    assert done.stderr == ""
    for text in ("5000", "120128", "board: uint64", "ev: float32[4]", "health"):
        assert text in done.stdout
    assert f"an array at {npy}" in done.stdout  # on one line, however long
    facts = json.loads(stepwell("info", npy, "--json").stdout)
    assert (facts["kind"], facts["path"], facts["rows"]) == ("npy", str(npy), 5000)
    assert facts["bytes"] == npy.stat().st_size
    assert facts["fields"] == {"board": "uint64", "ev": "float32[4]"}


def test_info_and_bench_of_a_pack(tmp_path: Path) -> None:
    pack = tmp_path / "games.a2pack"
    pack.write_bytes(runs.file_of("pack.md", "pack-v1"))
    done = stepwell("info", pack)
    assert (done.returncode, done.stderr) == (0, "")
    for text in (f"a pack at {pack}", "boards: "):
        assert text in done.stdout
    facts = json.loads(stepwell("info", pack, "--json").stdout)
    assert (facts["kind"], facts["rows"]) == ("pack", 2)
    assert facts["bytes"] == pack.stat().st_size
    done = stepwell("bench", pack, "--seconds", "0.1", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["take"]["rows_per_s"] > 0


@pytest.mark.parametrize("how", [[], ["--map"]])
def test_bench(npy: Path, how: list[str]) -> None:
    done = stepwell("bench", npy, "--seconds", "0.1", "--batch-size", "100", *how)
    assert done.returncode == 0
    assert done.stderr == ""  # bars are for terminals
    assert "rows/s" in done.stdout
    result = json.loads(stepwell("bench", npy, "--seconds", "0.1", "--json", *how).stdout)
    for name in ("take", "loader"):
        assert result[name]["rows_per_s"] > 0
        assert result[name]["p50_s"] <= result[name]["p99_s"]
        assert result[name]["peak_rss_bytes"] > 2**20


@pytest.mark.parametrize("command", ["info", "bench"])
def test_what_is_wrong_is_one_line_and_an_exit_code(
    command: str, tmp_path: Path, npy: Path
) -> None:
    (tmp_path / "cut.npy").write_bytes(npy.read_bytes()[:1000])
    for path, code, text in [
        (tmp_path / "absent.npy", 2, "No such file"),
        (tmp_path / "cut.npy", 1, "expected 120000 bytes of data"),
        (tmp_path, 2, "expected an array, a pack, a step dataset"),
    ]:
        done = stepwell(command, path)
        assert done.returncode == code
        assert done.stdout == ""
        assert done.stderr.startswith("error: ")
        assert text in done.stderr
        assert str(path) in done.stderr
        assert done.stderr.count("\n") == 1


def test_no_rows_to_measure(tmp_path: Path) -> None:
    np.save(tmp_path / "empty.npy", np.zeros((0, 3)))
    assert "rows" in stepwell("bench", tmp_path / "empty.npy").stderr
    assert stepwell("info", tmp_path / "empty.npy").returncode == 0


@pytest.mark.parametrize("args", [["frob"], ["info"], ["bench", "x", "--batch-size", "0"]])
def test_a_wrong_command_line_is_exit_code_2(args: list[str]) -> None:
    assert stepwell(*args).returncode == 2


def test_the_page_about_the_command_line_is_its_help() -> None:
    assert PAGE.read_text() == page(), "run python -m tests.cli_page"
