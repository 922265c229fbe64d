"""The true future of a simulated run, from which a scheduler can compute a bound."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import RUNNING
from rlsched.errors import InputError
from rlsched_envs.sim.engine import Engine
from rlsched_envs.sim.lookahead import Futures


class Truth:
    """The true run times and the true arrivals of a simulated run.

    Args:
        engine: The run; it may continue.
        most_arrivals: Maximum number of future jobs.

    Raises:
        InputError: in this run, the start of a job does not determine its end.
    """

    def __init__(self, engine: Engine, most_arrivals: int) -> None:
        if not engine.runs_once:
            raise InputError(
                "clairvoyant must know the end of a job from its start: expected a run without models, node "
                "events, failures and dependencies; leave clairvoyant out of this run"
            )
        self._engine = engine
        self._most = most_arrivals
        self._rows: dict[int, NDArray[np.intp]] = {}

    def coming(self, partition: int) -> NDArray[np.intp]:
        """Return the (A,) rows of the next jobs that may run in this partition."""
        run = self._engine.arrays
        if partition not in self._rows:
            own, shared = run.truth.own_partition, run.truth.shared_partition
            self._rows[partition] = np.flatnonzero((own == partition) | (shared == partition))
        mine = self._rows[partition]
        first = int(np.searchsorted(mine, run.progress.run.next_row[0]))
        return mine[first : first + self._most]

    def future(self, slots: NDArray[np.int32], partition: int) -> Futures:
        """Return the true future as one sample.

        Args:
            slots: (L,) the partition's live jobs, as `LookAhead.slots`.
            partition: The partition.
        """
        run, later = self._engine.arrays, self.coming(partition)
        truth, job, row = run.truth, run.state.job[slots], run.progress.ends.row[slots]
        end_s = np.where(
            np.isnan(truth.fixed_end_s[row]), job.start_s + truth.duration_s[row], truth.fixed_end_s[row]
        )
        return Futures(
            duration_s=np.concatenate([truth.duration_s[row], truth.duration_s[later]])[None],
            end_s=np.where(job.status == RUNNING, end_s, math.nan)[None],
            submit_s=truth.submit_s[later][None].copy(),
            demand=truth.demand[later][None].copy(),
            predicted_s=truth.predicted_s[later][None].copy(),
            spread=truth.spread[later][None].copy(),
        )
