"""The saving of rules that follow the price over `tuned`: the bill of jobs with slack, on nodes that sleep.

    .venv/bin/python -m studies.policy.priced --by-length        # the tables in docs/how-to/signals.md
    .venv/bin/python -m studies.policy.priced --zone sg --policy priced --known-ahead-h 0 --forecast

Helios Venus, 30 days from day 40 at load 0.7, with prices from 1 February 2024 or the days of `--begin`. Two
of five jobs have no slack, the others 4, 12 or 24 hours, drawn at random; jobs with slack may be preempted.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import msgspec
import numpy as np

from rlsched.cluster.spec import ClusterSpec, EnergySignals
from rlsched.decide.policies.policy import Policy
from rlsched.energy.bills import J_PER_MWH
from rlsched.energy.learn import AHEAD_S, LEAD_S, learned
from rlsched.energy.series import HOUR_S, Series
from rlsched.power_down.plan import PowerDownPlan
from rlsched.settings import Seconds
from rlsched.workload.trace import Trace
from rlsched_agents.evaluate.metrics import queue_s
from rlsched_agents.evaluate.simulate import Runs, simulate
from rlsched_envs.sim.modelling import Models
from studies.policy.options import add_traces

ZONES: Final = ("us-cal-ciso", "us-tex-erco", "de-lu")
DAYS: Final = (40, 70)
LOAD: Final = 0.7
DAY_S: Final = 24 * HOUR_S
BEGINS: Final = "2024-02-01"
"""Default date of the first measured day (UTC)."""
FOLLOWING: Final = ("priced", "price-window", "price-percentile")
"""Presets that follow the price."""
LENGTHS_H: Final = (0.0, 1.0, 4.0, 24.0, np.inf)
"""Limits of the run times by which `--by-length` groups jobs, hours."""
SLACKS_H: Final = (0.0, 0.0, 4.0, 12.0, 24.0)
SLEEPS_SOON: Final = PowerDownPlan(forecast="persistence", falling=Seconds(0.0), ramp_nodes=0, buffer_nodes=2)
"""Nodes that sleep soon after they are idle; by default, nodes sleep as a models file says by default."""


def prices(path: Path) -> Series:
    """Return the prices of a file with the column `price_usd_mwh`."""
    with gzip.open(path, "rt") as file:
        rows = [(k, row["utc"], row["price_usd_mwh"]) for k, row in enumerate(csv.DictReader(file), start=2)]
    return Series.from_rows(rows, path.name)


def with_slack(trace: Trace, seed: int) -> Trace:
    """Return the trace with random slacks; jobs with slack may be preempted."""
    slack_s = np.random.default_rng(seed).choice(SLACKS_H, len(trace)) * HOUR_S
    extra = {**trace.extra, "slack_s": slack_s, "preemptible": np.where(slack_s > 0.0, "true", "false")}
    return replace(trace, extra=extra)


def row(label: str, name: str, runs: Runs) -> str:
    """Return a row of the table: a policy relative to `tuned`, with intervals over days."""
    pair, bills = runs.compare().paired[name], [runs[one].metrics.cost for one in (name, "tuned")]
    clusters = [one.cluster for one in bills if one is not None]
    jobs = runs[name].jobs
    urgent = jobs.measured & (jobs.table.trace.extra["slack_s"] == 0.0)
    waits_s = [float(np.nanmean(queue_s(runs[one].jobs.table)[urgent])) for one in ("tuned", name)]
    return (
        f"| {label} | {name} | {pair.cost_ratio} | {clusters[0] / clusters[1]:.3f} | {pair.jct_mean_ratio} | "
        f"{pair.late_frac or 0.0:.1%} | {waits_s[0]:.0f} s, {waits_s[1]:.0f} s |"
    )


def by_length(label: str, name: str, runs: Runs) -> str:
    """Return the mean price that jobs with slack paid, and their share of the energy, by run time."""
    jobs, found = runs[name].jobs, list[str]()
    energy, length_h = jobs.table.energy, jobs.table.trace.duration_s / HOUR_S
    assert energy is not None
    assert energy.cost is not None
    patient = jobs.measured & (jobs.table.trace.extra["slack_s"] > 0.0)
    for low_h, high_h in pairwise(LENGTHS_H):
        among = patient & (length_h >= low_h) & (length_h < high_h)
        paid = energy.cost.jobs[among].sum() / energy.job_j[among].sum() * J_PER_MWH
        share = energy.job_j[among].sum() / energy.job_j[patient].sum()
        found.append(f"from {low_h:g} h {paid:.1f} ({share:.1%})")
    total_mwh = energy.job_j[jobs.measured].sum() / J_PER_MWH
    return f"{label}, {name}: {', '.join(found)}; all jobs {total_mwh:.2f} MWh"


def main(words: Sequence[str] | None = None) -> int:
    """Print a row per price zone and policy. Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    add_traces(parser)
    energy = Path(os.environ.get("RLSCHED_DATA", "../shared")) / "energy"
    parser.add_argument("--energy", type=Path, default=energy, help="folder of the prices")
    parser.add_argument("--zone", action="append", help=f"default: {', '.join(ZONES)}")
    parser.add_argument("--policy", action="append", help=f"default: {', '.join(FOLLOWING)}")
    parser.add_argument("--set", action="append", default=[], help="change of them, such as price.defer=2")
    parser.add_argument("--seed", type=int, default=0, help="seed of the slacks")
    parser.add_argument("--begin", action="append", help=f"first day of the prices; default: {BEGINS}")
    parser.add_argument("--known-ahead-h", type=float, default=12.0, help="hours for which prices are known")
    parser.add_argument("--forecast", action="store_true", help="with forecasts of `rlsched signal forecast`")
    parser.add_argument("--by-length", action="store_true", help="also print the prices paid by run time")
    parser.add_argument("--sleep-soon", action="store_true", help="nodes sleep soon after they are idle")
    given = parser.parse_args(words)
    trace = with_slack(Trace.read(given.traces / "helios_venus.csv.gz"), given.seed)
    spec = ClusterSpec.read(given.traces / "helios_venus.cluster.toml")
    plan = SLEEPS_SOON if given.sleep_soon else PowerDownPlan()
    names = given.policy or FOLLOWING
    policies = {"tuned": Policy("tuned"), **{name: Policy(name).changed(given.set) for name in names}}
    print("| prices | policy | bill of the jobs | of the cluster | mean JCT | late | delay without slack |")
    print("|---|---|--:|--:|--:|--:|--:|")
    with TemporaryDirectory() as folder:
        for zone, begin in product(given.zone or ZONES, given.begin or [BEGINS]):
            path = Path(folder) / f"{zone}.csv"
            series = prices(given.energy / f"{zone}.csv.gz")
            (learned(series, LEAD_S, AHEAD_S) if given.forecast else series).write(path)
            second_0 = datetime.fromisoformat(begin).replace(tzinfo=UTC) - timedelta(days=DAYS[0])
            signals = EnergySignals(
                price=str(path), begins=second_0.isoformat(), known_ahead_h=given.known_ahead_h
            )
            runs = simulate(
                trace,
                msgspec.structs.replace(spec, energy=signals),
                policies,
                load=LOAD,
                since_s=DAYS[0] * DAY_S,
                until_s=DAYS[1] * DAY_S,
                models=Models(energy_weight=0.3, power_down=plan),
                progress=False,
            )
            for name in names:
                print(row(f"{zone} {begin}", name, runs), flush=True)
            for name in policies if given.by_length else ():
                print(by_length(f"{zone} {begin}", name, runs), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
