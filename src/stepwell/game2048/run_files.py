"""Directories of run files: finding them, and turning old ones into new ones."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from stepwell.errors import FormatError
from stepwell.files.atomic import write_file
from stepwell.files.regular import open_named
from stepwell.game2048.runs import Run
from stepwell.store import Progress

R = TypeVar("R")

SUFFIXES = (".a2run", ".a2run2")

Files = list[tuple[Path, int]]
"""Paths, and how long each file was when it was found."""


def find_runs(directory: str | os.PathLike[str]) -> Files:
    """Return every run file below a directory with its size, ordered by path.

    Raises `FileNotFoundError` when there is none.
    """
    root = os.fsencode(directory)
    os.stat(directory)  # a missing one is named as it was given
    found: list[tuple[bytes, int]] = []
    folders = [root]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif os.path.splitext(entry.name)[1].decode("latin-1") in SUFFIXES:
                    found.append((entry.path, _size(entry)))
    if not found:
        raise FileNotFoundError(f"no {' or '.join(SUFFIXES)} file in {os.fsdecode(root)}")
    found.sort(key=lambda file: file[0].split(b"/"))
    return [(Path(os.fsdecode(path)), size) for path, size in found]


def _size(entry: os.DirEntry[bytes]) -> int:
    """The size of a plain file, otherwise 0: whoever reads it will see what is wrong with it."""
    try:
        return entry.stat().st_size if entry.is_file() else 0
    except OSError:
        return 0


def read_run(path: Path, size: int) -> bytes:
    """The bytes of a file that has this size, and that nobody is writing to."""
    file = open_named(path)
    try:
        before = os.fstat(file)
        data = os.pread(file, size, 0)
        while len(data) < size and (more := os.pread(file, size - len(data), len(data))):
            data += more
        after = os.fstat(file)
    except OSError as error:
        error.filename = str(path)  # a read only knows its descriptor
        raise
    finally:
        os.close(file)
    if len(data) != after.st_size or before.st_mtime_ns != after.st_mtime_ns:
        message = f"the file changed: {size} bytes when it was found, now {after.st_size}"
        raise FormatError(message, path=str(path))
    return data


def attempt(work: Callable[..., R], *args: Any, **options: Any) -> R | Exception:
    """The result of a call, or the error about a run or its file."""
    try:
        return work(*args, **options)
    except (FormatError, OSError) as error:
        return error


@dataclass
class RunsReport:
    """The runs that were left out, and why."""

    skipped: list[tuple[Any, str]] = field(default_factory=list, kw_only=True)
    """Files or names of runs that were left out, each with the reason."""

    def skip(self, name: Any, error: Exception, skip_bad: bool) -> None:
        """Leave a run out, or raise what is wrong with it."""
        if not skip_bad:
            raise error
        self.skipped.append((name, str(error)))


@dataclass
class MigrateReport(RunsReport):
    """The result of migrating the files of a directory."""

    migrated: int = 0
    """Runs that were v1 and are v2 now."""
    copied: int = 0
    """Runs that were v2 already."""
    there: int = 0
    """Runs whose new file was there, with the very same bytes."""


def migrate_runs(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    skip_bad: bool = False,
    progress: Progress | None = None,
) -> MigrateReport:
    """Write every run of a file or directory as v2 below `out`, under the same name.

    The sources are left alone. A file that is no run stops it with an error that names the
    file, or is left out and listed when `skip_bad` is True. The same call again continues
    where it was interrupted. Raises `FileExistsError` rather than overwrite something else.
    """
    root, target = Path(source), Path(out)
    if root.is_file():
        pairs = [(root, target if target.suffix == ".a2run2" else target / root.name)]
    else:
        pairs = [(path, target / path.relative_to(root)) for path, _ in find_runs(root)]
        if target != root:  # what an earlier call has put below the source is no source
            pairs = [(path, new) for path, new in pairs if not path.is_relative_to(target)]
    pairs = [(path, new.with_suffix(".a2run2")) for path, new in pairs]
    claimed: dict[Path, Path] = {}
    for path, new in pairs:
        other = path if new == path else claimed.setdefault(new, path)
        if other != path:
            raise FileExistsError(f"{other} and {path} would both become {new}")
    report = MigrateReport()
    for done, (path, new) in enumerate(pairs, 1):
        found = attempt(_both, path)
        if isinstance(found, Exception):
            report.skip(path, found, skip_bad)
        elif new.exists():
            if new.read_bytes() != found[1]:
                raise FileExistsError(f"{new} exists and is not what {path} would become")
            report.there += 1
        else:
            new.parent.mkdir(parents=True, exist_ok=True)
            write_file(new, found[1])
            report.migrated += found[0] != found[1]
            report.copied += found[0] == found[1]
        if progress is not None:
            progress(done, len(pairs))
    return report


def _both(path: Path) -> tuple[bytes, bytes]:
    """The bytes of a run, and those of the same run as v2."""
    payload = read_run(path, path.stat().st_size)
    run = Run.from_bytes(payload, path=path)
    return payload, run.to_bytes() if payload.startswith(b"A2T1") else payload
