"""Minari datasets: episodes of transitions.

A row is a transition: `observation`, `action`, `reward` (float64), `terminated`, `truncated` and
`next_observation`. An episode of T steps has T + 1 observations, so each but the first and the last
is there twice; in return any row can be used alone, and where an episode was truncated its last
observation is not lost. Parts of Dict and Tuple spaces are fields `observation.name` and
`observation.0`. Infos are left out. Everything here needs the extra `minari`.
"""

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stepwell.batches import in_order
from stepwell.errors import SchemaError
from stepwell.files.extras import library
from stepwell.files.regular import bytes_on_disk
from stepwell.formats.runs import RunList, find_runs
from stepwell.formats.streams import Progress, Stream
from stepwell.source import Batch, Field, Source
from stepwell.stores.replay.channels import assemble

if TYPE_CHECKING:
    import gymnasium as gym
    import minari

PREFIX = "minari:"
"""Before the name of a dataset, where a path could stand too."""

_NUMBER = re.compile(r"/(\d+)(?=/|$)")
_INDEX = re.compile(r"^\((\d+)\)$")
_NEEDED = ("reward", "terminated", "truncated")


class MinariSource(Stream):
    """The steps of a dataset, a run for each episode; Minari reads whole episodes.

    Runs have `episode` (its id), `total_reward`, and `seed` where it is known, as text, because
    Minari draws seeds that SQLite's numbers cannot hold.
    """

    kind = "minari"
    noun = "a Minari dataset"

    def __init__(
        self, dataset: "str | Path | minari.MinariDataset", fields: Sequence[str] | None = None
    ) -> None:
        if isinstance(dataset, Path):
            dataset = library("minari", "minari").MinariDataset(dataset / "data")
        elif isinstance(dataset, str):
            dataset = library("minari", "minari").load_dataset(dataset.removeprefix(PREFIX))
        self._dataset: minari.MinariDataset = dataset
        ids = dataset.episode_indices
        if not len(ids):
            raise SchemaError(f"{dataset.id}: no episodes")
        first = _transitions(next(iter(dataset.iterate_episodes(ids[:1]))))
        made = {name: Field(a.dtype, a.shape[1:]) for name, a in first.items()}
        metadata = list(dataset.storage.get_episode_metadata(ids))
        counts = np.array([int(facts["total_steps"]) for facts in metadata], np.int64)
        super().__init__(f"{PREFIX}{dataset.id}", made, int(counts.sum()))
        rewards = [facts.get("rewards_sum") for facts in metadata]
        if None in rewards:
            rewards = [np.sum(e.rewards, dtype=np.float64) for e in dataset.iterate_episodes()]
        seeds = [facts.get("seed") for facts in metadata]
        known: dict[str, Sequence[Any]] = {
            "episode": [int(i) for i in ids],
            "seed": [None if seed is None else str(int(seed)) for seed in seeds],
            "total_reward": [float(reward) for reward in rewards],
        }
        self._counts = counts
        self.runs = RunList(counts, known, zip(*known.values(), strict=True))

    def _stored_bytes(self) -> int:
        return bytes_on_disk(Path(self._dataset.storage.data_path))

    def _from(self, first: int, names: Sequence[str]) -> Iterator[Batch]:
        ends = np.cumsum(self._counts)
        number = int(np.searchsorted(ends, first, side="right"))
        skip = first - int(ends[number] - self._counts[number]) if number < len(ends) else 0
        for episode in self._dataset.iterate_episodes(self._dataset.episode_indices[number:]):
            found = _transitions(episode)
            if list(found) != list(self.schema):
                raise SchemaError(
                    f"episode {episode.id}: expected {list(self.schema)}, got {list(found)}"
                )
            if len(found["reward"]) > skip:
                yield {name: found[name][skip:] for name in names}
            skip = 0


def _transitions(episode: Any) -> dict[str, NDArray[Any]]:
    """The steps of a Minari episode, one array per field."""
    steps = len(episode.rewards)
    seen = dict(_leaves("observation", episode.observations))
    done = dict(_leaves("action", episode.actions))
    for kind, found, want in (("observations", seen, steps + 1), ("actions", done, steps)):
        for name, values in found.items():
            if values.ndim == 0 or len(values) != want:
                raise SchemaError(
                    f"episode {episode.id}: expected {want} {kind} for {steps} steps, "
                    f"got {name} of shape {values.shape}"
                )
    fields = {name: values[:-1] for name, values in seen.items()} | done
    fields["reward"] = np.asarray(episode.rewards, np.float64)
    fields["terminated"] = np.asarray(episode.terminations, np.bool)
    fields["truncated"] = np.asarray(episode.truncations, np.bool)
    fields |= {f"next_{name}": values[1:] for name, values in seen.items()}
    return fields


def _leaves(name: str, values: Any) -> Iterator[tuple[str, NDArray[Any]]]:
    """The arrays in nested dictionaries and tuples, by their path."""
    if isinstance(values, Mapping):
        for key, inner in values.items():
            yield from _leaves(f"{name}.{key}", inner)
    elif isinstance(values, tuple):
        for i, inner in enumerate(values):
            yield from _leaves(f"{name}.{i}", inner)
    else:
        yield name, np.asarray(values)


# Out.


def write(
    source: Source,
    name: str,
    *,
    progress: Progress,
    env: "str | gym.Env[Any, Any] | None" = None,
    **facts: Any,
) -> "minari.MinariDataset":
    """Make a dataset of transitions, an episode of each run. Memory is the longest of them.

    Spaces are those of `env`, or given among `facts`, or made of the rows: numbers that are whole
    become `Discrete`, up to the largest there is. Episodes that are not whole are left out, with a
    warning: without a final observation, or with steps that were dropped. `facts` go to Minari:
    `algorithm_name`, `author`, `observation_space`, ….
    """
    minari = library("minari", "minari")
    from minari.data_collector import EpisodeBuffer
    from minari.dataset.minari_dataset import parse_dataset_id

    name = name.removeprefix(PREFIX)
    try:
        parse_dataset_id(name)
    except (TypeError, ValueError):
        raise ValueError(f"expected a name like 'pong/random-v0', got {name!r}") from None
    if name in minari.list_local_datasets():
        raise FileExistsError(f"there is a Minari dataset {name} already")
    parts = {kind: _parts(kind, source) for kind in ("observation", "action")}
    missing = [each for each in _NEEDED if each not in source.schema]
    if missing:
        raise SchemaError(f"a Minari dataset has {', '.join(_NEEDED)}; {missing[0]} is missing")
    runs = find_runs(source)
    whole = [i for i in range(len(runs)) if _is_whole(runs[i], int(runs.counts[i]))]
    if not whole:
        raise SchemaError("there are no episodes with all steps and a final observation")
    if len(whole) < len(runs):
        warnings.warn(
            f"{len(runs) - len(whole)} of {len(runs)} episodes are left out: without a final "
            "observation, or with steps that were dropped",
            stacklevel=2,
        )
    if env is None:
        for kind, fields in parts.items():
            facts.setdefault(f"{kind}_space", _space(_tree(kind, fields), source))

    def buffers() -> Iterator[Any]:
        for number, i in enumerate(whole):
            begin = int(runs.starts[i])
            steps = source.take(np.arange(begin, begin + int(runs.counts[i])))

            seen = {
                at: np.concatenate([steps[name], steps[f"next_{name}"][-1:]])
                for at, name in parts["observation"].items()
            }
            done = {at: steps[name] for at, name in parts["action"].items()}
            yield EpisodeBuffer(
                observations=_tree("observation", seen),
                actions=_tree("action", done),
                rewards=steps["reward"],
                terminations=steps["terminated"],
                truncations=steps["truncated"],
            )
            progress(number + 1, len(whole))

    # The encoding would change the pixels.
    return minari.create_dataset_from_buffers(
        name, buffers(), env=env, jpeg_encoding=False, **facts
    )


def _is_whole(known: Mapping[str, Any], rows: int) -> bool:
    """Whether nothing is known to be missing from a run."""
    if not rows or known.get("dropped") or known.get("steps", rows) != rows:
        return False
    return known.get("final_obs_ref", "") is not None


def _parts(kind: str, source: Source) -> dict[str, str]:
    """The fields of one kind, by their place in its tree: `observation/place/(0)`."""
    found = {}
    for name in source.schema:
        if name != kind and not name.startswith((f"{kind}/", f"{kind}.")):
            continue
        if kind == "observation" and f"next_{name}" not in source.schema:
            raise SchemaError(f"a Minari dataset needs next_{name} beside {name}")
        found[_NUMBER.sub(r"/(\1)", name.replace(".", "/"))] = name
    if not found:
        raise SchemaError(f"there are no {kind}s in {', '.join(source.schema)}")
    return found


def _tree(kind: str, found: Mapping[str, Any]) -> Any:
    """The values as a nested tree; numbers that do not count from 0 are names."""

    def named(tree: Any) -> Any:
        if isinstance(tree, tuple):
            return tuple(map(named, tree))
        if isinstance(tree, dict):
            return {_INDEX.sub(r"\1", key): named(inner) for key, inner in tree.items()}
        return tree

    return named(assemble(kind, found))


def _space(tree: Any, source: Source) -> "gym.Space[Any]":
    """A space that all rows of fields lie in, nested as these are."""
    from gymnasium import spaces

    if isinstance(tree, dict):
        return spaces.Dict({key: _space(inner, source) for key, inner in tree.items()})
    if isinstance(tree, tuple):
        return spaces.Tuple(tuple(_space(inner, source) for inner in tree))
    field: Field = source.schema[tree]
    dtype: Any = field.dtype
    if field.ragged or dtype.kind not in "biuf":
        raise SchemaError(f"{tree!r}: Minari has no space for {field}")
    if dtype == np.bool:
        return spaces.Box(False, True, field.shape, np.bool)
    if dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, field.shape, dtype.type)
    if field.shape:
        limits = np.iinfo(dtype)
        return spaces.Box(limits.min, limits.max, field.shape, dtype.type)
    low, high = 0, 0
    names = [name for name in (tree, f"next_{tree}") if name in source.schema]
    for batch in in_order(source.columns(names)):
        for values in batch.values():
            low, high = min(low, int(np.min(values))), max(high, int(np.max(values)))
    return spaces.Discrete(high - low + 1, start=low, dtype=dtype.type)
