"""The rule of Helios' CES service as its authors published it, for comparison.

Source: Hu et al., SC'21, and the file CES_Philly.py of S-Lab-System-Group/HeliosArtifact (MIT), read and
reimplemented. Two things in that file use the future: nodes are put to sleep for a slot whose highest demand
is already known, and the means over the next 30 and 60 slots are of forecasts made an hour before *each* one.
Both are options here, so that the published figure can be judged.
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
    """Slots of a mean; demand must be a tenth of a node below it."""
    ahead_slots: int = 30
    """Slots of a mean forecast; demand must not be below it, nor it below the mean of twice as many slots."""
    keep_slots: int = 10
    """Slots after a wake-up in which no node is put to sleep."""

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
            total: (N,) nodes in total.
            near: (N,) mean forecast of the next `ahead_slots`, made after each slot.
            far: (N,) the same for twice as many slots.
            first: First slot; at least `falling_slots` + 1.
            last: One past the last slot.
            knows_slot: Whether the rule may use the highest demand of the slot that it decides on, as the
                published code does; its `near` and `far` then belong to that slot.
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
        """Return nodes awake after the slot's shortage was met, nodes woken, and nodes that were missing."""
        short = max(demand - awake, 0.0)
        if not short:
            return awake, 0.0, 0.0
        after = min(demand + self.buffer_nodes, max(total, demand))
        return after, after - awake, short
