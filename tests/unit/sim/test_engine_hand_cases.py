"""Schedules on tiny clusters, solved by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.decide.actions import Start
from rlsched.decide.order.keys import Order
from rlsched.decide.policies.policy import Policy
from rlsched.decide.record import DecisionRecord
from rlsched.decide.rule_scheduler import RuleScheduler
from rlsched.decisions.decision_text import done
from rlsched.workload.load import NO_GPU
from rlsched.workload.trace import Trace
from rlsched_envs.sim.engine import Engine, PredictedTimes
from rlsched_envs.sim.job_table import JobTable

NAN = math.nan
GREEDY = ("fifo", "fifo-backfill", "qssf", "qssf-backfill", "sjf", "sjf-backfill")

# submit, duration, GPUs, predicted run time
STEPS = [(0, 10, 3, 1), (1, 5, 2, 40), (2, 2, 1, 100), (3, 1, 4, 6), (4, 4, 1, 20), (4, 3, 1, 30)]
"""On 4 GPUs. Predicted GPU-time: 3, 80, 100, 24, 20, 30."""
SERVICE = [(0, 10, 2, 1), (1, 4, 2, 5), (1, 6, 1, 6), (1, 8, 1, 12)]
"""On 2 GPUs. Predicted GPU-time: 2, 10, 6, 12: job 2 is the second by run time and the first by service."""


def trace_of(jobs: Sequence[tuple[float, ...]], vc: Sequence[str] | None = None) -> Trace:
    submit, duration, gpus = ([job[k] for job in jobs] for k in range(3))
    optional = {} if vc is None else {"vc": list(vc)}
    return Trace.from_columns(name="hand", submit_s=submit, duration_s=duration, num_gpus=gpus, **optional)


def play(
    jobs: Sequence[tuple[float, ...]],
    spec: ClusterSpec,
    name: str = "fifo",
    vc: Sequence[str] | None = None,
    *,
    compiled: bool = True,
) -> JobTable:
    trace, policy = trace_of(jobs, vc), Policy(name)
    predictions = None
    if not policy.oracle:
        predictions = PredictedTimes(
            np.array([job[3] if len(job) > 3 else job[1] for job in jobs], float), np.ones(len(jobs))
        )
    engine = Engine(trace, spec, order=policy.rule.order, predictions=predictions, oracle=policy.oracle)
    return engine.run_rule(policy.rule) if compiled else engine.run(RuleScheduler(policy))


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(
    ("name", "starts"),
    [
        ("fifo", [0, 10, 10, 15, 16, 16]),
        ("fifo-backfill", [0, 10, 2, 15, 4, 8]),
        ("sjf", [0, 11, 2, 10, 11, 11]),
        ("sjf-backfill", [0, 10, 2, 15, 7, 4]),
        ("qssf", [0, 11, 11, 10, 4, 11]),
        ("qssf-backfill", [0, 10, 2, 15, 4, 8]),
    ],
)
def test_six_jobs_on_four_gpus(name: str, starts: list[float], compiled: bool) -> None:
    table = play(STEPS, ClusterSpec.uniform(1, 4), name, compiled=compiled)
    assert table.start_s.tolist() == starts
    assert table.end_s.tolist() == [start + job[1] for start, job in zip(starts, STEPS, strict=True)]


@pytest.mark.parametrize(
    ("name", "starts"),
    [
        ("fifo", [0, 10, 14, 14]),
        ("fifo-backfill", [0, 10, 14, 14]),
        ("sjf", [0, 10, 14, 14]),
        ("sjf-backfill", [0, 10, 14, 14]),
        ("qssf", [0, 16, 10, 20]),
        ("qssf-backfill", [0, 18, 10, 10]),
    ],
)
def test_qssf_orders_by_service(name: str, starts: list[float]) -> None:
    assert play(SERVICE, ClusterSpec.uniform(1, 2), name).start_s.tolist() == starts


class TestTies:
    def test_end_frees_gpus_for_an_arrival_of_the_same_second(self) -> None:
        assert play([(0, 10, 1), (10, 5, 1)], ClusterSpec.uniform(1, 1)).start_s.tolist() == [0, 10]

    def test_arrivals_of_an_instant_are_sorted_before_anything_starts(self) -> None:
        table = play([(0, 10, 1), (5, 8, 1), (10, 2, 1)], ClusterSpec.uniform(1, 1), "sjf")
        assert table.start_s.tolist() == [0, 12, 10]

    def test_both_ends_of_an_instant_come_before_the_decision(self) -> None:
        table = play(
            [(0, 10, 1), (0, 10, 1), (1, 5, 1), (2, 5, 2)], ClusterSpec.uniform(1, 2), "sjf-backfill"
        )
        assert table.start_s.tolist() == [0, 0, 10, 15]
        table = play([(0, 10, 1), (0, 10, 1), (2, 5, 2)], ClusterSpec.uniform(1, 2))
        assert table.start_s.tolist() == [0, 0, 10]

    @pytest.mark.parametrize("name", GREEDY)
    def test_row_order_breaks_equal_keys(self, name: str) -> None:
        assert play([(0, 3, 1)] * 4, ClusterSpec.uniform(1, 1), name).start_s.tolist() == [0, 3, 6, 9]

    def test_equal_durations_are_ordered_by_submission(self) -> None:
        jobs = [(0, 10, 1), (4, 3, 1), (1, 3, 1)]
        table = play(jobs, ClusterSpec.uniform(1, 1), "sjf")
        assert table.trace.submit_s.tolist() == [0, 1, 4]
        assert table.start_s.tolist() == [0, 10, 13]


class TestPartitions:
    SPEC = ClusterSpec(
        name="vcs", nodes=(NodeGroup(gpus=2), NodeGroup(gpus=2, vc="b"), NodeGroup(gpus=2, vc="a"))
    )
    """GPUs 0, 1 serve all; 2, 3 are b's; 4, 5 are a's."""

    def test_own_nodes_first_then_shared(self) -> None:
        jobs = [(0, 10, 2), (0, 20, 2), (0, 5, 2), (0, 7, 2), (0, 5, 2)]
        table = play(jobs, self.SPEC, "fifo", ["a", "a", "a", "b", "b"])
        assert table.start_s.tolist() == [0, 0, 10, 0, 7]
        assert table.gpus == [(4, 5), (0, 1), (4, 5), (2, 3), (2, 3)]
        assert [int(table.gpu_node[gpus[0]]) for gpus in table.gpus] == [2, 0, 2, 1, 1]

    def test_without_a_vc_only_shared_nodes_serve(self) -> None:
        table = play([(0, 10, 2), (0, 10, 2)], self.SPEC, "fifo", ["", ""])
        assert table.start_s.tolist() == [0, 10]
        assert table.gpus == [(0, 1), (0, 1)]

    def test_vc_without_nodes_uses_the_shared_ones(self) -> None:
        assert play([(0, 10, 1)], self.SPEC, "fifo", ["stranger"]).gpus == [(0,)]

    def test_blocked_head_blocks_only_its_partition(self) -> None:
        spec = ClusterSpec(name="two", nodes=(NodeGroup(gpus=2, vc="a"), NodeGroup(gpus=2, vc="b")))
        jobs = [(0, 10, 1), (1, 5, 2), (2, 5, 1), (2, 5, 1)]
        assert play(jobs, spec, "fifo", ["a", "a", "a", "b"]).start_s.tolist() == [0, 10, 15, 2]

    def test_gang_stays_inside_one_partition(self) -> None:
        table = play([(0, 10, 4), (0, 10, 2)], self.SPEC, "fifo", ["a", "a"])
        assert table.rejected.tolist() == [True, False]
        assert table.reject_reason[0] == "gang of 4 GPUs is larger than VC 'a' holds"

    def test_vc_named_shared_keeps_its_nodes(self) -> None:
        spec = ClusterSpec(name="odd", nodes=(NodeGroup(gpus=1, vc="a"), NodeGroup(gpus=1, vc="shared")))
        table = play([(0, 10, 1), (0, 10, 1), (0, 10, 1)], spec, "fifo", ["a", "a", "shared"])
        assert table.start_s.tolist() == [0, 10, 0]
        assert table.gpus == [(0,), (0,), (1,)]


class TestGangs:
    def test_whole_nodes_then_the_remainder_where_most_is_free(self) -> None:
        table = play([(0, 10, 1), (0, 10, 5)], ClusterSpec.uniform(3, 2))
        assert table.start_s.tolist() == [0, 0]
        assert table.gpus == [(0,), (2, 3, 4, 5, 1)]

    def test_waits_for_whole_nodes(self) -> None:
        jobs = [(0, 10, 1), (0, 20, 2), (1, 5, 4), (2, 1, 1)]
        blocking = play(jobs, ClusterSpec.uniform(3, 2))
        assert blocking.start_s.tolist() == [0, 0, 10, 10 + 5]
        skipping = play(jobs, ClusterSpec.uniform(3, 2), "fifo-backfill")
        assert skipping.start_s.tolist() == [0, 0, 10, 2]

    def test_free_gpus_on_different_nodes_do_not_hold_a_job(self) -> None:
        jobs = [(0, 5, 1), (0, 10, 1), (0, 5, 1), (0, 10, 1), (6, 1, 2)]
        table = play(jobs, ClusterSpec.uniform(2, 2))
        assert table.gpus[:4] == [(0,), (1,), (2,), (3,)]
        assert table.start_s.tolist() == [0, 0, 0, 0, 10]


class TestRejections:
    def test_rejected_jobs_are_named_and_change_nothing_else(self) -> None:
        jobs = [(0, 5, 12), (0, 5, 0), (0, 5, 1), (0, 5, 9), (1, 5, 2)]
        table = play(jobs, ClusterSpec.uniform(2, 4), "fifo")
        assert table.rejected.tolist() == [True, True, False, True, False]
        assert table.reject_reason.tolist() == [
            "gang of 12 GPUs is larger than the cluster holds",
            NO_GPU,
            "",
            "gang of 9 GPUs is larger than the cluster holds",
            "",
        ]
        np.testing.assert_array_equal(table.start_s, [NAN, NAN, 0, NAN, 1])
        np.testing.assert_array_equal(table.end_s, [NAN, NAN, 5, NAN, 6])
        assert table.gpus[0] == table.gpus[3] == ()
        assert table.decisions == 2

    def test_vc_without_any_nodes(self) -> None:
        spec = ClusterSpec(name="a", nodes=(NodeGroup(gpus=2, vc="a"),))
        table = play([(0, 5, 1), (0, 5, 1), (0, 5, 1)], spec, "fifo", ["a", "z", ""])
        assert table.rejected.tolist() == [False, True, True]
        assert table.reject_reason[1] == "VC 'z' has no nodes"
        assert "no VC" in table.reject_reason[2]

    def test_nothing_can_run(self) -> None:
        table = play([(0, 5, 9)], ClusterSpec.uniform(1, 1))
        assert table.rejected.all()
        assert table.decisions == 0


class TestTimes:
    def test_everything_arrives_at_zero(self) -> None:
        assert play([(0, 4, 1), (0, 6, 1), (0, 5, 1)], ClusterSpec.uniform(1, 2)).start_s.tolist() == [
            0,
            0,
            4,
        ]

    @pytest.mark.parametrize(
        ("submit_s", "start_s"),
        [([1e6, 1e6 + 1], [1e6, 1e6 + 4]), ([0, 1000], [0, 1000])],
        ids=["late-begin", "gap-without-jobs"],
    )
    def test_idle_times(self, submit_s: list[float], start_s: list[float]) -> None:
        table = play([(at_s, 4, 1) for at_s in submit_s], ClusterSpec.uniform(1, 1))
        assert table.start_s.tolist() == start_s

    @pytest.mark.parametrize("compiled", [True, False])
    def test_zero_duration_holds_the_gpu_for_no_time(self, compiled: bool) -> None:
        table = play([(0, 0, 1), (0, 5, 1), (0, 0, 1)], ClusterSpec.uniform(1, 1), compiled=compiled)
        assert table.start_s.tolist() == [0, 0, 5]
        assert table.end_s.tolist() == [0, 5, 5]

    def test_recorded_ends_replace_durations(self) -> None:
        trace = trace_of([(0, 4, 1), (0, 4, 1), (0, 4, 1)])
        rule = Policy("fifo").rule
        engine = Engine(
            trace, ClusterSpec.uniform(1, 1), order=rule.order, fixed_end_s=np.array([7.5, NAN, 20.0])
        )
        table = engine.run_rule(rule)
        assert table.start_s.tolist() == [0, 7.5, 11.5]
        assert table.end_s.tolist() == [7.5, 11.5, 20.0]


@pytest.mark.parametrize(("jobs", "compiled"), [(2500, True), (1100, False)])
def test_more_live_jobs_than_slots(jobs: int, compiled: bool) -> None:
    table = play([(0, 2, 1)] * jobs, ClusterSpec.uniform(1, 4), compiled=compiled)
    assert table.start_s.tolist() == [2 * (row // 4) for row in range(jobs)]
    assert not np.isnan(table.end_s).any()


def test_engine_keeps_one_order() -> None:
    engine = Engine(trace_of([(0, 1, 1)]), ClusterSpec.uniform(1, 1), order=Order())
    with pytest.raises(ValueError, match="by='area'"):
        engine.run_rule(Policy("qssf").rule)
    with pytest.raises(ValueError, match="by='area'"):
        engine.run(RuleScheduler(Policy("qssf")))


def test_records_name_jobs_as_the_trace_does_and_nodes_as_the_cluster_does() -> None:
    trace = Trace.from_columns(
        name="named", submit_s=[0, 1], duration_s=[5, 5], num_gpus=[4, 2], job_id=["a-17", "b-3"]
    )
    engine = Engine(trace, ClusterSpec.uniform(1, 4), order=Policy("fifo").rule.order)
    records: list[DecisionRecord] = []
    engine.run(RuleScheduler(Policy("fifo")), on_record=records.append)
    starts = [(one.action, one.names) for one in records if isinstance(one.action, Start)]
    assert [names.jobs[action.seq] for action, names in starts] == ["a-17", "b-3"]
    told = [done(one) for one in records]
    assert any(one.startswith("start job b-3 on 2 GPUs: node ") for one in told)
    assert not any("internal" in one for one in told)
