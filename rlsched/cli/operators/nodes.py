"""`rlsched nodes` lists nodes; `rlsched node` takes nodes out of service and puts them back."""

from __future__ import annotations

import time
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

import click

from rlsched.cli.shared.listing import check_columns, listed, listing, sorted_by
from rlsched.cli.shared.options import JSON, BrokerAt, asking
from rlsched.errors import InputError

if TYPE_CHECKING:
    from rlsched.client.client import Client


STATES: Final = ("up", "drained", "unreachable", "down", "asleep", "waking", "foreign")


@click.command()
@click.option(
    "-u", "--user", metavar="NAME", help="Only nodes with jobs of this user; separate several by commas."
)
@click.option(
    "-t",
    "--state",
    metavar="STATE",
    help=f"Only nodes in this state: {', '.join(STATES)}; separate several by commas.",
)
@click.option("-n", "--name", metavar="PATTERN", help="Only nodes whose name matches this glob pattern.")
@click.option("-p", "--vc", "--partition", metavar="VC", help="Only nodes of this virtual cluster.")
@click.option(
    "--since",
    metavar="WHEN",
    help="Only nodes with a heartbeat since this time: 30min, 12h, 7d, 2w (ago), or 2026-11-01.",
)
@listing
@JSON
@asking
def nodes(
    *,
    user: str | None,
    state: str | None,
    name: str | None,
    vc: str | None,
    since: str | None,
    sort: str | None,
    columns: str | None,
    watch: float | None,
    as_json: bool,
    at: BrokerAt,
) -> None:
    """List the nodes, their free resources, and why a node gets no jobs.

    \b
    Example:
      rlsched nodes
      rlsched nodes --state down,drained
      rlsched nodes --sort -free_gpus -o name,free_gpus,jobs --watch 2
    """
    from rlsched.cli.shared.job_tables import node_lines
    from rlsched.cli.shared.when import span_s
    from rlsched.wire.messages import NodeInfo

    check_columns(columns, sort, NodeInfo)
    since_s, _ = span_s(since, None, time.time())
    states = None if state is None else _states(state)

    def fetch(client: Client) -> list[NodeInfo]:
        theirs = None
        if user is not None:
            theirs = {job.job for job in client.jobs() if job.user in user.split(",")}
        found = [
            node
            for node in client.nodes()
            if states is None or node.state in states
            if theirs is None or not theirs.isdisjoint(node.jobs)
            if name is None or fnmatchcase(node.name, name)
            if vc is None or node.vc == vc
            if since_s is None or node.last_seen_s >= since_s
        ]
        return sorted_by(found, sort, NodeInfo)

    listed("nodes", at.reach, fetch, node_lines, columns=columns, as_json=as_json, watch=watch)


def _states(text: str) -> set[str]:
    states = set(text.lower().split(","))
    for state in sorted(states.difference(STATES)):
        raise InputError(f"--state {state!r}: expected some of {', '.join(STATES)}, separated by commas")
    return states


_REASON = click.option("--reason", default="", metavar="TEXT", help="Reason that `rlsched nodes` shows.")
_NAMES = click.argument("names", nargs=-1, required=True, metavar="NAME...")


@click.command()
@_NAMES
@_REASON
@click.option(
    "--requeue",
    is_flag=True,
    help="Stop the jobs on these nodes, with the grace time of a preemption, and requeue them. [default: "
    "the jobs continue]",
)
@asking
def drain(names: tuple[str, ...], reason: str, requeue: bool, at: BrokerAt) -> None:
    """Drain nodes: they get no new jobs until `rlsched node resume`.

    \b
    Example:
      rlsched node drain n0 --reason "new driver"
      rlsched node drain n0 n1 --requeue --reason "power off at noon"
    """
    with at.reach() as client:
        for name in names:
            client.drain_node(name, reason=reason, requeue=requeue)
            click.echo(f"node {name}: drained")


@click.command()
@_NAMES
@asking
def resume(names: tuple[str, ...], at: BrokerAt) -> None:
    """Let drained nodes get jobs again, and wake sleeping nodes.

    A drained node that sleeps is woken when jobs need it. If the broker has a --resume-cmd, a second resume,
    or the resume of a node that is down, wakes the node at once.

    \b
    Example:
      rlsched node resume n0
    """
    with at.reach() as client:
        for name in names:
            client.resume_node(name)
            click.echo(f"node {name}: resumed")


@click.command()
@_NAMES
@_REASON
@asking
def down(names: tuple[str, ...], reason: str, at: BrokerAt) -> None:
    """Declare unreachable nodes down; their jobs are requeued.

    Only for nodes whose daemon does not answer. First make sure that no job still runs on the node, because
    it would then run twice. When the node is back, it ends its old attempts of these jobs, and gets jobs
    again.

    \b
    Example:
      rlsched node down n7 --reason "power supply"
    """
    with at.reach() as client:
        for name in names:
            client.down_node(name, reason=reason)
            click.echo(f"node {name}: down")


@click.command()
@_NAMES
@_REASON
@asking
def remove(names: tuple[str, ...], reason: str, at: BrokerAt) -> None:
    """Remove nodes from the list of nodes; jobs that wait for these nodes are requeued.

    Only for nodes whose daemon is not running. First make sure that no job still runs on the nodes. A
    node that registers again is listed again.

    \b
    Example:
      rlsched node remove n7 --reason "sold"
    """
    with at.reach() as client:
        for name in names:
            client.remove_node(name, reason=reason)
            click.echo(f"node {name}: removed")
