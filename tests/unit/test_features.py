"""What a policy sees: every column of hand-made states, the rows that are shown, and the masks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlsched.cluster.spec import ClusterSpec
from rlsched.cluster.state import ClusterState
from rlsched.decide import features, windows
from rlsched.decide.actions import Start
from rlsched.decide.candidates import (
    Window,
    has_startable,
    hold,
    job_candidates,
    next_hold_end_s,
    start_action,
    variant_candidates,
)
from rlsched.decide.scheduler import Decision, Information, Order, load_scheduler
from rlsched.decide.schema import (
    ACTOR_FEATURES,
    FEASIBLE_ROWS,
    HOLD_S,
    MAX_HOLD_S,
    MAX_VARIANTS,
    NUM_CRITIC,
    NUM_FEATURES,
    OLDEST_ROWS,
    SCHEMA,
    WINDOW_ROWS,
    FeatureSchema,
)
from rlsched.workload.synth import synthesize
from rlsched.workload.trace import Trace
from rlsched_envs.engine import Engine, Predictions, predict_trace
from rlsched_envs.vector import spaces

COLUMNS = {
    "is_wait": features.IS_WAIT,
    "is_job": features.IS_JOB,
    "is_variant": features.IS_VARIANT,
    "is_reference": features.IS_REFERENCE,
    "feasible": features.FEASIBLE,
    "predicted_log": features.PREDICTED,
    "spread": features.SPREAD,
    "predicted_gpu_time_log": features.GPU_TIME,
    "gpus_log": features.GPUS,
    "gpus_frac": features.GPUS_FRAC,
    "waited_log": features.WAITED,
    "held_log": features.HELD,
    "rank_log": features.RANK,
    "free_after_frac": features.FREE_AFTER,
    "leftover_frac": features.LEFTOVER,
    "opens_node": features.OPENS_NODE,
    "fit_in_log": features.FIT_IN,
    "node_ends_log": features.NODE_ENDS,
    "free_frac": features.FREE,
    "full_nodes_frac": features.FULL_NODES,
    "largest_hole_frac": features.LARGEST_HOLE,
    "queue_log": features.QUEUE,
    "queued_demand_log": features.DEMAND,
    "queued_work_log": features.WORK,
    "shorter_infeasible_log": features.INFEASIBLE_AHEAD,
    "blocked_gpus_log": features.BLOCKED_GPUS,
    "blocked_predicted_log": features.BLOCKED_PREDICTED,
    "blocked_gpu_time_log": features.BLOCKED_GPU_TIME,
    "blocked_waited_log": features.BLOCKED_WAITED,
    "blocked_fit_in_log": features.BLOCKED_FIT_IN,
    "blocked_key_ratio": features.BLOCKED_KEY_RATIO,
    "ends_after_fit": features.ENDS_AFTER_FIT,
}
NOW_S = 1000.0


def add(
    state: ClusterState, gpus: int, predicted_s: float, submit_s: float = 0.0, spread: float = 1.0
) -> int:
    return state.add_job(num_gpus=gpus, submit_s=submit_s, predicted_s=predicted_s, spread=spread)


def run(state: ClusterState, gpus: Sequence[int], predicted_s: float = 100.0, start_s: float = 0.0) -> int:
    seq = add(state, len(gpus), predicted_s)
    state.start(seq, gpus, start_s)
    return seq


def set_held_since(state: ClusterState, seq: int, since_s: float) -> None:
    state.arrays.job.held_since_s[state.slot_of(seq)] = since_s


def log(x: float, scale: float) -> float:
    return math.log(1 + x) / scale


def row_is(window: Window, row: int, expected: dict[str, float]) -> None:
    """A row has these values by name, and zero in every other column."""
    found = dict(zip([name for name, _ in ACTOR_FEATURES], window.features[row].tolist(), strict=True))
    assert found == pytest.approx({name: expected.get(name, 0.0) for name in found}, rel=1e-6, abs=1e-7)


class TestSchema:
    def test_names_and_columns_agree(self) -> None:
        assert [name for name, _ in ACTOR_FEATURES] == list(COLUMNS)
        assert list(COLUMNS.values()) == list(range(NUM_FEATURES))
        assert {name: SCHEMA.column(name) for name in COLUMNS} == COLUMNS
        with pytest.raises(ValueError):
            SCHEMA.column("true_duration")

    def test_every_meaning_is_told(self) -> None:
        assert len({meaning for _, meaning in ACTOR_FEATURES}) == NUM_FEATURES

    def test_the_hash_is_of_the_content_alone(self) -> None:
        copy = msgspec.json.decode(msgspec.json.encode(SCHEMA), type=FeatureSchema)
        assert copy == SCHEMA
        assert copy.hash == SCHEMA.hash
        assert len(SCHEMA.hash) == 16
        int(SCHEMA.hash, 16)

    @pytest.mark.parametrize(
        "field", [name for name in FeatureSchema.__struct_fields__ if name != "features"]
    )
    def test_any_number_changes_the_hash(self, field: str) -> None:
        other = msgspec.structs.replace(SCHEMA, **{field: getattr(SCHEMA, field) + 1})
        assert other.hash != SCHEMA.hash

    def test_names_meanings_and_order_change_the_hash(self) -> None:
        first, second, *rest = ACTOR_FEATURES
        variants = [
            (second, first, *rest),
            (first, *rest),
            ((first[0], "other"), second, *rest),
            (("other", first[1]), second, *rest),
        ]
        hashes = {msgspec.structs.replace(SCHEMA, features=changed).hash for changed in variants}
        assert len(hashes | {SCHEMA.hash}) == 5

    def test_the_observation_has_room_for_all(self) -> None:
        box, rows = spaces()
        assert box.shape == (WINDOW_ROWS, NUM_FEATURES + NUM_CRITIC)
        assert rows.n == WINDOW_ROWS
        assert WINDOW_ROWS > 1 + FEASIBLE_ROWS + OLDEST_ROWS


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
        state = ClusterState.from_spec(ClusterSpec.uniform(3, 4))
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
            windows.LEGAL,
            windows.LEGAL,
            windows.LEGAL,
            windows.NO_HOLE,
            windows.TOO_FEW_FREE,
        ]
        assert window.legal.tolist() == [True, True, True, False, False]
        assert window.reference == 1

    def test_wait(self, state: ClusterState) -> None:
        row_is(job_candidates(state, 0, NOW_S), 0, self.PARTITION | {"is_wait": 1, "free_after_frac": 5 / 12})

    def test_the_reference(self, state: ClusterState) -> None:
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

    def test_another_that_fits(self, state: ClusterState) -> None:
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

    def test_enough_free_but_apart(self, state: ClusterState) -> None:
        """GPUs come free within 60 s (3), 480 s (6), 960 s (7): the first for a job that misses none."""
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

    def test_a_gang_over_nodes_fits_when_enough_of_them_are_wholly_free(self, state: ClusterState) -> None:
        """Nodes are free in 300, 500 and 50 s: 9 GPUs need all three."""
        state.remove_waiting(4)
        row = job_candidates(state, 0, NOW_S).features[0]
        assert row[features.BLOCKED_GPUS] == pytest.approx(math.log2(10) / 8)
        assert row[features.BLOCKED_FIT_IN] == pytest.approx(log(500, 12))

    def test_comparisons_are_clipped(self) -> None:
        state = ClusterState.from_spec(ClusterSpec.uniform(1, 2))
        run(state, [0], predicted_s=10.0, start_s=NOW_S)
        add(state, 2, 0.0)
        add(state, 1, 1e9)
        window = job_candidates(state, 0, NOW_S)
        assert window.features[1, [features.BLOCKED_KEY_RATIO, features.ENDS_AFTER_FIT]].tolist() == [1, 1]
        state.release(0, NOW_S)
        window = job_candidates(state, 0, NOW_S)
        assert not window.features[:, features.BLOCKED_GPUS :].any(), "nothing is blocked"

    def test_whole_nodes(self) -> None:
        state = ClusterState.from_spec(ClusterSpec.uniform(2, 4))
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
        assert row[features.FREE] == pytest.approx(2 / 8)
        assert row[features.GPUS_FRAC] == pytest.approx(1 / 8)
        assert row[features.LARGEST_HOLE] == pytest.approx(1 / 4)
        assert window.reasons[window.seqs.tolist().index(3)] == windows.NO_HOLE

    def test_everything_is_finite_in_the_end(self) -> None:
        """No prediction, no GPU open: extremes stay finite."""
        state = ClusterState.from_spec(ClusterSpec.uniform(1, 2))
        run(state, [0], predicted_s=0.0, start_s=NOW_S)
        add(state, 1, 0.0, submit_s=NOW_S + 5, spread=0.0)
        add(state, 64, 1e12, spread=50.0)
        state.drain_node(0)
        assert np.isfinite(job_candidates(state, 0, NOW_S).features).all()


class TestRows:
    def crowded(self) -> ClusterState:
        """Two nodes of 4 GPUs with 3 free; jobs 1 to 40, the odd of 1 GPU fit, the even of 4 do not.

        By key: 39, 37, ..., 1, then 40, 38, ..., 2.
        """
        state = ClusterState.from_spec(ClusterSpec.uniform(2, 4))
        run(state, [0, 1, 2, 3, 4])
        for seq in range(1, 41):
            assert add(state, 1 if seq % 2 else 4, 1000 - seq, submit_s=float(seq)) == seq
        return state

    def test_first_that_fit_then_oldest_then_first_that_do_not(self) -> None:
        window = job_candidates(self.crowded(), 0, NOW_S)
        fit, old, rest = list(range(39, 15, -2)), [1, 2, 3], list(range(40, 24, -2))
        assert window.seqs.tolist() == [-1, *fit, *old, *rest]
        assert len(window.seqs) == WINDOW_ROWS
        assert window.legal.tolist() == [True] + [True] * 12 + [True, False, True] + [False] * 8

    def test_the_oldest_are_not_shown_twice(self) -> None:
        state = self.crowded()
        for seq in range(2, 39, 2):
            state.remove_waiting(seq)
        for seq in range(1, 15, 2):
            state.remove_waiting(seq)
        assert job_candidates(state, 0, NOW_S).seqs.tolist() == [-1, *range(39, 13, -2), 40]

    def test_padding_is_zero_in_buffers_that_were_used_before(self) -> None:
        state = self.crowded()
        buffers = windows.empty_window()
        windows.job_window(state.arrays, 0, NOW_S, buffers)
        assert buffers.info[0] == WINDOW_ROWS
        for seq in range(1, 39):
            state.remove_waiting(seq)
        windows.job_window(state.arrays, 0, NOW_S, buffers)
        assert buffers.info[:2].tolist() == [3, 1]
        assert not buffers.features[3:].any()
        assert (buffers.slot[3:] == -1).all()
        assert (buffers.node[3:] == -1).all()
        assert (buffers.reason[3:] == windows.PADDING).all()
        windows.variant_window(state.arrays, 0, state.slot_of(39), NOW_S, buffers)
        assert buffers.info[:2].tolist() == [1, 0]
        assert not buffers.features[1:].any()

    def test_looking_changes_nothing(self) -> None:
        state = self.crowded()
        before = state.digest()
        job_candidates(state, 0, NOW_S)
        variant_candidates(state, 0, 39, NOW_S)
        assert state.digest() == before

    def test_every_reason_has_words(self) -> None:
        codes = [
            windows.LEGAL,
            windows.TOO_FEW_FREE,
            windows.NO_HOLE,
            windows.GUARD_HALF_FREE,
            windows.GUARD_HOLD,
            windows.PADDING,
            windows.HELD,
        ]
        assert sorted(windows.REASON_TEXT) == sorted(codes)
        assert len(set(codes)) == len(codes)

    @settings(max_examples=80, deadline=None)
    @given(
        st.lists(st.integers(0, 4), min_size=3, max_size=3),
        st.lists(st.tuples(st.integers(1, 9), st.integers(1, 50)), min_size=1, max_size=30),
        st.sampled_from(["predicted_gpu_time", "submit"]),
    )
    def test_the_reference_is_the_rule(
        self, taken: list[int], jobs: list[tuple[int, int]], order: Order
    ) -> None:
        state = ClusterState.from_spec(ClusterSpec.uniform(3, 4), order=order)
        for node, count in enumerate(taken):
            if count:
                run(state, range(4 * node, 4 * node + count))
        for submit_s, (gpus, predicted_s) in enumerate(jobs):
            add(state, gpus, predicted_s, submit_s=submit_s)
        window = job_candidates(state, 0, NOW_S)
        rule = load_scheduler("qssf-backfill" if order == "predicted_gpu_time" else "fifo-backfill")
        action = rule.decide(state, 0, NOW_S).action
        assert window.features[:, features.IS_REFERENCE].tolist() == [
            float(row == window.reference) for row in range(len(window.seqs))
        ]
        feasible = window.features[:, features.FEASIBLE] == 1
        assert (window.nodes[feasible] >= 0).all()
        for row in np.flatnonzero(feasible).tolist():
            state.check_start(int(window.seqs[row]), start_action(state, 0, int(window.seqs[row])).gpus)
        if isinstance(action, Start):
            assert window.seqs[window.reference] == action.seq
            assert state.gpu_location(action.gpus[0])[0] == window.nodes[window.reference]
        else:
            assert window.reference == 0
            assert not feasible.any()


class TestMasks:
    def state(self, taken: int) -> ClusterState:
        """Three nodes of 4 GPUs, `taken` in use; jobs of 1, 1, 12 GPUs wait, the second comes first."""
        state = ClusterState.from_spec(ClusterSpec.uniform(3, 4))
        run(state, range(taken))
        for gpus, predicted_s in ((1, 200), (1, 100), (12, 10)):
            add(state, gpus, predicted_s)
        return state

    def test_no_waiting_while_half_is_free(self) -> None:
        window = job_candidates(self.state(taken=6), 0, NOW_S)
        assert window.reasons.tolist() == [
            windows.GUARD_HALF_FREE,
            windows.LEGAL,
            windows.LEGAL,
            windows.TOO_FEW_FREE,
        ]
        assert job_candidates(self.state(taken=7), 0, NOW_S).legal.tolist() == [True, True, True, False]

    def test_half_of_what_is_up(self) -> None:
        state = self.state(taken=7)
        state.drain_node(1)  # 4 of 8 are free then
        assert not job_candidates(state, 0, NOW_S).legal[0]

    def test_waiting_is_legal_where_nothing_fits(self) -> None:
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
            windows.GUARD_HOLD,
            windows.GUARD_HOLD,
            windows.LEGAL,
            windows.TOO_FEW_FREE,
        ]
        assert window.reference == 2
        assert window.features[:, features.IS_REFERENCE].tolist() == [0, 0, 1, 0]

    def test_a_second_earlier_there_is_a_choice(self) -> None:
        state = self.state(taken=7)
        set_held_since(state, 1, NOW_S - MAX_HOLD_S + 1)
        assert job_candidates(state, 0, NOW_S).legal.tolist() == [True, True, True, False]

    def test_overdue_but_it_does_not_fit(self) -> None:
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

    def test_an_overdue_job_is_shown_wherever_it_stands(self) -> None:
        state = TestRows().crowded()
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

    def test_jobs_that_were_passed_over_are_kept_back(self) -> None:
        state = self.waited()
        assert not has_startable(state, 0, NOW_S)
        assert not has_startable(state, 0, NOW_S + HOLD_S - 1)
        assert has_startable(state, 0, NOW_S + HOLD_S)
        assert next_hold_end_s(state, NOW_S) == NOW_S + HOLD_S
        assert next_hold_end_s(state, NOW_S + HOLD_S) == math.inf
        window = job_candidates(state, 0, NOW_S + 60)
        assert window.seqs.tolist() == [-1, 1, 2, 3]
        assert window.reasons.tolist() == [windows.LEGAL, windows.HELD, windows.HELD, windows.TOO_FEW_FREE]
        assert window.features[:, features.FEASIBLE].tolist() == [0, 0, 0, 0]
        assert window.features[:, features.HELD] == pytest.approx([0, log(60, 12), log(60, 12), 0])
        assert window.reference == 0

    def test_what_arrives_meanwhile_may_start(self) -> None:
        state = self.waited()
        seq = add(state, 1, 999)
        window = job_candidates(state, 0, NOW_S + 60)
        assert window.seqs[window.legal].tolist() == [-1, seq]
        assert window.features[window.seqs == seq, features.INFEASIBLE_AHEAD] == pytest.approx(log(1, 8)), (
            "job 3"
        )
        assert has_startable(state, 0, NOW_S + 60)

    def test_a_hold_is_for_the_blocked_job_and_ends_when_that_starts(self) -> None:
        state = ClusterState.from_spec(ClusterSpec.uniform(2, 4))
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

    def test_a_hold_ends_when_the_blocked_job_leaves(self) -> None:
        state = self.waited()
        state.remove_waiting(3)
        assert job_candidates(state, 0, NOW_S + 60).legal.tolist() == [True, True, True]
        assert has_startable(state, 0, NOW_S + 60)

    def test_with_nothing_blocked_it_lasts_its_time(self) -> None:
        state = ClusterState.from_spec(ClusterSpec.uniform(1, 4))
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
            == [windows.GUARD_HALF_FREE] + [windows.LEGAL] * 3
        )

    def test_the_first_wait_counts_for_the_longest_hold(self) -> None:
        state = self.waited()
        later = NOW_S + HOLD_S + 5
        hold(state, job_candidates(state, 0, later), later)
        assert next_hold_end_s(state, later) == later + HOLD_S
        window = job_candidates(state, 0, later)
        assert window.features[window.seqs == 1, features.HELD] == pytest.approx(log(HOLD_S + 5, 12))

    def test_a_new_attempt_starts_afresh(self) -> None:
        state = self.waited()
        state.start(1, [8], NOW_S + 5)
        state.requeue(1, NOW_S + 10)
        window = job_candidates(state, 0, NOW_S + 10)
        assert window.reasons[window.seqs == 1] == windows.LEGAL
        assert window.features[window.seqs == 1, features.HELD] == 0

    def test_jobs_outside_the_window_are_not_kept_back(self) -> None:
        state = TestRows().crowded()
        hold(state, job_candidates(state, 0, NOW_S), NOW_S)
        window = job_candidates(state, 0, NOW_S)
        assert window.seqs[window.legal].tolist() == [-1, 15, 13, 11, 9, 7, 5], (
            "1 and 3 were among the oldest"
        )


class TestVariants:
    def test_best_fit_first_then_other_free_counts_and_the_emptiest(self) -> None:
        state = ClusterState.from_spec(ClusterSpec.uniform(6, 8))
        for node, taken in enumerate((0, 5, 6, 7, 3, 6)):  # free: 8, 3, 2, 1, 5, 2
            if taken:
                run(state, range(8 * node, 8 * node + taken), predicted_s=100.0 * node, start_s=NOW_S)
        seq = add(state, 1, 50, submit_s=NOW_S)
        window = variant_candidates(state, 0, seq, NOW_S)
        assert window.kind == "how"
        assert window.nodes.tolist() == [3, 2, 1, 0]
        assert len(window.nodes) == MAX_VARIANTS
        assert window.seqs.tolist() == [seq] * 4
        assert window.legal.all()
        assert window.reference == 0
        shared = {
            "is_variant": 1,
            "feasible": 1,
            "predicted_log": log(50, 12),
            "spread": 1 / 4,
            "predicted_gpu_time_log": log(50, 15),
            "gpus_log": 1 / 8,
            "gpus_frac": 1 / 48,
            "free_after_frac": 20 / 48,
            "free_frac": 21 / 48,
            "full_nodes_frac": 1 / 6,
            "largest_hole_frac": 1,
            "queue_log": log(1, 8),
            "queued_demand_log": log(1 / 48, 4),
            "queued_work_log": log(50 / 48, 15),
        }
        row_is(window, 0, shared | {"is_reference": 1, "leftover_frac": 0, "node_ends_log": log(300, 12)})
        row_is(window, 1, shared | {"leftover_frac": 1 / 8, "node_ends_log": log(200, 12)})
        row_is(window, 2, shared | {"leftover_frac": 2 / 8, "node_ends_log": log(100, 12)})
        row_is(window, 3, shared | {"leftover_frac": 7 / 8, "opens_node": 1})
        assert start_action(state, 0, seq) == start_action(state, 0, seq, int(window.nodes[0]))

    def test_equal_free_counts_are_one_way(self) -> None:
        state = ClusterState.from_spec(ClusterSpec.uniform(4, 2))
        seq = add(state, 1, 50)
        assert variant_candidates(state, 0, seq, 0.0).nodes.tolist() == [0]

    def test_only_nodes_that_hold_it(self) -> None:
        state = ClusterState.from_spec(ClusterSpec.uniform(3, 4))
        run(state, [0, 1, 2])
        run(state, [4])
        seq = add(state, 2, 50)
        assert variant_candidates(state, 0, seq, 0.0).nodes.tolist() == [1, 2]

    def test_a_gang_over_nodes_has_one_way(self) -> None:
        state = ClusterState.from_spec(ClusterSpec.uniform(3, 2))
        run(state, [0])
        seq = add(state, 3, 50)
        window = variant_candidates(state, 0, seq, 0.0)
        assert window.nodes.tolist() == [1]
        assert window.features[0, features.IS_REFERENCE] == 1
        assert window.legal.tolist() == [True]


class Watcher:
    """A scheduler that acts like another and notes every window it is asked in."""

    order: Order = "predicted_gpu_time"
    information: Information = "causal"

    def __init__(self, name: str) -> None:
        self.name = name
        self._inner = load_scheduler(name, seed=5)
        self.seen: list[tuple[float, int, bytes, str]] = []

    def decide(self, state: ClusterState, partition: int, now_s: float, *, record: bool = False) -> Decision:
        window = job_candidates(state, partition, now_s)
        self.seen.append((now_s, window.reference, window.features.tobytes(), state.digest()))
        return self._inner.decide(state, partition, now_s, record=record)


class TestNoTruthInFeatures:
    def windows_of(
        self, trace: Trace, spec: ClusterSpec, stamps: Predictions, name: str
    ) -> tuple[Watcher, np.ndarray]:
        watcher = Watcher(name)
        table = Engine(trace, spec, predictions=stamps).run(watcher)
        return watcher, table.start_s

    @pytest.mark.parametrize("name", ["qssf-backfill", "random"])
    @pytest.mark.parametrize("restamp", [False, True])
    def test_windows_are_the_same_until_the_first_end_that_differs(self, name: str, restamp: bool) -> None:
        trace, spec = synthesize("helios", jobs=300, load=1.3, gpus=32, seed=2)
        stamps = predict_trace(trace, spec)
        before, start_s = self.windows_of(trace, spec, stamps, name)
        longer = trace.duration_s.copy()
        changed = np.flatnonzero(start_s > np.quantile(start_s, 0.5))
        longer[changed] = np.where(
            changed % 2 == 0, longer[changed] * 3 + 7, np.maximum(longer[changed] // 2, 1)
        )
        columns = {"predicted_s": trace.predicted_s} if np.isfinite(trace.predicted_s).all() else {}
        other = Trace.from_columns(
            name="other",
            submit_s=trace.submit_s,
            duration_s=longer,
            num_gpus=trace.num_gpus,
            vc=trace.vc,
            **columns,
        )
        first_end_s = (start_s + np.minimum(longer, trace.duration_s))[longer != trace.duration_s].min()
        if restamp:
            new = predict_trace(other, spec)
            later = new.predicted_s != stamps.predicted_s
            assert later.any()
            first_end_s = min(first_end_s, trace.submit_s[later].min())
            stamps = new
        after, _ = self.windows_of(other, spec, stamps, name)
        one = [seen for seen in before.seen if seen[0] < first_end_s]
        two = [seen for seen in after.seen if seen[0] < first_end_s]
        assert len(one) > 30
        assert one == two
        assert before.seen != after.seen
