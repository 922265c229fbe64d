"""Tables of finished jobs, and of their sums."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from rlsched.broker.base.usage_words import carbon, energy, money
from rlsched.cli.shared.job_number import called
from rlsched.cli.shared.job_tables import COLOURS, NARROW, NARROW_NAME, clock, named_table
from rlsched.client.sums import PERIODS, Sums
from rlsched.terminal import show
from rlsched.terminal.layout import Column
from rlsched.terminal.visible import visible
from rlsched.wire.messages import PastJob
from rlsched.wire.states import CANCELLED, COMPLETED, FAILED, REJECTED

_GAP: Final = 3
"""Space between two columns of a table of sums, characters."""

_HISTORY: Final = {
    column.title: column
    for column in (
        Column("job", is_right=True),
        Column("name", shrinks=True),
        Column("user"),
        Column("vc"),
        Column("account"),
        Column("gpus", is_right=True),
        Column("state"),
        Column("exit", is_right=True),
        Column("ended"),
        Column("waited", is_right=True),
        Column("ran", is_right=True),
        Column("energy", is_right=True),
        Column("cost", is_right=True),
        Column("CO2e", is_right=True),
        Column("where", 60, shrinks=True),
        Column("reason"),
    )
}


def history_lines(jobs: list[PastJob], width: int | None, now_s: float | None = None) -> list[Text]:
    """Return a table of finished jobs, cut to `width` characters; None: lines are not cut.

    The columns of VCs and accounts are omitted if all jobs have the same value. A table narrower than
    `NARROW` also omits the column of users in this case, and always omits the nodes.
    """
    if not jobs:
        return [Text("no jobs match these options; `rlsched queue` lists waiting jobs")]
    narrow = width is not None and width < NARROW
    rows = [_cells(job, time.time() if now_s is None else now_s) for job in jobs]
    hidden = {name for name in ("user", "vc", "account") if len({str(row[name]) for row in rows}) == 1} & (
        {"user", "vc", "account"} if narrow else {"vc", "account"}
    )
    hidden |= {"where"} if narrow else set()
    hidden |= {name for name in ("energy", "cost", "CO2e") if not any(row[name] for row in rows)}
    return named_table(_HISTORY, rows, hidden, width)


def _cells(job: PastJob, now_s: float) -> dict[str, str | Text]:
    """Return a job's cells, by column title."""
    return {
        "job": called(job),
        "name": job.name,
        "user": job.user,
        "vc": job.vc,
        "account": job.account,
        "gpus": str(job.num_gpus),
        "state": Text(job.state, style=COLOURS.get(job.state, "")),
        "exit": "" if job.exit_code is None else str(job.exit_code),
        "ended": "" if job.end_s is None else local_time(job.end_s, now_s),
        "waited": "" if job.wait_s is None else clock(job.wait_s),
        "ran": clock(job.gpu_s / job.num_gpus),
        "energy": "" if job.energy_j is None else energy(job.energy_j),
        "cost": "" if job.cost is None else money(job.cost, job.currency),
        "CO2e": "" if job.carbon_kg is None else carbon(job.carbon_kg),
        "where": job.nodes,
        "reason": job.reason,
    }


def print_sums(
    by: Sequence[str],
    rows: list[Sums],
    total: Sums,
    since_s: float,
    until_s: float,
    console: Console | None = None,
) -> None:
    """Print a table of sums, with a row for each group and a total.

    Args:
        by: Fields by which jobs are grouped.
        rows: Sums of the groups.
        total: Sums of all jobs.
        since_s: Start of the period, Unix seconds.
        until_s: End of the period, Unix seconds.
        console: Console to print on; None: standard output.
    """
    console = console or show.console()
    between = f"{_minute(since_s)} to {_minute(until_s)}"
    if not rows:
        console.print(f"no job used GPUs or ended from {between}")
        return
    title = f"use of GPUs, and jobs that ended, from {between}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    cap = NARROW_NAME if console.width < NARROW else 40
    room = console.width
    for at, name in enumerate(by):
        longest = max(len(name), *(len(visible(row.of[at])) for row in rows))
        longest = longest if name in PERIODS else min(longest, cap)
        room -= longest + _GAP
        table.add_column(name, overflow="ellipsis", no_wrap=True, max_width=longest)
    figures = _fitting([_figures(row) for row in (*rows, total)], room)
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


def _fitting(rows: list[dict[str, str]], room: int) -> list[str]:
    """Return the titles of the columns to print: no empty bills, and as many as `room` characters hold."""
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) + _GAP for name in rows[0]}
    for name in ("kWh", "cost", "CO2e"):
        if not any(row[name] for row in rows):
            del widths[name]
    for name in (REJECTED, CANCELLED, COMPLETED, "p90", "wait mean", FAILED, "jobs"):
        if sum(widths.values()) > room:
            del widths[name]
    return list(widths)


def _figures(row: Sums) -> dict[str, str]:
    """Return the sums of a group as cells, by column title."""
    return {
        "jobs": f"{row.jobs:,}",
        "GPU h": f"{row.gpu_hours:,.2f}",
        "kWh": "" if row.energy_kwh is None else f"{row.energy_kwh:,.2f}",
        "cost": "" if row.cost is None else money(row.cost, row.currency),
        "CO2e": "" if row.carbon_kg is None else carbon(row.carbon_kg),
        "wait mean": "" if row.wait_mean_s is None else clock(row.wait_mean_s),
        "p90": "" if row.wait_p90_s is None else clock(row.wait_p90_s),
        **{state: f"{count:,}" for state, count in row.outcomes.items()},
    }


def local_time(when_s: float, now_s: float) -> str:
    """Return the local time as text, with the day if it is not today."""
    then, now = time.localtime(when_s), time.localtime(now_s)
    return time.strftime("%H:%M:%S" if then[:3] == now[:3] else "%F %H:%M", then)


def _minute(when_s: float) -> str:
    return time.strftime("%F %H:%M", time.localtime(when_s))


def _text(text: str) -> str:
    return escape(visible(text))
