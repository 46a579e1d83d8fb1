"""A toy store, as CONTRIBUTING has it: the smallest one that sits both exams.

A folder with `numbers.bin`, whole numbers one behind the other, and `numbers.json`, which says how
many of them were committed, and their checksum.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

from stepwell import _core
from stepwell.errors import ChecksumError, FormatError
from stepwell.files.atomic import sweep, write_all
from stepwell.files.document import Document, whole_number
from stepwell.files.regular import check_inside, open_inside
from stepwell.source import Batch, Field, Rows, Schema
from stepwell.store import Progress, Report, Store
from stepwell.writer import Mode, Writer, exclusive
from tests.contract import Expected, SourceContract
from tests.writer_contract import WriterContract, WriterKit

DATA, LOCK = "numbers.bin", "writer.lock"
ABOUT = Document("numbers.json", "toy-numbers", 1, checksummed=True)


def committed(root: Path) -> tuple[int, int]:
    """How many numbers there are, and their CRC32C."""
    with ABOUT.parsing(root) as text:
        return whole_number(text["rows"], 1 << 48), whole_number(text["crc"], 1 << 32)


class NumberReader(Store):
    kind, noun = "numbers", "a store of numbers"

    def __init__(self, path: str | os.PathLike[str], *, at: tuple[int, int] | None = None) -> None:
        self._root = Path(path).absolute()
        self._at = rows, crc = committed(self._root) if at is None else at
        with os.fdopen(open_inside(self._root, DATA), "rb") as file:
            data = file.read(8 * rows)
        where = str(self._root / DATA)
        if len(data) < 8 * rows:
            message = f"truncated: expected {8 * rows} bytes, got {len(data)}"
            raise FormatError(message, path=where, offset=len(data))
        self._data = np.frombuffer(data, "<i8")
        found = _core.crc32c(self._data.view(np.uint8))
        if found != crc:
            raise ChecksumError(f"expected CRC32C {crc:08x}, got {found:08x}", path=where, offset=0)

    @classmethod
    def recognizes(cls, path: Path) -> bool:
        return (path / ABOUT.name).exists()

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.path, self._at)

    @property
    def path(self) -> str:
        return str(self._root)

    @property
    def schema(self) -> Schema:
        return {"number": Field(np.dtype("<i8"))}

    def __len__(self) -> int:
        return self._at[0]

    def _fill(self, rows: Rows, out: Batch) -> None:
        np.take(self._data, rows, out=out["number"])

    def refresh(self) -> bool:
        self._check_open()
        before = self._at
        self.__init__(self._root)  # type: ignore[misc]
        return self._at != before

    def _verified(self, quick: bool, progress: Progress) -> Report:
        NumberReader(self._root, at=self._at)  # what that raises is what is wrong
        progress(1, 1)
        return Report(self.kind, self.path, (), ("every number",))


def _again(path: str, at: tuple[int, int]) -> NumberReader:
    return NumberReader(path, at=at)


class NumberWriter(Writer):
    noun = NumberReader.noun
    _file = -1

    def __init__(self, path: str | os.PathLike[str], *, mode: Mode = "x") -> None:
        goes_on = self._begin(path, LOCK, mode)
        with self._opening():
            sweep(self._root, ABOUT.name)
            check_inside(self._root, ABOUT.name)
            self._rows, self._crc = committed(self._root) if goes_on else (0, 0)
            self._file = open_inside(self._root, DATA, os.O_RDWR | os.O_CREAT)
            if goes_on:
                NumberReader(self._root)  # nothing is added to what is damaged
            os.ftruncate(self._file, 8 * self._rows)  # what was not committed
            self._new: list[NDArray[Any]] = []

    @classmethod
    def _holds_commits(cls, root: Path) -> bool:
        return (root / ABOUT.name).exists()

    @classmethod
    def _is_left_over(cls, path: Path) -> bool:
        return path.name in (DATA, LOCK) or path.name.startswith(f".{ABOUT.name}.")

    @exclusive
    def append(self, numbers: ArrayLike) -> None:
        self._new.append(np.array(numbers, "<i8"))

    def _commit(self) -> None:
        data = np.concatenate([np.empty(0, "<i8"), *self._new]).view(np.uint8)
        if not len(data):
            return
        with self._at_risk():
            write_all(self._file, data, 8 * self._rows, self._root / DATA)
            os.fsync(self._file)
            self._rows, self._crc = self._rows + len(data) // 8, _core.crc32c(data, self._crc)
            ABOUT.write(self._root, {"rows": self._rows, "crc": self._crc})
            self._new = []

    def _rollback(self) -> None:
        self._new = []

    def _release(self) -> None:
        if self._file >= 0:
            os.close(self._file)


class Kit(WriterKit):
    store, writer, small_disk = NumberReader, NumberWriter, "64k"

    def open(self, path: Path, mode: Any = "x") -> NumberWriter:
        return NumberWriter(path, mode=mode)

    def append(self, writer: NumberWriter, stamp: int) -> None:
        writer.append([stamp] * 3)

    def stamps(self, store: NumberReader) -> list[int]:
        found = store.take(np.arange(len(store)))["number"].reshape(-1, 3)
        assert (found == found[:, :1]).all()
        return [int(stamp) for stamp in found[:, 0]]


KIT = Kit()


class TestWriter(WriterContract):
    kit = KIT


class TestReader(SourceContract):
    @pytest.fixture
    def expected(self) -> Expected:
        return {"number": np.arange(1, 61, dtype="<i8") ** 3}

    @pytest.fixture
    def source(self, expected: Expected, tmp_path: Path) -> NumberReader:
        with NumberWriter(tmp_path / "numbers") as writer:
            writer.append(expected["number"])
        return NumberReader.open(tmp_path / "numbers")
