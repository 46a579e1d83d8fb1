"""Out of a record store, into whichever format was asked for."""

from collections.abc import Callable
from pathlib import Path

from stepwell.converters.formats import Target
from stepwell.converters.outgoing import Outgoing
from stepwell.converters.parts import PartFolder
from stepwell.stores import RecordReader

__all__ = ["write_from"]

Progress = Callable[[int, int], None]


def write_from(
    path: Path,
    target: Path,
    to: Target,
    field: str | None,
    part_bytes: int,
    *,
    overwrite: bool,
    on_progress: Progress,
) -> tuple[int, int]:
    """Write all records; return how many there are, and how many were written before."""
    with RecordReader.open(path) as store:
        source = Outgoing.of(store, path, field)
        if to == "npz" or (to == "parquet" and target.suffix == ".parquet"):
            if target.is_dir() or (target.exists() and not overwrite):
                raise FileExistsError(f"{target} exists; overwrite replaces it")
            target.parent.mkdir(parents=True, exist_ok=True)
            if to == "npz":
                from stepwell.converters.npz import write_npz

                write_npz(source, target, on_progress)
            else:
                from stepwell.converters.parquet import write_parquet

                write_parquet(source, target, on_progress)
            return source.total, 0

        resumed = -1

        def told(done: int, total: int) -> None:
            nonlocal resumed
            resumed = done if resumed < 0 else resumed  # the first call says where it begins
            on_progress(done, total)

        about = {**source.identity(), "to": to, "part_bytes": part_bytes}
        folder = PartFolder(target, about, overwrite=overwrite)
        with folder:
            _write(source, folder, to, part_bytes, told)
        return source.total, max(resumed, 0)


def _write(
    source: Outgoing, folder: PartFolder, to: Target, part_bytes: int, on_progress: Progress
) -> None:
    if to == "npy":
        from stepwell.converters.npy import write_npy

        folder.finish_file(write_npy(source, folder, on_progress))
        return
    if to == "arrayrecord":
        from stepwell.converters.arrayrecord import write_arrayrecord

        write_arrayrecord(source, folder, part_bytes, on_progress)
    elif to == "parquet":
        from stepwell.converters.parquet import write_parquet_parts

        write_parquet_parts(source, folder, part_bytes, on_progress)
    else:
        from stepwell.converters.folder import write_folder

        write_folder(source, folder, on_progress)
    folder.finish_folder()
