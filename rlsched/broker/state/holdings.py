"""Holdings: GPUs that the broker cannot allocate, because foreign jobs hold them or they are out of service.

Foreign jobs are jobs that the cluster's engine (such as Slurm) runs without this broker. A GPU is out of
service if the node no longer detects it, or found a foreign process on it.

A holding is a group of such GPUs on one node with the same user or reason. For each holding, the ledger
(`ClusterState`) has a placeholder job: an artificial job that occupies the GPUs. No decision starts or
preempts a placeholder job, and predictors do not learn from it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rlsched.broker.base.entries import GpusHeld
from rlsched.broker.state.nodes import Node
from rlsched.cluster.demand import WHOLE_GPU_MILLI
from rlsched.cluster.state import ClusterState
from rlsched.wire.messages import Holding


class NodeHoldings:
    """The holdings of all nodes (groups of GPUs that the broker cannot allocate), with placeholder jobs."""

    def __init__(self, cluster: ClusterState) -> None:
        self._cluster = cluster
        self._of_node: dict[str, list[tuple[Holding, int]]] = {}

    def set(self, entry: GpusHeld, node: Node, now_s: float) -> None:
        """Replace the holdings of a node by the holdings in `entry`, and update the ledger.

        An unchanged holding keeps its placeholder job.
        """
        known = self._of_node.pop(entry.name, [])
        for holding, seq in known:
            if holding not in entry.held:
                self._cluster.release(seq, now_s, ended=False)
        first = int(self._cluster.arrays.node.first_gpu[node.number])
        held = []
        for one in entry.held:
            seq = next((seq for holding, seq in known if holding == one), -1)
            if seq < 0:
                seq = self._cluster.hold([first + gpu for gpu in one.gpus], now_s, one.until_s)
            held.append((one, seq))
        if held:
            self._of_node[entry.name] = held

    @property
    def by_node(self) -> dict[str, list[tuple[Holding, int]]]:
        """Node -> [(holding, sequence number of the holding's placeholder job in the ledger), ...]."""
        return {name: list(held) for name, held in self._of_node.items()}

    def restore_holdings(self, by_node: dict[str, list[tuple[Holding, int]]]) -> None:
        """Restore the holdings of all nodes from what `by_node` returned when the state was saved.

        The caller must restore the ledger first, with the placeholder jobs that occupy the held GPUs.
        """
        self._of_node = {name: list(held) for name, held in by_node.items()}

    def holdings_of(self, node: str) -> list[Holding]:
        """Return the holdings of a node."""
        return [holding for holding, _ in self._of_node.get(node, [])]

    def holding_lines(self, node: str) -> list[str]:
        """Describe the held GPUs of a node, one line for each holding."""
        return [
            f"{'GPU' if len(one.gpus) == 1 else 'GPUs'} {', '.join(map(str, one.gpus))}: {one.by}"
            for one in self.holdings_of(node)
        ]

    def is_holding(self, seq: int) -> bool:
        """Return whether job `seq` of the ledger is the placeholder job of a holding."""
        return any(seq == other for held in self._of_node.values() for _, other in held)

    def possible_holdings(self, name: str, node: Node, wanted: list[Holding]) -> list[Holding]:
        """Return the holdings `wanted` that a node reported, without the GPUs that cannot be held now.

        A GPU can be in only one holding. While a job of this broker uses a GPU, the GPU cannot be held.
        """
        return list(self._possible(self.holdings_of(name), node, wanted))

    def _possible(self, held: list[Holding], node: Node, wanted: list[Holding]) -> Iterator[Holding]:
        arrays = self._cluster.arrays
        first, count = int(arrays.node.first_gpu[node.number]), int(arrays.node.gpus[node.number])
        milli = np.asarray(arrays.gpu.free_milli)[first : first + count]
        free = {gpu for gpu in range(count) if milli[gpu] == WHOLE_GPU_MILLI}
        free |= {gpu for holding in held for gpu in holding.gpus}
        for one in wanted:
            gpus = sorted(free.intersection(one.gpus))
            free.difference_update(gpus)
            if gpus:
                yield Holding(by=one.by, gpus=gpus, until_s=one.until_s)
