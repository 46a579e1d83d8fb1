"""A file of rows on its way to a bucket: kept in a temporary file until it is whole."""

import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.files.atomic import write_all
from stepwell.files.checked import Growing, header_bytes as checksum_header
from stepwell.files.puts import WritableFiles


class Staged:
    """Rows behind a header, which comes last, and the checksums of their blocks.

    The file has no name, so nothing is left of it, however the process ends.
    """

    def __init__(self, head_bytes: int) -> None:
        self.head_bytes, self.payload_bytes = head_bytes, 0
        self.crc = 0
        """Of the rows."""
        self._blocks = Growing()
        self._file = tempfile.TemporaryFile(prefix="stepwell-")  # noqa: SIM115
        self._where = Path(tempfile.gettempdir())

    def write(self, data: NDArray[np.uint8], at: int) -> None:
        """Write bytes of rows from byte `at` of them on; until they are settled, others may be
        written in their place."""
        write_all(self._file.fileno(), data, self.head_bytes + at, self._where)

    def settle(self, data: NDArray[np.uint8]) -> None:
        """These bytes were written behind those that are settled."""
        self._blocks.add(data, self.payload_bytes)
        self.crc = _core.crc32c(data, self.crc)
        self.payload_bytes += len(data)

    @property
    def size(self) -> int:
        """Of the whole file."""
        return self.head_bytes + self.payload_bytes

    def upload(self, files: WritableFiles, name: str, checksums: str, header: bytes) -> None:
        """Put the whole file, and its checksums, under names that nobody else uses."""
        assert len(header) == self.head_bytes
        self._file.truncate(self.size)  # rows behind were never settled
        write_all(self._file.fileno(), np.frombuffer(header, np.uint8), 0, self._where)
        files.put(checksums, checksum_header(self._blocks.block_bytes) + bytes(self._blocks.rest))
        files.put(name, self._file)

    def close(self) -> None:
        self._file.close()
