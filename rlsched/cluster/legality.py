"""Whether the ledger would take a start: for people and policies; kernels only do what they are told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rlsched.cluster.arrays import NODE_UP
from rlsched.cluster.room import has_tenant_place, places_on
from rlsched.errors import AllocationError

if TYPE_CHECKING:
    from rlsched.cluster.state import ClusterState


def check_gang(
    state: ClusterState, slot: int, gpus: Sequence[int], share_milli: int, sm_clock_frac: float, node: int
) -> tuple[int, int]:
    """(partition, first node) of a start that is legal.

    Args:
        state: The cluster.
        slot: Slot of the waiting job.
        gpus: Global GPU numbers that it is to have.
        share_milli: Share of each.
        sm_clock_frac: SM clock.
        node: Node of a job without GPUs.

    Raises:
        AllocationError: saying why it is not legal.
    """
    job = state.arrays.job.view(np.ndarray)[slot]
    seq = int(job["seq"])
    if len(gpus) != job["gpus"] or len(set(gpus)) != len(gpus):
        raise AllocationError(f"job {seq} needs {job['gpus']} different GPUs, got {list(gpus)}")
    if share_milli != job["share_milli"]:
        raise AllocationError(
            f"job {seq}: {job['share_milli']} milli of each GPU must be given, got {share_milli}"
        )
    if sm_clock_frac != 1.0:
        raise AllocationError(f"job {seq}: only the full SM clock (1.0) can be given, got {sm_clock_frac}")
    nodes, partitions = _places_by_node(state, seq, gpus, share_milli, node), set()
    for n, places in nodes.items():
        if state.arrays.node.status[n] != NODE_UP:
            raise AllocationError(f"job {seq}: node {state.node_names[n]} is not up")
        if places_on(state.arrays, int(job["demand"]), n) < places:
            raise AllocationError(
                f"job {seq}: node {state.node_names[n]} has too little of what the job asks for"
            )
        partitions.add(int(state.arrays.node.part_of[n]))
    if len(partitions) != 1:
        raise AllocationError(f"job {seq}: a gang stays within one partition, got {sorted(partitions)}")
    p = partitions.pop()
    if p not in (job["own_partition"], job["shared_partition"]):
        raise AllocationError(f"job {seq}: partition {state.partition_names[p]} does not serve its VC")
    return p, next(iter(nodes))


def _places_by_node(
    state: ClusterState, seq: int, gpus: Sequence[int], share_milli: int, node: int
) -> dict[int, int]:
    """Places that are asked of each node, by node number, in the order of the GPUs."""
    if not gpus:
        if not 0 <= node < len(state.node_names):
            raise AllocationError(f"job {seq}: there is no node number {node}")
        return {node: 1}
    gpu = state.arrays.gpu.view(np.ndarray)
    nodes: dict[int, int] = {}
    for g in gpus:
        if not 0 <= g < len(gpu):
            raise AllocationError(f"job {seq}: there is no GPU {g}")
        n = int(gpu["node"][g])
        if state.arrays.node.status[n] == NODE_UP and (
            gpu["free_milli"][g] < share_milli or not has_tenant_place(state.arrays, g)
        ):
            raise AllocationError(f"job {seq}: GPU {g} on node {state.node_names[n]} is taken")
        nodes[n] = nodes.get(n, 0) + 1
    return nodes
