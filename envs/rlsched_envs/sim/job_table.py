"""Outcomes of all jobs of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.spec import ClusterSpec
from rlsched.workload.trace import Trace
from rlsched_envs.sim.attempt_arrays import ENDED
from rlsched_envs.sim.attempt_log import AttemptTable, Placements
from rlsched_envs.sim.modelling import Energy
from rlsched_envs.sim.sleeping import Slept


@dataclass(frozen=True)
class JobTable:
    """Outcomes of all jobs of a trace; J rows in trace order.

    Attributes:
        trace: The jobs.
        spec: The cluster.
        start_s: (J,) first start, nan if the job never started.
        end_s: (J,) end, nan if the job never ended.
        rejected: (J,) whether the job can never run on this cluster.
        reject_reason: (J,) the reason, "" for runnable jobs.
        gpus: Indices of the GPUs of each job's last attempt, empty if the job never started.
        gpu_node: (G,) index of each GPU's node.
        decisions: Number of decisions.
        decision_us: (decisions,) time per decision, microseconds; empty for a compiled rule.
        by_source: Number of decisions by their source (such as `rule`).
        ended_by: (J,) outcome of each job, index in `attempt_arrays.REASONS`: 0 has not ended, 1 finished, 2
            reached its time limit, 3 failed, 7 cancelled (the job never started). None: all jobs that ended
            have finished.
        eligible_s: (J,) time when each job entered the queue (dependencies met, array below its limit), nan
            if the job never entered. None: all jobs entered at their submission.
        log: All attempts. None: each job that started has one attempt, from its start to its end.
        energy: Energy of the run. None: no models.
        slept: Results of power-down. None: all nodes stayed on.
    """

    trace: Trace
    spec: ClusterSpec
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    rejected: NDArray[np.bool_]
    reject_reason: NDArray[np.str_]
    gpus: Sequence[tuple[int, ...]]
    gpu_node: NDArray[np.int32]
    decisions: int
    decision_us: NDArray[np.float64]
    by_source: dict[str, int] = field(default_factory=dict)
    ended_by: NDArray[np.int8] | None = None
    eligible_s: NDArray[np.float64] | None = None
    log: AttemptTable | None = None
    energy: Energy | None = None
    slept: Slept | None = None

    @cached_property
    def attempts(self) -> AttemptTable:
        """All attempts, in the order of their starts if there is a log, else in the order of the trace."""
        if self.log is not None:
            return self.log
        job = np.flatnonzero(~np.isnan(self.start_s))
        gpus = self.gpus if isinstance(self.gpus, Placements) else Placements.of_tuples(self.gpus)
        gpus = gpus.take(job)
        start_s, end_s = self.start_s[job], self.end_s[job]
        ended = ~np.isnan(end_s)
        reason = ended.astype(np.int8) * ENDED if self.ended_by is None else self.ended_by[job]
        return AttemptTable(
            job,
            np.ones(len(job), np.int32),
            start_s,
            end_s,
            np.where(ended, end_s - start_s, 0.0),
            reason.astype(np.int32),
            gpus.at,
            gpus.gpu,
        )

    def first_rows(self, rows: int) -> JobTable:
        """Return a table with only the first `rows` jobs of the trace."""
        log = self.log
        return replace(
            self,
            trace=self.trace.select(slice(0, rows)),
            start_s=self.start_s[:rows],
            end_s=self.end_s[:rows],
            rejected=self.rejected[:rows],
            reject_reason=self.reject_reason[:rows],
            gpus=self.gpus[:rows],
            ended_by=None if self.ended_by is None else self.ended_by[:rows],
            eligible_s=None if self.eligible_s is None else self.eligible_s[:rows],
            log=None if log is None else log.select(log.job < rows),
            energy=None if self.energy is None else self.energy.first_rows(rows),
        )
