"""`rlsched status`: reports whether the broker is healthy, for users and for monitoring."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import click

from rlsched.cli.shared.options import JSON, BrokerAt, asking
from rlsched.terminal.show import count, in_words, print_json, print_sentences, size, skewed_nodes
from rlsched.terminal.visible import visible

if TYPE_CHECKING:
    from rlsched.wire.messages import (
        DriftReport,
        GuardReport,
        JournalReport,
        PowerLimitReport,
        RecordsReport,
        StatsReport,
    )

DEGRADED = 1
_MOST_COLUMNS = 5


@click.command()
@JSON
@asking
def status(as_json: bool, at: BrokerAt) -> int:
    """Report whether the broker is healthy, and list problems.

    The exit code is 0 if there are no problems, 1 if something is degraded, 2 if no broker answers.

    \b
    Example:
      rlsched status
      rlsched status --json
    """
    import msgspec

    with at.client() as client:
        report = client.stats()
    wrong = problems(report)
    if as_json:
        print_json({"ok": not wrong, "problems": wrong, **msgspec.to_builtins(report)})
    else:
        said = [*_lines(report), *(f"degraded: {problem}" for problem in wrong)]
        print_sentences(visible(line) for line in (said if wrong else [*said, "all right"]))
    return DEGRADED if wrong else 0


def problems(report: StatsReport) -> list[str]:
    """Return the problems in the broker's statistics, one line each."""
    found = [
        "1 node is " + state if count == 1 else f"{count:,} nodes are {state}"
        for state, count in _nodes(report)
        if state != "up"
    ]
    if report.gpus_out:
        found.append("1 GPU is" if report.gpus_out == 1 else f"{report.gpus_out:,} GPUs are")
        found[-1] += " lost, or in use by a process that rlsched did not start"
    found += skewed_nodes(report.clock_skews_s, report.nodes_off_clock)
    if report.guard is not None and report.guard.now:
        found.append(f"the fallback {report.fallback} decides instead of {report.policy}: {report.guard.now}")
    journal = report.journal
    if journal is not None and journal.free_bytes is not None and journal.free_bytes < journal.low_bytes:
        free, low = size(journal.free_bytes), size(journal.low_bytes)
        found.append(f"the disk of {journal.path} has {free} free, less than {low}")
    if report.records is not None:
        found += [f"records: {line}" for line in report.records.troubles.values()]
    if report.prediction is not None and report.prediction.fit_error:
        found.append(f"predictions: the last fit failed: {report.prediction.fit_error}")
    return found


def _lines(report: StatsReport) -> list[str]:
    known = [text for text in (report.version, report.address and f"at {report.address}") if text]
    lines = [
        f"broker {' '.join([*known, f'epoch {report.epoch}' if report.epoch else ''])}".rstrip()
        + f", up for {in_words(report.uptime_s)}",
        f"jobs: {queued(report)}, {report.running:,} running, {report.ended:,} finished",
        f"nodes: {', '.join(f'{count:,} {state}' for state, count in _nodes(report)) or 'none yet'}",
        *(f"  {name} is {why}" for name, why in report.absent_nodes.items()),
        *(f"  {name} has {why}" for name, why in report.nodes_with_gpus_out.items()),
        f"policy {report.policy}" + (f", fallback {report.fallback}" if report.fallback else ""),
        _decisions_line(report),
        *_share_lines(report),
        *_clock_lines(report),
        *_price_lines(report),
    ]
    if report.guard is not None:
        lines.append(guard_line(report.guard))
        lines += drift_lines(report.guard)
    if report.journal is not None:
        lines.append(_journal_line(report.journal))
    if report.records is not None:
        lines.append(records_line(report.records))
    if report.questions is not None:
        asked = report.questions
        lines.append(
            f"queries: {asked.waiting:,} of {asked.askers:,} connections wait, {asked.refused:,} refused, "
            f"{asked.failed:,} failed"
        )
    if report.connections:
        lines.append(_connections_line(report.connections))
    return lines


def _decisions_line(report: StatsReport) -> str:
    decided = [f"{count:,} by {source}" for source, count in sorted(report.decisions.items())]
    contested = sum(report.contested.values())
    if not decided:
        return "decisions: none yet"
    return f"decisions: {', '.join(decided)}; {contested:,} of them with a choice"


def _share_lines(report: StatsReport) -> list[str]:
    """Return a line with the number of jobs on shared GPUs; no line if sharing is off and no job shares."""
    if not report.shares and not report.sharing:
        return []
    return [f"jobs may share GPUs: {report.sharing:,} of {report.running:,} running jobs do"]


def _clock_lines(report: StatsReport) -> list[str]:
    """Return lines about SM clocks and the power limit; empty if no clock is set and there is no limit."""
    lines = []
    if report.speed_energy or report.clocked:
        lines.append(
            f"energy counts {report.speed_energy:g} against time: {report.clocked:,} of {report.running:,} "
            "running jobs are at a lower clock than the highest"
        )
    if report.power_limit is not None:
        lines.append(power_limit_words(report.power_limit))
    fixed = [f"  {node} cannot set clocks: {why}" for node, why in report.fixed_clocks.items()]
    return lines + (fixed if lines else [])


def power_limit_words(limit: PowerLimitReport) -> str:
    """Return a text with the power limit, the power used, and how clocks are reduced to keep the limit."""
    draw = f"nodes and jobs draw up to {limit.most_w / 1e3:,.2f} kW by the models"
    coming = [
        f"{limit_w / 1e3:g} kW from {time.strftime('%F %H:%M', time.localtime(at_s))} on"
        for at_s, limit_w in limit.falls[:1]
    ]
    if math.isinf(limit.limit_w):
        return "; ".join([", ".join(["power limit: none now", *coming]), draw])
    clocks = (limit.flexible_clock_frac, "with slack"), (limit.urgent_clock_frac, "without slack")
    lowered = [f"{clock:.2f} for jobs {which}" for clock, which in clocks if clock < 1.0]
    kind = "soft power limit" if limit.soft else "power limit"
    parts = [", ".join([f"{kind} {limit.limit_w / 1e3:g} kW", *coming]), draw]
    if limit.most_w > limit.limit_w:
        parts.append(f"{(limit.most_w - limit.limit_w) / 1e3:,.2f} kW too much")
    if lowered:
        parts.append(f"SM clocks up to {' and '.join(lowered)}")
    if limit.waiting:
        parts.append(f"{limit.waiting:,} jobs wait for power")
    return "; ".join([parts[0], ", ".join(parts[1:])])


def _price_lines(report: StatsReport) -> list[str]:
    """Return a line with the price of electricity; no line if the price is unknown."""
    if report.price is None:
        return []
    price, held = report.price, ""
    if price.waiting_since_s is not None:
        since = time.strftime("%F %H:%M", time.localtime(price.waiting_since_s))
        held = f" (GPUs: {price.deferred_gpus:,}; the first since {since})"
    return [
        f"electricity costs {price.price:g}, {price.ratio:.2f} times its mean; jobs that wait for a lower "
        f"price: {price.deferred:,}{held}"
    ]


def _connections_line(counts: dict[str, int]) -> str:
    """Return a line with counts of handshakes, and of malformed, forbidden, delayed and dropped messages."""
    said = ", ".join(
        f"{counts.get(kind, 0):,} {word}"
        for kind, word in (
            ("malformed", "malformed"),
            ("unauthorised", "not permitted"),
            ("deferred", "delayed to a later turn"),
            ("dropped", "dropped, over their sender's budget"),
        )
    )
    knocked = f"{counts.get('handshakes', 0):,} accepted, {counts.get('refused_handshakes', 0):,} refused"
    return f"connections: {knocked}; messages: {said}"


def queued(report: StatsReport) -> str:
    """Return the counts of queued jobs and future array tasks: `30 queued (12 Quota), 8 tasks to come`.

    The parentheses contain, for each reason, the number of queued jobs that cannot start for this reason.
    """
    by_reason = ", ".join(f"{jobs:,} {reason}" for reason, jobs in sorted(report.ineligible.items()))
    waiting = f"{report.queued:,} queued" + (f" ({by_reason})" if by_reason else "")
    return waiting + (f", {count(report.tasks_to_come, 'task')} to come" if report.tasks_to_come else "")


def guard_line(guard: GuardReport) -> str:
    """Return a line that counts, by reason, how often the fallback decided instead of the policy."""
    decided = ", ".join(f"{count:,} {kind}" for kind, count in sorted(guard.decided.items()))
    return f"guard: {decided or 'no decisions'} instead of the policy"


def drift_lines(guard: GuardReport) -> list[str]:
    """Return lines that compare a policy's present inputs with its inputs in training; empty: not trained."""
    drift = guard.drift
    if drift is None:
        return []
    lines = [f"drift: {drift.note or _drift_state(drift)}"]
    lines += [
        f"  {one.column} is {one.value:.3g}, trained on {one.low:.3g} to {one.high:.3g}; "
        f"outside in {one.share_frac:.0%}{', which stops nothing' if one.only_warns else ''}"
        for one in drift.outside[:_MOST_COLUMNS]
    ]
    if drift.settings_refused:
        lines.append(
            f"  dials were set to 0 {drift.settings_refused:,} times: the strategy returned no numbers"
        )
    return lines + [f"  differs from training: {line}" for line in drift.unlike]


def _drift_state(drift: DriftReport) -> str:
    if drift.active:
        return "the policy's inputs are outside its training"
    return f"none in {drift.looks:,} checks" if drift.looks else "nothing was checked yet"


def records_line(records: RecordsReport) -> str:
    """Return a line with the counts of stored and lost decision records."""
    lost = ", ".join(f"{count:,} not {kind}" for kind, count in sorted(records.lost.items()))
    return f"records: {records.kept:,} kept" + (f", {lost}" if lost else "")


def _journal_line(journal: JournalReport) -> str:
    parts = [f"journal {journal.path}: {size(journal.size_bytes)}"]
    if journal.last_commit_ms is not None:
        parts.append(f"last commit {journal.last_commit_ms:.1f} ms")
    if journal.free_bytes is not None:
        parts.append(f"{size(journal.free_bytes)} free")
    return ", ".join(parts)


def _nodes(report: StatsReport) -> list[tuple[str, int]]:
    """Return the number of nodes in each state; the state `up` is first."""
    return sorted(report.nodes.items(), key=lambda item: (item[0] != "up", item[0]))
