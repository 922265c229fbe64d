"""What really happened to the jobs of a trace, where it says how long they waited."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsched.workload.trace import Trace

QUEUE: Final = "queue_s"
_PERCENTS: Final = (50, 99, 99.9)


class AsRecorded(msgspec.Struct, frozen=True, kw_only=True):
    """Waits and JCT as the site recorded them: under its own scheduler, on the nodes that it had and that
    worked then, with its users' priorities and limits. Beside a replay they are for orientation.

    Attributes:
        jobs: Measured jobs whose wait is recorded and that can run here.
        of_jobs: Measured jobs.
        queue_mean_s: Mean of `queue_s`, seconds; so its percentiles and its maximum.
        jct_mean_s: Mean of `queue_s` + `duration_s`; so its percentiles.
        scaled: Whether the cluster here has other nodes than its file says (`--load`, `--nodes`).
    """

    jobs: int
    of_jobs: int
    queue_mean_s: float
    queue_p50_s: float
    queue_p99_s: float
    queue_p999_s: float
    queue_max_s: float
    jct_mean_s: float
    jct_p50_s: float
    jct_p99_s: float
    scaled: bool = False

    @property
    def in_words(self) -> str:
        """What it is, and what keeps it from being compared."""
        known = "" if self.jobs == self.of_jobs else f", known of {self.jobs:,} of {self.of_jobs:,} jobs"
        nodes = "; the cluster here was scaled, and has other nodes than that" if self.scaled else ""
        return (
            f"recorded is what happened at the site itself{known}: under its own scheduler, with nodes that "
            f"failed, with its priorities and limits, and with jobs that this trace leaves out{nodes}. It is "
            "for orientation, and no part of the comparison."
        )


def as_recorded(
    trace: Trace, measured: NDArray[np.bool_], rejected: NDArray[np.bool_], *, scaled: bool
) -> AsRecorded | None:
    """What a trace says of its measured jobs; None where it says of none how long it waited.

    Args:
        trace: J jobs.
        measured: (J,) which of them are measured.
        rejected: (J,) which of them can never run here: they are left out, as no policy has them.
        scaled: Whether the cluster has other nodes than its file says.
    """
    if QUEUE not in trace.extra:
        return None
    wait_s = np.asarray(trace.extra[QUEUE], dtype=np.float64)
    known = measured & ~rejected & np.isfinite(wait_s)
    if not known.any():
        return None
    queue_s, jct_s = wait_s[known], wait_s[known] + trace.duration_s[known]
    queue_p50_s, queue_p99_s, queue_p999_s = np.percentile(queue_s, _PERCENTS).tolist()
    jct_p50_s, jct_p99_s = np.percentile(jct_s, _PERCENTS[:2]).tolist()
    return AsRecorded(
        jobs=int(np.count_nonzero(known)),
        of_jobs=int(np.count_nonzero(measured)),
        queue_mean_s=float(queue_s.mean()),
        queue_p50_s=queue_p50_s,
        queue_p99_s=queue_p99_s,
        queue_p999_s=queue_p999_s,
        queue_max_s=float(queue_s.max()),
        jct_mean_s=float(jct_s.mean()),
        jct_p50_s=jct_p50_s,
        jct_p99_s=jct_p99_s,
        scaled=scaled,
    )
