"""The cost of a power limit that falls for some hours a day, for jobs with and without slack.

    .venv/bin/python -m studies.policy.power_limit        # the tables in docs/how-to/signals.md
    .venv/bin/python -m studies.policy.power_limit --ahead 0 --trace helios_venus

Every day from 14:00 the limit is a part of the mean power of the cluster without a limit: 25 % less for three
hours, or 30 % or 40 % less for one hour, announced not at all, 10 minutes or 2 hours ahead. Two of five jobs
have no slack, the others 4, 12 or 24 hours, drawn at random; jobs with slack may be preempted. In «one cap»,
all jobs are treated alike: none has slack, so all clocks are lowered to the same share. In «apart», jobs
without slack share no GPUs.

The extra JCT of jobs without slack has three *parts*, relative to the JCT without a limit: waits in the
queue, lower speeds in the limited hours, and lower speeds at other times.

*Throughput* is the work done in the hours of the low limit, relative to the run without a limit: GPUs x run
time at full speed, without restart costs. The *bound* is the most throughput that any scheduler could keep
with the jobs that run at these times without a limit (`most_work`): each job is paused, or has a clock from
0.5 to 1, so that the power by the models keeps the limit. It assumes that pauses and restarts cost nothing,
that clocks change at any time, and that a job can run for a part of the time, or on a part of its GPUs. All
nodes draw their idle power. Jobs stay on the GPUs, next to the jobs with which they run without a limit. A
run with a limit also has jobs that it delayed earlier, so it can exceed the bound.
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

from rlsched.cluster.arrays import MAX_TENANTS, RUNNING, StateArrays
from rlsched.cluster.power import leads, nodes_w
from rlsched.cluster.spec import ClusterSpec, EnergySignals
from rlsched.cluster.speed import added_power_w, cores_used, gpu_kind, placed_rate
from rlsched.compile.jit import kernel
from rlsched.decide.policies.policy import Policy
from rlsched.energy.series import HOUR_S, Series
from rlsched.models.clocks import MIN_CLOCK_FRAC, gpu_power_w
from rlsched.workload.trace import Trace
from rlsched_agents.evaluate.metrics import jct_s
from rlsched_agents.evaluate.pairs import Ratio, ratio_of_sums
from rlsched_agents.evaluate.run import replay_tasks
from rlsched_agents.evaluate.simulate import Run, Runs, simulate
from rlsched_agents.evaluate.task import engine_of
from rlsched_envs.sim.attempt_log import RunRules
from rlsched_envs.sim.engine import Engine, predict_trace
from rlsched_envs.sim.job_table import JobTable
from rlsched_envs.sim.modelling import Models
from rlsched_envs.sim.physics import true_share
from rlsched_envs.sim.sim_arrays import ProgressArrays
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
POLICY: Final = Policy("tuned")
CLOCKS: Final = np.linspace(MIN_CLOCK_FRAC, 1.0, 11)
HALVINGS: Final = 40

Floats = NDArray[np.float64]


class Event(NamedTuple):
    """A daily fall of the limit: share of the mean power, and hours."""

    cut: float
    hours: int


EVENTS: Final = (Event(0.25, 3), Event(0.30, 1), Event(0.40, 1))
STEPS: Final = 6
"""Number of times at which a replay is read in each limited hour."""
READS_S: Final = HOUR_S * (FIRST_H + np.arange(EVENTS[0].hours * STEPS + 1) / STEPS)
"""(R,) times of the day at which a replay is read, seconds, from the fall of the limit to its last rise."""


def limit_of(event: Event, mean_kw: float, hours: int) -> Series:
    """Return the limit for each hour of a trace."""
    hour = np.arange(hours) % 24
    low = (hour >= FIRST_H) & (hour < FIRST_H + event.hours)
    return Series("limit", SECOND_0, HOUR_S, np.where(low, (1.0 - event.cut) * mean_kw, HIGH_KW))


def replayed(trace: Trace, spec: ClusterSpec) -> Runs:
    """Return the replay of `tuned`."""
    since_s = SINCE_DAY * DAY_S
    return simulate(
        trace,
        spec,
        POLICY,
        load=LOAD,
        since_s=since_s,
        until_s=since_s + DAYS * DAY_S,
        models=Models(energy_weight=0.3),
        progress=False,
    )


def reads(runs: Runs) -> Iterator[Engine]:
    """Repeat a replay, and yield it at the times of `READS_S` of each day with submissions."""
    known = predict_trace(
        runs.trace, runs.cluster, recorded_until_s=runs.window.replay_from_s, kind=runs.prediction
    )
    rules = RunRules(max_retries=runs.cluster.max_retries)
    [task] = replay_tasks(
        runs.trace, runs.cluster, runs.window, known, [POLICY], [0], models=runs.models, rules=rules
    )
    scheduler = task.scheduler()
    assert scheduler.rule is not None
    engine = engine_of(task, scheduler)
    times_s = DAY_S * (SINCE_DAY + np.arange(DAYS))[:, None] + READS_S
    times_s = times_s[times_s[:, -1] <= runs.trace.submit_s[-1]]
    for _ in engine.looks_at(scheduler.rule, times_s.ravel().tolist()):
        yield engine


class Read(NamedTuple):
    """State of a replay at one time."""

    done_gpu_s: float  # work done up to now; restart costs are no work
    rate_gpus: float  # work per second
    lost_s: float  # run time of measured jobs without slack, less their work; sum over jobs


def read(engine: Engine) -> Read:
    """Return the state of a replay."""
    s, work, truth, log = engine.state.arrays, engine.arrays.progress.work, engine.arrays.truth, engine.log
    assert log is not None
    live = np.flatnonzero(s.job.status == RUNNING)
    gpus, row = s.job.gpus[live], engine.arrays.progress.ends.row[live]
    done_s = work.done_s[live] + work.rate[live] * (engine.now_s - work.since_s[live])
    useful_s = done_s - s.job.overhead_left_s[live]
    mine = (truth.slack_s == 0.0) & (truth.submit_s >= SINCE_DAY * DAY_S)
    ended = log.attempts[: log.counters.attempts[0]]
    ended = ended[mine[ended.row] & ~np.isnan(ended.end_s)]
    lost_s = (ended.end_s - ended.start_s - ended.done_s).sum()
    return Read(
        float(truth.gpus @ log.jobs.saved_s + gpus @ np.maximum(useful_s, 0.0)),
        float(gpus @ (work.rate[live] * (useful_s >= 0.0))),
        float(lost_s + (engine.now_s - s.job.start_s[live] - done_s)[mine[row]].sum()),
    )


def by_day(values: Sequence[float]) -> Floats:
    """Return values at the times of `READS_S` of D days as (D, R)."""
    return np.reshape(values, (-1, len(READS_S)))


@kernel
def curves(
    x: ProgressArrays, s: StateArrays, clocks: Floats, watts: Floats, work: Floats
) -> tuple[int, float]:
    """Compute power and speed of the jobs on each group of GPUs that jobs share, at each of C clocks.

    Args:
        x: State of the run.
        s: State of the cluster.
        clocks: (C,) SM clocks, fractions of the maximum.
        watts: (G, C), receives the power of the group above the idle power of its GPUs, W.
        work: (G, C), receives the work per second: the sum of GPUs x speed over the jobs of the group.

    Returns:
        The number of groups, and the power of all nodes as if no job ran, W.
    """
    groups = 0
    for position in range(s.derived.running_len[0]):
        first = s.derived.slot.running[position]
        if s.job.head[first] < 0 or not leads(s, first):
            continue
        g = s.job.head[first] // MAX_TENANTS
        for c in range(clocks.shape[0]):
            watts[groups, c] = work[groups, c] = 0.0
            tenants = 0
            for k in range(MAX_TENANTS):
                slot = s.gpu.tenant[g, k]
                if slot >= 0:
                    tenants += 1
                    rate = placed_rate(s, slot, clocks[c], true_share(x, s, slot, g))
                    work[groups, c] += s.job.gpus[slot] * rate
                    cores = s.job.gpus[slot] * cores_used(s, slot, gpu_kind(s, g), rate)
                    watts[groups, c] += s.node.core_w[s.job.host[slot]] * cores
            place = s.job.head[first]
            while place >= 0:
                kind, added_w = gpu_kind(s, place // MAX_TENANTS), 0.0
                for k in range(MAX_TENANTS):
                    slot = s.gpu.tenant[g, k]
                    if slot >= 0:
                        rate = placed_rate(s, slot, clocks[c], true_share(x, s, slot, g))
                        added_w += added_power_w(s, slot, kind, clocks[c], rate)
                board_w = gpu_power_w(s.models.gpu, kind, tenants, added_w)
                watts[groups, c] += board_w - s.models.gpu.idle_w[kind]
                place = s.gpu.link[place // MAX_TENANTS, place % MAX_TENANTS]
        groups += 1
    return groups, nodes_w(s)


def most_work(watts: Floats, work: Floats, budget_w: float) -> float:
    """Return the most work per second of G groups of jobs with a power of at most `budget_w` in total.

    A group is paused, or runs at one of C clocks, or divides its time among these (a fractional knapsack). By
    duality, the result is the minimum over prices of power of: price x budget + sum over groups of the
    highest work - price x power.

    Args:
        watts: (G, C) power, W.
        work: (G, C) work per second.
        budget_w: The budget, W.
    """
    low, high = 0.0, float((work / np.maximum(watts, 1e-3)).max(initial=0.0))
    each = np.arange(len(work))
    for _ in range(HALVINGS):
        price = 0.5 * (low + high)
        net = work - price * watts
        best = net.argmax(axis=1)
        used_w = watts[each, best][net[each, best] > 0.0].sum()
        low, high = (price, high) if used_w > budget_w else (low, price)
    gain = np.maximum((work - high * watts).max(axis=1, initial=0.0), 0.0).sum()
    return max(float(high * budget_w + gain), 0.0)


class Powers(NamedTuple):
    """Power and speed of running jobs at one look (`curves`)."""

    watts: Floats  # (G, C)
    work: Floats  # (G, C)
    idle_w: float


def powers_of(engine: Engine) -> Powers:
    """Return power and speed of the running jobs, by group and clock."""
    s = engine.state.arrays
    watts, work = np.zeros((2, int(s.derived.running_len[0]), len(CLOCKS)))
    groups, idle_w = curves(engine.arrays.progress, s, CLOCKS, watts, work)
    return Powers(watts[:groups], work[:groups], idle_w)


class Throughput:
    """Work of the run without a limit in the limited hours, and bounds of the work under a limit.

    Args:
        runs: The run without a limit.
    """

    def __init__(self, runs: Runs) -> None:
        self._table = runs[POLICY.name].jobs.table
        found = [(read(engine), powers_of(engine)) for engine in reads(runs)]
        self._read, self._powers = [one for one, _ in found], [powers for _, powers in found]

    def bound(self, event: Event, mean_kw: float) -> float:
        """Return the bound of the throughput. At each time, the jobs of the last time of `READS_S` run."""
        limit_w, end = 1000.0 * (1.0 - event.cut) * mean_kw, event.hours * STEPS
        most = by_day([most_work(one.watts, one.work, limit_w - one.idle_w) for one in self._powers])
        rates = by_day([one.rate_gpus for one in self._read])
        return float(most[:, :end].sum() / rates[:, :end].sum())

    def under(self, limited: Runs, event: Event, urgent: NDArray[np.bool_]) -> tuple[float, list[float]]:
        """Return the throughput of a run with a limit, and the three parts of the extra JCT.

        `urgent`: (J,) measured jobs without slack.
        """
        end, found = event.hours * STEPS, [read(engine) for engine in reads(limited)]
        (done, lost), (done_free, lost_free) = (
            [
                float((values[:, end] - values[:, 0]).sum())
                for values in (by_day([one.done_gpu_s for one in runs]), by_day([one.lost_s for one in runs]))
            ]
            for runs in (found, self._read)
        )
        table = limited[POLICY.name].jobs.table
        jct_free_s, ran_s = jct_s(self._table)[urgent], run_s(table)[urgent] - run_s(self._table)[urgent]
        more_s = (jct_s(table)[urgent] - jct_free_s).sum()
        parts = np.array([more_s - ran_s.sum(), lost - lost_free, ran_s.sum() - (lost - lost_free)])
        return done / done_free, (parts / jct_free_s.sum()).tolist()


def run_s(table: JobTable) -> Floats:
    """Return the (J,) run time of all attempts of each job, seconds."""
    attempts = table.attempts
    return np.bincount(attempts.job, attempts.end_s - attempts.start_s, len(table.trace))


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
    """Yield the rows of the table for a trace: for each event, with classes, with one cap, and apart.

    `ahead`: times from the announcement of a fall to the fall, such as `0`, `10m` and `2h`.
    """
    alike = replace(trace, extra={**trace.extra, "slack_s": np.zeros(len(trace))})
    shares = np.where(trace.extra["slack_s"] == 0.0, "false", "")
    apart = replace(trace, extra={**trace.extra, "shares": shares})
    runs = replayed(trace, spec)
    free, throughput = runs[POLICY.name], Throughput(runs)
    energy = free.metrics
    assert energy.cluster_energy_kwh is not None
    assert energy.replay_s is not None
    mean_kw = energy.cluster_energy_kwh / (energy.replay_s / HOUR_S)
    urgent = free.jobs.table.trace.extra["slack_s"] == 0.0
    for event in EVENTS:
        path = folder / "limit.csv"
        limit_of(event, mean_kw, int(trace.submit_s[-1] / HOUR_S) + 2).write(path)
        limited = EnergySignals(power_limit=str(path), begins=SECOND_0.isoformat())
        bound = throughput.bound(event, mean_kw)
        for words, jobs in (("classes", trace), ("one cap", alike), ("apart", apart)):
            for told in ahead:
                energy = msgspec.structs.replace(limited, power_limit_known_ahead_h=hours_of(told))
                runs = replayed(jobs, msgspec.structs.replace(spec, energy=energy))
                run = runs[POLICY.name]
                kept = run.metrics.power_limit
                assert kept is not None
                work, parts = throughput.under(runs, event, urgent & free.jobs.measured)
                said = "-" if jobs is alike else ", ".join(f"{part:.1%}" for part in parts)
                yield (
                    f"| {name} | {event.cut:.0%}, {event.hours} h | {words} | {told} | "
                    f"{ratio(run, free, urgent)} | {ratio(run, free, ~urgent)} | "
                    f"{said} | {work:.3f} | {bound:.3f} | {kept.capped_h:.0f} h | "
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
    print(
        "| trace | limit | jobs | told | JCT without slack | with slack | parts | throughput | bound | "
        "clocks lowered | exceeded | |"
    )
    print("|---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    with TemporaryDirectory() as folder:
        for name in given.trace or TRACES:
            trace = with_slack(Trace.read(given.traces / f"{name}.csv.gz"), given.seed)
            spec = ClusterSpec.read(given.traces / f"{name}.cluster.toml")
            for row in rows(name, trace, spec, Path(folder), given.ahead.split(",")):
                print(row, flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
