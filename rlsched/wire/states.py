"""States of jobs and ranks, with the same names for the broker, nodes and clients.

Each state is a constant, so that a misspelt name is an error, and all uses of a state can be found.
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
"""State of a rank: its processes have exited."""

LIVE: Final[tuple[JobState, ...]] = (QUEUED, LAUNCHING, RUNNING)
"""States of a job that has not ended."""
ACTIVE: Final[tuple[JobState, ...]] = (LAUNCHING, RUNNING)
"""States of a job that has an attempt."""
FINISHED: Final[tuple[JobState, ...]] = (COMPLETED, FAILED, CANCELLED, REJECTED)
"""States of a job that has ended."""

WITHDRAWN: Final = "withdrawn by its engine"
"""Reason why a job is cancelled: its engine (such as Slurm) no longer offers it. See `rlsched.engine`."""
