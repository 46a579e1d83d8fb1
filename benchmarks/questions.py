"""Benchmarks that ask several questions, each in a process of its own."""

import json
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.machine import Quiet
from benchmarks.results import Case, console, publish, save

__all__ = ["answer"]


def answer(
    script: str,
    questions: Mapping[str, Callable[[], list[Case]]],
    args: Namespace,
    options: Sequence[str],
) -> None:
    """Answer the question `args.only`, or all: each by `benchmarks.script` with these options.

    What one question leaves in memory is not to change the numbers of the next.
    """
    quiet = Quiet()
    if args.only:
        cases = [_with_command(case, script, args.only) for case in questions[args.only]()]
        publish(cases, args.json)
    else:
        cases = [case for question in questions for case in _ask(script, question, options)]
        save(cases, args.json)
    console.print(f"[dim]other programs used {quiet.others():.0%} of the machine[/]")


def _ask(script: str, question: str, options: Sequence[str]) -> list[Case]:
    """The answer of a fresh process, which prints it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cases.json"
        command = [sys.executable, "-m", f"benchmarks.{script}", f"--only={question}"]
        subprocess.run([*command, f"--json={path}", *options], check=True)
        return [Case.from_json(case) for case in json.loads(path.read_text())]


def _with_command(case: Case, script: str, question: str) -> Case:
    command = f"alone: `python -m benchmarks.{script} --only {question}`"
    return replace(case, note=f"{case.note}; {command}" if case.note else command)
