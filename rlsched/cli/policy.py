"""`rlsched policy`: who decides in a broker that runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from rlsched.cli.options import asking
from rlsched.cli.policies import complete_policy, setting


@click.group()
def policy() -> None:
    """Change who decides in a broker that runs.

    \b
    Example:
      rlsched policy set gittins
    """


@policy.command(name="set")
@click.argument("name", metavar="NAME|FILE", shell_complete=complete_policy)
@setting
@click.option(
    "--fallback", metavar="NAME|FILE", help="The rule behind it. [default: the one that it follows]"
)
@asking
def set_policy(
    name: str,
    changes: Sequence[str],
    fallback: str | None,
    broker: str | None,
    keys: Path | None,
    timeout_s: float,
) -> None:
    """Let another policy decide from now on. Jobs go on; for admins.

    It is kept in the journal: a broker that is started again goes on with it, until another one is set or its
    --policy is changed. The strategy and the checkpoint that a policy names are sent along, up to 960 KiB;
    Python files are not. A policy that the broker cannot serve is refused in one line, and the one before
    goes on. The first use of a policy compiles it, which can take a minute: raise --timeout-s.

    \b
    Example:
      rlsched policy set gittins
      rlsched policy set ppo:runs/1
      rlsched policy set tuned --set share.max_jobs=2
    """
    from rlsched.client.client import Client
    from rlsched.decide.policy import Policy

    chosen = Policy.of(name).changed(changes)
    behind = None if fallback is None else Policy.of(fallback)
    with Client(broker, home=keys, timeout_s=max(timeout_s, 60.0)) as client:
        client.set_policy(chosen, fallback=behind)
        report = client.stats()
    click.echo(
        f"policy {report.policy} decides" + (f", {report.fallback} behind it" if report.fallback else "")
    )
