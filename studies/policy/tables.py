"""Markdown of the comparison: over all cases, and case by case."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np

from rlsched_agents.evaluate.metrics import Metrics
from rlsched_agents.evaluate.pairs import Comparison, Ratio, geometric_mean
from studies.policy.cases import WANTED_JOBS, Case
from studies.policy.opponents import REFERENCES, Entry
from studies.policy.results_tables import BUCKETS, bucket_waits
from studies.policy.runs import Result

LEAST_RATIO: Final = 0.01
"""Least ratio in a geometric mean, so that a case without queueing does not dominate it."""

Results = dict[tuple[str, str, bool], Result]
"""Results by (name of the case, name of the policy, whether it ran under models)."""


def best_reference(results: Results, case: Case, *, models: bool) -> Result | None:
    """Return the result of the reference with the least mean queueing delay; None: one of them is missing."""
    found = [results.get((case.name, name, models)) for name in REFERENCES]
    there = [one for one in found if one is not None and one.metrics.queue_mean_s is not None]
    return min(there, key=lambda one: one.metrics.queue_mean_s or 0.0) if len(there) == len(found) else None


def of_ratios(ours: Iterable[float | None], theirs: Iterable[float | None]) -> Ratio | None:
    """Geometric mean of ours / theirs over cases; a case with 0 or an unknown value has no ratio."""
    ratios = [one / other for one, other in zip(ours, theirs, strict=True) if one and other]
    return geometric_mean(np.array(ratios, dtype=np.float64))


def bounded_ratios(ours: Iterable[float | None], theirs: Iterable[float | None]) -> Ratio | None:
    """Return the geometric mean like `of_ratios`, with at least `LEAST_RATIO` for each ratio.

    For values of `ours` that can be 0 or negative.
    """
    pairs = zip(ours, theirs, strict=True)
    ratios = [max(one / other, LEAST_RATIO) for one, other in pairs if one is not None and other]
    return geometric_mean(np.array(ratios, dtype=np.float64))


def section(
    cases: Sequence[Case],
    entries: dict[str, list[Entry]],
    results: Results,
    *,
    split: str,
    ids: list[str],
    untuned: Sequence[str] = (),
) -> str:
    """The whole text.

    Args:
        cases: The requested cases, in the order of the tables.
        entries: By trace: the rows.
        results: Available results.
        split: The measured part of the time.
        ids: Identities of the policies under test.
        untuned: Rules at their default values.
    """
    done = [case for case in cases if best_reference(results, case, models=False)]
    lines = [
        f"{split.capitalize()} split, {len(done)} of {len(cases)} cases there; under test: {', '.join(ids)}. "
        "Ratios are to the better of `qssf` and `qssf-backfill`, case by case; below 1 is better.",
        "",
    ]
    if untuned:
        lines += [
            f"**Not tuned**, at their default values: {', '.join(f'`{rule}`' for rule in untuned)}.",
            "",
        ]
    lines += over_all(done, entries, results)
    for case in done:
        lines += ["", *one_case(case, entries[case.trace], results)]
    return "\n".join(lines) + "\n"


def over_all(cases: Sequence[Case], entries: dict[str, list[Entry]], results: Results) -> list[str]:
    """A row for each label: geometric means over the cases, [95 % bootstrap over the cases] from ten on.

    The loads of one trace have the same jobs, so that the interval is too narrow; the interval of each case,
    over days, is in its own table.
    """
    lines = []
    for models, title in ((False, "Whole GPUs at full clocks"), (True, "With sharing (models on)")):
        rows = list(
            dict.fromkeys(
                (one.label, one.role)
                for case in cases
                for one in entries[case.trace]
                if one.models == models and one.role != "reference"
            )
        )
        if not any(best_reference(results, case, models=models) for case in cases):
            continue
        lines += [f"**{title}**, over all cases:", ""]
        lines += header(
            *("policy", "cases", "queue mean", "JCT mean", "JCT p50", "queue p99", "queue p99.9", "longest"),
            *("better : worse", "worst case"),
        )
        made = [_over_all_row(cases, entries, results, label, role, models) for label, role in rows]
        lines += [one for one in made if one]
        lines.append("")
    return lines[:-1]


def _over_all_row(
    cases: Sequence[Case],
    entries: dict[str, list[Entry]],
    results: Results,
    label: str,
    role: str,
    models: bool,
) -> str:
    pairs: list[tuple[Metrics, Metrics]] = []
    for case in cases:
        mine = (one for one in entries[case.trace] if one.label == label and one.models == models)
        entry = next(mine, None)
        ours = results.get((case.name, entry.policy.name if entry is not None else "", models))
        best = best_reference(results, case, models=models)
        if ours and best:
            pairs.append((ours.metrics, best.metrics))
    if not pairs:
        return ""

    def ratio(value: Callable[[Metrics], float | None]) -> str:
        return ratio_text(of_ratios((value(one) for one, _ in pairs), (value(other) for _, other in pairs)))

    queue = [
        one.queue_mean_s / other.queue_mean_s
        for one, other in pairs
        if one.queue_mean_s is not None and other.queue_mean_s
    ]
    return row(
        f"`{label}`{' (true durations)' if role == 'oracle' else ''}",
        str(len(pairs)),
        ratio(lambda one: one.queue_mean_s),
        ratio(lambda one: one.jct_mean_s),
        ratio(lambda one: one.jct_p50_s),
        ratio(lambda one: one.queue_p99_s),
        ratio(lambda one: one.queue_p999_s),
        ratio(lambda one: one.queue_max_s),
        f"{sum(one < 1 for one in queue)} : {sum(one > 1 for one in queue)}",
        f"{max(queue):.2f}" if queue else "",
    )


def one_case(case: Case, entries: Sequence[Entry], results: Results) -> list[str]:
    """Description of the runs, and the tables of one case."""
    best = best_reference(results, case, models=False)
    assert best is not None
    jobs = best.metrics.jobs
    short = f" (fewer than {WANTED_JOBS:,}: all there are)" if jobs < WANTED_JOBS else ""
    lines = [
        f"**{case.trace}, load {best.load_frac:.2f}**: {jobs:,} jobs{short}, {best.metrics.rejected} "
        f"rejected, {best.days:.1f} days (submission times x {best.stretch:.2f}), {best.nodes} nodes, "
        f"{best.gpus} GPUs; best QSSF: `{best.policy}`. Seconds; [95 % bootstrap over days].",
    ]
    for models in (False, True):
        rows = list(dict.fromkeys((one.policy.name, one.role) for one in entries if one.models == models))
        there = [
            (name, role, results[case.name, name, models])
            for name, role in rows
            if (case.name, name, models) in results
        ]
        reference = best_reference(results, case, models=models)
        if not there or reference is None:
            continue
        if models:
            lines += ["", f"With sharing (models on); best QSSF: `{reference.policy}`."]
        lines += ["", *_times(there, reference), "", *_sizes(there)]
    return lines


def _times(rows: Sequence[tuple[str, str, Result]], best: Result) -> list[str]:
    lines = header(
        *("policy", "queue mean", "ratio", "JCT mean", "ratio", "JCT p50", "p99", "p99.9", "queue p50"),
        *("p99", "p99.9", "longest", "slowdown", "preemptions", "unfinished"),
    )
    for name, role, one in rows:
        against: Comparison = one.against[best.policy]
        m = one.metrics
        lines.append(
            row(
                f"`{name}`{' (true durations)' if role == 'oracle' else ''}",
                number(m.queue_mean_s),
                ratio_text(against.queue_mean_ratio),
                number(m.jct_mean_s),
                ratio_text(against.jct_mean_ratio),
                *map(number, (m.jct_p50_s, m.jct_p99_s, m.jct_p999_s)),
                *map(number, (m.queue_p50_s, m.queue_p99_s, m.queue_p999_s, m.queue_max_s)),
                number(m.bounded_slowdown_mean),
                number(m.preemptions or None),
                number(m.unfinished or None),
            )
        )
    return lines


def _sizes(rows: Sequence[tuple[str, str, Result]]) -> list[str]:
    lines = header("mean queueing by GPUs of the job", *(label for label, _, _ in BUCKETS))
    for name, _, one in rows:
        waits = bucket_waits(one.metrics)
        lines.append(row(f"`{name}`", *(number(waits[label][1]) for label, _, _ in BUCKETS)))
    return lines


def header(first: str, *others: str) -> list[str]:
    """Head of a Markdown table, numbers to the right."""
    return [row(first, *others), f"|---|{'---:|' * len(others)}"]


def row(*cells: str) -> str:
    """A line of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def number(value: float | None) -> str:
    """A whole number with commas; empty if there is none."""
    return "" if value is None else f"{value:,.0f}"


def percent(value: float | None) -> str:
    """A share in percent; empty if there is none."""
    return "" if value is None else f"{value:.0%}"


def ratio_text(value: Ratio | None) -> str:
    """A ratio with its interval; empty if there is none."""
    return "" if value is None else str(value)
