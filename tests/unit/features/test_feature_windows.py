"""Rows of a window: jobs, and ways to place one."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rlsched.cluster.demand import Demand
from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Start
from rlsched.decide.compiled import for_state
from rlsched.decide.order.keys import Order
from rlsched.decide.order.queue import OrderedQueue
from rlsched.decide.registry import load_scheduler
from rlsched.decide.rows import arrays, columns, reasons, variants, windows
from rlsched.decide.rows.candidates import job_candidates, variant_candidates
from rlsched.decide.schema import MAX_VARIANTS, WINDOW_ROWS
from rlsched.decide.start import start_action
from rlsched.models.catalogue import load_catalogue
from tests.support.sim.states import NOW_S, add, crowded, log, row_is, run


class TestRows:
    def test_first_that_fit_then_oldest_then_first_that_do_not(self) -> None:
        window = job_candidates(crowded(), 0, NOW_S)
        fit, old, rest = list(range(39, 15, -2)), [1, 2, 3], list(range(40, 24, -2))
        assert window.seqs.tolist() == [-1, *fit, *old, *rest]
        assert len(window.seqs) == WINDOW_ROWS
        assert window.legal.tolist() == [True] + [True] * 12 + [True, False, True] + [False] * 8

    def test_oldest_jobs_are_not_shown_twice(self) -> None:
        state = crowded()
        for seq in range(2, 39, 2):
            state.remove_waiting(seq)
        for seq in range(1, 15, 2):
            state.remove_waiting(seq)
        assert job_candidates(state, 0, NOW_S).seqs.tolist() == [-1, *range(39, 13, -2), 40]

    def test_padding_is_zero_in_reused_buffers(self) -> None:
        state = crowded()
        buffers = arrays.empty_window()
        for_state(windows.job_window, state)(state.arrays, 0, NOW_S, buffers)
        assert buffers.info[0] == WINDOW_ROWS
        for seq in range(1, 39):
            state.remove_waiting(seq)
        for_state(windows.job_window, state)(state.arrays, 0, NOW_S, buffers)
        assert buffers.info[:2].tolist() == [3, 1]
        assert not buffers.features[3:].any()
        assert (buffers.slot[3:] == -1).all()
        assert (buffers.node[3:] == -1).all()
        assert (buffers.reason[3:] == reasons.PADDING).all()
        for_state(variants.variant_window, state)(state.arrays, 0, state.slot_of(39), NOW_S, buffers)
        assert buffers.info[:2].tolist() == [1, 0]
        assert not buffers.features[1:].any()

    def test_filling_a_window_changes_no_state(self) -> None:
        state = crowded()
        before = state.digest()
        job_candidates(state, 0, NOW_S)
        variant_candidates(state, 0, 39, NOW_S)
        assert state.digest() == before

    def test_every_reason_has_a_text(self) -> None:
        codes = [
            reasons.LEGAL,
            reasons.TOO_FEW_FREE,
            reasons.NO_HOLE,
            reasons.GUARD_HALF_FREE,
            reasons.GUARD_HOLD,
            reasons.PADDING,
            reasons.HELD,
            reasons.RESERVED,
        ]
        assert sorted(reasons.REASON_TEXT) == sorted(codes)
        assert len(set(codes)) == len(codes)

    @settings(max_examples=80, deadline=None)
    @given(
        st.lists(st.integers(0, 4), min_size=3, max_size=3),
        st.lists(st.tuples(st.integers(1, 9), st.integers(1, 50)), min_size=1, max_size=30),
        st.sampled_from(["qssf-backfill", "fifo-backfill"]),
    )
    def test_reference_is_the_rule(self, taken: list[int], jobs: list[tuple[int, int]], name: str) -> None:
        rule = load_scheduler(name)
        state = ClusterState.from_spec(ClusterSpec.uniform(3, 4), OrderedQueue(rule.order))
        for node, count in enumerate(taken):
            if count:
                run(state, range(4 * node, 4 * node + count))
        for submit_s, (gpus, predicted_s) in enumerate(jobs):
            add(state, gpus, predicted_s, submit_s=submit_s)
        window = job_candidates(state, 0, NOW_S)
        action = rule.decide(state, 0, NOW_S).action
        assert window.features[:, columns.IS_REFERENCE].tolist() == [
            float(row == window.reference) for row in range(len(window.seqs))
        ]
        feasible = window.features[:, columns.FEASIBLE] == 1
        assert (window.nodes[feasible] >= 0).all()
        for row in np.flatnonzero(feasible).tolist():
            state.check_start(int(window.seqs[row]), start_action(state, 0, int(window.seqs[row])).gpus)
        if isinstance(action, Start):
            assert window.seqs[window.reference] == action.seq
            assert state.gpu_location(action.gpus[0])[0] == window.nodes[window.reference]
        else:
            assert window.reference == 0
            assert not feasible.any()


class TestVariants:
    def test_best_fit_first_then_other_free_counts_and_the_emptiest(self) -> None:
        state = ClusterState.from_spec(ClusterSpec.uniform(6, 8), OrderedQueue(Order(by="area")))
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
        state = ClusterState.from_spec(ClusterSpec.uniform(4, 2), OrderedQueue(Order(by="area")))
        seq = add(state, 1, 50)
        assert variant_candidates(state, 0, seq, 0.0).nodes.tolist() == [0]

    def test_only_nodes_that_hold_the_job(self) -> None:
        state = ClusterState.from_spec(ClusterSpec.uniform(3, 4), OrderedQueue(Order(by="area")))
        run(state, [0, 1, 2])
        run(state, [4])
        seq = add(state, 2, 50)
        assert variant_candidates(state, 0, seq, 0.0).nodes.tolist() == [1, 2]

    def test_gang_of_several_nodes_has_one_way(self) -> None:
        state = ClusterState.from_spec(ClusterSpec.uniform(3, 2), OrderedQueue(Order(by="area")))
        run(state, [0])
        seq = add(state, 3, 50)
        window = variant_candidates(state, 0, seq, 0.0)
        assert window.nodes.tolist() == [1]
        assert window.features[0, columns.IS_REFERENCE] == 1
        assert window.legal.tolist() == [True]


def test_gang_on_small_nodes_of_its_type_starts_at_every_clock() -> None:
    large, small = (NodeGroup(count=2, gpus=gpus, gpu_type=kind) for gpus, kind in ((8, "V100"), (4, "P100")))
    state = ClusterState.from_spec(
        ClusterSpec(name="c", nodes=(large, small)), OrderedQueue(Order(by="area"))
    )
    state.use_models(load_catalogue().arrays(state.kind_names))
    state.weigh_energy(0.5)
    seq = state.add_job(
        demand=Demand(gpus=8, gpu_types=("P100",)), submit_s=0.0, predicted_s=60.0, spread=1.0
    )
    variants = variant_candidates(state, 0, seq, NOW_S)
    assert len(variants.seqs) > 1
    for row in range(len(variants.seqs)):
        start = variants.action(state, 0, row)
        state.check_start(seq, start.gpus, sm_clock_frac=start.sm_clock_frac)
