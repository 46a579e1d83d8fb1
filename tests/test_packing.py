"""Directories of run files, packed and migrated: in order, each read once, none believed."""

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell as sw
from stepwell import game2048
from stepwell.game2048.run_files import find_runs, migrate_runs
from tests import SANITIZED, children
from tests.reference import pack as page, runs
from tests.runs import RUN_V1 as V1, RUN_V2 as V2
from tests.stores.test_pack_writer import COMPRESS, GAMES, PEAK, expected, game, names


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "games.a2pack"


def fill(folder: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def long_game(steps: int) -> bytes:
    """A v1 run of about 9 bytes a step."""
    return game2048.Run(np.arange(steps, dtype=np.uint64), np.arange(steps) % 4, 1).to_bytes(1)


def kind_of(data: bytes) -> int:
    return 1 if data.startswith(b"A2T1") else 2


def expected_of(payloads: list[bytes], align: int = 4096) -> bytes:
    return expected([(data, kind_of(data)) for data in payloads], align)


# What is packed, and in which order.


def test_the_order_is_that_of_the_names_on_the_way(folder: Path, target: Path) -> None:
    in_order = [
        "B.a2run",
        "a.a2run2",
        "a/1.a2run",
        "a/b/1.a2run",
        "a/b/10.a2run2",
        "a/b/9.a2run2",
        "a/b.a2run",
        "a-b/1.a2run",  # "-" comes before "/", but "a" before "a-b"
        "b/1.a2run",
        "b/\u00fc.a2run2",
        "b/\U0001f600.a2run2",
    ]
    in_order.sort(key=lambda name: name.encode().split(b"/"))
    shuffled = random.Random(0).sample(in_order, len(in_order))
    assert in_order.index("a/1.a2run") < in_order.index("a-b/1.a2run")
    payloads = {name: game(i) if name.endswith("run") else V2 for i, name in enumerate(shuffled)}
    fill(folder, payloads)
    report = game2048.pack_runs(folder, target)
    ordered = [payloads[name] for name in in_order]
    assert target.read_bytes() == expected_of(ordered)
    assert report == game2048.PackReport(target, len(ordered), sum(map(len, ordered)))
    assert [str(path.relative_to(folder)) for path, _ in find_runs(folder)] == in_order


def test_what_a_run_is_its_bytes_say_and_what_is_packed_its_name(
    folder: Path, target: Path
) -> None:
    fill(folder, {"a.a2run": V2, "b.a2run2": V1, "c.A2RUN": V1, "d.a2run2.tmp": V1, "e": V1})
    fill(folder, {".f.a2run2.1234.tmp": V1, "notes.txt": b"x", ".a2run": V1, "x.a2run3": V1})
    fill(folder, {".hidden.a2run": V1, "z.a2run/z.a2run": GAMES[0]})
    game2048.pack_runs(folder, target)
    assert target.read_bytes() == expected_of([V1, V2, V1, GAMES[0]])


@pytest.mark.parametrize(
    ("count", "align"), [(1, 4096), (255, 1), (256, 1), (257, 512), (600, 64), (20, 2**16)]
)
def test_any_number_of_files(folder: Path, target: Path, count: int, align: int) -> None:
    fill(folder, {f"{i:04}.a2run": GAMES[i % 40] for i in range(count)})
    reported = []
    game2048.pack_runs(
        folder, target, align=align, progress=lambda *progress: reported.append(progress)
    )
    assert target.read_bytes() == expected_of([GAMES[i % 40] for i in range(count)], align)
    assert reported == sorted(set(reported))
    assert reported[-1] == (count, count)


def test_the_number_of_threads_changes_nothing(folder: Path, target: Path) -> None:
    fill(folder, {f"{i:04}.a2run": GAMES[i % 40] for i in range(600)})
    fill(folder, {"0100x.a2run": long_game(100_000), "0500x.a2run": long_game(200_000)})
    payloads = [path.read_bytes() for path, _ in find_runs(folder)]
    for compress in COMPRESS:
        made = set()
        for threads in (1, 8):
            game2048.pack_runs(folder, target, threads=threads, compress=compress, replace=True)
            made.add(target.read_bytes())
        target.unlink()
        with sw.PackWriter(target, compress=compress) as writer:
            writer.extend(payloads)
        made.add(target.read_bytes())
        assert len(made) == 1
        with sw.PackReader.open(target) as pack:
            assert pack.verify().ok
            assert pack.version == (1 if compress == "none" else 2)
            assert [bytes(pack.slice(i)) for i in range(len(pack))] == payloads


# What is in the way.


def test_links(folder: Path, target: Path, tmp_path: Path) -> None:
    """A link to a file is that file; links to folders are not followed, so none can loop."""
    elsewhere = tmp_path / "elsewhere"
    fill(elsewhere, {"one.a2run": GAMES[1], "sub/two.a2run": GAMES[2]})
    fill(folder, {"a.a2run": GAMES[0]})
    (folder / "b.a2run").symlink_to(elsewhere / "one.a2run")
    (folder / "loop").symlink_to(folder)
    (folder / "other").symlink_to(elsewhere)
    game2048.pack_runs(folder, target)
    assert target.read_bytes() == expected_of(GAMES[:2])
    (tmp_path / "link").symlink_to(folder)
    game2048.pack_runs(tmp_path / "link", target, replace=True)
    assert target.read_bytes() == expected_of(GAMES[:2])


Change = Callable[[Path], object]
BAD: dict[str, Change] = {
    "garbage": lambda path: path.write_bytes(b"garbage"),
    "empty": lambda path: path.touch(),
    "cut": lambda path: path.write_bytes(V2[:-1]),
    "checksum": lambda path: path.write_bytes(V1[:-1] + bytes([V1[-1] ^ 1])),
    "dangling": lambda path: path.symlink_to("nowhere"),
    "loop": lambda path: path.symlink_to(path.name),
    "fifo": os.mkfifo,
    "link to a folder": lambda path: path.symlink_to(path.parent),
}


@pytest.fixture(params=BAD)
def bad(request: pytest.FixtureRequest) -> Change:
    return BAD[request.param]


def test_a_file_that_is_no_run_stops_it_and_is_named(
    folder: Path, target: Path, bad: Change
) -> None:
    fill(folder, {f"{i}.a2run": GAMES[i] for i in range(8)})
    bad(folder / "5x.a2run2")
    with pytest.raises((sw.FormatError, OSError)) as caught:
        game2048.pack_runs(folder, target)
    assert str(folder / "5x.a2run2") in str(caught.value)
    assert names(target.parent) == []


def test_many_bad_files_leave_no_trace(folder: Path, target: Path, tmp_path: Path) -> None:
    """Also when whole chunks of them come first, between and last."""
    chance = random.Random(3)
    good: list[str] = []
    bad: list[str] = []
    for i in range(1500):
        name = f"{i:04}.a2run2"
        broken = i < 300 or 700 <= i < 1000 or i >= 1280 or chance.random() < 0.1
        (bad if broken else good).append(name)
        if broken:
            chance.choice([*BAD.values()])(folder / name)
        else:
            fill(folder, {name: GAMES[i % 40]})
            fill(tmp_path / "clean", {name: GAMES[i % 40]})
    clean = tmp_path / "clean.a2pack"
    for compress in COMPRESS:
        options: dict[str, Any] = {"compress": compress, "replace": True}
        report = game2048.pack_runs(folder, target, skip_bad=True, **options)
        assert [path.name for path, _ in report.skipped] == bad
        assert report.packed == len(good)
        game2048.pack_runs(tmp_path / "clean", clean, **options)
        assert target.read_bytes() == clean.read_bytes()


@pytest.mark.parametrize("skip_bad", [False, True])
def test_nothing_but_bad_files(folder: Path, target: Path, bad: Change, skip_bad: bool) -> None:
    bad(folder / "a.a2run2")
    bad(folder / "b.a2run")
    with pytest.raises((sw.FormatError, OSError)) as caught:
        game2048.pack_runs(folder, target, skip_bad=skip_bad)
    assert str(folder / "a.a2run2") in str(caught.value)
    assert names(target.parent) == []


def test_directories_without_runs(folder: Path, target: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no \.a2run or \.a2run2 file in"):
        game2048.pack_runs(folder, target)
    fill(folder, {"sub/notes.txt": b""})
    with pytest.raises(FileNotFoundError, match="no "):
        game2048.pack_runs(folder, target)
    for read in (game2048.pack_runs, migrate_runs):
        with pytest.raises(FileNotFoundError, match="absent"):
            read(folder / "absent", target)
    with pytest.raises(NotADirectoryError):
        game2048.pack_runs(folder / "sub" / "notes.txt", target)
    assert names(target.parent) == []


# Files that are not left in peace.


def rewrite(path: Path) -> None:
    stamp = path.stat().st_mtime_ns
    path.write_bytes(game(99))
    os.utime(path, ns=(stamp, stamp + 1))  # the clock of a file system is coarse


CHANGES: dict[str, Change] = {
    "grow": lambda path: path.write_bytes(path.read_bytes() + b"more"),
    "shrink": lambda path: os.truncate(path, path.stat().st_size - 1),
    "rewrite": rewrite,
    "remove": Path.unlink,
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("moment", ["open", "pread"])
@pytest.mark.parametrize("skip_bad", [False, True])
def test_a_file_that_changes_while_it_is_packed(
    folder: Path,
    target: Path,
    change: str,
    moment: str,
    skip_bad: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Changed after it was found and before it is opened, or between open and read."""
    fill(folder, {f"{i}.a2run": GAMES[i] for i in range(5)})
    unlucky = folder / "3.a2run"
    call = getattr(os, moment)
    changed: list[Path] = []

    def late(what: Any, *args: Any, **options: Any) -> Any:
        path = what if moment == "open" else Path(os.readlink(f"/proc/self/fd/{what}"))
        if path == unlucky and not changed:
            changed.append(path)
            CHANGES[change](unlucky)
        return call(what, *args, **options)

    monkeypatch.setattr(os, moment, late)
    harmless = (change, moment) in [("rewrite", "open"), ("remove", "pread")]  # read whole anyway
    if harmless:
        game2048.pack_runs(folder, target, skip_bad=skip_bad)
        new = game(99) if change == "rewrite" else GAMES[3]
        assert target.read_bytes() == expected_of([*GAMES[:3], new, GAMES[4]])
    elif skip_bad:
        report = game2048.pack_runs(folder, target, skip_bad=True)
        assert [path for path, _ in report.skipped] == [unlucky]
        assert target.read_bytes() == expected_of([*GAMES[:3], GAMES[4]])
    else:
        with pytest.raises((sw.FormatError, OSError)) as caught:
            game2048.pack_runs(folder, target)
        assert str(unlucky) in str(caught.value)
        assert names(target.parent) == []
    assert changed


# What it costs.


def test_each_file_is_opened_and_read_once(folder: Path, target: Path) -> None:
    fill(folder, {f"{i:04}.a2run": GAMES[i % 40] for i in range(700)})
    script = """
import collections, os, sys
import stepwell as sw
opened, read = collections.Counter(), collections.Counter()
def audit(event, args):
    if event == "open" and str(args[0]).endswith(".a2run"):
        opened[str(args[0])] += 1
sys.addaudithook(audit)
pread = os.pread
def counted(file, size, at):
    read[os.readlink(f"/proc/self/fd/{file}")] += 1
    return pread(file, size, at)
os.pread = counted
sw.game2048.pack_runs(sys.argv[1], sys.argv[2])
print(len(opened), set(opened.values()), len(read), set(read.values()))
"""
    assert children.answer(script, folder, target) == "700 {1} 700 {1}"


@pytest.mark.skipif(SANITIZED, reason="ASan keeps what was freed")
def test_memory_does_not_grow_with_the_directory(folder: Path, target: Path) -> None:
    """64 files of 1 MB each; a handful of them may be in memory at a time."""
    large = long_game(110_000)
    count = 64
    for i in range(count):
        (folder / f"{i:03}.a2run").write_bytes(large)
    script = (
        PEAK
        + """
sw.game2048.pack_runs(sys.argv[1] + "/../few", sys.argv[2], threads=2)
before = peak()
sw.game2048.pack_runs(sys.argv[1], sys.argv[2], threads=2, replace=True)
print(peak() - before)
"""
    )
    few = folder.parent / "few"
    few.mkdir()
    for i in range(8):
        os.link(folder / f"{i:03}.a2run", few / f"{i}.a2run")
    assert int(children.answer(script, folder, target)) < count * len(large) >> 21
    with sw.PackReader.open(target) as pack:
        assert len(pack) == count


@pytest.mark.skipif(SANITIZED, reason="ASan keeps what was freed")
def test_wide_alignment_is_not_kept_in_memory(folder: Path, target: Path) -> None:
    fill(folder, {f"{i:03}.a2run": GAMES[i % 40] for i in range(200)})
    script = (
        PEAK
        + """
sw.game2048.pack_runs(sys.argv[1], sys.argv[2], align=2**21)
print(peak() - before)
"""
    )
    assert int(children.answer(script, folder, target)) < 100
    assert page.align_up(target.stat().st_size, 2**21) == 201 * 2**21


# Old runs made new.


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "new"


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def as_v2(data: bytes) -> bytes:
    """The v2 file of a v1 run, by the page."""
    return runs.encode_v2(runs.decode_v1(data))


def test_migrate(folder: Path, out: Path) -> None:
    files = {"a.a2run": V1, "b.a2run2": V2, "s/t/c.d.a2run": GAMES[1], "e.a2run2": GAMES[2]}
    fill(folder, {**files, "notes.txt": b"x"})
    before = contents(folder)
    reported: list[tuple[int, int]] = []
    report = migrate_runs(folder, out, progress=lambda *progress: reported.append(progress))
    assert (report.migrated, report.copied, report.there, report.skipped) == (3, 1, 0, [])
    assert contents(out) == {
        "a.a2run2": as_v2(V1),
        "b.a2run2": V2,
        "e.a2run2": as_v2(GAMES[2]),
        "s/t/c.d.a2run2": as_v2(GAMES[1]),
    }
    assert game2048.Run.from_bytes(V1).to_bytes(2) == as_v2(V1)
    assert contents(folder) == before
    assert reported == [(1, 4), (2, 4), (3, 4), (4, 4)]

    report = migrate_runs(folder, out)
    assert (report.migrated, report.copied, report.there) == (0, 0, 4)
    (out / "b.a2run2").unlink()
    report = migrate_runs(folder, out)
    assert (report.migrated, report.copied, report.there) == (0, 1, 3)


def test_migrate_overwrites_nothing(folder: Path, out: Path) -> None:
    fill(folder, {"a.a2run": V1, "b.a2run": GAMES[0]})
    fill(out, {"b.a2run2": b"precious"})
    with pytest.raises(FileExistsError, match=r"b\.a2run2 exists and is not what .*b\.a2run would"):
        migrate_runs(folder, out)
    assert contents(out) == {"a.a2run2": as_v2(V1), "b.a2run2": b"precious"}
    fill(folder, {"a.a2run2": V2})
    with pytest.raises(FileExistsError, match=r"a\.a2run and .*a\.a2run2 would both become"):
        migrate_runs(folder, out / "other")
    assert not (out / "other").exists()


def test_migrate_one_file(folder: Path, out: Path) -> None:
    fill(folder, {"a.a2run": V1})
    migrate_runs(folder / "a.a2run", out)
    migrate_runs(folder / "a.a2run", out / "b.a2run2")
    assert contents(out) == {"a.a2run2": as_v2(V1), "b.a2run2": as_v2(V1)}


@pytest.mark.parametrize("where", [".", "new"])
def test_migrate_inside_the_folder(folder: Path, where: str) -> None:
    fill(folder, {"a.a2run": V1, "s/b.a2run": GAMES[0], "c.a2run2": V2})
    made = {"a.a2run2": as_v2(V1), "s/b.a2run2": as_v2(GAMES[0]), "c.a2run2": V2}
    after = contents(folder) | {os.path.normpath(f"{where}/{name}"): made[name] for name in made}
    for _ in range(2):  # what the first call has made is no source of the second
        report = migrate_runs(folder, folder / where)
        assert contents(folder) == after
    assert (report.migrated, report.copied) == (0, 0)


def test_migrate_and_files_that_are_no_runs(folder: Path, out: Path, bad: Change) -> None:
    fill(folder, {"a.a2run": V1, "c.a2run": GAMES[0]})
    bad(folder / "b.a2run2")
    with pytest.raises((sw.FormatError, OSError)) as caught:
        migrate_runs(folder, out)
    assert str(folder / "b.a2run2") in str(caught.value)
    reported: list[tuple[int, int]] = []
    report = migrate_runs(
        folder, out, skip_bad=True, progress=lambda *progress: reported.append(progress)
    )
    assert [path for path, _ in report.skipped] == [folder / "b.a2run2"]
    assert contents(out) == {"a.a2run2": as_v2(V1), "c.a2run2": as_v2(GAMES[0])}
    assert reported == [(1, 3), (2, 3), (3, 3)]


def test_migrate_that_is_interrupted_continues(folder: Path, out: Path) -> None:
    fill(folder, {f"{i:02}.a2run": GAMES[i] for i in range(20)})

    def stop(done: int, total: int) -> None:
        if done == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        migrate_runs(folder, out, progress=stop)
    assert len(contents(out)) == 7
    report = migrate_runs(folder, out)
    assert (report.migrated, report.there) == (13, 7)
    assert contents(out) == {f"{i:02}.a2run2": as_v2(GAMES[i]) for i in range(20)}
