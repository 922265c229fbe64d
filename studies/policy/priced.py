"""The saving of `priced` over `tuned`: the bill of jobs with slack, on nodes that sleep.

    .venv/bin/python -m studies.policy.priced        # the table in docs/how-to/signals.md

Helios Venus, 30 days from day 40 at load 0.7, with day-ahead prices from February 2024. Two of five jobs have
no slack, the others 4, 12 or 24 hours, drawn at random; jobs with slack may be preempted.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import msgspec
import numpy as np

from rlsched.cluster.spec import ClusterSpec, EnergySignals
from rlsched.decide.policies.policy import Policy
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
SECOND_0: Final = datetime(2024, 2, 1, tzinfo=UTC) - timedelta(days=DAYS[0])
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


def row(zone: str, runs: Runs) -> str:
    """Return a row of the table, `priced` relative to `tuned`, with intervals over days."""
    pair, bills = runs.compare().paired["priced"], [runs[name].metrics.cost for name in ("priced", "tuned")]
    clusters = [one.cluster for one in bills if one is not None]
    jobs = runs["priced"].jobs
    urgent = jobs.measured & (jobs.table.trace.extra["slack_s"] == 0.0)
    waits_s = [float(np.nanmean(queue_s(runs[name].jobs.table)[urgent])) for name in ("tuned", "priced")]
    return (
        f"| {zone} | {pair.cost_ratio} | {clusters[0] / clusters[1]:.3f} | {pair.jct_mean_ratio} | "
        f"{pair.late_frac or 0.0:.1%} | {waits_s[0]:.0f} s, {waits_s[1]:.0f} s |"
    )


def main(words: Sequence[str] | None = None) -> int:
    """Print a row per price zone and policy. Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    add_traces(parser)
    energy = Path(os.environ.get("RLSCHED_DATA", "../shared")) / "energy"
    parser.add_argument("--energy", type=Path, default=energy, help="folder of the prices")
    parser.add_argument("--zone", action="append", help=f"default: {', '.join(ZONES)}")
    parser.add_argument("--set", action="append", default=[], help="change of priced, such as price.defer=2")
    parser.add_argument("--seed", type=int, default=0, help="seed of the slacks")
    parser.add_argument("--sleep-soon", action="store_true", help="nodes sleep soon after they are idle")
    given = parser.parse_args(words)
    trace = with_slack(Trace.read(given.traces / "helios_venus.csv.gz"), given.seed)
    spec = ClusterSpec.read(given.traces / "helios_venus.cluster.toml")
    plan = SLEEPS_SOON if given.sleep_soon else PowerDownPlan()
    policies = {"tuned": Policy("tuned"), "priced": Policy("priced").changed(given.set)}
    print("| prices | bill of the jobs | bill of the cluster | mean JCT | late | mean delay without slack |")
    print("|---|--:|--:|--:|--:|--:|")
    with TemporaryDirectory() as folder:
        for zone in given.zone or ZONES:
            path = Path(folder) / f"{zone}.csv"
            prices(given.energy / f"{zone}.csv.gz").write(path)
            signals = EnergySignals(price=str(path), begins=SECOND_0.isoformat(), known_ahead_h=12.0)
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
            print(row(zone, runs), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
