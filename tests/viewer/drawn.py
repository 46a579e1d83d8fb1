"""Episodes whose pictures show their step, and what a page shows of them."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from playwright.sync_api import Page

import stepwell as sw

SIDE = 16
NAUGHTY = '<img src=x onerror="window.hacked=1"><b>bold</b>'


def picture(run: int, step: int) -> NDArray[np.uint8]:
    """A single colour, of which run and step can be seen."""
    return np.full((SIDE, SIDE, 3), (step % 256, step // 256, run), np.uint8)


def write_drawn(path: Path, lengths: list[int]) -> Path:
    """A step dataset with pictures, vectors and rewards: in every tenth step 1."""
    fields = [
        ("frame", "u1", (SIDE, SIDE, 3)),
        ("obs", "<f4", (3,)),
        ("action", "u1"),
        ("reward", "<f4"),
    ]
    with sw.StepWriter(path, fields, columns={"name": str, "total": float}) as writer:
        for run, length in enumerate(lengths):
            steps = np.arange(length)
            writer.append(
                {
                    "frame": np.stack([picture(run, step) for step in range(length)]),
                    "obs": np.stack([np.sin(steps / 9 + k) for k in range(3)], 1).astype("f4"),
                    "action": (steps % 5).astype("u1"),
                    "reward": (steps % 10 == 0).astype("f4"),
                },
                name=NAUGHTY,
                total=float(-length),
            )
    return path


# What is on the screen. Steps are seen in pixels, not asked of the player.

_PIXELS = """(place) => {
  const canvas = document.querySelectorAll(".sp-stage canvas")[place];
  if (!canvas?.width) return null;
  const [red, green, blue] = canvas.getContext("2d").getImageData(3, 3, 1, 1).data;
  return [blue, red + 256 * green];
}"""


def seen(page: Page, place: int = 0) -> tuple[int, int] | None:
    """Run and step of the picture that is shown."""
    found: Any = page.evaluate(_PIXELS, place)
    return None if found is None else (found[0], found[1])


def wait_for(page: Page, run: int, step: int, place: int = 0) -> None:
    """Wait until this picture is shown."""
    test = f"([place, ...wanted]) => (({_PIXELS})(place) ?? []).join() === wanted.join()"
    try:
        page.wait_for_function(test, arg=[place, run, step])
    except Exception:
        raise AssertionError(
            f"expected run {run} and step {step}, got {seen(page, place)}"
        ) from None


def wait_past(page: Page, step: int) -> None:
    """Wait until a later step is shown."""
    page.wait_for_function(f"(step) => (({_PIXELS})(0) ?? [0, -1])[1] > step", arg=step)
