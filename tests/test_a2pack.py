"""The commands about packs and games: what they print, and with which code they exit."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import stepwell as sw
from stepwell import cli, game2048
from tests.reference import pack as page, runs
from tests.runs import RUN_V1 as V1, RUN_V2 as V2


class Done(NamedTuple):
    code: int
    out: str
    err: str

    def json(self) -> Any:
        """The one object that was printed, and nothing else."""
        assert (self.code, self.err) == (0, "")
        assert self.out.count("\n") == 1
        return json.loads(self.out)

    def fails(self, code: int, text: str) -> None:
        """Assert that it ended with one line about what is wrong."""
        assert self.code == code
        assert self.out == ""
        assert self.err.startswith("error: ")
        assert self.err.count("\n") == 1
        assert text in self.err


Command = Callable[..., Done]


@pytest.fixture
def stepwell(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """The command `stepwell`, in this process."""
    return _command(cli.main, monkeypatch, capfd)


@pytest.fixture
def a2pack(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """The command `a2pack`, in this process."""
    return _command(cli.a2pack, monkeypatch, capfd)


def _command(
    main: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Command:
    def run(*args: Any) -> Done:
        monkeypatch.setattr(sys, "argv", ["command", *map(str, args)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        done = Done(int(ended.value.code or 0), *capfd.readouterr())
        assert "Traceback" not in done.err
        return done

    return run


def process(*args: str | Path) -> Done:
    """An installed command in a process of its own."""
    command = Path(sys.executable).with_name(str(args[0]))
    done = subprocess.run([command, *args[1:]], capture_output=True, text=True, timeout=110)
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory with the two runs of the page."""
    folder = tmp_path / "runs"
    folder.mkdir()
    (folder / "a.a2run").write_bytes(V1)
    (folder / "b.a2run2").write_bytes(V2)
    return folder


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "games.a2pack"


@pytest.fixture
def games(target: Path) -> Path:
    """The pack of the page."""
    target.write_bytes(runs.file_of("pack.md", "pack-v1"))
    return target


@pytest.fixture
def raw(target: Path) -> Path:
    with sw.PackWriter(target) as writer:
        writer.append(V1)
        writer.append(b"hello", 77)
    return target


# pack


def test_pack(a2pack: Command, stepwell: Command, folder: Path, target: Path) -> None:
    pack = ("pack", "--input", folder, "--output", target, "--align", 64)
    done = a2pack(*pack, "--force")
    assert (done.code, done.err) == (0, "")
    assert target.read_bytes() == runs.file_of("pack.md", "pack-v1")
    for line in (f"packfile     {target}", "runs         2", "pack_bytes   453"):
        assert line in done.out.splitlines()
    assert {path.name for path in target.parent.iterdir()} == {"runs", target.name}


def test_pack_does_not_replace_unless_forced(a2pack: Command, folder: Path, target: Path) -> None:
    target.write_bytes(b"precious")
    pack = ("pack", "--input", folder, "--output", target)
    a2pack(*pack).fails(2, f"{target} exists")
    assert target.read_bytes() == b"precious"
    assert a2pack(*pack, "--force", "--json").json() == {
        "packfile": str(target),
        "runs": 2,
        "skipped": 0,
        "input_bytes": len(V1) + len(V2),
        "pack_bytes": target.stat().st_size,
    }


def test_pack_options(a2pack: Command, folder: Path, target: Path) -> None:
    (folder / "b.a2run2").write_bytes(game2048.Run([7] * 99, [0] * 99, 7).to_bytes())
    pack = ("pack", "--input", folder, "--output", target, "--workers", 3)
    assert a2pack(*pack, "--compress", "zstd", "--level", 5).code == 0
    with sw.PackReader.open(target) as opened:
        assert (len(opened), opened.version) == (2, 2)


@pytest.mark.parametrize(
    "options",
    [
        *(["--align", "100"], ["--compress", "gzip"], ["--level", "0"], ["--workers", "0"]),
    ],
    ids=str,
)
def test_pack_usage(a2pack: Command, folder: Path, target: Path, options: list[str]) -> None:
    done = a2pack("pack", "--input", folder, "--output", target, *options)
    assert (done.code, done.out) == (2, "")
    if options[0] == "--align":
        done.fails(2, f"align: expected a power of two up to 2**30, got {options[1]}")
    assert os.listdir(target.parent) == [folder.name]


def test_pack_and_files_that_are_no_runs(a2pack: Command, folder: Path, target: Path) -> None:
    bad = folder / "aa.a2run2"
    bad.write_bytes(b"garbage")
    pack = ("pack", "--input", folder, "--output", target, "--align", 64)
    a2pack(*pack).fails(1, str(bad))
    done = a2pack(*pack, "--skip-bad")
    assert done.code == 0
    assert done.err.startswith(f"skipped: {bad}: ")
    assert done.err.count("\n") == 1
    assert "skipped      1" in done.out
    assert target.read_bytes() == runs.file_of("pack.md", "pack-v1")
    done = a2pack(*pack, "--skip-bad", "--force", "--json")
    assert json.loads(done.out)["skipped"] == 1


def test_a_folder_for_the_output_that_is_not_there(
    a2pack: Command, folder: Path, games: Path, tmp_path: Path
) -> None:
    where = tmp_path / "absent" / "out"
    a2pack("pack", "--input", folder, "--output", where).fails(2, f"{where}: No such file")
    a2pack("pack", "--input", where, "--output", games).fails(2, str(where))
    a2pack("to-jsonl", "--packfile", games, "--output", where).fails(2, f"{where}: No such file")
    a2pack("to-jsonl", "--packfile", games, "--output", "/").fails(2, "/ exists; --force")


# validate


def test_validate(a2pack: Command, games: Path) -> None:
    for options in ([], ["--full"]):
        done = a2pack("validate", games, *options)
        assert (done.code, done.out.startswith(f"OK: {games} (")) == (0, True)
        facts = a2pack("validate", "--packfile", games, *options, "--json").json()
        assert (facts["path"], facts["ok"], facts["problems"]) == (str(games), True, [])
    a2pack("validate").fails(2, "expected one pack: a2pack VERB FILE")
    a2pack("validate", games, "--packfile", games).fails(2, "expected one pack")


def test_validate_reads_a_sample_unless_asked_for_all(a2pack: Command, target: Path) -> None:
    entries = [page.Entry(2, V2) for _ in range(300)]
    target.write_bytes(page.write_pack(entries, 1, page.stats_of((2, V2) for _ in range(300))))
    assert "256 of 300 entries" in a2pack("validate", target).out
    assert "300 of 300 entries" in a2pack("validate", target, "--full").out


def test_validate_lists_what_is_broken(a2pack: Command, games: Path) -> None:
    data = bytearray(games.read_bytes())
    data[140] ^= 1  # in the first payload
    data[300] ^= 1  # in the second
    games.write_bytes(data)
    done = a2pack("validate", games)
    assert (done.code, done.out) == (1, f"INVALID: {games} (2 problems)\n")
    first, second = done.err.splitlines()[:2]
    assert first.endswith(f" - at {games}:128") and "entry 0" in first  # noqa: PT018
    assert second.endswith(f" - at {games}:256") and "entry 1" in second  # noqa: PT018
    found = json.loads(a2pack("validate", games, "--full", "--json").out)
    assert not found["ok"]
    assert [problem["offset"] for problem in found["problems"]][:2] == [128, 256]
    games.write_bytes(games.read_bytes()[:-1])
    done = a2pack("validate", games)
    assert (done.code, done.out) == (1, f"INVALID: {games} (1 problem)\n")


@pytest.mark.parametrize(
    "command",
    [
        ["validate"],
        ["stats"],
        ["stats", "--where", "steps > 1"],
        ["to-jsonl", "--output", "x"],
        ["to-parquet", "--output", "x"],
        ["extract", "--indices", "0", "--output", "x"],
        ["inspect", "--index", "0"],
    ],
)
def test_a_pack_that_is_not_there(
    a2pack: Command, tmp_path: Path, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    a2pack(*command, "--packfile", "absent.a2pack").fails(2, "absent.a2pack: No such file")
    a2pack(*command, tmp_path).fails(2, "expected a pack, got")
    if command[0] != "validate":
        Path("bad.a2pack").write_bytes(b"PK\3\4")
        a2pack(*command, "--packfile", "bad.a2pack").fails(1, "expected magic b'A2PACK")
        Path("bad.a2pack").unlink()
    assert os.listdir() == []


# stats


STATS = {
    "version": 1,
    "stored_bytes": len(V1) + len(V2),
    "count": 2,
    "total_steps": 5,
    "min_len": 2,
    "max_len": 3,
    "mean_len": 2.5,
    "p50_len": 3,
    "p90_len": 3,
    "p99_len": 3,
    "highest_tile_hist": {"512": 1, "2048": 1},
    "engine_counts": {"test-engine": 1, "test-engine-v2": 1},
}


def test_stats(a2pack: Command, games: Path) -> None:
    assert a2pack("stats", "--packfile", games, "--json").json() == {
        "packfile": str(games),
        **STATS,
    }
    done = a2pack("stats", "--packfile", games)
    assert (done.code, done.err) == (0, "")
    assert [line.split()[0] for line in done.out.splitlines() if not line.startswith(" ")] == [
        "packfile",
        *STATS,
    ]
    for text in ("2.500", "512: 1", "2048: 1", "test-engine-v2: 1", str(games)):
        assert text in done.out


def test_stats_where(a2pack: Command, games: Path) -> None:
    where = ("stats", "--packfile", games, "--where")
    facts = a2pack(*where, "engine = 'test-engine-v2'", "--json").json()
    assert (facts["count"], facts["total_steps"]) == (1, 3)
    assert facts["highest_tile_hist"] == {"512": 1}
    facts = a2pack(*where, "steps > 100", "--json").json()
    assert (facts["count"], facts["engine_counts"]) == (0, {})
    assert a2pack(*where, "steps > 100").code == 0
    a2pack(*where, "frob > 1").fails(2, "no such column: frob; the columns are run, kind, steps")
    a2pack(*where, "1; DROP TABLE runs").fails(2, "where")


# to-jsonl, to-parquet


def test_to_jsonl(a2pack: Command, games: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    export = ("to-jsonl", games, "--force", "--output", out)
    by_run = runs.block("pack.md", "jsonl", "runs")
    for options in (
        [],
        ["--runs-only"],
        ["--no-parallel"],
        ["--parallel", "--workers", "3"],
        ["--boards", "number"],
    ):
        done = a2pack(*export, *options)
        assert done == (0, f"{out}: 2 lines, {len(by_run):,} bytes\n", "")
        assert out.read_text() == by_run
    done = a2pack(*export, "--steps")
    by_step = runs.block("pack.md", "jsonl", "steps")
    assert done == (0, f"{out}: 5 lines, {len(by_step):,} bytes\n", "")
    assert out.read_text() == by_step
    assert a2pack(*export, "--boards", "hex", "--where", "kind = 1").out.startswith(
        f"{out}: 1 line"
    )
    assert out.read_text() == runs.block("pack.md", "jsonl", "runs-hex")
    seed = runs.block("pack.md", "jsonl", "seed")
    done = a2pack(*export, "--layout", "seed")
    assert done == (0, f"{out}: 7 lines, {len(seed):,} bytes\n", "")
    assert out.read_text() == seed
    ends = tmp_path / "runs.jsonl"
    for options, want in ((["--layout", "seed"], seed), (["--steps"], seed + by_step)):
        done = a2pack(*export, *options, "--runs", ends)
        assert done.out.splitlines()[1] == f"{ends}: 2 lines, {ends.stat().st_size} bytes"
        both = (out.read_text() + ends.read_text()).splitlines()
        assert len(both) == 7
        assert set(both) <= {*want.splitlines()}
    assert ": 0 lines, 0 bytes" in a2pack(*export, "--where", "0").out
    assert out.read_text() == ""
    assert a2pack("to-jsonl", games, "--output", "-") == (0, by_run, "")


def test_to_jsonl_refuses(a2pack: Command, games: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    export = ("to-jsonl", "--packfile", games, "--output", out)
    a2pack(*export, "--steps", "--runs-only").fails(2, "give --steps or --runs-only, not both")
    a2pack(*export, "--layout", "seed", "--runs-only").fails(2, "not both")
    (tmp_path / "here").symlink_to(tmp_path)
    (tmp_path / "link.jsonl").symlink_to(out)
    for same in ("-", out, tmp_path / "here" / out.name, tmp_path / "link.jsonl"):
        a2pack(*export, "--runs", same).fails(2, "--runs: expected a file of its own")
    a2pack(*export, "--runs", games).fails(2, f"{games} exists; --force")
    a2pack(*export, "--where", "frob").fails(2, "frob")
    for place in ("s3://bucket/x", "s3://bucket"):
        assert f"{place} is a URL; expected a path" in " ".join(
            a2pack("to-jsonl", games, "--output", place).err.replace("│", "").split()
        )
    for options in (["--boards", "octal"], ["--workers", "0"]):
        assert a2pack(*export, *options).code == 2
    assert not out.exists()
    out.write_text("precious")
    a2pack(*export).fails(2, f"{out} exists; --force replaces it")
    assert out.read_text() == "precious"


def test_to_parquet(a2pack: Command, games: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    ipc = pytest.importorskip("pyarrow.ipc")
    export = ("to-parquet", "--packfile", games, "--output")
    done = a2pack(*export, tmp_path / "steps.parquet")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"{tmp_path / 'steps.parquet'}: 5 steps, ")
    table = parquet.read_table(tmp_path / "steps.parquet")
    assert table["run_idx"].to_pylist() == [0, 0, 1, 1, 1]
    assert a2pack(*export, tmp_path / "steps.arrow", "--where", "kind = 2").code == 0
    with ipc.open_file(tmp_path / "steps.arrow") as file:
        assert file.read_all() == table.slice(2)


# extract, inspect


def test_extract(a2pack: Command, games: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "folder"
    done = a2pack("extract", "--packfile", games, "--indices", "1, 0,1", "--output", out)
    first, second = out / "run-000000.a2run", out / "run-000001.a2run2"
    assert done == (0, f"{second}\n{first}\n{second}\n", "")
    assert (first.read_bytes(), second.read_bytes()) == (V1, V2)


@pytest.mark.parametrize("indices", ["", "1,x", "0,,1", "9" * 30])
def test_extract_refuses(a2pack: Command, games: Path, tmp_path: Path, indices: str) -> None:
    out = tmp_path / "out"
    a2pack("extract", "--packfile", games, "--indices", indices, "--output", out).fails(2, "")
    assert not out.exists() or not list(out.iterdir())


def test_an_entry_that_is_not_there(a2pack: Command, games: Path, tmp_path: Path) -> None:
    text, out = "row 2 is outside a source of 2 rows", tmp_path / "out"
    a2pack("inspect", "--packfile", games, "--index", 2).fails(2, text)
    extract = ("extract", "--packfile", games, "--output", out)
    a2pack(*extract, "--indices", "0,2").fails(2, text)
    assert not out.exists()


def test_inspect(a2pack: Command, games: Path) -> None:
    assert a2pack("inspect", "--packfile", games, "--index", 0, "--json").json() == {
        "packfile": str(games),
        "index": 0,
        "kind": "v1",
        "bytes": len(V1),
        "steps": 2,
        "start_unix_s": 1_700_000_000,
        "elapsed_s": pytest.approx(12.34),
        "max_score": 12345,
        "highest_tile": 2048,
        "engine": "test-engine",
        "moves": {"up": 1, "down": 0, "left": 1, "right": 0},
        "steps_with_branches": 0,
        "final_board": "0x1100000000000000",
    }
    done = a2pack("inspect", "--packfile", games, "--index", 1)
    assert (done.code, done.err) == (0, "")
    for text in ("v2", "test-engine-v2", "down: 1", "0x2220000000000000", "4     4     4     ."):
        assert text in done.out


def test_inspect_a_time_that_is_none(a2pack: Command, target: Path) -> None:
    with sw.PackWriter(target) as writer:
        writer.append(game2048.Run([1], [0], 2, elapsed_s=float("nan")))
    facts = a2pack("inspect", "--packfile", target, "--index", 0, "--json").json()
    assert facts["elapsed_s"] is None
    assert "nan" in a2pack("inspect", "--packfile", target, "--index", 0).out


def test_other_payloads(a2pack: Command, raw: Path, tmp_path: Path) -> None:
    facts = {"packfile": str(raw), "index": 1, "kind": "raw:77", "bytes": 5}
    assert a2pack("inspect", "--packfile", raw, "--index", 1, "--json").json() == facts
    extract = ("extract", raw, "--indices", "1", "--output", tmp_path)
    a2pack(*extract).fails(2, f"{tmp_path} has files in it; --force")
    assert a2pack(*extract, "--force").code == 0
    assert (tmp_path / "run-000001.bin").read_bytes() == b"hello"
    for command in ("to-jsonl", "to-parquet"):
        refused = a2pack(command, "--packfile", raw, "--output", tmp_path / "out")
        refused.fails(2, "expected runs only, got raw:77")
        assert not (tmp_path / "out").exists()


# play, migrate


def test_play(stepwell: Command, tmp_path: Path) -> None:
    play = ("2048", "play", "--games", 3, "--depth", 1, "--seed", 5)
    facts = stepwell(*play, "--out", tmp_path / "a", "--json").json()
    made = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    assert len(made) == 3
    assert facts.pop("seconds") >= 0
    assert facts == {
        "path": str(tmp_path / "a"),
        "games": 3,
        "bytes": sum(map(len, made.values())),
    }
    done = stepwell(*play, "--out", tmp_path / "b", "--workers", 2)
    assert (done.code, done.err) == (0, "")
    assert {path.name: path.read_bytes() for path in (tmp_path / "b").iterdir()} == made


@pytest.mark.parametrize(
    "options", [["--games", "0"], ["--depth", "7"], ["--seed", str(2**64)], ["--workers", "0"]]
)
def test_play_usage(stepwell: Command, tmp_path: Path, options: list[str]) -> None:
    assert stepwell("2048", "play", "--out", tmp_path / "a", *options).code == 2
    assert not (tmp_path / "a").exists()
    (tmp_path / "file").touch()
    stepwell("2048", "play", "--out", tmp_path / "file", "--games", 1).fails(
        2, str(tmp_path / "file")
    )


def test_migrate(stepwell: Command, folder: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    facts = stepwell("2048", "migrate", folder, new, "--json").json()
    assert facts == {"migrated": 1, "copied": 1, "there": 0, "skipped": 0}
    assert (new / "a.a2run2").read_bytes() == runs.encode_v2(runs.decode_v1(V1))
    (folder / "c.a2run").write_bytes(b"garbage")
    stepwell("2048", "migrate", folder, new).fails(1, str(folder / "c.a2run"))
    done = stepwell("2048", "migrate", folder, new, "--skip-bad")
    assert done.code == 0
    assert done.err.startswith(f"skipped: {folder / 'c.a2run'}: ")


def test_old_games_become_steps(stepwell: Command, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "games"
    refusal = "a.a2run: step 0 has no branches; without_values=True (--without-values) takes such"
    stepwell("convert", folder, out).fails(1, refusal)
    assert stepwell("convert", folder, out, "--without-values", "--json").json()["runs"] == 2
    more = ("convert", folder, out, "--append", "--without-values")
    stepwell(*more).fails(2, "2 of 2 runs are there already, the first is a.a2run, which is run 0")
    assert stepwell(*more, "--again", "--json").json()["runs"] == 2  # that were added
    assert len(sw.StepReader.open(out).runs) == 4


# All of them.


def test_paths_are_printed_as_they_are(a2pack: Command, folder: Path, tmp_path: Path) -> None:
    """Neither markup, nor emoji, nor 80 columns."""
    target = tmp_path / ("long-name-" * 15 + "[bold]x[") / "red]:smile:.a2pack"
    target.parent.mkdir()
    done = a2pack("pack", "--input", folder, "--output", target)
    assert f"packfile     {target}" in done.out.splitlines()
    assert a2pack("validate", "--packfile", target).out.startswith(f"OK: {target} (")
    assert f"packfile           {target}" in a2pack("stats", "--packfile", target).out.splitlines()
    lines = tmp_path / "[a]:b:.jsonl"
    done = a2pack("to-jsonl", "--packfile", target, "--output", lines)
    assert done.out.startswith(f"{lines}: ")
    done = a2pack("extract", "--packfile", target, "--indices", "0", "--output", tmp_path / "[e]")
    assert done.out == f"{tmp_path / '[e]' / 'run-000000.a2run'}\n"
    done = a2pack("stats", "--packfile", tmp_path / "[/x]:no:")
    assert f"{tmp_path / '[/x]:no:'}" in done.err


def test_paths_that_are_not_utf_8(folder: Path, tmp_path: Path) -> None:
    target = os.fsencode(tmp_path) + b"/\xff.a2pack"
    command = Path(sys.executable).with_name("a2pack")
    for args in (["pack", "--input", folder, "--output", target], ["stats", "--packfile", target]):
        done = subprocess.run([command, *args], capture_output=True, timeout=110)
        assert (done.returncode, done.stderr) == (0, b"")
        assert target in done.stdout


def test_as_processes(folder: Path, target: Path) -> None:
    assert process("a2pack", "--version") == (0, f"stepwell {sw.__version__}\n", "")
    done = process("a2pack", "pack", "--input", folder, "--output", target, "--align", "64")
    assert (done.code, done.err) == (0, "")
    assert process("a2pack", "stats", target, "--json").json()["count"] == 2
    target.write_bytes(target.read_bytes()[:-1])
    assert process("a2pack", "validate", target).code == 1
    process("a2pack", "stats", target).fails(1, str(target))


def test_bars_are_for_terminals(folder: Path, target: Path) -> None:
    """On a terminal there is a bar, on standard error; results are elsewhere all the same."""
    command = Path(sys.executable).with_name("a2pack")
    terminal, side = pty.openpty()
    done = subprocess.run(
        [command, "pack", "--input", folder, "--output", target, "--json"],
        stdout=subprocess.PIPE,
        stderr=side,
        timeout=110,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(side)
    shown = os.read(terminal, 65536)
    os.close(terminal)
    assert b"packing" in shown
    assert json.loads(done.stdout)["runs"] == 2
