"""Pictures of every page of the viewer, light and dark: `make screenshots`.

Stores are made for it: games of 2048, an agent that plays Breakout, small pictures with captions.
The live view is of a recording that goes on meanwhile, and its GIF shows some seconds of it.
"""

import io
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ale_py
import gymnasium as gym
import numpy as np
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

import stepwell as sw
from stepwell.viewer.server import Server, shelf

IMAGES = Path(__file__).parent / "images" / "viewer"
SIZE = {"width": 1280, "height": 800}
LIVE = "breakout-live"

_GIF_FRAMES, _GIF_FPS, _GIF_WIDTH = 36, 6, 800
_NOUNS = ("disc", "square", "ring")


def main() -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    root = Path(tempfile.gettempdir()) / "stepwell" / "data"  # pages show it
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    _make(root)
    shelf.add(str(root))
    server = Server(port=0)
    server.start()
    with sync_playwright() as playwright, _recording(root / "replays"):
        chromium = shutil.which("chromium") or shutil.which("chromium-browser")
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        for scheme in ("light", "dark"):
            _take(browser, server, scheme)
        browser.close()
    server.stop()
    shutil.rmtree(root)
    total = sum(path.stat().st_size for path in IMAGES.iterdir())
    print(f"{len(list(IMAGES.iterdir()))} pictures in {IMAGES}, {total / 1e6:.2f} MB")


# What is shown.


def _make(root: Path) -> None:
    """Stores of several kinds."""
    sw.game2048.play_to(root / "runs", games=150, depth=1, seed=3)
    sw.game2048.pack_runs(root / "runs", root / "games.a2pack")
    shutil.rmtree(root / "runs")
    sw.convert(root / "games.a2pack", root / "games", to="steps")
    _write_pictures(root / "pictures")
    with sw.ShardWriter(root / "activations", width=256) as writer:
        writer.append(np.random.default_rng(1).standard_normal((20_000, 256)).astype("f4"))
    env = sw.replay.Record(_breakout(), root / "replays", run_id="breakout-1")
    _play(env, 6000, careful=0.6)
    env.close()


def _write_pictures(path: Path) -> None:
    """Discs, squares and rings, with a caption each."""
    random, (y, x) = np.random.default_rng(0), np.mgrid[:48, :48]
    fields: dict[str, Any] = {
        "image": sw.Field("u1", (48, 48, 3), compress="zstd"),
        "caption": sw.Field(str, optional=True),
        "label": "u1",
        "embedding": sw.Field("<f4", (32,)),
    }
    images, captions, labels = [], [], []
    for _ in range(400):
        label, size = int(random.integers(3)), int(random.integers(8, 18))
        colour, (left, top) = random.integers(60, 255, 3), random.integers(size, 48 - size, 2)
        far = np.hypot(x - left, y - top)
        square = np.maximum(abs(x - left), abs(y - top)) < size
        shape = (far < size, square, abs(far - size * 0.8) < 3)[label]
        images.append(np.where(shape[..., None], colour, 24).astype("u1"))
        captions.append(f"a {_NOUNS[label]} of {size} pixels")
        labels.append(label)
    with sw.RecordWriter(path, fields) as writer:
        embeddings = random.standard_normal((400, 32)).cumsum(1).astype("f4")
        writer.append(
            {"image": images, "caption": captions, "label": labels, "embedding": embeddings}
        )


def _breakout() -> gym.Env[Any, Any]:
    gym.register_envs(ale_py)
    return gym.make("ALE/Breakout-v5", render_mode="rgb_array", frameskip=2)


def _play(
    env: Any, steps: int, *, careful: float, end: threading.Event | None = None, fps: float = 0
) -> None:
    """Follow the ball, most of the time."""
    random = np.random.default_rng(5)
    env.reset(seed=2)
    for _ in range(steps):
        if end is not None and end.wait(1 / fps if fps else 0):
            return
        memory = env.unwrapped.ale.getRAM()
        ball, paddle, falls = int(memory[99]), int(memory[72]), memory[101] != 0
        action = 1 if not falls else 2 if ball > paddle + 10 else 3 if ball < paddle + 6 else 0
        if random.random() > careful:
            action = int(random.integers(4))
        *_, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset()


@contextmanager
def _recording(root: Path) -> Iterator[None]:
    """A recording that goes on for the block, 30 steps a second."""
    end = threading.Event()
    env = sw.replay.Record(_breakout(), root, run_id=LIVE, lane=True)
    work = threading.Thread(
        target=_play, args=(env, 10**9), kwargs={"careful": 0.97, "end": end, "fps": 30}
    )
    work.start()
    try:
        yield
    finally:
        end.set()
        work.join()
        env.close()


# Taking pictures.


def _take(browser: Browser, server: Server, scheme: Any) -> None:
    numbers = {Path(entry.path).name: entry.number for entry in shelf.entries}
    context = browser.new_context(viewport=SIZE, color_scheme=scheme)  # type: ignore[arg-type]
    context.request.get(server.address)
    page = context.new_page()
    games, replays, pictures = (numbers[name] for name in ("games", "replays", "pictures"))
    pages = {
        "stores": "/",
        "overview": f"/s/{games}",
        "runs": f"/s/{games}/runs?where=max_score+%3E+20000&sort=max_score&desc=1",
        "episodes": f"/s/{replays}/runs",
        "player": f"/s/{replays}/play?run=breakout-1-ep0000&step=420",
        "boards": f"/s/{games}/play?run=3&step=600",
        "beside": f"/s/{games}/play?run=3&beside=5&step=400",
        "rows": f"/s/{pictures}/rows",
        "batch": f"/s/{games}/rows?seed=7&step=40&batch=8&window=3",
        "loader": f"/s/{games}/check",
        "live": f"/live?run={LIVE}",
    }
    for name, path in pages.items():
        page.goto(f"http://127.0.0.1:{server.port}{path}")
        page.locator(".sw-header").wait_for()
        page.wait_for_function("!document.querySelector('.q-skeleton')")
        page.wait_for_load_state("networkidle") if name != "live" else page.wait_for_timeout(2500)
        if name == "loader":
            page.get_by_role("button", name="Run", exact=True).click()
            page.locator(".nicegui-echart canvas").wait_for()
        page.wait_for_timeout(700)  # charts are drawn behind the last request
        _save(Image.open(io.BytesIO(page.screenshot())), IMAGES / f"{name}-{scheme}.png")
        if (name, scheme) == ("live", "dark"):
            _film(page, IMAGES / "live.gif")
    context.close()


def _save(image: Image.Image, path: Path) -> None:
    """With 256 colours, which pages hardly notice."""
    few = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    few.save(path, optimize=True)


def _film(page: Page, path: Path) -> None:
    """Some seconds of a page."""
    frames = []
    for _ in range(_GIF_FRAMES):
        image = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
        height = round(image.height * _GIF_WIDTH / image.width)
        frames.append(image.resize((_GIF_WIDTH, height), Image.Resampling.LANCZOS))
        page.wait_for_timeout(1000 / _GIF_FPS)
    strip = Image.fromarray(np.concatenate([np.asarray(frame) for frame in frames[::10]]))
    few = strip.quantize(200, dither=Image.Dither.NONE)  # the same colours for all of them
    made = [frame.quantize(palette=few, dither=Image.Dither.NONE) for frame in frames]
    made[0].save(
        path,
        save_all=True,
        append_images=made[1:],
        duration=1000 // _GIF_FPS,
        loop=0,
        optimize=True,
    )


if __name__ == "__main__":
    main()
