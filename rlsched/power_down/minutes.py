"""Replays of node demand row by row, on nodes with states, boot times and power."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsched.models.node_power import PowerByState
from rlsched.power_down.series import NodeDemand
from rlsched.power_down.service import PowerDown
from rlsched.power_down.states import NodeState, NodeStates
from rlsched.workload.predict.node_demand import SLOT_S, Floats


class MinuteOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a service on nodes that boot and draw power."""

    utilisation_frac: float
    """Busy node-seconds over node-seconds of nodes on, draining or booting."""
    nodes_asleep: float
    wake_up_events: int
    nodes_booted: int
    slots_short: int
    """Slots of ten minutes in which demand exceeded the nodes that were up at any moment."""
    node_slots_short: int
    """Highest number of missing nodes in each of these slots, summed."""
    node_minutes_short: float
    """Missing nodes times minutes, which is how long jobs wait."""
    energy_kwh: float
    """Energy of the nodes themselves, without the power of jobs, kWh."""
    always_on_kwh: float
    days: float


def replay_states(
    series: NodeDemand, service: PowerDown, power: PowerByState, since_s: float, review_s: float = SLOT_S
) -> MinuteOutcome:
    """Replay a service on simulated nodes; figures cover the rows from `since_s` on, earlier ones warm it up.

    Jobs are busy nodes: as demand rises, they take the lowest free nodes that are on; as it falls, they leave
    the highest busy ones. Demand without a free node waits. A row lasts until the next, at most a slot: gaps
    in the log are skipped. The last row has the number of nodes; demand above it is cut.
    """
    nodes = int(series.total[-1])
    states = NodeStates(nodes, power, float(series.time_s[0]))
    demand = np.minimum(series.busy, nodes).astype(np.int64)
    short, asleep = np.zeros((2, len(demand)))
    first = int(np.searchsorted(series.time_s, since_s))
    before, due_s = (0.0, 0, 0), -np.inf
    for row, now_s in enumerate(series.time_s.tolist()):
        states.advance(now_s)
        if row == first:
            before = (states.energy_j, states.wake_up_events, states.nodes_booted)
        waiting = _placed(states, int(demand[row]), now_s)
        if now_s >= due_s:
            due_s = (now_s // review_s + 1) * review_s
            if _reviewed(states, service, waiting, now_s):
                waiting = _placed(states, int(demand[row]), now_s)
        short[row], asleep[row] = waiting, states.count(NodeState.ASLEEP)
    length_s = np.minimum(np.diff(series.time_s, append=series.time_s[-1] + 60.0), SLOT_S)
    states.advance(float(series.time_s[-1] + length_s[-1]))
    rows = slice(first, None)
    weight = length_s[rows]
    worst = _worst_by_slot(series.time_s[rows], short[rows])
    busy_s = float(((demand - short)[rows] * weight).sum())
    awake_s = float(((nodes - asleep[rows]) * weight).sum())
    span_s = float(series.time_s[-1] + length_s[-1] - series.time_s[first])
    return MinuteOutcome(
        utilisation_frac=busy_s / awake_s if awake_s else 1.0,
        nodes_asleep=float(np.average(asleep[rows], weights=weight)),
        wake_up_events=states.wake_up_events - before[1],
        nodes_booted=states.nodes_booted - before[2],
        slots_short=int((worst > 0).sum()),
        node_slots_short=int(worst.sum()),
        node_minutes_short=float((short[rows] * weight).sum() / 60.0),
        energy_kwh=(states.energy_j - before[0]) / 3.6e6,
        always_on_kwh=nodes * power.idle_w * span_s / 3.6e6,
        days=span_s / 86400.0,
    )


def _reviewed(states: NodeStates, service: PowerDown, waiting: int, now_s: float) -> bool:
    """Ask the service, and carry out its commands; return whether there were any."""
    commands = service.review(now_s, states.busy, waiting, states)
    for command in commands:
        states.apply(command, now_s)
    return bool(commands)


def _placed(states: NodeStates, demand: int, now_s: float) -> int:
    """Start and end jobs until `demand` nodes are busy, or no more are on. Returns the missing nodes."""
    running = np.flatnonzero(states.busy)
    if len(running) == demand:
        return 0
    for node in running[demand:][::-1].tolist():
        states.finish_last_job(node, now_s)
    free = np.flatnonzero((states.state == NodeState.ON) & ~states.busy)
    for node in free[: max(demand - len(running), 0)].tolist():
        states.start_job(node, now_s)
    return demand - int(states.busy.sum())


def _worst_by_slot(time_s: NDArray[np.float64], short: Floats) -> Floats:
    """Return the highest of `short` in each slot of ten minutes that has a row."""
    _, slot = np.unique(np.floor(time_s / SLOT_S), return_inverse=True)
    worst = np.zeros(int(slot.max(initial=-1)) + 1)
    np.maximum.at(worst, slot, short)
    return worst
