"""Cost and carbon of a run: the parts add up, and equal the sums of another way of counting."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from rlsched.cluster.spec import ClusterSpec, EnergySignals
from rlsched.decide.policies.policy import Policy
from rlsched.energy.bills import J_PER_MWH
from rlsched.energy.series import Series, integrals
from rlsched.errors import InputError
from rlsched.power_down.plan import PowerDownPlan
from rlsched.workload.synth import synthesize
from rlsched.workload.trace import Trace
from rlsched_envs.sim.engine import Engine
from rlsched_envs.sim.job_table import JobTable
from rlsched_envs.sim.modelling import Energy, Models
from rlsched_envs.sim.signals import signal_between
from rlsched_envs.sim.sim_arrays import TRUTH, new_progress
from tests.quick import quick

BEGINS = datetime(2026, 1, 1, tzinfo=UTC)
SECOND_0 = "2026-01-01T00:20Z"
"""The trace begins within a step of the series."""
RULES = {
    "tuned": Policy("tuned"),
    "gittins": Policy("gittins", share={"min_speed": 0.5}),
    "fifo": Policy("fifo"),
}


@pytest.fixture(scope="module")
def workload() -> tuple[Trace, ClusterSpec]:
    return synthesize("helios", jobs=250, load=1.0, gpus=16, seed=5)


def steps_of(trace: Trace, step_s: float) -> int:
    return int(trace.submit_s[-1] / step_s) + 2


class Priced:
    """Runs of one workload at several prices; each series is a file of its own."""

    def __init__(self, folder: Path, workload: tuple[Trace, ClusterSpec], step_s: float = 3600.0) -> None:
        self._folder, (self._trace, self._spec), self._step_s = folder, workload, step_s
        self._number = 0

    def write(self, values: NDArray[np.float64]) -> str:
        self._number += 1
        path = self._folder / f"{self._number}.csv"
        Series("s", BEGINS, self._step_s, values).write(path)
        return str(path)

    def run(self, policy: Policy, energy: EnergySignals | None, models: Models | None = None) -> JobTable:
        spec, rule = msgspec.structs.replace(self._spec, energy=energy), policy.rule
        models = models or Models(energy_weight=0.3)
        return Engine(self._trace, spec, order=rule.order, models=models).run_rule(rule)

    def energy(self, policy: Policy, values: NDArray[np.float64], **more: float) -> Energy:
        signals = EnergySignals(price=self.write(values), begins=SECOND_0, **more)  # type: ignore[arg-type]
        found = self.run(policy, signals).energy
        assert found is not None
        return found


@pytest.mark.parametrize("name", quick(list(RULES), "tuned".__eq__, rest=pytest.mark.soak))
def test_constant_price_is_the_energy_and_changes_no_decision(
    name: str, workload: tuple[Trace, ClusterSpec], tmp_path: Path
) -> None:
    runs, count = Priced(tmp_path, workload), steps_of(workload[0], 3600.0)
    path = runs.write(np.full(count, 80.0))
    signals = EnergySignals(price=path, carbon=path, begins=SECOND_0, pue=1.25)
    table, plain = runs.run(RULES[name], signals), runs.run(RULES[name], None)
    assert table.start_s.tolist() == plain.start_s.tolist()
    assert table.energy is not None
    assert plain.energy is not None
    assert table.energy.cluster_j == plain.energy.cluster_j
    assert plain.energy.cost is plain.energy.carbon is None
    cost, carbon = table.energy.cost, table.energy.carbon
    assert cost is not None
    assert carbon is not None
    mwh = table.energy.job_j / 3.6e9 * 1.25
    np.testing.assert_allclose(cost.jobs, mwh * 80.0, rtol=1e-12)
    np.testing.assert_allclose(carbon.jobs, mwh * 80.0, rtol=1e-12)  # kg per MWh are g per kWh
    assert cost.cluster == pytest.approx(table.energy.cluster_j / 3.6e9 * 100.0, rel=1e-12)


@pytest.mark.parametrize("name", quick(list(RULES), "tuned".__eq__, rest=pytest.mark.soak))
def test_parts_add_up_and_equal_the_sum_over_the_steps(
    name: str, workload: tuple[Trace, ClusterSpec], tmp_path: Path
) -> None:
    """The energy of each step, from runs in which only this step has a price, times the price."""
    step_s = 86_400.0
    runs, count = Priced(tmp_path, workload, step_s), steps_of(workload[0], step_s)
    prices = np.random.default_rng(3).uniform(-40.0, 300.0, count)
    found = runs.energy(RULES[name], prices).cost
    assert found is not None
    assert found.jobs.sum() + found.idle == pytest.approx(found.cluster, rel=1e-9)
    by_step = [runs.energy(RULES[name], np.eye(count)[k]).cost for k in range(count)]
    assert all(one is not None for one in by_step)
    jobs = sum(price * one.jobs for price, one in zip(prices, by_step, strict=True) if one is not None)
    cluster = sum(price * one.cluster for price, one in zip(prices, by_step, strict=True) if one is not None)
    assert found.cluster == pytest.approx(cluster, rel=1e-9)
    np.testing.assert_allclose(found.jobs, jobs, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_sleeping_nodes_cost_less(tmp_path: Path) -> None:
    workload = synthesize("helios", jobs=250, load=0.3, gpus=32, seed=5)
    runs, count = Priced(tmp_path, workload), steps_of(workload[0], 3600.0)
    signals = EnergySignals(
        price=runs.write(np.random.default_rng(4).uniform(0, 300, count)), begins=SECOND_0
    )
    bills = []
    for plan in (None, PowerDownPlan()):
        energy = runs.run(RULES["fifo"], signals, Models(power_down=plan)).energy
        assert energy is not None
        assert energy.cost is not None
        assert energy.cost.jobs.sum() + energy.cost.idle == pytest.approx(energy.cost.cluster, rel=1e-9)
        bills.append(energy.cost.idle)
    assert bills[1] < 0.95 * bills[0]


def test_kernel_equals_the_series() -> None:
    rng = np.random.default_rng(0)
    price = Series("p", BEGINS, 900.0, rng.normal(50.0, 100.0, 400))
    carbon = Series("c", BEGINS, 3600.0, rng.uniform(0.0, 600.0, 100))
    second_0 = datetime(2026, 1, 1, 3, 7, 11, tzinfo=UTC)
    both = integrals([price, carbon], second_0, 50_000.0)
    progress = new_progress(1, np.zeros(1, TRUTH).view(np.recarray), 1, keep_placements=False)
    progress = progress._replace(signal=np.vstack([both.sums, both.rates]))
    progress.books.grid_from_s, progress.books.grid_step_s = both.from_s, both.step_s
    for since_s in rng.uniform(0.0, 400_000.0, 300):
        until_s = since_s + rng.exponential(5_000.0)
        mine = [signal_between(progress, k, since_s, until_s) for k in (0, 1)]
        np.testing.assert_allclose(mine, both.between(since_s, until_s), rtol=1e-12, atol=1e-6)


@pytest.mark.parametrize(
    ("begins", "said"),
    [
        ("", "energy.begins: expected the wall-clock time of second 0, which the trace .* does not state"),
        ("2025-12-31T00:00Z", "expected values from 2025-12-31T00:00 to .*, got 2026-01-01T00:00 to"),
        ("2026-06-01T00:00Z", "set energy.begins, or give a longer series"),
    ],
)
def test_series_must_cover_the_trace(
    begins: str, said: str, workload: tuple[Trace, ClusterSpec], tmp_path: Path
) -> None:
    runs = Priced(tmp_path, workload)
    path = runs.write(np.ones(steps_of(workload[0], 3600.0)))
    with pytest.raises(InputError, match=said) as found:
        runs.run(RULES["fifo"], EnergySignals(price=path, begins=begins))
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("hour", [0, 7, 23])
def test_energy_of_an_hour_is_the_cost_at_a_price_in_this_hour_only(
    hour: int, workload: tuple[Trace, ClusterSpec], tmp_path: Path
) -> None:
    runs, count = Priced(tmp_path, workload), steps_of(workload[0], 3600.0) + 24 * 60  # to the last end
    found = runs.energy(RULES["fifo"], (np.arange(count) % 24 == hour).astype(np.float64), pue=1.5)
    assert found.hour_j is not None
    assert found.cost is not None
    assert found.cost.cluster > 0.0
    assert found.hour_j[hour] * 1.5 / J_PER_MWH == pytest.approx(found.cost.cluster, rel=1e-9)
    assert found.cost.by_hour[hour] == pytest.approx(found.cost.cluster, rel=1e-9)
    assert np.delete(found.cost.by_hour, hour).tolist() == [0.0] * 23
    assert found.hour_j.sum() == pytest.approx(found.cluster_j, rel=1e-9)


def test_each_hour_of_the_run_has_its_own_price(workload: tuple[Trace, ClusterSpec], tmp_path: Path) -> None:
    runs, count = Priced(tmp_path, workload), steps_of(workload[0], 3600.0) + 24 * 60  # to the last end
    prices = np.random.default_rng(4).uniform(-50.0, 200.0, count)
    found = runs.energy(RULES["fifo"], prices, pue=1.5)
    assert found.hours_j is not None
    assert found.cost is not None
    assert found.hours_j.sum() == pytest.approx(found.cluster_j, rel=1e-9)
    assert found.cost.hours.sum() == pytest.approx(found.cost.cluster, rel=1e-9)
    assert found.hours_from_s == -20.0 * 60.0
    used = np.flatnonzero(found.hours_j)
    assert used[-1] < count
    by_hand = found.hours_j[used] * prices[used] * 1.5 / J_PER_MWH
    np.testing.assert_allclose(found.cost.hours[used], by_hand, rtol=1e-9, atol=1e-9)


def test_later_hours_are_added_to_the_last_day(
    workload: tuple[Trace, ClusterSpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, count = Priced(tmp_path, workload), steps_of(workload[0], 3600.0) + 24 * 60
    prices = np.random.default_rng(4).uniform(10.0, 200.0, count)
    whole = runs.energy(RULES["fifo"], prices)
    monkeypatch.setattr("rlsched_envs.sim.engine.DAYS_AFTER", 0)
    cut = runs.energy(RULES["fifo"], prices)
    assert whole.cost is not None
    assert cut.cost is not None
    for one, other in ((whole.hours_j, cut.hours_j), (whole.cost.hours, cut.cost.hours)):
        assert one is not None
        assert other is not None
        assert one[len(other) :].sum() > 0.0, "the run goes on after the last submission"
        np.testing.assert_array_equal(one[: len(other) - 24], other[:-24])
        np.testing.assert_allclose(one.reshape(-1, 24).sum(0), other.reshape(-1, 24).sum(0), rtol=1e-9)


def test_hours_of_a_constant_limit_are_unknown(workload: tuple[Trace, ClusterSpec], tmp_path: Path) -> None:
    table = Priced(tmp_path, workload).run(RULES["fifo"], EnergySignals(power_limit_kw=1e6))
    assert table.energy is not None
    assert table.energy.hour_j is None
