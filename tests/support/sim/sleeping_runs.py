"""Random runs in which nodes sleep."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rlsched.models.power import NodePower
from rlsched.power_down import Command, Drain, NodeState, NodeStates, PowerDown, Sleep, Wake
from rlsched.power_down.plan import PowerDownPlan
from rlsched.settings import Seconds
from rlsched_envs.sim.modelling import Models
from tests.support.sim.books import Span, Watched

POWER = NodePower(boot_s=13.0, shutdown_s=4.0, boot_w=911.0, asleep_w=7.0)


class Moody:
    """Drains, wakes and puts to sleep at random; wakes more where jobs wait for nodes."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def review(
        self,
        now_s: float,
        busy_nodes: NDArray[np.bool_],
        waiting_nodes: int,
        states: NodeStates,
        paused_nodes: int = 0,
    ) -> list[Command]:
        """See `PowerDown`."""
        del now_s, paused_nodes
        commands: list[Command] = []
        for node, state in enumerate(states.state.tolist()):
            if state in (NodeState.ASLEEP, NodeState.DRAINING):
                if self._rng.random() < (0.5 if waiting_nodes else 0.1):
                    commands.append(Wake(node))
            elif state == NodeState.ON and self._rng.random() < 0.4:
                commands.append(Drain(node))
                if not busy_nodes[node]:
                    commands.append(Sleep(node))
        return commands


class MoodyPlan(PowerDownPlan, frozen=True, kw_only=True):
    """A plan whose services are `Moody`."""

    seed: int = 0

    def services(self, sizes: Sequence[int]) -> list[PowerDown]:
        return [Moody(100 * self.seed + at) for at in range(len(sizes))]


def moody(seed: int) -> Models:
    """Nodes that are put to sleep and woken at random."""
    plan = MoodyPlan(review=Seconds(5.0), seed=seed)
    return Models(workload_seed=seed, node_power=POWER, power_down=plan)


class WatchedAsleep(Watched):
    """Spans end at reviews too: statuses change there."""

    def advance(self) -> bool:
        self._begin_span()
        moved = super(Watched, self).advance()
        if moved:
            self._end_span()
        return moved

    def _review(self) -> bool:
        self._end_span()
        came_up = super()._review()
        self._begin_span()
        return came_up

    def _begin_span(self) -> None:
        status = tuple(self.state.arrays.node.status.tolist())
        self._open = (self.now_s, self._holders(), status)

    def _end_span(self) -> None:
        since_s, holders, status = self._open
        self.spans.append(Span(since_s, self.now_s, holders, status))
