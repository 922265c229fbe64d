"""Markdown of the rows of the bar: over all cases, a line for each case, and each case's own table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from rlsched_agents.evaluate.pairs import Ratio
from studies.policy.bar_studies import HEADLINE_LOADS, Study
from studies.policy.cases import SYNTHETIC, Case
from studies.policy.dial_tables import dial_lines
from studies.policy.measures import LONGEST, SIZES
from studies.policy.opponents import REFERENCES, Entry
from studies.policy.runs import Result
from studies.policy.tables import (
    Results,
    best_reference,
    bounded_ratios,
    header,
    number,
    percent,
    ratio_text,
    row,
)

LARGE: Final = SIZES[-1][0]
MANY_JOBS: Final = 300
"""Minimum number of jobs of a large case. A study with its own traces has a further table of large cases."""
QUEUE_PART: Final = 0.3
"""Sharing is judged if `lucid`'s queueing is at least this share of its JCT."""

Rows = dict[str, list[Entry]]
_AGAINST: Final = {
    "preempt100": ("tiresias", "tiresias-clear", "true gittins"),
    "preempt50": ("tiresias", "tiresias-clear", "true gittins"),
    "sharing": ("lucid", "pack", "pack 0.85"),
    "everything": ("pack", "gittins"),
    "good": ("easy", "reserve", "sjf-backfill"),
    "unseen": ("easy", "reserve", "sjf-backfill"),
    "unseen100": ("tiresias", "tiresias-clear", "gittins", "true gittins"),
    "unseen50": ("tiresias", "tiresias-clear", "gittins", "true gittins"),
    "sizes": ("tiresias", "gittins", "true gittins"),
}
"""Strong opponents, by study: rows with which every other row of the study is also compared."""


def study_section(
    study: Study, cases: Sequence[Case], rows: Rows, results: Results, *, untuned: Sequence[str] = ()
) -> str:
    """Text for the page of results: everything over all cases, and one line for each case.

    Args:
        study: The study.
        cases: Its cases, in the order of the lines.
        rows: By trace: the compared rows.
        results: Available results.
        untuned: Rules without a value that was tuned in this setting.
    """
    done = [case for case in cases if best_reference(results, case, models=study.models)]
    lines = [f"### {study.title}", "", *_said(study, cases, done, results, untuned), ""]
    if study.name == "dial":
        return "\n".join([*lines, *dial_lines(done, rows, results)])
    headline = [case for case in done if case.load in HEADLINE_LOADS]
    lines += over_all(study, headline, rows, results)
    if study.own:
        many = [case for case in headline if _jobs(study, case, results) >= MANY_JOBS]
        if len(many) < len(headline):
            lines += ["", f"Only cases with {MANY_JOBS} measured jobs or more:", ""]
            lines += over_all(study, many, rows, results)[2:]
    if study.part == SYNTHETIC:
        lines += ["", *wall_times(headline, rows, results)]
    lines += ["", *beside(study, headline, rows, results)]
    lines += ["", *by_case(study, done, rows, results)]
    return "\n".join(lines)


def _jobs(study: Study, case: Case, results: Results) -> int:
    """Number of measured jobs of a case."""
    best = best_reference(results, case, models=study.models)
    return 0 if best is None else best.metrics.jobs


def wall_times(cases: Sequence[Case], rows: Rows, results: Results) -> list[str]:
    """Wall time of a whole replay over its decisions (starts, preemptions, a Python scheduler's waits), us.

    It includes the simulator. A row that was not run on a case has an empty cell.
    """
    there = dict.fromkeys(REFERENCES, "reference") | labels(cases, rows)
    lines = ["Wall time of the replay over its decisions, us; in brackets the number of decisions:", ""]
    lines += header("policy", *(f"{case.trace}, {case.load:g}" for case in cases))
    for label, role in there.items():
        cells = []
        for case in cases:
            one = result_of(case, label, rows, results)
            if one is None or not one.metrics.decisions:
                cells.append("")
            else:
                each_us = 1e6 * one.metrics.wall_s / one.metrics.decisions
                cells.append(f"{number(each_us)} ({number(one.metrics.decisions)})")
        if any(cells):
            lines.append(row(named(label, role), *cells))
    return lines


def _said(
    study: Study, cases: Sequence[Case], done: Sequence[Case], results: Results, untuned: Sequence[str]
) -> list[str]:
    words = [f"{len(done)} of {len(cases)} cases there. The bar: {study.goal}."]
    known = [
        one.measured.rank_correlation
        for case in done
        if (one := best_reference(results, case, models=study.models)) is not None
        and one.measured.rank_correlation is not None
    ]
    if known:
        words.append(
            f"Rank correlation of predicted and true durations: {min(known):.2f} to {max(known):.2f} by case."
        )
    if untuned:
        words.append(
            f"**Not tuned** here, at the values of the base setting or their defaults: "
            f"{', '.join(f'`{one}`' for one in untuned)}."
        )
    return [" ".join(words)]


def value_of(study: Study, one: Result) -> float | None:
    """Ranking measure of a study, seconds."""
    if study.measure == "jct":
        return one.metrics.jct_mean_s
    return one.measured.delay_mean_s


def ratio_of(study: Study, one: Result, reference: str) -> Ratio | None:
    """Return the ranking measure / the reference's ranking measure, with its interval over days."""
    if study.measure == "jct":
        return one.against[reference].jct_mean_ratio
    return one.measured.delay_ratio.get(reference)


def labels(cases: Sequence[Case], rows: Rows) -> dict[str, str]:
    """Role of every row except the references, by label, in the order of the tables."""
    found = (one for trace in dict.fromkeys(case.trace for case in cases) for one in rows[trace])
    return {one.label: one.role for one in found if one.role != "reference"}


def result_of(case: Case, label: str, rows: Rows, results: Results) -> Result | None:
    """Result of the row with this label on a case."""
    for one in rows[case.trace]:
        if one.label == label:
            return results.get((case.name, one.policy.name, one.models))
    return None


def over_all(study: Study, cases: Sequence[Case], rows: Rows, results: Results) -> list[str]:
    """A row for each label: geometric means of its ratios to best QSSF."""
    first, second = ("JCT mean", "delay mean") if study.measure == "jct" else ("delay mean", "JCT mean")
    loads = sorted({case.load for case in cases}) or HEADLINE_LOADS
    lines = [
        f"Over the cases of loads {', '.join(f'{load:g}' for load in loads)}; ratios to best QSSF:",
        "",
        *header(
            *("policy", "cases", first, second, "JCT p50", "delay p99", "p99.9", "longest"),
            *(f"delay, {LARGE} GPUs", f"delay, {LONGEST}", "better : worse", "worst case"),
            *(("preemptions a job",) if _preempts(study) else ()),
            *(("jobs that share", "of these keep 85 %") if study.models else ()),
        ),
    ]
    for label, role in labels(cases, rows).items():
        pairs = []
        for case in cases:
            ours = result_of(case, label, rows, results)
            best = best_reference(results, case, models=study.models)
            if ours is not None and best is not None:
                pairs.append((ours, best))
        if pairs:
            lines.append(_over_all_row(study, label, role, pairs))
    return lines


def _over_all_row(study: Study, label: str, role: str, pairs: Sequence[tuple[Result, Result]]) -> str:
    def ratio(value: Callable[[Result], float | None]) -> str:
        found = bounded_ratios([value(one) for one, _ in pairs], [value(best) for _, best in pairs])
        return "" if found is None else str(found)

    def short(value: Callable[[Result], float | None]) -> str:
        return ratio(value).partition(" ")[0]

    ratios = [one for pair in pairs if (one := _over(value_of(study, pair[0]), value_of(study, pair[1])))]
    means = (lambda one: one.metrics.jct_mean_s, lambda one: one.measured.delay_mean_s)
    first, second = means if study.measure == "jct" else means[::-1]
    ours = [one for one, _ in pairs]
    jobs = sum(one.metrics.jobs for one in ours)
    shared = [one.metrics.shared_frac for one in ours if one.metrics.shared_frac is not None]
    kept = [one.measured.kept_frac for one in ours if one.measured.kept_frac is not None]
    return row(
        named(label, role),
        str(len(pairs)),
        ratio(first),
        ratio(second),
        short(lambda one: one.metrics.jct_p50_s),
        short(lambda one: one.measured.delay_p99_s),
        short(lambda one: one.measured.delay_p999_s),
        short(lambda one: one.measured.delay_max_s),
        short(lambda one: one.measured.groups[LARGE].delay_mean_s),
        short(lambda one: one.measured.groups[LONGEST].delay_mean_s),
        f"{sum(one < 1 for one in ratios)} : {sum(one > 1 for one in ratios)}",
        f"{max(ratios):.2f}" if ratios else "",
        *(
            (f"{sum(one.metrics.preemptions for one in ours) / max(jobs, 1):.2f}",)
            if _preempts(study)
            else ()
        ),
        *((_mean_percent(shared), _mean_percent(kept)) if study.models else ()),
    )


def _preempts(study: Study) -> bool:
    """Whether a row of a study may preempt."""
    return study.measure == "jct" or (study.models and study.preemptible_frac > 0)


def _mean_percent(shares: Sequence[float]) -> str:
    return percent(sum(shares) / len(shares)) if shares else ""


def beside(study: Study, cases: Sequence[Case], rows: Rows, results: Results) -> list[str]:
    """Every row compared with the strong opponents of a study, over the cases that both have."""
    chosen = [case for case in cases if study.name != "sharing" or _queues(case, rows, results)]
    what = "Mean JCT" if study.measure == "jct" else "Mean delay"
    where = (
        f" where `lucid`'s queueing is {QUEUE_PART:.0%} of its JCT or more" if study.name == "sharing" else ""
    )
    lines = [
        f"{what} over that of other rows{where}: ratio, better : worse, worst case ({len(chosen)} cases):"
    ]
    there = labels(cases, rows)
    against = [label for label in _AGAINST[study.name] if label in there]
    lines += ["", *header("policy", *(f"over `{label}`" for label in against))]
    for label, role in there.items():
        cells = [_beside(study, chosen, label, other, rows, results) for other in against]
        if any(cells):
            lines.append(row(named(label, role), *cells))
    return lines


def _beside(study: Study, cases: Sequence[Case], ours: str, other: str, rows: Rows, results: Results) -> str:
    if ours == other:
        return ""
    both = [(result_of(case, ours, rows, results), result_of(case, other, rows, results)) for case in cases]
    pairs = [(value_of(study, a), value_of(study, b)) for a, b in both if a is not None and b is not None]
    ratios = [one for a, b in pairs if (one := _over(a, b)) is not None]
    found = bounded_ratios([a for a, _ in pairs], [b for _, b in pairs])
    if found is None or not ratios:
        return ""
    wins, losses = sum(one < 1 for one in ratios), sum(one > 1 for one in ratios)
    return f"{found}, {wins} : {losses}, {max(ratios):.2f}"


def _queues(case: Case, rows: Rows, results: Results) -> bool:
    """Whether `lucid`'s queueing is a large part of its JCT."""
    one = result_of(case, "lucid", rows, results)
    if one is None or not one.metrics.jct_mean_s or one.metrics.queue_mean_s is None:
        return False
    return one.metrics.queue_mean_s >= QUEUE_PART * one.metrics.jct_mean_s


def by_case(study: Study, cases: Sequence[Case], rows: Rows, results: Results) -> list[str]:
    """A line for each case: every policy's mean over that of best QSSF, [95 % bootstrap over days]."""
    there = labels(cases, rows)
    what = "mean JCT" if study.measure == "jct" else "mean delay"
    lines = [f"Case by case, {what} over that of best QSSF [95 % over days]:", ""]
    lines += header("case", "jobs", "best QSSF, s", *(named(label, role) for label, role in there.items()))
    for case in cases:
        best = best_reference(results, case, models=study.models)
        if best is None:
            continue
        cells = []
        for label in there:
            one = result_of(case, label, rows, results)
            cells.append("" if one is None else ratio_text(ratio_of(study, one, best.policy)))
        lines.append(
            row(
                f"{case.trace}, {case.load:g}",
                number(best.metrics.jobs),
                f"{number(value_of(study, best))} (`{best.policy}`)",
                *cells,
            )
        )
    return lines


def case_tables(study: Study, cases: Sequence[Case], rows: Rows, results: Results) -> str:
    """A table for each case, for the second page."""
    lines = [f"## {study.title}", ""]
    for case in cases:
        best = best_reference(results, case, models=study.models)
        if best is None:
            continue
        lines += [
            f"**{case.trace}, load {best.load_frac:.2f}**: {best.metrics.jobs:,} jobs, {best.days:.1f} days "
            f"(submission times x {best.stretch:.2f}), {best.gpus} GPUs; best QSSF: `{best.policy}`. In s.",
            "",
            *_one_case(case, rows, results, best, models=study.models),
            "",
        ]
    return "\n".join(lines).rstrip()


def _one_case(case: Case, rows: Rows, results: Results, best: Result, *, models: bool) -> list[str]:
    sizes = [*(label for label, _, _ in SIZES), LONGEST]
    under_models = ("shared", "keep 85 %", "GPU kWh") if models else ()
    lines = header(
        *("policy", "JCT mean", "ratio", "delay mean", "ratio", "JCT p50", "JCT p99", "delay p99", "p99.9"),
        *("longest", *(f"delay, {label}" for label in sizes), "preemptions", *under_models),
    )
    for policy, role in dict.fromkeys((one.policy.name, one.role) for one in rows[case.trace]):
        one = results.get((case.name, policy, models))
        if one is None:
            continue
        m, found = one.metrics, one.measured
        last = (percent(m.shared_frac), percent(found.kept_frac), number(found.gpu_kwh)) if models else ()
        lines.append(
            row(
                named(policy, role),
                number(m.jct_mean_s),
                ratio_text(one.against[best.policy].jct_mean_ratio),
                number(found.delay_mean_s),
                ratio_text(found.delay_ratio.get(best.policy)),
                *map(number, (m.jct_p50_s, m.jct_p99_s, found.delay_p99_s, found.delay_p999_s)),
                number(found.delay_max_s),
                *(number(found.groups[label].delay_mean_s) for label in sizes),
                number(m.preemptions or None),
                *last,
            )
        )
    return lines


def named(label: str, role: str) -> str:
    """A row's first cell."""
    return f"`{label}`{' (true durations)' if role == 'oracle' else ''}"


def _over(ours: float | None, theirs: float | None) -> float | None:
    return ours / theirs if ours is not None and theirs else None
