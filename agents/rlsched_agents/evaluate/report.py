"""The report of an evaluation: the JSON file of the contract, and a table for people."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsched.errors import InputError
from rlsched.workload.load import offered_load
from rlsched_agents.evaluate.metrics import GroupMetrics, Metrics, mean_over_seeds, schedule_metrics
from rlsched_agents.evaluate.pairs import Comparison, Ratio, compare

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from rlsched.cluster.spec import ClusterSpec
    from rlsched.workload.trace import Trace
    from rlsched_agents.evaluate.run import Outcome
    from rlsched_agents.evaluate.windows import Window
    from rlsched_envs.engine import JobTable

NAMED_JOBS = 5
"""Rejected jobs that are named for each reason; --jobs-out has all of them."""
_SPARE = (8, 3, 4, 1)
"""Columns of the headline table that a narrow terminal does without: the first goes first."""
_WIDEST = 1_000


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What `rlsched evaluate --json` writes. None: nothing computes it, or nothing to compute it from.

    Attributes:
        trace: Name of the trace.
        cluster: Name of the cluster.
        nodes: Its nodes, after --nodes or --load.
        gpus: Its GPUs.
        load_frac: Offered load of the measured jobs on it.
        seeds: Seeds of the policies' draws; numbers are means over them.
        policies: By name, in the order asked for.
        since_s: First second of the window, None: the trace's start.
        until_s: End of the window, None: the trace's end.
        baseline: The policy that `paired` compares with.
        paired: Every other policy against the baseline, on the same jobs.
        rejected_reasons: Measured jobs that can never run, by reason.
    """

    trace: str
    cluster: str
    nodes: int
    gpus: int
    load_frac: float | None
    seeds: list[int]
    policies: dict[str, Metrics]
    since_s: float | None = None
    until_s: float | None = None
    baseline: str
    paired: dict[str, Comparison]
    rejected_reasons: dict[str, int]


def build_report(
    trace: Trace,
    spec: ClusterSpec,
    window: Window,
    seeds: list[int],
    outcomes: list[Outcome],
    baseline: str | None = None,
) -> Report:
    """Put the outcomes of an evaluation together.

    Args:
        trace: The whole trace.
        spec: The cluster that was replayed on.
        window: Which jobs are measured.
        seeds: Seeds that were asked for.
        outcomes: Every policy's, one a seed; a single one stands for all seeds.
        baseline: The policy to compare with; None: the first.

    Raises:
        InputError: the baseline is not among the policies.
    """
    tables: dict[str, list[JobTable]] = {}
    metrics: dict[str, list[Metrics]] = {}
    for outcome in outcomes:
        measured = window.measured(outcome.table.trace)
        tables.setdefault(outcome.policy, []).append(outcome.table)
        metrics.setdefault(outcome.policy, []).append(
            schedule_metrics(outcome.table, spec.num_gpus, measured, wall_s=outcome.wall_s)
        )
    against = baseline or next(iter(tables))
    if against not in tables:
        raise InputError(f"baseline {against!r} is not among the policies: {', '.join(tables)}")
    first = outcomes[0].table
    measured = window.measured(first.trace)
    load = offered_load(first.trace.select(measured), spec)
    return Report(
        trace=trace.name,
        cluster=spec.name,
        nodes=spec.num_nodes,
        gpus=spec.num_gpus,
        load_frac=None if math.isnan(load) else load,
        seeds=seeds,
        policies={name: mean_over_seeds(runs) for name, runs in metrics.items()},
        since_s=window.since_s if math.isfinite(window.since_s) else None,
        until_s=window.until_s if math.isfinite(window.until_s) else None,
        baseline=against,
        paired={
            name: compare(*paired_runs(runs, tables[against]), measured)
            for name, runs in tables.items()
            if name != against
        },
        rejected_reasons=rejected_reasons(first, measured),
    )


def paired_runs(ours: list[JobTable], theirs: list[JobTable]) -> tuple[list[JobTable], list[JobTable]]:
    """Runs side by side, seed by seed; a single run stands beside each of the other side's."""
    seeds = max(len(ours), len(theirs))
    return (ours * seeds if len(ours) == 1 else ours), (theirs * seeds if len(theirs) == 1 else theirs)


def write_json(report: Report, path: str | Path) -> None:
    """Write the report.

    Raises:
        InputError: the file cannot be written.
    """
    body = msgspec.json.format(msgspec.json.encode(report), indent=2)
    try:
        Path(path).write_bytes(body + b"\n")
    except OSError as error:
        raise InputError(f"{path}: cannot write the report here: {error.strerror}") from error


def rejected_reasons(table: JobTable, measured: NDArray[np.bool_]) -> dict[str, int]:
    """Measured jobs that can never run, counted by reason, most frequent first."""
    jobs = np.flatnonzero(measured & table.rejected)
    return dict(Counter(str(table.reject_reason[job]) for job in jobs).most_common())


def rejected_lines(table: JobTable, measured: NDArray[np.bool_]) -> list[str]:
    """One line a reason: how many jobs, why, and the first of them by name."""
    jobs_of: dict[str, list[str]] = {}
    for job in np.flatnonzero(measured & table.rejected):
        jobs_of.setdefault(table.reject_reason[job], []).append(str(table.trace.job_id[job]))
    return [
        f"{len(jobs)} rejected: {reason} ({', '.join(jobs[:NAMED_JOBS])}"
        f"{', ...' if len(jobs) > NAMED_JOBS else ''})"
        for reason, jobs in jobs_of.items()
    ]


def print_report(report: Report, console: Console) -> None:
    """The headline numbers of each policy, how they compare, and waiting by job size and VC."""
    load = "unknown" if report.load_frac is None else f"{report.load_frac:.2f}"
    console.print(
        f"[bold]{report.trace}[/] on {report.nodes} nodes, {report.gpus} GPUs ({report.cluster}), "
        f"load {load}, window {_window(report)}, seeds {', '.join(map(str, report.seeds))}"
    )
    _print_table(
        console,
        "seconds",
        ("jobs", "not run", "JCT mean", "p50", "p99", "queue mean", "p50", "p99", "p99.9", "used"),
        {
            name: (
                f"{one.jobs:,}",
                f"{one.rejected + one.unfinished:,}",
                _seconds(one.jct_mean_s),
                _seconds(one.jct_p50_s),
                _seconds(one.jct_p99_s),
                _seconds(one.queue_mean_s),
                _seconds(one.queue_p50_s),
                _seconds(one.queue_p99_s),
                _seconds(one.queue_p999_s),
                _percent(one.gpu_utilisation_frac),
            )
            for name, one in report.policies.items()
        },
        spare=_SPARE,
    )
    if report.paired:
        _print_table(
            console,
            f"ratios to {report.baseline} on the same jobs, 95 % intervals; below 1 better",
            ("mean queue", "mean JCT", "waits less", "longer"),
            {
                name: (
                    _ratio(one.queue_mean_ratio),
                    _ratio(one.jct_mean_ratio),
                    _percent(one.wins_frac),
                    _percent(one.losses_frac),
                )
                for name, one in report.paired.items()
            },
        )
    _print_groups(report, "GPUs", "by_gpus", console)
    if len(next(iter(report.policies.values())).by_vc) > 1:
        _print_groups(report, "VC", "by_vc", console)
    _print_table(
        console,
        "decisions",
        ("by", "us, p99", "wall (s)"),
        {
            name: (
                ", ".join(f"{source} {count:,}" for source, count in one.by_source.items() if count),
                _seconds(one.decision_p99_us) or "compiled",
                f"{one.wall_s:.1f}",
            )
            for name, one in report.policies.items()
        },
    )


def _print_groups(report: Report, what: str, field: str, console: Console) -> None:
    groups: dict[str, dict[str, GroupMetrics]] = {
        name: getattr(one, field) for name, one in report.policies.items()
    }
    some = next(iter(groups.values()))
    _print_table(
        console,
        f"mean queueing delay by {what} of the job, seconds",
        ("jobs", *groups),
        {
            key: (f"{some[key].jobs:,}", *(_seconds(one[key].queue_mean_s) for one in groups.values()))
            for key in some
        },
        first=what,
    )


def _print_table(
    console: Console,
    title: str,
    headers: tuple[str, ...],
    rows: dict[str, tuple[str, ...]],
    *,
    first: str = "policy",
    spare: tuple[int, ...] = (),
) -> None:
    """Print a table and cut no number: where it is too wide, columns of `spare` go, then lines wrap."""
    for count in range(len(spare) + 1):
        table = _table(title, headers, rows, first, left_out=spare[:count])
        table.width = console.measure(table, options=console.options.update(max_width=_WIDEST)).maximum
        if table.width <= console.width:
            break
    if count:
        table.title = f"{title}; a wider terminal shows more, --json all"
    console.print(table, crop=False)


def _table(
    title: str,
    headers: tuple[str, ...],
    rows: dict[str, tuple[str, ...]],
    first: str,
    *,
    left_out: tuple[int, ...],
) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(first, title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    kept = [column for column in range(len(headers)) if column not in left_out]
    for column in kept:
        table.add_column(headers[column], justify="right")
    for name, cells in rows.items():
        table.add_row(name, *(cells[column] for column in kept))
    return table


def _window(report: Report) -> str:
    if report.since_s is None and report.until_s is None:
        return "the whole trace"
    since = "start" if report.since_s is None else f"{report.since_s:.0f}"
    return f"{since} to {'end' if report.until_s is None else f'{report.until_s:.0f}'} s"


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _ratio(value: Ratio | None) -> str:
    return "" if value is None else f"{value.ratio:.3f} [{value.low:.2f}, {value.high:.2f}]"
