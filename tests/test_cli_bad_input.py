"""Every verb and what it cannot use: one sentence, the right exit code, nothing left behind."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import stepwell as sw
from stepwell import game2048
from tests.packs import write
from tests.replays import record_all
from tests.runs import RUN_V1, RUN_V2
from tests.test_cli import stepwell
from tests.writer_kit import snapshot

KINDS = ("steps", "records", "shards", "replay", "pack.a2pack", "array.npy")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of each kind, and things that are none."""
    root = tmp_path_factory.mktemp("kinds")
    with sw.StepWriter(root / "steps", [("x", "<f4")], {"score": int}) as steps:
        steps.append({"x": np.arange(5)}, score=3)
    with sw.RecordWriter(root / "records", {"x": sw.Field("<f4"), "y": sw.Field(str)}) as records:
        records.append({"x": np.arange(3), "y": ["a", "b", "c"]})
    with sw.ShardWriter(root / "shards", width=3) as shards:
        shards.append(np.zeros((4, 3), "f4"))
    record_all(root / "replay", "run", range(5))
    write(root / "pack.a2pack", [RUN_V1, RUN_V2])
    np.save(root / "array.npy", np.arange(10.0))
    game2048.play_to(root / "runs", 1, depth=1, seed=1)
    (root / "empty").mkdir()
    (root / "text.txt").write_text("a letter\n")
    (root / "text.a2pack").write_text("a letter\n")
    (root / "nothing.npy").touch()
    (root / "nothing.a2pack").touch()
    (root / "short.a2pack").write_bytes((root / "pack.a2pack").read_bytes()[:112])
    (root / "cut.npy").write_bytes((root / "array.npy").read_bytes()[:100])
    (root / "cut.a2pack").write_bytes((root / "pack.a2pack").read_bytes()[:-9])
    shutil.copytree(root / "shards", root / "cut-shards")
    (shard,) = (root / "cut-shards").glob("*.shard")
    os.truncate(shard, 40)
    return root


# The command, its exit code, and some of its words. {} stands for the folder of stores.
ANY_PATH: list[tuple[str, int, str]] = [
    *(("absent", 2, "absent: No such file"), ("empty", 2, "got an empty folder")),
    *(("text.txt", 2, "got a file"), ("cut.npy", 1, "cut.npy"), ("cut.a2pack", 1, "cut.a2pack")),
    *(("cut-shards", 1, ".shard"), ("text.a2pack", 1, "expected magic")),
    *((name, 1, "truncated") for name in ("nothing.npy", "nothing.a2pack", "short.a2pack")),
]
CASES: list[tuple[str, int, str]] = [
    *(
        (f"{verb} {{}}/{name}{rest}", code, words)
        for verb, rest in (
            *(("info", ""), ("head", ""), ("query", " SELECT+1"), ("bench", " --seconds 0.05")),
            *(("convert", " {}/new --to records"), ("convert", " {}/new.npz")),
        )
        for name, code, words in ANY_PATH
    ),
    *((f"verify {{}}/{name}", code, words) for name, code, words in ANY_PATH if code == 2),
    *((f"query {{}}/{kind} SELECT+1", 2, "no runs") for kind in ("records", "shards", "array.npy")),
    *(
        (f"query {{}}/{kind} {sql}", 2, words)
        for kind in ("steps", "replay", "pack.a2pack")
        for sql, words in (("SELEC", "syntax"), ("SELECT+x+FROM+y", "no such table"))
    ),
    *((f"records rebalance {{}}/{k}", 2, "expected a record store") for k in ("steps", "empty")),
    *((f"records salvage {{}}/{k} {{}}/new", 2, "expected a record store") for k in ("steps",)),
    ("records salvage {}/records {}/steps", 2, "steps"),
    ("head {}/steps -n -1", 2, "'--count'"),
    ("bench {}/steps --batch-size 0", 2, "'--batch-size'"),
    ("info {}/records --stats", 2, "has no runs"),
    ("info s3:/x", 2, "s3:/x: No such file"),
    ("convert {}/records {}/new.npz --field nothing", 2, "expected a field of x, y"),
    ("convert {}/steps {}/new.npz --where nothing=1", 2, "nothing"),
    ("convert {}/steps {}/array.npy", 2, "exists"),
    ("convert {}/steps {}/records --to steps --force", 2, "force: expected steps "),
    ("convert {}/steps s3://bucket/new.npz", 2, "is a URL"),
    ("convert {}/steps {}/text.txt/new.npz", 2, "text.txt"),
    ("convert {}/runs {}/pack.a2pack", 2, "exists"),
    ("convert {}/pack.a2pack {}/new.a2pack", 2, "expected runs to make a pack of"),
    ("convert {}/steps {}/new --to nothing", 2, "'--to'"),
    ("convert {}/steps {}/new.npz --fps 3", 2, "fps: expected a video to write, got npz"),
    ("convert {}/steps {}/new --to records --env CartPole-v1", 2, "env: expected a Minari dataset"),
    ("records salvage {}/records {}/records/new", 2, "inside it"),
    ("records salvage {}/records {}/records", 2, "itself"),
    ("2048 play --games 1 --out {}/steps", 2, "steps is a step dataset; choose another folder"),
    ("2048 migrate {}/runs {}/records", 2, "records is a record store; choose another folder"),
    *((f"{verb} EMPTY", 2, "got an empty text") for verb in ("info", "head", "verify", "bench")),
    ("convert EMPTY {}/new.npz", 2, "got an empty text"),
    ("2048 play --out EMPTY", 2, "got an empty text"),
    ("record --env CartPole-v1 --out s3://bucket/new", 2, "is a URL"),
    ("record --env CartPole-v1 --out {}/new --append", 2, "name it with --run-id"),
    ("2048 play --games 0 --out {}/new", 2, "'--games'"),
    ("2048 play --out {}/text.txt", 2, "text.txt"),
    ("2048 migrate {}/absent {}/new", 2, "absent: No such file"),
    ("2048 migrate {}/empty {}/new", 2, "no .a2run"),
    ("record --env Nothing-v0 --out {}/new", 2, "Nothing"),
    ("record --env CartPole-v1 --frames none --out {}/records", 2, "records"),
    ("frob {}/steps", 2, "No such command 'frob'"),
    ("info", 2, "Missing argument 'PATH'"),
]


@pytest.mark.parametrize(("command", "code", "words"), CASES, ids=[case[0] for case in CASES])
def test_one_sentence_and_nothing_left(made: Path, command: str, code: int, words: str) -> None:
    before = snapshot(made)
    args = [part.replace("{}", str(made)).replace("+", " ") for part in command.split()]
    args = ["" if part == "EMPTY" else part for part in args]
    done = stepwell(*args)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert words in done.stderr
    assert snapshot(made) == before


@pytest.mark.filterwarnings("default:.*a record store costs")
def test_a_refused_convert_does_not_warn(tmp_path: Path) -> None:
    np.save(tmp_path / "small.npy", np.zeros(200_000, "u1"))
    args = ("convert", tmp_path / "small.npy", tmp_path / "records", "--compress", "zstd")
    assert "a record store costs" in stepwell(*args).stderr
    again = stepwell(*args)
    assert again.returncode == 2
    assert again.stderr.startswith("error: ")


def test_more_problems_than_are_listed(tmp_path: Path) -> None:
    with sw.RecordWriter(tmp_path / "records", {"x": sw.Field("<f8", compress="lz4")}) as records:
        records.append({"x": np.arange(500.0)})
    (chunk,) = (tmp_path / "records" / "chunk").iterdir()
    os.truncate(chunk, 100)
    done = stepwell("verify", tmp_path / "records")
    assert done.returncode == 1
    assert "100 problems" in done.stdout
    assert "not checked: the rest: the check ends after 100 problems\n" in done.stderr


def test_json_of_what_is_not_finite(tmp_path: Path) -> None:
    """There is no infinity in JSON, and bytes are in hexadecimal, whichever verb prints them."""
    with sw.StepWriter(tmp_path / "steps", [("x", "<f4")], {"score": float, "key": bytes}) as steps:
        steps.append({"x": np.full(1, np.nan)}, score=np.inf, key=b"\0\xff")
    query = stepwell("query", tmp_path / "steps", "SELECT score, key FROM runs", "--json")
    assert query.stdout == '[{"score": null, "key": "00ff"}]\n'
    info = stepwell("info", tmp_path / "steps", "--stats", "--json")
    stats = json.loads(info.stdout, parse_constant=pytest.fail)["stats"]
    assert stats["score"] == {"min": None, "mean": None, "max": None}


def test_a_terminal_obeys_no_text_of_a_store(tmp_path: Path) -> None:
    with sw.StepWriter(tmp_path / "steps", [("x", "<f4")], {"name": str}) as steps:
        steps.append({"x": np.zeros(1)}, name="\x1b[2J\x9b1A\ta\nb")
    shown = stepwell("query", tmp_path / "steps", "SELECT name FROM runs").stdout
    assert shown == "name\n\\x1b[2J\\x9b1A\\ta\\nb\n"
    failed = stepwell("query", tmp_path / "steps", "SELECT \x1b[2J")
    assert "\x1b" not in failed.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_a_reader_that_goes_away(made: Path, kind: str) -> None:
    """A closed pipe ends a command without a word."""
    script = "from stepwell.cli import main; main()"
    command = [sys.executable, "-c", script, "head", str(made / kind), "-n", "5000", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.close()
        assert child.stderr is not None
        printed = child.stderr.read()
    assert (printed, child.returncode) == (b"", 141)


EARLY = """
import signal, sys
class Finder:
    def find_spec(self, name, *rest):
        if name == "{name}":
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Finder())
from stepwell.cli import {command}
{command}()
"""


@pytest.mark.parametrize("command", ["main", "a2pack"])
@pytest.mark.parametrize("name", ["numpy", "typer", "stepwell._core", "stepwell.cli.console"])
def test_an_interrupt_while_it_begins(command: str, name: str) -> None:
    script = EARLY.format(command=command, name=name)
    done = subprocess.run([sys.executable, "-c", script, "--help"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


INTERRUPTED = """
import signal, sys
import stepwell as sw
from stepwell import batches
from stepwell.formats import into_records
batches.BATCH_BYTES, into_records._COMMIT_BYTES = 100, 1
append = sw.RecordWriter.append
def stop(self, *args):
    append(self, *args)
    self.commit()
    signal.raise_signal(signal.SIGINT)
sw.RecordWriter.append = stop
from stepwell.cli import main
main()
"""


def test_an_interrupted_convert_says_what_it_kept(made: Path, tmp_path: Path) -> None:
    paths = (str(made / "array.npy"), str(tmp_path / "out"))
    command = [sys.executable, "-c", INTERRUPTED, "convert", *paths]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == (
        f"interrupted; {tmp_path}/out.part keeps what was done, the same command goes on\n"
    )
    assert stepwell("convert", made / "array.npy", tmp_path / "out").returncode == 0


@pytest.mark.parametrize(("kind", "name"), [("steps", "steps.npy"), ("shards", "*.shard")])
def test_damage_is_not_copied(made: Path, tmp_path: Path, kind: str, name: str) -> None:
    """Reads of these compare no checksums, and a copy would get new ones."""
    damaged = tmp_path / kind
    shutil.copytree(made / kind, damaged)
    (file,) = damaged.glob(name)
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    done = stepwell("convert", damaged, tmp_path / "out.jsonl")
    assert (done.returncode, done.stdout, "CRC32C" in done.stderr) == (1, "", True), done.stderr
    assert sorted(tmp_path.iterdir()) == [damaged]


def test_a_conversion_is_printed(made: Path) -> None:
    done = stepwell("convert", made / "array.npy", "-", "--to", "jsonl")
    assert (done.returncode, done.stderr) == (0, "")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == len(sw.open(made / "array.npy"))
    for more in ([], ["--to", "records"], ["--to", "jsonl", "--append"]):
        done = stepwell("convert", made / "array.npy", "-", *more)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == "error: -: expected --to and a format that is one file, to print\n"
