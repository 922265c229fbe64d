"""The reference history: end times of all jobs of a trace, the same for all policies that are compared."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TYPE_CHECKING

import numpy as np

from rlsched.errors import InputError
from rlsched.workload.predict.distribution import Floats

if TYPE_CHECKING:
    from rlsched.cluster.spec import ClusterSpec
    from rlsched.workload.trace import Trace

RULE = "fifo-backfill"


def recorded_end_s(trace: Trace) -> Floats:
    """Return the (J,) recorded ends: submission + queueing delay (0 if unknown) + duration."""
    waited = np.asarray(trace.extra.get("queue_s", np.zeros(len(trace))), np.float64)
    return np.asarray(trace.submit_s + np.nan_to_num(waited) + trace.duration_s)


def replayed_end_s(trace: Trace, spec: ClusterSpec) -> Floats:
    """Return the (J,) ends when `fifo-backfill` runs the trace on this cluster, nan for jobs that never end.

    Finds the simulator through the entry points `rlsched.histories`.

    Raises:
        InputError: no simulator is installed.
    """
    for point in entry_points(group="rlsched.histories", name=RULE):
        return np.asarray(point.load()(trace, spec))
    raise InputError(
        f"replaying the history under {RULE!r} needs the simulator, which is not installed: reinstall "
        "rlsched, or use the recorded ends with --as-recorded"
    )
