"""Puts idle nodes to sleep and wakes them during a run, as the power-down services decide.

Each set of interchangeable nodes has a power-down service, and each node has a power state
(`rlsched.power_down`). The event loop stops when a node has booted or powered down, and at each review: every
`PowerDownPlan.review` seconds, and after decisions that leave jobs waiting while nodes sleep. Two reviews for
waiting jobs are at least `NEED_S` apart. A broker reviews its nodes at the same times.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import (
    NODE_ASLEEP,
    NODE_BOOTING,
    NODE_DRAINED,
    NODE_UP,
    StateArrays,
)
from rlsched.cluster.state import ClusterState
from rlsched.models.node_power import PowerByState
from rlsched.models.power import NodePower
from rlsched.power_down.need import NEED_S, NodeNeed, NodeSet, busy_nodes, jobs_wait, node_sets
from rlsched.power_down.plan import PowerDownPlan
from rlsched.power_down.service import PowerDown
from rlsched.power_down.states import NodeState, NodeStates
from rlsched_envs.sim.events import set_nodes
from rlsched_envs.sim.loop import for_run
from rlsched_envs.sim.sim_arrays import SimArrays

_STATUS: Final = np.zeros(len(NodeState), np.int32)
_STATUS[NodeState.ON], _STATUS[NodeState.DRAINING] = NODE_UP, NODE_DRAINED
_STATUS[NodeState.ASLEEP], _STATUS[NodeState.BOOTING] = NODE_ASLEEP, NODE_BOOTING
_REVIEWS_STUCK: Final = 1440
"""A run without other events ends after this many consecutive reviews without a change."""


@dataclass(frozen=True)
class Slept:
    """Power-down results of a run, from its first submission to its last event.

    Attributes:
        wake_up_events: Number of reviews at which one or more sleeping nodes were woken.
        nodes_booted: Number of node boots from sleep.
        asleep_node_s: Node-seconds asleep, not counting the time in which nodes power down.
        saved_j: Energy saved compared to nodes that stay on, joules.
    """

    wake_up_events: int
    nodes_booted: int
    asleep_node_s: float
    saved_j: float


class _PoweredSet:
    """One set of interchangeable nodes, its power-down service, and the power states of its nodes."""

    def __init__(self, nodes: NodeSet, service: PowerDown, power: NodePower, now_s: float) -> None:
        spec = nodes.spec
        by_state = PowerByState.from_gpus(power, spec.devices, spec.gpu_type, spec.cpus)
        self.nodes, self.service = nodes.nodes, service
        self.states = NodeStates(len(nodes.nodes), by_state, now_s)

    def ask(self, now_s: float, busy: NDArray[np.bool_], waiting: int, paused: int) -> bool:
        """Let the power-down service review the set, and apply its commands to the power states of the nodes.

        Return whether a power state may have changed.

        `busy`: whether a job runs on each node of the set. `waiting`: number of nodes that waiting jobs need.
        `paused`: number of nodes for jobs that wait for a lower price.
        """
        states = self.states
        states.advance(now_s)
        ended = np.flatnonzero(states.busy & ~busy)
        done = [command for node in ended.tolist() for command in states.finish_last_job(node, now_s)]
        states.keep_busy(busy, now_s)
        commands = self.service.review(now_s, states.busy, waiting, states, paused)
        for command in commands:
            states.apply(command, now_s)
        return bool(done or commands)

    def statuses(self, now_s: float) -> NDArray[np.int32]:
        """Return the (N,) status of each node for the simulator; NODE_DRAINED while the node powers down."""
        states = self.states
        off = (states.state == NodeState.ASLEEP) & (now_s < states.since_s + states.power.shutdown_s)
        return np.where(off, NODE_DRAINED, _STATUS[states.state]).astype(np.int32)

    def due_s(self, now_s: float) -> float:
        """Return the time at which the next node of the set will have booted or powered down."""
        states = self.states
        off_s = states.since_s[states.state == NodeState.ASLEEP] + states.power.shutdown_s
        return min(states.next_due_s(), float(off_s[off_s > now_s].min(initial=math.inf)))


class SleepingNodes:
    """The nodes of one run that can sleep.

    Args:
        state: The cluster, idle and powered on.
        plan: The power-down plan.
        power: Power of the nodes, and their transition times.
        now_s: Start of the run.
        physics: Whether the run has models of power.
    """

    def __init__(
        self,
        state: ClusterState,
        plan: PowerDownPlan,
        power: NodePower,
        now_s: float,
        *,
        physics: bool = True,
    ) -> None:
        sets = node_sets(state)
        services = plan.services([len(one.nodes) for one in sets])
        self._sets = [
            _PoweredSet(nodes, service, power, now_s) for nodes, service in zip(sets, services, strict=True)
        ]
        self._need, self._ledger = NodeNeed(sets), state
        self._plan, self._physics = plan, physics
        self._review_at_s = plan.next_review_s(now_s)
        self._due_s = np.full(len(sets), math.inf)
        self._slot, self._seen = -1, np.zeros(0, np.int64)
        self._since_s, self._asleep, self._saved_w = now_s, 0, 0.0
        self._looked_s = -math.inf
        self._asleep_node_s = self._saved_j = 0.0
        self._events = self._stuck = 0

    @property
    def next_s(self) -> float:
        """Time of the next review."""
        return min(self._review_at_s, float(self._due_s.min(initial=math.inf)))

    def review(self, sim: SimArrays) -> bool:
        """Call the power-down services if it is time, update the statuses of nodes, and plan the next review.

        Return whether scheduling decisions are due now.

        Decisions are due if a node has become usable, and under a power limit also if the status of any node
        has changed.
        """
        now_s = float(sim.progress.run.now_s[0])
        run = sim.progress.run[0]
        self._pass_time(now_s)
        touched = np.flatnonzero(self._due_s <= now_s).tolist()
        for at in touched:
            self._sets[at].states.advance(now_s)
        commanded: list[int] = []
        if now_s >= min(self._review_at_s, run.need_s):
            if now_s >= self._review_at_s:
                self._review_at_s = self._plan.next_review_s(now_s)
            self._looked_s, run.need_s = now_s, math.inf
            booted = self._booted()
            commanded = self._ask(sim.state, now_s)
            self._events += self._booted() > booted
        up = self._carry_out(sim, sorted({*touched, *commanded}), now_s)
        self._end_if_stuck(sim, quiet=not (touched or commanded))
        run.review_s = self.next_s
        wakeable = any(one.states.count(NodeState.ASLEEP, NodeState.DRAINING) for one in self._sets)
        run.rest_s = self._looked_s + NEED_S if wakeable else math.inf
        return up

    def slept(self, now_s: float) -> Slept:
        """Return the power-down results up to now."""
        self._pass_time(now_s)
        return Slept(self._events, self._booted(), self._asleep_node_s, self._saved_j)

    def node_states(self) -> list[tuple[NDArray[np.int64], NodeStates]]:
        """Return (indices of the nodes, power states of the nodes) for each set of interchangeable nodes."""
        return [(one.nodes, one.states) for one in self._sets]

    def _booted(self) -> int:
        return sum(one.states.nodes_booted for one in self._sets)

    def _pass_time(self, now_s: float) -> None:
        span_s = now_s - self._since_s
        self._asleep_node_s += self._asleep * span_s
        self._saved_j += self._saved_w * span_s
        self._since_s = now_s

    def _ask(self, state: StateArrays, now_s: float) -> list[int]:
        """Call power-down services. Return the indices of the node sets whose power states may have changed.

        The service of a node set is called if one of its nodes became busy or idle, if jobs wait for its
        nodes, and once per time slot of the forecast (`PowerDownPlan.slot` seconds).
        """
        slot, changes = int(now_s // self._plan.slot), state.derived.part.changes
        waiting = jobs_wait(state)
        fresh = slot != self._slot
        if not fresh and not waiting and np.array_equal(changes, self._seen):
            return []
        self._slot, self._seen = slot, changes.copy()
        busy = busy_nodes(state)
        by_set = [busy[one.nodes] for one in self._sets]
        counts = np.array([int(one.sum()) for one in by_set])
        wanted = paused = 0 * counts
        if waiting:
            wanted = self._need.waiting_nodes(state, self._ledger.demands, counts)
        if state.scratch[0].deferred:
            paused = self._need.paused_nodes(state, self._ledger.demands, counts)
        return [
            at
            for at, one in enumerate(self._sets)
            if (fresh or wanted[at] or not np.array_equal(by_set[at], one.states.busy))
            and one.ask(now_s, by_set[at], int(wanted[at]), int(paused[at]))
        ]

    def _carry_out(self, sim: SimArrays, sets: list[int], now_s: float) -> bool:
        """Update the status of each node in the node sets `sets` (indices) from its power state.

        Return whether scheduling decisions are due (see `review`).
        """
        up, limited = False, bool(sim.state.config.limited[0])
        for at in sets:
            one = self._sets[at]
            statuses = one.statuses(now_s)
            before = sim.state.node.status[one.nodes]
            changed = np.flatnonzero(statuses != before)
            if len(changed):
                self._saved_w -= self._set_nodes(sim, one.nodes[changed], statuses[changed])
                self._asleep += int((statuses == NODE_ASLEEP).sum()) - int((before == NODE_ASLEEP).sum())
                up = up or limited or bool((statuses[changed] == NODE_UP).any())
            self._due_s[at] = one.due_s(now_s)
        return up

    def _set_nodes(self, sim: SimArrays, nodes: NDArray[np.int64], statuses: NDArray[np.int32]) -> float:
        """Set the statuses of the idle nodes `nodes`, and return the increase of their power, W."""
        set_them = for_run(set_nodes, None, logged=True, modelled=True, physics=self._physics)
        return float(set_them(sim, nodes, statuses))

    def _end_if_stuck(self, sim: SimArrays, *, quiet: bool) -> None:
        """Plan no more periodic reviews if the waiting jobs need resources that no node has."""
        run = sim.progress.run[0]
        over = run.heap_len == 0 and run.next_row == sim.truth.shape[0] and np.isinf(self._due_s).all()
        self._stuck = self._stuck + 1 if over and quiet else 0
        all_on = bool((sim.state.node.status == NODE_UP).all())
        if (self._stuck and all_on) or self._stuck > _REVIEWS_STUCK:
            self._review_at_s = math.inf
