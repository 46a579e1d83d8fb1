"""The programs in examples/ do what they say."""

import os
import random
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
ALONE = {**os.environ, "OMP_NUM_THREADS": "1"}  # other tests may want the other cores


def printed(*args: object, cwd: Path | None = None) -> list[str]:
    """The lines that a program prints which is left alone."""
    done = subprocess.run(
        [sys.executable, *map(str, args)],
        capture_output=True,
        text=True,
        check=True,
        timeout=110,
        cwd=cwd,
        env=ALONE,
    )
    return done.stdout.splitlines()


def run_block(words: str) -> None:
    """Run the lines in docs/recording.md that have these words."""
    page = (EXAMPLES.parent / "docs" / "recording.md").read_text()
    blocks = re.findall(r"^```py\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (block,) = (block for block in blocks if words in block)
    exec(block, {"__name__": "__main__"})


ELSEWHERE = {
    "build_with_ray.py",
    "train_flax.py",
    "train_sb3.py",
    "train_torchrl.py",
}  # in tests/frameworks
NAMES = sorted({path.name for path in EXAMPLES.glob("*.py")} - ELSEWHERE)
Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs an example in this process, in an empty folder; its exit code and what it printed."""
    monkeypatch.chdir(tmp_path)

    def call(name: str, *args: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", [name, *args])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        assert isinstance(end.value.code, int)
        return end.value.code, "".join(capsys.readouterr())

    return call


@pytest.mark.parametrize("name", NAMES)
def test_help_explains_and_does_nothing(name: str, run: Run, tmp_path: Path) -> None:
    code, text = run(name, "--help")
    assert code == 0
    assert text.startswith(f"usage: {name} ")
    folder = r"folder .*made if it is missing \(default: [a-z0-9]+-data\)"
    assert re.search(folder, " ".join(text.split()))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        *((name, ["a file"], "data: expected a folder") for name in NAMES),
        *((name, ["--nothing"], "unrecognized arguments: --nothing") for name in NAMES),
        ("train_2048.py", ["--games", "4"], "argument --games: expected at least 5, some are held"),
        ("train_2048.py", ["--width", "-1"], "--width: expected a whole number above 0, got '-1'"),
        ("train_sae.py", ["--rows", "ten"], "--rows: expected a whole number above 0, got 'ten'"),
        ("train_sae.py", ["--rows", "9"], "sae-data: expected at least 512 rows (--batch-"),
        ("train_replay.py", ["--record", "9"], "cartpole-data: expected at least 256 steps to le"),
    ],
)
def test_arguments_that_cannot_be(name: str, args: list[str], message: str, run: Run) -> None:
    Path("a file").touch()
    code, text = run(name, *args)
    assert code == 2
    *_, last = text.splitlines()  # after the usage
    assert last.startswith(f"{name}: error: ")
    assert message in last
    assert not list(Path().glob("*.*"))  # a folder of the program's, at most


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("train_resume.py", ["."]),
        ("train_2048.py", ["--games", "5", "--checkpoint", "checkpoint.pt"]),
        ("train_sae.py", ["--rows", "600", "--checkpoint", "checkpoint.pt"]),
    ],
)
def test_a_checkpoint_of_something_else(name: str, args: list[str], run: Run) -> None:
    Path("checkpoint.pt").write_text("not a checkpoint")
    code, text = run(name, *args)
    assert code == 2
    assert "checkpoint.pt: expected a checkpoint of this training, got a " in text
    assert Path("checkpoint.pt").read_text() == "not a checkpoint"


def killed(*args: object, lines: int) -> list[str]:
    """The lines that a program prints which is killed after so many."""
    command = [sys.executable, *map(str, args)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ALONE) as child:
        assert child.stdout is not None
        seen = [child.stdout.readline() for _ in range(lines)]
        child.kill()
        return seen + child.stdout.readlines()  # what it printed before it died


def test_training_killed_and_resumed_sees_every_row_once(tmp_path: Path) -> None:
    program = [EXAMPLES / "train_resume.py", tmp_path / "new"]
    draw = random.Random(1)
    for _ in range(2):
        seen = killed(*program, lines=draw.randint(1, 30))
        assert all(line.startswith("epoch") for line in seen[:-1])
    first, *_, last = printed(*program)
    assert not first.startswith("epoch 0 row 256 ")  # it did not start over
    assert last.startswith("every row exactly once in each of 3 epochs: True; see ")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["checkpoint.pt"]


def test_a_bucket_is_trained_from_and_training_goes_on(tmp_path: Path) -> None:
    for _ in range(2):  # the second time from the cache
        first, half, end, last = printed(EXAMPLES / "train_from_bucket.py", tmp_path / "new")
        assert first.startswith("20,000 steps at http://127.0.0.1:")
        assert half.startswith("epoch 0 row 9984 loss ")
        assert end.startswith("epoch 0 row 20000 loss ")
        assert last == "every row once, in the order of the sampler: True"


def test_a_policy_killed_and_resumed_learns_the_same(tmp_path: Path) -> None:
    """Ten games, small layers: the way is the same, the accuracy is not the one it states."""
    options = ["--games", "10", "--epochs", "2", "--batch-size", "512", "--width", "32"]
    whole, seen = with_and_without_a_kill(
        "train_2048.py", tmp_path, [*options, "--every", "8"], lines=5
    )
    for step, loss in losses(whole).items():
        assert abs(losses(seen)[step] - loss) < 1e-3  # sums may be taken in another order
    values = list(losses(whole).values())
    assert values[-1] < values[0] - 0.05
    last = r"(\d+) steps, accuracy (\S+)% on held-out games, .*% of the training spent waiting"
    ends = [re.match(last, lines[-1]) for lines in (whole, seen)]
    assert ends[0] is not None
    assert ends[1] is not None
    assert ends[0][1] == ends[1][1]
    assert abs(float(ends[0][2]) - float(ends[1][2])) < 0.3
    assert float(ends[0][2]) > 40


def test_an_autoencoder_killed_and_resumed_learns_the_same(tmp_path: Path) -> None:
    options = ["--rows", "8000", "--features", "256", "--steps", "240", "--every", "20"]
    whole, seen = with_and_without_a_kill(
        "train_sae.py", tmp_path, [*options, "--batch-size", "128"], lines=4
    )
    for step, loss in losses(whole).items():
        assert abs(losses(seen)[step] - loss) < 1e-2 * loss  # sums may be taken in another order
    values = list(losses(whole).values())
    assert values[-1] < values[0] * 0.6
    drawn = re.match(r"the loss is drawn in (.*)", whole[-3])
    assert drawn is not None
    assert Path(drawn[1]).stat().st_size > 200
    found = re.match(r"directions found: (\S+)% \(cosine (\S+) in the mean\)", whole[-2])
    assert found is not None
    assert float(found[2]) > 0.4  # two random ones: 0.2
    assert re.match(r"240 steps, \d+ s, \S+% of the training spent waiting for data", whole[-1])


def test_the_picture_without_matplotlib(tmp_path: Path) -> None:
    script = (
        f"import sys; sys.path.insert(0, {str(EXAMPLES)!r}); sys.modules['matplotlib'] = None\n"
        f"from pathlib import Path; import train_sae\n"
        f"print(train_sae.draw([(1, 2.0), (5, 1.0)], Path({str(tmp_path)!r}) / 'sae'))"
    )
    assert printed("-c", script)[-1].endswith("sae.svg")
    assert "580.0,190.0" in (tmp_path / "sae.svg").read_text()


MAKING = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import stepwell as sw, train_sae
append, calls = sw.ShardWriter.append, 0
def some(writer, rows):
    global calls
    calls += 1
    if calls == 6:  # in the second shard
        raise KeyboardInterrupt
    append(writer, rows)
whole = train_sae.open_shards(Path("whole"), 50_000)
sw.ShardWriter.append = some
try:
    train_sae.open_shards(Path("killed"), 50_000)
except KeyboardInterrupt:
    sw.ShardWriter.append = append
killed = train_sae.open_shards(Path("killed"), 50_000)
assert len(list(Path("killed").glob("*.npy"))) == 1
assert [shard.crc32c for shard in killed.shards] == [shard.crc32c for shard in whole.shards]
print(calls, len(killed))
"""


def test_shards_that_were_not_all_made(tmp_path: Path) -> None:
    assert printed("-c", MAKING, EXAMPLES, cwd=tmp_path)[-1] == "6 50000"


def with_and_without_a_kill(
    example: str, folder: Path, options: list[str], *, lines: int
) -> tuple[list[str], list[str]]:
    """What a training prints that is left alone, and one that is killed after so many lines and
    then begun again."""
    command = [EXAMPLES / example, folder, *options, "--checkpoint"]
    whole = printed(*command, folder / "whole.pt")
    seen = killed(*command, folder / "killed.pt", lines=lines)
    seen += printed(*command, folder / "killed.pt")
    assert sum(line.startswith("goes on after step") for line in seen) == 1
    assert losses(seen).keys() == losses(whole).keys()
    return whole, seen


def losses(lines: list[str]) -> dict[int, float]:
    """The loss that was printed at each step."""
    found = [re.match(r"step (\d+) of \d+: loss ([0-9.]+)", line) for line in lines]
    return {int(match[1]): float(match[2]) for match in found if match}


def test_a_step_that_waits_for_nothing(tmp_path: Path) -> None:
    small = ("--games", 5, "--steps", 3, "--width", 16, "--batch-size", 64, "--device", "cpu")
    *_, kept, resident, memory = printed(EXAMPLES / "train_2048_gpu.py", tmp_path / "data", *small)
    for line, name in ((kept, "one batch, kept"), (resident, "resident"), (memory, "from memory")):
        assert re.fullmatch(rf"{name} +[\d.]+ us a step, waiting +[\d.]+%, loss [\d.]+", line)
    assert resident.partition("loss")[2] == memory.partition("loss")[2]  # the same rows
