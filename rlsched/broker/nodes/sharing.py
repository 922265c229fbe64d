"""Sharing of GPUs on nodes: the ways in which jobs can share, and the isolation between co-tenants."""

from __future__ import annotations

from rlsched.broker.state.broker_state import BrokerState
from rlsched.broker.state.job_requests import memory
from rlsched.broker.state.jobs import Attempt, Job
from rlsched.cluster.arrays import MAX_TENANTS, columns
from rlsched.models.slice_name import is_slice
from rlsched.wire.messages import MPS, TIME_SLICING

_IN_WORDS = {
    TIME_SLICING: "time slicing: co-tenants take turns, and no co-tenant's GPU time or memory is limited",
    MPS: "MPS: a fatal GPU fault of one co-tenant ends all co-tenants; no multiprocessors are reserved",
}


def may_share(state: BrokerState, job: Job) -> tuple[bool, int]:
    """Return whether a job may share its GPUs, and the memory that it needs on each GPU, MiB; 0: unknown."""
    if not state.models.shares:
        return False, 0
    slot = state.cluster.slot_of(job.seq)
    arrays = state.cluster.arrays.job
    return not arrays.unshared[slot], max(int(arrays.gpu_need_mib[slot]), 0)


def is_more_than_counted(state: BrokerState, job: Job, mib: int) -> bool:
    """Return whether a running job uses more memory on a GPU than the ledger reserves for it.

    The result is False for a job that cannot share GPUs. `mib`: observed memory, MiB.
    """
    if not state.models.shares:
        return False
    slot, jobs = state.cluster.slot_of(job.seq), columns(state.cluster.arrays.job)
    counted_mib = int(jobs["gpu_need_mib"][slot])
    if mib <= counted_mib or jobs["unshared"][slot] or jobs["head"][slot] < 0:
        return False
    if counted_mib >= 0:
        return True
    s = state.cluster.arrays
    kind = int(s.node.kind[s.gpu.node[int(jobs["head"][slot]) // MAX_TENANTS]])
    return mib > float(s.models.trait.memory_mib[int(jobs["workload"][slot]), kind])


def limit_mib(state: BrokerState, job: Job, attempt: Attempt) -> int:
    """Return an attempt's limit of GPU memory on nodes that enforce limits, MiB on each GPU; 0: no limit."""
    if attempt.gpu_need_mib or job.seen_gpu_mib:
        return attempt.gpu_need_mib
    return may_share(state, job)[1]  # an attempt from a base without `gpu_need_mib`


def ways_of(state: BrokerState, job: Job) -> list[str]:
    """Return the ways in which a running job can share its GPUs (`MPS`, `TIME_SLICING`); empty if none."""
    attempt = job.active
    if attempt is None or not may_share(state, job)[0]:
        return []
    return sorted({_way(state, rank.node) for rank in attempt.ranks} - {""})


def is_limited(state: BrokerState, job: Job, attempt: Attempt) -> bool:
    """Return whether a node limits the GPU memory of an attempt to the job's need (`limit_mib`).

    The limit is set in MPS or in PyTorch's allocator, even while the job has no co-tenants.
    """
    shares, need_mib = may_share(state, job)[0], limit_mib(state, job, attempt)
    nodes = [rank.node for rank in attempt.ranks]
    return shares and need_mib > 0 and any(_way(state, n) == MPS or _limits_torch(state, n) for n in nodes)


def isolation_lines(state: BrokerState, job: Job) -> list[str]:
    """Describe how a running job is isolated from jobs on the same GPUs, one line for each way of sharing."""
    lines = []
    nodes = [] if job.active is None else [state.nodes.get(rank.node) for rank in job.active.ranks]
    if any(node is not None and is_slice(node.spec.gpu_type) for node in nodes):
        lines.append(
            "it runs on MIG instances: memory and multiprocessors are its own, and a fault of another job "
            "does not end it; the clock and the power limit belong to the whole GPU"
        )
    for way in ways_of(state, job):
        words = f"its GPUs are shared by {_IN_WORDS[way]}"
        need_mib = limit_mib(state, job, job.active) if job.active is not None else 0
        if way == MPS:
            words += f"; its memory limit is {memory(need_mib)}" if need_mib else "; it has no memory limit"
        elif need_mib and job.active and any(_limits_torch(state, rank.node) for rank in job.active.ranks):
            words += f"; PyTorch's memory limit is {memory(need_mib)}"
        lines.append(words)
    if lines and job.seen_gpu_mib:
        lines.append(f"its GPU memory counts as {memory(job.seen_gpu_mib)}, because it was seen to use more")
    return lines


def _limits_torch(state: BrokerState, name: str) -> bool:
    node = state.nodes.get(name)
    return node is not None and node.spec.capabilities.limits_torch


def _way(state: BrokerState, name: str) -> str:
    node = state.nodes.get(name)
    if node is None or not node.spec.capabilities.shares:
        return ""
    return MPS if node.spec.capabilities.sharing == MPS else TIME_SLICING
