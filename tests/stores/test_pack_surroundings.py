"""Packs in a world that moves: links, devices, forks, other files under the same name."""

import os
import pickle
import struct
import threading
from pathlib import Path

import numpy as np
import pytest

from stepwell import FormatError, PackReader
from stepwell.stores.pack.where import index_path
from tests import children
from tests.packs import changed, write
from tests.reference.pack import HEADER
from tests.reference.runs import crc32c
from tests.runs import RUN_V1, RUN_V2


@pytest.fixture
def pack(tmp_path: Path) -> PackReader:
    return PackReader.open(write(tmp_path / "p.a2pack", [RUN_V1, RUN_V2] * 12))


# Where exports go.


def test_an_export_never_replaces_its_pack(pack: PackReader, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(pack.path)
    before = Path(pack.path).read_bytes()
    for target in (pack.path, link):
        for export in (pack.to_jsonl, pack.to_parquet, pack.to_arrow):
            with pytest.raises(ValueError, match="is the pack itself"):
                export(target)
    assert Path(pack.path).read_bytes() == before
    assert link.is_symlink()


def test_an_export_follows_a_link(pack: PackReader, tmp_path: Path) -> None:
    pack.to_jsonl(tmp_path / "plain.jsonl")
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "real.jsonl")
    pack.to_jsonl(tmp_path / "link.jsonl")
    assert (tmp_path / "link.jsonl").is_symlink()
    assert (tmp_path / "real.jsonl").read_bytes() == (tmp_path / "plain.jsonl").read_bytes()


def test_an_export_writes_to_what_is_no_file(pack: PackReader, tmp_path: Path) -> None:
    pack.to_jsonl(tmp_path / "plain.jsonl")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(fifo.read_bytes()))
    reader.start()
    pack.to_jsonl(fifo)
    reader.join()
    assert got == [(tmp_path / "plain.jsonl").read_bytes()]
    assert fifo.is_fifo()


# The process and its threads.


def test_a_process_may_end_while_it_plays() -> None:
    script = """
import threading
from stepwell import _core
begun = threading.Semaphore(0)
def play(game):
    begun.release()
    while True:
        _core.play_game(4, 1, game)
for game in range(4):
    threading.Thread(target=play, args=(game,), daemon=True).start()
for game in range(4):
    begun.acquire()
"""
    for _ in range(3):
        done = children.python(script)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_fork_beside_threads_that_ask(pack: PackReader) -> None:
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            pack.where("steps > ?", 2)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            assert children.in_fork(lambda: len(pack.where("steps > ?", 2))) == 12
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_a_pack_is_found_again_from_another_folder(
    pack: PackReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    opened = PackReader.open("p.a2pack")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert len(opened.where("steps = 3")) == 12
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert index_path(pack.path).exists()
    assert len(pickle.loads(pickle.dumps(opened))) == 24


def test_a_part_is_not_unpickled_over_another_pack(pack: PackReader) -> None:
    part = pickle.dumps(pack.split(0.5, seed=1)[0])
    assert len(pickle.loads(part)) == 12
    write(Path(pack.path), [RUN_V2] * 24)
    with pytest.raises(FormatError, match="not the pack"):
        pickle.loads(part)


# Sizes and fields.


def test_fields_of_the_head_are_read_without_the_steps(pack: PackReader) -> None:
    rows = [5, 0, 5, 23]
    whole = pack.take(rows)
    for names in (["max_score"], ["engine", "steps"], ["final_board"], ["steps", "boards"]):
        part = pack.columns(names).take(rows)
        assert list(part) == names
        for name in names:
            for got, want in zip(part[name], whole[name], strict=True):
                np.testing.assert_array_equal(got, want)


def test_a_length_that_no_frame_has_is_not_allocated(tmp_path: Path) -> None:
    payloads = [os.urandom(2000) + bytes(100_000) for _ in range(8)]
    path = write(tmp_path / "p.a2pack", payloads, [16] * 8, compress="zstd")
    data = path.read_bytes()
    for i in range(8):
        data = changed(data, HEADER + 32 * i + 20, struct.pack("<I", 60_000_000))
    path.write_bytes(data)
    opened = PackReader.open(path)
    with pytest.raises(FormatError, match="entry 3: zstd: expected 60000000 bytes") as caught:
        opened.slices([3, 5])
    assert caught.value.path == str(path)
    assert len(opened.verify().problems) >= 8


def test_a_dictionary_that_is_none(tmp_path: Path) -> None:
    payloads = [b"some words that come again %d" % i * 9 for i in range(200)]
    path = write(tmp_path / "p.a2pack", payloads, [16] * 200, compress="zstd-dict")
    data = bytearray(path.read_bytes())
    at = bytes(data).rindex((0xEC30A437).to_bytes(4, "little"))  # how a dictionary begins
    (length,) = struct.unpack_from("<I", data, at - 8)
    data[at + 8 : at + 200] = bytes(192)  # the tables behind the magic and the number
    data[at - 4 : at] = struct.pack("<I", crc32c(bytes(data[at : at + length])))
    path.write_bytes(data)
    opened = PackReader.open(path)
    with pytest.raises(FormatError, match="zstd"):
        opened.slices(np.arange(200))
    assert all(isinstance(problem, FormatError) for problem in opened.verify().problems)
