"""Build a step dataset of games of 2048 with Ray, and read it with Ray Data.

python examples/build_with_ray.py [build-data/]

Half a minute, most of it Ray's. Run again, it builds what is missing, and reads.
"""

import argparse
from pathlib import Path

import numpy as np
import ray

import stepwell as sw

GAMES = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "data",
        type=Path,
        nargs="?",
        default=Path("build-data"),
        help="folder for games, made if it is missing (default: %(default)s)",
    )
    args = parser.parse_args()
    try:
        args.data.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"data: expected a folder - {error}")

    sw.game2048.play_to(args.data / "played", GAMES, depth=1)
    games = args.data / "games"
    ray.init(ignore_reinit_error=True, include_dashboard=False, log_to_driver=False)
    if not games.exists():
        report = sw.ray.convert(args.data / "played", games)  # in the Ray that was joined
        print(f"built {report.rows} rows of {report.runs} games")

    dataset = sw.ray.read(games, fields=["board", "move"], override_num_blocks=4)
    moves = dataset.groupby("move").count().to_pandas()
    counted = dict(zip(moves["move"].tolist(), moves["count()"].tolist(), strict=True))
    with sw.StepReader.open(games) as steps:  # the same rows, for a training loop
        assert counted == dict(enumerate(np.bincount(steps["move"][:], minlength=4).tolist()))
    for move, name in enumerate(("up", "down", "left", "right")):
        print(f"{name:5} {counted[move]}")
    ray.shutdown()


if __name__ == "__main__":
    main()
