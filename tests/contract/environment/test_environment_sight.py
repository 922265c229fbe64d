"""The environment sees the same state as a broker, and its actor sees no true run times."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from rlsched.cluster.spec import ClusterSpec
from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Action, Wait
from rlsched.decide.policies.policy import Policy
from rlsched.decide.rows.candidates import CandidateRows as Rows
from rlsched.decide.rows.candidates import (
    contested,
    first_in_order,
    job_candidates,
    variant_candidates,
)
from rlsched.decide.rule_scheduler import RuleScheduler
from rlsched.decide.scheduler import Decision, Scheduler
from rlsched.decide.schema import CRITIC_FEATURES, NUM_FEATURES, WINDOW_ROWS
from rlsched.decide.start import start_action
from rlsched.workload.trace import Trace
from rlsched_envs.sim.engine import Engine, PredictedTimes
from rlsched_envs.sim.job_table import JobTable
from rlsched_envs.training.fleet import Fleet
from rlsched_envs.training.small_clusters import load_window
from rlsched_envs.training.sources import EpisodeJobs, EpisodeSource, draw_window
from tests.quick import quick
from tests.support.sim.episodes import CONFIG, TRUE_LOG, Choice, random_row

REFERENCE = Policy("qssf-backfill")

# ---- one state, two drivers ----------------------------------------------------------------------


def trace_of(window: EpisodeJobs) -> tuple[Trace, ClusterSpec, PredictedTimes]:
    trace = Trace.from_columns(
        name="window",
        submit_s=window.submit_s,
        duration_s=window.duration_s,
        num_gpus=window.gpus.astype(float),
    )
    return trace, ClusterSpec.uniform(window.nodes, 8), PredictedTimes(window.predicted_s, window.spread)


class Driver(Scheduler):
    """Plays an episode through the `Scheduler` interface: the reference's warm-up, an agent, its tail."""

    name = policy_id = "driver"
    order = REFERENCE.rule.order

    def __init__(self, engine: Engine, choose: Choice, drains: bool) -> None:
        self._engine, self._choose, self._drains = engine, choose, drains
        self._rule = RuleScheduler(REFERENCE)
        self._by_rule, self._arrived = True, 0
        self.windows: list[tuple[bytes, list[bool], int]] = []
        self.waits = 0

    def on_instant(self, _: float) -> None:
        """The decider depends on the arrivals before this instant; the reference ignores holds."""
        last = CONFIG.warmup_jobs + CONFIG.agent_jobs
        self._by_rule = self._arrived < CONFIG.warmup_jobs or (not self._drains and self._arrived >= last)
        if self._by_rule:
            self._engine.state.arrays.job.held_until_s[:] = -np.inf
        self._arrived = int(self._engine.arrays.progress.run.next_row[0])

    def _pick(self, rows: Rows) -> int:
        mask = np.zeros(WINDOW_ROWS, np.bool_)
        mask[: len(rows.legal)] = rows.legal
        self.windows.append((rows.arrays.features.tobytes(), mask.tolist(), rows.reference))
        return self._choose(mask)

    def _act(self, state: ClusterState, partition: int, now_s: float) -> Action:
        if not contested(state, partition):
            return start_action(state, partition, first_in_order(state, partition, now_s))
        jobs = job_candidates(state, partition, now_s)
        legal = np.flatnonzero(jobs.legal)
        row = int(legal[0]) if legal.size == 1 else self._pick(jobs)
        if row == 0:
            self.waits += 1
            return Wait()
        seq = int(jobs.seqs[row])
        ways = variant_candidates(state, partition, seq, now_s)
        if len(ways.seqs) == 1:
            return start_action(state, partition, seq)
        return start_action(state, partition, seq, int(ways.nodes[self._pick(ways)]))

    def decide(self, state: ClusterState, partition: int, now_s: float, *, record: bool = False) -> Decision:
        if self._by_rule:
            return self._rule.decide(state, partition, now_s, record=record)
        return Decision(action=self._act(state, partition, now_s), source="policy", marks_hold=True)


def loaded(sources: list[EpisodeSource], window: EpisodeJobs, drains: bool) -> Fleet:
    fleet = Fleet(sources, 1, CONFIG, seed=0)
    load_window(fleet._arrays.sim, 0, window, fleet._class_of)
    last = CONFIG.warmup_jobs + CONFIG.agent_jobs
    assert fleet._begin(0, last, int(drains))
    return fleet


@pytest.mark.parametrize("drains", [True, False])
@pytest.mark.parametrize("seed", quick([0, 2, 3, 4, 5, 6], lambda seed: seed < 3))
def test_scheduler_and_environment_see_the_same_bytes(
    sources: list[EpisodeSource], seed: int, drains: bool
) -> None:
    window = draw_window(sources[seed % 2], CONFIG, np.random.default_rng(seed))
    fleet, choose = loaded(sources, window, drains), random_row(seed)
    seen, info = [], {}
    while not info:
        actor = np.ascontiguousarray(fleet.observations[0, :, :NUM_FEATURES])
        seen.append((actor.tobytes(), fleet.masks[0].tolist(), fleet.reference_row(0)))
        info = fleet.step(np.array([choose(fleet.masks[0])]), restart=False)[0]

    trace, spec, predictions = trace_of(window)
    engine = Engine(trace, spec, order=REFERENCE.rule.order, predictions=predictions)
    driver = Driver(engine, random_row(seed), drains)
    table = engine.run(driver, on_instant=driver.on_instant)
    assert driver.windows == seen
    assert len(seen) > 10
    assert driver.waits > 0
    outcome = fleet._arrays.sim.progress.outcome
    np.testing.assert_array_equal(table.start_s, outcome.start_s[0])
    np.testing.assert_array_equal(table.end_s, outcome.end_s[0])

    reference = Engine(trace, spec, order=REFERENCE.rule.order, predictions=predictions).run_rule(
        REFERENCE.rule
    )
    agents = slice(CONFIG.warmup_jobs, None)
    schedule = info["schedule"]

    def queue_mean_s(table: JobTable) -> float:
        return float((table.start_s - trace.submit_s)[agents].mean())

    assert schedule["queue_mean_s"] == queue_mean_s(table)
    assert schedule["reference_queue_mean_s"] == queue_mean_s(reference)
    work = float((trace.duration_s * trace.num_gpus).sum())
    capacity = spec.num_gpus * float(table.end_s.max())
    assert schedule["gpu_utilisation_frac"] == pytest.approx(work / capacity)
    regret = float((table.end_s - reference.end_s).sum())
    assert schedule["regret_job_s"] == pytest.approx(regret, rel=1e-9, abs=1e-3), "for any order of ends"
    queued = float((reference.start_s - trace.submit_s)[agents].sum())
    assert info["episode"]["r"] == pytest.approx(-100 * regret / queued, rel=1e-4, abs=1e-4)


# ---- hidden from the actor -----------------------------------------------------------------


def test_true_run_times_change_the_critic_and_not_the_actor(sources: list[EpisodeSource]) -> None:
    """A job that the reference has started and the agent has not: only the critic has its run time."""
    told = 0
    for seed in range(8):
        window = draw_window(sources[seed % 2], CONFIG, np.random.default_rng(seed))
        fleet, choose = loaded(sources, window, True), random_row(seed)
        while not fleet.dones[0]:
            fleet.step(np.array([choose(fleet.masks[0])]), restart=False)
        mine = fleet._arrays.sim.progress.outcome.start_s[0].copy()
        row = int((mine - fleet._arrays.known.reference_start_s[0]).argmax())
        durations = window.duration_s.copy()
        durations[row] = durations[row] + 3600.0 if durations[row] < 60 else 1.0
        other = loaded(sources, msgspec.structs.replace(window, duration_s=durations), True)
        fleet, choose = loaded(sources, window, True), random_row(seed)
        first_end_s = mine[row] + min(durations[row], window.duration_s[row])
        while fleet._arrays.sim.progress.run.now_s[0, 0] < first_end_s and not fleet.dones[0]:
            one, two = fleet.observations[0], other.observations[0]
            assert one[:, :NUM_FEATURES].tobytes() == two[:, :NUM_FEATURES].tobytes()
            assert fleet.masks[0].tolist() == other.masks[0].tolist()
            told += int((one[:, NUM_FEATURES:] != two[:, NUM_FEATURES:]).any())
            rows = np.array([choose(fleet.masks[0])])
            fleet.step(rows, restart=False)
            other.step(rows, restart=False)
    assert told > 50


def test_critic_columns(sources: list[EpisodeSource]) -> None:
    window = draw_window(sources[0], CONFIG, np.random.default_rng(3))
    fleet, choose = loaded(sources, window, True), random_row(3)
    names = [name for name, _ in CRITIC_FEATURES]
    reference = fleet._arrays.known.reference_start_s[0]
    progress, gpus = fleet._arrays.sim.progress, window.gpus
    ahead = 0
    while not fleet.dones[0]:
        now_s = progress.run.now_s[0, 0]
        arrived = window.submit_s <= now_s
        theirs = int((arrived & (reference > now_s)).sum())
        mine = arrived & ~(progress.outcome.end_s[0] <= now_s)
        runs = mine & (progress.outcome.start_s[0] <= now_s)
        left = (((progress.outcome.start_s[0] + window.duration_s - now_s) * gpus)[runs]).sum()
        queued = ((window.duration_s * gpus)[mine & ~runs]).sum()
        expected = {
            "waiting_beyond_reference": ((mine & ~runs).sum() - theirs) / 32,
            "reference_waiting_log": np.log1p(theirs) / 8,
            "episode_left_frac": 1 - arrived.mean(),
            "true_left_log": np.log1p(left / (8 * window.nodes)) / 15,
            "true_queued_log": np.log1p(queued / (8 * window.nodes)) / 15,
        }
        for hours, name in ((1, "1h"), (6, "6h"), (24, "1d")):
            until_s = now_s + 3600 * hours
            inside = np.minimum(reference, until_s) - np.maximum(window.submit_s, now_s)
            expected[f"reference_in_{name}_log"] = np.log1p(np.maximum(inside, 0).sum() / (3600 * hours)) / 8
        first = fleet.observations[0, 0, NUM_FEATURES:]
        assert {name: first[names.index(name)] for name in expected} == pytest.approx(expected, abs=1e-5)
        slots = fleet._arrays.window.slot[0]
        true_s = np.where(slots >= 0, window.duration_s[progress.ends.row[0][slots]], 0.0)
        assert fleet.observations[0, :, NUM_FEATURES + TRUE_LOG] == pytest.approx(
            np.log1p(true_s) / 12, abs=1e-6
        )
        assert set(names) == {*expected, "true_log"}
        ahead += int(mine.sum() != theirs)
        fleet.step(np.array([choose(fleet.masks[0])]), restart=False)
    assert ahead > 10
