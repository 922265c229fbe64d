"""`NodeDemand`: the number of busy nodes over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlsched.workload.predict.node_demand import SLOT_S


@dataclass(frozen=True)
class NodeDemand:
    """A time series of the number of busy nodes.

    Attributes:
        time_s: (N,) time of each row, seconds, ascending.
        busy: (N,) number of nodes that ran a job.
        nodes: Total number of nodes.
    """

    time_s: NDArray[np.float64]
    busy: NDArray[np.float64]
    nodes: int

    @classmethod
    def of_spans(cls, spans: Mapping[str, Sequence[tuple[float, float]]], nodes: int) -> NodeDemand:
        """Return a series of one row per minute, made from the time spans in which nodes were busy.

        Args:
            spans: (start, end) of each job's run on a node, seconds, by node name; at least one span in
                total.
            nodes: Total number of nodes.
        """
        first_s = min(start for some in spans.values() for start, _ in some) // 60 * 60
        last_s = max(end for some in spans.values() for _, end in some)
        time_s = np.arange(first_s, last_s + 60.0, 60.0)
        busy = np.zeros(len(time_s))
        for some in spans.values():
            steps = np.zeros(len(time_s) + 1)
            start, end = np.ceil((np.array(some).T - first_s) / 60.0).astype(np.int64)
            np.add.at(steps, start, 1.0)
            np.add.at(steps, end, -1.0)
            busy += np.cumsum(steps)[:-1] > 0
        return cls(time_s, busy, nodes)

    def rows_between(self, since_s: float, until_s: float) -> NodeDemand:
        """Return the rows with since_s <= time < until_s."""
        rows = (self.time_s >= since_s) & (self.time_s < until_s)
        return NodeDemand(self.time_s[rows], self.busy[rows], self.nodes)

    def slots(self) -> NDArray[np.float64]:
        """Return the maximum demand in each time slot of 10 minutes, (M,).

        A slot without rows has the value of the slot before.
        """
        number = np.floor(self.time_s / SLOT_S).astype(np.int64)
        slot = number - number[0]
        busy = np.full(int(slot[-1]) + 1, -1.0)
        np.maximum.at(busy, slot, self.busy)
        return busy[np.maximum.accumulate(np.where(busy >= 0, np.arange(len(busy)), 0))]
