"""Nodes that drain, sleep and boot at random: energy is conserved, and nothing runs where nobody is awake."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from rlsched.cluster.arrays import NODE_ASLEEP, NODE_BOOTING, NODE_DRAINED
from rlsched.cluster.spec import ClusterSpec
from rlsched.models.power import NodePower
from rlsched.power_down import Command, Drain, NodeState, NodeStates, PowerDown, Sleep, Wake
from rlsched.power_down.plan import PowerDownPlan
from rlsched.settings import Seconds
from rlsched_envs.sim.attempt_log import PreemptionCosts, RunRules
from rlsched_envs.sim.modelling import Models
from tests.property.test_conservation import (
    CLUSTERS,
    REL,
    Whimsical,
    energy_is_conserved,
    everything_is_given_back,
    workload,
)
from tests.quick import quick
from tests.support.sim.books import Span, Watched, recount

pytestmark = pytest.mark.filterwarnings("error")

POWER = NodePower(boot_s=13.0, shutdown_s=4.0, boot_w=911.0, asleep_w=7.0)


class Moody:
    """Drains, wakes and puts to sleep at random; wakes more where jobs wait for nodes."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def review(
        self, now_s: float, busy_nodes: NDArray[np.bool_], waiting_nodes: int, states: NodeStates
    ) -> list[Command]:
        """See `PowerDown`."""
        del now_s
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
    """Nodes that sleep, woken and put to sleep at random."""
    plan = MoodyPlan(review=Seconds(5.0), seed=seed)
    return Models(workload_seed=seed, node_power=POWER, power_down=plan)


class WatchedAsleep(Watched):
    """Its spans end at reviews too: statuses change there."""

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


def asleep_run(seed: int) -> WatchedAsleep:
    name = ("mixed", "alike", "not told")[seed % 3]
    return WatchedAsleep(
        workload(seed, 8 if name == "not told" else 30, small=name != "mixed"),
        ClusterSpec(name=name, nodes=CLUSTERS[name]),
        oracle=True,
        rules=RunRules(costs=PreemptionCosts(3.0, 5.0, 2), max_retries=(None, 0, 1)[seed % 3]),
        models=moody(seed),
    )


@pytest.mark.parametrize("seed", quick(range(9), lambda seed: seed == 0))
def test_energy_is_conserved_and_sleepers_run_nothing(seed: int) -> None:
    engine = asleep_run(seed)
    table = engine.run(Whimsical(seed))
    assert not np.isnan(table.end_s[~table.rejected]).any()
    everything_is_given_back(engine)
    seen = statuses_of_busy_nodes(engine)
    assert NODE_DRAINED in seen
    energy_is_conserved(table)
    books = recount(engine, noise=True, power=POWER)
    assert table.energy is not None
    assert table.energy.cluster_j == pytest.approx(books.cluster_j, rel=REL)
    assert table.energy.idle_j == pytest.approx(books.idle_j, rel=REL)
    slept = table.slept
    assert slept is not None
    assert slept.nodes_booted >= slept.wake_up_events >= 1
    assert slept.asleep_node_s == pytest.approx(
        sum((one.until_s - one.since_s) * one.status.count(NODE_ASLEEP) for one in engine.spans)
    )
    on_w = sum(len(nodes) * states.power.idle_w * table.energy.span_s for nodes, states in states_of(engine))
    for _, states in states_of(engine):
        states.advance(engine.now_s)
    nodes_j = sum(states.energy_j for _, states in states_of(engine))
    assert slept.saved_j == pytest.approx(on_w - nodes_j, rel=REL)


def statuses_of_busy_nodes(engine: WatchedAsleep) -> set[int]:
    """What nodes with jobs were: never asleep, never booting; and one that drains is given no new job."""
    seen: set[int] = set()
    node_of = engine.state.arrays.gpu.node
    for before, span in pairwise(engine.spans):
        known = {(one.row, one.attempt) for one in before.holders}
        for holder in span.holders:
            nodes = node_of[list(holder.gpus)].tolist() or [holder.host]
            seen |= {span.status[n] for n in nodes}
            if (holder.row, holder.attempt) not in known:
                assert all((before.status[n], span.status[n]) != (NODE_DRAINED, NODE_DRAINED) for n in nodes)
    assert not seen & {NODE_ASLEEP, NODE_BOOTING}
    assert any(NODE_BOOTING in span.status for span in engine.spans)
    return seen


def states_of(engine: WatchedAsleep) -> list[tuple[NDArray[np.int64], NodeStates]]:
    assert engine._sleeping is not None
    return engine._sleeping.node_states()


@pytest.mark.slow
def test_the_same_run_twice_is_the_same() -> None:
    one, two = (asleep_run(3).run(Whimsical(3)) for _ in range(2))
    np.testing.assert_array_equal(one.start_s, two.start_s)
    np.testing.assert_array_equal(one.end_s, two.end_s)
    assert one.slept == two.slept
    assert one.energy is not None
    assert two.energy is not None
    np.testing.assert_array_equal(one.energy.job_j, two.energy.job_j)
