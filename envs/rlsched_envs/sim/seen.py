"""Applies a broker's observations (speeds on shared GPUs, GPU memory) when the simulator repeats its run.

The event loop stops just before each observation (at `run.review_s`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rlsched.broker.base.ledger_models import workload_number
from rlsched.cluster.state import ClusterState
from rlsched.models.learning import Observed
from rlsched.models.observed import LearntPairs
from rlsched_envs.sim.sim_arrays import SimArrays


class SeenMemory(NamedTuple):
    """Observation that a running job uses more GPU memory than the scheduler assumed.

    Attributes:
        row: Row of the job: its index among the runnable jobs of the trace.
        gpu_memory_mib: Memory that the scheduler assumes from now on, on each GPU of the job, MiB.
    """

    row: int
    gpu_memory_mib: int


class Seen:
    """Applies the observations of a broker to the cluster of a run, each at its time.

    Args:
        state: The cluster, with models.
        seen: (time, observation), ascending; times are seconds of the trace.
        now_s: Start of the run. Speeds that the broker observed up to the start are learnt at once.
    """

    def __init__(
        self, state: ClusterState, seen: Sequence[tuple[float, Observed | SeenMemory]], now_s: float
    ) -> None:
        self._state, self._seen, self._at = state, seen, 0
        self._learnt = LearntPairs()
        while self.next_s <= now_s:
            self._apply(self._take(), {})

    @property
    def next_s(self) -> float:
        """Time of the next review: just before the next observation, so that decisions already use it."""
        if self._at == len(self._seen):
            return math.inf
        return float(np.nextafter(self._seen[self._at][0], -math.inf))

    def review(self, sim: SimArrays) -> bool:
        """Apply all observations up to now, and plan the next review.

        Always return False: observations require no scheduling decisions.
        """
        slots = {int(row): slot for slot, row in enumerate(sim.progress.ends.row)}
        while self.next_s <= float(sim.progress.run.now_s[0]):
            self._apply(self._take(), slots)
        sim.progress.run.review_s = self.next_s
        return False

    def _take(self) -> Observed | SeenMemory:
        self._at += 1
        return self._seen[self._at - 1][1]

    def _apply(self, seen: Observed | SeenMemory, slots: dict[int, int]) -> None:
        """Apply an observation. `slots`: row of a job -> its slot, for all live jobs and some ended jobs."""
        state = self._state
        if isinstance(seen, Observed):
            self._learnt.observe(state.arrays.models, state.kind_names, seen, workload_number)
        elif seen.row in slots:
            seq = int(state.arrays.job.seq[slots[seen.row]])
            state.raise_gpu_need(seq, seen.gpu_memory_mib)
