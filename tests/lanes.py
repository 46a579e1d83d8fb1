"""Lanes for the tests: names of their own, which are gone afterwards."""

import secrets
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from stepwell.stores.replay.lane import LaneFrame
from tests.reference.lane import path_of

__all__ = ["number_of", "numbered", "numbers", "run_id"]


@pytest.fixture
def run_id() -> Iterator[str]:
    name = f"test-{secrets.token_hex(8)}"
    yield name
    path_of(name).unlink(missing_ok=True)


def numbered(number: int, size: int) -> NDArray[np.uint8]:
    """A frame of `size` times 8 bytes in which each word follows from the number."""
    words = np.uint64(number) * np.arange(1, size + 1, dtype=np.uint64)
    return words.view(np.uint8).reshape(1, size * 8)


def number_of(pixels: NDArray[np.uint8]) -> int | None:
    """Of which frame these pixels are; None when they are of more than one."""
    words = pixels.reshape(-1).view(np.uint64)
    number = int(words[0])
    return (
        number if (pixels.reshape(-1) == numbered(number, len(words)).reshape(-1)).all() else None
    )


def numbers(frames: list[LaneFrame]) -> list[int]:
    return [frame.number for frame in frames]
