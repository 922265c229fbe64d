"""Nodes that sleep in the simulator: by hand on two nodes, and the real service on a calm trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from rlsched.cluster.arrays import NODE_UP
from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.decide.policies.policy import Policy
from rlsched.decide.rule_scheduler import RuleScheduler
from rlsched.decide.rules.steps import CompiledRule
from rlsched.errors import InputError
from rlsched.models.power import NodePower
from rlsched.power_down import Command, Drain, NodeStates, PowerDown, Sleep, Wake
from rlsched.power_down.plan import PowerDownPlan
from rlsched.settings import Seconds
from rlsched.workload.trace import Trace
from rlsched_envs.sim.attempt_log import RunRules
from rlsched_envs.sim.engine import Engine
from rlsched_envs.sim.job_table import JobTable
from rlsched_envs.sim.modelling import Models
from rlsched_envs.sim.node_events import NodeEvent
from tests.quick import quick

FIRST_COME = Policy("fifo-backfill").rule
pytestmark = pytest.mark.filterwarnings("error")

KWH = 3.6e6
IDLE_W, BASE_W, ASLEEP_W = 708.0, 380.0, 10.0
"""Power of an idle node with eight V100; of the same node without its GPUs; asleep.
`docs/how-to/power-down.md`.
"""


class Scripted:
    """Returns at each review the script's commands; without any, wakes all nodes while jobs wait."""

    def __init__(self, script: Mapping[float, Sequence[Command]], *, wakes: bool = True) -> None:
        self._script, self._wakes = script, wakes

    def review(
        self,
        now_s: float,
        busy_nodes: NDArray[np.bool_],
        waiting_nodes: int,
        states: NodeStates,
        paused_nodes: int = 0,
    ) -> list[Command]:
        """See `PowerDown`."""
        del busy_nodes, paused_nodes
        down = np.flatnonzero((states.state == 1) | (states.state == 2)).tolist()
        if waiting_nodes > 0 and self._wakes:
            return [Wake(node) for node in down]
        return list(self._script.get(now_s, ()))


class Script(PowerDownPlan, frozen=True, kw_only=True):
    script: Mapping[float, Sequence[Command]] = msgspec.field(default_factory=dict)
    wakes: bool = True

    def services(self, sizes: Sequence[int]) -> list[PowerDown]:
        return [Scripted(self.script, wakes=self.wakes) for _ in sizes]


def trace_of(jobs: Sequence[tuple[float, float, float]]) -> Trace:
    """Jobs as (submission, duration, GPUs)."""
    submit, duration, gpus = ([job[k] for job in jobs] for k in range(3))
    return Trace.from_columns(name="hand", submit_s=submit, duration_s=duration, num_gpus=gpus)


def engine_of(
    trace: Trace,
    plan: PowerDownPlan | None,
    *,
    nodes: int = 2,
    power: NodePower | None = None,
    rule: CompiledRule = FIRST_COME,
) -> Engine:
    spec = ClusterSpec.uniform(nodes, 8, gpu_type="V100")
    models = Models(power_down=plan, node_power=power or NodePower())
    return Engine(trace, spec, order=rule.order, oracle=True, models=models)


def hand_run(plan: PowerDownPlan, jobs: Sequence[tuple[float, float, float]], **named: NodePower) -> JobTable:
    return engine_of(trace_of(jobs), plan, **named).run_rule(FIRST_COME)


TWO_JOBS = ((0.0, 2000.0, 8.0), (600.0, 100.0, 8.0))
NIGHT = Script(script={60.0: (Drain(1), Sleep(1))})


def test_night_by_hand() -> None:
    """Node 1 drains at 60 s, is off at 120, woken by a job at 600, up at 1050, where the job runs."""
    table = hand_run(NIGHT, TWO_JOBS, power=NodePower(boot_w=800.0))
    assert table.start_s.tolist() == [0.0, 1050.0]
    assert table.end_s.tolist() == [2000.0, 1150.0]
    assert table.gpu_node[list(table.gpus[1])].tolist() == [1] * 8
    slept, energy = table.slept, table.energy
    assert slept is not None
    assert energy is not None
    assert (slept.wake_up_events, slept.nodes_booted) == (1, 1)
    assert slept.asleep_node_s == 480.0
    assert slept.saved_j == pytest.approx((IDLE_W - ASLEEP_W) * 480.0 + (IDLE_W - 800.0) * 450.0)
    on_s = 120.0 + (2000.0 - 1150.0)
    node_1_j = IDLE_W * on_s + ASLEEP_W * 480.0 + 800.0 * 450.0 + BASE_W * 100.0
    assert energy.idle_j == pytest.approx(BASE_W * 2000.0 + node_1_j)
    assert energy.cluster_j == pytest.approx(energy.idle_j + energy.job_j.sum())


def test_node_stays_up_without_the_rule() -> None:
    table = engine_of(trace_of(TWO_JOBS), None).run_rule(FIRST_COME)
    assert table.start_s.tolist() == [0.0, 600.0]
    assert table.slept is None
    assert table.energy is not None
    assert table.energy.idle_j == pytest.approx(BASE_W * 2100.0 + IDLE_W * 1900.0)


def test_power_down_in_progress_is_finished_first() -> None:
    """Off at 160 s at the earliest: woken at 90 s for a job of 90 s, up 450 s after it is off."""
    table = hand_run(NIGHT, ((0.0, 2000.0, 8.0), (90.0, 100.0, 8.0)), power=NodePower(shutdown_s=100.0))
    assert table.start_s.tolist() == [0.0, 160.0 + 450.0]
    assert table.slept is not None
    assert table.slept.asleep_node_s == 0.0


def test_waiting_jobs_cause_reviews_at_least_a_second_apart() -> None:
    """The first of four jobs wakes a node at its submission, the others at reviews 1 and 2 s later."""
    jobs = [(at_s, 50.0, 8.0) for at_s in (0.0, 2000.25, 2000.5, 2001.5, 2001.75)]
    plan = PowerDownPlan(falling=Seconds(0.0), over=Seconds(600.0), wake_buffer_nodes=0, buffer_nodes=0)
    engine = engine_of(trace_of(jobs), plan, nodes=5, power=NodePower(boot_s=100.0))
    assert engine.run_rule(FIRST_COME).start_s.tolist() == [0.0, 2100.25, 2101.25, 2102.25, 2102.25]


def test_draining_node_ends_its_job_and_then_sleeps() -> None:
    """Drained at 60 s with a job until 500: no other job starts on it; asleep at 500, off at 560.

    At 500 s, a job waits, so there is a review.
    """
    plan = Script(script={60.0: (Drain(0), Drain(1), Sleep(1)), 120.0: ()}, wakes=False)
    table = hand_run(plan, ((0.0, 500.0, 4.0), (100.0, 50.0, 4.0), (2000.0, 1.0, 4.0)))
    assert table.end_s[0] == 500.0
    assert np.isnan(table.start_s[1:]).all()  # no review wakes a node: the run ends all the same
    assert table.slept is not None
    assert table.energy is not None
    assert table.slept.asleep_node_s == pytest.approx(2 * table.energy.span_s - 120.0 - 560.0)


def test_draining_node_is_resumed_at_once() -> None:
    plan = Script(script={60.0: (Drain(0), Drain(1), Sleep(1))})
    table = hand_run(plan, ((0.0, 500.0, 4.0), (100.0, 50.0, 4.0)))
    assert table.start_s.tolist() == [0.0, 100.0]  # at its submission, which is followed by a review
    assert table.slept is not None
    assert table.slept.nodes_booted == 1  # the other was asleep, and woke too


def calm() -> Trace:
    """Two days of one node busy half the time, a gang of four nodes, and another day."""
    jobs = [(7200.0 * k, 3600.0, 8.0) for k in range(24)]
    jobs += [(2 * 86400.0, 1800.0, 32.0)]
    jobs += [(2 * 86400.0 + 7200.0 * k, 3600.0, 8.0) for k in range(1, 12)]
    return trace_of(jobs)


GANG = 24
RULE = PowerDownPlan(buffer_nodes=1, wake_buffer_nodes=2, ramp_nodes=0)


def test_gang_wakes_nodes_and_waits_only_for_the_boot() -> None:
    table = engine_of(calm(), RULE, nodes=8).run_rule(FIRST_COME)
    queued_s = table.start_s - table.trace.submit_s
    assert queued_s[GANG] == 450.0  # submitted at a review
    assert (np.delete(queued_s, GANG) == 0.0).all()
    without = engine_of(calm(), None, nodes=8).run_rule(FIRST_COME)
    assert without.energy is not None
    assert table.energy is not None
    assert table.slept is not None
    assert table.slept.wake_up_events == 1
    assert table.energy.job_j == pytest.approx(without.energy.job_j)
    ended_s = without.energy.span_s
    late_j = table.energy.cluster_j + table.slept.saved_j - without.energy.cluster_j
    assert table.energy.span_s == ended_s
    assert late_j == pytest.approx(0.0, abs=1.0)  # reported savings equal real savings
    assert table.energy.cluster_j < 0.6 * without.energy.cluster_j


def test_rule_that_keeps_all_nodes_changes_nothing() -> None:
    keeps = engine_of(calm(), PowerDownPlan(forecast="persistence", buffer_nodes=8), nodes=8).run_rule(
        FIRST_COME
    )
    none = engine_of(calm(), None, nodes=8).run_rule(FIRST_COME)
    np.testing.assert_array_equal(keeps.start_s, none.start_s)
    np.testing.assert_array_equal(keeps.end_s, none.end_s)
    assert keeps.slept is not None
    assert keeps.slept.asleep_node_s == keeps.slept.saved_j == keeps.slept.nodes_booted == 0
    assert keeps.energy is not None
    assert none.energy is not None
    assert keeps.energy.cluster_j == pytest.approx(none.energy.cluster_j, rel=1e-12)


def busy_weekend(seed: int) -> Trace:
    rng = np.random.default_rng(seed)
    count = 90
    return Trace.from_columns(
        name="busy",
        submit_s=np.sort(np.round(rng.uniform(0, 2 * 86400, count), 1)),
        duration_s=np.round(rng.exponential(5000, count) + 1, 1),
        num_gpus=rng.choice([1.0, 2.0, 4.0, 8.0, 16.0], count),
        vc=rng.choice(["a", "b"], count),
    )


TWO_KINDS = ClusterSpec(
    name="two",
    nodes=(
        NodeGroup(count=3, gpus=8, gpu_type="V100", vc="a"),
        NodeGroup(count=4, gpus=4, gpu_type="A100"),
        NodeGroup(count=2, gpus=8, gpu_type="V100"),
    ),
)
SHARING = Policy("qssf-backfill", name="sharing", share={}, clock={"rule": "slowdown", "slowdown": 0.1})


@pytest.mark.parametrize(
    "policy",
    quick([Policy("fifo"), Policy("qssf-backfill"), SHARING], lambda policy: policy is SHARING),
    ids=lambda policy: policy.name,
)
def test_compiled_and_decision_by_decision_agree(policy: Policy) -> None:
    rule, named = policy.rule, {"oracle": True, "models": Models(power_down=RULE)}
    compiled = Engine(busy_weekend(1), TWO_KINDS, order=rule.order, **named).run_rule(rule)
    one_by_one = Engine(busy_weekend(1), TWO_KINDS, order=rule.order, **named).run(RuleScheduler(policy))
    np.testing.assert_array_equal(compiled.start_s, one_by_one.start_s)
    np.testing.assert_array_equal(compiled.end_s, one_by_one.end_s)
    assert compiled.slept == one_by_one.slept
    assert not np.isnan(compiled.end_s[~compiled.rejected]).any()
    assert compiled.slept is not None
    assert compiled.slept.nodes_booted > 3
    energy = compiled.energy
    assert energy is not None
    assert energy.cluster_j == pytest.approx(energy.idle_j + energy.job_j.sum(), rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tiresias", "easy"])
def test_preemption_and_reservations_work_with_sleeping_nodes(name: str) -> None:
    rule = Policy(name).rule
    assert rule.options.preempts == (name == "tiresias")
    engine = Engine(busy_weekend(2), TWO_KINDS, order=rule.order, oracle=True, models=Models(power_down=RULE))
    table = engine.run_rule(rule)
    assert not np.isnan(table.end_s[~table.rejected]).any()
    assert table.slept is not None
    assert table.slept.nodes_booted > 3
    energy = table.energy
    assert energy is not None
    assert energy.cluster_j == pytest.approx(energy.idle_j + energy.job_j.sum(), rel=1e-9)


def test_node_failures_are_refused_together_with_sleeping_nodes() -> None:
    rules = RunRules(node_events=(NodeEvent(5.0, 0, NODE_UP),))
    with pytest.raises(InputError, match="node events"):
        Engine(calm(), TWO_KINDS, rules=rules, oracle=True, models=Models(power_down=RULE))
