"""What stepwell promises, as programs that fail when a promise is broken."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[1]

SANITIZED = os.environ.get("STEPWELL_SANITIZED") == "1"
"""The core runs under ASan and UBSan (`make sanitize`): everything takes several times longer."""


def scaled(count: int, smallest: int = 1) -> int:
    """`count` rounds of something, or a tenth of that under the sanitizers."""
    return max(count // 10, smallest) if SANITIZED else count
