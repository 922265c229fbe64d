"""`rlsched policy`: who decides in a broker that runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rlsched.cli.options import asking
from rlsched.cli.policies import complete_policy, setting

if TYPE_CHECKING:
    from rlsched.decide.policy import Policy


def with_whole_paths(policy: Policy) -> Policy:
    """The same policy, whose files are found wherever the broker was started: those that are here by then."""
    from rlsched.decide.own import file_of, is_own, moved

    rule, changed = policy.settings.rule, dict[str, str]()
    if is_own(rule) and file_of(rule).exists():
        changed["rule"] = moved(rule, file_of(rule).resolve())
    for name in ("checkpoint", "dials"):
        path = Path(getattr(policy.settings, name))
        if path.name and path.exists():
            changed[name] = str(path.resolve())
    return policy.with_settings(**changed).named(policy.name) if changed else policy


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

    It holds until the broker is started again: there --policy counts. One that the broker cannot serve is
    refused in one line, and the one before goes on. The first use of a policy compiles it, which can take a
    minute: raise --timeout-s.

    \b
    Example:
      rlsched policy set gittins
      rlsched policy set tuned --set share.max_jobs=2
    """
    from rlsched.client.client import Client
    from rlsched.decide.policy import Policy

    chosen = with_whole_paths(Policy.of(name).changed(changes))
    behind = None if fallback is None else with_whole_paths(Policy.of(fallback))
    with Client(broker, home=keys, timeout_s=max(timeout_s, 60.0)) as client:
        client.set_policy(chosen, fallback=behind)
        report = client.stats()
    click.echo(
        f"policy {report.policy} decides" + (f", {report.fallback} behind it" if report.fallback else "")
    )
