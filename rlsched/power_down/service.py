"""Decides how many nodes to keep awake, which nodes to wake, and which to put to sleep.

The rule follows Helios' CES (Hu et al., SC'21, and its published code): keep as many nodes awake as the
forecast plus a buffer, put nodes to sleep only while demand falls, and wake nodes when jobs wait. Two
additions keep nodes awake in a short dip of demand: a larger buffer after a wake-up, and a limit on the
number of nodes put to sleep per review. Nodes also sleep if demand has not changed for some time. If jobs
pause until the price of electricity falls, their nodes are put to sleep, too. A slot in this module is a time
slot (`slot_s` seconds) with one value of demand.
"""

from __future__ import annotations

import math
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsched.errors import InputError
from rlsched.power_down.states import Command, Drain, NodeState, NodeStates, Sleep, Wake
from rlsched.workload.predict.node_demand import SLOT_S, DemandForecast, TrailingMaximum

Floats = NDArray[np.float64]


class KeepRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rule for the number of nodes to keep awake, given a forecast of demand.

    The defaults are for a forecast by the maximum of the last three hours. They were chosen on Philly's trace
    before December 2017, for 420 nodes and a rate of 0.5 wake-ups per day.

    Raises:
        InputError: a value is out of its range.
    """

    buffer_nodes: int = 25
    """Number of nodes to keep awake above the forecast."""
    wake_buffer_nodes: int = 40
    """Number of nodes to keep awake above demand after a wake-up, so that a rise causes only one wake-up."""
    ramp_nodes: int = 2
    """Maximum number of nodes that one review (call of `review`) puts to sleep; 0: no limit."""
    falling_slots: int = 6
    """Number of last time slots. Nodes are put to sleep only if demand is below its mean in these slots, or
    the same in all of them; 0: at any demand."""
    headroom_nodes: int = 0
    """Number of free awake nodes below which nodes are woken, even if no job waits."""
    min_idle_s: float = 0.0
    """Idle time after which a node can sleep, seconds."""

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            if not 0 <= getattr(self, field) < np.inf:
                raise InputError(
                    f"keeping nodes: {field} must be a finite number >= 0, got {getattr(self, field)}"
                )

    def kept(self, awake: int, peak: float, last: float, may_sleep: bool, paused: int = 0) -> int:
        """Return the number of nodes that stay awake.

        Args:
            awake: Number of nodes awake now.
            peak: Forecast of the highest future demand.
            last: Demand of the last time slot, or present demand if that is higher.
            may_sleep: Whether nodes may be put to sleep at this demand, as `permits_sleep` returns it.
            paused: Number of nodes that are free because their jobs pause; these nodes can sleep in addition
                to `ramp_nodes`.
        """
        target = math.ceil(max(peak, last)) + self.buffer_nodes
        if not (may_sleep or paused) or awake <= target:
            return awake
        return max(target, awake - self.ramp_nodes - paused) if self.ramp_nodes else target

    def permits_sleep(self, demand: Floats) -> bool:
        """Return whether nodes may be put to sleep: demand falls, or has not changed.

        Demand falls if it is below its recent mean by a tenth of a node or more (as in Helios' code). If
        nodes slept only then, a cluster that becomes idle at once would stay awake: when the forecast no
        longer includes the earlier demand, demand does not fall any more.

        `demand`: (N,) demand of the last time slots. Its last value is compared with the mean of its last
        `falling_slots` values. Returns False if there are fewer values, and True if `falling_slots` is 0.
        """
        if self.falling_slots == 0:
            return True
        recent = demand[-self.falling_slots :]
        if len(recent) < self.falling_slots:
            return False
        return bool(recent.mean() - recent[-1] >= 0.1 or recent.min() == recent.max())


class PowerDown(Protocol):
    """Decides which nodes sleep and wake; an engine or a broker calls `review` every 1 to 10 min."""

    def review(
        self,
        now_s: float,
        busy_nodes: NDArray[np.bool_],
        waiting_nodes: int,
        states: NodeStates,
        paused_nodes: int = 0,
    ) -> list[Command]:
        """Return commands for the nodes. The caller must carry out the commands.

        Args:
            now_s: Time, seconds; not before the time of the previous call.
            busy_nodes: (N,) whether the node runs a job.
            waiting_nodes: Number of further nodes that waiting jobs would fill.
            states: States of the N nodes, advanced to `now_s`.
            paused_nodes: Number of nodes of jobs that pause until the price of electricity falls. This demand
                does not return before the price falls.

        Returns:
            Commands, which must be carried out in this order.
        """
        ...


class PowerDownService:
    """Implements `PowerDown` with a forecast and a `KeepRule`, for N interchangeable nodes.

    A cluster with several kinds of nodes (virtual clusters, GPU types) has one service per kind. Demand is
    the number of busy nodes plus the number that waiting jobs would fill. The demand of a time slot is the
    highest demand at a review (call of `review`) in the slot.

    Args:
        rule: Rule for the number of nodes awake.
        forecast: Forecast of the highest future demand; default: the maximum of the last three hours.
        slot_s: Length of a time slot, seconds; nodes are put to sleep only at the end of a slot.
    """

    def __init__(
        self,
        rule: KeepRule | None = None,
        forecast: DemandForecast | None = None,
        slot_s: float = SLOT_S,
    ) -> None:
        self.rule, self._slot_s = rule or KeepRule(), slot_s
        self.forecast = forecast or TrailingMaximum(18)
        self._demand: list[float] = []
        self._slot: int | None = None
        self._highest = 0.0

    def review(
        self,
        now_s: float,
        busy_nodes: NDArray[np.bool_],
        waiting_nodes: int,
        states: NodeStates,
        paused_nodes: int = 0,
    ) -> list[Command]:
        """Return commands, see `PowerDown.review`. Idle draining nodes are put to sleep.

        Draining nodes wake before sleeping nodes, and lower indices before higher ones. The idle node with
        the highest index sleeps first.
        """
        demand = int(busy_nodes.sum()) + waiting_nodes
        ended = self._observe(now_s, float(demand))
        state = states.state
        up = (state == NodeState.ON) | (state == NodeState.BOOTING)
        awake = int(up.sum())
        if demand > awake - self.rule.headroom_nodes:
            return self._wake(demand + self.rule.wake_buffer_nodes - awake, states)
        done: list[Command] = [
            Sleep(int(node)) for node in np.flatnonzero((state == NodeState.DRAINING) & ~busy_nodes)
        ]
        if not ended:
            return done
        history = np.array(self._demand)
        peak, last = self.forecast.peak(history) - paused_nodes, max(history[-1] - paused_nodes, demand)
        keep = self.rule.kept(awake, peak, last, self.rule.permits_sleep(history), paused_nodes)
        rested = now_s - states.idle_since_s >= self.rule.min_idle_s
        idle = np.flatnonzero((state == NodeState.ON) & ~busy_nodes & rested)[::-1][: awake - keep]
        for node in idle.tolist():
            done += (Drain(node), Sleep(node))
        return done

    def _observe(self, now_s: float, demand: float) -> bool:
        """Record the demand at a review. Return whether a time slot has ended since the previous review.

        A time slot without a review gets the demand of the slot before.
        """
        slot = int(now_s // self._slot_s)
        if self._slot is None or slot == self._slot:
            self._highest = max(self._highest, demand) if self._slot is not None else demand
            self._slot = slot
            return False
        self._demand += [self._highest] * (slot - self._slot)
        del self._demand[: -max(self.forecast.needs_slots, self.rule.falling_slots)]
        self._slot, self._highest = slot, demand
        return True

    def _wake(self, wanted: int, states: NodeStates) -> list[Command]:
        """Return commands that wake `wanted` nodes; draining nodes are woken first."""
        draining = np.flatnonzero(states.state == NodeState.DRAINING)
        asleep = np.flatnonzero(states.state == NodeState.ASLEEP)
        return [Wake(int(node)) for node in np.concatenate([draining, asleep])[: max(wanted, 0)]]
