"""Other libraries: those that come with an extra, and their errors about damaged files."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from stepwell.errors import FormatError, StepwellError


def library(module: str, extra: str) -> Any:
    """A module. Raises `ImportError` with the line that installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        raise ImportError(f"{name} needs an extra: pip install 'stepwell[{extra}]'") from error


@contextmanager
def damage_in(path: Path, *kinds: type[Exception]) -> Iterator[None]:
    """A library's error about a damaged file, as a `FormatError` that names it."""
    try:
        yield
    except StepwellError:
        raise
    except kinds as error:
        if isinstance(error, OSError) and error.errno is not None:  # the system's, not the file's
            raise
        raise FormatError(f"cannot be read: {error}", path=str(path)) from error
