"""Speeds of jobs that shared GPUs, as a broker observed them, for a run that repeats the broker's run.

The loops stop at each observation (`run.review_s`), as they do at each review of nodes that can sleep.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rlsched.broker.base.ledger_models import workload_number
from rlsched.cluster.state import ClusterState
from rlsched.models.learning import Observed
from rlsched.models.observed import LearntPairs
from rlsched_envs.sim.sim_arrays import SimArrays


class SeenPairs:
    """Lets the models of a run learn from observed pairs, each at its time, by the code of a broker.

    Args:
        state: The cluster, with models.
        seen: Observations with their times, seconds of the trace, ascending.
        now_s: Start of the run; observations up to then are learnt at once.
    """

    def __init__(self, state: ClusterState, seen: Sequence[tuple[float, Observed]], now_s: float) -> None:
        self._state, self._seen, self._at = state, seen, 0
        self._learnt = LearntPairs()
        self._learn(now_s)

    @property
    def next_s(self) -> float:
        """Time of the next review: just before the next observation, which decisions of its time know."""
        if self._at == len(self._seen):
            return math.inf
        return float(np.nextafter(self._seen[self._at][0], -math.inf))

    def review(self, sim: SimArrays) -> bool:
        """Learn from the pairs observed by now, and plan the next review. Returns False: decide nothing."""
        self._learn(float(sim.progress.run.now_s[0]))
        sim.progress.run.review_s = self.next_s
        return False

    def _learn(self, now_s: float) -> None:
        state = self._state
        while self.next_s <= now_s:
            seen = self._seen[self._at][1]
            self._learnt.observe(state.arrays.models, state.kind_names, seen, workload_number)
            self._at += 1
