"""Lease file: the time of the broker's last answer. The node daemon writes the file, and shims read it.

A shim is the process that starts and supervises one rank of a job.

The shim imports this module, so it imports only the standard library.
"""

from __future__ import annotations

import math
import os
import time

from rlsched_node import records

LOOK_S = 1.0
"""Maximum time that a shim sleeps before it checks the lease again (`Fence`), seconds. A suspension of the
machine prolongs a sleep."""
MAX_MARGIN_S = 5.0
"""Maximum margin for clock drift, and for the time that the kernel needs to kill processes, seconds."""


def since_boot_s() -> float:
    """Return the seconds since boot, including time in suspension."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def fence_times(lost_after_s: float, grace_s: float) -> tuple[float, float]:
    """Return (seconds without an answer after which a rank is ended, seconds between SIGTERM and SIGKILL).

    The sum is less than `lost_after_s`, by a margin.

    Args:
        lost_after_s: Time without an answer of the broker after which the rank must have ended, seconds.
        grace_s: Grace period of the rank if it ends for another reason, seconds.
    """
    grace_s = min(grace_s, lost_after_s / 8)
    return lost_after_s - grace_s - _margin_s(lost_after_s), grace_s


def _margin_s(lost_after_s: float) -> float:
    return min(MAX_MARGIN_S, lost_after_s / 8)


def write_renewed(path: str, renewed_s: float) -> None:
    """Write the send time of the last answered heartbeat, seconds since boot.

    The file is written in place, which needs no disk space. It contains two copies of one line, so that a
    partial write is detected. The line begins with a deadline and a grace period, which only shims of older
    versions read.
    """
    line = f"inf 0 {renewed_s:.3f}".ljust(63) + "\n"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(fd, (line * 2).encode(), 0)
    finally:
        os.close(fd)


def read_renewed(path: str) -> float | None:
    """Return the send time of the last answered heartbeat, seconds since boot.

    None: there is no file, or a partial write.
    """
    try:
        first, second = records.read(path).decode("ascii").splitlines()
        _, _, renewed_s = map(float, first.split())
    except (OSError, ValueError):
        return None
    return renewed_s if first == second else None


class Fence:
    """Checks the node's lease for the shim of a rank. The rank must end if no broker answers for too long.

    Args:
        path: Path of the lease file.
        lost_after_s: Time without an answer of the broker after which the rank must have ended, seconds;
            0: no limit.
        grace_s: Seconds between SIGTERM and SIGKILL of the rank; limited to an eighth of `lost_after_s`.

    Attributes:
        look_s: Maximum seconds until the next check.
        margin_s: Time that the end of the rank may take after its grace period, seconds; infinite if
            `lost_after_s` is 0.
    """

    def __init__(self, path: str, lost_after_s: float, grace_s: float) -> None:
        self._path = path if lost_after_s > 0 else ""
        self._allowed_s, self._grace_s = fence_times(lost_after_s, grace_s)
        self._until_s = -math.inf
        self.margin_s = _margin_s(lost_after_s) if self._path else math.inf
        self.look_s = LOOK_S if self._path else 3600.0

    def closed_grace_s(self) -> float | None:
        """Return the grace period, seconds, if the rank must end now because no broker answers.

        None: the rank may continue, or an earlier call has returned a number, which occurs only once.
        """
        if not self._path or since_boot_s() < self._until_s:
            return None
        renewed_s = read_renewed(self._path)  # the deadline has passed: the file may contain a later time
        if renewed_s is not None:
            self._until_s = renewed_s + self._allowed_s
        if since_boot_s() < self._until_s:
            return None
        self._path, self.look_s = "", 3600.0
        return self._grace_s
