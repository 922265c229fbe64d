"""Computes waits and JCT as the site recorded them, if the trace contains waiting times."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsched.workload.trace import Trace

QUEUE: Final = "queue_s"
_PERCENTS: Final = (50, 99, 99.9)


class AsRecorded(msgspec.Struct, frozen=True, kw_only=True):
    """Waits and JCT of the jobs as recorded at the site, for orientation.

    They are not comparable with a replay: the site had other nodes, priorities and limits.

    Attributes:
        jobs: Number of measured jobs that have a recorded wait and can run on the simulated cluster.
        of_jobs: Number of measured jobs.
        queue_mean_s: Mean recorded wait (trace column `queue_s`), seconds. The next fields are the
            percentiles and the maximum of the wait.
        jct_mean_s: Mean of `queue_s` + `duration_s`, seconds. The next fields are percentiles of this sum.
        scaled: Whether `--load` or `--nodes` has changed the number of nodes of the simulated cluster.
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
        """Text about the recorded waits and JCT, and why they are not comparable with a replay."""
        known = "" if self.jobs == self.of_jobs else f", known of {self.jobs:,} of {self.of_jobs:,} jobs"
        nodes = "; the cluster here was scaled and has other nodes than the site" if self.scaled else ""
        return (
            f"The row recorded has the waits at the site{known}: under the site's own scheduler, priorities "
            f"and limits, with nodes that failed, and with jobs that this trace leaves out{nodes}. The row "
            "is for orientation, and is not part of the comparison."
        )


def as_recorded(
    trace: Trace, measured: NDArray[np.bool_], rejected: NDArray[np.bool_], *, scaled: bool
) -> AsRecorded | None:
    """Return the recorded outcomes of a trace's measured jobs; None if the trace has no waiting times.

    Args:
        trace: J jobs.
        measured: (J,) whether each job is measured.
        rejected: (J,) whether each job can never run on this cluster. Such jobs are left out.
        scaled: Whether the number of nodes of the simulated cluster differs from the number in its file.
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
