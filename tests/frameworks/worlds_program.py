"""A run that goes on in one world of gloo after another: four ranks, two, three."""

import json
import os
from functools import partial
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch.distributed as dist

import stepwell as sw
from tests.frameworks.notes import ROWS, SEED, N, Notes

BATCH = 16
WORLDS = {4: 5, 2: 7, 3: None}
"""How many steps each takes; the last one reads on to the end of the next epoch."""
SAMPLERS: dict[str, Any] = {
    "shuffled": sw.Shuffle(SEED),
    "in blocks": sw.Block(8, SEED, group=16),
    "in blocks of one's own": sw.Block(8, SEED, group=24, lanes=12),
}


def rank_main(rank: int, world: int, number: int, states: dict[str, Any]) -> None:
    store = Path(os.environ["STEPWELL_NOTES"]) / f"group of {world}"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    notes = Notes(number)
    for name in SAMPLERS:
        notes.ask(f"{name}, {world} ranks", partial(part, name, states.get(name), world))
    dist.barrier()
    dist.destroy_process_group()


def part(name: str, state: Any, world: int) -> Any:
    """The rows of each step with the positions before and after it, and the state after all."""
    loader: Any = sw.torch.Loader(ROWS, BATCH, sampler=SAMPLERS[name])
    if state is not None:
        loader.load_state_dict(state)
    steps = []
    for epoch in (0, 1) if WORLDS[world] is None else (0,):
        at = loader.position
        for batch in islice(loader, WORLDS[world]):
            steps.append([epoch, at, loader.position, batch["data"].tolist()])
            at = loader.position
    return [steps, loader.state_dict()]


if __name__ == "__main__":
    states: dict[str, Any] = {}
    number = 0
    for world in WORLDS:
        fork = get_context("fork")  # torch takes seconds to import
        ranks = [
            fork.Process(target=rank_main, args=(rank, world, number + rank, states))
            for rank in range(world)
        ]
        for each in ranks:
            each.start()
        for each in ranks:
            each.join()
        saved = Path(os.environ["STEPWELL_NOTES"]) / f"{number + world - 1}.json"
        said = json.loads(saved.read_text())  # by the last rank, for all of the next world
        states = {name: said[f"{name}, {world} ranks"][1] for name in SAMPLERS}
        number += world
    assert number <= 10 < N
