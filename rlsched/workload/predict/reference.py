"""The history from which predictors learn: end times of all jobs, the same for all compared policies."""

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
    """Return the (J,) recorded ends, seconds: submission + waiting time (0 if unknown) + duration."""
    waited = np.asarray(trace.extra.get("queue_s", np.zeros(len(trace))), np.float64)
    return np.asarray(trace.submit_s + np.nan_to_num(waited) + trace.duration_s)


def replayed_end_s(trace: Trace, spec: ClusterSpec) -> Floats:
    """Return the (J,) ends of the jobs in a replay under `fifo-backfill`, seconds; nan: the job never ends.

    The simulator is found through the entry point group `rlsched.histories`.

    Raises:
        InputError: no simulator is installed.
    """
    for point in entry_points(group="rlsched.histories", name=RULE):
        return np.asarray(point.load()(trace, spec))
    raise InputError(
        f"the replay of the trace under {RULE!r} needs a simulator, and none is installed: reinstall "
        "rlsched, or use the recorded ends with --as-recorded"
    )
