"""The deadline of a node's lease, as its daemon writes it and its shims read it.

Imported by the shim, so it imports the standard library alone.
"""

from __future__ import annotations

import math
import os
import time

from rlsched_node import records

LOOK_S = 1.0
"""A shim with a lease looks at the clock so often: while a machine is suspended, sleeps do not end."""


def since_boot_s() -> float:
    """Seconds since the machine was booted, those among them for which it was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def write_lease(path: str, until_s: float, grace_s: float, lost_after_s: float) -> None:
    """Renew the lease in place, which needs no space; twice, so that half of a write is told from a whole."""
    line = f"{until_s:.3f} {grace_s:.3f} {lost_after_s:.3f}".ljust(63) + "\n"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(fd, (line * 2).encode(), 0)
    finally:
        os.close(fd)


def read_lease(path: str) -> tuple[float, float, float] | None:
    """(until when, seconds since boot; grace_s; lost_after_s); None where there is none, or half of one."""
    try:
        first, second = records.read(path).decode("ascii").splitlines()
        until_s, grace_s, lost_after_s = map(float, first.split())
    except (OSError, ValueError):
        return None
    return (until_s, grace_s, lost_after_s) if first == second else None


class Fence:
    """A rank's view of its node's lease, of path "" where it goes on without.

    Attributes:
        look_s: How long to wait at most before the next look.
    """

    def __init__(self, path: str) -> None:
        self._path, self._until_s = path, -math.inf
        self.look_s = LOOK_S if path else 3600.0

    def closed_grace_s(self) -> float | None:
        """With what grace the rank is to be ended; None: it may go on, or has been told before."""
        if not self._path or since_boot_s() < self._until_s:
            return None
        lease = read_lease(self._path)  # what was read last is over: there may be a later one
        grace_s = 0.0
        if lease is not None:
            self._until_s, grace_s, _ = lease
        if since_boot_s() < self._until_s:
            return None
        self._path, self.look_s = "", 3600.0
        return grace_s
