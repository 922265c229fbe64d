"""The state machine of nodes (on, draining, asleep, booting), without a clock and without I/O.

        drain            job ended, or idle        wake                  boot_s later
    ON ------> DRAINING -----------------> ASLEEP ------> BOOTING ---------------------> ON
       <------ wake (at once)

A node that runs a job never sleeps: a draining node gets no new jobs, and is put to sleep after its last job
has ended.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsched.errors import NodeStateError
from rlsched.models.node_power import PowerByState


class NodeState(IntEnum):
    """State of a node. Jobs start only on nodes that are ON."""

    ON = 0
    DRAINING = 1
    ASLEEP = 2
    BOOTING = 3


class Drain(msgspec.Struct, frozen=True):
    """Command that stops new jobs from starting on a node."""

    node: int


class Sleep(msgspec.Struct, frozen=True):
    """Command to power a draining, idle node down."""

    node: int


class Wake(msgspec.Struct, frozen=True):
    """Command to power a node up or, if it is still draining, to allow job starts on it again."""

    node: int


Command = Drain | Sleep | Wake


class NodeStates:
    """The states of N nodes, all of which are ON and idle at first.

    Invariants: no ASLEEP or BOOTING node is busy; `ready_s` is finite for BOOTING nodes, and infinite for
    others.
    """

    def __init__(self, num_nodes: int, power: PowerByState | None = None, now_s: float = 0.0) -> None:
        self.power = power or PowerByState.from_gpus()
        self.state: NDArray[np.int8] = np.full(num_nodes, NodeState.ON, dtype=np.int8)
        """(N,) `NodeState` of each node."""
        self.busy: NDArray[np.bool_] = np.zeros(num_nodes, dtype=np.bool_)
        """(N,) whether the node runs a job."""
        self.since_s: NDArray[np.float64] = np.full(num_nodes, now_s)
        """(N,) time at which the node's state began, seconds."""
        self.idle_since_s: NDArray[np.float64] = np.full(num_nodes, now_s)
        """(N,) time at which the node last ran a job, or became ON, seconds."""
        self.ready_s: NDArray[np.float64] = np.full(num_nodes, np.inf)
        """(N,) time at which a BOOTING node becomes ON, seconds; inf for other nodes."""
        self.energy_j = 0.0
        """Energy of the nodes so far at `idle_w`, `asleep_w` and `boot_w`, without the power of jobs, J."""
        self.nodes_booted = 0
        """Number of wake-ups of sleeping nodes; nodes woken at the same time count separately."""
        self.wake_up_events = 0
        """Number of instants at which sleeping nodes were woken; nodes woken at the same time count once."""
        self._now_s = now_s
        self._due_s = np.inf
        self._event_s = -np.inf

    def count(self, *states: NodeState) -> int:
        """Return the number of nodes in any of these states."""
        return sum(int((self.state == state).sum()) for state in states)

    def next_due_s(self) -> float:
        """Return the time at which to call `advance` because a BOOTING node becomes ON; inf if none boots."""
        return self._due_s

    def advance(self, now_s: float) -> list[int]:
        """Advance the time. Nodes that have booted by `now_s` become ON; return the indices of these nodes.

        Raises:
            NodeStateError: `now_s` is in the past.
        """
        if now_s < self._now_s:
            raise NodeStateError(
                f"expected a time of {self._now_s} s (the previous time) or later, got {now_s} s"
            )
        if now_s == self._now_s and self._due_s > now_s:
            return []
        up = np.flatnonzero(self.ready_s <= now_s)
        self.energy_j += self._energy_until(now_s)
        self.state[up] = NodeState.ON
        self.since_s[up] = self.idle_since_s[up] = self.ready_s[up]
        self.ready_s[up] = np.inf
        self._due_s = float(self.ready_s.min(initial=np.inf))
        self._now_s = now_s
        return [int(node) for node in up]

    def start_job(self, node: int, now_s: float) -> None:
        """Record that a job starts on this idle node.

        Raises:
            NodeStateError: the node is not ON.
        """
        self.advance(now_s)
        self._expect(node, "start a job on", NodeState.ON)
        self.busy[node] = True

    def finish_last_job(self, node: int, now_s: float) -> list[Command]:
        """Record that the last job on a node has ended. If the node is draining, set its state to ASLEEP.

        Returns the `Sleep` command, already applied here, if the node was draining; otherwise no commands.
        """
        self.advance(now_s)
        self.busy[node], self.idle_since_s[node] = False, now_s
        if self.state[node] != NodeState.DRAINING:
            return []
        command = Sleep(node)
        self.apply(command, now_s)
        return [command]

    def keep_busy(self, busy: NDArray[np.bool_], now_s: float) -> None:
        """Record which nodes run jobs now, (N,). Nodes that no longer run jobs are idle from now on."""
        self.idle_since_s[self.busy & ~busy] = now_s
        self.busy[:] = busy

    def apply(self, command: Command, now_s: float) -> None:
        """Carry out a command.

        Raises:
            NodeStateError: the node's state does not allow the command, or the node would sleep while it runs
                a job. The state of the node is unchanged.
        """
        self.advance(now_s)
        node = command.node
        match command:
            case Drain():
                self._expect(node, "drain", NodeState.ON)
                self._enter(node, NodeState.DRAINING, now_s)
            case Sleep():
                self._expect(node, "power down", NodeState.DRAINING)
                if self.busy[node]:
                    raise NodeStateError(f"node {node} runs a job and cannot sleep: wait until it has ended")
                self._enter(node, NodeState.ASLEEP, now_s)
            case Wake():
                self._expect(node, "wake", NodeState.ASLEEP, NodeState.DRAINING)
                if self.state[node] == NodeState.DRAINING:
                    self._enter(node, NodeState.ON, now_s)
                else:
                    self._wake(node, now_s)

    def _wake(self, node: int, now_s: float) -> None:
        # Booting begins after the rest of the shutdown. The power during that rest counts as `boot_w`.
        down_s = self.since_s[node] + self.power.shutdown_s
        self._enter(node, NodeState.BOOTING, now_s)
        self.ready_s[node] = max(down_s, now_s) + self.power.boot_s
        self._due_s = min(self._due_s, float(self.ready_s[node]))
        self.nodes_booted += 1
        self.wake_up_events += now_s != self._event_s
        self._event_s = now_s

    def _enter(self, node: int, state: NodeState, now_s: float) -> None:
        self.state[node] = state
        self.since_s[node] = now_s

    def _expect(self, node: int, verb: str, *states: NodeState) -> None:
        if not 0 <= node < len(self.state):
            raise NodeStateError(f"cannot {verb} node {node}: nodes are numbered 0 to {len(self.state) - 1}")
        if self.state[node] not in states:
            known = " or ".join(state.name for state in states)
            raise NodeStateError(
                f"cannot {verb} node {node}: it must be {known}, and is {NodeState(self.state[node]).name}"
            )

    def _energy_until(self, now_s: float) -> float:
        """Return the energy of the nodes since the last call of `advance`, J, without the power of jobs."""
        power, state, span_s = self.power, self.state, now_s - self._now_s
        awake = (state == NodeState.ON) | (state == NodeState.DRAINING)
        boot_s = np.clip(np.minimum(self.ready_s, now_s) - self._now_s, 0.0, span_s)[
            state == NodeState.BOOTING
        ]
        down_s = np.clip(self.since_s + power.shutdown_s - self._now_s, 0.0, span_s)[
            state == NodeState.ASLEEP
        ]
        return float(
            power.idle_w * (awake.sum() * span_s + down_s.sum() + (span_s - boot_s).sum())
            + power.boot_w * boot_s.sum()
            + power.asleep_w * (span_s - down_s).sum()
        )
