"""`rlsched top`: how the broker does, and how good its predictions have lately been."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rlsched.cli.options import asking
from rlsched.cli.show import in_words, percent, print_json, print_table
from rlsched.cli.status import drift_lines, guard_line, kept_out, records_line
from rlsched.terminal import visible

if TYPE_CHECKING:
    from rlsched.wire.messages import PredictionReport, PredictionScore, RecentPredictions, StatsReport


@click.command()
@click.option("--json", "as_json", is_flag=True, help="JSON on standard output.")
@asking
def top(as_json: bool, broker: str | None, keys: Path | None, timeout_s: float) -> None:
    """Say how the broker does: queue, who decided, and how good its predictions have lately been.

    What is not known yet is null in the JSON.

    \b
    Example:
      rlsched top
      rlsched top --json
    """
    import msgspec

    from rlsched.client.client import Client

    with Client(broker, home=keys, timeout_s=timeout_s) as client:
        report = client.stats()
    if as_json:
        print_json(msgspec.to_builtins(report))
        return
    _print_report(report, time.time())


def _print_report(report: StatsReport, now_s: float) -> None:
    click.echo(
        f"policy {report.policy}, up for {in_words(report.uptime_s)}: {report.queued:,} jobs queued"
        f"{kept_out(report)}, {report.running:,} running, {report.ended:,} over"
    )
    decided = [f"{count:,} by {source}" for source, count in sorted(report.decisions.items())]
    contested = sum(report.contested.values())
    click.echo(f"decisions: {', '.join(decided) or 'none yet'}; {contested:,} of them with a choice")
    if report.guard is not None and (report.guard.decided or report.guard.masked):
        click.echo(guard_line(report.guard))
    if report.guard is not None and report.guard.drift is not None:
        drift = report.guard.drift
        if drift.active or drift.outside:
            for line in drift_lines(report.guard):
                click.echo(visible(line))
    if report.records is not None and (report.records.lost or report.records.troubles):
        click.echo(records_line(report.records))
        for line in report.records.troubles.values():
            click.echo(visible(f"  {line}"))
    _print_clocks(report)
    if report.prediction is not None:
        _print_prediction(report.prediction, now_s)


def _print_clocks(report: StatsReport) -> None:
    """Nothing where energy counts for nobody."""
    if report.speed_energy == 0.0 and not report.clocked:
        return
    click.echo(
        f"energy counts {report.speed_energy:g} against time: {report.clocked:,} of {report.running:,} "
        "running jobs are at a lower clock than the highest"
    )
    for node, why in report.fixed_clocks.items():
        click.echo(visible(f"  {node} cannot set clocks: {why}"))


def _print_prediction(report: PredictionReport, now_s: float) -> None:
    click.echo(f"predictions: {report.model}, learnt from {report.ended:,} jobs that ended")
    if report.fitted_s is not None:
        click.echo(
            f"  boosting: last fitted {in_words(now_s - report.fitted_s)} ago, when {report.fitted_jobs:,} "
            f"jobs had ended; again at {report.next_fit_jobs:,}"
        )
    if report.note:
        click.echo(f"  {report.note}")
    if report.fit_error:
        click.echo(f"  the last fit came to nothing: {report.fit_error}")
    if report.weights is not None:
        print_table(
            "weights",
            ("GPUs", *next(iter(report.weights.values()))),
            [(size, *map(percent, weights.values())) for size, weights in report.weights.items()],
        )
    recent = (report.last_jobs, report.last_week)
    titles = (f"last {report.last_jobs.jobs:,}", f"7 days: {report.last_week.jobs:,}")
    print_table(
        "jobs that ended lately, against what was said when they were submitted",
        ("", *(f"{title}, {who}" for title in titles for who in (report.model, "running mean"))),
        zip(_NAMES, *(column for one in recent for column in _columns(one)), strict=True),
        note="" if report.last_week.predicted else "no figures for fewer than 20 jobs",
    )


_NAMES = (
    "median |ln(true / median)|",
    "rank correlation, mean",
    "rank correlation, E ln",
    "longer than the median",
    "inside 10 to 90 %",
    "AUC, 10 min",
    "AUC, 1 h",
    "AUC, 4 h",
    "AUC, 1 day",
)


def _columns(recent: RecentPredictions) -> list[list[str]]:
    return [_cells(recent.predicted), _cells(recent.running_mean)]


def _cells(score: PredictionScore | None) -> list[str]:
    if score is None:
        return ["-"] * len(_NAMES)
    return [
        _number(score.median_abs_ln),
        _number(score.spearman_mean),
        _number(score.spearman_ln),
        percent(score.longer_than_median_frac),
        percent(score.covered_frac),
        *(_number(row.auc) for row in score.longer),
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
