"""The schema of the features: names, hash and room; and no column contains true run times."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from rlsched.cluster.spec import ClusterSpec
from rlsched.cluster.state import ClusterState
from rlsched.decide.order.keys import Order
from rlsched.decide.registry import load_scheduler
from rlsched.decide.rows import columns
from rlsched.decide.rows.candidates import job_candidates
from rlsched.decide.scheduler import Decision, Scheduler
from rlsched.decide.schema import (
    ACTOR_FEATURES,
    FEASIBLE_ROWS,
    NUM_CRITIC,
    NUM_FEATURES,
    OLDEST_ROWS,
    SCHEMA,
    SERVED_SINCE,
    WINDOW_ROWS,
    FeatureSchema,
)
from rlsched.workload.synth import synthesize
from rlsched.workload.trace import Trace
from rlsched_envs.sim.engine import Engine, PredictedTimes, predict_trace
from rlsched_envs.training.vector import row_spaces
from tests.quick import quick

COLUMNS = {
    "is_wait": columns.IS_WAIT,
    "is_job": columns.IS_JOB,
    "is_variant": columns.IS_VARIANT,
    "is_reference": columns.IS_REFERENCE,
    "feasible": columns.FEASIBLE,
    "predicted_log": columns.PREDICTED,
    "spread": columns.SPREAD,
    "predicted_gpu_time_log": columns.GPU_TIME,
    "gpus_log": columns.GPUS,
    "gpus_frac": columns.GPUS_FRAC,
    "waited_log": columns.WAITED,
    "held_log": columns.HELD,
    "rank_log": columns.RANK,
    "free_after_frac": columns.FREE_AFTER,
    "leftover_frac": columns.LEFTOVER,
    "opens_node": columns.OPENS_NODE,
    "fit_in_log": columns.FIT_IN,
    "node_ends_log": columns.NODE_ENDS,
    "free_frac": columns.FREE,
    "full_nodes_frac": columns.FULL_NODES,
    "largest_hole_frac": columns.LARGEST_HOLE,
    "queue_log": columns.QUEUE,
    "queued_demand_log": columns.DEMAND,
    "queued_work_log": columns.WORK,
    "shorter_infeasible_log": columns.INFEASIBLE_AHEAD,
    "blocked_gpus_log": columns.BLOCKED_GPUS,
    "blocked_predicted_log": columns.BLOCKED_PREDICTED,
    "blocked_gpu_time_log": columns.BLOCKED_GPU_TIME,
    "blocked_waited_log": columns.BLOCKED_WAITED,
    "blocked_fit_in_log": columns.BLOCKED_FIT_IN,
    "blocked_key_ratio": columns.BLOCKED_KEY_RATIO,
    "ends_after_fit": columns.ENDS_AFTER_FIT,
    "energy_weight": columns.ENERGY_WEIGHT,
    "by_sharing": columns.BY_SHARING,
    "clock_frac": columns.CLOCK,
    "rate": columns.RATE,
    "partner_rate": columns.PARTNER_RATE,
    "partner_left_log": columns.PARTNER_LEFT,
    "power_frac": columns.POWER,
    "util_frac": columns.UTIL,
    "clock_bound": columns.CLOCK_BOUND,
    "gpu_memory_frac": columns.GPU_MEMORY,
    "preempts": columns.PREEMPTS,
    "index_log": columns.INDEX_LOG,
    "attained_log": columns.ATTAINED,
    "must_stay": columns.MUST_STAY,
    "by_preempting": columns.BY_PREEMPTING,
    "preempted_gpus_frac": columns.PREEMPTED_GPUS,
    "preempt_margin": columns.PREEMPT_MARGIN,
}


class TestSchema:
    def test_names_and_columns_agree(self) -> None:
        assert [name for name, _ in ACTOR_FEATURES] == list(COLUMNS)
        assert list(COLUMNS.values()) == list(range(NUM_FEATURES))
        assert {name: SCHEMA.column(name) for name in COLUMNS} == COLUMNS
        with pytest.raises(ValueError):
            SCHEMA.column("true_duration")

    def test_every_column_has_a_meaning(self) -> None:
        assert len({meaning for _, meaning in ACTOR_FEATURES}) == NUM_FEATURES

    def test_hash_depends_only_on_the_content(self) -> None:
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

    def test_names_and_order_change_the_hash(self) -> None:
        first, second, *rest = ACTOR_FEATURES
        variants = [(second, first, *rest), (first, *rest), (("other", first[1]), second, *rest)]
        hashes = {msgspec.structs.replace(SCHEMA, features=changed).hash for changed in variants}
        assert len(hashes | {SCHEMA.hash}) == 4

    def test_other_words_for_a_column_change_the_checksum_only(self) -> None:
        first, *rest = ACTOR_FEATURES
        other = msgspec.structs.replace(SCHEMA, features=((first[0], "other words"), *rest))
        assert other.hash == SCHEMA.hash
        assert other.checksum != SCHEMA.checksum
        assert SCHEMA.begins_with(other)

    def test_schema_accepts_networks_without_its_last_columns(self) -> None:
        shorter = msgspec.structs.replace(SCHEMA, version=SERVED_SINCE, features=ACTOR_FEATURES[:42])
        assert SCHEMA.begins_with(shorter)
        assert SCHEMA.begins_with(SCHEMA)
        assert not shorter.begins_with(SCHEMA)
        replace = msgspec.structs.replace
        assert not SCHEMA.begins_with(replace(shorter, features=ACTOR_FEATURES[1:42]))
        assert not SCHEMA.begins_with(replace(shorter, version=SERVED_SINCE - 1))
        assert not SCHEMA.begins_with(replace(shorter, hold_s=900.0))

    def test_observation_has_room_for_all(self) -> None:
        box, rows = row_spaces()
        assert box.shape == (WINDOW_ROWS, NUM_FEATURES)
        assert row_spaces(oracle=True)[0].shape == (WINDOW_ROWS, NUM_FEATURES + NUM_CRITIC)
        assert rows.n == WINDOW_ROWS
        assert WINDOW_ROWS > 1 + FEASIBLE_ROWS + OLDEST_ROWS


class Watcher(Scheduler):
    """A scheduler that acts like another and records every window."""

    order = Order(by="area")

    def __init__(self, name: str) -> None:
        self.name = self.policy_id = name
        self._inner = load_scheduler(name, seed=5)
        self.seen: list[tuple[float, int, bytes, str]] = []

    def decide(self, state: ClusterState, partition: int, now_s: float, *, record: bool = False) -> Decision:
        window = job_candidates(state, partition, now_s)
        self.seen.append((now_s, window.reference, window.features.tobytes(), state.digest()))
        return self._inner.decide(state, partition, now_s, record=record)


class TestNoTruthInFeatures:
    def windows_of(
        self, trace: Trace, spec: ClusterSpec, predictions: PredictedTimes, name: str
    ) -> tuple[Watcher, np.ndarray]:
        watcher = Watcher(name)
        table = Engine(trace, spec, order=watcher.order, predictions=predictions).run(watcher)
        return watcher, table.start_s

    @pytest.mark.parametrize("name", quick(["qssf-backfill", "random"], "qssf-backfill".__eq__))
    @pytest.mark.parametrize("restamp", [False, True])
    def test_windows_are_equal_until_the_first_different_end(self, name: str, restamp: bool) -> None:
        trace, spec = synthesize("helios", jobs=300, load=1.3, gpus=32, seed=2)
        predictions = predict_trace(trace, spec)
        before, start_s = self.windows_of(trace, spec, predictions, name)
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
            num_cpus=trace.num_cpus,
            vc=trace.vc,
            **columns,
        )
        first_end_s = (start_s + np.minimum(longer, trace.duration_s))[longer != trace.duration_s].min()
        if restamp:
            new = predict_trace(other, spec)
            later = new.predicted_s != predictions.predicted_s
            assert later.any()
            first_end_s = min(first_end_s, trace.submit_s[later].min())
            predictions = new
        after, _ = self.windows_of(other, spec, predictions, name)
        one = [seen for seen in before.seen if seen[0] < first_end_s]
        two = [seen for seen in after.seen if seen[0] < first_end_s]
        assert len(one) > 30
        assert one == two
        assert before.seen != after.seen
