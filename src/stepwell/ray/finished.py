"""Pieces of a target that are finished, kept beside it: a second run makes the others only.

Each has a document in `OUT.part/pieces` that has the whole identity of the conversion in it, the
range that the piece is of, and what is known of it: a document of anything else counts for nothing.
"""

import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from stepwell.errors import FormatError
from stepwell.files.atomic import make_folder, temporary_name
from stepwell.files.document import Document

_PIECE = Document("", "stepwell-piece", 1, checksummed=True, indent=None)

Facts = dict[str, Any]
"""What is known of a piece that is finished, as JSON can keep it."""


class Finished:
    """The finished pieces of the conversion that `about` describes."""

    def __init__(self, folder: Path, about: dict[str, Any]) -> None:
        self.folder, self._about = folder, about
        make_folder(folder)

    def get(self, stage: str, number: int, part: range) -> Facts | None:
        """What is known of a piece; None where it is to be made."""
        document = _document(stage, number)
        with suppress(FileNotFoundError, FormatError), document.parsing(self.folder) as text:
            if text["about"] == self._about and text["range"] == [part.start, part.stop]:
                facts: Facts = text["facts"]
                return facts
        return None  # a damaged one, too

    def keep(self, stage: str, number: int, part: range, facts: Facts) -> None:
        """Remember a piece whose files are on the disk."""
        content = {"about": self._about, "range": [part.start, part.stop], "facts": facts}
        document = _document(stage, number)
        beside = temporary_name(self.folder / document.name)
        beside.write_bytes(document.dump(content))
        beside.rename(self.folder / document.name)  # not synced: a torn one counts for nothing

    def forget(self, stage: str) -> None:
        """Have the pieces of a stage made again."""
        for path in self.folder.glob(f"{stage}-*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _document(stage: str, number: int) -> Document:
    return replace(_PIECE, name=f"{stage}-{number:06}.json")
