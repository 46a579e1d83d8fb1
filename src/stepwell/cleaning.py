"""What killed writers have left in a bucket: found, and removed."""

from datetime import timedelta
from typing import Any

from stepwell.errors import KindError
from stepwell.files.commit import Garbage, Head
from stepwell.files.puts import WritableFiles
from stepwell.stores.shards.layout import LIST, ShardList
from stepwell.stores.steps.dataset import Dataset
from stepwell.stores.steps.layout import DATASET


def clean(
    url: Any, *, older_than: timedelta, delete: bool, **options: Any
) -> dict[str, tuple[int, timedelta]]:
    """Bytes and age of each object that belongs to no commit and to no writer that is open, and
    that is at least so old; with `delete` they are removed.

    Only names that writers give are looked at. Ages are by the server's clock. Raises `KindError`
    where no writer has begun anything.
    """
    files = WritableFiles(url, **options)
    heads: list[Head[Any]] = [
        Head(files, DATASET, Dataset.parse, Dataset.dump),
        Head(files, LIST.name, ShardList.parse, ShardList.dump),
    ]
    there = [head for head in heads if head.read() is not None]
    if len(there) > 1:
        message = f"expected one store, found {DATASET} and {LIST.name}: remove one of them first"
        raise KindError(message, path=files.url)
    if not there:
        message = f"expected a store that was written here, found no {DATASET} and no {LIST.name}"
        raise KindError(message, path=files.url)
    garbage = Garbage(files, older_than)
    try:
        found = garbage.remove(there[0]) if delete else garbage.of(there[0])
        return {name: (about.size, garbage.now - about.written) for name, about in found.items()}
    finally:
        garbage.close()
