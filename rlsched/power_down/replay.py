"""Replays of node demand by slots of ten minutes, with the accounting of Helios' CES as published.

A slot's demand is the highest of its minutes; missing nodes become available within the slot, which counts as
short; utilisation is the mean over slots of demand over nodes awake. Nodes boot at once; module `minutes`
includes boot times.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from rlsched.power_down.service import KeepRule, falling, kept
from rlsched.workload.predict.node_demand import DAY_SLOTS, Floats


class SlotOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a rule over M slots, with wake-ups and shortages counted separately."""

    utilisation_frac: float
    """Mean over slots of demand over nodes awake; slots with no node awake count as 1."""
    nodes_asleep: float
    """Mean over slots of nodes asleep."""
    nodes_idle: float
    """Mean over slots of nodes awake above demand; independent of the size of the cluster."""
    wake_up_events: int
    """Slots in which nodes were woken."""
    nodes_booted: int
    """Nodes woken in these slots."""
    slots_short: int
    """Slots in which demand exceeded the nodes awake at their start."""
    node_slots_short: int
    """Missing nodes, summed over these slots."""
    slots: int

    @property
    def wake_ups_a_day(self) -> float:
        return self.wake_up_events * DAY_SLOTS / self.slots


def summarise_slots(
    demand: Floats, total: Floats, awake: Floats, woken: Floats, short: Floats
) -> SlotOutcome:
    """Return the figures of one rule, from (M,) demand, nodes in total, nodes awake, woken and missing."""
    return SlotOutcome(
        utilisation_frac=float(np.mean(np.where(awake > 0, demand / np.maximum(awake, 1), 1.0))),
        nodes_asleep=float(np.mean(total - awake)),
        nodes_idle=float(np.mean(awake - demand)),
        wake_up_events=int((woken > 0).sum()),
        nodes_booted=round(float(woken.sum())),
        slots_short=int((short > 0).sum()),
        node_slots_short=round(float(short.sum())),
        slots=len(demand),
    )


def replay_slots(
    demand: Floats, total: Floats, peaks: Floats, rules: Sequence[KeepRule], first: int, last: int
) -> list[SlotOutcome]:
    """Replay `KeepRule`s over the slots [first, last), all at once; earlier slots are their history.

    Args:
        demand: (N,) highest demand of each slot; first >= 1.
        total: (N,) nodes in total; infinite: buffers are charged in full, even if demand comes close to it.
        peaks: (N,) the forecast after each slot (`DemandForecast.peaks(demand)`).
        rules: Rules to replay; `min_awake_s`, `min_asleep_s` and `headroom_nodes` are ignored here.
    """
    buffer, wake, ramp = (
        np.array([getattr(rule, field) for rule in rules], dtype=np.float64)
        for field in ("buffer_nodes", "wake_buffer_nodes", "ramp_nodes")
    )
    windows = sorted({rule.falling_slots for rule in rules})
    which = np.array([windows.index(rule.falling_slots) for rule in rules])
    falls = np.array([falling(demand, window) for window in windows])
    awake = np.minimum(demand[first - 1] + wake, max(total[first], demand[first - 1]))
    rows = np.empty((last - first, 3, len(rules)))
    for slot in range(first, last):
        awake = kept(awake, peaks[slot - 1], demand[slot - 1], falls[which, slot - 1], buffer, ramp)
        short = np.maximum(demand[slot] - awake, 0.0)
        after = np.where(short > 0, np.minimum(demand[slot] + wake, max(total[slot], demand[slot])), awake)
        rows[slot - first] = after, after - awake, short
        awake = after
    span = slice(first, last)
    return [
        summarise_slots(demand[span], total[span], rows[:, 0, rule], rows[:, 1, rule], rows[:, 2, rule])
        for rule in range(len(rules))
    ]
