"""`Jobs`: what happened to each job of a run, as arrays."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.spec import ClusterSpec
from rlsched_agents.evaluate.jobs_out import write_jobs
from rlsched_agents.evaluate.metrics import jct_s, queue_s
from rlsched_envs.sim.job_table import JobTable

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Jobs:
    """The measured jobs of a run: M of them, in the order of submission.

    Attributes:
        table: All jobs of the run, the warm-up's too.
        cluster: What they ran on.
        measured: (J,) which of these are measured.
    """

    table: JobTable
    cluster: ClusterSpec
    measured: NDArray[np.bool_]

    def __len__(self) -> int:
        return int(np.count_nonzero(self.measured))

    @property
    def job_id(self) -> NDArray[np.str_]:
        """(M,) their ids."""
        return self.table.trace.job_id[self.measured]

    @property
    def num_gpus(self) -> Floats:
        """(M,) GPUs that each asked for."""
        return self.table.trace.num_gpus[self.measured]

    @property
    def submit_s(self) -> Floats:
        """(M,) submission, seconds of the trace."""
        return self.table.trace.submit_s[self.measured]

    @property
    def start_s(self) -> Floats:
        """(M,) first start, nan where there was none."""
        return self.table.start_s[self.measured]

    @property
    def end_s(self) -> Floats:
        """(M,) last end, nan where there was none."""
        return self.table.end_s[self.measured]

    @property
    def queue_s(self) -> Floats:
        """(M,) queueing delay: first start less submission, seconds."""
        return queue_s(self.table)[self.measured]

    @property
    def jct_s(self) -> Floats:
        """(M,) job completion time: last end less submission, seconds."""
        return jct_s(self.table)[self.measured]

    def write(self, path: str | Path) -> None:
        """Write one row a job as CSV, and one row an attempt beside it (`NAME.segments.csv`).

        Raises:
            InputError: the place cannot be written to.
        """
        path = Path(path)
        write_jobs(self.table, self.cluster, self.measured, path.parent, path.stem)
