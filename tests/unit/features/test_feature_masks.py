"""Legal choices of a policy: the guards of the mask, and holds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlsched.cluster.spec import ClusterSpec
from rlsched.cluster.state import ClusterState
from rlsched.decide.order.keys import Order
from rlsched.decide.order.queue import OrderedQueue
from rlsched.decide.plans.holds import has_startable, next_hold_end_s
from rlsched.decide.rows import columns, reasons
from rlsched.decide.rows.candidates import hold, job_candidates
from rlsched.decide.schema import HOLD_S, MAX_HOLD_S
from tests.support.sim.states import NOW_S, add, crowded, log, run, set_held_since


class TestMasks:
    def state(self, taken: int) -> ClusterState:
        """Three nodes of 4 GPUs, `taken` in use; jobs of 1, 1, 12 GPUs wait, the second comes first."""
        state = ClusterState.from_spec(ClusterSpec.uniform(3, 4), OrderedQueue(Order(by="area")))
        run(state, range(taken))
        for gpus, predicted_s in ((1, 200), (1, 100), (12, 10)):
            add(state, gpus, predicted_s)
        return state

    def test_no_waiting_while_half_is_free(self) -> None:
        window = job_candidates(self.state(taken=6), 0, NOW_S)
        assert window.reasons.tolist() == [
            reasons.GUARD_HALF_FREE,
            reasons.LEGAL,
            reasons.LEGAL,
            reasons.TOO_FEW_FREE,
        ]
        assert job_candidates(self.state(taken=7), 0, NOW_S).legal.tolist() == [True, True, True, False]

    def test_half_is_of_nodes_that_are_up(self) -> None:
        state = self.state(taken=7)
        state.drain_node(1)  # 4 of 8 are free then
        assert not job_candidates(state, 0, NOW_S).legal[0]

    def test_waiting_is_legal_where_no_job_fits(self) -> None:
        state = self.state(taken=6)
        state.remove_waiting(1)
        state.remove_waiting(2)
        window = job_candidates(state, 0, NOW_S)
        assert window.legal.tolist() == [True, False]
        assert window.reference == 0

    def test_only_overdue_jobs_after_the_longest_hold(self) -> None:
        state = self.state(taken=7)
        assert job_candidates(state, 0, NOW_S).seqs.tolist() == [-1, 2, 1, 3]
        set_held_since(state, 1, NOW_S - MAX_HOLD_S)
        window = job_candidates(state, 0, NOW_S)
        assert window.reasons.tolist() == [
            reasons.GUARD_HOLD,
            reasons.GUARD_HOLD,
            reasons.LEGAL,
            reasons.TOO_FEW_FREE,
        ]
        assert window.reference == 2
        assert window.features[:, columns.IS_REFERENCE].tolist() == [0, 0, 1, 0]

    def test_one_second_earlier_there_is_a_choice(self) -> None:
        state = self.state(taken=7)
        set_held_since(state, 1, NOW_S - MAX_HOLD_S + 1)
        assert job_candidates(state, 0, NOW_S).legal.tolist() == [True, True, True, False]

    def test_overdue_job_that_does_not_fit(self) -> None:
        state = self.state(taken=7)
        set_held_since(state, 3, NOW_S - MAX_HOLD_S)
        assert job_candidates(state, 0, NOW_S).legal.tolist() == [True, True, True, False]

    def test_both_overdue_leave_a_choice(self) -> None:
        state = self.state(taken=7)
        for seq in (1, 2):
            set_held_since(state, seq, NOW_S - 2 * MAX_HOLD_S)
        window = job_candidates(state, 0, NOW_S)
        assert window.legal.tolist() == [False, True, True, False]
        assert window.reference == 1

    def test_overdue_job_is_shown_at_any_position(self) -> None:
        state = crowded()
        set_held_since(state, 9, NOW_S - MAX_HOLD_S)
        window = job_candidates(state, 0, NOW_S)
        assert window.seqs[np.flatnonzero(window.legal)].tolist() == [9]
        assert window.seqs[window.reference] == 9


class TestHolds:
    def waited(self) -> ClusterState:
        """Jobs 1 and 2 of 1 GPU fit 5 free of 12 GPUs and were passed over at NOW_S; job 3 does not fit."""
        state = TestMasks().state(taken=7)
        hold(state, job_candidates(state, 0, NOW_S), NOW_S)
        return state

    def test_passed_over_jobs_are_held(self) -> None:
        state = self.waited()
        assert not has_startable(state, 0, NOW_S)
        assert not has_startable(state, 0, NOW_S + HOLD_S - 1)
        assert has_startable(state, 0, NOW_S + HOLD_S)
        assert next_hold_end_s(state.arrays, NOW_S) == NOW_S + HOLD_S
        assert next_hold_end_s(state.arrays, NOW_S + HOLD_S) == math.inf
        window = job_candidates(state, 0, NOW_S + 60)
        assert window.seqs.tolist() == [-1, 1, 2, 3]
        assert window.reasons.tolist() == [
            reasons.LEGAL,
            reasons.HELD,
            reasons.HELD,
            reasons.TOO_FEW_FREE,
        ]
        assert window.features[:, columns.FEASIBLE].tolist() == [0, 0, 0, 0]
        assert window.features[:, columns.HELD] == pytest.approx([0, log(60, 12), log(60, 12), 0])
        assert window.reference == 0

    def test_later_arrivals_may_start(self) -> None:
        state = self.waited()
        seq = add(state, 1, 999)
        window = job_candidates(state, 0, NOW_S + 60)
        assert window.seqs[window.legal].tolist() == [-1, seq]
        assert window.features[window.seqs == seq, columns.INFEASIBLE_AHEAD] == pytest.approx(log(1, 8)), (
            "job 3"
        )
        assert has_startable(state, 0, NOW_S + 60)

    def test_hold_is_for_the_blocked_job_and_ends_when_that_starts(self) -> None:
        state = ClusterState.from_spec(ClusterSpec.uniform(2, 4), OrderedQueue(Order(by="area")))
        long = run(state, [0, 1, 2, 3])
        run(state, [4])
        blocked, small = add(state, 4, 10), add(state, 1, 100)
        hold(state, job_candidates(state, 0, NOW_S), NOW_S)
        assert not has_startable(state, 0, NOW_S + 60)
        state.release(long, NOW_S + 60)
        state.start(blocked, [0, 1, 2, 3], NOW_S + 60)
        window = job_candidates(state, 0, NOW_S + 60)
        assert window.seqs[window.legal].tolist() == [-1, small], "though less than half is free again"
        assert has_startable(state, 0, NOW_S + 60)

    def test_hold_ends_when_the_blocked_job_leaves(self) -> None:
        state = self.waited()
        state.remove_waiting(3)
        assert job_candidates(state, 0, NOW_S + 60).legal.tolist() == [True, True, True]
        assert has_startable(state, 0, NOW_S + 60)

    def test_hold_without_a_blocked_job_lasts_its_time(self) -> None:
        state = ClusterState.from_spec(ClusterSpec.uniform(1, 4), OrderedQueue(Order(by="area")))
        run(state, [0, 1, 2])
        add(state, 1, 100)
        add(state, 1, 200)
        hold(state, job_candidates(state, 0, NOW_S), NOW_S)
        assert not has_startable(state, 0, NOW_S + HOLD_S - 1)
        assert has_startable(state, 0, NOW_S + HOLD_S)

    def test_half_free_ends_every_hold(self) -> None:
        state = self.waited()
        state.release(0, NOW_S + 60)
        assert (
            job_candidates(state, 0, NOW_S + 60).reasons.tolist()
            == [reasons.GUARD_HALF_FREE] + [reasons.LEGAL] * 3
        )

    def test_first_wait_counts_for_the_longest_hold(self) -> None:
        state = self.waited()
        later = NOW_S + HOLD_S + 5
        hold(state, job_candidates(state, 0, later), later)
        assert next_hold_end_s(state.arrays, later) == later + HOLD_S
        window = job_candidates(state, 0, later)
        assert window.features[window.seqs == 1, columns.HELD] == pytest.approx(log(HOLD_S + 5, 12))

    def test_new_attempt_starts_a_new_hold(self) -> None:
        state = self.waited()
        state.start(1, [8], NOW_S + 5)
        state.requeue(1, NOW_S + 10)
        window = job_candidates(state, 0, NOW_S + 10)
        assert window.reasons[window.seqs == 1] == reasons.LEGAL
        assert window.features[window.seqs == 1, columns.HELD] == 0

    def test_jobs_outside_the_window_are_not_held(self) -> None:
        state = crowded()
        hold(state, job_candidates(state, 0, NOW_S), NOW_S)
        window = job_candidates(state, 0, NOW_S)
        assert window.seqs[window.legal].tolist() == [-1, 15, 13, 11, 9, 7, 5], (
            "1 and 3 were among the oldest"
        )
