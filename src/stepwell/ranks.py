"""Which rank this process is, of how many, who knows that, and whether the ranks read the same.

    find()      the arguments, torch.distributed, JAX, Ray, then the variables of launchers
    Meeting     compares what the ranks of a group are about to read, and nobody waits

Nothing is imported for it: a framework that knows of ranks has been imported by the program.
"""

import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

UNKNOWN = "unknown"
"""The fingerprint of a source that is damaged; it may be any."""


class World(NamedTuple):
    """This process among those that share the rows of a loader."""

    rank: int
    size: int
    where: str

    def __str__(self) -> str:
        return f"{self.rank} of {self.size} ({self.where})"


ALONE = World(0, 1, "one process")
GROUPS = _TORCH, _JAX, _RAY = "torch.distributed", "jax.distributed", "ray.train"
"""Where a rank can come from that a child process does not find by itself."""


def find(parents: tuple[int, World] | None = None) -> World:
    """Rank and world of this process, from the first that knows them.

    `parents` is what another process found, with its id: worker processes are of the rank of their
    parent. Raises `ValueError` for variables that contradict each other, and for a world without a
    rank.
    """
    torch = sys.modules.get("torch.distributed")
    if torch is not None and torch.is_available() and torch.is_initialized():
        return World(torch.get_rank(), torch.get_world_size(), _TORCH)
    jax = sys.modules.get("jax")
    if jax is not None and jax.distributed.is_initialized():
        return World(jax.process_index(), jax.process_count(), _JAX)
    if parents is not None and parents[0] == _parent():
        return parents[1]
    return _of_ray() or _of_variables() or ALONE


def group() -> object:
    """The process group that is up, to see whether it is still the same; None if there is none."""
    try:
        torch: Any = sys.modules.get("torch.distributed")
        if torch is not None and (world := torch.group.WORLD) is not None:
            return world
    except AttributeError:  # torch without it, or one that is being imported
        pass
    try:
        jax: Any = sys.modules.get("jax._src.distributed")
        return None if jax is None else jax.global_state.client
    except AttributeError:
        return None


def _parent() -> int | None:
    """The process that made this one, as multiprocessing knows it: a forkserver is in between."""
    process = sys.modules.get("multiprocessing.process")
    parent = None if process is None else process.parent_process()
    return None if parent is None else int(parent.pid)


def _of_ray() -> World | None:
    train = sys.modules.get(_RAY)
    if train is None or not _in_ray():
        return None
    try:
        context = train.get_context()
        return World(context.get_world_rank(), context.get_world_size(), _RAY)
    except Exception:  # this is no worker of Ray Train
        return None


def _in_ray() -> bool:
    """Whether Ray started this process, whose variables are then those of Ray's own start."""
    ray: Any = sys.modules.get("ray")
    try:
        if not ray.is_initialized():  # to ask for the context would start a Ray here
            return False
        worker = ray.get_runtime_context().worker
        return bool(worker.connected and worker.mode == ray.WORKER_MODE)
    except AttributeError:  # there is no Ray, or it is being imported
        return False


def _of_variables() -> World | None:
    size = _number("WORLD_SIZE")
    if size is not None and _number("RANK") is not None:
        return _world("RANK", "WORLD_SIZE")
    if size is not None and _number("LOCAL_RANK") is not None:
        return _of_lightning(size)
    found = None if _in_ray() else _of_launcher()
    if size not in (None, 1 if found is None else found.size):
        raise ValueError(
            "expected RANK beside WORLD_SIZE, or rank= and world_size=, "
            f"got WORLD_SIZE={size} and {'no rank' if found is None else f'rank {found}'}"
        )
    for name in ("RANK", "LOCAL_RANK"):
        if found is None and size is None and _number(name):
            raise ValueError(f"expected WORLD_SIZE beside {name}={_number(name)}, got none")
    return found


def _of_launcher() -> World | None:
    if _in_slurm_step():
        return _world("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
    for rank, world in (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE")):
        if os.environ.get(rank) and os.environ.get(world):
            return _world(rank, world)
    return None


def _of_lightning(size: int) -> World:
    """Lightning sets no RANK: it counts nodes, and the processes of each."""
    local, node = _number("LOCAL_RANK") or 0, _number("NODE_RANK")
    node = (_number("GROUP_RANK") or 0) if node is None else node
    each = _number("LOCAL_WORLD_SIZE")
    if node and each is None:
        raise ValueError(
            f"expected RANK or LOCAL_WORLD_SIZE, got NODE_RANK={node}, LOCAL_RANK={local} and "
            f"WORLD_SIZE={size}, which do not show how many processes a node has; begin the loop "
            "when the process group is up, or give rank= and world_size="
        )
    return _checked(World(node * (each or 0) + local, size, "LOCAL_RANK and WORLD_SIZE"))


def _in_slurm_step() -> bool:
    """Whether `srun` started this process: a batch script has the variables of its job only.

    The steps of batch scripts, interactive shells and the like have numbers just below 2**32.
    """
    step = os.environ.get("SLURM_STEP_ID") or os.environ.get("SLURM_STEPID") or ""
    return step.isdecimal() and int(step) < 2**32 - 16 and "SLURM_STEP_NUM_TASKS" in os.environ


def _world(rank: str, size: str) -> World:
    if _number(rank) is None:
        raise ValueError(f"expected {rank} beside {size}={_number(size)}, got none")
    return _checked(World(_number(rank) or 0, _number(size) or 0, f"{rank} and {size}"))


def _checked(world: World) -> World:
    if not 0 <= world.rank < world.size:
        raise ValueError(
            f"expected a rank below the world's size, got rank {world.rank} of {world.size} "
            f"- at {world.where}"
        )
    return world


def _number(name: str) -> int | None:
    text = os.environ.get(name)
    if text and not text.isdecimal():
        raise ValueError(f"expected a whole number, got {text!r} - at the variable {name}")
    return int(text) if text else None


# Whether the ranks read the same.


class Meeting:
    """What the ranks of a group are about to read, compared once in each loop.

    Each rank puts its facts into the key-value store of the group. The first one's stay for the
    others to compare theirs with, so a loop costs the same in any world. Loaders are known by the
    lines that made them, loops by the number of places that were begun before: a rank that looks
    at a batch and then begins the same epoch again has begun one place.
    """

    def __init__(self) -> None:
        self._made = _lines()
        self._name = ""
        self._loops: dict[tuple[int, int], tuple[int, str]] = {}  # the last places, and how reached
        self._facts: dict[str, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**Meeting().__dict__, "_made": f"{self._made} and copied"}

    def forget_facts(self) -> None:
        """Have the next loop find its facts again."""
        self._facts = {}

    def begin(
        self,
        world: World,
        place: tuple[int, int],
        left: str,
        facts: Callable[[], dict[str, Any]],
        *,
        any_epoch: bool = False,
    ) -> None:
        """Raise `RuntimeError` if a rank that began the same loop has other facts.

        `left` is where the loop before this one was left, `UNKNOWN` if that does not matter. With
        `any_epoch` the epochs of ranks may differ, because all have the same rows.
        """
        store = _store_of(world)
        if store is None:
            return
        if not self._facts:
            self._facts = facts()
        if not self._name:
            self._name = f"stepwell/{world.size}/{self._made}/{_names[self._made]}"
            _names[self._made] += 1
        if place not in self._loops:
            last = max((number for number, _ in self._loops.values()), default=-1)
            self._loops[place] = last + 1, left
            for old in list(self._loops)[:-_KEPT]:
                del self._loops[old]
        loop, left = self._loops[place]
        mine = {
            **self._facts,
            "epoch": UNKNOWN if any_epoch else place[0],
            "position": place[1],
            "end of the loop before": left,
        }
        text = json.dumps({"loop": loop, "rank": world.rank, **mine})
        try:
            store.set(f"{self._name}/rank {world.rank}", text)
            first = store.first(f"{self._name}/loop {loop}", text)
            if first == text:
                store.delete(f"{self._name}/loop {loop - _KEPT}")
                return
            theirs = json.loads(first)
            odd = [name for name in mine if _differ(mine[name], theirs[name])]
            if not odd:
                return
            known = [store.get(f"{self._name}/rank {rank}") for rank in range(world.size)]
        except (RuntimeError, AttributeError):  # the store has gone, or can do less than others
            return
        facts_of = [json.loads(each) for each in known if each is not None]
        ranks: dict[str, list[int]] = {}
        for each in (theirs, *facts_of):
            if each["loop"] == loop and each["rank"] not in ranks.get(each[odd[0]], []):
                ranks.setdefault(each[odd[0]], []).append(each["rank"])
        fewest = sorted(ranks, key=lambda value: (len(ranks[value]), -max(ranks[value])))
        got = " and ".join(f"{value!r} on {_names_of(ranks[value])}" for value in fewest)
        raise RuntimeError(
            f"expected the same {odd[0]} on every rank, got {got} "
            f"- in a loop of the loader made at {self._made.split(' < ')[0]}; "
            "every rank begins the same loops, or names their epochs with set_epoch"
        )


_KEPT = 16
"""Loops of a loader that are kept in the store; a rank that is further behind is not compared."""

_names: Counter[str] = Counter()
"""How many loaders that were made by the same lines have met others."""

_foreign: object = None
"""The group of the parent of a forked process, whose connection is the parent's."""


def _forked() -> None:
    global _foreign
    _foreign = group()


os.register_at_fork(after_in_child=_forked)


def _lines() -> str:
    """The lines of the program that led here, the last one first."""
    lines: list[str] = []
    frame: Any = sys._getframe(1)
    while frame is not None and len(lines) < 6:
        if not str(frame.f_globals.get("__name__")).startswith("stepwell."):
            lines.append(f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}")
        frame = frame.f_back
    return " < ".join(lines)


def _differ(mine: Any, theirs: Any) -> bool:
    return bool(mine != theirs and UNKNOWN not in (mine, theirs))


def _names_of(ranks: list[int]) -> str:
    names = ", ".join(str(rank) for rank in sorted(ranks)[:8])
    return f"rank{'s' * (len(ranks) > 1)} {names}{', …' * (len(ranks) > 8)}"


class _TorchStore:
    def __init__(self) -> None:
        torch: Any = sys.modules["torch.distributed"]
        self._store = torch.distributed_c10d._get_default_store()
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            # torchrun's own store, which may have what ranks left there that have died since.
            attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
            self._store = torch.PrefixStore(f"attempt {attempt}", self._store)

    def first(self, key: str, value: str) -> str:
        """The value of a key, which is this one if it has none."""
        return str(self._store.compare_set(key, "", value).decode())

    def set(self, key: str, value: str) -> None:
        self._store.set(key, value)

    def get(self, key: str) -> str | None:
        return self._store.get(key).decode() if self._store.check([key]) else None

    def delete(self, key: str) -> None:
        self._store.delete_key(key)


class _JaxStore:
    def __init__(self) -> None:
        jax: Any = sys.modules["jax._src.distributed"]
        self._client = jax.global_state.client

    def first(self, key: str, value: str) -> str:
        """The value of a key, which is this one if it has none."""
        try:
            self._client.key_value_set(key, value)
        except RuntimeError:  # it has one
            return str(self._client.blocking_key_value_get(key, 1000))
        return value

    def set(self, key: str, value: str) -> None:
        self._client.key_value_set(key, value, allow_overwrite=True)

    def get(self, key: str) -> str | None:
        try:
            return str(self._client.key_value_try_get(key))
        except RuntimeError:
            return None

    def delete(self, key: str) -> None:
        self._client.key_value_delete(key)


def _store_of(world: World) -> _TorchStore | _JaxStore | None:
    """The store of the group that the world is of, unless the connection is another process's."""
    if world.size == 1 or world.where not in (_TORCH, _JAX) or group() is _foreign:
        return None
    try:
        return _TorchStore() if world.where == _TORCH else _JaxStore()
    except (AttributeError, KeyError, RuntimeError, ValueError):
        return None
