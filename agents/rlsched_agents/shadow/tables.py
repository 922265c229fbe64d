"""Formats the report of a shadow as tables of text, for the terminal and for the page."""

from __future__ import annotations

from rlsched.terminal.show import in_words, percent
from rlsched_agents.shadow.agreement import SAME_INSTANT_S, Agreement
from rlsched_agents.shadow.replay import Change
from rlsched_agents.shadow.report import Day, ShadowReport
from rlsched_agents.whatif.tables import GRADES_NOTE, Table

AGREEMENT_NOTE = (
    f"Same instant: the policy wanted the job to start at most {SAME_INSTANT_S:g} s before Slurm started it. "
    "Earlier: the policy wanted the start earlier than that. Not then: the policy did not want the start at "
    "that time. Nodes and GPUs: share of the wanted starts. Next: share of the instants at which Slurm "
    "started the job that the policy puts first."
)
CHANGE_NOTE = (
    "Each day is replayed from its state at midnight, under the site's rule and under the policy. Ratio: "
    "mean wait under the policy / under the rule, on the same jobs; below 1 is better. In brackets: the 95 % "
    "interval over days, or over hours if there are fewer than ten days."
)


def agreements(report: ShadowReport) -> Table:
    """Return the table that compares Slurm's starts with the starts that the policy wanted, by day."""
    columns = (
        "day",
        "starts",
        "same instant",
        "earlier",
        "by (median)",
        "not then",
        "same nodes",
        "same GPUs",
        "next",
    )
    rows = [_agreement(day.day, day.agreement) for day in report.days]
    if len(rows) > 1:
        rows.append(_agreement("all", report.agreement))
    return Table(f"Starts of {report.policy} compared with Slurm's", columns, rows, AGREEMENT_NOTE)


def _agreement(name: str, one: Agreement) -> tuple[str, ...]:
    wanted = one.same_instant + one.earlier
    return (
        name,
        f"{one.starts:,}",
        _part(one.same_instant, one.starts),
        _part(one.earlier, one.starts),
        "-" if one.earlier_median_s is None else in_words(one.earlier_median_s),
        _part(one.not_then, one.starts),
        _part(one.same_nodes, wanted),
        _part(one.same_gpus, one.gpus_known),
        _part(one.next, one.instants),
    )


def _part(some: int, of: int) -> str:
    return percent(some / of) if of else "-"


def guards(report: ShadowReport) -> Table:
    """Return the table of the guard's activity, by day."""
    columns = ("day", "watched", "decisions", "by the guard", "why", "drift", "looks", "not answered")
    rows = [_guard(day) for day in report.days]
    return Table("Decisions and guard", columns, rows)


def _guard(day: Day) -> tuple[str, ...]:
    one = day.guarding
    why = ", ".join(f"{kind} {count:,}" for kind, count in one.guard.items())
    return (
        day.day,
        in_words(one.watched_s),
        f"{one.decisions:,}",
        _part(sum(one.guard.values()), one.decisions),
        why or "-",
        f"{one.drift_minutes:,} min" if not one.note else one.note,
        f"{one.looks:,}",
        f"{one.failed:,}",
    )


def features(report: ShadowReport) -> Table:
    """Return the table of the features that were outside the ranges of the policy's training."""
    rows = [
        (
            one.feature,
            f"{one.minutes:,}",
            percent(one.most_frac),
            f"{one.value:.3g}",
            f"{one.low:.3g} to {one.high:.3g}",
        )
        for one in report.guarding.outside
    ]
    columns = ("feature", "minutes", "outside, at most", "last", "trained on")
    return Table("Features outside the range of training", columns, rows)


def changes(report: ShadowReport) -> Table:
    """Return the table of estimated changes, by day."""
    columns = (
        "day",
        "jobs",
        "wait in Slurm",
        "replayed",
        report.policy,
        "ratio",
        "less",
        "longer",
        "fidelity",
    )
    rows = [_change(day.day, day.change) for day in report.days if day.change is not None]
    if len(report.days) > 1 and report.change is not None:
        rows.append(_change("all", report.change))
    title = f"Estimated changes (the site's rule: {report.rule})"
    return Table(title, columns, rows, f"{CHANGE_NOTE} {GRADES_NOTE}")


def _change(name: str, one: Change) -> tuple[str, ...]:
    has_claim = one.ratio is not None
    by = f" by {one.blocks}" if one.ratio is not None and one.ratio.low is not None else ""
    return (
        name,
        f"{one.jobs:,}",
        in_words(one.recorded_s),
        in_words(one.site_s),
        in_words(one.policy_s) if has_claim else "-",
        f"{one.ratio}{by}" if has_claim else "-",
        percent(one.wins_frac) if has_claim else "-",
        percent(one.losses_frac) if has_claim else "-",
        one.grade,
    )


def not_compared(report: ShadowReport) -> Table:
    """Return the table of jobs that are not compared, by reason."""
    rows = [(why, f"{count:,}") for why, count in report.guarding.left.items()]
    return Table("Jobs that are not compared: only Slurm can place them", ("why", "jobs"), rows)


def all_of(report: ShadowReport) -> list[Table]:
    """Return all tables, in order. Some can be without rows."""
    return [agreements(report), guards(report), features(report), changes(report), not_compared(report)]
