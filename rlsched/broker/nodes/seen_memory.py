"""Observed GPU memory of running jobs: the ledger reserves at least the memory that a job uses."""

from __future__ import annotations

import math
from typing import Final

from rlsched.broker.base.entries import GpuMemorySeen
from rlsched.broker.nodes.metered import MeteredUsage
from rlsched.broker.nodes.sharing import is_more_than_counted
from rlsched.broker.outbox import Outbox
from rlsched.broker.state.broker_state import BrokerState

STEP_MIB: Final = 256
"""Observed memory is rounded up to a multiple of this amount, MiB, so that slow growth causes few journal
entries.
"""


class SeenMemory:
    """Records the GPU memory of running jobs that use more than the ledger reserves for them.

    Time slicing does not limit the memory of a job. With too small a reservation, the job could get
    co-tenants for which the memory does not suffice.
    """

    def __init__(self, state: BrokerState, metered: MeteredUsage, out: Outbox) -> None:
        self._state, self._metered, self._out = state, metered, out

    def step(self) -> None:
        """Record the memory of each job that exceeds its reserved memory in two successive reports.

        One report is not enough: while a rank has no process on its GPU yet, a node reports the memory of the
        whole GPU, which may include a job that has just ended.
        """
        for number, mib in self._metered.take_gpu_memory().items():
            job = self._state.jobs.get(number)
            if job is None or job.active is None or not is_more_than_counted(self._state, job, mib):
                continue
            rounded_mib = STEP_MIB * math.ceil(mib / STEP_MIB)
            self._out.record(GpuMemorySeen(job=number, gpu_memory_mib=rounded_mib))
