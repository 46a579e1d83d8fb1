"""Records spread over files `data-00000`, `data-00001`, … of a folder, each whole or not there."""

from collections.abc import Callable, Iterator
from pathlib import Path

from stepwell.converters.incoming import size_of
from stepwell.converters.outgoing import Outgoing
from stepwell.converters.parts import PartFolder
from stepwell.files.atomic import sync_path
from stepwell.source import Batch

__all__ = ["write_series"]

WritePart = Callable[[Path, Iterator[Batch]], None]
"""Makes a file of the batches, all of which it takes."""


def write_series(
    source: Outgoing,
    folder: PartFolder,
    suffix: str,
    write_part: WritePart,
    part_bytes: int,
    on_progress: Callable[[int, int], None],
) -> None:
    """Write files of about `part_bytes`, going on behind those that are finished.

    A store without records becomes one file without any.
    """
    counts: list[int] = folder["parts"] or []
    done = sum(counts)
    on_progress(done, source.total)
    while done < source.total or not counts:
        taken = 0

        def part(first: int = done) -> Iterator[Batch]:
            nonlocal taken
            size = 0
            for batch in source.batches(first, part_bytes):
                yield batch
                count = len(next(iter(batch.values())))
                taken += count
                size += size_of(batch)
                on_progress(first + taken, source.total)
                if size >= part_bytes:
                    return

        name = f"data-{len(counts):05d}{suffix}"
        beside = folder.path / f".{name}.tmp"
        write_part(beside, part())
        sync_path(beside)
        beside.replace(folder.path / name)
        sync_path(folder.path)
        counts.append(taken)
        done += taken
        folder.save(parts=counts)
