"""`rlsched predictor`: shows how accurate predicted run times and forecast starts and ends were recently."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from rlsched.cli.shared.options import JSON, BrokerAt, asking
from rlsched.terminal.show import in_words, percent, print_json, print_table
from rlsched.terminal.visible import visible

if TYPE_CHECKING:
    from rlsched.wire.messages import (
        ForecastReport,
        PredictionReport,
        PredictionScore,
        RecentPredictions,
        StatsReport,
    )

RULES = ("last", "week", "list")


@click.command()
@JSON
@asking
def predictor(as_json: bool, at: BrokerAt) -> None:
    """Show the recent accuracy of predicted run times, and of forecast starts and ends.

    In the output of --json, values that are not known yet are null.

    \b
    Example:
      rlsched predictor
      rlsched predictor --json
    """
    import msgspec

    with at.reach() as client:
        report = client.stats()
    if as_json:
        told = {"prediction": report.prediction, "forecasts": report.forecasts}
        print_json(msgspec.to_builtins(told))
        return
    _print_report(report, time.time())


def _print_report(report: StatsReport, now_s: float) -> None:
    if report.prediction is None and report.forecasts is None:
        click.echo("this broker reports no predictions and forecasts")
    if report.prediction is not None:
        _print_prediction(report.prediction, now_s)
    if report.forecasts is not None:
        _print_forecasts(report.forecasts, now_s)


def _print_prediction(report: PredictionReport, now_s: float) -> None:
    click.echo(f"predictions: {report.model}, learned from {report.ended:,} jobs that ended")
    if report.fitted_s is not None:
        click.echo(
            f"  boosting: last fitted {in_words(now_s - report.fitted_s)} ago, when {report.fitted_jobs:,} "
            f"jobs had ended; again at {report.next_fit_jobs:,}"
        )
    if report.note:
        click.echo(f"  {report.note}")
    if report.fit_error:
        click.echo(f"  the last fit failed: {report.fit_error}")
    if report.weights is not None:
        print_table(
            "weights",
            ("GPUs", *next(iter(report.weights.values()))),
            [(size, *map(percent, weights.values())) for size, weights in report.weights.items()],
        )
    recent = (report.last_jobs, report.last_week)
    titles = (f"last {report.last_jobs.jobs:,}", f"7 days: {report.last_week.jobs:,}")
    print_table(
        "jobs that ended recently, against predictions at their submission",
        ("", *(f"{title}, {who}" for title in titles for who in (report.model, "running mean"))),
        zip(_NAMES, *(column for one in recent for column in _columns(one)), strict=True),
        note="" if report.last_week.predicted else "no figures for fewer than 20 jobs",
    )


def _print_forecasts(report: ForecastReport, now_s: float) -> None:
    if report.said_s is None:
        click.echo(visible(f"forecasts: {report.note}"))
        return
    click.echo(
        visible(
            f"forecasts: {report.jobs:,} jobs in {report.futures} simulated futures under {report.by}, made "
            f"{in_words(now_s - report.said_s)} ago, {report.cpu_s or 0.0:.2f} CPU s"
            + (f"; {report.note}" if report.note else "")
        )
    )
    if report.scores:
        print_table(
            "forecasts of the last 7 days against actual times; pinball loss, s, next to three simple rules",
            ("", "GPUs", "forecasts", "inside 10 to 90 %", "loss", *RULES),
            [
                (
                    one.what,
                    one.size,
                    f"{one.jobs:,}",
                    percent(one.covered_frac),
                    f"{one.loss_s:,.0f}",
                    *("-" if (loss := one.rules.get(rule)) is None else f"{loss:,.0f}" for rule in RULES),
                )
                for one in report.scores
            ],
            note="last: as the last of this size; week: 10, 50 and 90 % of the last 7 days; list: list "
            "scheduling by predicted run times",
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
