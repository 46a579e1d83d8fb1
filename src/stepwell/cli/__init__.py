"""The commands `stepwell` and `a2pack`, each in a module that is imported when it runs."""

import os
import signal
import sys
import threading
from importlib import import_module

from stepwell import __version__

__all__ = ["a2pack", "main"]


def main() -> None:
    """The command `stepwell`."""
    _run("stepwell.cli.app")


def a2pack() -> None:
    """The command `a2pack`."""
    _run("stepwell.cli.pack")


def _run(module: str) -> None:
    if sys.argv[1:] == ["--version"]:  # which needs none of the verbs
        print(f"stepwell {__version__}")
        sys.exit(0)
    # An interrupt in the middle of imports would be a traceback, or an error of another module.
    main_thread = threading.current_thread() is threading.main_thread()
    mine = main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if mine:
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    app = import_module(module).app
    console = import_module("stepwell.cli.console")
    if mine:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    console.run(app)
