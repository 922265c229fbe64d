"""Loans of CPU cores: idle cores of a node that a job there gets in addition to its requested cores.

Loans exist if `config.lends_cores` is set. A job gets a loan when it starts on free GPUs of one node, if the
policy's option `cores` is on and the job's input pipeline needs more cores than requested. A loan is a number
of whole cores per GPU. Lent cores count as free.

If too few cores are left after a start, loans on that node are withdrawn in the order of the GPUs, each as a
whole. The node's daemon follows the same rule (`rlsched_node.processes.cores`) at the start of each rank, so
the broker need not command a withdrawal. A loan can therefore end at another time on the node than in the
ledger.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import MAX_TENANTS, UNCOUNTED, StateArrays
from rlsched.cluster.kernels import forget_speeds, spare_cpu_milli_each
from rlsched.compile.jit import kernel

CORE_MILLI: Final = 1000
"""One core, in thousandths."""


@kernel
def lent_milli_each(s: StateArrays, slot: int) -> int:
    """Return the cores per GPU that are lent to a job, thousandths."""
    if not s.config[0].lends_cores or s.job.head[slot] < 0:
        return 0
    return max(s.job.cpu_milli_each[slot] - s.demand.cpu_milli_each[s.job.demand[slot]], 0)


@kernel
def lent_milli_on(s: StateArrays, n: int) -> int:
    """Return the cores of node `n` that are lent to jobs, thousandths."""
    total = 0
    for g in range(s.node.first_gpu[n], s.node.first_gpu[n] + s.node.gpus[n]):
        for k in range(MAX_TENANTS):
            if s.gpu.tenant[g, k] >= 0:
                total += lent_milli_each(s, s.gpu.tenant[g, k])
    return total


@kernel
def loan_milli_each(s: StateArrays, slot: int, gpus: NDArray[np.int32], needed_milli: int) -> int:
    """Return the cores per GPU that a job is lent if it starts on these free GPUs, thousandths.

    The loan is the least number of whole cores that raises the job's cores to `needed_milli`, but at most the
    idle cores of the node that are not lent. The loan is 0 on a node that does not lend cores (`lends` of
    `NODE`). It is also 0 for a gang on several nodes, a job with whole nodes, and a job that requests a
    fraction of a core per GPU.

    Args:
        gpus: Global indices of these GPUs, grouped by node.
        needed_milli: Cores per GPU that the job can use, thousandths.
    """
    asked, count = s.demand.cpu_milli_each[s.job.demand[slot]], gpus.shape[0]
    loan, n = -(-(needed_milli - asked) // CORE_MILLI), s.gpu.node[gpus[0]]
    if loan <= 0 or s.demand.exclusive[s.job.demand[slot]] or asked % CORE_MILLI:
        return 0
    if s.gpu.node[gpus[count - 1]] != n or s.node.cpu_milli[n] >= UNCOUNTED or not s.node.lends[n]:
        return 0
    idle = s.node.cpu_free_milli[n] - count * asked - lent_milli_on(s, n)
    return min(loan, max(idle, 0) // count // CORE_MILLI) * CORE_MILLI


@kernel
def exceed_parts(s: StateArrays) -> bool:
    """Return whether, on any GPU, the jobs together request more than the GPU's part of its node's cores."""
    for g in range(s.gpu.shape[0]):
        n, held = s.gpu.node[g], 0
        for k in range(MAX_TENANTS):
            if s.gpu.tenant[g, k] >= 0:
                held += s.demand.cpu_milli_each[s.job.demand[s.gpu.tenant[g, k]]]
        if held > s.node.cpu_milli[n] // s.node.gpus[n]:
            return True
    return False


@kernel
def usable_milli(s: StateArrays, slot: int, workload_milli: int) -> int:
    """Return the cores per GPU that a job can use, thousandths; 0: unknown.

    The use of cores in earlier attempts is known for some jobs. If it is below the request, it is the result.
    Otherwise, too few cores may have limited the use: the result is the larger of the use and the workload's
    need.

    Args:
        workload_milli: Cores per GPU that the job's workload needs, thousandths.
    """
    learnt, asked = s.job.core_need_milli[slot], s.demand.cpu_milli_each[s.job.demand[slot]]
    if s.job.workload[slot] == 0:
        workload_milli = 0
    return learnt if 0 < learnt < asked else max(learnt, workload_milli)


@kernel
def lacks_cores(s: StateArrays, slot: int, share_with: int) -> bool:
    """Return whether a waiting job cannot share the GPUs of a running job, because cores are missing.

    Always False on a cluster that does not lend cores. Otherwise, the waiting job needs spare cores for its
    whole request.

    With `config.within_parts`, there is a second condition for each GPU. The waiting job and the jobs that
    already run there may together request at most the GPU's part of the cores: the node's cores divided by
    its GPUs. Otherwise a free GPU could lack cores, and placement by counts of free GPUs (`plain_demands`)
    would fail.
    """
    asked = s.demand.cpu_milli_each[s.job.demand[slot]]
    if not s.config[0].lends_cores or asked == 0:
        return False
    if asked > spare_cpu_milli_each(s, share_with):
        return True
    place, g, held = s.job.head[share_with], s.job.head[share_with] // MAX_TENANTS, 0
    for k in range(MAX_TENANTS):
        if s.gpu.tenant[g, k] >= 0:
            held += s.demand.cpu_milli_each[s.job.demand[s.gpu.tenant[g, k]]]
    while s.config[0].within_parts and place >= 0:
        n = s.gpu.node[place // MAX_TENANTS]
        if held + asked > s.node.cpu_milli[n] // s.node.gpus[n]:
            return True
        place = s.gpu.link[place // MAX_TENANTS, place % MAX_TENANTS]
    return False


@kernel
def withdraw_one(s: StateArrays, started: int) -> int:
    """Withdraw one loan if a job that has just started left too few cores for the loans on one of its nodes.

    Call this function until it returns -1.

    Args:
        started: Slot of the job that has just started.

    Returns:
        Slot of the borrower, which now has the cores that it requested; -1: there are enough cores.
    """
    if not s.config[0].lends_cores:
        return -1
    place = s.job.head[started]
    if place < 0:
        return _withdraw_on(s, s.job.host[started])
    while place >= 0:
        n = s.gpu.node[place // MAX_TENANTS]
        borrower = _withdraw_on(s, n)
        if borrower >= 0:
            return borrower
        while place >= 0 and s.gpu.node[place // MAX_TENANTS] == n:
            place = s.gpu.link[place // MAX_TENANTS, place % MAX_TENANTS]
    return -1


@kernel
def _withdraw_on(s: StateArrays, n: int) -> int:
    """Withdraw one loan, the first in GPU order, if node `n` has too few free cores for its loans.

    Return the slot of the borrower; -1 if no loan is withdrawn.
    """
    if s.node.cpu_milli[n] >= UNCOUNTED or s.node.cpu_free_milli[n] >= lent_milli_on(s, n):
        return -1
    for g in range(s.node.first_gpu[n], s.node.first_gpu[n] + s.node.gpus[n]):
        for k in range(MAX_TENANTS):
            slot = s.gpu.tenant[g, k]
            if slot >= 0 and lent_milli_each(s, slot) > 0:
                s.job.cpu_milli_each[slot] = s.demand.cpu_milli_each[s.job.demand[slot]]
                forget_speeds(s, s.job.head[slot] // MAX_TENANTS)
                return slot
    return -1
