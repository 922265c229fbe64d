"""States the result of an evaluation in one sentence, and its caveats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from rlsched.terminal.show import count, in_words, percent
from rlsched_agents.evaluate.pairs import MIN_BLOCKS, Comparison, Ratio

if TYPE_CHECKING:
    from rlsched_agents.evaluate.findings import Findings
    from rlsched_agents.evaluate.metrics import Metrics


class _Measure(NamedTuple):
    """A measure by which policies are compared.

    Attributes:
        least: Start of the sentence about the policy with the lowest mean.
        field: Field of `Metrics` that has the mean.
        ratio: Field of `Comparison` that has the ratio of means.
    """

    least: str
    field: str
    ratio: str

    def mean(self, one: Metrics) -> str:
        """Return a policy's mean of this measure, as text."""
        return in_words(getattr(one, self.field))

    def ratio_of(self, one: Comparison) -> Ratio | None:
        """Return the ratio of a policy to the baseline."""
        found: Ratio | None = getattr(one, self.ratio)
        return found


LEAST_JOBS: Final = 20
"""Minimum number of jobs of one size for which the verdict reports that these jobs wait longer."""
_WAITING: Final = _Measure("jobs wait least", "queue_mean_s", "queue_mean_ratio")
_JCT: Final = _Measure("jobs are done soonest", "jct_mean_s", "jct_mean_ratio")


def verdict_of(report: Findings) -> str:
    """Return a sentence that compares the best policy, which has the lowest mean, to the baseline.

    The compared mean is the mean queueing delay. With preemption or models, it is the mean JCT, because
    queueing delay includes neither waits after a preemption nor changes of run times. The sentence also names
    jobs that wait longer under the best policy. No gain is claimed if the confidence interval of the ratio
    contains 1 or is missing. The baseline is best only if the intervals of all policies are above 1. Policies
    that know the true run times are left out.
    """
    measure = _measure_of(report)
    baseline, base = report.baseline, report.policies[report.baseline]
    mean = measure.mean(base)
    if getattr(base, measure.field) is None:
        return f"No measured job ended under {baseline}: there is nothing to compare."
    if not report.paired:
        return f"Under {baseline}, {_plain(measure, mean)}; give another --policy to compare it with."
    ratios = _ratios_of(report, measure)
    if not ratios:
        if all(name in report.fed_truth for name in report.paired):
            return (
                f"Under {baseline}, {_plain(measure, mean)}; the other policies use the true run "
                "times, so no broker can run them."
            )
        return f"No job waits under {baseline}: there is nothing to save here."
    best = _best_of(ratios)
    ratio, days = ratios[best], report.paired[best].blocks or 0
    mine = measure.mean(report.policies[best])
    waiting, few = report.paired[best].waiting_blocks, _has_few(report, measure, best)
    if few or ratio.low is None or ratio.high is None:
        first = best if ratio.ratio < 1.0 else baseline
        pays = _who_pays(report, measure, best) if first == best else ""
        when = (
            f"jobs waited on {waiting} of {_days(days)}" if few else f"there are {_days(days)} of submissions"
        )
        few_days = f"{when}, too few to claim more ({MIN_BLOCKS} are needed)."
        if mine == mean:
            return f"Here {_plain(measure, mine)} under {best} as under {baseline}; {few_days}"
        return (
            f"Here {measure.least} under {first}: {mine} on average under {best}, {mean} under "
            f"{baseline}{pays}; {few_days}"
        )
    between = f"95 % interval over {_days(days)} of submissions"
    if f"{ratio.low:.4f}" == f"{ratio.high:.4f}" == "1.0000":
        return f"{best} and {baseline} have equal results: {_plain(measure, mine)} under both."
    if ratio.low <= 1.0 <= ratio.high:
        return (
            f"No difference is shown between {best} and {baseline}: {mine} and {mean} on average, and the "
            f"ratio may be anything from {_from_to(ratio.low, ratio.high)} ({between})."
        )
    if ratio.ratio < 1.0:
        return (
            f"{_first_up(measure.least)} under {best}: {mine} on average, {mean} under {baseline}, which is "
            f"{_less(ratio.ratio)} less ({_less(ratio.high)} to {_less(ratio.low)}, {between})"
            f"{_who_pays(report, measure, best)}."
        )
    return (
        f"{_first_up(measure.least)} under {baseline}, the baseline: {mean} on average, {mine} under "
        f"{best}, the nearest, which is {ratio.ratio:.2f} times as long ({ratio.low:.2f} to "
        f"{ratio.high:.2f}, {between})."
    )


def _who_pays(report: Findings, measure: _Measure, best: str) -> str:
    """Return the last part of the verdict: which jobs wait longer under the best policy."""
    mine, theirs = report.policies[best], report.policies[report.baseline]
    losers = f"{percent(report.paired[best].losses_frac)} of the jobs wait longer"
    worse = {
        size: (ours_s, base_s)
        for size, one in mine.by_gpus.items()
        if size in theirs.by_gpus
        and (ours_s := getattr(one, measure.field)) is not None
        and (base_s := getattr(theirs.by_gpus[size], measure.field)) is not None
        and ours_s > base_s + 1.0
        and in_words(ours_s) != in_words(base_s)
    }
    named = [size for size in worse if mine.by_gpus[size].jobs >= LEAST_JOBS]
    if named:
        size = max(named, key=lambda one: worse[one][0] - worse[one][1])
        ours, base = map(in_words, worse[size])
        does = "wait" if measure is _WAITING else "take"
        losers += f", jobs of {_gpus(size)} {does} longer on average ({ours} instead of {base})"
        if len(named) > 1:
            losers += f" and so do jobs of {count(len(named) - 1, 'other size')}"
    elif not worse and report.paired[best].losses_frac:
        losers += ", but no size of job does on average"
    now_s, before_s = mine.queue_max_s or 0.0, theirs.queue_max_s or 0.0
    if in_words(now_s) != in_words(before_s):
        grows = "grows" if now_s > before_s else "falls"
        losers += f", and the longest wait {grows} from {in_words(before_s)} to {in_words(now_s)}"
    return f"; {losers}"


def _gpus(size: str) -> str:
    return "1 GPU" if size == "1" else f"{size} GPUs"


def _measure_of(report: Findings) -> _Measure:
    interrupts = any(one.preemptions for one in report.policies.values())
    return _JCT if interrupts or report.models is not None else _WAITING


def _ratios_of(report: Findings, measure: _Measure) -> dict[str, Ratio]:
    """Return (policy's mean / baseline's mean) of a measure, by name of the policy.

    Policies that know the true run times are left out.
    """
    return {
        name: ratio
        for name, one in report.paired.items()
        if name not in report.fed_truth and (ratio := measure.ratio_of(one)) is not None
    }


def _best_of(ratios: dict[str, Ratio]) -> str:
    """Return the policy with the lowest ratio.

    A policy whose ratio is significantly above 1 is returned only if all ratios are significantly above 1.
    """
    best = min(ratios, key=lambda name: ratios[name].ratio)
    if _low(ratios[best]) <= 1.0:
        return best
    open_ones = {name: ratio for name, ratio in ratios.items() if _low(ratio) <= 1.0}
    return min(open_ones or ratios, key=lambda name: ratios[name].ratio)


def _low(ratio: Ratio) -> float:
    return ratio.ratio if ratio.low is None else ratio.low


def _has_few(report: Findings, measure: _Measure, name: str) -> bool:
    """Return whether the interval of queueing delay is meaningless: jobs waited on too few days."""
    waiting = report.paired[name].waiting_blocks
    return measure is _WAITING and waiting is not None and waiting < MIN_BLOCKS


def _not_told_apart(report: Findings) -> str:
    """Return a sentence that names the policies that may be as good as the best one; "" if there are none."""
    measure = _measure_of(report)
    ratios = _ratios_of(report, measure)
    best = _best_of(ratios) if ratios else ""
    high = ratios[best].high if ratios else None
    if high is None or high >= 1.0 or _has_few(report, measure, best):
        return ""
    alike = [name for name, one in ratios.items() if name != best and one.low is not None and one.low <= high]
    if not alike:
        return ""
    return (
        f"{best} has the least mean, and its interval overlaps with that of {', '.join(alike)}: --baseline "
        f"{best} shows whether they differ."
    )


def cautions_of(report: Findings) -> list[str]:
    """Return the caveats of the results, one or two sentences each."""
    found = []
    grows = "The queue grows for as long as jobs come, so every mean grows with the length of the trace"
    if report.load_frac is not None and report.load_frac > 1.0:
        found.append(
            f"the offered load is {report.load_frac:.2f}: jobs ask for more GPU time than there is. {grows}: "
            "compare policies on this trace, and take no mean for what a user would wait."
        )
    elif report.crowded_vcs:
        some = ", ".join(f"{vc} {load:.2f}" for vc, load in report.crowded_vcs.items())
        found.append(
            f"the offered load is above 1 in some VCs, which have nodes of their own ({some}). {grows} there."
        )
    unfinished = {name: one.unfinished for name, one in report.policies.items() if one.unfinished}
    if unfinished:
        some = ", ".join(f"{count:,} under {name}" for name, count in unfinished.items())
        found.append(f"jobs had not ended when the replay stopped ({some}), and means leave them out.")
    cancelled = {name: one.by_end.get("cancelled", 0) for name, one in report.policies.items()}
    if any(cancelled.values()):
        some = ", ".join(f"{count:,} under {name}" for name, count in cancelled.items() if count)
        found.append(
            f"jobs never started, because a dependency could not be met ({some}), and means leave them out."
        )
    if report.fed_truth and len(report.policies) > 1:
        found.append(
            f"{', '.join(report.fed_truth)}: fed the true run times, which no broker knows, and left "
            "out of the sentence above."
        )
    alike = _not_told_apart(report)
    if alike:
        found.append(alike)
    if report.recorded is not None:
        found.append(report.recorded.in_words)
    return found


def _plain(measure: _Measure, mean: str) -> str:
    return f"jobs wait {mean} on average" if measure is _WAITING else f"jobs are done after {mean} on average"


def _days(days: int) -> str:
    return "1 day" if days == 1 else f"{days} days"


def _from_to(low: float, high: float) -> str:
    """Format `0.90 to 1.02` with enough digits to distinguish the two numbers, four at most."""
    digits = next((digits for digits in (2, 3) if f"{low:.{digits}f}" != f"{high:.{digits}f}"), 4)
    return f"{low:.{digits}f} to {high:.{digits}f}"


def _less(ratio: float) -> str:
    """Format the saving 1 - ratio in per cent; it is negative for a ratio above 1."""
    saved = 100.0 * (1.0 - ratio)
    return f"{saved:.1f} %" if abs(saved) < 9.95 else f"{saved:.0f} %"


def _first_up(text: str) -> str:
    return text[0].upper() + text[1:]
