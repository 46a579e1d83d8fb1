"""`stepwell record`: play an environment and keep everything that happens."""

import enum
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

import stepwell as sw
from stepwell.cli.console import JsonOption, local_path, progress, show
from stepwell.cli.view import start_page
from stepwell.files.codecs import codec_names
from stepwell.replay import ReplayReader

_READABLE = (sw.StepwellError, OSError, ImportError, ValueError, IndexError)  # in one line already


class Policy(enum.StrEnum):
    random = "random"


class WhenFull(enum.StrEnum):
    block = "block"
    drop = "drop"


def record(
    env: Annotated[str, typer.Option(help="A Gymnasium environment: ALE/Breakout-v5.")],
    output: Annotated[
        Path, typer.Option("--out", parser=local_path, help="The replay store, new or not.")
    ],
    steps: Annotated[int, typer.Option(min=1, help="How many, in all environments.")] = 10_000,
    frames: Annotated[str, typer.Option(help="all, every:N or none.")] = "all",
    run_id: Annotated[str | None, typer.Option(help="Made of name and time by default.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of environment and policy.")] = None,
    policy: Annotated[Policy, typer.Option(help="Who plays.")] = Policy.random,
    envs: Annotated[int, typer.Option(min=1, help="Environments at once, a process each.")] = 1,
    append: Annotated[bool, typer.Option("--append", help="Go on with the run --run-id.")] = False,
    observations: Annotated[bool, typer.Option(help="Keep what the agent saw.")] = True,
    infos: Annotated[bool, typer.Option(help="Keep the infos of steps.")] = True,
    lane: Annotated[
        bool, typer.Option("--lane", help="Show the newest frames in shared memory.")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="The same, and a page that shows them in a browser.")
    ] = False,
    compress: Annotated[
        str, typer.Option(help=f"How arrays are packed: {', '.join(codec_names('replay'))}.")
    ] = "zstd",
    when_full: Annotated[
        WhenFull, typer.Option(help="What a step does when the queue is full: wait, or be dropped.")
    ] = WhenFull.block,
    queue_bytes: Annotated[
        int, typer.Option(min=1, help="Bytes of steps that may wait for the disk.")
    ] = 128 << 20,
    flush_every: Annotated[
        float, typer.Option(help="Seconds that a step waits at most; a kill loses as much.")
    ] = 0.5,
    as_json: JsonOption = False,
) -> None:
    """Play a Gymnasium environment and record it. Needs the extra `gym`.

    Ctrl-C ends it; what was played until then is kept, and --run-id with --append goes on.
    """
    if append and run_id is None:
        raise ValueError("--append goes on with a run; name it with --run-id")
    try:
        from stepwell.replay import Record
    except ImportError as error:
        raise ImportError("record needs an extra: pip install 'stepwell[gym]'") from error
    if watch:
        from stepwell.viewer.browser import load

        load()  # what is missing for it is better known before a run begins
    wanted = None if frames == "none" else frames
    begin = time.perf_counter()
    lane = lane or watch
    drawn = lane or wanted is not None
    made = _make(env, envs, drawn)
    played, stopped = 0, False

    def count(done: int, total: int) -> None:
        nonlocal played
        played = done
        on_step(done, total)
        if stopping.is_set():
            raise KeyboardInterrupt

    with translated(env), progress("recording") as on_step, _between_steps() as stopping:
        try:
            try:
                if drawn:  # what cannot be drawn is better known before a run begins
                    made.reset()
                    draw(made)
                made = Record(
                    made,
                    output,
                    frames=wanted,
                    observations=observations,
                    infos=infos,
                    lane=lane,
                    run_id=run_id,
                    mode="a" if append else "x",
                    compress=compress,
                    when_full=when_full.value,
                    queue_bytes=queue_bytes,
                    flush_every=flush_every,
                )
                if watch:
                    start_page(str(output), str(made.run_id))
                (_play if envs == 1 else _play_all)(made, steps, seed, count)
            finally:
                made.close()
        except KeyboardInterrupt:
            if not played:
                raise
            stopped = True
    seconds = time.perf_counter() - begin
    run_id = str(made.run_id)
    with ReplayReader.open(output, run=run_id) as reader:
        run = reader.recordings[run_id]
        rewards = [e.total_reward for e in reader.episodes if e.ended]
        stored = sum(stored for _, stored in reader.sizes(run_id).values())
    facts = {
        "path": str(output),
        "run_id": run_id,
        "steps": run.steps,
        "episodes": run.episodes,
        "mean_reward": sum(rewards) / len(rewards) if rewards else None,
        "stored_bytes": stored,
        "seconds": round(seconds, 3),
        "steps_per_second": round(played / seconds, 1),
    }
    show(facts, as_json)
    if stopped:
        raise typer.Exit(130)


def _make(name: str, count: int, drawn: bool) -> Any:
    import gymnasium as gym
    from gymnasium.vector import AutoresetMode

    register_atari(name)
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame draws in memory and needs no screen
    os.environ.setdefault("SDL_NO_SIGNAL_HANDLERS", "1")  # else it keeps SIGTERM to itself
    mode = "rgb_array" if drawn else None
    with translated(name):
        if count == 1:
            return gym.make(name, render_mode=mode)
        # A terminal sends Ctrl-C to their processes as well. They begin with it blocked: only this
        # one shall stop, and then close them, which needs them alive.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return gym.make_vec(
                name,
                count,
                vectorization_mode="async",
                vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP},
                render_mode=mode,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _between_steps() -> Iterator[threading.Event]:
    """The first Ctrl-C sets the event: Gymnasium's vectors cannot be closed from the middle of a
    step. The second is one at once, for an environment that hangs."""
    stopping = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopping
        return

    def stop(*_: object) -> None:
        stopping.set()
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield stopping
    finally:
        signal.signal(signal.SIGINT, before)


def draw(env: Any) -> None:
    """Render a frame; where a package for that is missing, its error also names the way without."""
    import gymnasium as gym

    try:
        env.render()
    except gym.error.DependencyNotInstalled as error:
        raise gym.error.DependencyNotInstalled(f"{error}; --frames none records without") from error


def register_atari(name: str) -> None:
    """Make Gymnasium know the games of the ALE, if `name` is one."""
    if not name.startswith("ALE/"):
        return
    try:
        import ale_py
        import gymnasium as gym
    except ImportError as error:
        raise ImportError(f"{name} needs an extra: pip install 'stepwell[gym]'") from error
    gym.register_envs(ale_py)
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)


class translated:
    """Errors of Gymnasium about an environment that cannot be played, as a mistake in the call; and
    those of the environment itself, in one line."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, *rest: object) -> None:
        if error is None or isinstance(error, ImportError):  # maybe that of Gymnasium
            return
        import gymnasium as gym

        if isinstance(error, gym.error.Error):
            raise ValueError(f"{self._name}: {error}") from error
        if isinstance(error, Exception) and not isinstance(error, _READABLE):
            *_, last = traceback.extract_tb(error.__traceback__)
            raise sw.StepwellError(
                f"{self._name}: {type(error).__name__}: {error} - at {last.filename}:{last.lineno}"
            ) from error


def _play(env: Any, steps: int, seed: int | None, on_step: Callable[[int, int], None]) -> None:
    env.action_space.seed(seed)
    env.reset(seed=seed)
    for done in range(1, steps + 1):
        *_, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            env.reset()
        on_step(done, steps)


def _play_all(env: Any, steps: int, seed: int | None, on_step: Callable[[int, int], None]) -> None:
    env.action_space.seed(seed)
    env.reset(seed=seed)
    for done in range(0, steps, env.num_envs):
        env.stop(steps - done)  # in the last round, those that would make more than asked for
        env.step(env.action_space.sample())
        on_step(min(done + env.num_envs, steps), steps)
