"""When the broker last answered a node, as its daemon writes it and its shims read it.

Imported by the shim, so it imports the standard library alone.
"""

from __future__ import annotations

import math
import os
import time

from rlsched_node import records

LOOK_S = 1.0
"""A shim with a fence looks at the clock so often: while a machine is suspended, sleeps do not end."""
MAX_MARGIN_S = 5.0
"""For clocks that drift apart, and for a kernel that takes its time to kill."""


def since_boot_s() -> float:
    """Seconds since the machine was booted, those among them for which it was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def fence_times(lost_after_s: float, grace_s: float) -> tuple[float, float]:
    """(seconds without an answer after which a rank is ended, its seconds between SIGTERM and SIGKILL).

    Together they are less than `lost_after_s`, by a margin. `grace_s`: what the job has otherwise.
    """
    grace_s = min(grace_s, lost_after_s / 8)
    margin_s = min(MAX_MARGIN_S, lost_after_s / 8)
    return lost_after_s - grace_s - margin_s, grace_s


def write_renewed(path: str, renewed_s: float) -> None:
    """Write when the heartbeat was sent that was answered last, seconds since boot.

    In place, which needs no space; twice, so that half of a write is told from a whole. The first two fields
    are for shims of before: a deadline, which never comes, and a grace.
    """
    line = f"inf 0 {renewed_s:.3f}".ljust(63) + "\n"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(fd, (line * 2).encode(), 0)
    finally:
        os.close(fd)


def read_renewed(path: str) -> float | None:
    """When the heartbeat was sent that was answered last; None: there is none, or half of one."""
    try:
        first, second = records.read(path).decode("ascii").splitlines()
        _, _, renewed_s = map(float, first.split())
    except (OSError, ValueError):
        return None
    return renewed_s if first == second else None


class Fence:
    """A rank's view of its node's lease.

    Args:
        path: The file of the lease.
        lost_after_s: What the rank was launched with; 0: it goes on however long the broker is away.
        grace_s: Between SIGTERM and SIGKILL of the rank, seconds; an eighth of `lost_after_s` at most.

    Attributes:
        look_s: How long to wait at most before the next look.
    """

    def __init__(self, path: str, lost_after_s: float, grace_s: float) -> None:
        self._path = path if lost_after_s > 0 else ""
        self._allowed_s, self._grace_s = fence_times(lost_after_s, grace_s)
        self._until_s = -math.inf
        self.look_s = LOOK_S if self._path else 3600.0

    def closed_grace_s(self) -> float | None:
        """The grace with which the rank is to be ended; None: it may go on, or was ended before."""
        if not self._path or since_boot_s() < self._until_s:
            return None
        renewed_s = read_renewed(
            self._path
        )  # the deadline that was read last is past: there may be a later one
        if renewed_s is not None:
            self._until_s = renewed_s + self._allowed_s
        if since_boot_s() < self._until_s:
            return None
        self._path, self.look_s = "", 3600.0
        return self._grace_s
