"""The search of small instances finds the optimum over all sequences of the engine; no rule is better."""

from __future__ import annotations

import numpy as np
import pytest

from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Action, Start, Wait
from rlsched.decide.options import BLOCKED, PLAIN_START
from rlsched.decide.order.keys import Order
from rlsched.decide.recording import plans_of
from rlsched.decide.scheduler import Abilities, Decision, Scheduler
from rlsched.decide.start import join_action, start_action
from rlsched.workload.trace import Trace
from studies.policy.small_instances import (
    Instance,
    Tables,
    cost,
    engine_of,
    instance,
    played,
    tables_of,
)
from studies.policy.small_optimum import KINDS, Row, row_of, tables_in_words
from studies.policy.small_plans import SHIPPED, points, scheduler_at
from studies.policy.small_search import Allowed, search

HEAVY = "resnet50-imagenet-b64"
ALL = PLAIN_START._replace(share=BLOCKED, min_speed=0.0, max_jobs=4, chooses_type=True)
"""Every plan at full clock is allowed."""


def jobs(*duration_s: float, submit_s: tuple[float, ...] = (), preempts: bool = False) -> Instance:
    """Jobs of two GPUs that differ only in their run times."""
    count = len(duration_s)
    trace = Trace.from_columns(
        name="small",
        submit_s=np.array(submit_s or (0.0,) * count),
        duration_s=np.array(duration_s),
        num_gpus=np.full(count, 2),
        extra={"workload": [HEAVY] * count, "restart_s": np.full(count, 30.0)},
    )
    return Instance(trace, 0.0, preempts)


class Enumerated(Scheduler):
    """Scheduler that takes the options of a script, then always the first option, and counts the options.

    Jobs that start at one instant start in queue order, because other orders have the same result.
    """

    name = policy_id = "enumerated"
    order = Order()
    abilities = Abilities(shares=True, needs_models=True)

    def __init__(self, script: list[int]) -> None:
        self.script, self.counts = script, list[int]()
        self._now_s, self._last = -1.0, -1

    def decide(self, state: ClusterState, partition: int, now_s: float, *, record: bool = False) -> Decision:  # noqa: ARG002
        """The option of the script."""
        if now_s != self._now_s:
            self._now_s, self._last = now_s, -1
        found = self._options(state, partition, now_s)
        number = len(self.counts)
        self.counts.append(len(found))
        action = found[self.script[number] if number < len(self.script) else 0]
        if isinstance(action, Start):
            self._last = action.seq
        return Decision(action=action, source="rule")

    def _options(self, state: ClusterState, partition: int, now_s: float) -> list[Action]:
        found: list[Action] = []
        for seq in state.waiting(partition):
            if seq > self._last:
                for plan in plans_of(state, partition, seq, ALL, now_s, None):
                    if plan.verdict == "" and plan.how == "free":
                        node = state.node_names.index(plan.node)
                        found.append(start_action(state, partition, seq, node, start=ALL))
                    elif plan.verdict == "" and plan.how == "share":
                        found.append(join_action(state, partition, seq, plan.share_with, ALL))
        if not found or state.running():
            found.append(Wait())
        return found


def optimum_by_enumeration(one: Instance, tables: Tables) -> float:
    """The least cost of all sequences of starts, each played by the engine."""
    best, script = np.inf, list[int]()
    while True:
        player = Enumerated(script)
        best = min(best, cost(tables, engine_of(one, player.order).run(player)))
        script = [*script, *[0] * (len(player.counts) - len(script))]
        while script and script[-1] + 1 == player.counts[len(script) - 1]:
            script.pop()
        if not script:
            return best
        script[-1] += 1


@pytest.mark.parametrize("seed", [pytest.param(1, marks=pytest.mark.soak), 2])
def test_search_equals_enumeration(seed: int) -> None:
    one = instance(3, np.random.default_rng(seed), within_s=600.0 * (seed % 2))
    tables = tables_of(one)
    found = search(tables, Allowed(preempts=False, clocks=1))
    assert found.proven
    assert found.cost == pytest.approx(optimum_by_enumeration(one, tables), rel=1e-9)


@pytest.mark.parametrize(("weight", "preempts"), [(0.0, True), (0.3, False), (0.3, True)])
def test_engine_cost_equals_search_cost(weight: float, preempts: bool) -> None:
    """Clocks, joins, departures and restarts: replaying the result costs the same."""
    for seed in range(3):
        one = instance(4, np.random.default_rng(seed), energy_weight=weight, preempts=preempts)
        tables = tables_of(one)
        found = search(tables, Allowed(preempts), most_branches=100_000)
        assert found.steps
        assert played(one, found.steps, tables) == pytest.approx(found.cost, rel=1e-9)


def test_more_abilities_never_cost_more() -> None:
    one = instance(4, np.random.default_rng(3), energy_weight=0.3, within_s=600.0, preempts=True)
    tables = tables_of(one)
    costs = [
        search(tables, allowed).cost
        for allowed in (
            Allowed(preempts=False, tenants=1, clocks=1, idles=False),
            Allowed(preempts=False, tenants=1, clocks=1),
            Allowed(preempts=False, tenants=2, clocks=1),
            Allowed(preempts=False, tenants=4, clocks=1),
            Allowed(preempts=False),
        )
    ]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] < costs[0]


def test_long_job_is_preempted_for_a_short_one() -> None:
    """Both nodes run jobs of hours when a job of a minute arrives, and no job shares."""
    one = jobs(40_000.0, 40_000.0, 60.0, submit_s=(0.0, 0.0, 100.0), preempts=True)
    tables = tables_of(one)
    alone = Allowed(preempts=True, tenants=1, clocks=1)
    found, without = search(tables, alone), search(tables, alone._replace(preempts=False))
    gave_way = [step for step in found.steps if step.place < 0]
    assert [step.at_s for step in gave_way] == [100.0]
    assert found.cost < without.cost
    assert played(one, found.steps, tables) == pytest.approx(found.cost, rel=1e-9)


def test_job_waits_for_the_faster_node_where_that_pays() -> None:
    """A hundred seconds until the A100s are free; run times of hours on either type."""
    one = jobs(100.0, 20_000.0)
    tables = tables_of(one)
    alone = Allowed(preempts=False, tenants=1, clocks=1)
    found, eager = search(tables, alone), search(tables, alone._replace(idles=False))
    assert found.steps[-1].job == 1
    assert found.steps[-1].place == 5
    assert found.cost <= eager.cost


def test_no_plan_costs_less_and_the_shipped_ones_are_the_first_point() -> None:
    one = instance(4, np.random.default_rng(5), within_s=600.0, energy_weight=0.3)
    row = row_of(one)
    assert row.proven
    assert row.least <= row.best <= min(row.prices)
    assert points()[0] == SHIPPED
    settings = scheduler_at(SHIPPED, False).rule.options.start
    assert (settings.max_jobs, settings.min_speed, settings.type_price, settings.later) == (4, 0.5, 0.3, 2.0)


def test_tables_summarise_the_rows() -> None:
    short = [0.95, 0.9, 0.9, 0.9, 0.9]
    rows = [
        Row(k, *KINDS[k], 0.9, k != 3, [1.0, 0.95], 0.9 / share, short if share == 0.9 else [])
        for k, share in enumerate((1.0, 0.9, 0.98, 0.5))
    ]
    lines = tables_in_words(rows)
    both = next(line for line in lines if line.startswith("| all | all | all |"))
    assert "| 3 | 1 | 0.900 [0.900, 0.900] |" in both
    assert both.endswith("| 67% | 33% |")
    assert "| waiting for other GPUs | 1 | 1.056 | 0% |" in lines
