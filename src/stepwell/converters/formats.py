"""Which format a path is of, or is to be of."""

import json
from pathlib import Path
from typing import Literal, get_args

from stepwell.converters.huggingface import is_huggingface
from stepwell.errors import FormatError

__all__ = ["Array", "Format", "Target", "array_format", "format_of", "is_store", "target_format"]

Target = Literal["npy", "npz", "parquet", "arrayrecord", "folder"]
"""What a record store can be made into."""

Array = Literal["npy", "npz", "safetensors"]
"""What shards can be made of, and into."""

Format = Literal["records", "huggingface", "shards"] | Array | Target

_FILES: dict[str, Format] = {
    ".npy": "npy",
    ".npz": "npz",
    ".parquet": "parquet",
    ".safetensors": "safetensors",
    ".shard": "shards",
}
_TARGETS: dict[str, Target] = {
    ".npy": "npy",
    ".npz": "npz",
    ".parquet": "parquet",
    ".array_record": "arrayrecord",
}


def is_store(path: Path) -> bool:
    """Whether a directory is a record store."""
    try:
        return bool(json.loads((path / "meta.json").read_bytes())["format"] == "zrecord")
    except (OSError, ValueError, TypeError, KeyError):
        return False


def _is_of_records(path: Path) -> bool:
    return path.suffix in (".parquet", ".arrow", ".array_record")


def format_of(path: Path) -> Format:
    """What is at a path. Raises `FileNotFoundError`, or `FormatError` for anything else."""
    path.stat()
    if path.is_file() and path.suffix in _FILES:
        return _FILES[path.suffix]
    if path.is_dir():
        if is_store(path):
            return "records"
        if is_huggingface(path):
            return "huggingface"
        if any(path.glob("*.shard")):
            return "shards"
        if any(path.glob("*.array_record")):
            return "arrayrecord"
        if any(path.glob("*.parquet")):
            return "parquet"
        inside = sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))
        for inner in inside:
            if (
                is_store(inner)
                or is_huggingface(inner)
                or any(map(_is_of_records, inner.iterdir()))
            ):
                raise FormatError(
                    f"expected records, or a folder of files for each class; "
                    f"{inner.name} has records of its own: convert that",
                    path=str(path),
                )
        if inside:
            return "folder"
    raise FormatError(
        "expected a record store, a .npy, .npz, .parquet or .safetensors file, or a directory of "
        ".shard, .array_record or .parquet files, of a Hugging Face dataset or of a folder for "
        "each class",
        path=str(path),
    )


def target_format(path: Path, to: str | None) -> Target:
    """What is to be written to a path. Raises `ValueError` when neither says it."""
    told = _TARGETS.get(path.suffix)
    if to is None:
        if told is None:
            raise ValueError(
                f"{path}: expected a name that ends in {', '.join(_TARGETS)}, "
                f"or to be told the format: {', '.join(get_args(Target))}"
            )
        return told
    for known in get_args(Target):
        if to == known:
            if told in ("npy", "npz", "parquet") and told != known:
                raise ValueError(f"{path}: the name says {told}, asked for {known}")
            if known in ("npy", "npz") and told != known:
                raise ValueError(f"{path}: expected a name that ends in .{known}")
            return known  # type: ignore[no-any-return]
    raise ValueError(f"expected one of {', '.join(get_args(Target))}, got {to!r}")


def array_format(path: Path, to: str | None) -> Array:
    """Which array shards are to be written to. Raises `ValueError` when that is none."""
    for known in get_args(Array):
        if path.suffix == f".{known}" and to in (None, known):
            return known  # type: ignore[no-any-return]
    raise ValueError(
        f"{path}: of shards there can be made a .npy, .npz or .safetensors file"
        + (f", not {to}" if to else "")
    )
