"""`rlsched/Cluster-v0` with prices: thinned windows, exact money, and rewards that add up."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from rlsched.cluster.dials import PRICE_DIALS
from rlsched.decide.dials.strategy import NUM_COLUMNS, NUM_DIALS
from rlsched.decide.dials.turning import RANGES
from rlsched.decide.policies.policy import Policy
from rlsched.energy.series import DAY_S, HOUR_S, Integrals
from rlsched.energy.synth import synthesize
from rlsched.errors import InputError
from rlsched.models.power import NodePower
from rlsched.objective import LATE_S
from rlsched_envs.sim.signals import PRICE
from rlsched_envs.training.dial_env import ClusterEnv
from rlsched_envs.training.small_clusters import CORES_EACH
from rlsched_envs.training.sources import LOAD_ERROR, Drawn, EpisodeSource, draw_window
from rlsched_envs.training.tariffs import HORIZON_H
from rlsched_envs.training.windows import Setting, Windows, draw_setting

DRAWN = Drawn(
    jobs=200,
    load_low=0.5,
    load_high=0.7,
    nodes_low=3,
    nodes_high=4,
    thins=True,
    slack_fracs=(0.5, 1.0),
    preemptible_fracs=(0.5, 1.0),
    energy_weights=(0.3,),
)
STILL = np.zeros((NUM_DIALS, NUM_COLUMNS + 1))


@pytest.fixture(scope="module")
def priced(sources: list[EpisodeSource]) -> list[EpisodeSource]:
    solar = synthesize("solar", datetime(2026, 1, 1, tzinfo=UTC), 200, seed=1)
    return [one.with_prices(solar) for one in sources]


def settings(priced: list[EpisodeSource], count: int = 6) -> list[Setting]:
    rng = np.random.default_rng(3)
    return [draw_setting(priced[k % 2], DRAWN, rng) for k in range(count)]


def constant(**dials: float) -> NDArray[np.float64]:
    """A strategy of constant dials, as fractions of their ranges."""
    weights = STILL.copy()
    for name, value in dials.items():
        weights[list(RANGES).index(name), -1] = np.arctanh(value)
    return weights


def test_thinned_windows_keep_hours_and_load(sources: list[EpisodeSource]) -> None:
    late = replace(sources[0], day_s=5 * HOUR_S)
    recorded = {int((5 * HOUR_S + at_s) % DAY_S) for at_s in late.submit_s}
    rng, loads = np.random.default_rng(0), list[float]()
    for _ in range(30):
        window = draw_window(late, DRAWN, rng)
        assert window.gpus.size == DRAWN.jobs
        assert (np.diff(window.submit_s) >= 0.0).all()
        assert window.submit_s[0] < DAY_S
        assert {int(at_s % DAY_S) for at_s in window.submit_s} <= recorded
        work_gpu_s = float((window.duration_s * window.gpus).sum())
        loads.append(work_gpu_s / (window.nodes * late.gpus_per_node * float(np.ptp(window.submit_s))))
    low, high = DRAWN.load_low * (1.0 - LOAD_ERROR) - 0.1, DRAWN.load_high * (1.0 + LOAD_ERROR) + 0.1
    assert np.mean([low <= load <= high for load in loads]) > 0.8


def test_trace_that_is_shorter_than_a_window_is_repeated(sources: list[EpisodeSource]) -> None:
    window = draw_window(sources[0].rows(slice(0, 90)), DRAWN, np.random.default_rng(0))
    assert window.gpus.size == DRAWN.jobs
    assert (np.diff(window.submit_s) >= 0.0).all()


def test_accounts_of_the_run_equal_the_sum_over_its_jobs(priced: list[EpisodeSource]) -> None:
    windows = Windows(settings(priced), priced, DRAWN, Policy("tuned"))
    for weights in (STILL, constant(defer=0.5, pause=0.3)):
        for k in range(len(windows)):
            (cost,) = windows.run([weights], [k])
            truth, outcome = windows._runs.batch.truth[k], windows._runs.batch.progress.outcome[k]
            books = windows._runs.batch.progress.books[k, 0]
            assert books.cost - books.idle_cost == pytest.approx(outcome.cost.sum(), rel=1e-9)
            assert cost.money > outcome.cost.sum(), "nodes that run a job also draw power"
            assert cost.energy_j == pytest.approx(outcome.energy_j.sum(), rel=1e-9)
            end_s = outcome.end_s
            delay_s = end_s - truth.submit_s - truth.duration_s
            beyond_s = np.where(truth.slack_s > 0.0, np.maximum(delay_s - truth.slack_s, 0.0), delay_s)
            assert cost.delay_s == pytest.approx(beyond_s.sum(), rel=1e-9)
            late = (truth.slack_s > 0.0) & (delay_s > truth.slack_s + LATE_S)
            assert cost.late == late.sum()
            assert cost.urgent_s == pytest.approx(delay_s[truth.slack_s == 0.0].sum(), rel=1e-9, abs=1e-6)


def test_money_is_price_times_power_of_jobs_and_of_the_nodes_that_run_them(
    priced: list[EpisodeSource],
) -> None:
    """Jobs of one node that run one after another: each is the only job of its node."""
    (drawn,) = settings(priced, 1)
    window = msgspec.structs.replace(
        drawn.window,
        submit_s=np.arange(DRAWN.jobs) * 5.0 * HOUR_S,
        duration_s=np.minimum(drawn.window.duration_s, HOUR_S),
        gpus=np.minimum(drawn.window.gpus, priced[0].gpus_per_node),
    )
    setting = msgspec.structs.replace(drawn, window=window, slack_frac=0.0)
    windows = Windows([setting], priced, DRAWN, Policy("tuned"))
    (cost,) = windows.run([STILL])
    run, power = windows._runs.batch, NodePower()
    gpu_idle_w = run.state.models.gpu.idle_w[setting.kinds[0]]
    node_w = power.base_w + CORES_EACH * priced[0].gpus_per_node * power.cpu_idle_w_per_core
    signal, outcome = run.progress.signal[0], run.progress.outcome[0]
    prices = Integrals(0.0, HOUR_S, signal[PRICE : PRICE + 1], signal[PRICE + 2 : PRICE + 3])
    money = outcome.cost.sum()
    for row, submit_s in enumerate(window.submit_s):
        price = prices.between(float(submit_s), float(outcome.end_s[row]))[0]
        money += price * (node_w + (priced[0].gpus_per_node - window.gpus[row]) * gpu_idle_w)
    assert cost.money == pytest.approx(money, rel=1e-9)


def test_constant_price_is_energy(priced: list[EpisodeSource]) -> None:
    flat = synthesize("flat", datetime(2026, 1, 1, tzinfo=UTC), 200, mean=3.0)
    sources = [one.with_prices(flat, known_ahead_h=0.0) for one in priced]
    windows = Windows(settings(sources), sources, DRAWN, Policy("tuned"))
    still = windows.run([STILL])
    progress = windows._runs.batch.progress
    jobs_j = progress.books[:, 0].cost - progress.books[:, 0].idle_cost
    assert jobs_j == pytest.approx(3.0 * still.energy_j, rel=1e-9)
    moved = windows.run([constant(defer=0.9, pause=0.9)])
    assert (moved.money == still.money).all(), "at the mean, no job waits or pauses"
    assert (moved.delay_s == still.delay_s).all()


def test_price_dials_lower_the_bill_and_use_slack(priced: list[EpisodeSource]) -> None:
    windows = Windows(settings(priced, 12), priced, DRAWN, Policy("tuned"))
    still, moved = windows.run([STILL]), windows.run([constant(defer=0.15, pause=0.15)])
    assert np.log(moved.money / still.money).mean() < -0.01
    paused = windows.run([constant(pause=0.15)])
    assert np.log(paused.money / still.money).mean() < -0.005, "paused jobs do not start again at once"


def price_paid(name: str, priced: list[EpisodeSource]) -> NDArray[np.float64]:
    """Mean price of the energy of the jobs with slack, in each window."""
    chosen, found = settings(priced, 12), list[float]()
    windows = Windows(chosen, priced, DRAWN, Policy(name))
    for k in range(len(windows)):
        windows.run([STILL], [k])
        truth, outcome = windows._runs.batch.truth[k], windows._runs.batch.progress.outcome[k]
        patient = truth.slack_s > 0.0
        found.append(outcome.cost[patient].sum() / outcome.energy_j[patient].sum())
    return np.array(found)


def test_jobs_in_windows_follow_the_prices_that_their_policy_reads(priced: list[EpisodeSource]) -> None:
    blind = price_paid("tuned", priced)
    for name, saved in (("price-window", 0.01), ("price-percentile", 0.03)):
        assert np.log(price_paid(name, priced) / blind).mean() < -saved, name


def test_dials_at_0_cost_exactly_0_and_returns_equal_the_savings(priced: list[EpisodeSource]) -> None:
    env, moved = ClusterEnv(sources=priced, drawn=DRAWN), np.zeros(NUM_DIALS, np.float32)
    for seed in range(2):
        env.reset(seed=seed)
        done = False
        while not done:
            _, reward, done, _, info = env.step(moved)
            assert reward == 0.0
        assert info["schedule"]["money_frac"] == 1.0
    moved[[list(RANGES).index(name) for name in PRICE_DIALS]] = 0.2
    for seed in range(2):
        env.reset(seed=seed)
        total, done = 0.0, False
        while not done:
            _, reward, done, _, info = env.step(moved)
            total += reward
        schedule = info["schedule"]
        time = 1.0 - schedule["jct_mean_s"] / schedule["reference_jct_mean_s"]
        assert total == pytest.approx(100.0 * (0.7 * time + 0.3 * (1.0 - schedule["money_frac"])), abs=1e-3)


def test_a_window_in_the_environment_has_the_prices_of_its_day(priced: list[EpisodeSource]) -> None:
    setting = settings(priced, 1)[0]
    assert setting.tariff is not None
    assert setting.group.endswith("/2026-Q1") or setting.group.endswith("/2026-Q2")
    windows = Windows([setting], priced, DRAWN, Policy("tuned"))
    signal = windows._runs.batch.progress.signal[0]
    assert np.array_equal(signal[PRICE + 2], setting.tariff.signal(setting.day)[PRICE + 2])
    assert float(setting.window.submit_s[-1]) < HORIZON_H * HOUR_S


def test_windows_with_slack_need_prices(sources: list[EpisodeSource]) -> None:
    with pytest.raises(InputError, match=r"need prices of electricity"):
        draw_setting(sources[0], DRAWN, np.random.default_rng(0))
    without = msgspec.structs.replace(DRAWN, slack_fracs=(0.0,))
    assert draw_setting(sources[0], without, np.random.default_rng(0)).tariff is None
