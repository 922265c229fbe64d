"""Computes how many more nodes the waiting jobs would fill, for each set of interchangeable nodes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import DEFERRED, WAITING, StateArrays
from rlsched.cluster.demand import WHOLE_GPU_MILLI, Demand
from rlsched.cluster.spec import NodeSpec
from rlsched.cluster.state import ClusterState

NEED_S: Final = 1.0
"""Minimum time between two reviews of sleeping nodes because jobs wait, seconds."""
_ROUNDING = 1e-9
_ASKED = ("own_partition", "shared_partition", "demand")


class NodeSet(NamedTuple):
    """A set of identical nodes of one partition."""

    partition: int
    spec: NodeSpec  # the first of the nodes
    nodes: NDArray[np.int64]  # (n,) indices of the nodes, ascending


def node_sets(state: ClusterState, among: Sequence[int] | None = None) -> list[NodeSet]:
    """Return the sets of nodes of equal partition, GPU type and resources, in the order of their first nodes.

    `among`: indices of the nodes to include, ascending; None: all nodes.
    """
    members: dict[tuple[int, str, int, int, int], list[int]] = {}
    nodes = state.nodes
    for number in range(len(nodes)) if among is None else among:
        node = nodes[number]
        partition = int(state.arrays.node.part_of[number])
        key = (partition, node.gpu_type, node.gpus, node.cpus, node.memory_mib)
        members.setdefault(key, []).append(number)
    return [NodeSet(key[0], nodes[found[0]], np.array(found)) for key, found in members.items()]


def busy_nodes(state: StateArrays) -> NDArray[np.bool_]:
    """Return (N,) whether a job occupies GPUs or, without GPUs, cores of each node."""
    busy = np.asarray(state.node.free < state.node.gpus)
    if (state.demand.gpus == 0).any():
        running = state.derived.slot.running[: state.derived.running_len[0]]
        busy[state.job.host[running[state.job.gpus[running] == 0]]] = True
    return busy


def jobs_wait(state: StateArrays) -> bool:
    """Return whether jobs wait for resources, not counting jobs that wait for a lower price or for power."""
    return bool((state.job.status == WAITING).any())


def nodes_filled(demand: Demand, node: NodeSpec) -> float:
    """Return how many idle nodes like `node` a job fills; 0 if the job does not fit on them.

    The result is below 1 if several such jobs fit on one node.
    """
    places = demand.places_on_node(node)
    if places == 0:
        return 0.0
    if demand.gpus > places:
        return float(math.ceil(demand.gpus / places))
    if demand.exclusive:
        return 1.0
    if demand.whole:
        return 1.0 / (places // demand.gpus)
    fits = node.gpus * (WHOLE_GPU_MILLI // demand.share_milli) if demand.gpus else node.cpus * 1000
    for has, takes in ((node.cpus * 1000, demand.cpu_milli), (node.memory_mib, demand.memory_mib)):
        if has and takes:
            fits = min(fits, has // takes)
    return 1.0 / max(fits, 1)


class NodeNeed:
    """Counts the nodes that waiting jobs need, in a cluster with K node sets (`NodeSet`).

    Jobs fill the sets of their VC before shared sets. In both, sets of preferred GPU types come first. A
    job that fits on the largest node is counted on one node of the smallest kind that can hold it. A larger
    job is counted on the largest nodes first. If too few nodes of a set are idle, the remaining jobs are
    counted in the next set.
    """

    def __init__(self, sets: Sequence[NodeSet]) -> None:
        self._sets = sets
        self._options: dict[tuple[int, int, int], list[tuple[int, float]]] = {}

    def waiting_nodes(
        self, state: StateArrays, demands: Sequence[Demand], busy_nodes: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return, for each node set, the number of idle nodes that the waiting jobs would fill, (K,).

        `busy_nodes`: (K,) number of busy nodes of each set.
        """
        return self._filled(np.flatnonzero(state.job.status == WAITING), state, demands, busy_nodes)

    def paused_nodes(
        self, state: StateArrays, demands: Sequence[Demand], busy_nodes: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return, for each node set, the number of idle nodes that the paused jobs would fill, (K,).

        Paused jobs wait until the price of electricity falls. Jobs that have not run yet are left out,
        because past demand does not include their nodes.
        """
        job = state.job
        paused = (job.status == DEFERRED) & (job.attained_gpu_s > 0.0)
        return self._filled(np.flatnonzero(paused), state, demands, busy_nodes)

    def _filled(
        self,
        slots: NDArray[np.intp],
        state: StateArrays,
        demands: Sequence[Demand],
        busy_nodes: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Return, for each node set, the number of idle nodes that the jobs in these slots would fill, (K,).

        `slots`: slots of the jobs in the ledger `state`.
        """
        needed = np.zeros(len(self._sets))
        room = np.array([len(one.nodes) for one in self._sets]) - busy_nodes.astype(np.float64)
        if not len(slots) or not (room > 0).any():
            return needed.astype(np.int64)
        own, shared, number = (state.job[name][slots].astype(np.int64) for name in _ASKED)
        _, first, counts = np.unique(
            ((own + 1) << 48) | ((shared + 1) << 32) | number, return_index=True, return_counts=True
        )
        asked = np.stack([own, shared, number])[:, first]
        for (own, shared, number), jobs in zip(asked.T.tolist(), counts.tolist(), strict=True):
            left = float(jobs)
            for at, each in self._options_of(own, shared, number, demands):
                taken = min(left * each, room[at])
                needed[at] += taken
                room[at] -= taken
                left -= taken / each
        return np.ceil(needed - _ROUNDING).astype(np.int64)

    def _options_of(
        self, own: int, shared: int, number: int, demands: Sequence[Demand]
    ) -> list[tuple[int, float]]:
        key = (own, shared, number)
        if key not in self._options:
            demand = demands[number]
            self._options[key] = [
                option for partition in (own, shared) for option in self._within(partition, demand)
            ]
        return self._options[key]

    def _within(self, partition: int, demand: Demand) -> list[tuple[int, float]]:
        """Return the node sets of a partition that can run a job, in the order in which such jobs fill them.

        Each node set is given as (index of the set, number of its nodes that one job fills).
        """
        places = {
            at: demand.places_on_node(one.spec)
            for at, one in enumerate(self._sets)
            if one.partition == partition
        }
        able = [at for at, count in places.items() if count > 0]
        if demand.places <= max(places.values(), default=0):
            order = sorted((at for at in able if places[at] >= demand.places), key=places.__getitem__)
        else:
            order = sorted(able, key=lambda at: -places[at])
        order.sort(key=lambda at: not demand.prefers(self._sets[at].spec.gpu_type))
        return [(at, nodes_filled(demand, self._sets[at].spec)) for at in order]
