"""Steps by which a power limit is kept, in their order, with a few jobs on one node."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from rlsched.broker.base.ledger_models import LedgerModels
from rlsched.cluster.arrays import PowerClass
from rlsched.cluster.spec import ClusterSpec, EnergySignals, NodeGroup, NodeSpec
from rlsched.cluster.state import ClusterState
from rlsched.decide.compiled import for_state
from rlsched.decide.limit import hold_limit
from rlsched.decide.order.keys import Order
from rlsched.decide.order.queue import OrderedQueue
from rlsched.decide.policies.policy import Policy
from rlsched.energy.series import HOUR_S, Series
from rlsched.workload.trace import Trace
from rlsched_envs.sim.attempt_arrays import PREEMPTED
from rlsched_envs.sim.engine import Engine
from rlsched_envs.sim.job_table import JobTable
from rlsched_envs.sim.modelling import Models
from tests.quick import quick

RUN_S = 2 * HOUR_S
URGENT, FLEXIBLE = 0.0, 24 * HOUR_S
GPUS = 4
SPREAD = 0.1
"""Standard deviation of ln(run time / prediction)."""
WORKLOAD = "resnet50-imagenet-b64"


def run(
    slack_s: list[float],
    energy: EnergySignals | None = None,
    *,
    preemptible: bool = True,
    submit_s: list[float] | None = None,
    gpus: list[int] | None = None,
    policy: str = "gittins",
    same: bool = True,
    power_ratio: float = 1.0,
    duration_s: list[float] | None = None,
) -> JobTable:
    """Run jobs on a node of four GPUs, with predictions that are right; `same`: all jobs are alike."""
    jobs = len(slack_s)
    trace = Trace.from_columns(
        name="hand",
        submit_s=submit_s or [0.0] * jobs,
        duration_s=duration_s or [RUN_S] * jobs,
        num_gpus=gpus or [1] * jobs,
        predicted_s=duration_s or [RUN_S] * jobs,
        predicted_spread=[SPREAD] * jobs,
    )
    may = np.array(["true" if preemptible else "false"] * jobs)
    ratio = np.full(jobs, power_ratio)
    extra = {"slack_s": np.array(slack_s), "preemptible": may, "power_ratio": ratio}
    trace = replace(trace, extra=extra | ({"workload": np.array([WORKLOAD] * jobs)} if same else {}))
    spec = ClusterSpec(name="hand", nodes=(NodeGroup(gpus=GPUS, gpu_type="V100"),), energy=energy)
    rule = Policy(policy).rule
    return Engine(trace, spec, order=rule.order, models=Models()).run_rule(rule)


def busy_kw(jobs: int) -> float:
    """Power of the node while this number of jobs runs at full clock."""
    table = run([URGENT] * jobs)
    assert table.energy is not None
    return table.energy.cluster_j / table.energy.span_s / 1000.0


def run_s(table: JobTable) -> list[float]:
    return [round(one, 3) for one in (table.end_s - table.start_s).tolist()]


def pauses(table: JobTable) -> list[int]:
    """Numbers of the jobs that were preempted."""
    assert table.log is not None
    return [int(job) for job in table.log.job[table.log.reason == PREEMPTED]]


def kept(table: JobTable) -> bool:
    assert table.energy is not None
    assert table.energy.limit is not None
    return table.energy.limit.exceeded_s == 0.0


def until(
    hours: float,
    low_kw: float,
    folder: Path,
    ahead_h: float = 0.0,
    kind: Literal["hard", "soft"] = "hard",
) -> EnergySignals:
    """A limit that is low for some hours, from 30 minutes on, and then high."""
    steps = np.full(48, 100.0)
    steps[1 : 1 + round(2 * hours)] = low_kw
    Series("limit", datetime(2026, 1, 1, tzinfo=UTC), HOUR_S / 2, steps).write(folder / "limit.csv")
    return EnergySignals(
        power_limit=str(folder / "limit.csv"),
        begins="2026-01-01T00:00Z",
        power_limit_known_ahead_h=ahead_h,
        power_limit_kind=kind,
    )


def test_flexible_jobs_get_lower_clocks_first() -> None:
    table = run([URGENT, URGENT, FLEXIBLE, FLEXIBLE], EnergySignals(power_limit_kw=0.9 * busy_kw(4)))
    assert kept(table)
    assert pauses(table) == []
    assert run_s(table)[:2] == [RUN_S, RUN_S]
    assert 1.02 * RUN_S < run_s(table)[2] == run_s(table)[3] < 2.0 * RUN_S


def test_flexible_jobs_pause_before_urgent_jobs_get_lower_clocks(tmp_path: Path) -> None:
    low_kw = busy_kw(2) + 0.01
    table = run([URGENT, URGENT, FLEXIBLE, FLEXIBLE], until(1.0, low_kw, tmp_path))
    assert kept(table)
    assert sorted(pauses(table)) == [2, 3]
    assert run_s(table)[:2] == [RUN_S, RUN_S]
    assert min(run_s(table)[2:]) >= RUN_S + HOUR_S


def test_one_pause_is_enough_if_it_saves_enough(tmp_path: Path) -> None:
    low_kw = busy_kw(3)
    table = run([URGENT, URGENT, FLEXIBLE, FLEXIBLE], until(1.0, low_kw, tmp_path))
    assert kept(table)
    assert len(pauses(table)) <= 1
    assert run_s(table)[:2] == [RUN_S, RUN_S]


@pytest.mark.parametrize("policy", quick(["gittins", "fifo-backfill"], "gittins".__eq__))
def test_urgent_jobs_get_lower_clocks_if_no_job_may_pause(policy: str, tmp_path: Path) -> None:
    low = until(1.0, 0.77 * busy_kw(4), tmp_path)
    slack_s = [URGENT, URGENT, FLEXIBLE, FLEXIBLE]
    table = run(slack_s, low, preemptible=policy != "gittins", policy=policy)
    assert kept(table)
    assert pauses(table) == []
    assert RUN_S < run_s(table)[0] == run_s(table)[1] < run_s(table)[2]


def test_urgent_jobs_pause_last_and_the_limit_is_kept(tmp_path: Path) -> None:
    table = run([URGENT] * 4, until(1.0, busy_kw(1), tmp_path))
    assert kept(table)
    assert 1 <= len(pauses(table)) <= 3
    table = run([URGENT] * 4, until(1.0, busy_kw(1), tmp_path), preemptible=False)
    assert not kept(table), "no job may be preempted"
    assert table.energy is not None
    assert table.energy.limit is not None
    assert 0.0 < table.energy.limit.exceeded_s <= HOUR_S


def test_jobs_that_do_not_fit_the_limit_start_when_power_is_free() -> None:
    """Two jobs fit at low clocks, and a third does not."""
    table = run([URGENT] * 3, EnergySignals(power_limit_kw=busy_kw(1) - 0.03))
    assert kept(table)
    begun_s, end_s = sorted(table.start_s.tolist()), sorted(table.end_s.tolist())
    assert begun_s[:2] == [0.0, 0.0]
    assert begun_s[2] == end_s[0] > RUN_S
    assert end_s[2] - begun_s[2] < end_s[1], "it gets a higher clock after both have ended"


def test_learnt_power_of_jobs_counts() -> None:
    """With half of the dynamic power, the third job fits too."""
    table = run([URGENT] * 3, EnergySignals(power_limit_kw=busy_kw(1) - 0.03), power_ratio=0.5)
    assert kept(table)
    assert table.start_s.tolist() == [0.0] * 3


def test_urgent_job_takes_the_power_of_flexible_jobs() -> None:
    one = busy_kw(1)
    table = run(
        [FLEXIBLE, URGENT],
        EnergySignals(power_limit_kw=one + 0.01),
        submit_s=[0.0, 600.0],
    )
    assert kept(table)
    assert table.start_s[1] == 600.0
    assert run_s(table)[1] == RUN_S
    assert pauses(table) == [0]


def test_flexible_job_that_has_used_up_its_slack_counts_as_urgent() -> None:
    one = busy_kw(1)
    table = run([URGENT, HOUR_S], EnergySignals(power_limit_kw=one + 0.01), submit_s=[0.0, 60.0])
    assert kept(table)
    assert table.start_s[1] >= HOUR_S


def test_urgent_job_comes_before_a_flexible_one_of_the_same_instant() -> None:
    limit = EnergySignals(power_limit_kw=busy_kw(1) + 0.01)
    table = run([FLEXIBLE, URGENT], limit)
    assert kept(table)
    assert table.start_s[1] == 0.0
    assert run_s(table)[1] == RUN_S
    assert pauses(table) == []


def test_job_that_has_waited_long_holds_back_later_jobs() -> None:
    """A stream of small jobs leaves no room for three GPUs at once; after an hour, no more of them start."""
    small = 20
    submit_s = [0.0, 60.0, *(1_200.0 * k for k in range(1, small))]
    gpus = [1, 3, *([1] * (small - 1))]
    limit = EnergySignals(power_limit_kw=busy_kw(1) + 0.02)
    table = run([URGENT] * (small + 1), limit, submit_s=submit_s, gpus=gpus)
    assert kept(table)
    later = table.start_s[table.trace.submit_s > HOUR_S + 60.0]
    assert 60.0 < table.start_s[1] < later.min()


@pytest.mark.parametrize("policy", ["tuned", "gittins"])
@pytest.mark.parametrize("limit_kw", [1.0, 1.2])
def test_jobs_do_not_pause_and_restart_in_a_loop(policy: str, limit_kw: float) -> None:
    """Jobs that share GPUs, of both classes and with all workloads."""
    jobs = 80
    slack_s = np.random.default_rng(0).choice([URGENT, FLEXIBLE], jobs).tolist()
    table = run(slack_s, EnergySignals(power_limit_kw=limit_kw), policy=policy, same=False)
    assert kept(table)
    assert len(pauses(table)) <= jobs / 4
    assert not np.isnan(table.end_s).any()


def test_price_is_followed_under_a_constant_limit(tmp_path: Path) -> None:
    """The price falls after an hour; a job with slack waits for it."""
    values = np.array([100.0, *([10.0] * 47)])
    Series("p", datetime(2026, 1, 1, tzinfo=UTC), HOUR_S, values).write(tmp_path / "p.csv")
    begins = "2026-01-01T00:00Z"
    prices = EnergySignals(price=str(tmp_path / "p.csv"), begins=begins, known_ahead_h=24.0)
    limited = EnergySignals(
        price=str(tmp_path / "p.csv"), begins=begins, known_ahead_h=24.0, power_limit_kw=100.0
    )
    for energy in (prices, limited):
        assert run([URGENT, FLEXIBLE], energy, policy="priced").start_s.tolist() == [0.0, HOUR_S]


FALL_S, RISE_S = HOUR_S / 2, 1.5 * HOUR_S
"""Times at which the limit of `until(1.0, ...)` falls and rises."""


@pytest.mark.parametrize("preemptible", quick([True, False], bool))
def test_flexible_job_waits_for_an_announced_fall_unless_it_ends_before_or_may_pause(
    preemptible: bool, tmp_path: Path
) -> None:
    jobs = [URGENT, FLEXIBLE, FLEXIBLE, FLEXIBLE]
    duration_s = [RUN_S, RUN_S, 0.9 * FALL_S, FALL_S + 60.0]
    low_kw = busy_kw(1) + 0.01
    table = run(jobs, until(1.0, low_kw, tmp_path, 1.0), preemptible=preemptible, duration_s=duration_s)
    assert kept(table)
    assert table.start_s.tolist() == ([0.0] * 4 if preemptible else [0.0, RISE_S, 0.0, RISE_S])
    assert run_s(table)[0] == RUN_S
    assert bool(pauses(table)) == preemptible
    table = run(jobs, until(1.0, low_kw, tmp_path), preemptible=preemptible, duration_s=duration_s)
    assert table.start_s.tolist() == [0.0] * 4
    assert bool(pauses(table)) == preemptible
    assert preemptible == (run_s(table)[0] == RUN_S)


def test_fall_is_known_only_within_the_time_ahead(tmp_path: Path) -> None:
    """The limit falls after 30 minutes; 10 minutes before that, it is known."""
    low = until(1.0, busy_kw(1) + 0.01, tmp_path, 1 / 6)
    submit_s = [0.0, FALL_S - 601.0, FALL_S - 600.0]
    table = run([URGENT, FLEXIBLE, FLEXIBLE], low, submit_s=submit_s, preemptible=False)
    assert table.start_s[:2].tolist() == [0.0, FALL_S - 601.0]
    assert table.start_s[2] >= RISE_S


def test_limit_falls_without_excess_if_the_fall_is_announced(tmp_path: Path) -> None:
    """Jobs that must not be preempted exceed a limit that falls without notice."""
    low_kw = busy_kw(1)
    assert not kept(run([URGENT] * 4, until(1.0, low_kw, tmp_path), preemptible=False))
    table = run([URGENT] * 4, until(1.0, low_kw, tmp_path, 1.0), preemptible=False)
    assert kept(table)
    started = sorted(table.start_s.tolist())
    assert started[0] == 0.0
    assert started[-1] == RISE_S
    shorter = run(
        [URGENT] * 4, until(1.0, low_kw, tmp_path, 1.0), preemptible=False, duration_s=[0.9 * FALL_S] * 4
    )
    assert kept(shorter)
    assert shorter.start_s.tolist() == [0.0] * 4


def test_announced_fall_does_not_delay_urgent_jobs_that_may_be_preempted(tmp_path: Path) -> None:
    low_kw = busy_kw(1)
    told, untold = (run([URGENT] * 4, until(1.0, low_kw, tmp_path, ahead_h)) for ahead_h in (1.0, 0.0))
    assert kept(told)
    assert told.start_s.tolist() == untold.start_s.tolist() == [0.0] * 4
    assert told.end_s.tolist() == untold.end_s.tolist()


def test_soft_limit_lowers_and_pauses_only_flexible_jobs(tmp_path: Path) -> None:
    table = run([URGENT, URGENT, FLEXIBLE, FLEXIBLE], until(1.0, busy_kw(1), tmp_path, 0.0, "soft"))
    assert run_s(table)[:2] == [RUN_S, RUN_S]
    assert sorted(pauses(table)) == [2, 3]
    assert table.energy is not None
    assert table.energy.limit is not None
    assert table.energy.limit.exceeded_s == HOUR_S
    slowed = run([URGENT, URGENT, FLEXIBLE, FLEXIBLE], until(1.0, 0.95 * busy_kw(4), tmp_path, 0.0, "soft"))
    assert kept(slowed)
    assert run_s(slowed)[:2] == [RUN_S, RUN_S]
    assert min(run_s(slowed)[2:]) > RUN_S


@pytest.mark.parametrize("ahead_h", [0.0, 2.0])
def test_soft_limit_holds_back_only_flexible_jobs(ahead_h: float, tmp_path: Path) -> None:
    soft = until(1.0, busy_kw(1) - 0.03, tmp_path, ahead_h, "soft")
    table = run([URGENT] * 3 + [FLEXIBLE], soft, submit_s=[0.0, 0.0, FALL_S + 60.0, FALL_S + 60.0])
    assert table.start_s.tolist() == [0.0, 0.0, FALL_S + 60.0, RISE_S]
    assert run_s(table)[:3] == [RUN_S] * 3
    assert pauses(table) == []


@pytest.mark.parametrize("seed", range(5))
def test_room_at_a_fall_is_the_room_of_the_jobs_that_still_run_then(seed: int) -> None:
    """The second way: a state without the jobs that will have ended, under the lower limit now."""
    rng = np.random.default_rng(seed)
    jobs = [(float(rng.uniform(0.1, 4.0) * HOUR_S), float(rng.choice([URGENT, FLEXIBLE]))) for _ in range(10)]
    fall_s, low_w = 2 * HOUR_S, 1_200.0
    all_jobs, left = ledger(jobs), ledger([job for job in jobs if job[0] * np.exp(SPREAD) > fall_s])
    all_jobs.limit_power(1e6, [(fall_s, low_w)])
    left.limit_power(low_w)
    for one in (all_jobs, left):
        for_state(hold_limit, one)(one.arrays, False, 0.0)
    assert all_jobs.arrays.scratch.room_w[0, 1].tolist() == left.arrays.scratch.room_w[0, 0].tolist()
    assert all_jobs.arrays.config.clock_cap[0].tolist() == [1.0, 1.0]
    all_jobs.limit_power(1e6, [(fall_s, low_w)], soft=True)
    for_state(hold_limit, all_jobs)(all_jobs.arrays, False, 0.0)
    assert all_jobs.arrays.scratch.room_w[0, 1, PowerClass.URGENT] == np.inf


def ledger(jobs: list[tuple[float, float]]) -> ClusterState:
    """A broker's cluster of 16 GPUs on which jobs (predicted run time, slack) have started now."""
    nodes = [NodeSpec(name=f"n{n}", gpus=4, gpu_type="V100", cpus=32) for n in range(4)]
    cluster = ClusterState(nodes, OrderedQueue(Order()))
    LedgerModels(cluster).limit_power(1e9)
    for gpu, (predicted_s, slack_s) in enumerate(jobs):
        seq = cluster.add_job(
            num_gpus=1, submit_s=0.0, predicted_s=predicted_s, spread=SPREAD, slack_s=slack_s
        )
        cluster.start(seq, (gpu,), 0.0)
    return cluster
