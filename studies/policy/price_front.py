"""The saving of the electricity bill at equal JCT, and a lower bound of the bill, by tariff and load.

    .venv/bin/python -m studies.policy.price_front --set price.spare=0  # table in docs/.../learning.md

Jobs, slacks and nodes that sleep are as in `studies.policy.priced`, at loads 0.5 and 0.7, with the prices of
all zones. Candidates are `priced` with several weights of energy and slopes; at slope 0, no job waits for a
lower price. The best candidate is chosen on the days from 40 to 55, and compared with `tuned` on the days
from 55 to 70.

The bound is for the jobs' bill. Each job with slack runs in its cheapest hours up to its latest end, with its
energy and its time on GPUs under `tuned`. Prices and run times are known, GPUs are always free, and pauses
cost nothing.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.spec import ClusterSpec, EnergySignals
from rlsched.decide.policies.policy import Policy
from rlsched.energy.bills import J_PER_MWH
from rlsched.energy.series import HOUR_S
from rlsched.power_down.plan import PowerDownPlan
from rlsched.workload.trace import Trace
from rlsched_agents.evaluate.metrics import jct_s
from rlsched_agents.evaluate.pairs import Ratio, ratio_of_sums
from rlsched_agents.evaluate.simulate import Run, Runs, simulate
from rlsched_envs.sim.bills import Bill
from rlsched_envs.sim.modelling import Models
from studies.policy.options import add_traces
from studies.policy.priced import BEGINS, DAY_S, DAYS, prices, with_slack

Floats = NDArray[np.float64]

SECOND_0: Final = datetime.fromisoformat(BEGINS).replace(tzinfo=UTC) - timedelta(days=DAYS[0])
DAY_AHEAD: Final = ("de-lu", "us-cal-ciso", "us-tex-erco")
REAL_TIME: Final = ("au-vic", "sg", "ca-on")
LOADS: Final = (0.5, 0.7)
CHOICE: Final = (DAYS[0], (DAYS[0] + DAYS[1]) // 2)
"""Days on which candidates are chosen; the other days up to `DAYS[1]` are for the comparison."""
WEIGHTS: Final = (0.15, 0.3)
"""Weights of energy; `tuned` has 0.3."""
SLOPES: Final = (0.0, 0.03, 0.1, 1.0)
"""Values of `price.defer` and `price.pause`; at 0, no job waits."""
BASE: Final = "tuned"
PRICED: Final = "weight 0.3, slope 1"
"""The candidate that is `priced` with its default settings."""
JCTS: Final = (1.0, 1.02)
"""Largest mean JCT of a candidate that may be chosen, relative to `BASE`."""


def candidates(changes: Sequence[str] = ()) -> dict[str, Policy]:
    """Return the policies by name; `BASE` is the baseline. `changes`: changes of the settings of `priced`."""
    found = {BASE: Policy(BASE)}
    for weight, slope in product(WEIGHTS, SLOPES):
        dials = [f"clock.energy_weight={weight}", f"price.defer={slope}", f"price.pause={slope}"]
        found[f"weight {weight:g}, slope {slope:g}"] = Policy("priced").changed([*changes, *dials])
    return found


def bill_of(run: Run) -> Bill:
    """Return the bill of a run."""
    energy = run.jobs.table.energy
    assert energy is not None
    assert energy.cost is not None
    return energy.cost


class Days(NamedTuple):
    """Results of a run by day: bill of the cluster, and sum of the JCTs of the jobs submitted on the day."""

    bill: Floats
    jct_s: Floats

    @classmethod
    def of(cls, run: Run, jobs: NDArray[np.bool_], days: tuple[int, int]) -> Days:
        """Return the results of the days from `days[0]` to before `days[1]`, for the jobs `jobs`."""
        table, bill = run.jobs.table, bill_of(run)
        assert table.energy is not None
        first = round((days[0] * DAY_S - table.energy.hours_from_s) / HOUR_S)
        hours = bill.hours[first : first + 24 * (days[1] - days[0])]
        day = (table.trace.submit_s / DAY_S).astype(np.int64) - days[0]
        among = jobs & (day >= 0) & (day < days[1] - days[0])
        jct = np.bincount(day[among], jct_s(table)[among], minlength=days[1] - days[0])
        return cls(hours.reshape(-1, 24).sum(axis=1), jct)


def compared(run: Run, base: Run, jobs: NDArray[np.bool_], days: tuple[int, int]) -> tuple[Ratio, Ratio]:
    """Return the bill of the cluster and the mean JCT, relative to `base`, with intervals over days."""
    ours, theirs = Days.of(run, jobs, days), Days.of(base, jobs, days)
    bill, jct = ratio_of_sums(ours.bill, theirs.bill), ratio_of_sums(ours.jct_s, theirs.jct_s)
    assert bill is not None
    assert jct is not None
    return bill, jct


def ended(runs: Runs) -> NDArray[np.bool_]:
    """Return which jobs are measured, and have ended under all policies."""
    found: NDArray[np.bool_] = runs[BASE].jobs.measured.copy()
    for run in runs.values():
        found &= ~np.isnan(run.jobs.table.end_s)
    return found


def cheapest(hourly: Floats, since_s: float, until_s: float, ran_s: float) -> float:
    """Return the lowest mean price at which a job can run for `ran_s` seconds, with pauses.

    Args:
        hourly: Price in each hour from second 0 on.
        since_s: Earliest start, seconds.
        until_s: Latest end, seconds; at least `since_s` + `ran_s`.
        ran_s: Time to run, seconds.
    """
    first, last = int(since_s // HOUR_S), int(np.ceil(until_s / HOUR_S))
    edges = np.clip(np.arange(first, last + 1) * HOUR_S, since_s, until_s)
    order = np.argsort(hourly[first:last], kind="stable")
    price, length_s = hourly[first:last][order], np.diff(edges)[order]
    used_s = np.diff(np.minimum(np.cumsum(length_s), ran_s), prepend=0.0)
    return float(used_s @ price) / ran_s


def bound(run: Run, jobs: NDArray[np.bool_], days: tuple[int, int]) -> Ratio | None:
    """Return the lower bound of the jobs' bill, relative to their bill in the run."""
    table, bill = run.jobs.table, bill_of(run)
    assert table.energy is not None
    attempts, trace = table.attempts, table.trace
    ran_s = np.bincount(attempts.job, attempts.end_s - attempts.start_s, minlength=len(trace))
    slack_s = np.asarray(trace.extra["slack_s"], np.float64)
    until_s = np.maximum(table.end_s, trace.submit_s + ran_s + slack_s)
    kept = np.flatnonzero(jobs & (trace.submit_s >= days[0] * DAY_S) & (trace.submit_s < days[1] * DAY_S))
    hourly = np.array(bill.signal_means(np.arange(np.ceil(until_s[kept].max() / HOUR_S) + 1) * HOUR_S))
    least = bill.jobs.copy()
    for job in kept[(slack_s[kept] > 0.0) & (ran_s[kept] > 0.0)]:
        price = cheapest(hourly, float(trace.submit_s[job]), float(until_s[job]), float(ran_s[job]))
        least[job] = table.energy.job_j[job] / J_PER_MWH * price
    day = (trace.submit_s[kept] / DAY_S).astype(np.int64) - days[0]
    return ratio_of_sums(*(np.bincount(day, one[kept]) for one in (least, bill.jobs)))


def rows(zone: str, load: float, runs: Runs) -> Iterator[str]:
    """Yield the rows of a zone and load: the best candidate for each JCT, `priced`, and the bound."""
    jobs, base, last = ended(runs), runs[BASE], (CHOICE[1], DAYS[1])
    tried = {name: compared(run, base, jobs, CHOICE) for name, run in runs.items()}
    for most in JCTS:
        best = min(
            (name for name, (_, jct) in tried.items() if jct.ratio <= most),
            key=lambda name: tried[name][0].ratio,
        )
        bill, jct = compared(runs[best], base, jobs, last)
        yield f"| {zone} | {load:g} | JCT up to {most:g}: {best} | {bill} | {jct} |"
    bill, jct = compared(runs[PRICED], base, jobs, last)
    yield f"| {zone} | {load:g} | `priced` | {bill} | {jct} |"
    paid = {name: bill_of(runs[name]).jobs[jobs].sum() for name in (PRICED, BASE)}
    yield f"| {zone} | {load:g} | bound of the jobs' bill: {bound(base, jobs, DAYS)} | " + (
        f"`priced` {paid[PRICED] / paid[BASE]:.3f} | - |"
    )


def main(words: Sequence[str] | None = None) -> int:
    """Print the rows of each zone and load. Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    add_traces(parser)
    energy = Path(os.environ.get("RLSCHED_DATA", "../shared")) / "energy"
    parser.add_argument("--energy", type=Path, default=energy, help="folder of the prices")
    parser.add_argument("--zone", action="append", help=f"default: {', '.join((*DAY_AHEAD, *REAL_TIME))}")
    parser.add_argument("--load", type=float, action="append", help="default: 0.5 and 0.7")
    parser.add_argument("--seed", type=int, default=0, help="seed of the slacks")
    parser.add_argument("--set", action="append", default=[], help="change of `priced`, price.spare=0")
    given = parser.parse_args(words)
    trace = with_slack(Trace.read(given.traces / "helios_venus.csv.gz"), given.seed)
    spec = ClusterSpec.read(given.traces / "helios_venus.cluster.toml")
    print("| prices | load | policy | bill of the cluster | mean JCT |")
    print("|---|--:|---|--:|--:|")
    with TemporaryDirectory() as folder:
        for zone in given.zone or (*DAY_AHEAD, *REAL_TIME):
            path = Path(folder) / f"{zone}.csv"
            prices(given.energy / f"{zone}.csv.gz").write(path)
            known_ahead_h = 12.0 if zone in DAY_AHEAD else 0.0
            signals = EnergySignals(price=str(path), begins=SECOND_0.isoformat(), known_ahead_h=known_ahead_h)
            for load in given.load or LOADS:
                runs = simulate(
                    trace,
                    msgspec.structs.replace(spec, energy=signals),
                    candidates(given.set),
                    load=load,
                    since_s=DAYS[0] * DAY_S,
                    until_s=DAYS[1] * DAY_S,
                    models=Models(energy_weight=0.3, power_down=PowerDownPlan()),
                    progress=False,
                )
                for one in rows(zone, load, runs):
                    print(one, flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
