"""The cost of a power limit that falls for some hours a day, for jobs with and without slack.

    .venv/bin/python -m studies.policy.power_limit        # the table in docs/how-to/signals.md

Every day from 14:00 the limit is a part of the mean power of the cluster without a limit: 25 % less for three
hours, or 40 % less for one hour, not announced. Two of five jobs have no slack, the others 4, 12 or 24 hours,
drawn at random; jobs with slack may be preempted. For comparison, all jobs are treated alike: none has slack,
so all clocks are lowered to the same share («one cap»).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.spec import ClusterSpec, EnergySignals
from rlsched.decide.policies.policy import Policy
from rlsched.energy.series import HOUR_S, Series
from rlsched.workload.trace import Trace
from rlsched_agents.evaluate.metrics import jct_s
from rlsched_agents.evaluate.pairs import Ratio, ratio_of_sums
from rlsched_agents.evaluate.simulate import Run, simulate
from rlsched_envs.sim.modelling import Models
from studies.policy.options import add_traces
from studies.policy.priced import with_slack

TRACES: Final = ("helios_venus", "ms_itp_07")
SECOND_0: Final = datetime(2024, 1, 1, tzinfo=UTC)
SINCE_DAY: Final = 40
DAYS: Final = 28
LOAD: Final = 0.7
DAY_S: Final = 24 * HOUR_S
HIGH_KW: Final = 1e6
FIRST_H: Final = 14


class Event(NamedTuple):
    """A daily fall of the limit: share of the mean power, and hours."""

    cut: float
    hours: int


EVENTS: Final = (Event(0.25, 3), Event(0.40, 1))


def limit_of(event: Event, mean_kw: float, hours: int) -> Series:
    """Return the limit for each hour of a trace."""
    hour = np.arange(hours) % 24
    low = (hour >= FIRST_H) & (hour < FIRST_H + event.hours)
    return Series("limit", SECOND_0, HOUR_S, np.where(low, (1.0 - event.cut) * mean_kw, HIGH_KW))


def replayed(trace: Trace, spec: ClusterSpec) -> Run:
    """Return the replay of `tuned`."""
    since_s = SINCE_DAY * DAY_S
    runs = simulate(
        trace,
        spec,
        Policy("tuned"),
        load=LOAD,
        since_s=since_s,
        until_s=since_s + DAYS * DAY_S,
        models=Models(energy_weight=0.3),
        progress=False,
    )
    return runs["tuned"]


def ratio(one: Run, free: Run, jobs: NDArray[np.bool_]) -> Ratio | None:
    """Return the mean JCT of jobs under a limit, relative to the run without a limit; intervals over days."""
    ours, theirs = jct_s(one.jobs.table), jct_s(free.jobs.table)
    wanted = jobs & one.jobs.measured & ~np.isnan(ours) & ~np.isnan(theirs)
    day = ((one.jobs.table.trace.submit_s[wanted] / DAY_S) // 1).astype(np.int64)
    day -= day.min(initial=0)
    sums = [np.bincount(day, values[wanted]).astype(np.float64) for values in (ours, theirs)]
    return ratio_of_sums(*sums)


def rows(name: str, trace: Trace, spec: ClusterSpec, folder: Path) -> list[str]:
    """Return the rows of the table for a trace: one for each event, with classes and with one cap."""
    alike = replace(trace, extra={**trace.extra, "slack_s": np.zeros(len(trace))})
    free, found = replayed(trace, spec), []
    energy = free.metrics
    assert energy.cluster_energy_kwh is not None
    assert energy.replay_s is not None
    mean_kw = energy.cluster_energy_kwh / (energy.replay_s / HOUR_S)
    urgent = free.jobs.table.trace.extra["slack_s"] == 0.0
    for event in EVENTS:
        path = folder / "limit.csv"
        limit_of(event, mean_kw, int(trace.submit_s[-1] / HOUR_S) + 2).write(path)
        limited = EnergySignals(power_limit=str(path), begins=SECOND_0.isoformat())
        with_limit = msgspec.structs.replace(spec, energy=limited)
        for words, jobs in (("classes", trace), ("one cap", alike)):
            run = replayed(jobs, with_limit)
            kept = run.metrics.power_limit
            assert kept is not None
            found.append(
                f"| {name} | {event.cut:.0%}, {event.hours} h | {words} | {ratio(run, free, urgent)} | "
                f"{ratio(run, free, ~urgent)} | {kept.capped_h:.0f} h | {kept.exceeded_h:.2f} h |"
            )
    return found


def main(words: Sequence[str] | None = None) -> int:
    """Print the table. Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    add_traces(parser)
    parser.add_argument("--trace", action="append", help=f"default: {', '.join(TRACES)}")
    parser.add_argument("--seed", type=int, default=0, help="seed of the slacks")
    given = parser.parse_args(words)
    print("| trace | limit | jobs | JCT without slack | JCT with slack | clocks lowered | exceeded |")
    print("|---|---|---|--:|--:|--:|--:|")
    with TemporaryDirectory() as folder:
        for name in given.trace or TRACES:
            trace = with_slack(Trace.read(given.traces / f"{name}.csv.gz"), given.seed)
            spec = ClusterSpec.read(given.traces / f"{name}.cluster.toml")
            print("\n".join(rows(name, trace, spec, Path(folder))), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
