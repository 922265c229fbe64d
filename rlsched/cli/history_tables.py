"""Jobs that are over, and sums over them, as tables for people."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rlsched.cli import show
from rlsched.cli.job_tables import COLOURS, NARROW, clock
from rlsched.client.sums import Sums
from rlsched.terminal import visible
from rlsched.wire.messages import PastJob

_RIGHT = ("job", "gpus", "waited", "ran", "exit")
_FOLDED = ("where", "reason")


def print_history(jobs: list[PastJob], *, now_s: float, console: Console | None = None) -> None:
    """A table of jobs on standard output. A narrow one leaves out places, and what all of them share."""
    console = console or show.console()
    if not jobs:
        console.print("no jobs; try another --since, or fewer conditions")
        return
    narrow = console.width < NARROW
    rows = [_cells(job, now_s) for job in jobs]
    hidden = {name for name in ("user", "vc", "account") if len({row[name] for row in rows}) == 1} & (
        {"user", "vc", "account"} if narrow else {"vc", "account"}
    )
    hidden |= {"where"} if narrow else set()
    shown = [name for name in rows[0] if name not in hidden]
    table = Table(box=None, pad_edge=False, collapse_padding=narrow)
    for name in shown:
        table.add_column(
            name,
            justify="right" if name in _RIGHT else "left",
            overflow="fold" if name in _FOLDED else "ellipsis",
            no_wrap=name not in _FOLDED,
            max_width=(14 if narrow else 40) if name in ("name", "user", "vc", "account") else None,
        )
    for row in rows:
        table.add_row(*(row[name] for name in shown))
    console.print(table)


def _cells(job: PastJob, now_s: float) -> dict[str, str]:
    """A job's row, by column."""
    colour = COLOURS.get(job.state, "")
    return {
        "job": str(job.job),
        "name": _text(job.name),
        "user": _text(job.user),
        "vc": _text(job.vc),
        "account": _text(job.account),
        "gpus": str(job.num_gpus),
        "state": f"[{colour}]{job.state}[/]" if colour else job.state,
        "exit": "" if job.exit_code is None else str(job.exit_code),
        "ended": "" if job.end_s is None else local_time(job.end_s, now_s),
        "waited": "" if job.wait_s is None else clock(job.wait_s),
        "ran": clock(job.gpu_s / job.num_gpus),
        "where": _text(job.nodes),
        "reason": _text(job.reason),
    }


def print_sums(
    by: Sequence[str],
    rows: list[Sums],
    total: Sums,
    since_s: float,
    until_s: float,
    console: Console | None = None,
) -> None:
    """A table of sums on standard output."""
    console = console or show.console()
    between = f"{_minute(since_s)} to {_minute(until_s)}"
    if not rows:
        console.print(f"no job was over from {between}")
        return
    narrow = console.width < NARROW
    title = f"jobs that were over from {between}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    hidden = {"kWh"} if total.energy_kwh is None else set()
    hidden |= {"completed", "cancelled", "rejected"} if narrow else set()
    figures = [name for name in _figures(total) if name not in hidden]
    for name in by:
        table.add_column(name, overflow="ellipsis", no_wrap=True, max_width=12 if narrow else 40)
    for name in figures:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        cells = _figures(row)
        table.add_row(*(_text(name) or "-" for name in row.of), *(cells[name] for name in figures))
    if len(rows) > 1:
        table.add_section()
        cells = _figures(total)
        table.add_row("all", *[""] * (len(by) - 1), *(cells[name] for name in figures))
    console.print(table)


def _figures(row: Sums) -> dict[str, str]:
    """Sums as cells, by column."""
    return {
        "jobs": f"{row.jobs:,}",
        "GPU h": f"{row.gpu_hours:,.2f}",
        "kWh": "" if row.energy_kwh is None else f"{row.energy_kwh:,.2f}",
        "wait mean": "" if row.wait_mean_s is None else clock(row.wait_mean_s),
        "p90": "" if row.wait_p90_s is None else clock(row.wait_p90_s),
        **{state: f"{count:,}" for state, count in row.outcomes.items()},
    }


def local_time(when_s: float, now_s: float) -> str:
    """A time for people: with its day where that is not today."""
    then, now = time.localtime(when_s), time.localtime(now_s)
    return time.strftime("%H:%M:%S" if then[:3] == now[:3] else "%F %H:%M", then)


def _minute(when_s: float) -> str:
    return time.strftime("%F %H:%M", time.localtime(when_s))


def _text(text: str) -> str:
    return escape(visible(text))
