"""Records of other formats into a record store, and arrays into shards; and out of them again.

convert("train.parquet", "train", compress="zstd")      a store of what is in a file
convert("train", "labels.npy", field="label")           a file of what is in a store
convert("acts.safetensors", "acts", to="shards")        shards of an array, and back

| format | at a path | in | out |
|---|---|---|---|
| npy | `a.npy` | yes | one field, or all if they are of fixed shape |
| npz | `a.npz` | yes | yes, from the start after a kill |
| parquet | `a.parquet` | yes | yes, from the start after a kill |
| parquet | a directory of `*.parquet` | yes | `to="parquet"` |
| arrayrecord | a directory of `*.array_record` | yes | one field |
| huggingface | a directory by `Dataset.save_to_disk` | yes | |
| folder | `root/<class>/<file>` | yes | `to="folder"` |
| safetensors | `a.safetensors` | to shards | of shards |
| shards | a directory of `*.shard` | to npy, npz, safetensors | `to="shards"`, of those |

One of both paths is a record store, or one is shards. Memory is a few batches of 8 MiB, however
large the source.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from stepwell.converters.formats import Format

__all__ = ["ConvertReport", "convert"]

PART_BYTES = 256 << 20
_NO_STORES = (".npy", ".npz", ".parquet", ".array_record", ".safetensors")


class ConvertReport(NamedTuple):
    """What was converted."""

    path: Path
    source_format: str
    target_format: str
    records: int
    resumed_at: int
    """The records that an earlier attempt had converted."""


def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    to: str | None = None,
    field: str | None = None,
    compress: str = "none",
    level: int | None = None,
    chunk_records: int = 8192,
    part_bytes: int = PART_BYTES,
    overwrite: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> ConvertReport:
    """Make a record store of `source`, or, if that is one, something else of it.

    The paths say what is meant; `to` does where the target is a directory. `compress`, `level` and
    `chunk_records` are those of the store that is made; `field` chooses one of the store that is
    read, or the array that shards are made of, and `part_bytes` is the size of each file where a
    directory of files is written.
    `on_progress` is called with the records that are done and all there are.

    After a kill or an error the same call goes on where it was, except to a `.npz` or a single
    `.parquet` file, which begin anew; a file never has its final name before it is whole. What is
    begun is in the store itself, or in `<target>.part`. Raises `FileExistsError` when `target` is
    finished, or of another source or other options; `overwrite` replaces it then, once the new
    one is whole: any file, and a record store or directory that a conversion has made, no other.
    """
    # Here, so that `import stepwell` need not know all formats.
    from stepwell.converters.formats import format_of, target_format

    given, made = Path(source), Path(target)
    told = on_progress or (lambda done, total: None)
    known = format_of(given)
    if "shards" in (known, to):
        return _with_shards(
            given,
            made,
            known,
            to,
            field,
            part_bytes,
            packed=compress != "none" or level is not None,
            overwrite=overwrite,
            on_progress=told,
        )
    if known == "records":
        from stepwell.converters.out import write_from

        if compress != "none" or level is not None:
            raise ValueError("compress is for a record store that is made; this one is read")
        wanted = target_format(made, to)
        records, resumed = write_from(
            given, made, wanted, field, part_bytes, overwrite=overwrite, on_progress=told
        )
        return ConvertReport(made, known, wanted, records, resumed)

    from stepwell.converters.into import fill_store, open_incoming

    if known == "safetensors":
        raise ValueError(f"{given} can become shards: say so, to='shards'")
    if to not in (None, "records") or made.suffix in _NO_STORES:
        raise ValueError(f"{given} is {known}, so {made} must be a record store: one of both is")
    if field is not None:
        raise ValueError("field chooses from a record store that is read; this one is made")
    incoming = open_incoming(given, known)
    resumed = fill_store(
        incoming,
        given,
        made,
        compress=compress,
        level=level,
        chunk_records=chunk_records,
        overwrite=overwrite,
        on_progress=told,
    )
    return ConvertReport(made, known, "records", incoming.total, resumed)


def _with_shards(
    source: Path,
    target: Path,
    known: "Format",
    to: str | None,
    field: str | None,
    part_bytes: int,
    *,
    packed: bool,
    overwrite: bool,
    on_progress: Callable[[int, int], None],
) -> ConvertReport:
    from stepwell.converters.formats import array_format
    from stepwell.converters.shards import fill_shards, write_from_shards

    if packed:
        raise ValueError("compress is for a record store that is made; shards are not packed")
    if known == "shards":
        if field is not None:
            raise ValueError("field chooses an array that shards are made of; shards have one")
        wanted = array_format(target, to)
        records, resumed = write_from_shards(
            source, target, wanted, overwrite=overwrite, on_progress=on_progress
        )
        return ConvertReport(target, known, wanted, records, resumed)
    if known not in ("npy", "npz", "safetensors"):
        raise ValueError(
            f"{source} is {known}; shards are made of a .npy, .npz or .safetensors file"
        )
    if target.suffix in _NO_STORES:
        raise ValueError(f"{target}: the name says {target.suffix[1:]}, asked for shards")
    records, resumed = fill_shards(
        source, known, target, field, part_bytes, overwrite=overwrite, on_progress=on_progress
    )
    return ConvertReport(target, known, "shards", records, resumed)
