"""Packs and their payload types: a type of our own, none at all, and raw payloads."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from stepwell import FormatError, PackReader, PackWriter, SchemaError
from stepwell.source import Batch, Field, Schema
from stepwell.stores.pack import PackStats, PayloadType, set_payload_types
from stepwell.stores.pack.payload import Payloads
from stepwell.stores.pack.stats import Tally
from tests import children, packs
from tests.runs import RUN_V1, RUN_V2


class Words(PayloadType):
    """A word of ASCII letters, kind 20; its length is counted as steps."""

    name = "words"
    kinds: ClassVar[Mapping[int, str]] = {20: "word"}
    suffixes: ClassVar[Mapping[int, str]] = {20: ".txt"}
    schema: ClassVar[Schema] = {"length": Field(np.dtype(np.int64))}
    columns: ClassVar[Mapping[str, str]] = {"length": "INTEGER"}

    def encode(self, item: Any) -> tuple[bytes, int] | None:
        return (item.encode(), 20) if isinstance(item, str) else None

    def kind_of(self, payload: bytes) -> int | None:
        return 20 if payload.isalpha() else None

    def decode(self, at: Payloads, *, threads: int = 1, heads_only: bool = False) -> list[str]:
        words = [bytes(at.file[e["offset"] :][: e["length"]]).decode() for e in at.entries]
        for number, word in zip(at.numbers, words, strict=True):
            if not word.isalpha():
                raise FormatError(f"entry {number}: expected letters, got {word!r}", path=at.path)
        return words

    def fill(self, batch: list[str], out: Batch, names: Iterable[str]) -> None:
        for name in names:
            out[name][...] = [len(word) for word in batch]

    def rows(self, batch: list[str]) -> Iterator[tuple[Any, ...]]:
        return ((len(word),) for word in batch)

    def tally(self, batch: list[str]) -> Tally:
        lengths = np.array([len(word) for word in batch], np.uint32)
        return Tally(lengths, lengths.tolist(), [word[0] for word in batch])


@pytest.fixture
def known() -> Iterator[None]:
    """Packs that know of words and of nothing else."""
    set_payload_types(lambda: (Words(),))
    yield
    set_payload_types(None)


@pytest.fixture
def unknown() -> Iterator[None]:
    set_payload_types(tuple)
    yield
    set_payload_types(None)


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("compress", ["none", "zstd"])
def test_a_type_of_our_own(tmp_path: Path, compress: Any) -> None:
    with PackWriter(tmp_path / "p", compress=compress) as writer:
        writer.extend(["well", b"step", memoryview(b"a" * 300)])
    pack = PackReader.open(tmp_path / "p")
    words = ["well", "step", "a" * 300]
    assert pack.verify().ok
    assert pack.decode(1) == "step"
    assert list(pack) == pack.decode_batch([0, 1, 2]) == words
    assert pack[:]["length"].tolist() == [4, 4, 300]
    assert pack.columns(["length"]).take([2])["length"].tolist() == [300]
    assert list(pack.where("length > 4")) == words[2:]
    assert pack.stats == PackStats(
        3, 308, 4, 300, 308 / 3, 4, 300, 300, {4: 2, 300: 1}, {"a": 1, "s": 1, "w": 1}
    )
    assert pack.where("length = 4").stats.name_counts == {"s": 1, "w": 1}
    assert {pack.kind(i) for i in range(3)} == {"word"}
    assert [path.suffix for path in pack.extract([0], tmp_path / "out")] == [".txt"]
    with pytest.raises(SchemaError, match="words have no lines"):
        pack.to_jsonl(tmp_path / "export")


@pytest.mark.usefixtures("known")
def test_what_a_type_refuses_is_not_packed(tmp_path: Path) -> None:
    writer = PackWriter(tmp_path / "p")
    writer.append("word")
    writer.append(b"42", 20)
    with pytest.raises(FormatError, match="entry 1: expected letters, got '42'"):
        writer.close()
    assert not (tmp_path / "p").exists()
    with PackWriter(tmp_path / "p") as writer:
        with pytest.raises(ValueError, match="kind: expected 20 or 16 to 65535, got None"):
            writer.append(b"42")
        with pytest.raises(ValueError, match="kind: a str is stored as kind 20, got 16"):
            writer.append("word", 16)
        writer.append(b"42", 16)
    assert PackReader.open(tmp_path / "p").decode(0) == b"42"


@pytest.mark.usefixtures("known")
def test_other_payloads_among_those_of_a_type(tmp_path: Path) -> None:
    pack = PackReader.open(packs.write(tmp_path / "p", [b"word", b"\0"], [20, 16]))
    assert pack[:]["kind"].tolist() == [20, 16]
    assert (pack.stats.count, pack.stats.total_steps) == (2, 4)
    assert list(pack.where("1")) == ["word"]
    with pytest.raises(SchemaError, match="expected words only, got raw:16 as entry 1"):
        pack.to_jsonl(tmp_path / "out")


def test_a_pack_of_an_unknown_type_is_one_of_raw_payloads(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    path = packs.write(tmp_path / "p", [RUN_V1, RUN_V2])
    stats = list(vars(PackReader.open(path).stats).values())
    request.getfixturevalue("unknown")
    pack = PackReader.open(path)
    assert [pack.kind(0), pack.kind(1)] == ["raw:1", "raw:2"]
    assert list(pack) == [RUN_V1, RUN_V2]
    assert [row.tobytes() for row in pack[:]["payload"]] == [RUN_V1, RUN_V2]
    assert list(vars(pack.stats).values()) == stats
    with pytest.raises(ValueError, match="no runs"):
        pack.where("steps > 1")
    with pytest.raises(SchemaError, match="raw payloads have no lines of JSON"):
        pack.to_jsonl(tmp_path / "out")
    with pytest.raises(ValueError, match="kind: expected 16 to 65535, got 2"):  # noqa: SIM117
        with PackWriter(tmp_path / "other") as writer:
            writer.append(RUN_V2, 2)


def test_raw_payloads_are_bytes(tmp_path: Path) -> None:
    payloads = [b"", b"one", bytes(range(256))]
    pack = PackReader.open(packs.write(tmp_path / "p", payloads, [16, 17, 65535]))
    assert list(pack) == pack.decode_batch([0, 1, 2]) == payloads
    assert pack.columns(["kind"])[:]["kind"].tolist() == [16, 17, 65535]
    assert (pack.stats.count, pack.stats.total_steps) == (3, 0)
    with pytest.raises(ValueError, match="no runs"):
        pack.where("1")


def test_runs_are_known_without_an_import_of_the_game(tmp_path: Path) -> None:
    path = packs.write(tmp_path / "p", [RUN_V2])
    script = f"""
import sys
import stepwell as sw
assert "stepwell.game2048" not in sys.modules
print(type(sw.PackReader.open({str(path)!r}).decode(0)).__name__)
"""
    assert children.answer(script) == "Run"
