"""Replays recorded node demand on simulated nodes that take time to boot."""

from __future__ import annotations

import msgspec
import numpy as np

from rlsched.models.node_power import PowerByState
from rlsched.power_down.series import NodeDemand
from rlsched.power_down.service import PowerDown
from rlsched.power_down.states import NodeState, NodeStates
from rlsched.workload.predict.node_demand import SLOT_S


class MinuteOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Result of `replay_states`."""

    nodes_asleep: float
    wake_up_events: int
    node_minutes_short: float
    """Node-minutes of demand that waited because no node was free."""
    days: float


def replay_states(
    series: NodeDemand, service: PowerDown, power: PowerByState, since_s: float, review_s: float = SLOT_S
) -> MinuteOutcome:
    """Replay a series of node demand on simulated nodes that `service` puts to sleep and wakes.

    Each busy node runs one job. Jobs start on the free nodes with the lowest indices, and end on the busy
    nodes with the highest indices. A row of the series lasts until the next row, but at most `SLOT_S`. Rows
    before `since_s` are replayed, and not counted in the result. Demand is limited to the number of nodes.
    """
    states = NodeStates(series.nodes, power, float(series.time_s[0]))
    demand = np.minimum(series.busy, series.nodes).astype(np.int64)
    short, asleep = np.zeros((2, len(demand)))
    first = int(np.searchsorted(series.time_s, since_s))
    woken_before, due_s = 0, -np.inf
    for row, now_s in enumerate(series.time_s.tolist()):
        states.advance(now_s)
        if row == first:
            woken_before = states.wake_up_events
        waiting = _placed(states, int(demand[row]), now_s)
        if now_s >= due_s:
            due_s = (now_s // review_s + 1) * review_s
            if _reviewed(states, service, waiting, now_s):
                waiting = _placed(states, int(demand[row]), now_s)
        short[row], asleep[row] = waiting, states.count(NodeState.ASLEEP)
    length_s = np.minimum(np.diff(series.time_s, append=series.time_s[-1] + 60.0), SLOT_S)
    rows = slice(first, None)
    weight = length_s[rows]
    span_s = float(series.time_s[-1] + length_s[-1] - series.time_s[first])
    return MinuteOutcome(
        nodes_asleep=float(np.average(asleep[rows], weights=weight)),
        wake_up_events=states.wake_up_events - woken_before,
        node_minutes_short=float((short[rows] * weight).sum() / 60.0),
        days=span_s / 86400.0,
    )


def _reviewed(states: NodeStates, service: PowerDown, waiting: int, now_s: float) -> bool:
    """Call the service's `review`, and apply its commands to the nodes. Return whether it gave commands."""
    commands = service.review(now_s, states.busy, waiting, states)
    for command in commands:
        states.apply(command, now_s)
    return bool(commands)


def _placed(states: NodeStates, demand: int, now_s: float) -> int:
    """Start or end jobs until `demand` nodes, or all ON nodes, are busy. Return the unmet demand, nodes."""
    running = np.flatnonzero(states.busy)
    if len(running) == demand:
        return 0
    for node in running[demand:][::-1].tolist():
        states.finish_last_job(node, now_s)
    free = np.flatnonzero((states.state == NodeState.ON) & ~states.busy)
    for node in free[: max(demand - len(running), 0)].tolist():
        states.start_job(node, now_s)
    return demand - int(states.busy.sum())
