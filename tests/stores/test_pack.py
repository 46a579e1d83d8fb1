"""Packs sit the exam, and two hands write and read them: ours and the page's in plain Python."""

from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import lz4.block
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings, strategies as st

from stepwell import PackReader, Source
from stepwell.game2048 import Run
from tests import packs
from tests.contract import Expected, SourceContract, assert_array
from tests.packs import expected_of
from tests.reference import pack, runs
from tests.reference.pack import Entry, read_pack, write_pack
from tests.runs import RUN_V1, RUN_V2, any_runs, assert_run, random_payloads

PAYLOADS = tuple(random_payloads(1, 32, most_steps=8))
RAW = [
    *(
        (kind, bytes([65 + kind % 7]) * size)
        for kind in (16, 17, 65535)
        for size in range(0, 90, 7)
    ),
    *((1, RUN_V1), (2, RUN_V2)),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packs of the exam, written once."""
    made = tmp_path_factory.mktemp("packs")
    packs.write(made / "plain", PAYLOADS)
    packs.write(made / "raw", [p for _, p in RAW], [kind for kind, _ in RAW], compress="zstd")
    (made / "compressed").write_bytes(mixed_codecs(PAYLOADS))
    return made


def mixed_codecs(payloads: Sequence[bytes]) -> bytes:
    """A pack in which neighbours are stored in different ways."""
    dictionary = zstandard.train_dictionary(2000, list(payloads))
    pack_by: list[Callable[[bytes], bytes]] = [
        bytes,
        zstandard.ZstdCompressor().compress,
        partial(lz4.block.compress, store_size=False),
        zstandard.ZstdCompressor(dict_data=dictionary).compress,
    ]
    entries = []
    for i, payload in enumerate(payloads):
        codec = (1, 3, 0, 3, 2, 1, 0, 3, 1)[i % 9]
        size = len(payload) if codec else None
        entries.append(Entry(runs.kind_of(payload), pack_by[codec](payload), codec, size))
    return write_pack(entries, 8, dictionary=dictionary.as_bytes())


# The exam.


@cache
def rows_of(payloads: tuple[bytes, ...]) -> Expected:
    return expected_of(payloads)


class TestPack(SourceContract):
    @pytest.fixture
    def payloads(self) -> tuple[bytes, ...]:
        return PAYLOADS

    @pytest.fixture
    def expected(self, payloads: tuple[bytes, ...]) -> Expected:
        return rows_of(payloads)

    @pytest.fixture
    def source(self, payloads: tuple[bytes, ...], folder: Path) -> PackReader:
        return PackReader.open(folder / "plain")

    def test_iteration(self, source: Source, expected: Expected) -> None:
        """Unlike other sources, a pack gives runs."""
        for _ in range(2):
            found: list[Any] = list(source)
            assert len(found) == len(source)
            for i, run in enumerate(found):
                assert isinstance(run, Run)
                assert_array(run.boards, np.asarray(expected["boards"][i]))
                assert_array(run.ev_values, np.asarray(expected["ev_values"][i]))
                assert run.meta.max_score == expected["max_score"][i]


class TestCompressed(TestPack):
    """Every codec, and none, side by side."""

    @pytest.fixture
    def source(self, folder: Path) -> PackReader:
        return PackReader.open(folder / "compressed")


class TestRead(TestPack):
    """A file that is read, not mapped."""

    @pytest.fixture
    def source(self, folder: Path) -> PackReader:
        return PackReader.open(folder / "plain", memory="read")


class TestPart(TestPack):
    @pytest.fixture
    def source(self, folder: Path) -> PackReader:
        packed = PackReader.open(folder / "plain")
        return packed.where("steps >= ?", 1).split(0.9, seed=4)[0].where("run != 7")

    @pytest.fixture
    def payloads(self, source: PackReader) -> tuple[bytes, ...]:
        return tuple(PAYLOADS[i] for i in source.numbers)


class TestRaw(SourceContract):
    """Payloads that are not runs, or not only."""

    @pytest.fixture
    def expected(self) -> Expected:
        return {
            "payload": [np.frombuffer(payload, np.uint8) for _, payload in RAW],
            "kind": np.array([kind for kind, _ in RAW], np.uint16),
        }

    @pytest.fixture
    def source(self, folder: Path) -> Source:
        return PackReader.open(folder / "raw")

    def test_iteration(self, source: Source, expected: Expected) -> None:
        """Only runs can be iterated; what else there is raises."""
        with pytest.raises(ValueError, match="entry 0: expected a run"):
            list(source)
        assert isinstance(source, PackReader)
        first, second = source.where("kind <= 2")
        assert first.to_bytes(1) == RUN_V1
        assert second.to_bytes(2) == RUN_V2


# Two hands.


def entries(packed: PackReader) -> list[Entry]:
    """What our reader finds, as the reference would say it."""
    kinds = [packed.kind(i) for i in range(len(packed))]
    numbers = [int(kind.removeprefix("v").removeprefix("raw:")) for kind in kinds]
    return [Entry(numbers[i], bytes(packed.slice(i))) for i in range(len(packed))]


@pytest.mark.parametrize("name", ["pack-v1", "pack-v2"])
def test_the_packs_of_the_page(tmp_path: Path, name: str) -> None:
    data = runs.file_of("pack.md", name)
    path = tmp_path / "p.a2pack"
    path.write_bytes(data)
    packed = PackReader.open(path)
    want = read_pack(data)
    assert packed.version == want.version
    assert entries(packed) == want.entries
    assert packed.verify().ok
    again = packs.write(
        tmp_path / "again",
        [entry.stored for entry in want.entries],
        [entry.kind for entry in want.entries],
        align=64 if name == "pack-v1" else 8,
    )
    assert again.read_bytes() == data


run_payloads = any_runs().map(runs.encode_v2) | any_runs(v1=True).map(runs.encode_v1)
kinds_and_payloads = st.lists(
    run_payloads.map(lambda payload: (runs.kind_of(payload), payload))
    | st.tuples(st.integers(16, 65535), st.binary(max_size=70)),
    min_size=1,
    max_size=8,
)
aligns = st.integers(0, 12).map(lambda power: 1 << power)


@settings(max_examples=25)
@given(given=kinds_and_payloads, align=aligns, expect=st.integers(0, 12))
def test_the_same_bytes_by_both(
    tmp_path: Path, given: list[tuple[int, bytes]], align: int, expect: int
) -> None:
    kinds, payloads = zip(*given, strict=True)
    path = packs.write(tmp_path / "p.a2pack", payloads, kinds, align=align, expect=expect)
    by_reference = write_pack([Entry(*pair) for pair in given], align, pack.stats_of(given))
    assert path.read_bytes() == by_reference
    assert PackReader.open(path).verify().ok


@settings(max_examples=25)
@given(
    given=kinds_and_payloads,
    align=aligns,
    form=st.sampled_from(["none", "short", "lists", "all"]),
    data_crc=st.booleans(),
)
def test_what_the_reference_writes_is_read(
    tmp_path: Path, given: list[tuple[int, bytes]], align: int, form: str, data_crc: bool
) -> None:
    stats = pack.stats_of(given)
    whole = pack.encode_stats(stats)
    short = pack.encode_stats(pack.Stats(*list(vars(stats).values())[:8]))
    block = {"short": short, "lists": whole[:-4], "all": whole}.get(form)
    data = write_pack([Entry(*pair) for pair in given], align, data_crc=data_crc)
    if block is not None:
        end = data[-32:-24]
        tail = end + data[-24:-16] + end + data[-8:]
        data = packs.summed(data[:-32] + len(block).to_bytes(4, "little") + block + tail)
    assert (read_pack(data, verify=True).stats is None) == (form == "none")
    path = tmp_path / "p.a2pack"
    path.write_bytes(data)
    packed = PackReader.open(path)
    assert entries(packed) == [Entry(*pair) for pair in given]
    assert packed.verify().ok
    assert packed.version == (2 if any(kind > 2 for kind, _ in given) else 1)
    assert list(vars(packed.stats).values()) == numbers_of(stats)
    for i, (kind, payload) in enumerate(given):
        if kind <= 2:
            assert_run(packed.decode(i), runs.decode(payload))


def numbers_of(stats: pack.Stats) -> list[Any]:
    """The values of our statistics."""
    *numbers, tiles, engines = vars(stats).values()
    return [*numbers, dict(tiles), dict(engines)]
