"""The Markdown of `energy_table.py`: a table a trace, the best static choices, and their assumptions."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rlsched.decide.policies.policy import Policy
from rlsched_agents.evaluate.metrics import Metrics
from rlsched_agents.evaluate.pairs import Comparison, Ratio
from studies.policy.abilities import (
    CORES,
    SHARING,
    Ability,
    able,
    fixed_clock,
    lull,
    share,
    slowdown,
    weighed,
)

REFERENCE = Policy("qssf-backfill")
MAIN = tuple(
    able(REFERENCE, *more)
    for more in (
        (),
        (SHARING,),
        (slowdown(0.05),),
        (SHARING, slowdown(0.05)),
        (SHARING, slowdown(0.05), CORES),
    )
)
"""Main choices, which also run under other models, as does Lucid's rule."""
BUDGETS = (0.02, 0.05, 0.1)
"""Allowed increase of mean JCT over the best choice, for a choice of less energy."""
Some = tuple[Ability, ...]
SHOWN: tuple[Some, ...] = ((), (SHARING,), (slowdown(0.05),), (SHARING, slowdown(0.05)))
"""Abilities in the rows of every rule."""
CROWDED = Ability("share 4", {"share": {"max_jobs": 4}})
"""Up to four jobs share a GPU."""
SHOWN_REFERENCE: tuple[Some, ...] = (
    (share(0.7),),
    (CROWDED,),
    (fixed_clock(0.87),),
    (fixed_clock(0.75),),
    (lull(0.05),),
    (weighed(0.5),),
    (CORES,),
    (SHARING, lull(0.05)),
    (SHARING, slowdown(0.05), CORES),
)
"""Additional abilities of the reference rule only."""
HEAD = (
    "| policy | JCT mean, s | ratio | JCT p99, s | energy, kWh | ratio | a job, kWh | shared | SM clock |\n"
    "|---|---:|---:|---:|---:|---:|---:|---:|---:|"
)


class ChoiceResult(msgspec.Struct, frozen=True, kw_only=True):
    """One policy on one trace.

    Attributes:
        policy: Its name, abilities included.
        rule: Name of the rule without abilities.
        deployable: Whether it needs no true durations and does not preempt.
        metrics: Its metrics.
        against: The same jobs under `qssf-backfill`.
    """

    policy: str
    rule: str
    deployable: bool
    metrics: Metrics
    against: Comparison


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One trace.

    Attributes:
        trace: Name of the trace.
        nodes: Nodes of the scaled cluster.
        gpus: GPUs of the scaled cluster.
        gpu_types: GPU types of the scaled cluster.
        load_frac: Resulting load.
        since_s: Time from which submitted jobs are measured, seconds of the trace.
        results: Result of every choice.
        varied: Results of the main choices under other models, by name of the change.
    """

    trace: str
    nodes: int
    gpus: int
    gpu_types: list[str]
    load_frac: float
    since_s: float
    results: list[ChoiceResult]
    varied: dict[str, list[ChoiceResult]]


def best_choices(results: Sequence[ChoiceResult]) -> list[ChoiceResult | None]:
    """Return the deployable choice of least mean JCT; then, per budget, the choice of least energy."""
    found = [one for one in results if one.deployable and one.metrics.jct_mean_s is not None]
    if not found:
        return [None] * (1 + len(BUDGETS))
    fastest = min(found, key=_jct)
    within = [[one for one in found if _jct(one) <= (1 + budget) * _jct(fastest)] for budget in BUDGETS]
    return [fastest, *(min(those, key=_energy) for those in within)]


def _jct(one: ChoiceResult) -> float:
    return one.metrics.jct_mean_s or 0.0


def _energy(one: ChoiceResult) -> float:
    return one.metrics.energy_kwh or 0.0


def section(cases: Sequence[Case]) -> str:
    """All tables."""
    return "\n\n".join("\n\n".join((_tables(case), _varied(case))) for case in cases) + "\n"


def _tables(case: Case) -> str:
    by_name = {one.policy: one for one in case.results}
    rules = dict.fromkeys(one.rule for one in case.results)
    rows = []
    for rule in rules:
        extra = SHOWN_REFERENCE if rule == REFERENCE.name else ()
        names = [" ".join((rule, *(one.label for one in more))) for more in (*SHOWN, *extra)]
        rows += [_row(by_name[name]) for name in names if name in by_name]
    fastest, *frugal = best_choices(case.results)
    labels = ["least mean JCT", *(f"least energy at up to {budget:.0%} more JCT" for budget in BUDGETS)]
    best = [
        _row(one, f"{label}: `{one.policy}`")
        for label, one in zip(labels, (fastest, *frugal), strict=True)
        if one is not None
    ]
    choices = sum(one.deployable for one in case.results)
    return "\n".join(
        (
            f"**{case.trace}**, submitted from {case.since_s:,.0f} s on: "
            f"{case.results[0].metrics.jobs:,} jobs, {case.nodes} nodes, {case.gpus} GPUs "
            f"({', '.join(case.gpu_types)}), load {case.load_frac:.2f}, workloads drawn with seed 0; "
            f"ratios to `{REFERENCE.name}` with 95 % intervals over days of submission{_no_intervals(case)}.",
            "",
            HEAD,
            *rows,
            "",
            f"The best of {choices} static choices without true durations and preemption:",
            "",
            HEAD,
            *best,
        )
    )


def _no_intervals(case: Case) -> str:
    known = any(_has_interval(one.against.jct_mean_ratio) for one in case.results)
    return "" if known else " (none: fewer than ten days)"


def _has_interval(ratio: Ratio | None) -> bool:
    return ratio is not None and ratio.low is not None


def _row(one: ChoiceResult, label: str | None = None) -> str:
    metrics, against = one.metrics, one.against
    mark = "" if one.deployable else " *"
    is_reference = one.policy == REFERENCE.name
    cells = (
        label or f"`{one.policy}`{mark}",
        f"{metrics.jct_mean_s:,.0f}",
        "" if is_reference else _ratio(against.jct_mean_ratio),
        f"{metrics.jct_p99_s:,.0f}",
        f"{metrics.energy_kwh:,.0f}",
        "" if is_reference else _ratio(against.energy_ratio),
        f"{metrics.energy_per_job_kwh:.2f}",
        _percent(metrics.shared_frac),
        _percent(metrics.sm_clock_mean_frac),
    )
    return f"| {' | '.join(cells)} |"


def _varied(case: Case) -> str:
    """Change of the ratios of the main choices with the assumptions."""
    first = next(iter(case.varied.values()))
    names = [one.policy for one in first if one.policy != REFERENCE.name]
    by_name = {one.policy: one for one in case.results}
    columns = {"as above": by_name} | {
        what: {one.policy: one for one in results} for what, results in case.varied.items()
    }
    lines = [
        f"{case.trace}: mean JCT and energy over `{REFERENCE.name}` under the same models; "
        f"{_measured(case)} of the catalogue's cells behind the table above are measured or fitted:",
        "",
        f"| policy | {' | '.join(columns)} |",
        f"|---|{'---:|' * len(columns)}",
    ]
    for name in names:
        cells = [_both(results[name].against) for results in columns.values()]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _measured(case: Case) -> str:
    shares = [one.metrics.measured_cells_frac for one in case.results]
    known = [share for share in shares if share is not None]
    return f"{min(known):.0%} to {max(known):.0%}"


def _both(one: Comparison) -> str:
    jct, energy = one.jct_mean_ratio, one.energy_ratio
    return f"{jct.ratio:.2f}, {energy.ratio:.3f}" if jct and energy else ""


def _ratio(value: Ratio | None) -> str:
    if value is None:
        return ""
    if value.low is None or value.high is None:
        return f"{value.ratio:.2f}"
    return f"{value.ratio:.2f} [{value.low:.2f}, {value.high:.2f}]"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"
