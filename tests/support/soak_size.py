"""Size of the soak tests: `make soak` runs ten times as much as the acceptance run."""

from __future__ import annotations

import os


def times(number: int) -> int:
    """Return `number` multiplied by the environment variable `SOAK_TIMES` (default 1)."""
    return number * int(os.environ.get("SOAK_TIMES", "1"))
