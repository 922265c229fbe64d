"""`rlsched nodes` lists nodes; `rlsched node` takes nodes out of service and puts them back."""

from __future__ import annotations

import time
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

import click

from rlsched.cli.shared.listing import LIST_CONTEXT, LONG, check_columns, listed, listing, sorted_by
from rlsched.cli.shared.options import JSON, BrokerAt, asking
from rlsched.errors import InputError

if TYPE_CHECKING:
    from rich.text import Text

    from rlsched.client.client import Client
    from rlsched.wire.messages import NodeInfo


STATES: Final = ("up", "drained", "unreachable", "down", "asleep", "waking", "foreign")
USES: Final = ("idle", "mixed", "allocated")
"""How jobs use a node that is up, as in `sinfo`."""
_SLURMS: Final = {
    "alloc": "allocated",
    "mix": "mixed",
    "drain": "drained",
    "draining": "drained",
    "drng": "drained",
    "powered_down": "asleep",
    "powering_up": "waking",
}
"""State of Slurm -> state or use of a node."""


@click.command(context_settings=LIST_CONTEXT)
@click.option(
    "-u",
    "--user",
    metavar="NAME",
    help="Only nodes with jobs of this user, or of several users separated by commas.",
)
@click.option(
    "-t",
    "--state",
    "--states",
    metavar="STATE",
    help=f"Only nodes in these states, separated by commas: {', '.join(STATES)}. For a part of the nodes in "
    "state up: idle (no jobs), mixed (jobs and free GPUs), allocated (no free GPUs).",
)
@click.option(
    "-R",
    "--list-reasons",
    is_flag=True,
    help="Only nodes that are drained, unreachable or down, with reasons.",
)
@click.option("-N", "--Node", "_per_node", is_flag=True, hidden=True)
@LONG
@click.option("-n", "--name", metavar="PATTERN", help="Only nodes whose name matches this glob pattern.")
@click.option("-p", "--vc", "--partition", metavar="VC", help="Only nodes of this virtual cluster.")
@click.option(
    "--since",
    metavar="WHEN",
    help="Only nodes whose last heartbeat came at or after this time: an age (30min, 12h, 7d, 2w), a date "
    "(2026-11-01) or a time (2026-11-01T13:30).",
)
@listing
@JSON
@asking
def nodes(
    *,
    user: str | None,
    state: str | None,
    list_reasons: bool,
    _per_node: bool,
    _long: bool,
    name: str | None,
    vc: str | None,
    since: str | None,
    sort: str | None,
    columns: str | None,
    watch: float | None,
    no_heading: bool,
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
    if state is not None and list_reasons:
        raise InputError("--state and --list-reasons exclude each other; leave out one")
    states = {"drained", "unreachable", "down"} if list_reasons else None if state is None else _states(state)
    num_registered = 0

    def fetch(client: Client) -> list[NodeInfo]:
        nonlocal num_registered
        theirs = None
        if user is not None:
            theirs = {job.job for job in client.jobs() if job.user in user.split(",")}
        known = client.nodes()
        num_registered = len(known)
        found = [
            node
            for node in known
            if states is None or not states.isdisjoint((node.state, _use(node)))
            if theirs is None or not theirs.isdisjoint(node.jobs)
            if name is None or fnmatchcase(node.name, name)
            if vc is None or node.vc == vc
            if since_s is None or node.last_seen_s >= since_s
        ]
        return sorted_by(found, sort, NodeInfo)

    def lines(found: list[NodeInfo], width: int | None) -> list[Text]:
        return node_lines(found, width, num_registered)

    listed(
        "nodes", at.reach, fetch, lines, columns=columns, as_json=as_json, watch=watch, no_heading=no_heading
    )


def _states(text: str) -> set[str] | None:
    """Return the states in the text of `--state`, which can contain Slurm's names; None: all states.

    Raises:
        InputError: there is no such state.
    """
    if text.lower() == "all":
        return None
    states = {_SLURMS.get(word, word) for word in text.lower().split(",")}
    for state in sorted(states.difference((*STATES, *USES))):
        raise InputError(
            f"--state {state!r}: expected some of {', '.join((*STATES, *USES))}, separated by commas"
        )
    return states


def _use(node: NodeInfo) -> str:
    """Return how jobs use a node, one of `USES`; "" if the node is not up."""
    if node.state != "up":
        return ""
    return "idle" if not node.jobs else "mixed" if node.free_gpus else "allocated"


_REASON = click.option("--reason", default="", metavar="TEXT", help="Reason to show in `rlsched nodes`.")
_NAMES = click.argument("names", nargs=-1, required=True, metavar="NAME...")


@click.command()
@_NAMES
@_REASON
@click.option(
    "--requeue",
    is_flag=True,
    help="End the jobs on these nodes (SIGTERM, and SIGKILL after the grace time), and requeue them. "
    "[default: the jobs continue]",
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
    """Return drained nodes to service, and wake sleeping nodes.

    For a drained node that sleeps, the first resume only ends the drain; the node is woken when jobs need it.
    If a node sleeps or is down, and is not drained, resume wakes it immediately, provided that the broker has
    a --resume-cmd.

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
    """Declare unreachable nodes down, and requeue their jobs.

    Use it only for nodes whose daemon does not answer. First make sure that no job still runs on the node,
    because that job would run twice. When the node returns, it ends its old processes of these jobs, and gets
    new jobs.

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
    """Remove nodes from the list of nodes, and requeue the jobs that were running there.

    Use it only for nodes whose daemon is not running. First make sure that no job still runs on the nodes. A
    removed node that registers again is listed again.

    \b
    Example:
      rlsched node remove n7 --reason "sold"
    """
    with at.reach() as client:
        for name in names:
            client.remove_node(name, reason=reason)
            click.echo(f"node {name}: removed")
