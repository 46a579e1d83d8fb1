"""Modules that come with an extra of this package."""

from importlib import import_module
from typing import Any


def library(module: str, extra: str) -> Any:
    """A module. Raises `ImportError` with the line that installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        raise ImportError(f"{name} needs an extra: pip install 'stepwell[{extra}]'") from error
