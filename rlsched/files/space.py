"""How much free space a disk is to have: the journal's, a node's, and what is said of either."""

from __future__ import annotations

LOW_DISK_MIB = 1024
"""Less is too little: `rlsched status` and `rlsched doctor` say so, and a node starts no jobs by default."""
MIN_FREE_MIB = 256
"""With less on the journal's disk a broker takes no new jobs by default."""


def low_disk_mib(min_free_mib: int) -> int:
    """Free space, MiB, below which a broker is degraded: at the latest where it takes no new jobs."""
    return max(LOW_DISK_MIB, min_free_mib)
