"""Names of runs, and references to arrays: `h5://{run_id}/{dataset}/{index}`."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from stepwell.errors import FormatError

_NAME = r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}"  # no hidden file, no folder above
_RUN_ID = re.compile(_NAME, re.ASCII)
_REF = re.compile(rf"h5://({_NAME})/([^/\x00]+)/([0-9]{{1,18}})", re.ASCII)


def check_run_id(run_id: str) -> str:
    """Return a name that is safe as part of a file's name. Raises `ValueError` for others."""
    if not isinstance(run_id, str):
        raise TypeError(f"run_id: expected text, got {type(run_id).__name__}")
    if not _RUN_ID.fullmatch(run_id):
        shown = run_id if len(run_id) <= 40 else run_id[:40] + "…"
        raise ValueError(
            f"run_id: expected 1 to 128 letters, digits, '_', '-' and, not first, '.', "
            f"got {shown!r} ({len(run_id)} characters)"
        )
    return run_id


@dataclass(frozen=True, slots=True)
class FrameRef:
    """Row `index` of a dataset in the HDF5 file of a run; `str` is its written form."""

    run_id: str
    dataset: str
    index: int

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Read a reference; None for anything that is not one, to its last character."""
        found = _REF.fullmatch(text) if isinstance(text, str) else None
        return cls(found[1], found[2], int(found[3])) if found else None

    @classmethod
    def of(cls, ref: "str | FrameRef") -> "FrameRef":
        """The reference itself, or that of a text. Raises `FormatError` for any other text."""
        parsed = ref if isinstance(ref, FrameRef) else cls.parse(ref)
        if parsed is None:
            raise FormatError(f"expected h5://run_id/dataset/index, got {ref!r}")
        return parsed

    @classmethod
    def grouped(
        cls, refs: Iterable["str | FrameRef | None"], *, strict: bool
    ) -> dict[tuple[str, str], list[tuple[int, int]]]:
        """The positions and rows of references, by run and dataset. Anything else is left out;
        `strict` raises `FormatError`, unless it is None."""
        groups: dict[tuple[str, str], list[tuple[int, int]]] = {}
        for position, ref in enumerate(refs):
            found = _REF.fullmatch(str(ref))
            if found is not None:
                of, row = (found[1], found[2]), int(found[3])
                groups.setdefault(of, []).append((position, row))
            elif strict and ref is not None:
                cls.of(ref)
        return groups

    def __str__(self) -> str:
        return f"h5://{self.run_id}/{self.dataset}/{self.index}"
