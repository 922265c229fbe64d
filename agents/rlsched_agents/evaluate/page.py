"""The page of `rlsched evaluate --html`: plots that compare policies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlsched import __version__
from rlsched.report.figures import COLOURS, GAIN_COLOURS, Canvas, Point, Series
from rlsched.report.markup import Section, cards, document, figure, paragraph, table, write
from rlsched.report.phrases import number, or_nan, section
from rlsched.terminal.show import in_words, percent
from rlsched_agents.evaluate.report import EvaluationReport

if TYPE_CHECKING:
    from rlsched_agents.evaluate.jobs import MeasuredJobs

MOST_DRAWN = len(COLOURS)
"""Maximum number of policies in a plot: one per colour."""
MOST_OWNERS = 10
_POINTS = 120


def write_page(report: EvaluationReport, jobs: Mapping[str, MeasuredJobs], path: Path) -> None:
    """Write the page to a file, which is replaced as a whole.

    Args:
        report: Comparison of the policies.
        jobs: The jobs of each policy.
        path: File to write.

    Raises:
        InputError: the file cannot be written.
    """
    canvas = Canvas()
    drawn = drawn_policies(report)
    made = [
        _overview(report),
        _waiting(report, drawn, canvas),
        _tails(report, jobs, drawn, canvas),
        *_trade_offs(report, canvas),
        *_over_time(report, drawn, canvas),
        *_gains(report, jobs, canvas),
    ]
    foot = paragraph(f"Made by rlsched {__version__}, rlsched evaluate --html. For machines: --json.")
    lead = cards(
        [
            ("jobs measured", number(next(iter(report.policies.values())).jobs)),
            ("nodes", number(report.nodes)),
            ("GPUs", number(report.gpus)),
            ("offered load", "-" if report.load_frac is None else f"{report.load_frac:.3f}"),
            ("compared with", report.baseline),
        ]
    )
    notes = "".join(paragraph(f"Note: {one}", "note") for one in report.cautions)
    lead = paragraph(report.verdict) + lead + notes
    subtitle = f"{len(report.policies)} policies on {report.cluster}; queueing delay ends at the first start."
    write(document(f"Policies on {report.trace}", subtitle, lead, made, foot), path)


def drawn_policies(report: EvaluationReport) -> list[str]:
    """Return the policies shown in plots: the baseline and the first `MOST_DRAWN` - 1 other policies."""
    others = [name for name in report.policies if name != report.baseline]
    return [report.baseline, *others[: MOST_DRAWN - 1]]


def _overview(report: EvaluationReport) -> Section:
    rows = []
    for name, one in report.policies.items():
        times = (one.queue_mean_s, one.queue_p99_s, one.jct_mean_s)
        ratios = (_ratio(report, name, field) for field in ("queue_mean_ratio", "jct_mean_ratio"))
        rows.append((name, *map(in_words, times), percent(one.gpu_utilisation_frac), *ratios))
    known = report.recorded
    if known is not None:
        times = (known.queue_mean_s, known.queue_p99_s, known.jct_mean_s)
        rows.append(("recorded", *map(in_words, times), "-", "-", "-"))
    columns = ("policy", "mean wait", "p99 wait", "mean JCT", "GPUs used", "wait, ratio", "JCT, ratio")
    tables = [table("All policies", columns, rows, folded=False)]
    bills = _bills(report)
    if bills:
        bill_rows = [
            (
                name,
                *(number(None if (bill := getattr(one, of.field)) is None else bill.jobs) for of in bills),
                *(_ratio(report, name, f"{of.name}_ratio") for of in bills),
            )
            for name, one in report.policies.items()
        ]
        heads = [f"{of.name}, {of.unit}" for of in bills] + [f"{of.name}, ratio" for of in bills]
        title = "Electricity of the measured jobs, without idle power"
        tables.append(table(title, ("policy", *heads), bill_rows, folded=False))
    note = paragraph(
        f"Ratios are to {report.baseline}, over the jobs that ended under both; below 1 is better. In "
        "brackets: the 95 % interval over days of submissions, where there are ten days. "
        f"{report.predicted_by}",
        "note",
    )
    return section("overview", "Overview", *tables, note)


def _ratio(report: EvaluationReport, name: str, field: str) -> str:
    if name == report.baseline:
        return "1"
    return str(getattr(report.paired.get(name), field, None) or "-")


class _Bill(NamedTuple):
    """Field names and plot titles for one of two figures of the report: cost or carbon of electricity."""

    field: str  # field of `Metrics`
    name: str  # name + `_ratio` is a field of `Comparison`
    unit: str
    signal: str  # field of `OverTime`
    title: str  # title of the signal's plot
    axis: str


def _bills(report: EvaluationReport) -> list[_Bill]:
    both = [
        _Bill("cost", "cost", report.currency, "price", "Price of electricity", f"{report.currency} per MWh"),
        _Bill(
            "carbon_kg", "carbon", "kg", "carbon_g_kwh", "Carbon intensity of electricity", "g CO2e per kWh"
        ),
    ]
    policies = report.policies.values()
    return [bill for bill in both if any(getattr(one, bill.field) is not None for one in policies)]


def _waiting(report: EvaluationReport, drawn: Sequence[str], canvas: Canvas) -> Section:
    sizes = list(report.policies[report.baseline].by_gpus)
    plot = canvas.time_bars(
        sizes,
        [
            Series(name, [or_nan(report.policies[name].by_gpus[size].queue_mean_s, 0.0) for size in sizes])
            for name in drawn
        ],
        "Mean queueing delay by number of GPUs.",
        "GPUs",
    )
    rows = [
        (size, *(in_words(one.by_gpus[size].queue_mean_s) for one in report.policies.values()))
        for size in sizes
    ]
    shown = table("Mean queueing delay by size", ("GPUs", *report.policies), rows)
    return section("waiting", "Waiting by size", figure(plot), shown)


def _tails(
    report: EvaluationReport, jobs: Mapping[str, MeasuredJobs], drawn: Sequence[str], canvas: Canvas
) -> Section:
    waits = {name: np.sort(jobs[name].queue_s) for name in drawn}
    waits = {name: known[np.isfinite(known)] for name, known in waits.items()}
    longest_s = max((float(known[-1]) for known in waits.values() if len(known)), default=1.0)
    at_s = np.geomspace(1.0, max(longest_s, 10.0), _POINTS)
    plot = canvas.curves(
        at_s,
        [
            Series(name, np.searchsorted(known, at_s, side="right") / max(len(known), 1))
            for name, known in waits.items()
        ],
        "Share of the jobs that waited no longer than this.",
        "queueing delay",
    )
    keys = ("queue_p50_s", "queue_p90_s", "queue_p99_s", "queue_p999_s", "queue_max_s")
    rows = [
        (name, *(in_words(getattr(one, key)) for key in keys), number(one.bounded_slowdown_p99))
        for name, one in report.policies.items()
    ]
    columns = ("policy", "median", "p90", "p99", "p99.9", "longest", "bounded slowdown, p99")
    return section("tails", "Tails", figure(plot), table("Queueing delay", columns, rows))


def _trade_offs(report: EvaluationReport, canvas: Canvas) -> Iterator[Section]:
    """Yield the section that compares the bills of the policies with their job completion times."""
    plots = []
    for bill in _bills(report):
        points = [
            Point(name, one.jct_mean_s, amount.jobs)
            for name, one in report.policies.items()
            if one.jct_mean_s is not None and (amount := getattr(one, bill.field)) is not None
        ]
        if len(points) > 1:
            say = (
                f"Mean job completion time, and {bill.name} of the measured jobs. The line joins the "
                "policies of which no other is better in both."
            )
            plot = canvas.front(points, say, "mean job completion time", f"{bill.name}, {bill.unit}")
            plots.append(figure(plot))
    if plots:
        yield section("tradeoffs", "Bill and completion times", *plots)


def _over_time(report: EvaluationReport, drawn: Sequence[str], canvas: Canvas) -> Iterator[Section]:
    first = report.policies[report.baseline].over_time
    if first is None:
        return
    edges = [first.from_s + k * first.step_s for k in range(len(first.gpus_allocated))] + [first.to_s]
    days = [edge / 86400 for edge in edges]
    values = {name: report.policies[name].over_time for name in drawn}
    plot = canvas.steps(
        days,
        [Series(name, one.gpus_allocated) for name, one in values.items() if one is not None],
        f"GPUs that jobs hold: mean of each {in_words(first.step_s)}, of {report.gpus} GPUs.",
        "day of the trace",
        "GPUs",
    )
    plots = [figure(plot)]
    for field, whose in (("gpus_waiting", "jobs"), ("gpus_waiting_slack", "jobs with slack")):
        waiting = [(name, getattr(one, field)) for name, one in values.items() if one is not None]
        series = [Series(name, gpus) for name, gpus in waiting if gpus]
        if series:
            say = f"GPUs that waiting {whose} request: mean of each {in_words(first.step_s)}."
            plots.append(figure(canvas.steps(days, series, say, "day of the trace", "GPUs")))
    bills = _bills(report)
    if bills:
        powers = [Series(name, one.power_kw) for name, one in values.items() if one and one.power_kw]
        say = "Power of the jobs, without idle power; an attempt counts with its mean power."
        plots.append(figure(canvas.steps(days, powers, say, "day of the trace", "kW")))
    for bill in bills:
        means = getattr(first, bill.signal)
        say = f"{bill.title}: mean of each {in_words(first.step_s)}."
        plots.append(
            figure(canvas.steps(days, [Series(bill.signal, means)], say, "day of the trace", bill.axis))
        )
    by_hour = [
        Series(name, report.policies[name].energy_by_hour_kwh or [])
        for name in drawn
        if report.policies[name].energy_by_hour_kwh
    ]
    if by_hour:
        say = "Energy of the whole cluster, idle power included, by hour of the day."
        plots.append(figure(canvas.steps(list(range(25)), by_hour, say, "hour of the day (UTC)", "kWh")))
    yield section("utilisation", "Utilisation over time", *plots)


def _gains(report: EvaluationReport, jobs: Mapping[str, MeasuredJobs], canvas: Canvas) -> Iterator[Section]:
    """Yield the section that compares the waiting times of jobs with those under the baseline."""
    base = jobs[report.baseline]
    names = [name for name in drawn_policies(report) if name != report.baseline]
    if not names or not len(base):
        return
    say = f"Against {report.baseline}, job by job; a second or less is counted as the same."
    parts = [paragraph(say)]
    trace = base.table.trace
    sizes = np.array([f"{count:g}" for count in base.num_gpus])
    owners = [(kind, values[base.measured]) for kind, values in (("VC", trace.vc), ("user", trace.user))]
    for name in names:
        gained_s = base.queue_s - jobs[name].queue_s
        order = sorted(set(sizes), key=float)
        shares = [_shares(gained_s[sizes == size]) for size in order]
        plot = canvas.bars(
            order,
            [
                Series(label, [one[k] for one in shares])
                for k, label in enumerate(("waits less", "the same", "longer"))
            ],
            f"{name}: shares of the jobs that wait less than under {report.baseline}, as long (within a "
            "second), and longer, by number of GPUs.",
            "GPUs",
            stacked=True,
            colours=GAIN_COLOURS,
        )
        parts.append(figure(plot))
        for kind, whose in owners:
            if len(set(whose)) > 1:
                parts.append(_owners(f"{name}: waiting by {kind}", kind, whose, gained_s))
    yield section("gains", "Who gained and who lost", *parts)


def _shares(gained_s: NDArray[np.float64]) -> tuple[float, float, float]:
    known = gained_s[np.isfinite(gained_s)]
    if not len(known):
        return 0.0, 0.0, 0.0
    less, longer = float(np.mean(known > 1.0)), float(np.mean(known < -1.0))
    return less, 1.0 - less - longer, longer


def _owners(caption: str, kind: str, whose: NDArray[np.str_], gained_s: NDArray[np.float64]) -> str:
    """Return a table of the VCs or users whose total waiting time decreased or increased the most."""
    names, group = np.unique(whose, return_inverse=True)
    gained_h = np.bincount(group, np.nan_to_num(gained_s), minlength=len(names)) / 3600
    jobs = np.bincount(group, minlength=len(names))
    ranked = np.argsort(-gained_h, kind="stable")
    shown = ranked if len(names) <= 2 * MOST_OWNERS else np.r_[ranked[:MOST_OWNERS], ranked[-MOST_OWNERS:]]
    rows = [(names[k] or "-", number(int(jobs[k])), f"{gained_h[k]:+,.1f}") for k in shown]
    return table(caption, (kind, "jobs", "hours of waiting saved"), rows)
