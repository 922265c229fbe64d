"""`rlsched status`: whether the broker is all right, for people and for monitoring."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from rlsched.cli.options import asking
from rlsched.cli.show import in_words, print_json
from rlsched.terminal import visible

if TYPE_CHECKING:
    from rlsched.wire.messages import DriftReport, GuardReport, JournalReport, RecordsReport, StatsReport

DEGRADED = 1
_MOST_COLUMNS = 5


@click.command()
@click.option("--json", "as_json", is_flag=True, help="JSON on standard output.")
@asking
def status(as_json: bool, broker: str | None, keys: Path | None, timeout_s: float) -> int:
    """Say whether the broker is all right, and what is not.

    The exit code is 0 if all is right, 1 if something is degraded, 2 if no broker answers.

    \b
    Example:
      rlsched status
      rlsched status --json
    """
    import msgspec

    from rlsched.client.client import Client

    with Client(broker, home=keys, timeout_s=timeout_s) as client:
        report = client.stats()
    wrong = problems(report)
    if as_json:
        print_json({"ok": not wrong, "problems": wrong, **msgspec.to_builtins(report)})
    else:
        for line in _lines(report):
            click.echo(visible(line))
        for problem in wrong:
            click.echo(visible(f"degraded: {problem}"))
        if not wrong:
            click.echo("all right")
    return DEGRADED if wrong else 0


def problems(report: StatsReport) -> list[str]:
    """What is not all right, a line each."""
    found = [
        "1 node is " + state if count == 1 else f"{count:,} nodes are {state}"
        for state, count in _nodes(report)
        if state != "up"
    ]
    if report.guard is not None and report.guard.now:
        found.append(
            f"the fallback {report.fallback} decides in the place of {report.policy}: {report.guard.now}"
        )
    journal = report.journal
    if journal is not None and journal.free_bytes is not None and journal.free_bytes < journal.low_bytes:
        free, low = _size(journal.free_bytes), _size(journal.low_bytes)
        found.append(f"the disk of {journal.path} has {free} free, less than {low}")
    if report.records is not None:
        found += [f"records: {line}" for line in report.records.troubles.values()]
    if report.prediction is not None and report.prediction.fit_error:
        found.append(f"predictions: the last fit came to nothing: {report.prediction.fit_error}")
    return found


def _lines(report: StatsReport) -> list[str]:
    known = [text for text in (report.version, report.address and f"at {report.address}") if text]
    lines = [
        f"broker {' '.join([*known, f'epoch {report.epoch}' if report.epoch else ''])}".rstrip()
        + f", up for {in_words(report.uptime_s)}",
        f"jobs: {report.queued:,} queued{kept_out(report)}, {report.running:,} running, "
        f"{report.ended:,} over",
        f"nodes: {', '.join(f'{count:,} {state}' for state, count in _nodes(report)) or 'none yet'}",
        *(f"  {name} is {why}" for name, why in report.absent_nodes.items()),
        f"policy {report.policy}" + (f", fallback {report.fallback}" if report.fallback else ""),
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
            f"questions: {asked.waiting:,} of {asked.askers:,} connections wait, {asked.refused:,} refused, "
            f"{asked.failed:,} failed"
        )
    return lines


def kept_out(report: StatsReport) -> str:
    """How many of the queued jobs no policy sees, and why: ` (12 Quota)`; "" where there are none."""
    by_reason = ", ".join(f"{count:,} {reason}" for reason, count in sorted(report.ineligible.items()))
    return f" ({by_reason})" if by_reason else ""


def guard_line(guard: GuardReport) -> str:
    """How often the guard stepped in, by kind."""
    decided = ", ".join(f"{count:,} {kind}" for kind, count in sorted(guard.decided.items()))
    masked = ", ".join(f"{count:,} by {kind}" for kind, count in sorted(guard.masked.items()))
    line = f"guard: {decided or 'no decisions'} in the policy's place"
    return line + (f"; it forbade something in {masked}" if masked else "")


def drift_lines(guard: GuardReport) -> list[str]:
    """How far what the policy sees is from its training; nothing of one that has learned nothing."""
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
            f"  dials were put at 0 {drift.settings_refused:,} times: no numbers came of the strategy"
        )
    return lines + [f"  unlike its training: {line}" for line in drift.unlike]


def _drift_state(drift: DriftReport) -> str:
    if drift.active:
        return "the policy sees what it did not see in training"
    return f"none in {drift.looks:,} looks" if drift.looks else "nothing was looked at yet"


def records_line(records: RecordsReport) -> str:
    """What became of decision records."""
    lost = ", ".join(f"{count:,} not {kind}" for kind, count in sorted(records.lost.items()))
    return f"records: {records.kept:,} kept" + (f", {lost}" if lost else "")


def _journal_line(journal: JournalReport) -> str:
    parts = [f"journal {journal.path}: {_size(journal.size_bytes)}"]
    if journal.last_commit_ms is not None:
        parts.append(f"last commit {journal.last_commit_ms:.1f} ms")
    if journal.free_bytes is not None:
        parts.append(f"{_size(journal.free_bytes)} free")
    return ", ".join(parts)


def _nodes(report: StatsReport) -> list[tuple[str, int]]:
    """Nodes by state: those that are up first."""
    return sorted(report.nodes.items(), key=lambda item: (item[0] != "up", item[0]))


def _size(count: int) -> str:
    """Bytes for people: `1.5 GB`."""
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000.0:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000.0
    return f"{size:,.1f} GB"
