"""The programs of docs/frameworks/, launched as their pages do, print what the pages show."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT, SANITIZED
from tests.frameworks.conftest import QUIET, RANKS, Launch

PAGES = sorted(ROOT.glob("docs/frameworks/*.md"))
# torch 2.13 ends some processes of gloo so when they are done, with nothing of ours in them too.
TORCHS_OWN = "terminate called without an active exception"
PORT = "8476"  # of the pages; here others may use it
WHOLE = re.compile(
    r'^```python title="(?P<name>\w+\.py)"\n(?P<program>.*?)^```\n\n'
    r"^```sh\n(?P<command>.*?)^```\n\n"
    r"^```text\n(?P<output>.*?)^```\n",
    re.MULTILINE | re.DOTALL,
)


def programs_of(page: Path) -> list[re.Match[str]]:
    """The programs of a page, each with its launch and what it prints."""
    return list(WHOLE.finditer(page.read_text()))


def test_there_is_a_page_for_each_framework() -> None:
    names = {"pytorch", "lightning", "accelerate", "transformers", "jax", "ray", "gymnasium"}
    assert {page.stem for page in PAGES} == names | {"tables"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages_are_short_and_launch_what_they_show(page: Path) -> None:
    text, programs = page.read_text(), programs_of(page)
    assert text.count("```python") == len(programs)  # no program without a launch
    assert len(text.splitlines()) < 30 + 60 * len(programs)
    for found in programs:
        assert len(found["program"].splitlines()) <= 40


@pytest.mark.parametrize(
    ("page", "number"),
    [
        (page, number)
        for page in PAGES
        if page.stem != "ray"
        for number in range(len(programs_of(page)))
    ],
    ids=lambda each: getattr(each, "stem", str(each)),
)
def test_the_programs_of_a_page(page: Path, number: int, tmp_path: Path) -> None:
    found = programs_of(page)[number]
    (tmp_path / found["name"]).write_text(found["program"].replace(PORT, free_port()))
    check_output(found, launched(found["command"], tmp_path))


@pytest.mark.skipif(SANITIZED, reason="Ray's processes take minutes to begin")
def test_the_program_of_rays_page(launch: Launch) -> None:
    """Beside others in one Ray, which takes long to begin."""
    (found,) = programs_of(ROOT / "docs/frameworks/ray.md")
    assert found["command"] == f"python {found['name']}\n"
    check_output(found, launch("ray_program").output.splitlines())


def check_output(found: re.Match[str], shown: list[str]) -> None:
    assert [line for line in shown if "every row once" in line] == found["output"].splitlines()
    assert found["output"].count("every row once: True\n") == len(found["output"].splitlines()) > 2


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def launched(command: str, folder: Path, limit_s: int = 110) -> list[str]:
    """The lines that a command of a shell prints; its errors are shown if a test fails."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(RANKS)}
    path = f"{Path(sys.executable).parent}:{kept['PATH']}"
    torchrun = 'torchrun() { python -m torch.distributed.run "$@"; }\n'
    with open(folder / "errors.txt", "w+") as errors:
        shell = subprocess.Popen(
            ["bash", "-ec", torchrun + command],
            cwd=folder,
            env={**kept, **QUIET, "HOME": str(folder), "PATH": path, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = shell.communicate(timeout=limit_s)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)  # and ranks that it left
            shell.wait()
            errors.seek(0)
            print(errors.read()[-3000:])
        if shell.returncode != 0:
            errors.seek(0)
            assert TORCHS_OWN in errors.read()
    return output.splitlines()
