"""Policies that follow the price: compiled runs equal single decisions, and jobs keep their slack."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np
import pytest

from rlsched.cluster.dials import PRICE_DIALS
from rlsched.cluster.spec import ClusterSpec, EnergySignals
from rlsched.decide.dials.observing import NAMES
from rlsched.decide.dials.strategy import NUM_COLUMNS, NUM_DIALS, Strategy
from rlsched.decide.dials.turning import RANGES
from rlsched.decide.order.slack import MOST_SLACK_FRAC
from rlsched.decide.policies.policy import Policy
from rlsched.decide.rule_scheduler import RuleScheduler
from rlsched.energy.series import HOUR_S, Series
from rlsched.energy.synth import synthesize as synthesize_price
from rlsched.workload.synth import synthesize
from rlsched.workload.trace import Trace
from rlsched_envs.sim.attempt_arrays import PREEMPTED
from rlsched_envs.sim.engine import Engine, predict_trace
from rlsched_envs.sim.job_table import JobTable
from rlsched_envs.sim.modelling import Models
from tests.quick import quick

BEGINS = datetime(2026, 1, 1, tzinfo=UTC)
PRICED = Policy("tuned", price={"defer": 5.0, "pause": 5.0})


def strategy() -> Strategy:
    """A strategy whose dials change with the price, and with all other columns."""
    weights = np.random.default_rng(3).normal(0.0, 0.1, (NUM_DIALS, NUM_COLUMNS + 1))
    for name in PRICE_DIALS:
        weights[list(RANGES).index(name), [NAMES.index("price"), -1]] = 0.3
    return Strategy.from_layers(weights)


RULES = {
    "priced": (PRICED, True),
    "power": (PRICED.with_settings(price={"power": 1.0, "defer": 0.0, "pause": 0.0}), True),
    "without models": (PRICED, False),
    "heaps": (Policy("qssf-backfill", price={"defer": 5.0}), False),
    "long jobs": (Policy("qssf-backfill", price={"defer": 5.0, "longer_than": "210s"}), False),
    "spare": (Policy("gittins", price={"defer": 5.0, "pause": 5.0, "spare": 1.0}), False),
    "window with spare": (Policy("qssf-backfill", price={"window": True, "spare": 1.0}), False),
    "index": (Policy("gittins", price={"defer": 5.0, "pause": 5.0}), False),
    "quota": (Policy("tiresias", price={"defer": 5.0, "pause": 5.0}), False),
    "only pauses": (Policy("gittins", price={"pause": 2.0}), False),
    "window": (Policy("price-window"), True),
    "window with heaps": (Policy("qssf-backfill", price={"window": True}), False),
    "window with pauses": (Policy("gittins", price={"window": True, "pause": 2.0}), False),
    "percentile": (Policy("price-percentile"), True),
    "percentile without preemption": (Policy("qssf-backfill", price={"percentile": 0.3}), False),
    "dials": (Policy("tuned", dials=strategy().text), True),
    "dials without models": (Policy("tuned", dials=strategy().text), False),
}
"""Policies, and whether they run with models."""


def workload(load: float = 0.7) -> tuple[Trace, ClusterSpec]:
    """Jobs of which half accept a delay; jobs with slack may be preempted."""
    trace, spec = synthesize("helios", jobs=400, load=load, gpus=32, seed=4)
    slack_s = np.random.default_rng(2).choice([0.0, 4 * HOUR_S, 24 * HOUR_S], len(trace))
    extra = {**trace.extra, "slack_s": slack_s, "preemptible": np.where(slack_s > 0.0, "true", "false")}
    return replace(trace, extra=extra), spec


def run(
    policy: Policy,
    price: Series | None,
    folder: Path,
    *,
    stepped: bool = False,
    models: Models | None = None,
    load: float = 0.7,
    without_gpus: int = 0,
) -> JobTable:
    trace, spec = workload(load)
    if without_gpus:  # each job of this many asks only for CPU cores
        trace.num_gpus[::without_gpus] = 0
    if price is not None:
        price.write(folder / "p.csv")
        energy = EnergySignals(price=str(folder / "p.csv"), begins="2026-01-01T05:00Z", known_ahead_h=12.0)
        spec = msgspec.structs.replace(spec, energy=energy)
    engine = Engine(
        trace, spec, order=policy.rule.order, predictions=predict_trace(trace, spec), models=models
    )
    return engine.run(RuleScheduler(policy)) if stepped else engine.run_rule(policy.rule)


def solar(days: int = 60) -> Series:
    return synthesize_price("solar", BEGINS, days, seed=1)


def same(one: JobTable, two: JobTable) -> bool:
    return (
        np.array_equal(one.start_s, two.start_s)
        and np.array_equal(one.end_s, two.end_s)
        and one.gpus == two.gpus
    )


QUICK = ("priced", "spare", "heaps", "window")


@pytest.mark.parametrize("name", quick(RULES, lambda name: name in QUICK))
def test_compiled_equals_one_decision_at_a_time(name: str, tmp_path: Path) -> None:
    policy, modelled = RULES[name]
    models = Models(energy_weight=0.3) if modelled else None
    compiled = run(policy, solar(), tmp_path, models=models)
    assert same(compiled, run(policy, solar(), tmp_path, models=models, stepped=True))
    assert not same(compiled, run(policy.with_settings(price=None), None, tmp_path, models=models))


@pytest.mark.parametrize("kind", ["none", "flat"])
@pytest.mark.parametrize("name", ["priced", "window", "percentile"])
def test_without_a_changing_price_nothing_changes(name: str, kind: str, tmp_path: Path) -> None:
    models = Models(energy_weight=0.3)
    price = None if kind == "none" else synthesize_price("flat", BEGINS, 60)
    policy, _ = RULES[name]
    assert same(
        run(Policy("tuned"), price, tmp_path, models=models), run(policy, price, tmp_path, models=models)
    )


@pytest.mark.parametrize("name", ["priced", "window", "percentile"])
def test_bill_falls_and_no_job_exceeds_its_slack(name: str, tmp_path: Path) -> None:
    """With GPUs to spare, a job waits for a lower price for at most its share of the slack."""
    models = Models(energy_weight=0.3)
    blind = run(Policy("tuned"), solar(), tmp_path, models=models, load=0.3)
    priced = run(RULES[name][0], solar(), tmp_path, models=models, load=0.3)
    slack_s = priced.trace.extra["slack_s"]
    delay_s = priced.start_s - priced.trace.submit_s
    none = slack_s == 0.0
    assert delay_s[none].mean() <= (blind.start_s - blind.trace.submit_s)[none].mean() + 60.0
    assert (delay_s <= MOST_SLACK_FRAC * slack_s + 600.0).mean() > 0.97
    assert delay_s[~none].mean() > 600.0
    late_s = priced.end_s - blind.end_s
    assert (late_s > slack_s + 600.0).mean() < 0.02
    assert priced.log is not None
    assert blind.log is not None
    pauses = [(table.log.reason == PREEMPTED).sum() for table in (priced, blind) if table.log is not None]
    assert (pauses[0] > pauses[1] + 20) == (name != "window")
    assert bill(priced) < (0.99 if name == "window" else 0.95) * bill(blind)


ORDERED = {
    "tuned": (Policy("tuned"), True),
    "heaps": (Policy("qssf-backfill", slack={}), False),
    "blocks": (Policy("fifo", slack={}), False),
    "reservations": (Policy("easy", slack={}), False),
    "quota": (Policy("tiresias", slack={}), False),
}
"""Policies whose order depends on slack, and whether they run with models."""


@pytest.mark.parametrize("name", quick(ORDERED, lambda name: name in ("tuned", "heaps")))
def test_order_by_slack_compiled_equals_one_decision_at_a_time(name: str, tmp_path: Path) -> None:
    policy, modelled = ORDERED[name]
    models = Models() if modelled else None
    compiled = run(policy, None, tmp_path, models=models, load=0.9)
    assert same(compiled, run(policy, None, tmp_path, models=models, load=0.9, stepped=True))
    assert not same(compiled, run(policy.with_settings(slack=None), None, tmp_path, models=models, load=0.9))


def test_jobs_without_slack_wait_less(tmp_path: Path) -> None:
    """Under `tuned`; the delay beyond slack falls too, over all jobs."""
    one, plain = (
        run(policy, None, tmp_path, models=Models(), load=0.9)
        for policy in (Policy("tuned"), Policy("tuned").with_settings(slack=None))
    )
    slack_s = one.trace.extra["slack_s"]
    delays_s = [table.end_s - table.trace.submit_s - table.trace.duration_s for table in (one, plain)]
    urgent = [delay_s[slack_s == 0.0].mean() for delay_s in delays_s]
    beyond = [np.maximum(delay_s - slack_s, 0.0).mean() for delay_s in delays_s]
    assert urgent[0] < 0.95 * urgent[1]
    assert beyond[0] < 0.95 * beyond[1]


def test_only_jobs_with_gpus_pause(tmp_path: Path) -> None:
    table = run(Policy("gittins", price={"pause": 5.0}), solar(), tmp_path, without_gpus=3)
    assert table.log is not None
    paused = table.log.job[table.log.reason == PREEMPTED]
    assert len(paused) > 5
    assert (table.trace.num_gpus == 0).sum() > 100
    assert (table.trace.num_gpus[paused] > 0).all()


def test_jobs_that_are_predicted_to_be_short_do_not_wait(tmp_path: Path) -> None:
    """Jobs up to `longer_than` wait as often as without prices; the others as with prices."""
    waiting = []
    for policy in (Policy("qssf-backfill"), RULES["heaps"][0], RULES["long jobs"][0]):
        table = run(policy, solar(), tmp_path, load=0.3)
        short = predict_trace(table.trace, table.spec).predicted_s <= 210.0
        flexible = table.trace.extra["slack_s"] > 0.0
        waits = table.start_s - table.trace.submit_s > 60.0
        waiting.append([waits[flexible & one].mean() for one in (short, ~short)])
    blind, priced, mixed = waiting
    assert mixed == pytest.approx([blind[0], priced[1]], abs=0.05)
    assert priced[0] > blind[0] + 0.2
    assert priced[1] > blind[1] + 0.2


@pytest.mark.parametrize("price", [{"defer": 2.0, "pause": 2.0}, {"window": True}, {"percentile": 0.3}])
def test_with_spare_slack_fewer_jobs_are_late(price: dict[str, float], tmp_path: Path) -> None:
    late = []
    for spare in (0.0, 1.0):
        policy = Policy("tuned", price={**price, "spare": spare})
        table = run(policy, solar(), tmp_path, models=Models(energy_weight=0.3), load=0.8)
        delay_s = table.end_s - table.trace.submit_s - table.trace.duration_s
        slack_s = table.trace.extra["slack_s"]
        late.append((delay_s > slack_s + 600.0)[slack_s > 0.0].mean())
    assert late[1] < late[0]


def bill(table: JobTable) -> float:
    assert table.energy is not None
    assert table.energy.cost is not None
    return float(table.energy.cost.jobs.sum())
