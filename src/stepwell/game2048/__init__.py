"""2048: boards as numbers, a player, and the games it plays as runs.

from stepwell import game2048

game2048.move(board, game2048.LEFT)             boards, one or millions
for run in game2048.play(100, seed=1): ...      whole games, the same on every machine
game2048.play_to("runs", 5000, seed=1)          the same as .a2run2 files
game2048.Run.load("game.a2run2")                one of them
game2048.pack_runs("runs", "games.a2pack")      all of them in one file, for `PackReader`
game2048.GameSteps("runs")                      their steps, as rows to train on
game2048.decode(batch)                          boards taken apart, values masked
"""

from stepwell.game2048.board import (
    DOWN,
    LEFT,
    RIGHT,
    UP,
    exponents,
    from_exponents,
    highest_tile,
    legal,
    move,
    score,
    show,
)
from stepwell.game2048.decode import Decode, decode
from stepwell.game2048.packing import PackReport, pack_runs
from stepwell.game2048.payload import RunPayloads, RunStats, RunSteps
from stepwell.game2048.player import play, play_to
from stepwell.game2048.run_files import MigrateReport, migrate_runs
from stepwell.game2048.runs import Run, RunMeta
from stepwell.game2048.training import STEP, GameSteps, filter_by_score

__all__ = [
    "DOWN",
    "LEFT",
    "RIGHT",
    "STEP",
    "UP",
    "Decode",
    "GameSteps",
    "MigrateReport",
    "PackReport",
    "Run",
    "RunMeta",
    "RunPayloads",
    "RunStats",
    "RunSteps",
    "decode",
    "exponents",
    "filter_by_score",
    "from_exponents",
    "highest_tile",
    "legal",
    "migrate_runs",
    "move",
    "pack_runs",
    "play",
    "play_to",
    "score",
    "show",
]
