"""Time limits and failures, solved by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlsched.cluster.spec import ClusterSpec
from rlsched.decide.order.keys import Order
from rlsched_envs.sim.attempt_arrays import ENDED, FAILED, TIMEOUT
from rlsched_envs.sim.attempt_log import RunRules
from rlsched_envs.sim.engine import Engine, predict_trace
from tests.support.sim.play import Scripted, attempts, run, trace_of

NAN = math.nan
FAILING = [(0.0, 5000.0, 1.0)]


class TestTimeLimits:
    @pytest.mark.parametrize("compiled", [True, False])
    @pytest.mark.parametrize("always", [True, False])
    def test_end_a_job_and_free_its_gpus(self, compiled: bool, always: bool) -> None:
        trace = trace_of([(0, 100, 1), (5, 10, 1), (6, 10, 1)], time_limit_s=[60.0, 10.0, NAN])
        table = run(trace, "fifo", compiled=compiled, rules=RunRules(always=always))
        assert table.start_s.tolist() == [0, 60, 70]
        assert table.end_s.tolist() == [60, 70, 80]
        assert table.ended_by is not None
        assert table.ended_by.tolist() == [TIMEOUT, ENDED, ENDED]

    def test_count_for_each_attempt_with_its_restart_cost(self) -> None:
        trace = trace_of([(0, 100, 1), (10, 20, 1)], time_limit_s=[60.0, NAN])
        table = run(trace, Scripted({30.0: [0]}, {30.0: [1]}))
        assert attempts(table) == [
            ("a", 1, 0, 30, "preempted", 30),
            ("b", 1, 30, 50, "ended", 20),
            ("a", 2, 50, 110, "timeout", 20),
        ]

    def test_are_part_of_the_true_run_time_of_an_oracle(self) -> None:
        trace = trace_of([(0, 100, 1), (5, 10, 1)], time_limit_s=[60.0, NAN])
        predictions = predict_trace(trace, ClusterSpec.uniform(1, 1), oracle=True)
        assert predictions.predicted_s.tolist() == [60, 10]

    def test_do_not_change_recorded_ends(self) -> None:
        trace = trace_of([(0, 100, 1)], time_limit_s=[60.0])
        engine = Engine(trace, ClusterSpec.uniform(1, 1), order=Order(), fixed_end_s=np.array([61.5]))
        table = engine.run(Scripted({}))
        assert table.end_s.tolist() == [61.5]
        assert table.ended_by is not None
        assert table.ended_by.tolist() == [ENDED]


class TestFailures:
    @pytest.mark.parametrize("compiled", [True, False])
    def test_discard_the_work_and_the_job_restarts(self, compiled: bool) -> None:
        table = run(trace_of(FAILING, fail_after_s=["120;3600"]), "fifo", compiled=compiled)
        assert attempts(table) == [
            ("a", 1, 0, 120, "failed", 0),
            ("a", 2, 120, 3720, "failed", 0),
            ("a", 3, 3720, 3720 + 40 + 5000, "ended", 5000),
        ]
        assert table.ended_by is not None
        assert table.ended_by.tolist() == [ENDED]

    def test_restart_at_the_last_checkpoint(self) -> None:
        trace = trace_of(FAILING, fail_after_s=["120;3600"], checkpoint_s=[50.0])
        assert attempts(run(trace, "fifo")) == [
            ("a", 1, 0, 120, "failed", 100),
            ("a", 2, 120, 3720, "failed", 3550),  # 40 s of restart cost, then 3,560 s after 100
            ("a", 3, 3720, 3720 + 40 + 1350, "ended", 1350),
        ]

    @pytest.mark.parametrize(("retries", "end_s"), [(0, 120), (1, 3720), (2, 8760)])
    def test_end_a_job_without_retries_left(self, retries: int, end_s: float) -> None:
        table = run(
            trace_of(FAILING, fail_after_s=["120; 3600"]), "fifo", rules=RunRules(max_retries=retries)
        )
        assert table.end_s.tolist() == [end_s]
        assert table.ended_by is not None
        assert table.ended_by.tolist() == [ENDED if retries == 2 else FAILED]

    def test_do_not_happen_after_the_end_of_the_job(self) -> None:
        table = run(trace_of([(0, 100, 1), (0, 100, 1)], fail_after_s=["100", "99.5"]), "fifo", gpus=2)
        assert [one[4] for one in attempts(table)] == ["ended", "failed", "ended"]

    def test_precede_a_limit_at_the_same_time(self) -> None:
        trace = trace_of([(0, 100, 1)], fail_after_s=["50"], time_limit_s=[50.0])
        assert [one[2:5] for one in attempts(run(trace, "fifo"))] == [(0, 50, "failed"), (50, 100, "timeout")]

    def test_are_not_postponed_by_preemptions(self) -> None:
        trace = trace_of([(0, 100, 1), (10, 20, 1)], fail_after_s=["50", ""])
        assert attempts(run(trace, Scripted({30.0: [0]}, {30.0: [1]}))) == [
            ("a", 1, 0, 30, "preempted", 30),
            ("b", 1, 30, 50, "ended", 20),
            ("a", 2, 50, 70, "failed", 0),  # 30 + 20 s of run time
            ("a", 3, 70, 180, "ended", 70),  # the work saved by the preemption is kept
        ]

    def test_failed_job_keeps_its_place_in_the_queue(self) -> None:
        trace = trace_of([(0, 100, 1), (1, 10, 1)], fail_after_s=["20", ""], restart_s=[0.0, 0.0])
        assert [one[0] for one in attempts(run(trace, "fifo"))] == ["a", "a", "b"]
