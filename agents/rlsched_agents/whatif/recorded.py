"""A history with recorded starts, and a check that its jobs can have run on its cluster as recorded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.spec import ClusterSpec
from rlsched.errors import InputError
from rlsched.terminal.show import in_words
from rlsched.workload.load import partition_groups, runnable_mask, span_s
from rlsched.workload.trace import Trace

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

LEAST_JOBS: Final = 100
"""Minimum number of jobs with a recorded start that is needed to identify a rule."""
LEAST_KNOWN_FRAC: Final = 0.5
MOST_UNABLE_FRAC: Final = 0.01
"""Maximum fraction of jobs that cannot run on the cluster."""
MOST_ABOVE_S: Final = 60.0
MOST_ABOVE_FRAC: Final = 0.001
"""Maximum fraction of time in which more GPUs may be busy than the cluster has: recorded times are inexact,
because the clocks of machines differ."""


@dataclass(frozen=True)
class Recorded:
    """The history as the site recorded it.

    Attributes:
        trace: J jobs.
        cluster: The cluster of the history.
        wait_s: (J,) recorded time from submission to start, seconds; nan: unknown.
        compared: (J,) mask of the jobs to compare: jobs with GPUs and a known start that can run on the
            cluster.
        most_busy: Largest number of GPUs that were busy at the same time.
    """

    trace: Trace
    cluster: ClusterSpec
    wait_s: Floats
    compared: Mask
    most_busy: float

    @classmethod
    def from_history(cls, trace: Trace, cluster: ClusterSpec) -> Recorded:
        """Check that the jobs can have run on the cluster as recorded. Return the history with its waits.

        Raises:
            InputError: too few starts are recorded, more GPUs were busy than the cluster has, or too many
                jobs can never run on the cluster.
        """
        if not len(trace):
            raise InputError(f"{trace.name}: expected jobs, got none")
        wait_s = np.asarray(trace.extra.get("queue_s", np.full(len(trace), np.nan)), dtype=np.float64)
        with_gpus = trace.num_gpus > 0
        known = with_gpus & np.isfinite(wait_s)
        if known.sum() < max(LEAST_JOBS, LEAST_KNOWN_FRAC * with_gpus.sum()):
            raise InputError(
                f"{trace.name}: starts are recorded for {known.sum():,} of its {with_gpus.sum():,} jobs with "
                f"GPUs, expected at least {LEAST_JOBS} and half of them: without recorded starts (column "
                "queue_s) a replay cannot be checked"
            )
        runnable = runnable_mask(trace, cluster)
        unable = with_gpus & ~runnable.mask
        if unable.sum() > MOST_UNABLE_FRAC * with_gpus.sum():
            first = int(np.flatnonzero(unable)[0])
            raise InputError(
                f"{trace.name} cannot have happened on {cluster.name}: {unable.sum():,} of the "
                f"{with_gpus.sum():,} GPU jobs ran according to the trace, but cannot run on this cluster, "
                f"such as {trace.job_id[first]}: {runnable.reasons[first]}; correct the cluster file"
            )
        most = _check_capacity(trace, cluster, wait_s, known & runnable.mask)
        return cls(trace, cluster, wait_s, known & runnable.mask, most)


def _check_capacity(trace: Trace, cluster: ClusterSpec, wait_s: Floats, which: Mask) -> float:
    """Return the largest number of GPUs that were busy at the same time.

    Raises:
        InputError: more GPUs were busy than the cluster has, or than the jobs of a VC may use.
    """
    gpus_of = {
        vc: sum(group.count * group.gpus for group in groups)
        for vc, groups in partition_groups(cluster).items()
    }
    most, above_s = _busy(trace, wait_s, which, cluster.num_gpus)
    _refuse_above(trace, f"{cluster.name} has {cluster.num_gpus:,} GPUs", most, above_s)
    for vc in np.unique(trace.vc[which]).tolist():
        gpus = gpus_of.get(vc, 0) + gpus_of.get(None, 0) if vc else gpus_of.get(None, 0)
        busy, above_s = _busy(trace, wait_s, which & (trace.vc == vc), gpus)
        _refuse_above(trace, f"jobs of {vc or 'no VC'} may use {gpus:,} GPUs", busy, above_s)
    return most


def _refuse_above(trace: Trace, there: str, most: float, above_s: float) -> None:
    if above_s > max(MOST_ABOVE_S, MOST_ABOVE_FRAC * span_s(trace)):
        raise InputError(
            f"{trace.name} cannot have happened on this cluster: {there}, but up to {most:,.0f} were busy at "
            f"once (too many for {in_words(above_s)} in all); the cluster file has too few GPUs, "
            "or jobs shared GPUs"
        )


def _busy(trace: Trace, wait_s: Floats, which: Mask, gpus: int) -> tuple[float, float]:
    """Return the largest number of busy GPUs, and the seconds in which more than `gpus` were busy."""
    start_s = (trace.submit_s + wait_s)[which]
    end_s = start_s + trace.duration_s[which]
    held = trace.num_gpus[which]
    at_s = np.concatenate((end_s, start_s))
    order = np.argsort(at_s, kind="stable")
    busy = np.cumsum(np.concatenate((-held, held))[order])
    lasts_s = np.diff(at_s[order], append=at_s.max(initial=0.0))
    busy = busy[lasts_s > 0]
    above = busy > gpus + 1e-6
    return float(busy.max(initial=0.0)), float(lasts_s[lasts_s > 0][above].sum())
