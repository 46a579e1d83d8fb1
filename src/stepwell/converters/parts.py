"""The folder in which something is made that a kill must not undo.

What becomes `out.npy` is made in `out.npy.part`. A small file in there says what is being
converted and how far it got: whoever asks for the same again goes on, whoever asks for something
else is told. What is finished gets its name by a rename; readers never see half of it.
"""

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any, Self

from stepwell.errors import FormatError
from stepwell.files.atomic import publish, sync_path, temporary_name, write_file
from stepwell.files.lock import WriterLock

__all__ = ["ABOUT", "PartFolder", "difference", "remove_tree"]

ABOUT = ".stepwell.json"
_LOCK = ".lock"


class PartFolder:
    """A folder beside `target`, locked, with what an earlier attempt left in it.

    Raises `FileExistsError` when there is a target (unless it is to be replaced), or when the
    folder is of another conversion; `BusyError` when somebody is at work in it.
    """

    def __init__(self, target: Path, about: dict[str, Any], *, overwrite: bool) -> None:
        self.target = target
        self.path = target.with_name(f"{target.name}.part")
        self._overwrite = overwrite
        self._refuse_target(about)
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = WriterLock(self.path / _LOCK)
        try:
            for name in os.listdir(self.path):
                if name.startswith(".") and name.endswith(".tmp"):  # what a kill left
                    (self.path / name).unlink()
            found = _read(self.path / ABOUT)
            if found is None and set(os.listdir(self.path)) - {_LOCK}:
                raise FileExistsError(
                    errno.EEXIST, "there is something of somebody else's", str(self.path)
                )
            changed = "" if found is None else difference(found["about"], about)
            if changed and not overwrite:
                raise FileExistsError(
                    f"{self.path} is of another conversion ({changed}); overwrite starts anew"
                )
            if changed:
                self._clear()
            self._state: dict[str, Any] = {"about": about, "finished": False}
            if found is not None and not changed:
                self._state = found
            else:
                self.save()
        except BaseException:
            self._lock.release()
            raise

    def __getitem__(self, key: str) -> Any:
        """What was saved under a name; None for nothing."""
        return self._state.get(key)

    def save(self, **state: Any) -> None:
        """Keep how far it got, from here on for ever."""
        self._state.update(state)
        _write(self.path / ABOUT, self._state)

    def finish_file(self, made: Path) -> None:
        """Give a file in the folder the name of the target, and remove the folder."""
        self._refuse_target(self._state["about"])
        self.save(finished=True)
        made.replace(self.target)
        sync_path(self.target.parent)
        shutil.rmtree(self.path)
        self._lock.release()

    def finish_folder(self) -> None:
        """Give the folder the name of the target. It keeps the file that says what it is."""
        self._refuse_target(self._state["about"])
        self.save(finished=True)
        (self.path / _LOCK).unlink()
        if self.target.exists():
            remove_tree(self.target)
        publish(self.path, self.target)
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        """Let others go on here, if there is something to go on with."""
        if self._lock.held and set(os.listdir(self.path)) <= {ABOUT, _LOCK}:
            shutil.rmtree(self.path)
        self._lock.release()

    def _clear(self) -> None:
        for name in os.listdir(self.path):
            path = self.path / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif name != _LOCK:
                path.unlink()

    def _refuse_target(self, about: dict[str, Any]) -> None:
        if not self.target.exists():
            return
        if self.target.is_dir():
            try:
                found = _read(self.target / ABOUT)
            except FormatError:
                found = None
            if found is None:
                raise FileExistsError(
                    f"{self.target} is there and was not made by a conversion: it is left alone"
                )
            if not self._overwrite:
                done = not difference(found["about"], about)
                what = "this conversion is finished" if done else "another conversion"
                raise FileExistsError(f"{self.target} exists ({what}); overwrite replaces it")
        elif not self._overwrite:
            left = _read(self.path / ABOUT)
            if left is not None and left.get("finished"):  # a kill right after the rename
                shutil.rmtree(self.path)
            raise FileExistsError(f"{self.target} exists; overwrite replaces it")


def difference(begun: dict[str, Any], asked: dict[str, Any]) -> str:
    """The first thing in which what was begun is not what is asked for; nothing if it is."""
    for name in {**begun, **asked}:
        if begun.get(name) != asked.get(name):
            if name in ("files", "fingerprint"):  # sums, which tell nobody anything
                return f"{asked.get('source')} has changed since"
            return f"{name}: {begun.get(name)!r}, asked for {asked.get(name)!r}"
    return ""


def remove_tree(path: Path) -> None:
    """Remove a folder; nobody sees it half removed under its name."""
    gone = temporary_name(path)
    path.rename(gone)
    shutil.rmtree(gone)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        state = json.loads(path.read_bytes())
        if not isinstance(state["about"], dict):
            raise ValueError("no object")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, TypeError, KeyError):
        raise FormatError("does not say what is being converted", path=str(path)) from None
    return dict(state)


def _write(path: Path, state: dict[str, Any]) -> None:
    write_file(path, json.dumps(state).encode() + b"\n")
