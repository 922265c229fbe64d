"""States of jobs and ranks, as the broker, nodes and clients name them.

Each has one name here, so that a misspelt one is no text but an error, and all uses of a state can be found.
"""

from __future__ import annotations

from typing import Final, Literal

JobState = Literal["queued", "launching", "running", "completed", "failed", "cancelled", "rejected"]
RankState = Literal["launching", "running", "ended"]

QUEUED: Final = "queued"
LAUNCHING: Final = "launching"
RUNNING: Final = "running"
COMPLETED: Final = "completed"
FAILED: Final = "failed"
CANCELLED: Final = "cancelled"
REJECTED: Final = "rejected"
ENDED: Final = "ended"
"""Of a rank: its processes have exited."""

LIVE: Final[tuple[JobState, ...]] = (QUEUED, LAUNCHING, RUNNING)
"""States of a job that has not ended."""
ACTIVE: Final[tuple[JobState, ...]] = (LAUNCHING, RUNNING)
"""States of a job that has an attempt."""
FINISHED: Final[tuple[JobState, ...]] = (COMPLETED, FAILED, CANCELLED, REJECTED)
"""States of a job that has ended."""
