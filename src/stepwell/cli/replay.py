"""`stepwell replay`: what is in a replay store, and out of it again."""

import enum
import json
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import filesize

import stepwell as sw
from stepwell.cli.console import JsonOption, err, progress, say, show_rows
from stepwell.cli.record import register_atari, translated
from stepwell.errors import StepwellError
from stepwell.replay import Episode, ReplayReader

RootArgument = Annotated[Path, typer.Argument(metavar="ROOT", help="A replay store.")]
WhereOption = Annotated[
    str | None, typer.Option(help="Only episodes for which this holds: total_reward > 100.")
]

app = typer.Typer(no_args_is_help=True, help="Replay stores: look at them, take things out.")


class Target(enum.StrEnum):
    video = "video"
    steps = "steps"
    minari = "minari"


@app.command()
def info(root: RootArgument, as_json: JsonOption = False) -> None:
    """The runs: what became of them, and what their arrays take, stored and as they were."""
    sizes: dict[str, dict[str, tuple[int, int]]] = {}
    problems: dict[str, str] = {}
    with ReplayReader.open(root) as reader:
        runs = reader.recordings
        for name in runs:
            try:
                sizes[name] = reader.sizes(name)
            except (OSError, LookupError, StepwellError) as error:  # the others are worth knowing
                sizes[name], problems[name] = {}, str(error)
    if as_json:
        facts = [
            {
                **{k: v for k, v in asdict(run).items() if k not in ("channels", "rows")},
                "arrays": {
                    array: {"bytes": raw, "stored_bytes": stored}
                    for array, (raw, stored) in sizes[name].items()
                },
                "problem": problems.get(name),
            }
            for name, run in runs.items()
        ]
        print(json.dumps({"path": str(root), "runs": facts}))
        raise typer.Exit(2 if problems else 0)
    columns = ("run", "state", "steps", "episodes", "dropped", "lag s", "began")
    rows = [
        (
            name,
            run.state,
            f"{run.steps:,}",
            f"{run.episodes:,}",
            f"{run.dropped:,}",
            f"{run.lag_seconds:.2f}",
            _moment(run.created_at),
        )
        for name, run in runs.items()
    ]
    show_rows(columns, rows, numbers=range(2, 6))
    names = ("run", "array", "rows", "bytes", "stored", "ratio")
    lines = [
        (
            name,
            array,
            f"{runs[name].rows.get(array, 0):,}",
            filesize.decimal(raw),
            filesize.decimal(stored),
            f"{raw / stored:,.1f}" if stored else "",
        )
        for name, arrays in sizes.items()
        for array, (raw, stored) in arrays.items()
    ]
    show_rows(names, lines, numbers=range(2, 6))
    for name, problem in problems.items():
        err.print(f"{name}: {problem}", markup=False, soft_wrap=True)
    raise typer.Exit(2 if problems else 0)


def _moment(text: str) -> str:
    """A time to the second, without what all of them have in common."""
    return text[:19].replace("T", " ")


@app.command()
def episodes(
    root: RootArgument,
    where: WhereOption = None,
    sort: Annotated[
        str, typer.Option(help="A column; with - before it, the largest first.")
    ] = "started_at",
    limit: Annotated[int, typer.Option(min=0, help="How many to show.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """The episodes, as a table; with --json all columns, one object a line."""
    with ReplayReader.open(root) as reader:
        found = list((reader if where is None else reader.where(where)).episodes)
    name, known = sort.removeprefix("-"), tuple(Episode.__dataclass_fields__)
    if name not in known:
        raise ValueError(f"--sort {sort}: the columns are {', '.join(known)}")

    def key(episode: Episode) -> tuple[bool, Any]:
        value = getattr(episode, name)
        return (value is not None, value)

    found.sort(key=key, reverse=sort.startswith("-"))
    if as_json:
        for episode in found[:limit]:
            print(json.dumps(asdict(episode)))
        return
    columns = {
        "episode": [e.episode_id for e in found],
        "agent": [e.agent_id or "" for e in found],
        "steps": [f"{e.steps:,}" for e in found],
        "dropped": [f"{e.dropped:,}" if e.dropped else "" for e in found],
        "total_reward": [f"{e.total_reward:,g}" for e in found],
        "end": [_end(e) for e in found],
        "started_at": [_moment(e.started_at) for e in found],
    }
    shown = {name: values for name, values in columns.items() if any(values) or not values}
    numbers = [i for i, name in enumerate(shown) if name in ("steps", "dropped", "total_reward")]
    show_rows(tuple(shown), list(zip(*shown.values(), strict=True))[:limit], numbers=numbers)
    if len(found) > limit:
        say(f"{limit:,} of {len(found):,} episodes")


def _end(episode: Episode) -> str:
    flags = [name for name in ("terminated", "truncated") if getattr(episode, name)]
    return ", ".join(flags) or ("cut" if episode.ended else "goes on")


@app.command()
def export(
    root: RootArgument,
    output: Annotated[
        str,
        typer.Argument(metavar="OUT", help="FILE.gif or FILE.mp4, a directory, a Minari name."),
    ],
    to: Annotated[Target, typer.Option(help="What to make.")] = Target.video,
    of: Annotated[str | None, typer.Option(help="An episode or a run; a video needs one.")] = None,
    where: WhereOption = None,
    fps: Annotated[float, typer.Option(help="Frames a second, of a video.")] = 30,
    env: Annotated[
        str | None, typer.Option(help="The environment whose spaces Minari is told.")
    ] = None,
) -> None:
    """Frames as a GIF or an MP4, episodes as a step dataset or a Minari dataset."""
    chosen = _condition(root, of, where)
    with progress("writing") as on_progress:
        if to is Target.video:
            if of is None or where is not None:
                raise ValueError("a video needs --of EPISODE or --of RUN, and no --where")
            made = sw.convert(
                root, output, to="video", where=chosen, force=True, progress=on_progress, fps=fps
            )
            said = f"{made.rows:,} frames, {Path(output).stat().st_size:,} bytes"
        elif to is Target.steps:
            made = sw.convert(root, output, to="steps", where=chosen, progress=on_progress)
            said = f"{made.runs:,} runs, {made.rows:,} steps"
        else:
            register_atari(env or "")
            with warnings.catch_warnings(record=True) as caught, translated(env or output):
                made = sw.convert(
                    root, f"minari:{output}", where=chosen, progress=on_progress, env=env
                )
            for warning in caught:
                if "left out" in str(warning.message):  # Minari has many others
                    err.print(str(warning.message), markup=False, soft_wrap=True)
            said = f"{made.runs:,} episodes, {made.rows:,} steps"
    say(f"{output}: {said}")


def _condition(root: Path, name: str | None, where: str | None) -> str | None:
    """SQL for the episodes that are meant: one by its name, those of a run, or where it holds."""
    if name is None:
        return where
    with ReplayReader.open(root) as reader:
        is_episode = any(episode.episode_id == name for episode in reader.episodes)
        if not is_episode and name not in reader.recordings:
            raise ValueError(f"--of {name}: there is no such episode and no such run")
    text = name.replace("'", "''")
    one = f"{'episode' if is_episode else 'run'}_id = '{text}'"
    return one if where is None else f"{one} AND ({where})"
