"""The rule of Helios' CES service as its authors published it, to compare with.

Source: Hu et al., SC'21, and the file CES_Philly.py of S-Lab-System-Group/HeliosArtifact (MIT), read and
written anew. Two things in that file see the future: nodes are put to sleep for a slot whose highest demand
is already known, and the means over the next 30 and 60 slots are of forecasts made an hour before *each* one.
Both can be had here, so that the published figure can be judged, and left out.
"""

from __future__ import annotations

import msgspec
import numpy as np

from rlsched.power_down.replay import SlotOutcome, summarise_slots
from rlsched.workload.predict.node_demand import Floats


class HeliosRule(msgspec.Struct, frozen=True, kw_only=True):
    """The rule of Helios' CES, with the values of its published code for the Philly series."""

    buffer_nodes: int = 20
    falling_slots: int = 2
    """Demand must lie a tenth of a node below the mean of so many slots before it."""
    ahead_slots: int = 30
    """It must not lie below the mean forecast of so many slots, nor that below the mean of twice as many."""
    keep_slots: int = 10
    """No node sleeps for so long after a wake-up."""

    def replay(
        self,
        demand: Floats,
        total: Floats,
        near: Floats,
        far: Floats,
        first: int,
        last: int,
        knows_slot: bool,
    ) -> SlotOutcome:
        """Replay over the slots [first, last).

        Args:
            demand: (N,) highest demand of each slot.
            total: (N,) nodes that there are.
            near: (N,) mean forecast of the next `ahead_slots`, made after each slot.
            far: (N,) the same for twice as many.
            first: First slot; at least `falling_slots` + 1.
            last: One beyond the last.
            knows_slot: Whether the rule may look at the highest demand of the slot that it decides on, as the
                published code does; its `near` and `far` are then those of that slot.
        """
        awake, quiet_until = float(demand[first - 1] + self.buffer_nodes), 0
        rows = []
        for slot in range(first, last):
            before = awake
            if knows_slot:
                awake, woken, short = self._woken(demand[slot], total[slot], awake)
            now = slot if knows_slot else slot - 1
            if knows_slot and woken:
                quiet_until = slot + self.keep_slots
            fell = demand[now - self.falling_slots : now].mean() - demand[now] >= 0.1
            if fell and demand[now] >= near[now] >= far[now] and slot >= quiet_until:
                awake = min(awake, float(demand[now] + self.buffer_nodes))
            if not knows_slot:
                before = awake
                awake, woken, short = self._woken(demand[slot], total[slot], awake)
                if woken:
                    quiet_until = slot + self.keep_slots
            rows.append((awake, max(awake - before, 0.0), short))
        span = slice(first, last)
        awakes, wakes, missing = np.array(rows).T
        return summarise_slots(demand[span], total[span], awakes, wakes, missing)

    def _woken(self, demand: float, total: float, awake: float) -> tuple[float, float, float]:
        """Nodes awake after the slot's shortage was met, nodes woken, nodes that were missing."""
        short = max(demand - awake, 0.0)
        if not short:
            return awake, 0.0, 0.0
        after = min(demand + self.buffer_nodes, max(total, demand))
        return after, after - awake, short
