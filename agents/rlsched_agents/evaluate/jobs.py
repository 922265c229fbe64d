"""`MeasuredJobs`: outcomes of the measured jobs of a run, as arrays."""

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
class MeasuredJobs:
    """The measured jobs of a run: M jobs, in the order of submission.

    Attributes:
        table: All jobs of the run, including the warm-up.
        cluster: The cluster of the run.
        measured: (J,) whether each job is measured.
    """

    table: JobTable
    cluster: ClusterSpec
    measured: NDArray[np.bool_]

    def __len__(self) -> int:
        return int(np.count_nonzero(self.measured))

    @property
    def job_id(self) -> NDArray[np.str_]:
        """(M,) job IDs."""
        return self.table.trace.job_id[self.measured]

    @property
    def num_gpus(self) -> Floats:
        """(M,) requested GPUs."""
        return self.table.trace.num_gpus[self.measured]

    @property
    def submit_s(self) -> Floats:
        """(M,) submission times, seconds of the trace."""
        return self.table.trace.submit_s[self.measured]

    @property
    def start_s(self) -> Floats:
        """(M,) first starts, seconds of the trace; nan if the job did not start."""
        return self.table.start_s[self.measured]

    @property
    def end_s(self) -> Floats:
        """(M,) last ends, seconds of the trace; nan if the job did not end."""
        return self.table.end_s[self.measured]

    @property
    def queue_s(self) -> Floats:
        """(M,) queueing delays: first start less submission, seconds."""
        return queue_s(self.table)[self.measured]

    @property
    def jct_s(self) -> Floats:
        """(M,) job completion times: last end less submission, seconds."""
        return jct_s(self.table)[self.measured]

    def write(self, path: str | Path) -> None:
        """Write a CSV file of the jobs, and one of their attempts, `NAME.segments.csv`, next to it.

        Raises:
            InputError: the file cannot be written.
        """
        path = Path(path)
        write_jobs(self.table, self.cluster, self.measured, path.parent, path.stem)
