"""Files of Arrow's own; `stepwell.arrow` knows what their columns are as fields."""

import os
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.arrow import fields_of, library, notes_of, record_batch, schema_of, values_of
from stepwell.batches import in_order, rows_of
from stepwell.errors import SchemaError
from stepwell.files import extras
from stepwell.files.atomic import new_file
from stepwell.formats.streams import Progress, Stream
from stepwell.source import Batch, Source

if TYPE_CHECKING:
    import pyarrow as pa

_MAGIC = b"ARROW1"


def arrow_damage(path: Path) -> Any:
    """Arrow's error about a damaged file, as a `FormatError`."""
    return extras.damage_in(path, library().ArrowException, EOFError, OSError)


class Tables(Stream):
    """The rows of files with one schema, one file after the other."""

    def __init__(
        self,
        path: Path,
        files: Sequence[Path],
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        self._files = list(files)
        self._counts = []
        schema: pa.Schema = None
        for file in files:
            found, count = self._look(file)
            self._counts.append(count)
            if schema is None:
                schema = found.remove_metadata()
            elif not found.remove_metadata().equals(schema):
                raise SchemaError(f"{file}: expected the columns of {files[0].name}, got others")
        try:
            fields = fields_of(schema)
        except SchemaError as error:
            raise SchemaError(f"{path}: {error}") from None
        known = {**notes_of(schema), **(attributes or {})}
        super().__init__(str(path), fields, sum(self._counts), known)

    @abstractmethod
    def _look(self, file: Path) -> "tuple[pa.Schema, int]":
        """The schema of a file and its number of rows."""

    @abstractmethod
    def _tables(
        self, file: Path, skip: int, names: list[str]
    ) -> "Iterator[tuple[int, pa.RecordBatch]]":
        """Rows of a file, behind the number of the first of them, from row `skip` on or from
        somewhat before: the rest is not looked at."""

    def _from(self, first: int, names: Sequence[str]) -> Iterator[Batch]:
        start = 0
        for file, count in zip(self._files, self._counts, strict=True):
            skip = max(0, first - start)
            if skip < count:
                for at, rows in self._tables(file, skip, list(names)):
                    part = rows.slice(max(0, skip - at))
                    if len(part):
                        yield self._batch(file, part.select(list(names)), start + max(at, skip))
            start += count

    def _batch(self, file: Path, rows: "pa.RecordBatch", first: int) -> Batch:
        try:
            return {
                name: values_of(name, array, self.schema[name], first)
                for name, array in zip(rows.schema.names, rows.columns, strict=True)
            }
        except SchemaError as error:
            raise SchemaError(f"{file}: {error}") from None


class ArrowTables(Tables):
    """The rows of Arrow's own files, in the format of files or of streams."""

    def _look(self, file: Path) -> "tuple[pa.Schema, int]":
        file.stat()
        # Of a map only the headers are read.
        with arrow_damage(file), library().memory_map(str(file)) as opened:
            schema, found = _batches_in(opened)
            return schema, sum(len(rows) for rows in found)

    def _tables(
        self, file: Path, skip: int, names: list[str]
    ) -> "Iterator[tuple[int, pa.RecordBatch]]":
        begin = 0
        with arrow_damage(file), library().OSFile(str(file)) as opened:
            for rows in _batches_in(opened)[1]:
                count = rows_of(rows.nbytes // max(1, len(rows)))
                for at in range(0, len(rows), count):
                    yield begin + at, rows.slice(at, count)
                begin += len(rows)


class ArrowSource(ArrowTables):
    """The rows of an Arrow file."""

    kind = "arrow"
    noun = "an Arrow file"

    def __init__(self, path: str | os.PathLike[str], fields: Sequence[str] | None = None) -> None:
        super().__init__(Path(path), [Path(path)])


def _batches_in(opened: Any) -> "tuple[pa.Schema, Iterator[pa.RecordBatch]]":
    ipc = library().ipc
    is_file = opened.read(len(_MAGIC)) == _MAGIC
    opened.seek(0)
    if not is_file:
        stream = ipc.open_stream(opened)
        return stream.schema, iter(stream)
    reader = ipc.open_file(opened)
    return reader.schema, map(reader.get_batch, range(reader.num_record_batches))


def write(source: Source, path: Path, *, progress: Progress) -> None:
    """Write an Arrow file. After a kill this begins again."""
    schema, ipc = schema_of(source), library().ipc
    with new_file(path, follow=True) as out, ipc.new_file(out, schema) as writer:
        for batch in in_order(source, progress=progress):
            writer.write_batch(record_batch(batch, schema))
