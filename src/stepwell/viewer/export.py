"""One episode as a page that needs no server.

A browser gives a page from a disk no modules and no data, but scripts. So the modules of the player
become one script, and chunks of steps become scripts that hand over their bytes as base64.
"""

import base64
import html
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stepwell.store import Store
from stepwell.viewer.episodes import Episode, open_episode
from stepwell.viewer.shelf import Entry

_STATIC = Path(__file__).parent / "static"
_IMPORT = re.compile(r'^import \{([^}]+)\} from "\./(\w+)\.js";$', re.MULTILINE)
_AGAIN = re.compile(r'^export \{([^}]+)\} from "\./(\w+)\.js";$', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?(?:class|function|const) (\w+))", re.MULTILINE)
_INLINE_BYTES = 32 << 20
"""Of steps in a page that is one file."""

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{title}</title>
{style}
</head>
<body class="sp-body">
<div id="player"></div>
{scripts}
</body>
</html>
"""


def export_episode(store: Store, key: Any, folder: str | os.PathLike[str]) -> Path:
    """Write a page of one run or episode to a new folder: `index.html` and what it needs.

    Raises `KeyError` when there is no such run, and `FileExistsError` when the folder has files.
    """
    place = Path(folder)
    if place.is_symlink() or (place.exists() and (not place.is_dir() or any(place.iterdir()))):
        raise FileExistsError(f"expected a new folder, got one that is there: {place}")
    episode = _episode(store, key)
    place.parent.mkdir(parents=True, exist_ok=True)
    beside = place.with_name(f".{place.name}-{secrets.token_hex(4)}")
    try:
        (beside / "chunks").mkdir(parents=True)
        about = {"about": episode.about(), "files": True}
        (beside / "episode.js").write_text(f"window.stepwellEpisode = {_script(about)};\n")
        (beside / "player.js").write_text(bundle("page"), encoding="utf-8")
        (beside / "player.css").write_text((_STATIC / "player.css").read_text(), encoding="utf-8")
        for start, text in _chunks(episode):
            script = f'window.stepwellChunk({start}, "{text}");\n'
            (beside / "chunks" / f"{start}.js").write_text(script)
        names = ("episode.js", "player.js")
        page = _PAGE.format(
            title=html.escape(f"{episode.key} · stepwell"),
            style='<link rel="stylesheet" href="player.css">',
            scripts="\n".join(f'<script src="{name}"></script>' for name in names),
        )
        (beside / "index.html").write_text(page, encoding="utf-8")
        os.rename(beside, place)  # an empty folder gives way to it
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    return place


def episode_html(store: Store, key: Any) -> str:
    """The same page as one text, for a notebook. A long run is cut, and the page shows that."""
    episode = _episode(store, key)
    chunks, size, end = list[tuple[int, str]](), 0, 0
    for start, text in _chunks(episode):
        chunks.append((start, text))
        size += len(text)
        end = start + episode.chunk_steps
        if size > _INLINE_BYTES:
            break
    about = episode.about()
    if end < about["steps"]:
        about["note"] = f"The first {end:,} of {about['steps']:,} steps are in this page."
        about["steps"] = end
    data = f"window.stepwellEpisode = {_script({'about': about, 'files': False})};\n"
    data += f"window.stepwellChunks = {_script(chunks)};\n"
    return _PAGE.format(
        title=html.escape(f"{episode.key} · stepwell"),
        style=f"<style>{(_STATIC / 'player.css').read_text()}</style>",
        scripts="".join(f"<script>{each}</script>" for each in (data, bundle("page"))),
    )


def bundle(name: str) -> str:
    """A module of the player and all that it imports, as one script without imports."""
    made: dict[str, str] = {}

    def add(module: str) -> None:
        if module in made:
            return
        text = (_STATIC / f"{module}.js").read_text(encoding="utf-8")
        for found in (*_IMPORT.finditer(text), *_AGAIN.finditer(text)):
            add(found[2])
        again = [(found[1].strip(), found[2]) for found in _AGAIN.finditer(text)]
        given = [found[2] for found in _EXPORT.finditer(text)]
        given += [f"{each.strip()}: ${where}.{each.strip()}" for names, where in again
                  for each in names.split(",")]  # fmt: skip
        text = _AGAIN.sub("", _IMPORT.sub(r"const {\1} = $\2;", text))
        text = _EXPORT.sub(r"\1", text)
        made[module] = (
            f"const ${module} = (() => {{\n{text}return {{ {', '.join(given)} }};\n}})();\n"
        )

    add(name)
    return '(() => {\n"use strict";\n' + "".join(made.values()) + "})();\n"


def _episode(store: Store, key: Any) -> Episode:
    return open_episode(Entry(0, store.path, Path(store.path).name, store), str(key))


def _chunks(episode: Episode) -> Iterator[tuple[int, str]]:
    for start in range(0, episode.steps, episode.chunk_steps):
        yield start, base64.b64encode(episode.chunk(start, episode.chunk_steps)).decode("ascii")


def _script(value: Any) -> str:
    """JSON that can stand in a script of a page: no end of a script is in it."""
    return json.dumps(value).replace("<", "\\u003c")
