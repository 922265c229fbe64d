"""States of jobs and ranks, as the broker, nodes and clients name them."""

from __future__ import annotations

from typing import Final, Literal

JobState = Literal["queued", "launching", "running", "completed", "failed", "cancelled", "rejected"]
RankState = Literal["launching", "running", "ended"]
LIVE: Final[tuple[JobState, ...]] = ("queued", "launching", "running")
"""States of a job that has not ended."""
ACTIVE: Final[tuple[JobState, ...]] = ("launching", "running")
"""States of a job that has an attempt."""
