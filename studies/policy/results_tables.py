"""Markdown tables of `studies.policy.results` from finished cases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsched.decide.policies.policy import Policy
from rlsched_agents.evaluate.metrics import GroupMetrics, Metrics
from rlsched_agents.evaluate.pairs import MIN_BLOCKS, Comparison, Ratio, geometric_mean
from rlsched_agents.evaluate.report import EvaluationReport

PLAIN = Policy(
    "easy", name="easy area^0.7 1h revised", order="area^0.7", reserve_after="1h", predictions="revised"
)
"""`ppo` without dials, which is `tuned`, decides like this rule without models if no job is preemptible."""
REFERENCE = "qssf-backfill"
AGAINST = (REFERENCE, PLAIN.name, "qssf")
"""References of the policy on synthetic sequences. `qssf` does not backfill, which is better
on some of them."""
BUCKETS: tuple[tuple[str, float, float], ...] = (
    ("1", 0, 1),
    ("2-4", 1, 4),
    ("5-8", 4, 8),
    (">8", 8, float("inf")),
)
"""(label, above, up to) GPUs of a job."""


class CaseResult(msgspec.Struct, frozen=True, kw_only=True):
    """One finished case.

    Attributes:
        family: `synthetic` or `real`.
        workload: Profile of the generator, or trace and VC.
        load: Target load; the report has the resulting one.
        seed: Seed of the sequence.
        policy: Policy under test.
        policy_id: Its name and content.
        report: Every policy, compared with `qssf-backfill`.
        against_plain: The policy under test, compared with `PLAIN`.
    """

    family: str
    workload: str
    load: float
    seed: int
    policy: str
    policy_id: str
    report: EvaluationReport
    against_plain: Comparison


class Aggregate(msgspec.Struct, frozen=True, kw_only=True):
    """The policy under test against another one, over independent sequences.

    Attributes:
        against: The other policy.
        sequences: Number of sequences.
        queue: Geometric mean of the ratios of mean queueing delay.
        jct: Geometric mean of the ratios of mean JCT.
        queue_p99: Geometric mean of the ratios of the 99th percentile of queueing delay.
        wins: Number of sequences with a smaller mean queueing delay.
        losses: Number of sequences with a larger mean queueing delay.
        worst_ratio: The largest ratio of mean queueing delay.
        by_size: Geometric mean of the ratios of mean queueing delay by GPUs of the job.
    """

    against: str
    sequences: int
    queue: Ratio | None
    jct: Ratio | None
    queue_p99: Ratio | None
    wins: int
    losses: int
    worst_ratio: float | None
    by_size: dict[str, Ratio | None]


def bucket_waits(one: Metrics) -> dict[str, tuple[int, float | None]]:
    """Jobs that ended and their mean queueing delay (s), by bucket of GPUs."""
    waits: dict[str, tuple[int, float | None]] = {}
    for label, above, up_to in BUCKETS:
        groups = [group for size, group in one.by_gpus.items() if above < float(size) <= up_to]
        done = [(_ended(group), group.queue_mean_s) for group in groups if group.queue_mean_s is not None]
        jobs = sum(count for count, _ in done)
        waits[label] = (jobs, sum(count * wait for count, wait in done) / jobs if jobs else None)
    return waits


def _bucket_wait(label: str, one: Metrics) -> float | None:
    return bucket_waits(one)[label][1]


def _ended(group: GroupMetrics) -> int:
    return group.jobs - group.rejected - group.unfinished


def aggregate(results: Sequence[CaseResult], against: str) -> Aggregate:
    """Compare over sequences; a sequence without waiting on either side has no ratio and is left out."""

    def ratios(value: Callable[[Metrics], float | None]) -> NDArray[np.float64]:
        pairs = [
            (value(one.report.policies[one.policy]), value(one.report.policies[against])) for one in results
        ]
        return np.array([ours / theirs for ours, theirs in pairs if ours and theirs])

    queue = ratios(lambda one: one.queue_mean_s)
    return Aggregate(
        against=against,
        sequences=len(results),
        queue=geometric_mean(queue),
        jct=geometric_mean(ratios(lambda one: one.jct_mean_s)),
        queue_p99=geometric_mean(ratios(lambda one: one.queue_p99_s)),
        wins=int((queue < 1).sum()),
        losses=int((queue > 1).sum()),
        worst_ratio=float(queue.max()) if len(queue) else None,
        by_size={label: geometric_mean(ratios(partial(_bucket_wait, label))) for label, _, _ in BUCKETS},
    )


Numbers = dict[str, list[Aggregate]]
"""By workload and load: a list with one aggregate for each other policy."""


def synthetic_numbers(results: Sequence[CaseResult]) -> Numbers:
    """The synthetic sequences by load, each workload by itself and all of them together."""
    numbers: Numbers = {}
    for load in sorted({one.load for one in results}):
        at_load = [one for one in results if one.load == load]
        for name in [*sorted({one.workload for one in at_load}), "all"]:
            some = [one for one in at_load if name in (one.workload, "all")]
            numbers[f"{name}, load {load:g}"] = [
                aggregate(some, other) for other in AGAINST if other in some[0].report.policies
            ]
    return numbers


def synthetic_markdown(results: Sequence[CaseResult], numbers: Numbers, command: str) -> str:
    """Two tables of the synthetic sequences: all jobs, and by size."""
    lines = [
        f"Made by `{command}`. Policy {_policies(results)}.",
        f"Sequences of {_jobs(results)} measured jobs",
        "with informative predictions after a warm-up,",
        f"{results[0].report.gpus} GPUs, seeds {_seeds(results)}.",
        "Ratios of mean queueing delay, mean JCT and the 99th percentile of queueing delay:",
        "geometric mean over sequences [95 % bootstrap over sequences]; below 1 is better.",
        f"Fewer than {MIN_BLOCKS} sequences: no interval.",
        "",
    ]
    lines += _header(
        "workload", "against", "sequences", "queue", "JCT", "queue p99", "wins : losses", "worst"
    )
    rows = [(name, one) for name, both in numbers.items() for one in both]
    lines += [
        _row(
            name,
            one.against,
            str(one.sequences),
            _ratio(one.queue),
            _ratio(one.jct),
            _ratio(one.queue_p99),
            f"{one.wins} : {one.losses}",
            "" if one.worst_ratio is None else f"{one.worst_ratio:.2f}",
        )
        for name, one in rows
    ]
    lines += ["", "Ratio of mean queueing delay by GPUs of the job:", ""]
    lines += _header("workload", "against", *(label for label, _, _ in BUCKETS))
    lines += [_row(name, one.against, *map(_ratio, one.by_size.values())) for name, one in rows]
    return "\n".join(lines) + "\n"


def real_markdown(results: Sequence[CaseResult], command: str) -> str:
    """Two tables for every real window and load: all jobs, and waiting by size."""
    lines = [
        f"Made by `{command}`. Policy {_policies(results)}.",
        "Causal predictions; `sjf-backfill` has true durations; `qssf` blocks its queue. In seconds.",
        "Ratios to `qssf-backfill` [95 % bootstrap over days of submission]; below 1 is better.",
        f"Fewer than {MIN_BLOCKS} days of submissions: no interval.",
        "One window is one sequence: the interval does not cover other months.",
    ]
    for one in results:
        report, against = one.report, one.against_plain
        some = report.policies[REFERENCE]
        lines += [
            "",
            f"**{one.workload}**, load {report.load_frac:.2f} (target {one.load:g}): jobs "
            f"submitted from {report.since_s:.0f} to {report.until_s:.0f} s,",
            f"{report.nodes} nodes, {report.gpus} GPUs, {some.jobs:,} jobs "
            f"({some.rejected:,} rejected), seeds {', '.join(map(str, report.seeds))}.",
            "",
        ]
        lines += _header(
            "policy", "JCT mean", "queue mean", "p50", "p99", "p99.9", "queue ratio", "JCT ratio"
        )
        for name, numbers in report.policies.items():
            times_s = (
                numbers.jct_mean_s,
                numbers.queue_mean_s,
                numbers.queue_p50_s,
                numbers.queue_p99_s,
                numbers.queue_p999_s,
            )
            paired = report.paired.get(name)
            ratios = (paired.queue_mean_ratio, paired.jct_mean_ratio) if paired else (None, None)
            lines.append(_row(name, *map(_seconds, times_s), *map(_ratio, ratios)))
        lines += [
            "",
            f"{one.policy} against {PLAIN.name}: "
            f"mean queueing delay {_ratio(against.queue_mean_ratio)}, "
            f"mean JCT {_ratio(against.jct_mean_ratio)};",
            f"{against.wins_frac:.1%} of the jobs wait less, {against.losses_frac:.1%} longer. "
            "Mean queueing delay by GPUs of the job:",
            "",
        ]
        lines += _header(
            "policy", *(f"{label} ({jobs:,} jobs)" for label, (jobs, _) in bucket_waits(some).items())
        )
        lines += [
            _row(name, *(_seconds(wait) for _, wait in bucket_waits(numbers).values()))
            for name, numbers in report.policies.items()
        ]
    return "\n".join(lines) + "\n"


def _header(first: str, *others: str) -> list[str]:
    return [_row(first, *others), "|---|" + "---:|" * len(others)]


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def write_tables(results: Sequence[CaseResult], out: Path, *, command: str) -> list[Path]:
    """Write OUT/synthetic.md, OUT/real.md and OUT/results.json from the available cases."""
    written = []
    numbers: Numbers = {}
    synthetic = [one for one in results if one.family == "synthetic"]
    real = [one for one in results if one.family == "real"]
    if synthetic:
        numbers = synthetic_numbers(synthetic)
        (out / "synthetic.md").write_text(synthetic_markdown(synthetic, numbers, command), encoding="utf-8")
        written.append(out / "synthetic.md")
    if real:
        (out / "real.md").write_text(real_markdown(real, command), encoding="utf-8")
        written.append(out / "real.md")
    summary = {"command": command, "synthetic": numbers, "real": real}
    (out / "results.json").write_bytes(msgspec.json.format(msgspec.json.encode(summary)))
    return [*written, out / "results.json"]


def _policies(results: Sequence[CaseResult]) -> str:
    return ", ".join(sorted({f"`{one.policy}` ({one.policy_id})" for one in results}))


def _jobs(results: Sequence[CaseResult]) -> str:
    return ", ".join(f"{jobs:,}" for jobs in sorted({one.report.policies[REFERENCE].jobs for one in results}))


def _seeds(results: Sequence[CaseResult]) -> str:
    seeds = sorted({one.seed for one in results})
    return f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else str(seeds[0])


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _ratio(value: Ratio | None) -> str:
    return "" if value is None else str(value)
