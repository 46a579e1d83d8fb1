"""What stepwell promises, as programs that fail when a promise is broken."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

SANITIZED = os.environ.get("STEPWELL_SANITIZED") == "1"
"""The core runs under ASan and UBSan (`make sanitize`): everything takes several times longer."""

forks_beside_threads = pytest.mark.skipif(
    SANITIZED, reason="the allocator of gcc's ASan may stay locked in a child"
)


def scaled(count: int, smallest: int = 1) -> int:
    """`count` rounds of something, or a tenth of that under the sanitizers."""
    return max(count // 10, smallest) if SANITIZED else count
