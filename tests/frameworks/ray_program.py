"""Ray: two workers of a TorchTrainer, and then the program of Ray's page."""

import os
from typing import Any

import ray
import ray.train
import torch.distributed as dist
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_data_loader

import stepwell as sw
from tests import ROOT
from tests.frameworks.notes import BATCH, EVEN_ROWS, ROWS, SEED, Notes, epochs, rows
from tests.frameworks.test_pages import programs_of


def prepared() -> Any:
    """As Ray's page has it: the sampler that it adds is given each epoch."""
    loader: Any = prepare_data_loader(sw.torch.DataLoader(EVEN_ROWS, BATCH, seed=SEED))
    seen = []
    for epoch in range(3):
        loader.sampler.set_epoch(epoch)
        seen.append(rows(loader))
    return seen


def worker(config: Any) -> None:
    notes = Notes(ray.train.get_context().get_world_rank())
    loader = sw.torch.Loader(ROWS, BATCH, seed=SEED)
    notes.ask("Loader", lambda: epochs(loader))
    notes.ask("prepare_data_loader", prepared)
    # As in a trainer of another framework: only Ray knows of ranks.
    dist.destroy_process_group()
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        os.environ.pop(name, None)
    alone = sw.Loader(ROWS, BATCH, seed=SEED)
    notes.ask("Loader without a group", lambda: epochs(alone))
    notes.ask("repr", lambda: [repr(alone)])


class Actor:
    """One that no trainer knows of; the variables are those of the node's raylet."""

    def rank(self) -> str:
        os.environ |= {"SLURM_STEP_ID": "0", "SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4"}
        return repr(sw.Loader(ROWS, BATCH))


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    actor: Any = ray.remote(Actor).remote()
    Notes(2).ask("actor", lambda: ray.get(actor.rank.remote()))
    ray.kill(actor)
    here = RunConfig(storage_path=os.getcwd())
    TorchTrainer(worker, scaling_config=ScalingConfig(num_workers=2), run_config=here).fit()
    (page,) = programs_of(ROOT / "docs/frameworks/ray.md")
    exec(page["program"], {"__name__": "__main__"})
