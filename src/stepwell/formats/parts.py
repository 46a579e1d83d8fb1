"""The folder in which something is made that a kill must not undo.

`out.npy` is made in `out.npy.part`. A small file in there has what is being
converted and how far it got: the same call again goes on, a different call is refused. The
finished file gets its name by a rename; readers never see half of it.
"""

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Self

from stepwell.batches import count_of, in_order, size_of
from stepwell.errors import FormatError
from stepwell.files.atomic import make_folder, publish, sync_path, temporary_name, write_file
from stepwell.files.lock import WriterLock
from stepwell.formats.streams import Progress
from stepwell.source import Batch, Source

PART_BYTES = 256 << 20

_ABOUT = ".stepwell.json"
_LOCK = ".lock"
_MADE = "made"
_PIECES = "pieces"


class Part:
    """A folder beside `target`, locked, with what an earlier attempt left in it.

    `path` is where the thing itself is made. Raises `FileExistsError` when the folder is of another
    conversion, unless that is to be replaced; `BusyError` when another process is at work in it.
    """

    def __init__(self, target: Path, about: dict[str, Any], *, force: bool) -> None:
        self.target = target
        self._root = target.with_name(f"{target.name}.part")
        self.path = self._root / f"{_MADE}{target.suffix}"
        self.pieces = self._root / _PIECES
        """A folder for finished pieces, where several processes make the thing."""
        make_folder(self._root)
        self._lock = WriterLock(self._root / _LOCK)
        try:
            self._state = self._begun(about, force) or {"about": about}
            self.save()
        except BaseException:
            self._lock.release()
            raise

    def __getitem__(self, key: str) -> Any:
        """The value that was saved under a name; None for nothing."""
        return self._state.get(key)

    def save(self, **state: Any) -> None:
        """Keep how far it got, whatever happens next."""
        self._state.update(state)
        write_file(self._root / _ABOUT, json.dumps(self._state).encode() + b"\n", follow=False)

    def finish(self) -> None:
        """Give what was made the name of the target, and remove the folder."""
        old = temporary_name(self.target)
        if self.path.is_dir() and self.target.exists():
            self.target.rename(old)
        publish(self.path, self.target)
        if old.exists():
            shutil.rmtree(old)
        shutil.rmtree(self._root)
        self._lock.release()

    def discard(self) -> None:
        """Remove what was made."""
        shutil.rmtree(self.path, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        """Let others go on here, if there is something to go on with."""
        if self._lock.held and not self._has_some():
            shutil.rmtree(self._root)
        self._lock.release()

    def _has_some(self) -> bool:
        """Whether there is something to go on with."""
        return self.path.exists() or self.pieces.exists()

    def _begun(self, about: dict[str, Any], force: bool) -> dict[str, Any] | None:
        """The state that an earlier attempt saved; None without one, or to replace it."""
        found = _read(self._root / _ABOUT)
        left = [name for name in os.listdir(self._root) if name != _LOCK]
        if found is None and any(not name.endswith(".tmp") for name in left):
            raise FileExistsError(
                errno.EEXIST, "expected an unfinished conversion, got other files", str(self._root)
            )
        changed = "" if found is None else _difference(found["about"], about)
        if changed and not force:
            raise FileExistsError(
                f"{self._root} is of a different conversion ({changed}); force starts again"
            )
        if found is not None and not changed and self._has_some():
            return found
        for name in left:
            path = self._root / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        return None


def sweep_part(target: Path) -> None:
    """Remove the folder of a conversion that was killed right after it gave `target` its name."""
    root = target.with_name(f"{target.name}.part")
    left = {_ABOUT, _LOCK}
    if (root / _ABOUT).is_file() and set(os.listdir(root)) <= left:
        lock = WriterLock(root / _LOCK)
        shutil.rmtree(root)
        lock.release()


@contextmanager
def grow_file(path: Path, header: bytes) -> Iterator[BinaryIO]:
    """A file that begins with this header, with what an earlier attempt wrote behind it.

    On the disk when the block ends well.
    """
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    with open(file, "r+b") as out:
        if os.fstat(file).st_size < len(header):
            out.truncate(0)
            out.write(header)
        out.seek(0, os.SEEK_END)
        yield out
        out.flush()
        os.fsync(file)


def write_series(
    source: Source,
    part: Part,
    suffix: str,
    write: Callable[[Path, Iterator[Batch]], None],
    part_bytes: int,
    progress: Progress,
) -> None:
    """Write files `data-00000`, `data-00001`, … of about `part_bytes`, behind those that are there.

    `write` makes a file of all the batches it is given. A source without rows becomes one file.
    """
    part.path.mkdir(exist_ok=True)
    counts: list[int] = part["parts"] or []
    done, total = sum(counts), len(source)
    progress(done, total)
    while done < total or not counts:
        taken = 0

        def batches(first: int = done) -> Iterator[Batch]:
            nonlocal taken
            size = 0
            for batch in in_order(source, first, max_bytes=part_bytes):
                yield batch
                taken += count_of(batch)
                size += size_of(batch)
                progress(first + taken, total)
                if size >= part_bytes:
                    return

        name = f"data-{len(counts):05d}{suffix}"
        beside = part.path / f".{name}.tmp"
        write(beside, batches())
        sync_path(beside)
        beside.replace(part.path / name)
        sync_path(part.path)
        counts.append(taken)
        done += taken
        part.save(parts=counts)


def _difference(begun: dict[str, Any], given: dict[str, Any]) -> str:
    """The first difference between a conversion that was begun and this one; nothing if equal."""
    for name in {**begun, **given}:
        if begun.get(name) != given.get(name):
            if name in ("files", "fingerprint"):  # checksums, which mean nothing to people
                return f"{given.get('source')} has changed since"
            return f"{name}: {begun.get(name)!r}, now {given.get(name)!r}"
    return ""


def _read(path: Path) -> dict[str, Any] | None:
    try:
        state = json.loads(path.read_bytes())
        if not isinstance(state["about"], dict):
            raise ValueError("expected an object")
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError):
        raise FormatError("expected the state of a conversion", path=str(path)) from None
    return dict(state)
