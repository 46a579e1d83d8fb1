"""Errors with bytes, files and other processes.

    StepwellError
      FormatError(ValueError)     the bytes do not follow docs/formats      .path .offset
        KindError                 something else is there than expected
        VersionError              they follow a version this build cannot read
        ChecksumError             they were changed after they were written
      SchemaError(ValueError)     rows do not match the store's fields
      BusyError(OSError)          another process is writing here
      FetchError(OSError)         a bucket or a server did not answer as expected        .url
      StateError(ValueError)      a loader state that is not of this data
      DeviceError(RuntimeError)   there is no CUDA driver, or it refused a call

Mistakes in a call raise Python's own `IndexError`, `TypeError`, `ValueError`,
`FileNotFoundError`.
"""

__all__ = [
    "BusyError",
    "ChecksumError",
    "DeviceError",
    "FetchError",
    "FormatError",
    "KindError",
    "SchemaError",
    "StateError",
    "StepwellError",
    "VersionError",
]


class StepwellError(Exception):
    """Base of every error that stepwell defines."""


class FormatError(StepwellError, ValueError):
    """The bytes do not follow the format's specification."""

    def __init__(self, message: str, *, path: str | None = None, offset: int | None = None) -> None:
        super().__init__(message)
        self.path = path
        self.offset = offset

    def __str__(self) -> str:
        where = [str(part) for part in (self.path, self.offset) if part is not None]
        return f"{self.args[0]} - at {':'.join(where)}" if where else str(self.args[0])


class KindError(FormatError):
    """Something else is at a path than expected: another kind of store, a folder, a text."""


class VersionError(FormatError):
    """The file follows a version this build cannot read."""


class ChecksumError(FormatError):
    """A stored checksum disagrees with the bytes it covers."""


class SchemaError(StepwellError, ValueError):
    """Rows or fields do not match what the source holds."""


class BusyError(StepwellError, OSError):
    """Another process, or another writer in this one, is writing here."""


class FetchError(StepwellError, OSError):
    """A bucket or a server did not answer as expected; `__cause__` is the reason."""

    def __init__(self, message: str, *, url: str = "") -> None:
        super().__init__(message)
        self.url = url

    def __str__(self) -> str:
        return f"{self.args[0]} - at {self.url}"


class StateError(StepwellError, ValueError):
    """A loader state that does not belong to this data or this order."""


class DeviceError(StepwellError, RuntimeError):
    """There is no CUDA driver, it refused a call, or a forked child has used it."""
