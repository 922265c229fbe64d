"""`rlsched policy`: changes the policy of a running broker."""

from __future__ import annotations

from collections.abc import Sequence

import click

from rlsched.cli.shared.options import BrokerAt, asking
from rlsched.cli.shared.policies import complete_policy, setting


@click.group()
def policy() -> None:
    """Change the policy of a running broker.

    \b
    Example:
      rlsched policy set gittins
    """


@policy.command(name="set")
@click.argument("name", metavar="NAME|FILE", shell_complete=complete_policy)
@setting
@click.option(
    "--fallback",
    metavar="NAME|FILE",
    help="Fallback policy: it makes the decisions when the new policy fails or is too slow. [default: the "
    "rule on which the new policy is based]",
)
@asking
def set_policy(name: str, changes: Sequence[str], fallback: str | None, at: BrokerAt) -> None:
    """Switch the running broker to another policy; running jobs continue. Requires an admin key.

    A restarted broker keeps the new policy until another policy is set, or until the broker is started with
    another --policy. The strategy file and the checkpoint that a policy names are sent to the broker, up to
    960 KiB; Python files are not sent. If the broker cannot use the policy, the command fails and the current
    policy stays. The first use of a policy compiles code, which can take a minute: raise --timeout-s.

    \b
    Example:
      rlsched policy set gittins
      rlsched policy set ppo:runs/1
      rlsched policy set tuned --set share.max_jobs=2
    """
    from rlsched.decide.policies.policy import Policy

    chosen = Policy.of(name).changed(changes)
    behind = None if fallback is None else Policy.of(fallback)
    with at.client(max(at.timeout_s, 60.0)) as client:
        client.set_policy(chosen, fallback=behind)
        report = client.stats()
    click.echo(
        f"policy {report.policy} decides" + (f", fallback {report.fallback}" if report.fallback else "")
    )
