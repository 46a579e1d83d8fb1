"""Folders of ArrayRecord files. They are read by `ArrayRecordSource`, and written from one field;
rows of fixed shape are written so that it knows what they are.
"""

from collections.abc import Iterator
from pathlib import Path

from stepwell.errors import SchemaError
from stepwell.files.atomic import write_file
from stepwell.files.npy import dtype_to_json
from stepwell.formats.parts import PART_BYTES, Part, write_series
from stepwell.formats.streams import Progress
from stepwell.source import Batch, Source
from stepwell.stores.arrayrecord import ABOUT, SUFFIX, library


def write_folder(
    source: Source, part: Part, *, progress: Progress, part_bytes: int = PART_BYTES
) -> None:
    """Write the rows of one field, a record each."""
    if len(source.schema) != 1:
        raise SchemaError(
            f"a record of ArrayRecord is one field; choose one of {', '.join(source.schema)}"
        )
    ((name, field),) = source.schema.items()
    if field.ragged and field.kind == "array" and field.row_bytes != 1:
        raise SchemaError(f"{name!r} is {field}: expected bytes, text or a fixed shape")
    try:
        dtype = dtype_to_json(field.dtype)
    except ValueError as error:  # fields that lie over one another
        raise SchemaError(f"{name!r}: {error}") from None
    module = library()

    def write_part(path: Path, batches: Iterator[Batch]) -> None:
        try:
            writer = module.ArrayRecordWriter(str(path), "group_size:1")
            for batch in batches:
                values = batch[name]
                for i in range(len(values)):
                    if field.ragged:
                        low, high = values.offsets[i : i + 2]
                        writer.write(values.values[low:high].tobytes())
                    else:  # a slice: a single value would be in native byte order
                        writer.write(values[i : i + 1].tobytes())
            writer.close()
        except RuntimeError as error:  # how the library reports what the system refused
            raise OSError(f"{path}: ArrayRecord: {error}") from error

    write_series(source, part, SUFFIX, write_part, part_bytes, progress)
    if not field.ragged:
        about = {"rows": len(source), "dtype": dtype, "shape": field.shape}
        write_file(part.path / ABOUT.name, ABOUT.dump(about) + b"\n", follow=False)
