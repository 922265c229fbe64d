"""Selects the jobs that an evaluation measures, and the earlier jobs that it replays as warm-up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.spec import ClusterSpec
from rlsched.errors import InputError
from rlsched.workload.load import nodes_for_load, scaled_to_nodes
from rlsched.workload.trace import Trace

WARMUP_S: Final = 7 * 86400.0
"""Length of the warm-up before the window, seconds; its jobs fill the cluster."""


@dataclass(frozen=True)
class MeasuredWindow:
    """A time window [since_s, until_s), seconds of the trace. Jobs submitted in it are measured."""

    since_s: float = -np.inf
    until_s: float = np.inf

    @property
    def replay_from_s(self) -> float:
        """Start of the replay, seconds of the trace. Jobs submitted earlier are not replayed."""
        return max(0.0, self.since_s - WARMUP_S) if np.isfinite(self.since_s) else -np.inf

    def measured(self, trace: Trace) -> NDArray[np.bool_]:
        """Return whether each job is measured, (J,)."""
        return np.asarray((trace.submit_s >= self.since_s) & (trace.submit_s < self.until_s), dtype=np.bool_)


def window_of(trace: Trace, since_s: float | None, until_s: float | None) -> MeasuredWindow:
    """Return the window [since_s, until_s) of a trace. None: from the start, or to the end, of the trace.

    Raises:
        InputError: the window is empty or contains no job.
    """
    window = MeasuredWindow(-np.inf if since_s is None else since_s, np.inf if until_s is None else until_s)
    if not window.since_s < window.until_s:
        raise InputError(f"expected --since below --until, got {window.since_s:g} and {window.until_s:g}")
    if not window.measured(trace).any():
        first, last = (float(trace.submit_s[at]) for at in (0, -1))
        raise InputError(
            f"{trace.name}: no job is submitted in [{window.since_s:g}, {window.until_s:g}) s; "
            f"the trace runs from {first:.0f} s to {last:.0f} s"
        )
    return window


def scaled_cluster(
    trace: Trace, spec: ClusterSpec, window: MeasuredWindow, *, nodes: int | None, load: float | None
) -> ClusterSpec:
    """Return the cluster for the replay: with `nodes` nodes, scaled to an offered `load`, or unchanged.

    Raises:
        InputError: both `nodes` and `load` are given, or the cluster cannot be scaled in this way.
    """
    if nodes is not None and load is not None:
        raise InputError("expected --nodes or --load, got both; a load sets the number of nodes")
    if nodes is not None:
        return scaled_to_nodes(spec, nodes)
    if load is not None:
        return nodes_for_load(trace.select(window.measured(trace)), spec, load)
    return spec
