"""The sparse autoencoder in examples/ learns, killed or not."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.test_examples import EXAMPLES, losses


def test_an_autoencoder_killed_and_resumed_learns_the_same(tmp_path: Path) -> None:
    options = ["--rows", "8000", "--features", "256", "--steps", "240", "--every", "20"]
    command = [sys.executable, str(EXAMPLES / "train_sae.py"), str(tmp_path), *options]
    command += ["--batch-size", "128", "--checkpoint"]
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}  # other tests may want the other cores

    def finish(checkpoint: str) -> list[str]:
        run = [*command, str(tmp_path / checkpoint)]
        done = subprocess.run(
            run, capture_output=True, text=True, check=True, timeout=110, env=alone
        )
        return done.stdout.splitlines()

    whole = finish("whole.pt")
    run = [*command, str(tmp_path / "killed.pt")]
    with subprocess.Popen(run, stdout=subprocess.PIPE, text=True, env=alone) as child:
        assert child.stdout is not None
        seen = [child.stdout.readline() for _ in range(4)]
        child.kill()
        seen += child.stdout.readlines()  # what it printed before it died
    seen += finish("killed.pt")
    assert sum(line.startswith("goes on after step") for line in seen) == 1
    assert losses(seen).keys() == losses(whole).keys()
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
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=110
    )
    assert done.stdout.strip().endswith("sae.svg")
    assert "580.0,190.0" in (tmp_path / "sae.svg").read_text()
