"""Power-down of nodes in a live cluster: powers idle nodes down, and sleeping nodes up when they are needed.

`rlsched.power_down.PowerDownService`, which the simulator uses too, decides how many nodes of each set sleep.
A set is the identical nodes of a partition. The broker reviews the nodes when the simulator does: every
`PowerDownPlan.review` seconds, and after decisions that leave jobs waiting while nodes sleep. A review needs
the state after all decisions of its instant. But in the journal, the facts of a batch precede its decisions.
Therefore a review is the first step of the next batch, which follows a millisecond later.

The broker journals an order before it runs the command. If the broker is killed between these two steps, the
restarted broker runs a resume command, but no suspend command. A node that should have been powered down
still sends heartbeats, and is therefore marked up again.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsched.broker.base.entries import NodeDown, NodeSlept, NodeWoken
from rlsched.broker.base.shortened import MAX_REASON_CHARS, shortened
from rlsched.broker.events import PowerDone, PowerNode
from rlsched.broker.outbox import Outbox
from rlsched.broker.state.broker_state import BrokerState
from rlsched.broker.state.nodes import Node
from rlsched.cluster.arrays import LEAVING, NODE_ASLEEP
from rlsched.decide.plans.plan_text import span
from rlsched.models.node_power import PowerByState
from rlsched.power_down.need import NEED_S, NodeNeed, NodeSet, busy_nodes, jobs_wait, node_sets
from rlsched.power_down.plan import PowerDownPlan
from rlsched.power_down.service import PowerDownService
from rlsched.power_down.states import NodeState, NodeStates, Sleep, Wake

TICK_S: Final = 0.001
"""Minimum time between two batches, seconds."""
_STATE: Final = {"": NodeState.ON, "asleep": NodeState.ASLEEP, "waking": NodeState.BOOTING}
_log = logging.getLogger("rlsched.broker")


class SleepPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Rules for powering nodes down and up in a live cluster.

    Attributes:
        plan: Settings of the power-down services.
        suspend_timeout_s: Time from the order to power down until the node is assumed to be off and can be
            powered up again, seconds.
        resume_timeout_s: Time from the resume command until a node that has not registered is marked down,
            seconds.
        keep_awake: Minimum number of nodes that stay awake.
        exclude: Glob patterns for names of nodes that never sleep.
    """

    plan: PowerDownPlan
    suspend_timeout_s: float = 60.0
    resume_timeout_s: float = 900.0
    keep_awake: int = 0
    exclude: Sequence[str] = ()

    def spares(self, name: str) -> bool:
        """Return whether a node with this name never sleeps."""
        return any(fnmatchcase(name, pattern) for pattern in self.exclude)


class Sleepers:
    """Powers nodes down and up.

    Args:
        plan: The rules. None: nodes do not sleep, and sleeping nodes are marked down.
        heard_s: Function that returns the time of a node's last message to this broker, Unix seconds; 0 if
            none arrived.
        now_s: Time at which the broker started, Unix seconds.
    """

    def __init__(
        self,
        state: BrokerState,
        plan: SleepPlan | None,
        heard_s: Callable[[str], float],
        out: Outbox,
        now_s: float,
    ) -> None:
        self._state, self._plan, self._heard_s, self._out = state, plan, heard_s, out
        self._review_at_s = math.inf if plan is None else plan.plan.next_review_s(now_s)
        self._need_s = math.inf if plan is None else now_s
        self._looked_s = -math.inf
        self._resume_at_s, self._stops = math.inf, False
        self._idle_since_s: dict[str, float] = {}
        self._spared_until_s: dict[str, float] = {}
        self._resumed: set[str] = set()
        self._services: dict[tuple[int, str, int, int, int], PowerDownService] = {}
        self._power = PowerByState.from_gpus()

    @property
    def due_s(self) -> float:
        """Time at which to call `begin` if no event arrives, Unix seconds, whole milliseconds."""
        return min(self._review_due_s, self._need_s, self._resume_at_s)

    @property
    def _review_due_s(self) -> float:
        """Time of the next review at a multiple of `PowerDownPlan.review`.

        While processes of preempted jobs end, it is unknown whether these jobs wait, and which nodes are
        free. The review then waits for these processes, but at most until the time of the following review.
        """
        late_s = float(self._plan.plan.review) if self._plan is not None and self._stops else 0.0
        return round(self._review_at_s + late_s + TICK_S, 3)

    def begin(self, now_s: float) -> None:
        """At the start of a batch, run due resume commands, and review the nodes if it is time."""
        if self._plan is None:
            return
        if now_s >= self._resume_at_s:
            self._resume(now_s)
        if now_s >= min(self._review_due_s, self._need_s):
            at_s = now_s
            if now_s >= self._review_due_s:
                self._review_at_s = self._plan.plan.next_review_s(now_s)
                at_s = max(self._review_at_s - float(self._plan.plan.review), self._looked_s)
            self._looked_s, self._need_s = at_s, math.inf
            self._review(self._plan, now_s, at_s)

    def end(self, now_s: float, *, decided: bool) -> None:
        """At the end of a batch, plan the next review if jobs wait while nodes sleep.

        `decided`: whether the scheduler was called in this batch.
        """
        if self._plan is None:
            return
        arrays = self._state.cluster.arrays
        self._stops = bool((arrays.job.status == LEAVING).any())
        if decided and (arrays.node.status == NODE_ASLEEP).any() and jobs_wait(arrays):
            self._need_s = min(self._need_s, round(max(now_s + TICK_S, self._looked_s + NEED_S), 3))

    def note_up(self, name: str, now_s: float) -> None:
        """Record that a node has registered: it is idle since then, unless it runs jobs."""
        self._idle_since_s.setdefault(name, now_s)

    def step(self, now_s: float) -> None:
        """Run due resume commands, and mark nodes up or down."""
        sleeping = [(name, node) for name, node in self._state.nodes.items() if node.up and node.sleep]
        for name, node in sleeping:
            if self._plan is None:
                self._out.record(
                    NodeDown(name=name, reason="asleep, and this broker has no command to wake it")
                )
            elif now_s >= node.off_s and self._heard_s(name) >= node.off_s:
                self._out.record(node.spec)  # it sends messages, so it is not powered down
            elif node.sleep == "waking":
                self._wakes(name, node, now_s)

    def done(self, told: PowerDone, now_s: float) -> None:
        """Handle the result of a node's suspend or resume command."""
        node = self._state.nodes.get(told.node)
        if node is None or not told.error or self._plan is None:
            return
        error = shortened(told.error, MAX_REASON_CHARS)
        _log.warning("node %s: its %s command failed: %s", told.node, told.order, error)
        if told.order == "suspend":
            self._spared_until_s[told.node] = now_s + self._plan.resume_timeout_s
            if node.up and node.sleep == "asleep":
                self._out.record(node.spec)
        elif node.up and node.sleep == "waking":
            self._out.record(NodeDown(name=told.node, reason=f"its resume command failed: {error}"))

    def wake(self, name: str, now_s: float) -> str:
        """Power up a sleeping or down node for an operator. Return the reason for a refusal, else ""."""
        node = self._state.nodes[name]
        if self._plan is None:
            return f"node {name} is not drained: it is {node.state}"
        if node.sleep == "waking" and node.up:
            return f"node {name} is waking already: {node.reason}"
        self._wake(self._plan, name, now_s, "woken by an operator")
        return ""

    def _wakes(self, name: str, node: Node, now_s: float) -> None:
        """Run the resume command of a node that is to wake, as soon as the node is off.

        If the node does not register within the time-out, mark the node down.
        """
        if now_s >= node.wakes_by_s:
            waited = span(node.wakes_by_s - node.resume_s)
            self._out.record(NodeDown(name=name, reason=f"was woken, and did not register within {waited}"))
        elif now_s >= node.resume_s and name not in self._resumed:
            self._resumed.add(name)
            self._out.power(PowerNode(name, "resume"))

    def _wake(self, plan: SleepPlan, name: str, now_s: float, reason: str) -> None:
        node = self._state.nodes[name]
        resume_s = max(now_s, node.off_s)
        self._resumed.discard(name)
        until_s = resume_s + plan.resume_timeout_s
        self._out.record(NodeWoken(name=name, resume_s=resume_s, until_s=until_s, reason=reason))
        self._wakes(name, node, now_s)
        if resume_s > now_s:
            self._resume_at_s = min(self._resume_at_s, resume_s)

    def _resume(self, now_s: float) -> None:
        """Run the resume commands of nodes that are off now and are to wake, and plan the next command."""
        self._resume_at_s = math.inf
        for name, node in [*self._state.nodes.items()]:
            if node.up and node.sleep == "waking":
                self._wakes(name, node, now_s)
                if node.resume_s > now_s:
                    self._resume_at_s = min(self._resume_at_s, node.resume_s)

    def _suspend(self, plan: SleepPlan, name: str, now_s: float) -> None:
        idle = span(now_s - self._idle_since_s.pop(name, now_s))
        off_s = round(now_s + plan.suspend_timeout_s, 3)
        self._out.record(NodeSlept(name=name, off_s=off_s, reason=f"idle for {idle}"))
        self._out.power(PowerNode(name, "suspend"))

    def _review(self, plan: SleepPlan, now_s: float, at_s: float) -> None:
        """Ask the power-down services which nodes should sleep or wake up, and issue the orders.

        `at_s`: time for which the services decide. For a review at a multiple of `PowerDownPlan.review`, it
        is this multiple, so that times of idleness are whole multiples, too.
        """
        cluster, nodes = self._state.cluster, self._state.nodes
        names = {node.number: name for name, node in nodes.items() if _stands_in(node)}
        sets = node_sets(cluster, sorted(names))
        is_busy = busy_nodes(cluster.arrays)
        for number, name in names.items():
            if is_busy[number]:
                self._idle_since_s.pop(name, None)
            elif not nodes[name].sleep:
                self._idle_since_s.setdefault(name, at_s)
        busy = [is_busy[one.nodes] for one in sets]
        counts = np.array([int(one.sum()) for one in busy], np.int64)
        need = NodeNeed(sets)
        wanted = need.waiting_nodes(cluster.arrays, cluster.demands, counts)
        paused = need.paused_nodes(cluster.arrays, cluster.demands, counts)
        sleep: list[str] = []
        wake: list[str] = []
        each = zip(sets, busy, wanted.tolist(), paused.tolist(), strict=True)
        for one, used, waiting, pausing in each:
            of_set = [names[number] for number in one.nodes.tolist()]
            states = self._states(plan, of_set, used, at_s)
            service = self._service(plan, one, len(names))
            for command in service.review(at_s, used, waiting, states, pausing):
                if isinstance(command, Sleep):
                    sleep.append(of_set[command.node])
                elif isinstance(command, Wake):
                    wake.append(of_set[command.node])
        asleep = [name for name in names.values() if nodes[name].sleep == "asleep" and name not in wake]
        awake = len(names) - len(asleep)
        for name in sleep[: max(awake - plan.keep_awake, 0)]:
            self._suspend(plan, name, now_s)
        for name in [*wake, *asleep[: max(plan.keep_awake - awake, 0)]]:
            why = "jobs wait for it" if wanted.any() else "kept awake for jobs to come"
            self._wake(plan, name, now_s, why)

    def _service(self, plan: SleepPlan, one: NodeSet, total: int) -> PowerDownService:
        spec, size = one.spec, len(one.nodes)
        key = (one.partition, spec.gpu_type, spec.gpus, spec.cpus, spec.memory_mib)
        if key not in self._services:
            self._services[key] = plan.plan.service(size, total)
        self._services[key].rule = plan.plan.rule_for(size, total)
        return self._services[key]

    def _states(
        self, plan: SleepPlan, names: Sequence[str], busy: NDArray[np.bool_], now_s: float
    ) -> NodeStates:
        """Return the states of identical nodes, as input of their power-down service.

        A node that must not sleep never counts as idle, nor does a node on which processes have not ended.
        """
        states = NodeStates(len(names), self._power, now_s)
        states.busy[:] = busy
        for at, name in enumerate(names):
            node = self._state.nodes[name]
            spared = plan.spares(name) or now_s < self._spared_until_s.get(name, 0.0) or bool(node.live_jobs)
            states.state[at] = _STATE[node.sleep]
            states.since_s[at] = -np.inf
            states.idle_since_s[at] = np.inf if spared else self._idle_since_s.get(name, now_s)
        return states


def _stands_in(node: Node) -> bool:
    """Return whether the broker may power a node down or up.

    The result is True if the node is up or asleep, accepts jobs, and runs rlsched's own engine.
    """
    can = node.spec.capabilities
    takes = not (node.drained or node.unhealthy or node.away or node.removed)
    return node.up and takes and can.is_own and can.places
