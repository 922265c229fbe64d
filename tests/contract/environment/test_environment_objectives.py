"""Objectives on windows and in `rlsched/Cluster-v0`: terms two ways, returns, bounds and copies."""

from __future__ import annotations

import copy
import math
from datetime import UTC, datetime

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from rlsched.decide.dials.strategy import NUM_COLUMNS, NUM_DIALS
from rlsched.decide.dials.turning import RANGES
from rlsched.decide.policies.policy import Policy
from rlsched.energy.synth import synthesize
from rlsched.errors import InputError
from rlsched.objective import NUM_TERMS, PRESETS, TERMS, JobClass, Jobs, Objective, Term, ratios
from rlsched.settings import Seconds
from rlsched_envs.sim.physics import DEMAND_S
from rlsched_envs.training.dial_env import ClusterEnv
from rlsched_envs.training.sources import Drawn, EpisodeSource
from rlsched_envs.training.vector import ClusterVecEnv
from rlsched_envs.training.windows import Setting, Windows, draw_setting

DRAWN = Drawn(
    jobs=150,
    load_low=0.6,
    load_high=0.8,
    nodes_low=3,
    nodes_high=4,
    thins=True,
    slack_fracs=(0.5,),
    preemptible_fracs=(0.5,),
    energy_weights=(0.3,),
)
OURS = Objective(
    time=0.5,
    tail=0.2,
    late=0.1,
    peak=0.2,
    tail_after=Seconds(1800.0),
    classes=(JobClass(weight=4.0, max_gpus=1), JobClass(weight=0.5, slack=True)),
    bounds={"rest": 1.01, "urgent": 1.0},
)
MOVED = np.zeros(NUM_DIALS, np.float32)
MOVED[[list(RANGES).index(name) for name in ("defer", "pause", "gpu_price")]] = (0.4, 0.3, -0.4)


@pytest.fixture(scope="module")
def priced(sources: list[EpisodeSource]) -> list[EpisodeSource]:
    solar = synthesize("solar", datetime(2026, 1, 1, tzinfo=UTC), 200, seed=1)
    return [one.with_prices(solar) for one in sources]


def constant(moved: NDArray[np.float32]) -> NDArray[np.float64]:
    weights = np.zeros((NUM_DIALS, NUM_COLUMNS + 1))
    weights[:, -1] = np.arctanh(moved)
    return weights


def drawn(priced: list[EpisodeSource], count: int) -> list[Setting]:
    rng = np.random.default_rng(5)
    return [draw_setting(priced[k % 2], DRAWN, rng) for k in range(count)]


def test_terms_of_the_run_equal_the_sums_over_its_jobs(priced: list[EpisodeSource]) -> None:
    windows = Windows(drawn(priced, 4), priced, DRAWN, Policy("tuned"), objective=OURS)
    for k in range(len(windows)):
        (cost,) = windows.run([constant(MOVED)], [k])
        truth, outcome = windows._runs.batch.truth[k], windows._runs.batch.progress.outcome[k]
        window = windows.settings[k].window
        jobs = Jobs(
            gpus=window.gpus,
            run_s=window.duration_s,
            predicted_s=window.predicted_s,
            slack_s=np.array(truth.slack_s),
            preemptible=truth.pinned == 0,
        )
        expected = OURS.terms_by_job(jobs, outcome.end_s - truth.submit_s - truth.duration_s).sum(axis=1)
        for term in (Term.TIME, Term.URGENT, Term.REST, Term.TAIL, Term.LATE):
            assert cost.terms[term] == pytest.approx(expected[term], rel=1e-9), list(TERMS)[term]
        assert expected[Term.TAIL] > 0.0
        assert cost.terms[Term.PREEMPTIONS] == windows._runs.batch.progress.run.preemptions[k, 0] > 0
        assert np.array_equal(windows.offsets[k], OURS.offsets(jobs, window.nodes))


def test_other_objectives_leave_the_run_unchanged(priced: list[EpisodeSource]) -> None:
    settings = drawn(priced, 3)
    found = [
        Windows(settings, priced, DRAWN, Policy("tuned"), objective=one).run([constant(MOVED)])
        for one in (None, OURS)
    ]
    for name in ("energy_j", "money", "late", "urgent_s"):
        assert np.array_equal(found[0][name], found[1][name])
    assert not np.array_equal(found[0].delay_s, found[1].delay_s), "weighted by class"


def test_peak_is_what_a_demand_meter_shows(priced: list[EpisodeSource]) -> None:
    """One job on one node: the power is constant while it runs, and 0 before and after."""
    (one,) = drawn(priced, 1)
    jobs = DRAWN.jobs
    window = msgspec.structs.replace(
        one.window,
        submit_s=np.arange(jobs) * 86_400.0 / 4,
        duration_s=np.full(jobs, 600.0),
        gpus=np.ones(jobs, np.int32),
        workload=np.full(jobs, one.window.workload[0]),
        nodes=1,
    )
    setting = msgspec.structs.replace(one, window=window, slack_frac=0.0)
    windows = Windows([setting], priced, DRAWN, Policy("tuned"), objective=PRESETS["peak"])
    (cost,) = windows.run([constant(np.zeros(NUM_DIALS, np.float32))])
    node, outcome = windows._runs.batch.state.node[0], windows._runs.batch.progress.outcome[0]
    job_w = float(outcome.energy_j[0] / (outcome.end_s[0] - window.submit_s[0]))
    gpu_idle_w = windows._runs.batch.state.models.gpu.idle_w[setting.kinds[0]]
    watts = job_w + float(node.idle_w[0]) + (priced[0].gpus_per_node - 1) * float(gpu_idle_w)
    shown_w = watts * (1.0 - math.exp(-600.0 / DEMAND_S))
    assert cost.terms[Term.PEAK] == pytest.approx(shown_w, rel=1e-6)
    assert cost.terms[Term.WAKE_UPS] == jobs, "the node sleeps between the jobs"


@pytest.mark.parametrize("objective", [OURS, *PRESETS.values()], ids=["ours", *PRESETS])
def test_returns_equal_the_savings(priced: list[EpisodeSource], objective: Objective) -> None:
    env = ClusterEnv(sources=priced, drawn=DRAWN, objective=objective)
    for moved in (np.zeros(NUM_DIALS, np.float32), MOVED):
        env.reset(seed=2)
        total, done = 0.0, False
        while not done:
            _, reward, done, _, info = env.step(moved)
            total += reward
        ratio = np.array(list(info["ratios"].values()))
        assert list(info["ratios"]) == list(TERMS)
        mean, reference = (info["schedule"][f"{name}jct_mean_s"] for name in ("", "reference_"))
        assert mean / reference == pytest.approx(info["ratios"]["time"]), "both weighted by class"
        excess = np.maximum(ratio - objective.limits, 0.0) - np.maximum(1.0 - objective.limits, 0.0)
        cost = float(objective.weights(0.3, has_prices=True) @ ratio) + 5.0 * excess.sum()
        if moved.any():
            assert total == pytest.approx(100.0 * (1.0 - cost), abs=2e-3)
        else:
            assert total == 0.0
            assert (ratio == 1.0).all()


def test_penalties_replace_the_excess(priced: list[EpisodeSource]) -> None:
    def total(penalty: float) -> tuple[float, float]:
        bounded = Objective(money=1.0, bounds={"time": 1.0})
        env = ClusterVecEnv(priced, 1, seed=3, drawn=DRAWN, objective=bounded)
        penalties = np.zeros(NUM_TERMS)
        penalties[Term.TIME] = penalty
        env.set_penalties(penalties)
        env.reset()
        found, done = 0.0, False
        while not done:
            env.step_async(MOVED[None])
            _, rewards, dones, infos = env.step_wait()
            found, done = found + float(rewards[0]), bool(dones[0])
        return found, infos[0]["ratios"]["time"]

    (free, ratio), (penalised, _) = total(0.0), total(2.0)
    assert free - penalised == pytest.approx(200.0 * (ratio - 1.0), abs=2e-3)
    assert ratio > 1.0


def test_copies_keep_the_objective_and_the_penalties(priced: list[EpisodeSource]) -> None:
    env = ClusterVecEnv(priced, 2, seed=3, drawn=DRAWN, objective=OURS)
    env.set_penalties(np.full(NUM_TERMS, 2.0))
    env.reset()
    other = copy.deepcopy(env)
    for _ in range(40):
        for one in (env, other):
            one.step_async(np.tile(MOVED, (2, 1)))
        mine, theirs = env.step_wait(), other.step_wait()
        assert np.array_equal(mine[1], theirs[1])


@pytest.mark.parametrize("name", ["bill", "carbon", "peak"])
def test_objectives_of_electricity_need_prices(sources: list[EpisodeSource], name: str) -> None:
    with pytest.raises(InputError, match=r"needs windows with prices of electricity for .*; give --signal"):
        ClusterEnv(sources=sources, objective=name)


def test_terms_are_ratios_to_the_reference() -> None:
    mine, other = np.full((1, NUM_TERMS), 3.0), np.full((1, NUM_TERMS), 1.0)
    assert (ratios(mine, other, np.ones((1, NUM_TERMS))) == 2.0).all()
