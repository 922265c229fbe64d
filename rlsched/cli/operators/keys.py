"""`rlsched keys`: manages the keys that can connect to the broker, and the tokens for new keys."""

from __future__ import annotations

import os
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rlsched.cli.shared.options import HOME, JSON, shown
from rlsched.terminal.show import print_json

if TYPE_CHECKING:
    from rlsched.transport.access import AccessEntry
    from rlsched.transport.roles import Role

_UNITS_S = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_MAX_EXPIRES_S = 7 * 86400.0
JOBS_DIRECTORY = "/var/lib/rlsched-jobs"
"""`--dir` in printed commands for a node daemon that runs as root: a directory that all users can enter."""
_YES = ("1", "true", "t", "yes", "y", "on")
_ROLE = click.Choice(["user", "admin", "node", "engine"])


@click.group()
def keys() -> None:
    """Create, list and revoke the keys that can connect to a broker, or join a broker with a token.

    \b
    Example:
      rlsched keys new gpu-a --role node --broker tcp://10.0.0.1:7461     # where the broker runs
      rlsched keys join TOKEN                                             # on the machine gpu-a
    """


@keys.command()
@click.argument("name")
@click.option("--role", type=_ROLE, required=True, help="Role of the key, which defines its permissions.")
@click.option(
    "--person",
    default="",
    help="User who owns the jobs submitted with this key; if a user has several keys, give the same value "
    "for each.  [default: NAME]",
)
@shown(
    "--nodes",
    metavar="NAMES",
    default="*",
    help="With --role engine: nodes that the gateway may report to the broker, as names or glob patterns "
    "such as gpu-*, separated by commas.",
)
@shown(
    "--expires", default="15m", help="Time after which the token expires, such as 30s, 15m or 2h; at most 7d."
)
@click.option(
    "--broker",
    metavar="ADDRESS",
    help="Address at which the other machine can reach the broker, tcp://HOST:PORT. [default: "
    "$RLSCHED_BROKER, else tcp://127.0.0.1:7461]",
)
@HOME
def new(
    name: str, role: Role, person: str, nodes: str, expires: str, broker: str | None, keys: Path | None
) -> None:
    """Print a one-time token with which a machine or a user joins the broker under the name NAME.

    \b
    Example:
      rlsched keys new ada --role user --broker tcp://10.0.0.1:7461
      rlsched keys new gpu-a --role node --expires 1h
    """
    from rlsched.errors import InputError
    from rlsched.transport.dealer import broker_address, dial_address, is_loopback
    from rlsched.transport.joining import invite
    from rlsched.transport.keys import KeyHome

    address = broker_address(broker)
    if dial_address(address) != address:
        raise InputError(
            f"{address}: other machines cannot connect to this address; give --broker tcp://HOST:PORT with "
            "the host name of this machine"
        )
    token = invite(
        KeyHome(keys),
        name,
        role,
        address,
        valid_s=_seconds(expires),
        person=person,
        nodes=nodes if role == "engine" else "",
    )
    if is_loopback(address):
        click.echo(f"this token works only on this machine: it connects to {address}", err=True)
    click.echo(token.text())


@keys.command()
@click.argument("token")
@shown(
    "--timeout-s",
    default=10.0,
    type=click.FloatRange(min=0.1, max=3600),
    help="Time to wait for the broker's answer, seconds.",
)
@HOME
def join(token: str, timeout_s: float, keys: Path | None) -> None:
    """Create a key for this machine, and register it with the broker that issued the TOKEN.

    If TOKEN is `-`, the token is read from standard input, so that it does not appear in the process list.

    \b
    Example:
      rlsched keys join rlsched-join-...
    """
    from rlsched.client.join import join as join_broker
    from rlsched.transport.joining import Token
    from rlsched.transport.keys import KeyHome

    read = Token.read(sys.stdin.read() if token == "-" else token)
    home = KeyHome(keys)
    joined = join_broker(read, home, timeout_s)
    whose = "before" if joined is None else f"as {joined.role} {joined.name}"
    click.echo(f"joined the broker at {read.address} {whose}; keys in {home.directory}")
    if read.role == "node":
        for line in _node_lines(read.address, read.name, keys):
            click.echo(line)
    elif read.role == "engine":
        click.echo(
            f"next: rlsched engine slurm --broker {read.address} --name {read.name} --partition PARTITION"
        )
    else:
        home_of = "" if keys is None else f" RLSCHED_HOME={shlex.quote(str(keys.absolute()))}"
        click.echo(f"next: export RLSCHED_BROKER={read.address}{home_of}; rlsched queue")


def _node_lines(address: str, name: str, keys: Path | None) -> list[str]:
    """Return the command that starts this node, and for root a second line that explains its options.

    A daemon that runs as root needs an option that sets the user of the jobs' processes. This user cannot
    enter the directory of the daemon's keys, so the daemon also needs another directory for its jobs.
    """
    words = ["rlsched", "node", "--broker", address, "--name", name]
    if keys is not None:
        words += ["--keys", str(keys.absolute())]
    if os.geteuid() != 0 or os.environ.get("RLSCHED_ALLOW_ROOT", "") in _YES:
        return [f"next: {shlex.join(words)}"]
    user = os.environ.get("SUDO_USER", "root")
    options = ["--run-as-owner"] if user == "root" else ["--run-as", user]
    meaning = "each job runs as the account of the user who submits it; --run-as USER: all as one user"
    if user != "root":
        meaning = f"all jobs run as {user}; --run-as-owner: each as the account of the user who submits it"
    return [f"next: {shlex.join([*words, *options, '--dir', JOBS_DIRECTORY])}", f"      {meaning}"]


@keys.command("list")
@JSON
@HOME
def list_(as_json: bool, keys: Path | None) -> None:
    """List the keys that can connect to the broker, and unused tokens.

    \b
    Example:
      rlsched keys list
    """
    from rlsched.transport.keys import KeyHome

    rows = [_row(member) for member in KeyHome(keys).access.members().values()]
    if as_json:
        print_json(rows)
        return
    for row in rows:
        until = "" if row["expires_s"] is None else f"  token {_left(float(row['expires_s']))}"
        click.echo(f"{row['role']:<6} {row['name']:<24} {row['person']:<24} {row['key']}{until}")
    if not rows:
        click.echo("no keys; `rlsched up`, `rlsched broker` and `rlsched keys new` create them")


@keys.command()
@click.argument("name")
@click.option(
    "--role", type=_ROLE, help="Role of the key to revoke; required if NAME has keys of several roles."
)
@HOME
def revoke(name: str, role: Role | None, keys: Path | None) -> None:
    """Revoke the key NAME, with immediate effect also on open connections.

    \b
    Example:
      rlsched keys revoke gpu-a
    """
    from rlsched.transport.joining import revoke as revoke_key
    from rlsched.transport.keys import KeyHome

    for member in revoke_key(KeyHome(keys), name, role):
        click.echo(f"revoked {_row(member)['role']} {name}{'' if member.expires_s is None else ' (token)'}")


def _row(member: AccessEntry) -> dict[str, str | float | None]:
    return {
        "name": member.peer.name,
        "role": member.joins_as or member.peer.role,
        "person": member.peer.person,
        "key": member.key,
        "expires_s": member.expires_s,
    }


def _left(expires_s: float) -> str:
    left_s = expires_s - time.time()
    return f"expires in {max(left_s / 60, 1):.0f} min" if left_s > 0 else "expired"


def _seconds(text: str) -> float:
    from rlsched.errors import InputError

    number = text.rstrip("abcdefghijklmnopqrstuvwxyz")
    unit = _UNITS_S.get(text[len(number) :])
    try:
        seconds = float(number) * (unit or float("nan"))
    except ValueError:
        seconds = float("nan")
    if not 0.0 < seconds <= _MAX_EXPIRES_S:
        raise InputError(f"--expires {text!r}: expected a time up to 7d, such as 30s, 15m or 2h")
    return seconds
