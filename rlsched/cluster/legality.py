"""Checks of whether a start is legal, for callers of `ClusterState`; kernels do not check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from rlsched.cluster.arrays import CLOCKS_ALONE, MAX_TENANTS, NODE_DRAINED, NODE_UP, UNCOUNTED, columns
from rlsched.cluster.capacity import (
    gpu_need_mib,
    has_memory_for,
    memory_left_mib,
    places_on,
    takes_gpus_of,
)
from rlsched.cluster.demand import WHOLE_GPU_MILLI
from rlsched.cluster.kernels import spare_cpu_milli_each, tenants_of
from rlsched.cluster.shape import ClusterShape
from rlsched.errors import AllocationError
from rlsched.models.clocks import MIN_CLOCK_FRAC
from rlsched.models.memory import MAX_SHARING, fits_memory
from rlsched.models.slice_name import is_slice


def check_gang(
    state: ClusterShape,
    slot: int,
    gpus: Sequence[int],
    share_milli: int,
    sm_clock_frac: float,
    node: int,
    cpu_milli_each: int = -1,
    *,
    drained_too: bool = False,
) -> tuple[int, int]:
    """Check that a start is legal. Return its partition and its first node.

    Args:
        slot: Slot of the waiting job.
        gpus: Global indices of the GPUs to allocate to the job.
        share_milli: Share of each GPU, thousandths.
        sm_clock_frac: SM clock, fraction of the maximum.
        node: Node of a job without GPUs.
        cpu_milli_each: Cores with each GPU, thousandths; -1: the cores that the job requested.
        drained_too: Whether drained nodes are also legal.

    Raises:
        AllocationError: the start is not legal; the message names the reason.
    """
    job = columns(state.arrays.job)[slot]
    seq = int(job["seq"])
    if len(gpus) != job["gpus"] or len(set(gpus)) != len(gpus):
        raise AllocationError(f"job {seq} needs {job['gpus']} different GPUs, got {list(gpus)}")
    if share_milli != job["share_milli"]:
        raise AllocationError(
            f"job {seq}: expected {job['share_milli']} thousandths of each GPU, as requested, "
            f"got {share_milli}"
        )
    check_clock(state, seq, sm_clock_frac)
    nodes, partitions = _places_by_node(state, seq, gpus, share_milli, node), set()
    _check_free_memory(state, slot, gpus)
    check_clocks(state, seq, nodes, sm_clock_frac)
    node_columns = columns(state.arrays.node)
    for n, places in nodes.items():
        status = node_columns["status"][n]
        if status != NODE_UP and not (drained_too and status == NODE_DRAINED):
            raise AllocationError(f"job {seq}: node {state.node_names[n]} is not up")
        check_room(state, slot, n, places)
        asked = int(columns(state.arrays.demand)["cpu_milli_each"][job["demand"]])
        check_cores(state, slot, n, places, asked if cpu_milli_each < 0 else cpu_milli_each)
        partitions.add(int(node_columns["part_of"][n]))
    if len(partitions) != 1:
        raise AllocationError(
            f"job {seq}: expected GPUs of one partition, got GPUs of partitions {sorted(partitions)}"
        )
    p = partitions.pop()
    if p not in (job["own_partition"], job["shared_partition"]):
        raise AllocationError(f"job {seq}: partition {state.partition_names[p]} does not serve its VC")
    return p, next(iter(nodes))


def _check_free_memory(state: ClusterShape, slot: int, gpus: Sequence[int]) -> None:
    """Raise an AllocationError if one of these GPUs has less free memory than a job requests."""
    arrays, seq = state.arrays, int(state.arrays.job.seq[slot])
    demand = int(arrays.job.demand[slot])
    for g in gpus if arrays.config[0].limits_memory else ():
        if not has_memory_for(arrays, g, demand):
            n, local = state.gpu_location(g)
            free_mib = max(min(memory_left_mib(arrays, g), int(arrays.gpu.joinable_mib[g])), 0)
            raise AllocationError(
                f"job {seq}: GPU {local} on node {state.node_names[n]} has {free_mib} MiB free for one more "
                f"job, and the job requests {arrays.demand.gpu_free_mib[demand]}"
            )


def check_clock(state: ClusterShape, seq: int, sm_clock_frac: float) -> None:
    """Raise an AllocationError if a job cannot have this SM clock; without models, only 1 is legal."""
    if sm_clock_frac != 1.0 and not state.arrays.config[0].modelled:
        raise AllocationError(
            f"job {seq}: without models, only the full SM clock (1.0) can be given, got {sm_clock_frac}"
        )
    if not MIN_CLOCK_FRAC <= sm_clock_frac <= 1.0:
        raise AllocationError(
            f"job {seq}: expected an SM clock of {MIN_CLOCK_FRAC:g} to 1 (fraction of the highest clock), "
            f"got {sm_clock_frac}"
        )


def check_clocks(state: ClusterShape, seq: int, nodes: Iterable[int], sm_clock_frac: float) -> None:
    """Raise an AllocationError if a job cannot have this SM clock on GPUs of these nodes."""
    check_clock(state, seq, sm_clock_frac)
    for n in nodes if sm_clock_frac != 1.0 else ():
        if is_slice(state.kind_names[int(state.arrays.node.kind[n])]):
            raise AllocationError(
                f"job {seq}: node {state.node_names[n]} has MIG slices, which share the clock of their GPU: "
                f"only the full SM clock (1.0) can be given, got {sm_clock_frac}"
            )
        if state.arrays.node.fixed_clock[n]:
            raise AllocationError(
                f"job {seq}: node {state.node_names[n]} cannot set the SM clock of its GPUs: only the full "
                f"SM clock (1.0) can be given, got {sm_clock_frac}"
            )


def check_room(state: ClusterShape, slot: int, n: int, places: int) -> None:
    """Raise an AllocationError if a node lacks GPUs, cores or memory for `places` GPUs of a job."""
    job = columns(state.arrays.job)
    if places_on(state.arrays, int(job["demand"][slot]), n) < places:
        raise AllocationError(
            f"job {job['seq'][slot]}: node {state.node_names[n]} has too few resources for the job"
        )


def check_cores(state: ClusterShape, slot: int, n: int, places: int, cpu_milli_each: int) -> None:
    """Raise an AllocationError if a job cannot get the cores `places` x `cpu_milli_each` on node `n`.

    `places`: number of the job's GPUs on the node; 1 for a job without GPUs. The node must have this many
    free cores. If the job gets more cores than it requested, cores that are lent to other jobs do not count
    as free. A job that requested cores must get some: without cores it would never end.
    """
    node, job, lends = (
        columns(state.arrays.node),
        columns(state.arrays.job),
        columns(state.arrays.config)["lends_cores"][0],
    )
    seq, free = int(job["seq"][slot]), int(node["cpu_free_milli"][n])
    asked = int(columns(state.arrays.demand)["cpu_milli_each"][job["demand"][slot]])
    if cpu_milli_each == 0 < asked:
        raise AllocationError(
            f"job {seq} requests cores: expected more than 0 cores for each GPU in the action, got 0"
        )
    if lends and cpu_milli_each > asked:
        free -= _lent_milli(state, n)
    if node["cpu_milli"][n] < UNCOUNTED and free < places * cpu_milli_each:
        raise AllocationError(
            f"job {seq}: node {state.node_names[n]} has fewer cores free than {places} x "
            f"{cpu_milli_each / 1000:g} (GPUs x cores for each GPU)"
        )


def _lent_milli(state: ClusterShape, n: int) -> int:
    """Return the cores of a node that are lent to jobs, thousandths, as `loans.lent_milli_on` does."""
    node, job = columns(state.arrays.node)[n], columns(state.arrays.job)
    gpus = slice(int(node["first_gpu"]), int(node["first_gpu"] + node["gpus"]))
    slots = state.arrays.gpu.tenant[gpus].ravel()
    slots = slots[slots >= 0]
    asked = columns(state.arrays.demand)["cpu_milli_each"][job["demand"][slots]]
    return int(np.maximum(job["cpu_milli_each"][slots] - asked, 0).sum())


def check_join(
    state: ClusterShape,
    slot: int,
    share_with: int,
    gpus: Sequence[int],
    sm_clock_frac: float,
    cpu_milli_each: int = -1,
) -> None:
    """Raise an AllocationError if a waiting job cannot share the GPUs of a running job.

    Args:
        slot: Slot of the waiting job.
        share_with: Slot of the running job.
        gpus: Global indices of the GPUs to share: all GPUs of the running job.
        sm_clock_frac: SM clock of the waiting job, fraction of the maximum.
        cpu_milli_each: Cores that the waiting job adds to each GPU, thousandths; -1: none.
    """
    job = columns(state.arrays.job)
    seq, other = int(job["seq"][slot]), int(job["seq"][share_with])
    check_clock(state, seq, sm_clock_frac)
    if state.arrays.config[0].modelled in (0, CLOCKS_ALONE):
        raise AllocationError(
            f"job {seq}: GPUs can be shared only if models predict the speed of jobs; this cluster has no "
            "models"
        )
    asked = state.arrays.demand.share_milli[job["demand"][[slot, share_with]]]
    if job["gpus"][slot] != job["gpus"][share_with] or job["gpus"][slot] == 0 or (asked < 1000).any():
        raise AllocationError(
            f"job {seq} cannot share GPUs with job {other}: expected equally many whole GPUs in both requests"
        )
    g = int(job["head"][share_with]) // MAX_TENANTS
    tenants = [k for k in state.arrays.gpu.tenant[g].tolist() if k >= 0]
    for one in (slot, *tenants):
        if job["unshared"][one]:
            raise AllocationError(
                f"job {seq} cannot share GPUs with job {other}: job {job['seq'][one]} must not share GPUs"
            )
    if tenants_of(state.arrays, g) >= MAX_SHARING:
        raise AllocationError(
            f"job {seq}: {MAX_SHARING} jobs share the GPUs of job {other} already; this is the maximum"
        )
    if job["placed_in"][share_with] not in (job["own_partition"][slot], job["shared_partition"][slot]):
        raise AllocationError(f"job {seq}: the partition of job {other} does not serve the VC of job {seq}")
    if not takes_gpus_of(state.arrays, int(job["demand"][slot]), share_with):
        raise AllocationError(
            f"job {seq} cannot share the GPUs of job {other}: expected GPUs of one type that the job "
            "accepts, no MIG slices, on nodes that are up and allow several jobs on a GPU"
        )
    if sorted(gpus) != sorted(state.gpus_of(other)):
        raise AllocationError(
            f"job {seq}: expected all the GPUs of job {other}, which it shares, got {list(gpus)}"
        )
    if cpu_milli_each > spare_cpu_milli_each(state.arrays, share_with):
        raise AllocationError(
            f"job {seq}: the nodes of job {other} have fewer cores to spare than the action gives"
        )
    _check_memory(state, slot, share_with)


def _check_memory(state: ClusterShape, slot: int, share_with: int) -> None:
    """Raise an AllocationError if a running job's GPUs or nodes have too little memory for one more job."""
    arrays, job = state.arrays, state.arrays.job
    seq, other = int(job.seq[slot]), int(job.seq[share_with])
    for n, places in Counter(state.gpu_location(g)[0] for g in state.gpus_of(other)).items():
        if arrays.node.memory_free_mib[n] < places * arrays.demand.memory_mib_each[job.demand[slot]]:
            raise AllocationError(f"job {seq}: node {state.node_names[n]} has too little host memory left")
    kind = int(arrays.node.kind[job.host[share_with]])
    tenants = [k for k in arrays.gpu.tenant[job.head[share_with] // MAX_TENANTS].tolist() if k >= 0]
    mine_mib, *theirs_mib = [float(gpu_need_mib(arrays, one, kind)) for one in (slot, *tenants)]
    used_mib, gpu = sum(theirs_mib), arrays.gpu[state.gpus_of(other)]
    fits = fits_memory(float(arrays.models.gpu.memory_mib[kind]), used_mib, len(tenants), mine_mib)
    beyond = (used_mib + mine_mib > gpu.usable_mib) | (mine_mib > gpu.joinable_mib) | (gpu.joinable_mib < 0)
    if not fits or beyond.any():
        raise AllocationError(
            f"job {seq}: the GPUs of job {other} have too little memory left for one more job"
        )


def _places_by_node(
    state: ClusterShape, seq: int, gpus: Sequence[int], share_milli: int, node: int
) -> dict[int, int]:
    """Return {node index: number of the GPUs in `gpus` on this node}; {`node`: 1} if `gpus` is empty."""
    if not gpus:
        if not 0 <= node < len(state.node_names):
            raise AllocationError(f"job {seq}: there is no node number {node}")
        return {node: 1}
    gpu, node_status = columns(state.arrays.gpu), columns(state.arrays.node)["status"]
    node_of, free_milli, tenants = gpu["node"], gpu["free_milli"], gpu["tenant"]
    nodes: dict[int, int] = {}
    for g in gpus:
        if not 0 <= g < len(gpu):
            raise AllocationError(f"job {seq}: there is no GPU {g}")
        n = int(node_of[g])
        free = free_milli[g]
        is_full = free < WHOLE_GPU_MILLI and tenants[g].min() >= 0
        if (free < share_milli or is_full) and node_status[n] in (NODE_UP, NODE_DRAINED):
            raise AllocationError(f"job {seq}: GPU {g} on node {state.node_names[n]} is taken")
        nodes[n] = nodes.get(n, 0) + 1
    return nodes
