"""Import and export: each format is read into a source, or written from any that it can hold.

So there are as many readers and writers as there are formats, never one for each pair;
`stepwell.convert` puts two of them together. `FORMATS` lists them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from stepwell.formats.runs import arrays
from stepwell.store import Store

__all__ = ["BY_NAME", "FORMATS", "Format", "arrays", "format_at"]


@dataclass(frozen=True)
class Format:
    """A format: its name, its suffixes, its reader and writer.

    `reader` and the writers are names in the format's module, which is imported when it is used.
    """

    name: str
    suffixes: tuple[str, ...] = ()
    """Files whose names end so are of this format."""
    inside: str = ""
    """Folders with files whose names match are of this format."""
    marks: tuple[str, ...] = ()
    """Folders that have one of these files are of this format."""
    reader: str = ""
    """The source, made of a path and the fields that are wanted, or None for all."""
    file_writer: str = ""
    """Writes a source to a file, from the start after a kill."""
    part_writer: str = ""
    """Writes a source to a file, or a folder where there is `inside`; goes on after a kill."""

    def recognizes(self, path: Path) -> bool:
        """Whether this path is of the format, by names alone."""
        if path.is_dir():
            if any((path / mark).is_file() for mark in self.marks):
                return True
            return bool(self.inside) and any(path.glob(self.inside))
        return path.suffix.lower() in self.suffixes

    def read(self, path: Any, fields: list[str] | None = None) -> Store:
        """The rows at a path."""
        if not self.reader:
            raise ValueError(f"{path} is {self.name}, which is written but not read")
        source: Store = self._get(self.reader)(path, fields)
        return source

    def writer(self, path: Path | None) -> tuple[Callable[..., Any], bool]:
        """The function that writes to a path, and whether it goes on after a kill (see `parts`)."""
        in_file = path is None or path.suffix.lower() in self.suffixes
        if self.file_writer and (in_file or not self.part_writer):
            return self._get(self.file_writer), False
        if not self.part_writer:
            raise ValueError(f"{self.name} is read but not written")
        return self._get(self.part_writer), True

    def _get(self, name: str) -> Any:
        return getattr(import_module(f"stepwell.formats.{self.name}"), name)


FORMATS: tuple[Format, ...] = (
    Format("npy", (".npy",), part_writer="write"),
    Format("npz", (".npz",), reader="NpzSource", file_writer="write"),
    Format(
        "parquet",
        (".parquet",),
        inside="*.parquet",
        reader="ParquetSource",
        file_writer="write",
        part_writer="write_folder",
    ),
    Format("arrow", (".arrow", ".feather"), reader="ArrowSource", file_writer="write"),
    Format(
        "huggingface",
        marks=("dataset_info.json", "dataset_dict.json"),
        reader="HuggingFaceSource",
    ),
    Format(
        "arrayrecord",
        (".array_record",),
        inside="*.array_record",
        part_writer="write_folder",
    ),
    Format("safetensors", (".safetensors",), reader="SafetensorsSource", part_writer="write"),
    Format("hdf5", (".hdf5", ".h5"), reader="Hdf5Source"),
    Format("minari", marks=("data/metadata.json",), reader="MinariSource", file_writer="write"),
    Format("jsonl", (".jsonl",), reader="JsonlSource", file_writer="write"),
    Format("zrecord", inside="chunk/[0-9]*.zr", reader="ZrecordSource"),
    Format("video", (".gif", ".mp4"), file_writer="write"),
    # The last one: any folder of folders looks like it.
    Format("folder", inside="[!.]*/", reader="FolderSource", part_writer="write_folder"),
)
"""`.npy` files and ArrayRecord folders are read by stores (`ArraySource`, `ArrayRecordSource`)."""


BY_NAME = {known.name: known for known in FORMATS}


def format_at(path: Path) -> Format | None:
    """The format of what is at a path, by names alone."""
    return next((known for known in FORMATS if known.recognizes(path)), None)
