"""Shards written in a bucket, by many processes at once: each whole or not there."""

from contextlib import suppress
from typing import Any

from numpy.typing import ArrayLike, DTypeLike

from stepwell.bucket_writer import BucketWriter
from stepwell.errors import BusyError, FetchError
from stepwell.files.commit import Announcement, Head
from stepwell.files.staged import Staged
from stepwell.stores.shards.layout import HEADER_BYTES, LIST, SUFFIX, Shard, ShardList, header_bytes
from stepwell.stores.shards.writer import ShardWriter, checked_options, packed, shard_like
from stepwell.writer import Mode, check_mode, exclusive


class BucketShardWriter(BucketWriter, ShardWriter):
    """The writer of shards in a bucket; made by `ShardWriter(url, …)`."""

    def __init__(
        self,
        path: Any,
        width: int | None = None,
        dtype: DTypeLike | str | None = None,
        *,
        mode: Mode = "x",
        shard_bytes: int = 1 << 28,
        **bucket: Any,
    ) -> None:
        check_mode(mode)
        shard_bytes, kind = checked_options(width, dtype, shard_bytes)
        self._reach(path, bucket)
        self._head = Head(self._files, LIST.name, ShardList.parse, ShardList.dump)
        self._reset()
        self._refuse_in_bucket(mode, width, kind)
        self._ready(None)
        with self._opening():
            self._announcement = Announcement(self._files)
            self._begun(mode, width, kind)
            self._shard_rows = max(shard_bytes // self._like.row_bytes, 1)

    # Opening.

    def _refuse_in_bucket(self, mode: Mode, width: int | None, kind: str | None) -> None:
        """Raise for what is not gone on with, before anything is written."""
        there = self._head.read()
        if there is None and (others := sorted(self._files.names(""))):
            there = self._head.read()  # another writer may have begun it before they were listed
            if there is None:
                raise FileExistsError(
                    f"expected shards with a {LIST.name}, or nothing, got objects like "
                    f"{', '.join(others[:3])}: {self._where}"
                )
        if there is not None and there.shards and mode == "x":
            raise FileExistsError(f"{self._where} exists already; mode='a' goes on with it")
        begun = there is not None and (there.shards or mode == "a")
        shard_like(_first(there) if there is not None and begun else None, width, kind)

    def _begun(self, mode: Mode, width: int | None, kind: str | None) -> None:
        """Have a list, be it an empty one."""
        wanted = None if width is None else shard_like(None, width, kind)

        def make(there: ShardList | None) -> ShardList | None:
            if there is not None and (there.shards or mode == "a" or wanted is None):
                return None
            assert wanted is not None
            if there is not None and (there.width, there.kind) == (wanted.width, wanted.kind):
                return None  # nothing was committed: otherwise it counts as empty
            change = 0 if there is None else there.change + 1
            return ShardList((), wanted.width, wanted.kind, change, self._announced.token)

        there = self._head.change(make, self._announced)
        assert there is not None
        self._is_new = mode == "x"
        self._like = shard_like(_first(there), width, kind)
        self._same(there)
        self._rows = there.rows

    # Writing.

    def __len__(self) -> int:
        return self._rows + self._staged_rows + sum(shard.rows for shard in self._uploaded)

    @exclusive
    def append(self, rows: ArrayLike) -> None:
        """Add rows; shards that are full by then are committed.

        Raises `SchemaError` for another width or values that do not fit. After a `FetchError` all
        of the rows are here, and `commit` goes on.
        """
        data, size = packed(rows, self._like), self._shard_rows
        parts, at = [], 0
        first = sum(staged.payload_bytes for staged in self._staged) // self._like.row_bytes
        while at < len(data):
            number, inside = divmod(first + at, size)
            if number == len(self._staged):
                self._staged.append(Staged(HEADER_BYTES))
            part = data[at : at + size - inside].reshape(-1)
            self._staged[number].write(part, inside * self._like.row_bytes)
            parts.append((number, part))
            at += size - inside
        with self._changing():
            for number, part in parts:
                self._staged[number].settle(part)
        if full := self._staged_rows // size:
            self._upload(full) if self._in_one_commit else self._commit_staged(full)

    @property
    def _staged_rows(self) -> int:
        return sum(staged.payload_bytes for staged in self._staged) // self._like.row_bytes

    def adopt(self, folder: Any) -> None:
        """Not in a bucket: shards there are never given another name."""
        raise ValueError(f"{folder}: shards are moved between folders only, not into a bucket")

    # Below this line: the methods of `Writer`.

    def _commit(self) -> None:
        if self._staged_rows or self._uploaded:
            self._commit_staged(len(self._staged))

    def _rollback(self) -> None:
        if self._is_unsure and self._uploaded:
            # A request that is still under way must not be carried out once this returns.
            def make(there: ShardList | None) -> ShardList:
                return self._without_committed(there).changed(self._announced.token)

            try:
                made = self._head.change(make, self._announced)
                assert made is not None
                self._rows = made.rows
            except BusyError:  # taken for dead: what counts may name them, and `clean` knows
                self._uploaded.clear()
        names = [name for each in self._uploaded for name in (each.name, each.checksums)]
        self._close_staged()
        self._reset()
        with suppress(FetchError):
            self._files.remove(names)

    # Below this line: for this package.

    def _reset(self) -> None:
        self._staged: list[Staged] = []
        self._uploaded: list[Shard] = []
        """Whole shards in the bucket, none of which is known to be committed."""
        self._is_unsure = False
        """Whether a commit may have been made whose answer was lost, or may still be: its condition
        holds until the list has changed."""

    def _upload(self, count: int) -> None:
        """Put the first of the staged files where they stay."""
        for _ in range(count):
            staged, like = self._staged[0], self._like
            rows = staged.payload_bytes // like.row_bytes
            if rows:
                name = self._announced.new_name(SUFFIX)
                checksums = name.removesuffix(SUFFIX) + ".crc"
                shard = Shard(name, rows, like.width, like.kind, staged.crc, 0, checksums)
                header = header_bytes(rows, like.width, like.kind)
                staged.upload(self._files, name, checksums, header)
                self._uploaded.append(shard)
            self._staged.pop(0).close()

    def _commit_staged(self, count: int) -> None:
        """Commit the first of the staged files, each a shard."""
        self._upload(count)
        seen = list[int]()

        def make(there: ShardList | None) -> ShardList | None:
            unsure = self._is_unsure
            self._is_unsure = unsure and not seen  # refused: so nothing of before comes any more
            if unsure:
                there = self._without_committed(there)
                if not self._uploaded:
                    return None
            there = self._same(there)
            self.conflicts += bool(seen) and len(there.shards) != seen[-1]
            seen.append(len(there.shards))
            self._is_unsure = True  # from the put on, until its answer
            return there.changed(self._announced.token, self._uploaded)

        made = self._head.change(make, self._announced)
        assert made is not None
        self._rows, self._is_new = made.rows, False
        self._uploaded, self._is_unsure = [], False

    def _same(self, there: ShardList | None) -> ShardList:
        """What counts now, if this writer may add to it."""
        if there is None or (there.width, there.kind) != (self._like.width, self._like.kind):
            raise BusyError(f"{self._where} was replaced by other shards while it was written to")
        if self._is_new and there.shards:
            raise FileExistsError(
                f"{self._where} was committed to by another writer first; mode='a' goes on with it"
            )
        return there

    def _without_committed(self, there: ShardList | None) -> ShardList:
        """Forget the shards that a commit has whose answer was lost."""
        known = set() if there is None else {shard.name for shard in there.shards}
        left = [shard for shard in self._uploaded if shard.name not in known]
        self._is_new = self._is_new and len(left) == len(self._uploaded)
        self._uploaded = left
        return self._same(there)


def _first(there: ShardList) -> Shard | None:
    """What its shards are like; None of a list of before that has none."""
    return Shard("", 0, there.width, there.kind) if there.width else None
