"""From a reference to its array."""

import os
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stepwell.errors import FormatError
from stepwell.source import Closing
from stepwell.stores.replay.channels import Tree, assemble
from stepwell.stores.replay.refs import FrameRef, check_run_id
from stepwell.stores.replay.rows import ArrayRows, RunFile, open_rows


class FrameResolver(Closing):
    """Finds the arrays that references name, in the files of any number of runs.

    `root` is a replay store, or the folder of its `.h5` files. At most `open_files` of them are
    open at a time. Safe from any thread, and after a fork.
    """

    def __init__(self, root: str | os.PathLike[str], *, open_files: int = 16) -> None:
        if open_files < 1:
            raise ValueError(f"open_files: expected at least 1, got {open_files}")
        self._root = Path(root).absolute()  # wherever the process goes later
        self._inside = "replay/" if (self._root / "replay").is_dir() else ""
        self._max_files = open_files
        self._recordings: dict[str, str] | None = None
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._files: OrderedDict[str, ArrayRows] = OrderedDict()
        self._lock = threading.Lock()

    def resolve(self, ref: str | FrameRef, *, missing: str = "none") -> Tree:
        """The array of a reference, a dict of arrays for a dict observation.

        What is not there is None, or an error with `missing="raise"`: `FormatError` for a
        reference that cannot be read, `FileNotFoundError`, `KeyError` or `IndexError` for one
        that leads nowhere.
        """
        return self.resolve_batch([ref], missing=missing)[0]

    def resolve_batch(
        self, refs: Sequence[str | FrameRef | None], *, missing: str = "none"
    ) -> list[Tree]:
        """The same for many, in their order; each file and dataset is read once."""
        if missing not in ("none", "raise"):
            raise ValueError(f"missing: expected 'none' or 'raise', got {missing!r}")
        strict = missing == "raise"
        results: list[Tree] = [None] * len(refs)
        for (run_id, dataset), wanted in FrameRef.grouped(refs, strict=strict).items():
            try:
                if not strict:
                    wanted = self._there(run_id, dataset, wanted)
                tree = self.read(run_id, dataset, [row for _, row in wanted]) if wanted else None
            except (FileNotFoundError, KeyError):
                if strict:
                    raise
                continue
            for i, (position, _) in enumerate(wanted):
                results[position] = _pick(tree, i)
        return results

    def _there(
        self, run_id: str, dataset: str, wanted: list[tuple[int, int]]
    ) -> list[tuple[int, int]]:
        """Those of the wanted rows that there are."""
        file, rows = self.file(run_id), np.array([row for _, row in wanted], np.int64)
        names = file.leaves(dataset)
        there = np.full(len(rows), bool(names))
        for name in names:
            there &= file.there(name, rows)
        return [each for each, here in zip(wanted, there.tolist(), strict=True) if here]

    def read(self, run_id: str, dataset: str, rows: Sequence[int]) -> Tree:
        """Rows of a dataset, or of all that are below that name, in a tree of arrays.

        Raises `FileNotFoundError`, `KeyError` or `IndexError` for what is not there.
        """
        file = self.file(run_id)
        names = file.leaves(dataset)
        if not names:
            raise KeyError(f"there is no dataset {dataset!r} - at {file.path}")
        chosen = np.array(rows, np.int64)
        return assemble(dataset, {name: file.read(name, chosen) for name in names})

    def file(self, run_id: str) -> ArrayRows:
        """The open file of a run. Raises `FileNotFoundError`."""
        if self._process != os.getpid():
            self._begin()  # forked, maybe while a thread that is not here held a lock
        with self._lock:
            found = self._files.get(run_id)
            if found is None:
                name = f"{self._inside}{check_run_id(run_id)}.h5"
                try:
                    found = open_rows(self._root, name, run_id, keeps=self._recordings is not None)
                except FileNotFoundError as error:
                    if run_id not in (self._recordings or {}):
                        raise
                    message = f"{error.strerror}; the run {run_id!r} was removed since, or its file"
                    raise FileNotFoundError(error.errno, message, error.filename) from None
                self._check(run_id, found)
                self._files[run_id] = found
            self._files.move_to_end(run_id)
            while len(self._files) > self._max_files:
                self._files.popitem(last=False)  # closed when nobody reads from it any more
            return found

    def pin(self, recordings: Mapping[str, str]) -> None:
        """Have these runs, each by the time when it began, as they are now: what is removed later
        stays readable in files that are open."""
        with self._lock:
            self._recordings = dict(recordings)
            for run_id, file in list(self._files.items()):
                try:
                    if isinstance(file, RunFile):
                        file.catch_up()
                    self._check(run_id, file)
                except (OSError, FormatError):  # whoever wants it finds out why
                    del self._files[run_id]

    def _check(self, run_id: str, file: ArrayRows) -> None:
        """Raise `FormatError` for the file of another run, which has the name by now."""
        found = file.created_at if isinstance(file, RunFile) else None
        expected = (self._recordings or {}).get(run_id, found)
        if found is not None and found != expected:
            message = f"expected the run {run_id!r} of {expected}, got that of {found}"
            raise FormatError(f"{message}; open the store again", path=str(file.path))

    def run_file(self, run_id: str) -> RunFile:
        """The same, for one of ours. Raises `FormatError` for another program's."""
        file = self.file(run_id)
        if not isinstance(file, RunFile):
            raise FormatError("expected a file of a replay store", path=str(file.path))
        return file

    def __repr__(self) -> str:
        return f"FrameResolver({str(self._root)!r}, {len(self._files)} files open)"

    def close(self) -> None:
        """Close the files that are open; a later call opens them again."""
        with self._lock:
            for file in self._files.values():
                file.close()
            self._files.clear()

    def __getstate__(self) -> dict[str, Any]:
        names = ("_root", "_inside", "_max_files", "_recordings")
        return {name: self.__dict__[name] for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()


def _pick(tree: Tree, i: int) -> Tree:
    if isinstance(tree, dict):
        return {key: _pick(branch, i) for key, branch in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_pick(branch, i) for branch in tree)
    return tree[i]
