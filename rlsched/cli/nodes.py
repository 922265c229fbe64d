"""The verbs about nodes: list them, and take them out of service and back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from rlsched.cli.options import asking
from rlsched.cli.show import print_json

if TYPE_CHECKING:
    from rlsched.client.client import Client


def _client(broker: str | None, keys: Path | None, timeout_s: float) -> Client:
    from rlsched.client.client import Client

    return Client(broker, home=keys, timeout_s=timeout_s)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="JSON on standard output.")
@asking
def nodes(as_json: bool, broker: str | None, keys: Path | None, timeout_s: float) -> None:
    """List the nodes, what is free on them, and why one gets no jobs.

    \b
    Example:
      rlsched nodes
    """
    with _client(broker, keys, timeout_s) as client:
        found = client.nodes()
    if as_json:
        import msgspec

        print_json(msgspec.to_builtins(found))
        return
    from rlsched.cli.job_tables import print_nodes

    print_nodes(found)


_REASON = click.option("--reason", default="", metavar="TEXT", help="Why, for those who ask `rlsched nodes`.")
_NAMES = click.argument("names", nargs=-1, required=True, metavar="NAME...")


@click.command()
@_NAMES
@_REASON
@click.option(
    "--requeue",
    is_flag=True,
    help="End the jobs there, with the grace of a preemption, and queue them again. [default: they go on]",
)
@asking
def drain(
    names: tuple[str, ...],
    reason: str,
    requeue: bool,
    broker: str | None,
    keys: Path | None,
    timeout_s: float,
) -> None:
    """Let nodes get no new jobs, until `rlsched node resume`.

    \b
    Example:
      rlsched node drain n0 --reason "new driver"
      rlsched node drain n0 n1 --requeue --reason "power off at noon"
    """
    with _client(broker, keys, timeout_s) as client:
        for name in names:
            client.drain_node(name, reason=reason, requeue=requeue)
            click.echo(f"node {name}: drained")


@click.command()
@_NAMES
@asking
def resume(names: tuple[str, ...], broker: str | None, keys: Path | None, timeout_s: float) -> None:
    """Let drained nodes get jobs again.

    \b
    Example:
      rlsched node resume n0
    """
    with _client(broker, keys, timeout_s) as client:
        for name in names:
            client.resume_node(name)
            click.echo(f"node {name}: resumed")


@click.command()
@_NAMES
@_REASON
@asking
def remove(
    names: tuple[str, ...], reason: str, broker: str | None, keys: Path | None, timeout_s: float
) -> None:
    """Take nodes that are gone out of the list; jobs that wait for them are queued again.

    Only nodes whose daemon is not there. You say with this that nothing of them runs any more. A node that
    registers again is back.

    \b
    Example:
      rlsched node remove n7 --reason "sold"
    """
    with _client(broker, keys, timeout_s) as client:
        for name in names:
            client.remove_node(name, reason=reason)
            click.echo(f"node {name}: removed")
