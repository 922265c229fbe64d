"""Tiresias and SRTF on clusters so small that every attempt can be worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from rlsched.cluster.arrays import NODE_DOWN, NODE_DRAINED, NODE_UP
from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.decide.order.keys import Order
from rlsched.decide.policies.policy import Policy
from rlsched.decide.registry import load_scheduler
from rlsched.decide.rule_scheduler import RuleScheduler
from rlsched.decide.rules.steps import RULES
from rlsched.decide.scheduler import Scheduler
from rlsched.errors import InputError
from rlsched.workload.synth import synthesize
from rlsched.workload.trace import Trace
from rlsched_envs.sim.attempt_arrays import PREEMPTED
from rlsched_envs.sim.attempt_log import RunRules
from rlsched_envs.sim.engine import Engine
from rlsched_envs.sim.node_events import NodeEvent
from tests.support.sim.play import attempts, trace_of

Span = tuple[str, float, float]
"""Job, start and end of an attempt."""


def spans(trace: Trace, policy: Policy, spec: ClusterSpec, *, events: Sequence[NodeEvent] = ()) -> list[Span]:
    """Every attempt, by start, then job."""
    rules = RunRules(node_events=tuple(events))
    engine = Engine(trace, spec, order=policy.rule.order, oracle=True, rules=rules)
    return [(job, start_s, end_s) for job, _, start_s, end_s, _, _ in attempts(engine.run_rule(policy.rule))]


SRTF = Policy("srtf")


def tiresias(threshold_gpu_s: float = 18_000.0) -> Policy:
    return Policy("tiresias", preempt={"threshold_gpu_s": threshold_gpu_s})


def by_service(threshold_gpu_s: float) -> Policy:
    """The two queues of Tiresias, and preemption that makes room for one job."""
    return Policy(preempt={"by": "service", "threshold_gpu_s": threshold_gpu_s})


class TestTiresias:
    def test_more_than_the_threshold_demotes_at_the_next_tick(self) -> None:
        """At 600 s job a has had 600 GPU-s, not more. At 660 s it has, and b of the first queue is next."""
        trace = trace_of([(0, 1000, 1), (30, 100, 1)])
        assert spans(trace, tiresias(600.0), ClusterSpec.uniform(1, 1)) == [
            ("a", 0, 660),
            ("b", 660, 760),
            ("a", 780, 780 + 40 + 340),  # at the next tick, 40 s for the restart, and what is left
        ]

    def test_service_is_counted_in_gpu_seconds(self) -> None:
        trace = trace_of([(0, 1000, 4), (30, 100, 4)])
        assert spans(trace, tiresias(600.0), ClusterSpec.uniform(1, 4))[0] == ("a", 0, 180)

    def test_inside_a_queue_the_first_submitted_comes_first(self) -> None:
        trace = trace_of([(0, 500, 1), (10, 1, 1), (20, 300, 1)])
        assert spans(trace, tiresias(), ClusterSpec.uniform(1, 1)) == [
            ("a", 0, 500),
            ("b", 540, 541),
            ("c", 600, 900),
        ]

    def test_a_demoted_job_never_comes_back_to_the_first_queue(self) -> None:
        """Job a waits ever longer, and still gives way to c, which came much later."""
        trace = trace_of([(0, 200, 1), (1, 100, 1), (250, 60, 1)])
        assert spans(trace, tiresias(60.0), ClusterSpec.uniform(1, 1)) == [
            ("a", 0, 120),
            ("b", 120, 220),  # at 240 it has ended
            ("a", 240, 300),  # 40 s of restart, 20 s of work
            ("c", 300, 360),
            ("a", 360, 360 + 40 + 60),
        ]

    def test_the_walk_takes_the_later_of_two_demoted_jobs(self) -> None:
        """Two GPUs: a and b are both demoted; c needs one, and quota runs out at b."""
        trace = trace_of([(0, 900, 1), (0, 900, 1), (70, 30, 1)])
        assert spans(trace, tiresias(60.0), ClusterSpec.uniform(1, 2)) == [
            ("a", 0, 900),
            ("b", 0, 120),
            ("c", 120, 150),
            ("b", 180, 180 + 40 + 780),
        ]

    @pytest.mark.parametrize(("gpus", "cost_s"), [(8, 40), (9, 60)])
    def test_what_a_preemption_costs(self, gpus: int, cost_s: float) -> None:
        trace = trace_of([(0, 200, gpus), (1, 60, gpus)])
        assert spans(trace, tiresias(60.0), ClusterSpec.uniform(1, gpus)) == [
            ("a", 0, 60),
            ("b", 60, 120),
            ("a", 120, 120 + cost_s + 140),
        ]

    def test_a_job_that_must_not_be_preempted_keeps_its_gpu(self) -> None:
        trace = trace_of([(0, 500, 1), (30, 100, 1)], preemptible=["false", ""])
        assert spans(trace, tiresias(60.0), ClusterSpec.uniform(1, 1)) == [("a", 0, 500), ("b", 540, 640)]

    def test_its_threshold_is_a_setting(self) -> None:
        assert Policy("tiresias") == tiresias()
        assert Policy("tiresias").rule.options.threshold_gpu_s == 18_000
        rule = tiresias(600.5).rule
        assert rule.steps is RULES["las"]
        assert (rule.options.threshold_gpu_s, rule.options.tick_s) == (600.5, 60.0)

    @pytest.mark.parametrize("threshold", [-1.0, math.nan, -math.inf])
    def test_a_threshold_out_of_range_is_refused(self, threshold: float) -> None:
        with pytest.raises(
            InputError, match=f"threshold_gpu_s: expected GPU-seconds, 0 or more, got {threshold:g}"
        ):
            tiresias(threshold)


class TestByService:
    """Preemption by `service`: the two queues, and preemption that makes room for one job."""

    def test_a_demoted_job_gives_way_and_one_of_the_same_queue_does_not(self) -> None:
        """At 660 s a is demoted, and b takes its place; c, of b's queue, waits until b has ended.

        Unlike in the quota walk a goes on at once, and not at the next tick.
        """
        trace = trace_of([(0, 1000, 1), (30, 100, 1), (31, 10, 1)])
        assert spans(trace, by_service(600.0), ClusterSpec.uniform(1, 1)) == [
            ("a", 0, 660),
            ("b", 660, 760),
            ("c", 760, 770),
            ("a", 770, 770 + 40 + 340),
        ]

    def test_only_those_on_one_node_give_way(self) -> None:
        """Two nodes of two GPUs: d needs two on one node. a and c hold one each, b both of its own.

        All three are demoted. Two GPUs are given up on either node, and that of a and c comes first.
        """
        trace = trace_of([(0, 300, 1), (0, 900, 2), (1, 300, 1), (100, 20, 2)])
        policy, spec = by_service(60.0), ClusterSpec.uniform(2, 2)
        found = spans(trace, policy, spec)
        assert found[:4] == [("a", 0, 100), ("b", 0, 900), ("c", 1, 100), ("d", 100, 120)]

    def test_it_is_the_same_through_the_scheduler_interface(self) -> None:
        trace, spec = synthesize("philly", 250, 1.2, 16, seed=4)
        policy, tables = by_service(18_000.0), []
        for compiled in (True, False):
            engine = Engine(trace, spec, order=policy.rule.order, oracle=True)
            tables.append(engine.run_rule(policy.rule) if compiled else engine.run(RuleScheduler(policy)))
        np.testing.assert_array_equal(tables[0].end_s, tables[1].end_s)
        assert (tables[0].log.reason == PREEMPTED).sum() > 20

    def test_its_settings_say_so(self) -> None:
        rule = by_service(600.5).rule
        assert rule.steps is RULES["gittins"]
        assert rule.order.index.threshold_gpu_s == 600.5
        assert RuleScheduler(by_service(600.5)).abilities.preempts


class TestShortestRemainingTimeFirst:
    def test_a_shorter_job_takes_over_and_the_other_pays(self) -> None:
        trace = trace_of([(0, 100, 1), (50, 10, 1)])
        assert spans(trace, SRTF, ClusterSpec.uniform(1, 1)) == [
            ("a", 0, 50),
            ("b", 50, 60),
            ("a", 60, 60 + 40 + 50),
        ]

    def test_what_is_left_counts_and_not_the_whole_job(self) -> None:
        """At 50 job a has 50 s left, fewer than b: it stays. At 90 it has 10, more than c."""
        trace = trace_of([(0, 100, 1), (50, 51, 1), (90, 9, 1)])
        assert spans(trace, SRTF, ClusterSpec.uniform(1, 1)) == [
            ("a", 0, 90),
            ("c", 90, 99),
            ("a", 99, 99 + 40 + 10),
            ("b", 149, 200),
        ]

    def test_restart_costs_are_part_of_what_is_left(self) -> None:
        """b leaves at 60: a has 50 + 40 s to go, c 80."""
        trace = trace_of([(0, 100, 1), (50, 10, 1), (55, 80, 1)])
        assert spans(trace, SRTF, ClusterSpec.uniform(1, 1)) == [
            ("a", 0, 50),
            ("b", 50, 60),
            ("c", 60, 140),
            ("a", 140, 230),
        ]

    def test_quota_is_no_place(self) -> None:
        """Two nodes of two GPUs: a and d give way to e, leaving one GPU on each; e needs two on one node.

        Until c ends those GPUs are idle: a and d are behind e in the walk, and have no quota.
        """
        trace = trace_of([(0, 300, 1), (1, 100, 1), (2, 95, 1), (3, 200, 1), (10, 20, 2)])
        assert spans(trace, SRTF, ClusterSpec.uniform(2, 2)) == [
            ("a", 0, 10),
            ("b", 1, 101),
            ("c", 2, 97),
            ("d", 3, 10),
            ("d", 97, 97 + 40 + 193),
            ("e", 97, 117),
            ("a", 101, 101 + 40 + 290),
        ]

    def test_only_as_many_give_way_as_have_to(self) -> None:
        """Three GPUs: the job with most left gives way to one that needs one."""
        trace = trace_of([(0, 100, 1), (0, 300, 1), (0, 200, 1), (10, 20, 1)])
        assert spans(trace, SRTF, ClusterSpec.uniform(1, 3))[:4] == [
            ("a", 0, 100),
            ("b", 0, 10),
            ("c", 0, 200),
            ("d", 10, 30),
        ]

    def test_virtual_clusters_have_quotas_of_their_own(self) -> None:
        """The short job of VC y does not touch the long one of VC x; on shared nodes it does."""
        nodes = tuple(NodeGroup(count=1, gpus=1, vc=vc) for vc in ("x", "y"))
        trace = trace_of([(0, 100, 1), (0, 60, 1), (10, 5, 1)], vc=["x", "y", "y"])
        assert spans(trace, SRTF, ClusterSpec(name="c", nodes=nodes)) == [
            ("a", 0, 100),
            ("b", 0, 10),
            ("c", 10, 15),
            ("b", 15, 15 + 40 + 50),
        ]
        shared = ClusterSpec.uniform(2, 1)
        assert spans(trace, SRTF, shared)[:2] == [("a", 0, 10), ("b", 0, 60)]

    def test_nobody_makes_room_in_vain(self) -> None:
        """Two nodes of two GPUs; p must not be preempted, so that a gang of four finds no room until it ends.

        It has by far the least left, and would otherwise have kept three GPUs idle from 10 to 500.
        """
        trace = trace_of([(0, 500, 1), (0, 300, 2), (10, 5, 4)], preemptible=["false", "", ""])
        assert spans(trace, SRTF, ClusterSpec.uniform(2, 2)) == [
            ("a", 0, 500),
            ("b", 0, 300),
            ("c", 500, 505),
        ]

    def test_a_start_that_cannot_be_undone_gives_quota_back_at_once(self) -> None:
        """Three nodes of four: a and b leave one GPU on two; c must not be preempted, and is on the third.

        So d, which has quota for four GPUs on one node, finds them nowhere until c ends; e takes one at once.
        """
        trace = trace_of(
            [(0, 500, 3), (1, 500, 3), (10, 5, 2), (10, 6, 4), (10, 100, 1)],
            preemptible=["false", "false", "false", "", ""],
        )
        assert spans(trace, SRTF, ClusterSpec.uniform(3, 4)) == [
            ("a", 0, 500),
            ("b", 1, 501),
            ("c", 10, 15),
            ("e", 10, 110),
            ("d", 15, 21),
        ]

    def test_jobs_on_a_draining_node_stay_and_are_no_quota(self) -> None:
        drained = [NodeEvent(5.0, 0, NODE_DRAINED), NodeEvent(200.0, 0, NODE_UP)]
        trace = trace_of([(0, 100, 1), (0, 300, 1), (10, 20, 1)])
        assert spans(trace, SRTF, ClusterSpec.uniform(2, 1), events=drained) == [
            ("a", 0, 100),
            ("b", 0, 10),
            ("c", 10, 30),
            ("b", 30, 30 + 40 + 290),
        ]

    def test_a_node_that_fails_gives_its_jobs_back_to_the_walk(self) -> None:
        """a has lost its work, 100 s, and pays 40: that is less than the 190 s that b has left."""
        down = [NodeEvent(10.0, 0, NODE_DOWN), NodeEvent(1000.0, 0, NODE_UP)]
        trace = trace_of([(0, 100, 1), (0, 200, 1)])
        assert spans(trace, SRTF, ClusterSpec.uniform(2, 1), events=down) == [
            ("a", 0, 10),
            ("b", 0, 10),
            ("a", 10, 150),
            ("b", 150, 150 + 40 + 190),
        ]


def test_both_are_schedulers_that_preempt() -> None:
    for name, order, oracle in (("tiresias", Order(), False), ("srtf", Order(by="remaining"), True)):
        scheduler = load_scheduler(name)
        assert isinstance(scheduler, Scheduler)
        assert scheduler.abilities.preempts
        assert (scheduler.name, scheduler.order, scheduler.oracle) == (name, order, oracle)
