"""Thresholds of free disk space, for the journal's disk and the disks of nodes."""

from __future__ import annotations

LOW_DISK_MIB = 1024
"""Free space, MiB, below which `rlsched status` and `rlsched doctor` warn, and nodes start no jobs."""
MIN_FREE_MIB = 256
"""Default free space on the journal's disk, MiB, below which a broker accepts no new jobs."""


def low_disk_mib(min_free_mib: int) -> int:
    """Return the free space, MiB, below which `rlsched status` reports a broker as degraded.

    It is at least `min_free_mib`, below which the broker accepts no new jobs.
    """
    return max(LOW_DISK_MIB, min_free_mib)
