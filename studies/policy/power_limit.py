"""The cost of a power limit that falls for some hours a day, for jobs with and without slack.

    .venv/bin/python -m studies.policy.power_limit        # the tables in docs/how-to/signals.md
    .venv/bin/python -m studies.policy.power_limit --ahead 0 --trace helios_venus

Every day from 14:00 the limit is a part of the mean power of the cluster without a limit: 25 % less for three
hours, or 30 % or 40 % less for one hour, announced not at all, 10 minutes or 2 hours ahead. Two of five jobs
have no slack, the others 4, 12 or 24 hours, drawn at random; jobs with slack may be preempted. In «one cap»,
all jobs are treated alike: none has slack, so all clocks are lowered to the same share.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
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


EVENTS: Final = (Event(0.25, 3), Event(0.30, 1), Event(0.40, 1))


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


def rows(
    name: str, trace: Trace, spec: ClusterSpec, folder: Path, ahead: Sequence[str] = ("0",)
) -> Iterator[str]:
    """Yield the rows of the table for a trace: for each event, with classes and with one cap.

    `ahead`: times from the announcement of a fall to the fall, such as `0`, `10m` and `2h`.
    """
    alike = replace(trace, extra={**trace.extra, "slack_s": np.zeros(len(trace))})
    free = replayed(trace, spec)
    energy = free.metrics
    assert energy.cluster_energy_kwh is not None
    assert energy.replay_s is not None
    mean_kw = energy.cluster_energy_kwh / (energy.replay_s / HOUR_S)
    urgent = free.jobs.table.trace.extra["slack_s"] == 0.0
    for event in EVENTS:
        path = folder / "limit.csv"
        limit_of(event, mean_kw, int(trace.submit_s[-1] / HOUR_S) + 2).write(path)
        limited = EnergySignals(power_limit=str(path), begins=SECOND_0.isoformat())
        for words, jobs in (("classes", trace), ("one cap", alike)):
            for told in ahead:
                energy = msgspec.structs.replace(limited, power_limit_known_ahead_h=hours_of(told))
                run = replayed(jobs, msgspec.structs.replace(spec, energy=energy))
                kept = run.metrics.power_limit
                assert kept is not None
                yield (
                    f"| {name} | {event.cut:.0%}, {event.hours} h | {words} | {told} | "
                    f"{ratio(run, free, urgent)} | {ratio(run, free, ~urgent)} | {kept.capped_h:.0f} h | "
                    f"{kept.exceeded_h:.2f} h | {kept.exceeded_kwh:.0f} kWh |"
                )


def hours_of(time: str) -> float:
    """Return a time such as `0`, `10m` or `2h` in hours.

    Raises:
        ValueError: the text has another form.
    """
    return float(time[:-1]) / 60.0 if time.endswith("m") else float(time.removesuffix("h"))


def main(words: Sequence[str] | None = None) -> int:
    """Print the table. Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    add_traces(parser)
    parser.add_argument("--trace", action="append", help=f"default: {', '.join(TRACES)}")
    parser.add_argument("--seed", type=int, default=0, help="seed of the slacks")
    parser.add_argument("--ahead", default="0,10m,2h", help="times of announcement")
    given = parser.parse_args(words)
    print("| trace | limit | jobs | told | JCT without slack | with slack | clocks lowered | exceeded | |")
    print("|---|---|---|--:|--:|--:|--:|--:|--:|")
    with TemporaryDirectory() as folder:
        for name in given.trace or TRACES:
            trace = with_slack(Trace.read(given.traces / f"{name}.csv.gz"), given.seed)
            spec = ClusterSpec.read(given.traces / f"{name}.cluster.toml")
            for row in rows(name, trace, spec, Path(folder), given.ahead.split(",")):
                print(row, flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
