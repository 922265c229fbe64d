"""Dependencies and arrays, solved by hand: times of eligibility, and refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlsched.cluster.spec import ClusterSpec
from rlsched.decide.order.keys import Order
from rlsched.errors import TraceError
from rlsched.workload.load import runnable_mask
from rlsched_agents.evaluate.metrics import queue_s, schedule_metrics
from rlsched_envs.sim.attempt_arrays import CANCELLED, ENDED
from rlsched_envs.sim.attempt_log import RunRules
from rlsched_envs.sim.engine import Engine
from tests.support.sim.play import Scripted, run, trace_of

NAN = math.nan


def times(table: object) -> tuple[list[float], list[float]]:
    return table.eligible_s.tolist(), table.start_s.tolist()  # type: ignore[attr-defined]


class TestDependencies:
    @pytest.mark.parametrize("compiled", [True, False])
    def test_job_is_eligible_once_all_its_dependencies_have_ended(self, compiled: bool) -> None:
        trace = trace_of([(0, 10, 1), (0, 25, 1), (1, 5, 1), (2, 5, 1)], depends_on=["", "", "a;b", "a"])
        table = run(trace, "fifo", gpus=4, compiled=compiled)
        assert times(table) == ([0, 0, 25, 10], [0, 0, 25, 10])
        assert queue_s(table).tolist() == [0, 0, 0, 0]

    def test_every_kind_of_end_counts(self) -> None:
        trace = trace_of(
            [(0, 10, 1), (1, 5, 1)], depends_on=["", "a"], time_limit_s=[4.0, NAN], fail_after_s=["3", ""]
        )
        table = run(trace, "fifo", gpus=2)
        assert table.end_s.tolist() == [7, 12]  # fails at 3, is killed after 4 s of its second attempt

    def test_fifo_order_is_by_eligibility(self) -> None:
        trace = trace_of([(0, 10, 1), (1, 5, 1), (2, 5, 1)], depends_on=["", "a", ""])
        table = run(trace, "fifo")
        assert times(table) == ([0, 10, 2], [0, 15, 10])
        assert queue_s(table).tolist() == [0, 5, 8]

    def test_jobs_freed_together_are_in_row_order_before_new_submissions(self) -> None:
        # a and b end at 10, in this order; they free d and c
        trace = trace_of(
            [(0, 10, 1), (0, 10, 1), (1, 5, 2), (1, 5, 2), (10, 5, 2)], depends_on=["", "", "b", "a", ""]
        )
        assert times(run(trace, "fifo", gpus=2)) == ([0, 0, 10, 10, 10], [0, 0, 10, 15, 20])

    def test_chains_of_jobs_of_zero_length(self) -> None:
        trace = trace_of([(0, 0, 1), (0, 0, 1), (0, 3, 1)], depends_on=["", "a", "b"])
        assert times(run(trace, "fifo")) == ([0, 0, 0], [0, 0, 0])

    def test_on_a_job_submitted_later(self) -> None:
        trace = trace_of([(0, 5, 1), (20, 10, 1)], depends_on=["b", ""])
        assert times(run(trace, "fifo")) == ([30, 20], [30, 20])

    def test_more_freed_at_once_than_there_are_slots(self) -> None:
        jobs = [(0.0, 10.0, 1.0)] + [(0.0, 1.0, 1.0)] * 2100
        ids = [str(k) for k in range(len(jobs))]
        table = run(trace_of(jobs, ids=ids, depends_on=["", *(["0"] * 2100)]), "fifo", gpus=2)
        assert table.start_s[1:].tolist() == [10 + k // 2 for k in range(2100)]

    def test_job_outside_the_window_counts_as_ended(self) -> None:
        trace = trace_of([(0, 10, 1), (1, 5, 1), (2, 5, 1)], depends_on=["", "a", "b"])
        assert times(run(trace.select(slice(1, None)), "fifo", gpus=2)) == ([1, 6], [1, 6])

    @pytest.mark.parametrize(
        ("kind", "eligible_s"),
        [("after", [2, 2]), ("afterany", [12, 7]), ("afterok", [12, NAN]), ("afternotok", [NAN, 7])],
    )
    def test_kinds(self, kind: str, eligible_s: list[float]) -> None:
        """Job b starts at 2 and completes; job c starts at 2 and fails."""
        trace = trace_of(
            [(0, 2, 4), (0, 10, 1), (0, 10, 1), (0, 1, 1), (0, 1, 1)],
            depends_on=["", "", "", f"{kind}:b", f"{kind}:c"],
            fail_after_s=["", "", "5", "", ""],
        )
        table = run(trace, "fifo", gpus=4, rules=RunRules(max_retries=0))
        np.testing.assert_array_equal(table.eligible_s[3:], eligible_s)
        np.testing.assert_array_equal(table.start_s[3:], eligible_s)
        assert table.ended_by is not None
        lost = [CANCELLED if math.isnan(at_s) else ENDED for at_s in eligible_s]
        assert table.ended_by[3:].tolist() == lost
        assert schedule_metrics(table, 4).unfinished == 0
        assert schedule_metrics(table, 4).by_end["cancelled"] == lost.count(CANCELLED)

    def test_restart_of_the_other_job_is_no_second_start(self) -> None:
        trace = trace_of(
            [(0, 10, 1), (0, 20, 1), (0, 1, 1)],
            depends_on=["", "", "after:a;afterany:b"],
            fail_after_s=["2;3", "", ""],
            restart_s=[0.0, 0.0, 0.0],
        )
        assert times(run(trace, "fifo", gpus=4)) == ([0, 0, 20], [0, 0, 20])

    def test_cancelled_job_has_ended_for_its_dependents(self) -> None:
        trace = trace_of(
            [(0, 10, 1), (0, 1, 1), (0, 1, 1), (0, 1, 1), (0, 1, 1), (0, 1, 1)],
            depends_on=["", "afternotok:a", "afterok:b", "afternotok:c", "after:b", "afternotok:b;d"],
        )
        table = run(trace, "fifo", gpus=4)
        np.testing.assert_array_equal(table.start_s, [0, NAN, NAN, 10, 10, 11])

    def test_job_submitted_after_its_dependency_failed_is_cancelled(self) -> None:
        trace = trace_of(
            [(0, 10, 1), (20, 1, 1), (20, 1, 1)],
            depends_on=["", "afterok:a", "afterany:b"],
            fail_after_s=["5", "", ""],
        )
        table = run(trace, "fifo", gpus=4, rules=RunRules(max_retries=0))
        np.testing.assert_array_equal(table.start_s, [0, NAN, 20])

    def test_cancelled_task_leaves_its_place_to_the_next(self) -> None:
        trace = trace_of(
            [(0, 9, 1), (0, 2, 1), (0, 2, 1), (0, 2, 1)],
            array_id=["", "x", "x", "x"],
            array_limit=[NAN, 1.0, 1.0, 1.0],
            depends_on=["", "", "afternotok:a", ""],
        )
        np.testing.assert_array_equal(run(trace, "fifo", gpus=4).start_s, [0, 0, NAN, 2])

    def test_singleton_waits_for_all_earlier_jobs_of_its_name_and_user(self) -> None:
        trace = trace_of(
            [(0, 9, 1), (0, 20, 1), (0, 4, 1), (0, 1, 1), (0, 2, 1), (0, 1, 1)],
            user=["u", "v", "u", "u", "u", "u"],
            job_name=["x", "x", "x", "y", "x", "x"],
            depends_on=["", "", "singleton", "singleton", "", "singleton"],
        )
        assert run(trace, "fifo", gpus=9).start_s.tolist() == [0, 0, 9, 0, 0, 13]

    def test_singleton_also_waits_for_jobs_before_a_cancelled_singleton(self) -> None:
        trace = trace_of(
            [(0, 9, 1), (0, 2, 1), (0, 1, 1), (0, 1, 1)],
            job_name=["x", "y", "x", "x"],
            depends_on=["", "", "singleton;afternotok:b", "singleton"],
        )
        np.testing.assert_array_equal(run(trace, "fifo", gpus=9).start_s, [0, 0, NAN, 9])

    def test_on_a_job_that_can_never_run(self) -> None:
        trace = trace_of([(0, 10, 9), (1, 5, 1), (2, 5, 1), (3, 5, 1)], depends_on=["", "a", "b", ""])
        assert runnable_mask(trace, ClusterSpec.uniform(1, 2)).reasons.tolist() == [
            "gang of 9 GPUs is larger than the cluster holds",
            "depends on job a, which can never run",
            "depends on job b, which can never run",
            "",
        ]
        assert run(trace, "fifo", gpus=2).rejected.tolist() == [True, True, True, False]

    @pytest.mark.parametrize(
        ("depends_on", "message"),
        [
            (["", "z", ""], "row 2, column 'depends_on': expected ids of jobs of this trace, .* got 'z'"),
            (["", "b", ""], "row 2, column 'depends_on': expected ids of other jobs than this one, got 'b'"),
            (["b", "c", "b"], "row 2, column 'depends_on': expected no circle .*, got 'c'"),
            (["b;c", "a", ""], "row 1, column 'depends_on': expected no circle .*, got 'b;c'"),
            (["", "after:z", ""], "row 2, column 'depends_on': expected ids of jobs .* got 'after:z'"),
            (["", "afterok:b", ""], "row 2, column 'depends_on': expected ids of other jobs than this one"),
            (["", "a;", ""], "row 2, column 'depends_on': expected ids of jobs .* got ''"),
        ],
    )
    def test_invalid_values_are_refused(self, depends_on: list[str], message: str) -> None:
        with pytest.raises(TraceError, match=f"hand: {message}"):
            trace_of([(0, 1, 1)] * 3, depends_on=depends_on)


class TestArrays:
    @pytest.mark.parametrize("compiled", [True, False])
    def test_at_most_the_limit_of_tasks_run_at_once(self, compiled: bool) -> None:
        trace = trace_of(
            [(0, 10, 1), (0, 4, 1), (0, 5, 1), (0, 5, 1), (0, 1, 1)],
            array_id=["x", "x", "x", "x", "y"],
            array_limit=[2.0, 2.0, NAN, 2.0, NAN],
        )
        table = run(trace, "fifo", gpus=8, compiled=compiled)
        assert times(table) == ([0, 0, 4, 9, 0], [0, 0, 4, 9, 0])

    def test_interrupted_task_keeps_its_place(self) -> None:
        trace = trace_of(
            [(0, 10, 1), (0, 10, 1)],
            array_id=["x", "x"],
            array_limit=[1.0, 1.0],
            fail_after_s=["5", ""],
            restart_s=[0.0, 0.0],
        )
        assert times(run(trace, "fifo", gpus=2)) == ([0, 15], [0, 15])

    def test_task_with_an_open_dependency_has_no_place(self) -> None:
        trace = trace_of(
            [(0, 30, 1), (1, 10, 1), (1, 10, 1), (1, 10, 1)],
            array_id=["", "x", "x", "x"],
            array_limit=[NAN, 1.0, 1.0, 1.0],
            depends_on=["", "a", "", ""],
        )
        # c and d alternate until 21, b is eligible at 30
        assert times(run(trace, "fifo", gpus=4)) == ([0, 30, 1, 11], [0, 30, 1, 11])

    def test_task_can_depend_on_another_task(self) -> None:
        trace = trace_of(
            [(0, 10, 1), (0, 10, 1)], array_id=["x", "x"], array_limit=[1.0, 1.0], depends_on=["", "a"]
        )
        assert times(run(trace, "fifo", gpus=4)) == ([0, 10], [0, 10])

    @pytest.mark.parametrize(
        ("ids", "limits", "message"),
        [
            (["x", "x"], [2.0, 3.0], "row 2, column 'array_limit': expected the limit of array 'x' in"),
            (["x", ""], [2.0, 2.0], "row 2, column 'array_limit': expected blank, since .* no array_id"),
            (["x", "x"], [0.0, NAN], "row 1, column 'array_limit': expected a whole number of tasks"),
            (["x", "x"], [NAN, 1.5], "row 2, column 'array_limit': expected a whole number of tasks"),
        ],
    )
    def test_invalid_values_are_refused(self, ids: list[str], limits: list[float], message: str) -> None:
        with pytest.raises(TraceError, match=f"hand: {message}"):
            trace_of([(0, 1, 1)] * 2, array_id=ids, array_limit=limits)


@pytest.mark.parametrize("cell", ["12;", "a", "-1", "1;nan", "1e999"])
def test_failures_are_seconds(cell: str) -> None:
    with pytest.raises(
        TraceError, match=r"row 2, column 'fail_after_s': expected seconds, .* with ';' between"
    ):
        trace_of([(0, 1, 1)] * 2, fail_after_s=["3; 4.5", cell])


def test_preempting_scheduler_sees_only_eligible_jobs() -> None:
    trace = trace_of([(0, 10, 1), (1, 5, 1)], depends_on=["", "a"])
    scheduler = Scripted({})
    engine = Engine(trace, ClusterSpec.uniform(1, 2), order=Order(), oracle=True)
    table = engine.run(scheduler)
    assert scheduler.asked_at == [0, 10]
    np.testing.assert_array_equal(table.end_s, [10, 15])
