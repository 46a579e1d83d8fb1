"""Checksums of the rows, block by block, so that damage is found and named.

`manifest.json` is written after the commit that it describes. Where it is behind, the rows
that it does not cover are covered by the next append; readers never need it.
"""

import json
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.files.document import Document, whole_number
from stepwell.files.npy import dtype_to_json
from stepwell.files.regular import read_inside
from stepwell.stores.steps.layout import MANIFEST, VERSION

DOCUMENT = Document(MANIFEST, "stepwell-steps", VERSION)
BLOCK_BYTES = 1 << 26


@dataclass
class Manifest:
    """CRC32C of every 64 MiB of the rows, as one stream of bytes whatever files they are in."""

    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    rows: int = 0
    runs: int = 0
    covered: int = 0
    """Bytes in the blocks so far; the last block may be short."""
    blocks: list[int] = field(default_factory=list)

    def add(self, data: NDArray[np.uint8]) -> None:
        """Continue the checksums with the bytes that follow."""
        while len(data):
            inside = self.covered % BLOCK_BYTES
            if inside == 0:
                self.blocks.append(0)
            part = data[: BLOCK_BYTES - inside]
            self.blocks[-1] = _core.crc32c(part, self.blocks[-1])
            self.covered += len(part)
            data = data[len(part) :]

    def copy(self) -> "Manifest":
        """The same as it is now, whatever is added."""
        return replace(self, blocks=[*self.blocks])

    def write(self, root: Path, dtype: np.dtype[Any], rows: int, runs: int) -> None:
        """Replace the file by one for these rows and runs."""
        self.rows, self.runs = rows, runs
        content = {
            "dtype": dtype_to_json(dtype),
            "rows": rows,
            "runs": runs,
            "created": self.created,
            "block_bytes": BLOCK_BYTES,
            "blocks": [f"{crc:08x}" for crc in self.blocks],
        }
        DOCUMENT.write(root, content)

    @classmethod
    def read(cls, root: Path, row_bytes: int) -> "Manifest | None":
        """The manifest of a dataset; None where there is none, or another program's."""
        try:
            data = read_inside(root, MANIFEST, DOCUMENT.max_bytes)
        except FileNotFoundError:
            return None
        if _is_of_others(data):
            return None
        with DOCUMENT.parsing_bytes(data, str(root / MANIFEST)) as text:
            if text["block_bytes"] != BLOCK_BYTES:
                raise ValueError(f"expected {BLOCK_BYTES=}, got {text['block_bytes']!r}")
            rows, runs = (whole_number(text[name], 1 << 62) for name in ("rows", "runs"))
            blocks = [whole_number(int(crc, 16), 1 << 32) for crc in text["blocks"]]
            covered = rows * row_bytes
            if len(blocks) != (expected := -(-covered // BLOCK_BYTES)):
                raise ValueError(f"expected {expected} blocks for {rows} rows, got {len(blocks)}")
            return cls(str(text["created"]), rows, runs, covered, blocks)


def _is_of_others(data: bytes) -> bool:
    """Whether it is JSON, but not a document of ours."""
    try:
        text = json.loads(data)
    except (ValueError, RecursionError):
        return False
    return not isinstance(text, dict) or text.get("format") != DOCUMENT.format
