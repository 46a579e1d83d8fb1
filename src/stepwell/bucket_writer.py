"""What writers in a bucket have in common: files they stage, and an announcement there."""

import os
from typing import Any

from stepwell.files.commit import READERS_ONLY, Announcement
from stepwell.files.puts import WritableFiles
from stepwell.files.staged import Staged
from stepwell.writer import Writer


class BucketWriter(Writer):
    """A writer of one of many that write below a URL at once."""

    conflicts = 0
    """How often another writer committed first, so that a commit went behind its rows."""
    _announcement: Announcement | None = None
    _staged: list[Staged]

    def _reach(self, where: Any, options: dict[str, Any]) -> None:
        """Raise `TypeError` for options that only readers have."""
        if wrong := [name for name in options if name in READERS_ONLY]:
            raise TypeError(f"{', '.join(wrong)}: only for what is read from a bucket")
        self._files = WritableFiles(where, **options)

    @property
    def _where(self) -> str:
        return self._files.url

    @property
    def _announced(self) -> Announcement:
        assert self._announcement is not None
        return self._announcement

    def _close_staged(self) -> None:
        for staged in self._staged:
            staged.close()
        self._staged = []

    def _forget(self) -> None:
        # Whoever collects garbage does not wait for a server. `stepwell clean` finds what is left.
        self._closed = True
        if self._process == os.getpid():
            self._announced.forget()
        self._close_staged()

    def _release(self) -> None:
        self._close_staged()
        if self._announcement is not None:
            self._announcement.end()
