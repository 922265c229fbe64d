"""Preempted jobs, solved by hand: work kept after an interruption, restart costs, preemptible jobs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Action, Preempt, Wait
from rlsched.decide.loop import apply
from rlsched.decide.move import start_of
from rlsched.decide.options import PLAIN_START
from rlsched.decide.order.keys import Order
from rlsched.decide.order.queue import OrderedQueue
from rlsched.decide.policies.policy import Policy
from rlsched.decide.rule_scheduler import RuleScheduler
from rlsched.decide.scheduler import Decision
from rlsched.decide.start import start_action
from rlsched.errors import AllocationError
from rlsched_envs.sim import loop, moves
from rlsched_envs.sim.attempt_log import PreemptionCosts, RunRules
from rlsched_envs.sim.engine import Engine
from tests.quick import quick
from tests.support.sim.play import Scripted, attempts, run, trace_of

TWO = [(0.0, 100.0, 1.0), (10.0, 20.0, 1.0)]
"""On one GPU: `a` runs from 0, `b` arrives at 10, and the script starts it at 30."""


class TestWorkKeptByAnInterruption:
    def test_all_of_it_by_default(self) -> None:
        table = run(trace_of(TWO), Scripted({30.0: [0]}, {30.0: [1]}))
        assert attempts(table) == [
            ("a", 1, 0, 30, "preempted", 30),
            ("b", 1, 30, 50, "ended", 20),
            ("a", 2, 50, 160, "ended", 70),  # 40 s of restart cost, then the remaining 70 s
        ]
        assert table.start_s.tolist() == [0, 30]
        assert table.end_s.tolist() == [160, 50]

    def test_work_up_to_the_last_checkpoint(self) -> None:
        trace = trace_of(TWO, checkpoint_s=[25.0, math.nan])
        table = run(trace, Scripted({30.0: [0], 120.0: [0]}, {30.0: [1]}))
        assert attempts(table) == [
            ("a", 1, 0, 30, "preempted", 25),
            ("b", 1, 30, 50, "ended", 20),
            ("a", 2, 50, 165, "ended", 75),  # no job waits at 120, so the scheduler is not called
        ]

    def test_checkpoints_count_work_over_all_attempts(self) -> None:
        jobs = [*TWO, (115.0, 5.0, 1.0)]
        trace = trace_of(jobs, checkpoint_s=[25.0, math.nan, math.nan], restart_s=[10.0, 10.0, 10.0])
        table = run(trace, Scripted({30.0: [0], 119.0: [0]}, {30.0: [1], 119.0: [2]}))
        assert attempts(table)[2:] == [
            ("a", 2, 50, 119, "preempted", 50),  # 59 s of work from 25 on: 84, saved at 75
            ("c", 1, 119, 124, "ended", 5),
            ("a", 3, 124, 159, "ended", 25),
        ]

    def test_attempt_shorter_than_its_restart_cost_keeps_nothing_and_pays_again(self) -> None:
        jobs = [*TWO, (60.0, 5.0, 1.0)]
        table = run(trace_of(jobs), Scripted({30.0: [0], 70.0: [0]}, {30.0: [1], 70.0: [2]}))
        assert attempts(table)[2:] == [
            ("a", 2, 50, 70, "preempted", 0),
            ("c", 1, 70, 75, "ended", 5),
            ("a", 3, 75, 185, "ended", 70),
        ]

    def test_nothing_is_lost_with_continuous_checkpoints(self) -> None:
        table = run(trace_of(TWO, checkpoint_s=[0.0, 0.0]), Scripted({30.0: [0]}, {30.0: [1]}))
        assert attempts(table)[0] == ("a", 1, 0, 30, "preempted", 30)


class TestRestartCosts:
    @pytest.mark.parametrize(("gpus", "cost_s"), [(8, 40.0), (9, 60.0)])
    def test_default_is_that_of_lucid(self, gpus: int, cost_s: float) -> None:
        table = run(trace_of([(0, 100, gpus), (10, 20, gpus)]), Scripted({30.0: [0]}, {30.0: [1]}), gpus=gpus)
        assert table.end_s.tolist() == [50 + cost_s + 70, 50]

    def test_cost_in_the_trace_overrides_that_of_the_run(self) -> None:
        costs = PreemptionCosts(restart_s=7.0, restart_large_s=9.0, large_gpus=1)
        rules = RunRules(costs=costs)
        script = {30.0: [0]}, {30.0: [1]}
        assert run(trace_of(TWO), Scripted(*script), rules=rules).end_s[0] == 50 + 7 + 70
        trace = trace_of(TWO, restart_s=[3.5, math.nan])
        assert run(trace, Scripted(*script), rules=rules).end_s[0] == 50 + 3.5 + 70


class TestPreemptibleJobs:
    def test_not_a_job_that_is_not_preemptible(self) -> None:
        trace = trace_of(TWO, preemptible=["false", ""])
        with pytest.raises(AllocationError, match="job 0 must not be preempted"):
            run(trace, Scripted({30.0: [0]}))

    def test_not_a_job_started_at_this_instant(self) -> None:
        state = ClusterState.from_spec(ClusterSpec.uniform(1, 1), OrderedQueue(Order(by="area")))
        seq = state.add_job(num_gpus=1, submit_s=0.0, predicted_s=1.0, spread=1.0)
        state.start(seq, [0], 3.0)
        before = state.digest()
        with pytest.raises(AllocationError, match=r"job 0 started at this instant, 3.0 s"):
            apply(state, Decision(action=Preempt(seq), source="rule"), 3.0)
        assert state.digest() == before
        apply(state, Decision(action=Preempt(seq), source="rule"), 4.0)
        assert state.waiting(0) == [seq]

    def test_not_a_waiting_job(self) -> None:
        with pytest.raises(AllocationError, match="job 1 is not running"):
            run(trace_of(TWO), Scripted({30.0: [1]}))


def test_waiting_job_has_its_earlier_attempts() -> None:
    engine = Engine(trace_of([(0, 100, 2), (10, 20, 2)]), ClusterSpec.uniform(1, 2), order=Order())
    seen = {}

    class Looking(Scripted):
        def next_action(self, state: ClusterState, partition: int, now_s: float) -> Action:
            job = state.arrays.job[state.slot_of(0)]
            names = ("attempt", "preemptions", "generation", "attained_gpu_s", "overhead_left_s")
            seen[now_s] = tuple(job[name].item() for name in names)
            return super().next_action(state, partition, now_s)

    engine.run(Looking({30.0: [0]}, {30.0: [1]}))
    assert seen[10.0] == (1, 0, 0, 0.0, 0.0)
    assert seen[30.0] == (2, 1, 1, 60.0, 40.0)


def test_compiled_preemption_keeps_work() -> None:
    engine = Engine(
        trace_of(TWO, preemptible=["false", "true"], fail_after_s=["", "1000"]),
        ClusterSpec.uniform(1, 2),
        order=Order(),
    )
    log, run_now = engine.log, engine.arrays.progress.run[0]
    assert log is not None
    start, preempt = (
        loop.for_run(one, None, logged=True, modelled=False) for one in (moves.start, moves.preempt)
    )
    for _ in range(2):
        assert engine.advance()
        slot = int(engine.state.queue(0)[0])
        assert start(engine.arrays, 0, start_of(slot, -1), PLAIN_START)
    run_now.now_s = 15.0
    preempt(engine.arrays, 1)
    assert engine.state.waiting(0) == [1]
    assert log.jobs.saved_s.tolist() == [0.0, 5.0]
    assert engine.advance()
    assert engine.now_s == 100.0


class TestTimers:
    def test_wait_ends_at_its_time_or_at_the_next_event(self) -> None:
        scheduler = Scripted({30.0: [], 45.0: []})
        run(trace_of([(0, 100, 1), (10, 20, 1), (20, 20, 1)]), scheduler)
        assert scheduler.asked_at == [0, 10, 20, 30, 45, 100, 100, 120]

    def test_no_call_while_no_job_waits(self) -> None:
        scheduler = Scripted({30.0: [], 45.0: []})
        run(trace_of([(0, 100, 1)]), scheduler)
        assert scheduler.asked_at == [0]

    def test_wait_until_now_is_refused(self) -> None:
        state = ClusterState.from_spec(ClusterSpec.uniform(1, 1), OrderedQueue(Order(by="area")))
        with pytest.raises(AllocationError, match=r"until_s after now, 5.0 s; got 5.0 s"):
            apply(state, Decision(action=Wait(until_s=5.0), source="rule"), 5.0)


def test_preempted_job_can_start_elsewhere_at_the_same_instant() -> None:
    spec = ClusterSpec(name="two", nodes=(NodeGroup(gpus=1, vc="v"), NodeGroup(gpus=1)))
    trace = trace_of([(0, 40, 1), (0, 100, 1), (10, 20, 1)], vc=["v", "v", ""])

    class ForTheStranger(Scripted):
        """Preempts b for c, the only job that fits the shared node only, once a has left b's own node."""

        def next_action(self, state: ClusterState, partition: int, now_s: float) -> Action:
            if state.partition_names[partition] == "shared" and now_s >= 40.0:
                if 1 in state.running():
                    return Preempt(1)
                if 2 in state.waiting(partition):
                    return start_action(state, partition, 2)
                return Wait()
            return super().next_action(state, partition, now_s)

    table = Engine(trace, spec, order=Order(), oracle=True).run(ForTheStranger({}))
    assert [one[:4] for one in attempts(table)] == [
        ("a", 1, 0, 40),
        ("b", 1, 0, 40),
        ("b", 2, 40, 140),  # on its own node, whose partition was called earlier
        ("c", 1, 40, 60),
    ]
    assert table.gpus == [(0,), (0,), (1,)]


@pytest.mark.parametrize(
    "name",
    quick(
        ["fifo", "sjf", "qssf", "fifo-backfill", "sjf-backfill", "qssf-backfill"],
        {"fifo", "qssf-backfill"}.__contains__,
    ),
)
def test_logging_attempts_without_interruptions_changes_nothing(name: str) -> None:
    rng = np.random.default_rng(1)
    submit = np.sort(rng.integers(0, 300, 200)).astype(float)
    jobs = list(zip(submit, rng.integers(0, 60, 200), rng.integers(1, 7, 200), strict=True))
    ids = [str(k) for k in range(200)]
    policy, spec = Policy(name), ClusterSpec.uniform(2, 4)
    plain, logged = trace_of(jobs, ids=ids), trace_of(jobs, ids=ids, fail_after_s=["1000"] * 200)
    tables = []
    for trace in (plain, logged):
        for compiled in (True, False):
            engine = Engine(trace, spec, order=policy.rule.order, oracle=True)
            assert (engine.log is not None) == (trace is logged)
            tables.append(engine.run_rule(policy.rule) if compiled else engine.run(RuleScheduler(policy)))
    for table in tables[1:]:
        np.testing.assert_array_equal(table.start_s, tables[0].start_s)
        np.testing.assert_array_equal(table.end_s, tables[0].end_s)
        assert table.gpus == tables[0].gpus
