"""The verbs `history`, which lists finished jobs, and `account`, which sums up the use of resources."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, get_args

import click

from rlsched.cli.shared.listing import check_columns, listed, listing, sorted_by
from rlsched.cli.shared.options import BrokerAt, Command, asking, json_option, shown
from rlsched.cli.shared.selecting import (
    NUMBERS,
    PAST_NAME,
    PAST_VC,
    first_submission_s,
    of_numbers,
    selecting_by,
    states_of,
)
from rlsched.errors import InputError
from rlsched.terminal.show import print_json
from rlsched.wire.states import FINISHED, RUNNING

if TYPE_CHECKING:
    from rlsched.client.client import Client
    from rlsched.client.sums import By, Sums

LATEST = 100
"""Number of listed jobs if neither `--limit` nor `--since` is given."""
SUM_COLUMNS = (
    "jobs",
    "gpu_hours",
    "energy_kwh",
    "energy_jobs",
    "wait_mean_s",
    "wait_p90_s",
    *FINISHED,
    "cost",
    "cost_jobs",
    "currency",
    "carbon_kg",
    "carbon_jobs",
)
_STATES = (*FINISHED, RUNNING)


def _since(selects: str) -> Callable[[Command], Command]:
    """Return the option `--since`. `selects`: beginning of its help text."""
    return click.option(
        "-S",
        "--since",
        "--starttime",
        metavar="WHEN",
        help=f"{selects} this time: an age (30min, 12h, 7d, 2w), a date (2026-11-01) or a time "
        "(2026-11-01T13:30).",
    )


def _until(selects: str) -> Callable[[Command], Command]:
    """Return the option `--until`. `selects`: beginning of its help text."""
    return click.option(
        "-E", "--until", "--endtime", metavar="WHEN", help=f"{selects} this time; WHEN as in --since."
    )


_USER = selecting_by(("user",))
_VC = selecting_by(("vc",))
_CSV = click.option(
    "--csv", "as_csv", is_flag=True, help="Print CSV instead of a table; times are Unix seconds."
)
_JSON = json_option("Print JSON instead of a table; times are Unix seconds.")


@click.command()
@_USER
@PAST_VC
@click.option(
    "-t",
    "-s",
    "--state",
    "states",
    multiple=True,
    metavar="STATE",
    help=f"Only jobs in this state: {', '.join(_STATES)}; may be repeated.",
)
@NUMBERS
@click.option("-A", "--account", metavar="NAME", help="Only jobs of this account.")
@click.option("-X", "--allocations", "_allocations", is_flag=True, hidden=True)
@PAST_NAME
@_since("Only jobs that ended at or after")
@_until("Only jobs that ended before")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    help="Only the newest N jobs.  [default: 100, or all jobs if --since or --jobs is given]",
)
@partial(listing, sort=("--sort",), heading=("-n", "--noheader"))
@_CSV
@_JSON
@asking
def history(
    user: str | None,
    vc: str | None,
    states: tuple[str, ...],
    numbers: str | None,
    account: str | None,
    _allocations: bool,
    name: str | None,
    since: str | None,
    until: str | None,
    limit: int | None,
    sort: str | None,
    columns: str | None,
    watch: float | None,
    no_heading: bool,
    as_csv: bool,
    as_json: bool,
    at: BrokerAt,
) -> None:
    """List finished and running jobs, newest last.

    \b
    Example:
      rlsched history --since 7d --state failed
      rlsched history --user ada --name 'resnet*' --csv
      rlsched history --since 1d --sort -gpu_s -o job,user,name,gpu_s,energy_j
    """
    import msgspec

    from rlsched.cli.shared.when import span_s
    from rlsched.cli.users.history_tables import history_lines
    from rlsched.wire.messages import PastJob

    _one_form(as_csv, as_json)
    check_columns(columns, sort, PastJob)
    asked_states = sorted(states_of(",".join(states), _STATES) or ()) if states else ()
    span_s(since, until, time.time())  # raises if a time is invalid, before the first request to the broker

    def fetch(client: Client) -> list[PastJob]:
        since_s, until_s = span_s(since, until, time.time())
        if numbers is not None:  # earlier jobs need not be listed
            since_s = max(-math.inf if since_s is None else since_s, first_submission_s(client, numbers))
            if since_s == math.inf:
                return []
        most = LATEST if limit is None and since is None and numbers is None else limit
        found = [
            job
            for one in _users(user)
            for job in client.history(
                limit=most if numbers is None else None,
                since_s=since_s,
                until_s=until_s,
                user=one,
                vc=vc,
                account=account,
                states=asked_states,
                name=name or "",
            )
        ]
        found = of_numbers(found, numbers)
        found.sort(key=lambda job: (math.inf if job.end_s is None else job.end_s, job.job))
        return sorted_by(found if most is None else found[-most:], sort, PastJob)

    if as_csv:
        with at.reach() as client:
            rows = fetch(client)
        _print_csv(PastJob.__struct_fields__, (msgspec.structs.astuple(job) for job in rows))
        return
    listed(
        "history",
        at.reach,
        fetch,
        history_lines,
        columns=columns,
        as_json=as_json,
        watch=watch,
        no_heading=no_heading,
    )


@click.command()
@shown(
    "--by",
    default="user",
    metavar="WHAT,...",
    help="Group the sums by these fields, separated by commas: user, vc, account, month, day, hour.",
)
@_USER
@_VC
@_since("Only jobs that ended, and GPUs that were used, at or after")
@_until("Only jobs that ended, and GPUs that were used, before")
@_CSV
@_JSON
@asking
def account(
    by: str,
    user: str | None,
    vc: str | None,
    since: str | None,
    until: str | None,
    as_csv: bool,
    as_json: bool,
    at: BrokerAt,
) -> None:
    """Sum up jobs: GPU-hours, energy with its cost and carbon, waiting times, outcomes.

    GPU-hours, energy, cost and carbon count in the month, day or hour in which they were used, at constant
    power during each attempt, also for unfinished jobs up to now. Numbers of jobs, waiting times and
    outcomes count when jobs ended. Without --since, the sums begin with this month. Energy is blank if it was
    not measured, its cost if the broker did not know the price, and its carbon if it did not know the carbon
    intensity (`rlsched broker --energy`).

    \b
    Example:
      rlsched account
      rlsched account --by vc,day --since 2026-11-01 --csv
    """
    import msgspec

    from rlsched.cli.shared.when import month_start_s, period_end_s, period_of, span_s
    from rlsched.client.sums import sums

    _one_form(as_csv, as_json)
    names = _grouping(by)
    now_s = time.time()
    since_s, until_s = span_s(since, until, now_s)
    if since_s is None:
        since_s = month_start_s(now_s if until_s is None else min(until_s, now_s))
    with at.reach() as client:
        used = chain.from_iterable(
            client.usage(since_s=since_s, user=one, vc=vc, unfinished=True) for one in _users(user)
        )
        end_s = math.inf if until_s is None else until_s
        rows, total = sums(used, names, period_of, period_end_s, since_s, end_s)
    if as_json:
        print_json(
            {
                "since_s": since_s,
                "until_s": until_s,
                "by": names,
                "rows": [
                    dict(zip(names, row.of, strict=True)) | _without_names(msgspec.to_builtins(row))
                    for row in rows
                ],
                "total": _without_names(msgspec.to_builtins(total)),
            }
        )
    elif as_csv:
        _print_csv([*names, *SUM_COLUMNS], ([*row.of, *_sum_cells(row)] for row in rows))
    else:
        from rlsched.cli.users.history_tables import print_sums

        print_sums(names, rows, total, since_s, now_s if until_s is None else until_s)


def _sum_cells(row: Sums) -> list[Any]:
    return [row.outcomes[name] if name in FINISHED else getattr(row, name) for name in SUM_COLUMNS]


def _users(text: str | None) -> list[str | None]:
    """Return the users in the text of `--user`, each once; `[None]` selects all users."""
    return [None] if text is None else [*dict.fromkeys(text.split(","))]


def _without_names(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "of"}


def _grouping(by: str) -> list[By]:
    from rlsched.client.sums import By

    known: tuple[By, ...] = get_args(By)
    names = [name.strip() for name in by.split(",")]
    found = [one for name in names for one in known if one == name]
    if len(found) < len(names) or len(set(found)) < len(found):
        raise InputError(f"--by {by!r}: expected some of {', '.join(known)}, each once, separated by commas")
    return found


def _one_form(as_csv: bool, as_json: bool) -> None:
    if as_csv and as_json:
        raise InputError("--csv and --json exclude each other; leave out one")


def _print_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    import csv
    import sys

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_harmless(cell) for cell in row])


def _harmless(cell: Any) -> Any:
    """Return a CSV cell that a spreadsheet does not treat as a formula; escape control characters."""
    from rlsched.terminal.visible import visible

    if not isinstance(cell, str):
        return cell
    text = visible(cell)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text
