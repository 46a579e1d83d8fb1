"""Damaged and hostile packs: the exact data, or an error that says where, and nothing else."""

import struct
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from stepwell import (
    FormatError,
    PackReader,
    StepwellError,
)
from stepwell.stores.pack.layout import Layout
from stepwell.stores.pack.stats import ShortStats
from tests import scaled
from tests.packs import PACKS, check_error, contents, summed
from tests.reference.pack import read_pack
from tests.reference.runs import Broken

EACH = pytest.mark.parametrize("name", PACKS)


@pytest.fixture
def at(tmp_path: Path) -> Callable[[bytes], Path]:
    def put(data: bytes) -> Path:
        path = tmp_path / "p.a2pack"
        path.write_bytes(data)
        return path

    return put


def look(path: Path, want: tuple[Any, ...], *, sums: bool = True) -> str:
    """What becomes of a damaged file: nothing wrong may come out of it."""
    try:
        packed = PackReader.open(path)
    except StepwellError as error:
        check_error(error, path)
        return "refused"
    try:
        found = contents(packed)
    except StepwellError as error:
        check_error(error, path)
        assert not packed.verify().ok
        return "found in reading"
    problems = packed.verify().problems
    for problem in problems:
        check_error(problem, path)
    if sums:
        assert found == want
    elif found != want:
        return "unseen"
    return "found by verify" if problems else "harmless"


# Damage.


@EACH
def test_undamaged(name: str, at: Callable[[bytes], Path]) -> None:
    packed = PackReader.open(at(PACKS[name]))
    assert packed.verify().ok
    want = read_pack(PACKS[name], verify=True)
    assert packed.version == want.version
    assert len(packed) == len(want.entries)
    assert isinstance(packed.stats, ShortStats)


@EACH
def test_every_byte_changed(name: str, at: Callable[[bytes], Path]) -> None:
    data = PACKS[name]
    want = contents(PackReader.open(at(data)))
    (count,) = struct.unpack_from("<Q", data, 16)
    structure = {*range(28 + 32 * count), *range(len(data) - 32, len(data))}
    random = Random(1)
    seen = set()
    for place in range(len(data)):
        bits = [1 << bit for bit in range(8)]
        few = 1 if place in structure else {"v1": 2, "v2": 8}.get(name, 1)
        for value in random.sample(bits, scaled(few)):
            broken = bytearray(data)
            broken[place] ^= value
            become = look(at(bytes(broken)), want, sums=name != "no sums")
            if place in structure:
                assert become == "refused", (place, value)
            seen.add(become)
    assert {"refused", "found by verify"} <= seen
    assert ("unseen" in seen) == (name == "no sums")


@EACH
def test_structure_with_every_value_of_every_byte(name: str) -> None:
    """What `open` does with a file, without the file: there are many of them."""
    data = np.frombuffer(PACKS[name], np.uint8).copy()
    Layout.read(data, "p.a2pack")
    (count,) = struct.unpack_from("<Q", PACKS[name], 16)
    for place in (*range(28 + 32 * count), *range(len(data) - 32, len(data))):
        right = data[place]
        for value in range(0, 256, 1 if name in ("v1", "v2") else scaled(17)):
            data[place] = value
            if value != right:
                with pytest.raises(FormatError) as info:
                    Layout.read(data, "p.a2pack")
                assert 0 <= (info.value.offset or 0) <= len(data)
        data[place] = right


@EACH
def test_every_truncation(name: str, at: Callable[[bytes], Path]) -> None:
    data = PACKS[name]
    want = contents(PackReader.open(at(data)))
    for size in range(len(data)):
        assert look(at(data[:size]), want) == "refused"
    for more in (b"\0", b"\xff", bytes(32), data[-32:], data, data[:28]):
        assert look(at(data + more), want) == "refused"
        assert look(at(more + data), want) == "refused"
    for cut in (1, 28, 32, 60, len(data) // 2):
        assert look(at(data[cut:]), want) == "refused"


def test_random_damage(at: Callable[[bytes], Path]) -> None:
    random = Random(2)
    wants = {name: contents(PackReader.open(at(data))) for name, data in PACKS.items()}
    for _ in range(scaled(600)):
        name = random.choice(["v1", "v2", "codecs"])
        data = bytearray(PACKS[name])
        for _ in range(random.randint(1, 3)):
            place, size = random.randrange(len(data)), random.randrange(1, 9)
            data[place : place + size] = random.randbytes(random.choice([0, size, size]))
        look(at(bytes(data)), wants[name])


def test_random_structure_with_right_sums(at: Callable[[bytes], Path]) -> None:
    """Our reader and the reference agree on what a pack is."""
    random = Random(3)
    opened = 0
    for _ in range(scaled(1500)):
        data = bytearray(PACKS[random.choice(list(PACKS))])
        (count,) = struct.unpack_from("<Q", data, 16)
        places = [*range(8, 28 + 32 * count), *range(len(data) - 32, len(data))]
        for _ in range(random.randint(1, 2)):
            data[random.choice(places)] = random.choice([0, 1, 2, 3, 16, 32, 64, 255])
        try:
            whole = summed(bytes(data))
        except (struct.error, OverflowError):
            continue
        path = at(whole)
        found = _verdicts(whole, path)
        opened += found == "both open it"
        assert found in ("both open it", "both refuse it", "nothing unpacks to that")
    assert opened > 20


def _verdicts(data: bytes, path: Path) -> str:
    try:
        want = read_pack(data)
    except Broken:
        want = None
    try:
        packed = PackReader.open(path)
    except StepwellError as error:
        check_error(error, path)
        if "unpacks to" in str(error):  # by the bound that keeps us from asking for memory
            return "nothing unpacks to that"
        return "both refuse it" if want is None else f"only ours refuses it: {error}"
    if want is None:
        return "only the reference refuses it"
    assert [bytes(packed._opened.data[o : o + 1]) for o in want.offsets] == [
        data[o : o + 1] for o in want.offsets
    ]
    return "both open it"
