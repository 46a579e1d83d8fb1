"""One field of floats into activation shards."""

from pathlib import Path

from stepwell.batches import attributes_of, in_order
from stepwell.errors import SchemaError
from stepwell.files.remote import is_url
from stepwell.formats.parts import PART_BYTES
from stepwell.formats.streams import Progress
from stepwell.source import Source
from stepwell.stores import ShardWriter
from stepwell.writer import Mode


def fill(
    source: Source,
    path: Path | str,
    *,
    progress: Progress,
    append: bool = False,
    part_bytes: int = PART_BYTES,
) -> None:
    """Write the rows that are not in whole shards yet.

    float64 is rounded to float32, which is what a shard can hold. With `append` all rows are added
    to those that are there; each full shard is a commit. In a bucket all of it is one.
    """
    name, width, kind = rows_of(source)
    mode: Mode = "x" if is_url(path) and not append else "a"
    with ShardWriter(path, width, kind, mode=mode, shard_bytes=part_bytes) as writer:
        writer._in_one_commit = is_url(path)
        for batch in in_order(source, 0 if append else writer.rows, progress):
            writer.append(batch[name])


def rows_of(source: Source) -> tuple[str, int, str]:
    """The field that is written, how wide it is, and the dtype that shards keep it in."""
    if len(source.schema) != 1:
        raise SchemaError(f"shards have one field; choose one of {', '.join(source.schema)}")
    ((name, field),) = source.schema.items()
    if field.ragged or field.dtype.kind != "f" or len(field.shape) != 1 or not field.shape[0]:
        raise SchemaError(f"{name!r} is {field}: shards have rows of floats")
    if not len(source):
        raise SchemaError(f"{name!r} has no rows, shards have some")
    kind = "float16" if field.dtype.itemsize == 2 else "float32"
    if name in attributes_of(source).get("bfloat16", ()):
        kind = "bfloat16"
    return name, field.shape[0], kind
