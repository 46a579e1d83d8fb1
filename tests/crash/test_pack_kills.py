"""Files that take the place of others, after a power cut and on a failing disk: old or new, whole.

What a new pack survives, the exam of its writer asks (tests/stores/test_pack_writer.py).
"""

import os
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

import stepwell as sw
from stepwell import game2048
from stepwell.game2048.run_files import migrate_runs
from stepwell.stores.pack.writer import ReplacingPackWriter
from tests import children
from tests.crash.disk import Synced, recorded
from tests.crash.faults import Kind, fault, on_a_small_disk

BOARDS = np.arange(3, dtype=np.uint64)
MOVES = np.zeros(3, np.uint8)
LONG_BOARDS = np.arange(70_000, dtype=np.uint64)
LONG_MOVES = np.zeros(70_000, np.uint8)


def run(stamp: int, *, long: bool = False) -> game2048.Run:
    boards, moves = (LONG_BOARDS, LONG_MOVES) if long else (BOARDS, MOVES)
    return game2048.Run(boards, moves, stamp, start_unix_s=stamp, engine="kills")


# Promise 2: power cuts.

Make = Callable[[Path], object]
"""Writes a file that is known to its maker; to make another one, it is made again."""


def pack_of(stamps: list[int], expect: int = 0) -> Make:
    def make(target: Path) -> None:
        with ReplacingPackWriter(target, align=64, expect=expect) as writer:
            writer.extend(run(stamp) for stamp in stamps)

    return make


def pack_of_files(stamps: list[int], folder: Path) -> Make:
    runs = folder / f"{stamps[0]}"
    runs.mkdir()
    for i, stamp in enumerate(stamps):
        (runs / f"{i}.a2run").write_bytes(run(stamp).to_bytes(1))
    return lambda target: game2048.pack_runs(runs, target, align=64, replace=True)


def lines_of(stamps: list[int], folder: Path) -> Make:
    pack_of(stamps)(folder / f"{stamps[0]}.a2pack")
    pack = sw.PackReader.open(folder / f"{stamps[0]}.a2pack")
    return lambda target: pack.to_jsonl(target, parallel=False)


WAYS: dict[str, Callable[[list[int], Path], Make]] = {
    "PackWriter": lambda stamps, _: pack_of(stamps),
    "PackWriter, moved back": lambda stamps, _: pack_of(stamps, 20),
    "pack_runs": pack_of_files,
    "Run.save": lambda stamps, _: run(stamps[0]).save,
    "to_jsonl": lines_of,
}
OLD, NEW = [1, 1, 1], [2, 2, 2, 2]


@pytest.fixture(params=WAYS)
def makers(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Make, Make]:
    """One writes the old file, the other one the new."""
    way = WAYS[request.param]
    return way(OLD, tmp_path), way(NEW, tmp_path)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "target"


def test_power_cuts(target: Path, makers: tuple[Make, Make]) -> None:
    make_old, make_new = makers
    make_old(target)
    old = target.read_bytes()
    with recorded(target.parent) as disk:
        make_new(target)
        disk.acknowledge("new")
    new = target.read_bytes()
    assert new != old
    seen = set()
    for crash in disk.crashes(tries=30):
        found = crash.files.get("target")
        seen.add(found)
        assert found in ([new] if crash.acknowledged else [old, new]), crash
    assert seen == {old, new}


def test_the_disk_notices_what_is_not_synced(target: Path) -> None:
    """A test of the tests: without fsync files are mixtures, and what was promised is lost."""
    pack_of(OLD)(target)
    old = target.read_bytes()
    with recorded(target.parent) as disk:
        pack_of(NEW)(target)
        disk.acknowledge("new")
    new = target.read_bytes()
    (file, _) = [event for event in disk.events if isinstance(event, Synced)]
    disk.events.remove(Synced(""))
    found = [(crash.files["target"], crash.acknowledged) for crash in disk.crashes()]
    assert {data for data, _ in found} == {old, new}
    assert (old, "new") in found
    disk.events.remove(file)
    found = [(crash.files["target"], crash.acknowledged) for crash in disk.crashes()]
    assert len({data for data, _ in found}) > 10


# Promise 8: errors.


@pytest.mark.parametrize("kind", get_args(Kind))
def test_every_call_fails_once(target: Path, makers: tuple[Make, Make], kind: Kind) -> None:
    make_old, make_new = makers
    make_new(target)
    new = target.read_bytes()
    make_old(target)
    old = target.read_bytes()
    failed = set()
    for number in count():
        target.write_bytes(old)
        error = None
        try:
            with fault(kind, number) as injected:
                make_new(target)
        except OSError as caught:
            error = caught
        if injected.name is None:
            assert error is None
            break
        failed.add(injected.name)
        found = target.read_bytes()
        if error is None:
            assert found == new
            assert kind == "short" or injected.name == "close"
        else:
            assert found in (old, new)
            # Once it has its name, all that is left to fail is the sync of its folder.
            assert found != new or injected.name in ("open", "fsync", "close")
        assert os.listdir(target.parent) == [target.name]
    assert target.read_bytes() == new
    assert failed & {"write", "pwrite"}


def test_an_error_while_a_run_is_read_names_it(target: Path, tmp_path: Path) -> None:
    pack_of_files(OLD, tmp_path)
    messages = []
    for number in count():
        try:
            with fault("EIO", number) as injected:
                game2048.pack_runs(tmp_path / "1", target, replace=True)
        except OSError as error:
            messages += [str(error)] * (injected.name == "pread")
        if injected.name is None:
            break
    assert len(messages) == len(OLD)
    for i, message in enumerate(messages):
        assert message == f"[Errno 5] Input/output error: '{tmp_path / '1' / f'{i}.a2run'}'"


def test_migrating_onto_a_failing_disk(tmp_path: Path) -> None:
    for i in range(3):
        (tmp_path / "old").mkdir(exist_ok=True)
        (tmp_path / "old" / f"{i}.a2run").write_bytes(run(i).to_bytes(1))
    new = tmp_path / "new"
    for number in count():
        try:
            with fault("ENOSPC", number) as injected:
                migrate_runs(tmp_path / "old", new)
        except OSError:
            pass
        for path in new.iterdir():
            assert game2048.Run.load(path).meta.start_unix_s == int(path.stem)
            path.unlink()
        if injected.name is None:
            break
    assert number > 3


FULL = """
import errno, resource, sys
from pathlib import Path
import stepwell as sw
from stepwell.stores.pack.writer import ReplacingPackWriter
from tests.crash.test_pack_kills import OLD, pack_of, run
folder, how = Path(sys.argv[1]), sys.argv[2]
(folder / "out").mkdir()
target = folder / "out" / "target"
long = run(2, long=True)  # 600 kB
for name, small in (("PackWriter", lambda: pack_of(OLD)(target)),
                    ("Run.save", lambda: run(1).save(target))):
    small()
    old = target.read_bytes()
    if how == "limit":
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    for attempt in range(3):
        try:
            if name == "PackWriter":
                with ReplacingPackWriter(target, expect=attempt) as writer:
                    for _ in range(4):
                        writer.append(long)
            else:
                long.save(target)
        except OSError as error:
            assert error.errno == (errno.EFBIG if how == "limit" else errno.ENOSPC), error
        else:
            raise SystemExit("there was room")
        assert target.read_bytes() == old
        assert [path.name for path in target.parent.iterdir()] == ["target"]
    target.unlink()
print("full")
"""


def test_a_limit_on_the_size_of_files(tmp_path: Path) -> None:
    assert children.answer(FULL, tmp_path, "limit") == "full"


def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    assert on_a_small_disk(tmp_path, "256k", FULL, "disk") == "full\n"
