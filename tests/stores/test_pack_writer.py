"""Packs, written: to the byte as the page says. The writer sits its exam."""

import gc
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell as sw
from stepwell import game2048
from stepwell.files.atomic import writer_name
from stepwell.stores.pack.writer import ReplacingPackWriter
from tests import SANITIZED, children
from tests.reference import pack as page, runs
from tests.runs import RUN_V1 as V1, RUN_V2 as V2
from tests.writer_contract import WriterContract, WriterKit

COMPRESS: tuple[Any, ...] = ("none", "zstd", "lz4", "zstd-dict")

Payload = tuple[bytes, int]


PEAK = """
import sys
import stepwell as sw
def peak():
    with open("/proc/self/status") as status:
        return int(next(line.split()[1] for line in status if line.startswith("VmHWM"))) >> 10
before = peak()
"""
"""For another process: the most memory it had so far, in MiB."""


class Kit(WriterKit):
    store, writer = sw.PackReader, sw.PackWriter
    name, one_commit = "store.a2pack", True

    def open(self, path: Path, mode: Any = "x") -> sw.PackWriter:
        return sw.PackWriter(path, mode=mode)

    def append(self, writer: Any, stamp: int) -> None:
        writer.append(b"%d " % stamp * (1 + stamp % 3), 16)

    def stamps(self, store: Any) -> list[int]:
        found = [bytes(row).split() for row in store[:]["payload"]]
        assert all(row == row[:1] * (1 + int(row[0]) % 3) for row in found)
        return [int(row[0]) for row in found]


KIT = Kit()


class TestWriter(WriterContract):
    kit = KIT


def test_what_dead_packers_left_goes_with_the_next_one(tmp_path: Path) -> None:
    """Whatever they packed; not what others are at, and not files of other names."""

    def begin() -> None:
        writer = KIT.open(tmp_path / "dead.a2pack")
        KIT.append(writer, 1)
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(EOFError):
        children.in_fork(begin)
    others = [tmp_path / ".pack.tmp", tmp_path / ".a.00000001.tmp"]
    for other in others:
        other.write_bytes(b"not of a packer")
    pipe = tmp_path / ".pipe.00000000.tmp"
    os.mkfifo(pipe)
    assert (tmp_path / ".dead.a2pack.00000000.tmp").exists()
    with KIT.open(tmp_path / "live.a2pack") as live, KIT.open(tmp_path / "new.a2pack") as new:
        KIT.append(live, 1)
        KIT.append(new, 1)
    found = {path.name for path in tmp_path.iterdir()}
    assert found == {"live.a2pack", "new.a2pack", *(path.name for path in (*others, pipe))}


def game(number: int, steps: int = 20) -> bytes:
    """A v1 run that differs from its neighbours."""
    boards = [runs.Step((number * 1_000_003 + i) << 20, i % 4) for i in range(steps)]
    meta = runs.Meta(steps, number, 0.5, number, 2, f"engine-{number % 3}")
    return runs.encode_v1(runs.Run(meta, boards, number))


GAMES = [game(i) for i in range(40)]


def write(target: Path, payloads: Sequence[Payload], **options: Any) -> bytes:
    """The pack of these payloads, checked by its reader."""
    if target.is_file():
        target.unlink()
    with sw.PackWriter(target, **options) as writer:
        for number, (payload, kind) in enumerate(payloads):
            assert writer.append(payload, kind) == number
            assert len(writer) == number + 1
    with sw.PackReader.open(target) as pack:
        assert pack.verify().ok
        assert [bytes(pack.slice(i)) for i in range(len(pack))] == [p for p, _ in payloads]
    return target.read_bytes()


def expected(payloads: Sequence[Payload], align: int = 4096) -> bytes:
    """The file as the page says, nothing compressed."""
    entries = [page.Entry(kind, payload) for payload, kind in payloads]
    stats = page.stats_of((kind, payload) for payload, kind in payloads)
    return page.write_pack(entries, align, stats)


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "games.a2pack"


# The bytes.


def test_what_can_be_appended(target: Path) -> None:
    run = game2048.Run.from_bytes(V2)
    with sw.PackWriter(target) as writer:
        numbers = [
            writer.append(run),
            writer.append(run, 2),
            writer.append(V1),
            writer.append(bytearray(V2)),
            writer.append(memoryview(V1), 1),
            writer.append(np.frombuffer(V2, np.uint8), kind=2),
            writer.append(np.arange(3, dtype="<u2"), 40_000),
            writer.append(game2048.Run.from_bytes(V1)),  # stored as v2
        ]
        writer.extend([run, V1])
        assert len(writer) == 10
    assert numbers == list(range(8))
    as_v2 = game2048.Run.from_bytes(V1).to_bytes()
    payloads = [V2, V2, V1, V2, V1, V2, b"\0\0\1\0\2\0", as_v2, V2, V1]
    kinds = [2, 2, 1, 2, 1, 2, 40_000, 2, 2, 1]
    assert target.read_bytes() == expected(list(zip(payloads, kinds, strict=True)))


@pytest.mark.parametrize("payload", [5, "text", None, [1, 2], 1.5])
def test_what_is_no_payload(target: Path, payload: Any) -> None:
    with sw.PackWriter(target) as writer:
        writer.append(V1)
        for kind in (None, 16):
            with pytest.raises(TypeError, match="payload: expected bytes or runs, got"):
                writer.append(payload, kind)
        assert len(writer) == 1
    assert target.read_bytes() == expected([(V1, 1)])


@pytest.mark.parametrize("kind", [0, 3, 15, -1, 65536, 2**40])
def test_kinds_that_nobody_may_use(target: Path, kind: int) -> None:
    with sw.PackWriter(target) as writer:
        writer.append(V1)
        with pytest.raises(ValueError, match="kind: expected 1, 2 or 16 to 65535"):
            writer.append(V1, kind)
        with pytest.raises(ValueError, match="a Run is stored as kind 2"):
            writer.append(game2048.Run.from_bytes(V1), 1)
        with pytest.raises(TypeError):
            writer.append(V1, "16")  # type: ignore[arg-type]
    assert target.read_bytes() == expected([(V1, 1)])


@pytest.mark.parametrize("align", [1, 8, 512, 4096])
def test_a_guess_of_the_length_changes_nothing(target: Path, align: int) -> None:
    payloads = [(data, 1) for data in GAMES] + [(b"", 16)]
    whole = expected(payloads, align)
    for expect in (0, 1, len(payloads) - 1, len(payloads), len(payloads) + 1, 500):
        made = write(target, payloads, align=align, expect=expect)
        assert made == whole, expect
        assert names(target.parent) == [target.name]


def test_thousands_of_tiny_payloads(target: Path) -> None:
    payloads = [(b"%d" % i, 16 + i % 3) for i in range(2000)]
    assert write(target, payloads, align=1) == expected(payloads, 1)


def test_more_than_is_kept_in_memory(target: Path) -> None:
    large = [(np.random.default_rng(i).bytes(1_500_000), 20) for i in range(4)]
    write(target, [*large, (V1, 1), *large], align=64)


@pytest.mark.skipif(SANITIZED, reason="ASan keeps what was freed")
def test_padding_is_not_kept_in_memory(target: Path) -> None:
    """200 entries at multiples of 2 MiB would be 400 MiB with their padding."""
    script = (
        PEAK
        + """
with sw.PackWriter(sys.argv[1], align=2**21) as writer:
    for i in range(200):
        writer.append(b"x", 16)
print(peak() - before)
"""
    )
    assert int(children.answer(script, target)) < 60
    with sw.PackReader.open(target) as pack:
        assert len(pack) == 200
        assert bytes(pack.slice(199)) == b"x"


# Options.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compress": "gzip"}, "compress: expected one of none, zstd, zstd-dict, lz4, got 'gzip'"),
        ({"compress": None}, "compress"),
        ({"compress": "zstd", "level": 0}, "level: expected 1 to 22, got 0"),
        ({"compress": "zstd", "level": 23}, "level: expected 1 to 22, got 23"),
        ({"expect": -1}, "expect"),
        *(({"align": n}, "align: expected a power of two") for n in (0, 3, -1, 100, 2**31)),
    ],
)
def test_options_that_are_refused(target: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sw.PackWriter(target, **options)
    gc.collect()
    assert names(target.parent) == []


# Compression.


@pytest.mark.parametrize("compress", COMPRESS)
@pytest.mark.parametrize("align", [1, 4096])
def test_compressed_payloads_come_back(target: Path, compress: Any, align: int) -> None:
    payloads: list[Payload] = [(data, 1) for data in GAMES]
    payloads += [(V2, 2), (b"", 16), (os.urandom(3000), 17), (b"abc" * 5000, 18)]
    made = write(target, payloads, compress=compress, align=align)
    file = page.read_pack(made, verify=True)
    assert file.version == 2
    assert (file.dictionary is not None) == (compress == "zstd-dict")
    codec = COMPRESS.index(compress)
    for entry, (payload, kind) in zip(file.entries, payloads, strict=True):
        assert entry.kind == kind
        assert entry.codec in (0, codec)
        if entry.codec:
            assert entry.size == len(payload)
            assert len(entry.stored) < len(payload)
        else:
            assert entry.stored == payload
    assert file.entries[-1].codec == codec  # repeats shrink
    assert file.entries[-2].codec == 0  # noise does not
    assert file.entries[-3].codec == 0
    assert file.stats == page.stats_of((kind, payload) for payload, kind in payloads)


@pytest.mark.parametrize("compress", ["zstd", "lz4"])
def test_what_does_not_shrink_is_stored_as_it_is(target: Path, compress: Any) -> None:
    noise = game2048.Run([0x0123_4567_89AB_CDEF], [2], 0x0123_4567_89AB_CDEF).to_bytes()
    assert write(target, [(noise, 2)], compress=compress) == expected([(noise, 2)])
    with sw.PackReader.open(target) as pack:
        assert pack.version == 1


def test_too_few_payloads_for_a_dictionary(target: Path) -> None:
    writer = sw.PackWriter(target, compress="zstd-dict")
    with pytest.raises(ValueError, match="no dictionary can be trained on 1 payloads"):
        writer.append(bytes(9 << 20), 16)
    with pytest.raises(ValueError, match="rollback"):
        writer.append(V1)
    writer.rollback()
    writer.extend([V1] * 3)
    with pytest.raises(ValueError, match="no dictionary can be trained on 3 payloads"):
        writer.close()
    assert names(target.parent) == []


# Runs that do not decode.


@pytest.mark.parametrize(
    "bad", [b"", b"\0", V1[:-1], V2[:-1], V2 + b"\0", b"A2T1garbage", V1[:50] + b"\xff" + V1[51:]]
)
def test_a_run_that_does_not_decode_ends_the_pack(target: Path, bad: bytes) -> None:
    writer = sw.PackWriter(target)
    writer.append(V1)
    writer.append(bad)
    with pytest.raises(sw.FormatError) as caught:
        writer.close()
    assert "entry 1" in str(caught.value)
    assert names(target.parent) == []
    with pytest.raises(ValueError, match="closed"):
        writer.append(V1)


def test_a_run_that_does_not_decode_is_found_when_much_is_waiting(target: Path) -> None:
    boards = np.arange(250_000, dtype=np.uint64)
    large = game2048.Run(boards, np.zeros(250_000, np.uint8), 0).to_bytes(1)
    writer = sw.PackWriter(target)
    writer.append(large)
    with pytest.raises(sw.FormatError) as caught:
        writer.append(large[:-1] + bytes([large[-1] ^ 1]))
    assert "entry 1" in str(caught.value)
    assert any(str(target) in note for note in caught.value.__notes__)
    with pytest.raises(ValueError, match="rollback"):
        writer.append(V1)
    writer.rollback()
    writer.append(V1)
    writer.close()
    assert target.read_bytes() == expected([(V1, 1)])


# Its life, as far as the exam does not ask.


def test_a_pack_is_never_written_over_anything(target: Path) -> None:
    target.write_bytes(b"precious")
    with pytest.raises(FileExistsError, match=r"games\.a2pack exists already: a pack"):
        sw.PackWriter(target)
    assert names(target.parent) == [target.name]
    target.unlink()
    os.mkfifo(target)
    for replace in (False, True):
        with pytest.raises(FileExistsError, match="neither a file nor a folder"):
            (ReplacingPackWriter if replace else sw.PackWriter)(target)
    target.unlink()
    writer = sw.PackWriter(target)
    writer.append(V1)
    target.write_bytes(b"precious")  # it appears meanwhile
    with pytest.raises(FileExistsError):
        writer.close()
    assert names(target.parent) == [target.name]
    assert target.read_bytes() == b"precious"


def test_replacing_does_not_disturb_readers(target: Path) -> None:
    old = write(target, [(data, 1) for data in GAMES])
    with sw.PackReader.open(target) as reader:
        with ReplacingPackWriter(target) as writer:
            writer.append(V2)
            assert target.read_bytes() == old
            with pytest.raises(sw.BusyError, match=r"another writer is at work on .*games\.a2pack"):
                ReplacingPackWriter(target)
        assert target.read_bytes() == expected([(V2, 2)])
        assert [bytes(reader.slice(i)) for i in range(len(reader))] == GAMES
        assert reader.verify().ok
    assert names(target.parent) == [target.name]
    other = target.with_name("other")
    other.write_text("not a pack")
    with pytest.raises(FileExistsError, match="expected a pack or nothing, got a file"):
        ReplacingPackWriter(other)


def test_an_empty_pack_is_refused(target: Path) -> None:
    with pytest.raises(ValueError, match="at least one entry"), sw.PackWriter(target):
        pass
    assert names(target.parent) == []


def test_a_pack_has_one_commit(target: Path) -> None:
    with sw.PackWriter(target) as writer:
        writer.append(V1)
        writer.commit()
        whole = target.read_bytes()
        with pytest.raises(ValueError, match="cannot be continued"):
            writer.append(V1)
        writer.rollback()  # there is nothing that was not committed
        writer.commit()
    assert target.read_bytes() == whole == expected([(V1, 1)])
    with pytest.raises(ValueError, match="mode: a pack cannot be continued"):
        sw.PackWriter(target, mode="a")


@pytest.mark.parametrize("compress", COMPRESS)
def test_rollback_empties_a_pack(target: Path, compress: Any) -> None:
    payloads = [(data, 1) for data in GAMES]
    whole = write(target, payloads, compress=compress, expect=3)
    with ReplacingPackWriter(target, compress=compress, expect=3) as writer:
        writer.append(os.urandom(9 << 20)[: (9 if compress == "none" else 3) << 20], 16)
        writer.extend(GAMES)
        writer.rollback()
        assert len(writer) == 0
        writer.extend(GAMES)
    assert target.read_bytes() == whole


def test_what_a_killed_writer_left_is_taken_over(target: Path) -> None:
    left = writer_name(target)
    left.write_bytes(b"what a longer pack had written" * 1000)
    write(target, [(V1, 1)])
    assert names(target.parent) == [target.name]
    target.unlink()
    left.symlink_to(target.with_name("elsewhere"))
    with pytest.raises(sw.FormatError, match="expected a regular file, got a link"):
        sw.PackWriter(target)
    assert names(target.parent) == [left.name]


def test_a_pack_is_written_through_a_link(target: Path) -> None:
    target.symlink_to(target.with_name("real.a2pack"))
    assert write(target, [(V2, 2)]) == target.with_name("real.a2pack").read_bytes()
    assert target.is_symlink()


def test_the_file_has_the_permissions_of_any_new_file(target: Path) -> None:
    plain = target.with_name("plain")
    plain.touch()
    write(target, [(V1, 1)])
    assert target.stat().st_mode == plain.stat().st_mode


def test_a_relative_path(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(target.parent)
    assert write(Path(target.name), [(V1, 1)]) == expected([(V1, 1)])
