"""From a reference to its array."""

import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stepwell.source import Closing
from stepwell.stores.replay.channels import Tree, assemble
from stepwell.stores.replay.refs import FrameRef, check_run_id
from stepwell.stores.replay.rows import ArrayRows, open_rows

__all__ = ["FrameResolver"]


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
        results: list[Tree] = [None] * len(refs)
        groups: dict[tuple[str, str], list[tuple[int, int]]] = {}
        for position, ref in enumerate(refs):
            if ref is None:
                continue
            parsed = ref if isinstance(ref, FrameRef) else FrameRef.parse(ref)
            if parsed is None:
                if missing == "raise":
                    FrameRef.of(ref)
                continue
            groups.setdefault((parsed.run_id, parsed.dataset), []).append((position, parsed.index))
        for (run_id, dataset), wanted in groups.items():
            try:
                arrays = self._read(run_id, dataset, wanted, missing == "raise")
            except (FileNotFoundError, KeyError):
                if missing == "raise":
                    raise
                continue
            for position, array in arrays:
                results[position] = array
        return results

    def _read(
        self, run_id: str, dataset: str, wanted: list[tuple[int, int]], strict: bool
    ) -> list[tuple[int, Tree]]:
        file = self.file(run_id)
        names = file.leaves(dataset)
        if not names:
            raise KeyError(f"there is no dataset {dataset!r} - at {file.path}")
        rows = np.array([row for _, row in wanted], np.int64)
        if not strict:
            known = min(file.length(name) for name in names)
            wanted = [(position, row) for position, row in wanted if row < known]
            rows = np.array([row for _, row in wanted], np.int64)
        found = {name: file.read(name, rows) for name in names}
        tree = assemble(dataset, found)
        return [(position, _pick(tree, i)) for i, (position, _) in enumerate(wanted)]

    def file(self, run_id: str) -> ArrayRows:
        """The open file of a run. Raises `FileNotFoundError`."""
        if self._process != os.getpid():
            self._begin()  # forked, maybe while a thread that is not here held a lock
        with self._lock:
            found = self._files.get(run_id)
            if found is None:
                name = f"{self._inside}{check_run_id(run_id)}.h5"
                found = self._files[run_id] = open_rows(self._root, name, run_id)
            self._files.move_to_end(run_id)
            while len(self._files) > self._max_files:
                self._files.popitem(last=False)  # closed when nobody reads from it any more
            return found

    def close(self) -> None:
        with self._lock:
            for file in self._files.values():
                file.close()
            self._files.clear()

    def __getstate__(self) -> dict[str, Any]:
        return {"_root": self._root, "_inside": self._inside, "_max_files": self._max_files}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()


def _pick(tree: Tree, i: int) -> Tree:
    if isinstance(tree, dict):
        return {key: _pick(branch, i) for key, branch in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_pick(branch, i) for branch in tree)
    return tree[i]
