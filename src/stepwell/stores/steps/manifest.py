"""Sums of the rows, block by block, so that damage is found and named.

`manifest.json` is written after the commit that it describes. Where it is behind, the rows
that it does not cover are covered by the next append; readers never need it.
"""

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.errors import FormatError, VersionError
from stepwell.files.atomic import write_file
from stepwell.files.npy import dtype_to_json
from stepwell.stores.steps.layout import MANIFEST, VERSION

__all__ = ["BLOCK_BYTES", "Manifest"]

FORMAT = "stepwell-steps"
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
        """Continue the sums with the bytes that follow."""
        while len(data):
            inside = self.covered % BLOCK_BYTES
            if inside == 0:
                self.blocks.append(0)
            part = data[: BLOCK_BYTES - inside]
            self.blocks[-1] = _core.crc32c(part, self.blocks[-1])
            self.covered += len(part)
            data = data[len(part) :]

    def write(self, root: Path, dtype: np.dtype[Any], rows: int, runs: int) -> None:
        self.rows, self.runs = rows, runs
        text = {
            "format": FORMAT,
            "version": VERSION,
            "dtype": dtype_to_json(dtype),
            "rows": rows,
            "runs": runs,
            "created": self.created,
            "block_bytes": BLOCK_BYTES,
            "blocks": [f"{crc:08x}" for crc in self.blocks],
        }
        write_file(root / MANIFEST, json.dumps(text, indent=1).encode() + b"\n")

    @classmethod
    def read(cls, root: Path, row_bytes: int) -> "Manifest | None":
        """The manifest of a dataset; None where there is none, or an older program's."""
        path = root / MANIFEST
        try:
            text = json.loads(path.read_bytes())
            if not isinstance(text, dict) or text.get("format") != FORMAT:
                return None
            if text["version"] != VERSION:
                raise VersionError(
                    f"expected version {VERSION}, got {text['version']!r}", path=str(path)
                )
            rows, runs = text["rows"], text["runs"]
            blocks = [int(crc, 16) for crc in text["blocks"]]
            if type(rows) is not int or type(runs) is not int:
                raise ValueError(f"{rows!r} rows of {runs!r} runs")
            if text["block_bytes"] != BLOCK_BYTES:
                raise ValueError(f"blocks of {text['block_bytes']!r} bytes")
            covered = rows * row_bytes
            if rows < 0 or len(blocks) != -(-covered // BLOCK_BYTES):
                raise ValueError(f"{len(blocks)} blocks for {rows} rows")
            if not all(0 <= crc < 1 << 32 for crc in blocks):
                raise ValueError("a CRC32C has 32 bits")
            return cls(str(text["created"]), rows, runs, covered, blocks)
        except FileNotFoundError:
            return None
        except VersionError:
            raise
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise FormatError(f"not a manifest: {error!r}", path=str(path)) from None
