"""Every column of a policy's observation, in hand-made states."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import pytest

from rlsched.cluster.spec import ClusterSpec
from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Start
from rlsched.decide.order.keys import Order
from rlsched.decide.order.queue import OrderedQueue
from rlsched.decide.rows import columns, reasons
from rlsched.decide.rows.candidates import job_candidates
from rlsched.decide.start import start_action
from tests.support.sim.states import NOW_S, add, log, row_is, run, set_held_since


class TestColumns:
    """Three nodes of 4 GPUs, 1, 3 and 1 of them free. By key: job 4, 3, 5, 6."""

    PARTITION: ClassVar = {
        "free_frac": 5 / 12,
        "full_nodes_frac": 0.0,
        "largest_hole_frac": 3 / 4,
        "queue_log": log(4, 8),
        "queued_demand_log": log(16 / 12, 4),
        "queued_work_log": log((120 + 200 + 1000 + 4500) / 12, 15),
        "blocked_gpus_log": math.log2(5) / 8,
        "blocked_predicted_log": log(30, 12),
        "blocked_gpu_time_log": log(120, 15),
        "blocked_waited_log": log(500, 12),
        "blocked_fit_in_log": log(50, 12),
    }
    """Job 4 is the blocked one: the third node is wholly free in 50 s."""

    def against(self, gpu_time: float, predicted_s: float) -> dict[str, float]:
        """The two columns that compare a job with job 4."""
        return {
            "blocked_key_ratio": (math.log(1 + gpu_time) - math.log(121)) / 6,
            "ends_after_fit": (math.log(1 + predicted_s) - math.log(51)) / 6,
        }

    @pytest.fixture
    def state(self) -> ClusterState:
        state = ClusterState.from_spec(ClusterSpec.uniform(3, 4), OrderedQueue(Order(by="area")))
        run(state, [0, 1, 2], predicted_s=900, start_s=400)  # 300 s left
        run(state, [4], predicted_s=500, start_s=0)  # ran 1000 s, longer than predicted: 500 s left
        run(state, [8, 9, 10], predicted_s=50, start_s=900)  # ran 100 s: 50 s left
        assert add(state, 2, 100, submit_s=300) == 3
        assert add(state, 4, 30, submit_s=500, spread=0.5) == 4
        assert add(state, 1, 1000, submit_s=600, spread=0.0) == 5
        assert add(state, 9, 500, submit_s=1000, spread=6.0) == 6
        return state

    def test_rows(self, state: ClusterState) -> None:
        window = job_candidates(state, 0, NOW_S)
        assert window.kind == "job"
        assert window.seqs.tolist() == [-1, 3, 5, 4, 6]
        assert window.nodes.tolist() == [-1, 1, 0, -1, -1]
        assert window.reasons.tolist() == [
            reasons.LEGAL,
            reasons.LEGAL,
            reasons.LEGAL,
            reasons.NO_HOLE,
            reasons.TOO_FEW_FREE,
        ]
        assert window.legal.tolist() == [True, True, True, False, False]
        assert window.reference == 1

    def test_wait(self, state: ClusterState) -> None:
        row_is(job_candidates(state, 0, NOW_S), 0, self.PARTITION | {"is_wait": 1, "free_after_frac": 5 / 12})

    def test_reference(self, state: ClusterState) -> None:
        row_is(
            job_candidates(state, 0, NOW_S),
            1,
            self.PARTITION
            | self.against(200, 100)
            | {
                "is_job": 1,
                "is_reference": 1,
                "feasible": 1,
                "predicted_log": log(100, 12),
                "spread": 1 / 4,
                "predicted_gpu_time_log": log(200, 15),
                "gpus_log": math.log2(3) / 8,
                "gpus_frac": 2 / 12,
                "waited_log": log(700, 12),
                "rank_log": log(1, 8),
                "free_after_frac": 3 / 12,
                "leftover_frac": 1 / 4,
                "node_ends_log": log(500, 12),
                "shorter_infeasible_log": log(1, 8),
            },
        )

    def test_another_job_that_fits(self, state: ClusterState) -> None:
        set_held_since(state, 5, 800.0)
        row_is(
            job_candidates(state, 0, NOW_S),
            2,
            self.PARTITION
            | self.against(1000, 1000)
            | {
                "is_job": 1,
                "feasible": 1,
                "predicted_log": log(1000, 12),
                "predicted_gpu_time_log": log(1000, 15),
                "gpus_log": 1 / 8,
                "gpus_frac": 1 / 12,
                "waited_log": log(400, 12),
                "held_log": log(200, 12),
                "rank_log": log(2, 8),
                "free_after_frac": 4 / 12,
                "node_ends_log": log(300, 12),
                "shorter_infeasible_log": log(1, 8),
            },
        )

    def test_enough_free_gpus_on_different_nodes(self, state: ClusterState) -> None:
        """GPUs become free within 60 s (3), 480 s (6), 960 s (7): the first for a job that misses none."""
        row_is(
            job_candidates(state, 0, NOW_S),
            3,
            self.PARTITION
            | self.against(120, 30)
            | {
                "is_job": 1,
                "predicted_log": log(30, 12),
                "spread": 1 / 8,
                "predicted_gpu_time_log": log(120, 15),
                "gpus_log": math.log2(5) / 8,
                "gpus_frac": 4 / 12,
                "waited_log": log(500, 12),
                "free_after_frac": 5 / 12,
                "fit_in_log": log(60, 12),
            },
        )

    def test_too_few_free(self, state: ClusterState) -> None:
        """It misses 4; the spread is clipped."""
        row_is(
            job_candidates(state, 0, NOW_S),
            4,
            self.PARTITION
            | self.against(4500, 500)
            | {
                "is_job": 1,
                "predicted_log": log(500, 12),
                "spread": 1,
                "predicted_gpu_time_log": log(4500, 15),
                "gpus_log": math.log2(10) / 8,
                "gpus_frac": 9 / 12,
                "rank_log": log(3, 8),
                "free_after_frac": 5 / 12,
                "fit_in_log": log(480, 12),
            },
        )

    def test_gang_fits_when_enough_nodes_are_wholly_free(self, state: ClusterState) -> None:
        """Nodes are free in 300, 500 and 50 s: 9 GPUs need all three."""
        state.remove_waiting(4)
        row = job_candidates(state, 0, NOW_S).features[0]
        assert row[columns.BLOCKED_GPUS] == pytest.approx(math.log2(10) / 8)
        assert row[columns.BLOCKED_FIT_IN] == pytest.approx(log(500, 12))

    def test_comparisons_are_clipped(self) -> None:
        state = ClusterState.from_spec(ClusterSpec.uniform(1, 2), OrderedQueue(Order(by="area")))
        run(state, [0], predicted_s=10.0, start_s=NOW_S)
        add(state, 2, 0.0)
        add(state, 1, 1e9)
        window = job_candidates(state, 0, NOW_S)
        assert window.features[1, [columns.BLOCKED_KEY_RATIO, columns.ENDS_AFTER_FIT]].tolist() == [1, 1]
        state.release(0, NOW_S)
        window = job_candidates(state, 0, NOW_S)
        assert not window.features[:, columns.BLOCKED_GPUS :].any(), "nothing is blocked"

    def test_whole_nodes(self) -> None:
        state = ClusterState.from_spec(ClusterSpec.uniform(2, 4), OrderedQueue(Order(by="area")))
        seq = add(state, 5, 100)
        row_is(
            job_candidates(state, 0, 0.0),
            1,
            {
                "is_job": 1,
                "is_reference": 1,
                "feasible": 1,
                "predicted_log": log(100, 12),
                "spread": 1 / 4,
                "predicted_gpu_time_log": log(500, 15),
                "gpus_log": math.log2(6) / 8,
                "gpus_frac": 5 / 8,
                "free_after_frac": 3 / 8,
                "opens_node": 1,
                "free_frac": 1,
                "full_nodes_frac": 1,
                "largest_hole_frac": 1,
                "queue_log": log(1, 8),
                "queued_demand_log": log(5 / 8, 4),
                "queued_work_log": log(500 / 8, 15),
            },
        )
        assert start_action(state, 0, seq) == Start(seq=seq, gpus=(0, 1, 2, 3, 4))

    def test_nodes_that_are_not_up_do_not_count(self, state: ClusterState) -> None:
        state.drain_node(1)
        window = job_candidates(state, 0, NOW_S)
        row = window.features[window.seqs.tolist().index(5)]
        assert row[columns.FREE] == pytest.approx(2 / 8)
        assert row[columns.GPUS_FRAC] == pytest.approx(1 / 8)
        assert row[columns.LARGEST_HOLE] == pytest.approx(1 / 4)
        assert window.reasons[window.seqs.tolist().index(3)] == reasons.NO_HOLE

    def test_all_columns_stay_finite(self) -> None:
        """No prediction, no usable GPU: extremes stay finite."""
        state = ClusterState.from_spec(ClusterSpec.uniform(1, 2), OrderedQueue(Order(by="area")))
        run(state, [0], predicted_s=0.0, start_s=NOW_S)
        add(state, 1, 0.0, submit_s=NOW_S + 5, spread=0.0)
        add(state, 64, 1e12, spread=50.0)
        state.drain_node(0)
        assert np.isfinite(job_candidates(state, 0, NOW_S).features).all()
