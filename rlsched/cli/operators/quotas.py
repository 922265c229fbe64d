"""`rlsched quota`: sets limits for users, accounts and VCs, and the members of accounts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rlsched.cli.shared.options import JSON, BrokerAt, asking
from rlsched.terminal.show import print_json, print_table

if TYPE_CHECKING:
    from rlsched.wire.messages import PartyKind, QuotaInfo


class _Limit(click.ParamType[float]):
    """Parameter type of a limit: a number from 0 on, or `none` (no limit), which becomes -1.

    `none` does not become None, because click passes None for options that are not given.
    """

    def __init__(self, number: type[int] | type[float]) -> None:
        self.number, self.name = number, "N|none"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if str(value).lower() == "none":
            return -1
        try:
            limit = self.number(value)
        except ValueError:
            limit = -1
        if not limit >= 0:
            self.fail(f"expected a number from 0 on, or `none`, got {value!r}", param, ctx)
        return limit


_PERSON = click.option(
    "--user",
    "persons",
    multiple=True,
    required=True,
    metavar="PERSON",
    help="Name of a user; may be repeated.",
)


@click.group()
def quota() -> None:
    """Limit the resources of users, accounts and virtual clusters (VCs), and show their use.

    \b
    Example:
      rlsched quota set user alice --gpus 8 --jobs 100
      rlsched quota list
    """


@quota.command(name="set")
@click.argument("kind", type=click.Choice(["user", "account", "vc"]))
@click.argument("name")
@click.option(
    "--gpus",
    type=_Limit(int),
    metavar="N|none",
    help="Maximum number of GPUs in use at once; further jobs wait.",
)
@click.option(
    "--jobs",
    type=_Limit(int),
    metavar="N|none",
    help="Maximum number of waiting and running jobs; further jobs are rejected.",
)
@click.option(
    "--gpu-hours",
    type=_Limit(float),
    metavar="H|none",
    help="Maximum GPU-hours in a calendar month (UTC); further jobs wait.",
)
@asking
def set_quota(
    kind: PartyKind, name: str, gpus: int | None, jobs: int | None, gpu_hours: float | None, at: BrokerAt
) -> None:
    """Set the limits of a user, an account or a VC (virtual cluster). Requires an admin key.

    NAME `default` sets the limits of all users, accounts or VCs without a limit of their own. A limit stays
    unchanged if its option is not given; `none` removes the limit. Running jobs are not ended.

    \b
    Example:
      rlsched quota set user default --gpus 4 --jobs 200
      rlsched quota set user alice --gpus 16 --gpu-hours 2000
      rlsched quota set vc research --gpus none
    """
    given = {"gpus": gpus, "jobs": jobs, "gpu_hours": gpu_hours}
    limits: dict[str, Any] = {
        limit: None if number == -1 else number for limit, number in given.items() if number is not None
    }
    with at.reach() as client:
        client.set_quota(kind, name, **limits)
        found = [row for row in client.quotas() if (row.kind, row.name) == (kind, name)]
    _print(found) if found else click.echo(f"{kind} {name}: no limit")


@quota.command(name="list")
@JSON
@asking
def list_quotas(as_json: bool, at: BrokerAt) -> None:
    """Show all limits with the current use of each.

    \b
    Example:
      rlsched quota list
    """
    with at.reach() as client:
        found = client.quotas()
    if as_json:
        import msgspec

        print_json(msgspec.to_builtins(found))
    elif found:
        _print(found)
    else:
        click.echo("no quotas; `rlsched quota set` makes one")


def _print(rows: list[QuotaInfo]) -> None:
    from rich.markup import escape

    from rlsched.terminal.visible import visible

    table = [
        (
            row.kind,
            escape(visible(row.name)),
            _cell(row, "gpus", row.gpus, row.gpus_now),
            _cell(row, "jobs", row.jobs, row.jobs_now),
            _cell(row, "gpu_hours", row.gpu_hours, row.gpu_hours_used),
        )
        for row in rows
    ]
    print_table("quotas", ("kind", "name", "GPUs at once", "jobs", "GPU-hours this month"), table)


def _cell(row: QuotaInfo, name: str, limit: float | None, has: float) -> str:
    """Return the text of a table cell: current use and limit; for the name `default`, only the limit."""
    most = "-" if limit is None else f"{limit:,.10g}"
    if row.name == "default":
        return most
    has_words = f"{has:,.1f}" if name == "gpu_hours" else f"{has:,.10g}"
    by_default = " (default)" if name in row.by_default else ""
    return f"{has_words} of {most}{by_default}" if limit is not None else has_words


@quota.group()
def account() -> None:
    """Define which users can charge jobs to an account. An account exists while it has members.

    \b
    Example:
      rlsched quota account add vision --user alice
      rlsched submit --account vision -- python train.py
    """


@account.command()
@click.argument("name")
@_PERSON
@asking
def add(name: str, persons: tuple[str, ...], at: BrokerAt) -> None:
    """Permit users to charge jobs to an account. Requires an admin key.

    A user's first account is charged unless `rlsched submit --account` names another account.

    \b
    Example:
      rlsched quota account add vision --user alice --user bob
    """
    _set_members(name, persons, True, at)


@account.command()
@click.argument("name")
@_PERSON
@asking
def remove(name: str, persons: tuple[str, ...], at: BrokerAt) -> None:
    """Forbid users to charge jobs to an account. Requires an admin key.

    Jobs that are already submitted do not change.

    \b
    Example:
      rlsched quota account remove vision --user bob
    """
    _set_members(name, persons, False, at)


def _set_members(name: str, persons: tuple[str, ...], member: bool, at: BrokerAt) -> None:
    from rlsched.terminal.visible import visible

    with at.reach() as client:
        for person in persons:
            client.set_member(name, person, member=member)
            done = "may charge jobs to it" if member else "is no longer a member"
            click.echo(visible(f"account {name}: {person} {done}"))


@account.command(name="list")
@JSON
@asking
def list_accounts(as_json: bool, at: BrokerAt) -> None:
    """Show the members of all accounts.

    \b
    Example:
      rlsched quota account list
    """
    from rlsched.terminal.visible import visible

    with at.reach() as client:
        found = client.members()
    if as_json:
        import msgspec

        print_json(msgspec.to_builtins(found))
        return
    by_account: dict[str, list[str]] = {}
    for member in found:
        person = f"{member.person} (default)" if member.default else member.person
        by_account.setdefault(member.account, []).append(person)
    for name, persons in by_account.items():
        click.echo(visible(f"{name}: {', '.join(persons)}"))
    if not found:
        click.echo("no accounts; `rlsched quota account add` makes one")
