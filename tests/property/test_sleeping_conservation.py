"""Nodes that drain, sleep and boot at random: energy is conserved, and no job runs on a sleeping node."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from rlsched.cluster.arrays import NODE_ASLEEP, NODE_BOOTING, NODE_DRAINED
from rlsched.cluster.spec import ClusterSpec
from rlsched.power_down import NodeStates
from rlsched_envs.sim.attempt_log import PreemptionCosts, RunRules
from rlsched_envs.sim.sleeping import SleepingNodes
from tests.quick import quick
from tests.support.sim.books import recount
from tests.support.sim.random_runs import (
    CLUSTERS,
    REL,
    Whimsical,
    all_resources_are_returned,
    energy_is_conserved,
    workload,
)
from tests.support.sim.sleeping_runs import POWER, WatchedAsleep, moody

pytestmark = pytest.mark.filterwarnings("error")


def asleep_run(seed: int) -> WatchedAsleep:
    name = ("mixed", "alike", "not told")[seed % 3]
    return WatchedAsleep(
        workload(seed, 8 if name == "not told" else 30, small=name != "mixed"),
        ClusterSpec(name=name, nodes=CLUSTERS[name]),
        oracle=True,
        rules=RunRules(costs=PreemptionCosts(3.0, 5.0, 2), max_retries=(None, 0, 1)[seed % 3]),
        models=moody(seed),
    )


@pytest.mark.parametrize("seed", quick((*range(8), 11), lambda seed: seed == 0, rest=pytest.mark.soak))
def test_energy_is_conserved_and_sleeping_nodes_run_nothing(seed: int) -> None:
    engine = asleep_run(seed)
    table = engine.run(Whimsical(seed))
    assert not np.isnan(table.end_s[~table.rejected]).any()
    all_resources_are_returned(engine)
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
    """Statuses of nodes with jobs: never asleep, never booting; a draining node gets no new job."""
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
    assert isinstance(engine._reviewed, SleepingNodes)
    return engine._reviewed.node_states()


@pytest.mark.slow
def test_same_run_twice_is_the_same() -> None:
    one, two = (asleep_run(3).run(Whimsical(3)) for _ in range(2))
    np.testing.assert_array_equal(one.start_s, two.start_s)
    np.testing.assert_array_equal(one.end_s, two.end_s)
    assert one.slept == two.slept
    assert one.energy is not None
    assert two.energy is not None
    np.testing.assert_array_equal(one.energy.job_j, two.energy.job_j)
