"""Thresholds of free disk space: the journal's disk and a node's."""

from __future__ import annotations

LOW_DISK_MIB = 1024
"""Low-space threshold, MiB: below it `rlsched status` and `rlsched doctor` warn, and nodes start no jobs."""
MIN_FREE_MIB = 256
"""Default free space on the journal's disk, MiB, below which a broker accepts no new jobs."""


def low_disk_mib(min_free_mib: int) -> int:
    """Return the free space, MiB, below which a broker is degraded: at least its limit for new jobs."""
    return max(LOW_DISK_MIB, min_free_mib)
