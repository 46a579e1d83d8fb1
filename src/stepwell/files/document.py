"""Small JSON files that describe a store: versioned, checksummed where the format has it.

META = Document("meta.json", "zrecord", 1, checksummed=True)
META.write(root, {"length": 3})
with META.parsing(root) as text:        # what the block makes of it may raise ValueError, …
    length = text["length"]             # all of which become a FormatError of that file
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stepwell import _core
from stepwell.errors import ChecksumError, FormatError, VersionError
from stepwell.files.atomic import write_file
from stepwell.files.regular import read_inside

_UNREADABLE = (
    *(ValueError, KeyError, IndexError, TypeError, AttributeError),
    *(RecursionError, ArithmeticError),
)


@dataclass(frozen=True)
class Document:
    """One kind of JSON file: its name, the `format` and `version` that it states."""

    name: str
    format: str
    version: int
    older: tuple[int, ...] = ()
    """Versions that are read as well; the block goes by `text["version"]`."""
    checksummed: bool = False
    """It has a member `crc32c` of all others."""
    indent: int | None = 1
    max_bytes: int = 1 << 30

    def dump(self, content: dict[str, Any]) -> bytes:
        """The bytes of a document with this content."""
        text = {"format": self.format, "version": self.version, **content}
        if self.checksummed:
            text["crc32c"] = checksum_of(text)
        return json.dumps(text, indent=self.indent).encode() + (b"\n" if self.indent else b"")

    def write(self, root: Path, content: dict[str, Any]) -> None:
        """Replace the document in a folder, all of it or nothing."""
        write_file(root / self.name, self.dump(content), follow=False)

    @contextmanager
    def parsing(self, root: Path) -> Iterator[dict[str, Any]]:
        """The content of the document in a folder, for a block that makes something of it.

        Raises `FileNotFoundError`, `VersionError`, `ChecksumError`, and `FormatError` for what
        else is wrong with the document, which the block may find out.
        """
        data = read_inside(root, self.name, self.max_bytes)
        with self.parsing_bytes(data, str(root / self.name)) as text:
            yield text

    @contextmanager
    def parsing_bytes(self, data: bytes, path: str) -> Iterator[dict[str, Any]]:
        """The same for bytes that came from somewhere else."""
        try:
            text = json.loads(data)
            if not isinstance(text, dict) or text.get("format") != self.format:
                raise ValueError(f"expected the format {self.format!r}")
            if text["version"] not in (self.version, *self.older):
                raise VersionError(
                    f"expected version {self.version}, got {text['version']!r}", path=path
                )
            if self.checksummed:
                _check(text, path)
            yield text
        except FormatError:
            raise
        except _UNREADABLE as error:
            raise FormatError(f"not a {self.name}: {error!r}", path=path) from None


def checksum_of(text: dict[str, Any]) -> str:
    """The CRC32C of a document's members, in the order of their names."""
    data = json.dumps(text, sort_keys=True, separators=(",", ":")).encode()
    return f"{_core.crc32c(np.frombuffer(data, np.uint8)):08x}"


def whole_number(value: Any, limit: int, *, min_: int = 0) -> int:
    """A number of a document. Raises `ValueError` when it is outside `range(min_, limit)`."""
    if type(value) is not int or not min_ <= value < limit:
        raise ValueError(f"expected a whole number from {min_} to below {limit}, got {value!r}")
    return value


def _check(text: dict[str, Any], path: str) -> None:
    expected = text.pop("crc32c", None)
    if expected is not None and expected != (found := checksum_of(text)):
        raise ChecksumError(
            f"expected CRC32C {expected}, got {found}; remove the member crc32c after an edit",
            path=path,
        )
