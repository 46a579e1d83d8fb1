"""What a replay store holds, as something else.

export_video(reader, "run_1-ep0003", "game.mp4")     the frames of an episode or a run
export_steps(reader, out)                             a step dataset, to train from at memory speed
export_minari(reader.where("ended"), "cart/mine-v0")  a Minari dataset

Frames are read a few at a time. Steps need the memory of the longest episode.
"""

import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stepwell.errors import SchemaError
from stepwell.files.video import new_video
from stepwell.source import Source
from stepwell.stores.replay.channels import ACTIONS, OBSERVATIONS, Channel, Tree, assemble
from stepwell.stores.replay.episodes import EpisodeSteps
from stepwell.stores.replay.reader import ReplayReader
from stepwell.stores.steps import RunColumn, StepReader
from stepwell.stores.steps.publish import StepRun, publish_runs

if TYPE_CHECKING:
    import gymnasium as gym
    import minari

__all__ = ["export_minari", "export_steps", "export_video"]

_Path = str | os.PathLike[str]
_Progress = Callable[[int, int], None]

_SLICE_BYTES = 1 << 23
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_RUN_COLUMNS: Mapping[str, type] = {
    "episode_id": str,
    "run_id": str,
    "agent_id": str,
    "total_reward": float,
    "terminated": int,
    "truncated": int,
    "dropped": int,
    "started_at": str,
    "ended_at": str,
}


# Pictures.


def export_video(
    reader: ReplayReader,
    name: str,
    path: _Path,
    *,
    fps: float = 30,
    on_progress: _Progress | None = None,
) -> int:
    """Write the frames of an episode, or of all episodes of a run, to a `.gif` or `.mp4` file.

    Return how many there are. Raises `KeyError` for a name that is neither, `ValueError` when
    there are no frames. Needs the extra `video`.
    """
    episodes = _named(reader, name)
    question = "SELECT frame_ref FROM steps WHERE episode_id = ? ORDER BY step_index"
    refs: list[str] = []
    for episode in episodes.episodes:
        rows = reader.query(question, episode.episode_id).rows
        refs += [ref for (ref,) in rows if ref is not None]
    if not refs:
        raise ValueError(f"{name}: there are no frames")
    done, at_once = 0, 1
    with new_video(Path(path), fps) as add:
        while done < len(refs):
            frames = reader.resolver.resolve_batch(refs[done : done + at_once], missing="raise")
            for frame in frames:
                add(frame)
            done += len(frames)
            at_once = max(1, _SLICE_BYTES // frames[0].nbytes)
            if on_progress is not None:
                on_progress(done, len(refs))
    return len(refs)


def _named(reader: ReplayReader, name: str) -> ReplayReader:
    if any(episode.episode_id == name for episode in reader.episodes):
        return reader.where("episode_id = ?", name)
    if name not in reader.recordings:
        raise KeyError(f"there is no episode and no run {name!r} - at {reader.root}")
    return reader.where("run_id = ?", name)


# Steps.


def export_steps(
    source: ReplayReader,
    out: _Path,
    *,
    shard_bytes: int | None = None,
    on_progress: _Progress | None = None,
) -> StepReader:
    """Make a step dataset of episodes, each of them a run, and open it, mapped.

    Rows are those of the reader; parts of dicts and tuples become fields `observation.camera` and
    `observation.0`. Run columns are what the store knows of an episode. `out` must not exist, and
    appears when it is complete.
    """
    names = _field_names(source)
    if not len(source):
        raise SchemaError("there are no steps")
    dtype = np.dtype([(names[n], field.dtype, field.shape) for n, field in source.schema.items()])

    def runs(_: np.dtype[Any]) -> Iterator[StepRun]:
        begin = 0
        for episode, length in zip(source.episodes, source.runs.counts.tolist(), strict=True):
            if length:
                batch = source.take(np.arange(begin, begin + length))
                known = {name: _plain(getattr(episode, name)) for name in _RUN_COLUMNS}
                yield {names[name]: np.asarray(values) for name, values in batch.items()}, known
            begin += length
            if on_progress is not None:
                on_progress(begin, len(source))

    kinds = {name: RunColumn(kind) for name, kind in _RUN_COLUMNS.items()}
    return publish_runs(out, dtype, kinds, runs, shard_bytes)


def _field_names(source: Source) -> dict[str, str]:
    """The fields of a source, and what they are called in a step dataset."""
    names = {name: re.sub(r"/(?:\((\d+)\)(?=/|$))?", r".\1", name) for name in source.schema}
    for name in names.values():
        if not _NAME.fullmatch(name):
            raise SchemaError(f"{name!r} cannot name a field: letters, digits and _ . - can")
    if len(set(names.values())) < len(names):
        raise SchemaError(f"two of {list(names)} would have the same name, / and . being the same")
    return names


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, bool) else value


# Minari.


def export_minari(
    reader: ReplayReader,
    dataset_id: str,
    *,
    env: "str | gym.Env[Any, Any] | None" = None,
    observation_space: "gym.Space[Any] | None" = None,
    action_space: "gym.Space[Any] | None" = None,
    on_progress: _Progress | None = None,
    **facts: Any,
) -> "minari.MinariDataset":
    """Make a Minari dataset of episodes, exactly as they were recorded.

    Spaces are those given, or those of `env`, or made of what was recorded: numbers that are whole
    become `Discrete`, up to the largest there is. Infos and frames are left out, and with a
    warning episodes that are not whole: without a final observation, or with steps that were
    dropped. `facts` go to Minari: `algorithm_name`, `author`, `description`, …. Needs the extra
    `minari`.
    """
    try:
        import minari
        from minari.data_collector import EpisodeBuffer
        from minari.dataset.minari_dataset import parse_dataset_id
    except ImportError as error:
        raise ImportError("export_minari needs an extra: pip install 'stepwell[minari]'") from error
    try:
        parse_dataset_id(dataset_id)
    except (TypeError, ValueError):
        raise ValueError(
            f"dataset_id: expected a name like 'pong/random-v0', got {dataset_id!r}"
        ) from None
    episodes = reader.episodes
    whole = [e for e in episodes if e.steps and not e.dropped and e.final_obs_ref is not None]
    if not whole:
        raise SchemaError("there are no episodes with all steps and a final observation")
    if len(whole) < len(episodes):
        warnings.warn(
            f"{len(episodes) - len(whole)} of {len(episodes)} episodes are left out: without a "
            "final observation, or with steps that were dropped",
            stacklevel=2,
        )
    channels = reader.recordings[whole[0].run_id].channels
    if env is None:
        source = reader.where("steps AND NOT dropped AND final_obs_ref IS NOT NULL")
        observation_space = observation_space or _space(OBSERVATIONS, channels, source)
        action_space = action_space or _space(ACTIONS, channels, source)

    def buffers() -> Iterator[Any]:
        for number, episode in enumerate(whole):
            found = reader.episode(episode.episode_id, frames=False)
            yield EpisodeBuffer(
                observations=_all_seen(found),
                actions=found.actions,
                rewards=found.rewards,
                terminations=found.terminated,
                truncations=found.truncated,
            )
            if on_progress is not None:
                on_progress(number + 1, len(whole))

    return minari.create_dataset_from_buffers(
        dataset_id,
        buffers(),
        env=env,
        observation_space=observation_space,
        action_space=action_space,
        jpeg_encoding=False,  # which would change the pixels
        **facts,
    )


def _all_seen(steps: EpisodeSteps) -> Tree:
    """The observations of an episode with the last one behind them."""
    for kind, counted in (
        ("an observation", steps.observation_steps),
        ("an action", steps.action_steps),
    ):
        if len(counted) != len(steps):
            raise SchemaError(f"episode {steps.episode.episode_id!r}: a step without {kind}")
    return _joined(steps.observations, steps.final_observation)


def _joined(rows: Tree, last: Tree) -> Tree:
    if isinstance(rows, dict):
        return {key: _joined(rows[key], last[key]) for key in rows}
    if isinstance(rows, tuple):
        return tuple(_joined(*each) for each in zip(rows, last, strict=True))
    return np.concatenate([rows, last[None]])


def _space(kind: str, channels: Sequence[Channel], source: Source) -> "gym.Space[Any]":
    """A space that everything recorded lies in."""
    from gymnasium import spaces

    def made(tree: Tree) -> Any:
        if isinstance(tree, dict):
            return spaces.Dict({key: made(inner) for key, inner in tree.items()})
        if isinstance(tree, tuple):
            return spaces.Tuple(tuple(made(inner) for inner in tree))
        return _plain_space(tree, source)

    found = {c.name: c for c in channels if c.name.split("/")[0] == kind}
    if not found:
        raise SchemaError(f"there are no {kind}")
    space: gym.Space[Any] = made(assemble(kind, found))
    return space


def _plain_space(channel: Channel, source: Source) -> Any:
    from gymnasium import spaces

    if channel.field.dtype == np.bool:
        return spaces.Box(False, True, channel.field.shape, np.bool)
    if channel.field.dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, channel.field.shape, channel.field.dtype.type)
    if channel.field.shape:
        limits = np.iinfo(channel.field.dtype)
        return spaces.Box(limits.min, limits.max, channel.field.shape, channel.field.dtype.type)
    kind, _, rest = channel.name.partition("/")
    name = f"{kind[:-1]}/{rest}" if rest else kind[:-1]
    low, high = 0, 0
    part = source.columns([name])
    for begin in range(0, len(part), 1 << 16):
        values = part[begin : begin + (1 << 16)][name]
        low, high = min(low, int(np.min(values))), max(high, int(np.max(values)))
    return spaces.Discrete(high - low + 1, start=low, dtype=channel.field.dtype.type)
