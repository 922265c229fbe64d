"""`easy` and `reserve` on tiny clusters, solved by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from rlsched.cluster.placement import fits_slot
from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.cluster.state import ClusterState
from rlsched.compile.jit import specialise
from rlsched.decide.order.keys import Order
from rlsched.decide.order.queue import OrderedQueue
from rlsched.decide.policies.policy import Policy
from rlsched.decide.rule_scheduler import RuleScheduler
from rlsched.decide.rules.backfill import reservation
from rlsched.decide.rules.reservation import copy_nodes, let_end_until_fits
from rlsched.errors import InputError
from rlsched.workload.trace import Trace
from rlsched_envs.sim.engine import Engine, PredictedTimes

# submit, duration, GPUs, predicted run time
Jobs = Sequence[tuple[float, float, int, float]]
EASY = Policy("easy")
LET_END, RESERVATION = (specialise(one, MODELLED=False) for one in (let_end_until_fits, reservation))
PATIENT = Policy("easy", reserve_after="6s")
BOTH = pytest.mark.parametrize("compiled", [True, False])


def starts(
    jobs: Jobs, spec: ClusterSpec, policy: Policy, vc: Sequence[str] | None = None, *, compiled: bool = True
) -> list[float]:
    submit, duration, gpus, predicted = (list(column) for column in zip(*jobs, strict=True))
    optional = {} if vc is None else {"vc": list(vc)}
    trace = Trace.from_columns(name="hand", submit_s=submit, duration_s=duration, num_gpus=gpus, **optional)
    assert trace.submit_s.tolist() == submit, "rows are given in order"
    predictions = PredictedTimes(np.array(predicted, float), np.ones(len(jobs)))
    engine = Engine(trace, spec, order=policy.rule.order, predictions=predictions)
    table = engine.run_rule(policy.rule) if compiled else engine.run(RuleScheduler(policy))
    return list(table.start_s.tolist())


@BOTH
class TestEasy:
    def test_what_ends_by_the_reservation_goes_first(self, compiled: bool) -> None:
        jobs = [(0, 10, 3, 10), (1, 5, 4, 5), (2, 8, 1, 8), (3, 9, 1, 9)]
        assert starts(jobs, ClusterSpec.uniform(1, 4), EASY, compiled=compiled) == [0, 10, 2, 15]

    def test_what_ends_a_second_later_waits(self, compiled: bool) -> None:
        jobs = [(0, 10, 3, 10), (1, 5, 4, 5), (2, 9, 1, 9)]
        assert starts(jobs, ClusterSpec.uniform(1, 4), EASY, compiled=compiled) == [0, 10, 15]
        greedy = starts(jobs, ClusterSpec.uniform(1, 4), Policy("fifo-backfill"), compiled=compiled)
        assert greedy == [0, 11, 2]

    def test_long_jobs_share_what_the_reservation_leaves(self, compiled: bool) -> None:
        """8 GPUs; at 10 the head takes 6, so that two long jobs may run on, not three, and a short one."""
        jobs = [(0, 10, 4, 10), (1, 5, 6, 5)] + [(2, 100, 1, 100)] * 3 + [(2, 8, 2, 8)]
        assert starts(jobs, ClusterSpec.uniform(1, 8), EASY, compiled=compiled) == [0, 10, 2, 2, 15, 2]

    def test_room_is_room_on_nodes(self, compiled: bool) -> None:
        """Five GPUs are free at 10, one more than the head needs: but not if node 0 loses one of its four."""
        jobs = [(0, 10, 3, 10), (0, 20, 3, 20), (1, 5, 4, 5), (2, 100, 1, 100)]
        assert starts(jobs, ClusterSpec.uniform(2, 4), EASY, compiled=compiled) == [0, 0, 10, 10]

    def test_a_gang_over_nodes_has_a_reservation_too(self, compiled: bool) -> None:
        """3 nodes of 2: the head needs two whole nodes, at 10; the long job would keep one of them."""
        jobs = [(0, 10, 2, 10), (0, 30, 2, 30), (1, 5, 4, 5), (2, 50, 2, 50), (2, 8, 2, 8)]
        assert starts(jobs, ClusterSpec.uniform(3, 2), EASY, compiled=compiled) == [0, 0, 10, 15, 2]

    @pytest.mark.parametrize(("predicted", "expected"), [(6, [0, 100, 12]), (7, [0, 100, 105])])
    def test_a_job_that_outlives_its_prediction_is_given_half_of_its_age(
        self, compiled: bool, predicted: float, expected: list[float]
    ) -> None:
        """At 12 it has run 12 s, 2 more than predicted: 6 more are expected, the reservation is at 18."""
        jobs = [(0, 100, 1, 10), (1, 5, 2, 5), (12, 6, 1, predicted)]
        assert starts(jobs, ClusterSpec.uniform(1, 2), EASY, compiled=compiled) == expected

    def test_a_job_that_never_fits_a_partition_blocks_nobody_there(self, compiled: bool) -> None:
        spec = ClusterSpec(name="vcs", nodes=(NodeGroup(gpus=4, vc="a"), NodeGroup(gpus=2)))
        jobs = [(0, 10, 4, 10), (0, 10, 4, 10), (1, 100, 1, 100), (2, 50, 2, 50), (3, 99, 1, 99)]
        owners = ["a", "a", "", "", ""]
        assert starts(jobs, spec, EASY, owners, compiled=compiled) == [0, 10, 1, 101, 151]
        blocking = starts(jobs, spec, Policy("fifo"), owners, compiled=compiled)
        assert blocking[2] == 10, "a blocking rule waits for the gang's own nodes"

    def test_each_partition_has_its_own_reservation(self, compiled: bool) -> None:
        spec = ClusterSpec(name="two", nodes=(NodeGroup(gpus=2, vc="a"), NodeGroup(gpus=2, vc="b")))
        jobs = [(0, 10, 1, 10), (0, 20, 1, 20), (1, 5, 2, 5), (1, 5, 2, 5), (2, 15, 1, 15), (2, 15, 1, 15)]
        owners = ["a", "b", "a", "b", "a", "b"]
        assert starts(jobs, spec, EASY, owners, compiled=compiled) == [0, 0, 10, 20, 15, 2]


@BOTH
class TestPatience:
    STREAM: Jobs = sorted([(2.0 * k, 4, 1, 4) for k in range(10)] + [(1.0, 2, 2, 3)])
    """2 GPUs are kept busy by small jobs; row 1 is a gang of both."""

    def test_a_gang_starves_without_a_reservation(self, compiled: bool) -> None:
        found = starts(self.STREAM, ClusterSpec.uniform(1, 2), Policy("qssf-backfill"), compiled=compiled)
        assert found == [0, 22, 2, 4, 6, 8, 10, 12, 14, 16, 18]

    def test_a_gang_that_has_waited_for_long_enough_holds_back_what_would_delay_it(
        self, compiled: bool
    ) -> None:
        """It has a reservation from 7 on: it fits at 10, and the job of 8, which would end at 12, waits."""
        found = starts(self.STREAM, ClusterSpec.uniform(1, 2), PATIENT, compiled=compiled)
        assert found == [0, 10, 2, 4, 6, 12, 12, 16, 16, 20, 20]

    def test_what_does_not_delay_it_goes_on(self, compiled: bool) -> None:
        jobs = [*self.STREAM[:5], (8.0, 2, 1, 2), *self.STREAM[6:]]
        found = starts(jobs, ClusterSpec.uniform(1, 2), PATIENT, compiled=compiled)
        assert found[:7] == [0, 10, 2, 4, 6, 8, 12]


@BOTH
class TestReserve:
    def test_long_jobs_leave_a_share_free(self, compiled: bool) -> None:
        """A quarter of 4 GPUs is one. Row 1 would take it; rows 2 and 3 are short; row 4 is exempt."""
        jobs = [(0, 100, 3, 100), (1, 100, 1, 100), (2, 5, 1, 5), (3, 7, 1, 10), (101, 100, 4, 100)]
        policy = Policy("reserve", leave_free={"longer_than": "10s"})
        assert starts(jobs, ClusterSpec.uniform(1, 4), policy, compiled=compiled) == [0, 100, 2, 7, 200]

    def test_the_share_is_of_the_partition(self, compiled: bool) -> None:
        spec = ClusterSpec(name="two", nodes=(NodeGroup(gpus=4, vc="a"), NodeGroup(gpus=8, vc="b")))
        jobs = [(0, 50, 2, 50), (0, 50, 2, 50), (0, 50, 2, 50), (0, 50, 4, 50)]
        half = Policy("reserve", leave_free={"longer_than": "10s", "share": 0.5})
        found = starts(jobs, spec, half, ["a", "a", "b", "b"], compiled=compiled)
        assert found == [0, 50, 0, 50]


class TestForesight:
    def test_the_copy_leaves_the_state_as_it_was(self) -> None:
        state = ClusterState.from_spec(ClusterSpec.uniform(2, 4), OrderedQueue(Order(by="area")))
        first = state.add_job(num_gpus=6, submit_s=0.0, predicted_s=30.0, spread=1.0)
        state.start(first, range(6), 0.0)
        second = state.add_job(num_gpus=8, submit_s=0.0, predicted_s=10.0, spread=1.0)
        before, holes = state.digest(), state.arrays.derived.holes.copy()
        future = copy_nodes(state.arrays)
        slot = state.slot_of(second)
        assert LET_END(state.arrays, future, 0, slot, 10.0) == 30.0
        assert fits_slot(future, 0, slot)
        assert not fits_slot(state.arrays, 0, slot)
        assert state.digest() == before
        np.testing.assert_array_equal(state.arrays.derived.holes, holes)

    def test_only_nodes_that_are_up_are_foreseen(self) -> None:
        state = ClusterState.from_spec(ClusterSpec.uniform(2, 4), OrderedQueue(Order()))
        first = state.add_job(num_gpus=2, submit_s=0.0, predicted_s=30.0, spread=1.0)
        state.start(first, [0, 1], 0.0)
        second = state.add_job(num_gpus=8, submit_s=0.0, predicted_s=10.0, spread=1.0)
        assert RESERVATION(state.arrays, 0, 10.0, 0.0) == (state.slot_of(second), 30.0)
        state.drain_node(1)
        assert RESERVATION(state.arrays, 0, 10.0, 0.0) == (-1, np.inf)
        state.resume_node(1)
        assert RESERVATION(state.arrays, 0, 31.0, 0.0) == (state.slot_of(second), 31.0 + 15.5)


class TestSettings:
    def test_times_and_shares_are_read(self) -> None:
        def kept(**settings: object) -> tuple[float, float]:
            options = Policy("reserve", leave_free=settings).rule.options
            return options.long_job_s, options.leave_frac

        assert kept() == (43_200, 0.25)
        assert kept(longer_than="30m", share=0.5) == (1800, 0.5)
        assert kept(longer_than="1.5d", share=0) == (129_600, 0)
        assert kept(longer_than="90s") == (90, 0.25)

    @pytest.mark.parametrize("time", ["12", "h", "-1h", "1e3h", "nans", "infh", "12h,0.1", "²h", "1.2.3h"])
    def test_a_time_that_is_none_is_named(self, time: str) -> None:
        with pytest.raises(InputError, match="reserve_after: expected a time such as 90s, 30m, 12h") as error:
            Policy("easy", reserve_after=time)
        assert str(error.value).endswith(f"got {time!r}")
        with pytest.raises(InputError, match=r"leave_free\.longer_than: expected a time such as 90s"):
            Policy("reserve", leave_free={"longer_than": time})

    @pytest.mark.parametrize("share", [1.5, -0.1, math.nan])
    def test_a_share_that_is_none_is_named(self, share: float) -> None:
        with pytest.raises(
            InputError, match=rf"leave_free\.share: expected a share of the GPUs from 0 to 1, got {share:g}"
        ):
            Policy("reserve", leave_free={"share": share})
        with pytest.raises(InputError, match=r"leave_free\.share: expected `float`, got `str`"):
            Policy("reserve", leave_free={"share": "25%"})
