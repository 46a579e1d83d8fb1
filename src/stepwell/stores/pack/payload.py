"""Types of payloads in packs.

A pack keeps bytes, each with a kind. A `PayloadType` has the meaning of some kinds:
it checks them when they are written, decodes them, and has their columns and their statistics.
`RAW` is the type of all other kinds. `stepwell/__init__.py` has the others of this package.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

import stepwell
from stepwell import _core
from stepwell.errors import SchemaError
from stepwell.source import Batch, Field, Ragged, Rows, Schema, Source
from stepwell.stores.pack.stats import PackStats, Tally

if TYPE_CHECKING:
    from stepwell.stores.pack.reader import PackReader

_NOTHING: Mapping[Any, Any] = {}


class Payloads(NamedTuple):
    """Where payloads are: bytes, entries that point into them, and what errors call them."""

    file: NDArray[np.uint8]
    entries: NDArray[Any]
    numbers: Rows
    path: str = ""


class PayloadType(ABC):
    """The meaning of some kinds of payload. It has no state, and is safe from any thread."""

    name: ClassVar[str]
    """The name of such payloads in messages: "runs"."""
    kinds: ClassVar[Mapping[int, str]] = _NOTHING
    """The name of each kind, as `PackReader.kind` returns it."""
    suffixes: ClassVar[Mapping[int, str]] = _NOTHING
    """The suffixes of extracted files, by kind."""
    schema: ClassVar[Schema]
    """The fields of a row."""
    head_fields: ClassVar[frozenset[str]] = frozenset()
    """Those that a batch has which was decoded with `heads_only`."""
    columns: ClassVar[Mapping[str, str]] = _NOTHING
    """Columns of `where`, as SQL declares them, beside the number and the kind of an entry."""
    stats: ClassVar[type[Any]] = PackStats
    """A dataclass with the fields of `ShortStats` and two tallies of its own."""

    def mask(self, kinds: NDArray[Any]) -> NDArray[np.bool]:
        """Which of these kinds are of this type."""
        return np.isin(kinds, list(self.kinds))

    # Writing.

    def encode(self, item: Any) -> tuple[bytes, int] | None:
        """The payload and the kind of an object of this type; None for any other object."""
        return None

    def kind_of(self, payload: bytes) -> int | None:
        """The kind of bytes that were given without one; None when they are not of this type."""
        return None

    # Reading. A batch is what `decode` returns; the other methods are given it again.

    @abstractmethod
    def decode(self, at: Payloads, *, threads: int = 1, heads_only: bool = False) -> Sequence[Any]:
        """The items at these places, checked, in their order.

        Raises `FormatError` that names the file and the number of the entry.
        """

    @abstractmethod
    def fill(self, batch: Any, out: Batch, names: Iterable[str]) -> None:
        """Put these fields of a batch into `out`, as `Source._fill` does."""

    def rows(self, batch: Any) -> Iterator[tuple[Any, ...]]:
        """The values of `columns`, item by item."""
        raise SchemaError(f"{self.name} have no columns to query")

    def steps(self, pack: "PackReader") -> Source:
        """The steps of the items of a pack, a row each; of a type without steps, the items."""
        return pack

    def tally(self, batch: Any) -> Tally:
        """The counts of a batch for the statistics."""
        raise SchemaError(f"{self.name} have no statistics")

    def json_lines(self, **options: Any) -> Callable[[Payloads], NDArray[np.uint8]]:
        """A function that makes lines of JSON; `options` are those of `PackReader.to_jsonl`."""
        raise SchemaError(f"{self.name} have no lines of JSON")


class RawBatch(Ragged):
    """Payloads one after another, without a meaning; an item is `bytes`."""

    __slots__ = ("kinds",)
    kinds: NDArray[np.uint16]


class _Raw(PayloadType):
    """Bytes; every kind can be read as such."""

    name = "raw payloads"
    schema: ClassVar[Schema] = {
        "payload": Field(np.dtype(np.uint8), ragged=True),
        "kind": Field(np.dtype(np.uint16)),
    }

    def mask(self, kinds: NDArray[Any]) -> NDArray[np.bool]:
        return np.ones(len(kinds), np.bool)

    def decode(self, at: Payloads, *, threads: int = 1, heads_only: bool = False) -> RawBatch:
        where = at.entries.view(np.uint8)
        offsets, values = _core.copy_payloads(at.file, where, at.numbers, at.path, threads)
        batch = RawBatch(values, offsets.view(np.int64), "bytes")
        batch.kinds = at.entries["kind"]
        return batch

    def fill(self, batch: RawBatch, out: Batch, names: Iterable[str]) -> None:
        for name in names:
            if name == "payload":
                out[name] = Ragged(batch.values, batch.offsets)
            else:
                out[name][...] = batch.kinds


RAW = _Raw()


@cache
def _of_the_package() -> tuple[PayloadType, ...]:
    types: tuple[PayloadType, ...] = stepwell._payload_types()
    return types


_known: Callable[[], tuple[PayloadType, ...]] = _of_the_package


def set_payload_types(make: Callable[[], tuple[PayloadType, ...]] | None) -> None:
    """Have packs know the types that `make` returns, and no other; for None those of stepwell.

    It is called when the first pack is used: the module of a type need not be imported before.
    """
    global _known
    _known = _of_the_package if make is None else cache(make)


def payload_types() -> tuple[PayloadType, ...]:
    """The types that packs know, `RAW` aside."""
    return _known()


def type_of(kinds: NDArray[Any]) -> PayloadType:
    """The known type that some of these kinds are of; `RAW` when there is none."""
    return next((known for known in payload_types() if known.mask(kinds).any()), RAW)


def by_type(kinds: NDArray[Any]) -> Iterator[tuple[PayloadType, NDArray[np.bool]]]:
    """Each known type that occurs, with where it does."""
    for known in payload_types():
        mask = known.mask(kinds)
        if mask.any():
            yield known, mask


def kind_name(kind: int) -> str:
    """The name that its type has for a kind."""
    return type_of(np.array([kind])).kinds.get(int(kind), f"raw:{kind}")


class Kind(str):
    """The name of this kind of store; of an open pack, `kind(i)` is the kind of entry `i`.

    Every store has the one, packs have had the other since the first version of the format.
    """

    _pack: "PackReader"

    def __get__(self, pack: "PackReader | None", owner: type["PackReader"]) -> "Kind":
        if pack is None:
            return self
        bound = Kind(self)
        bound._pack = pack
        return bound

    def __call__(self, i: int) -> str:
        """The name that the type of entry `i` has for it (`"v2"`), or `"raw:<kind>"`."""
        return kind_name(self._pack._entries["kind"][self._pack._row(i)])
