"""Options that several verbs (subcommands) share, such as the address of the broker and the key directory."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import click

from rlsched.collector import imported

if TYPE_CHECKING:
    from pathlib import Path

    from rlsched.client.client import Client

Command = TypeVar("Command", bound=Callable[..., Any])

SILENT_S = 1.0
"""Time without an answer from the broker after which a message is shown, seconds."""


class _PathGiven(click.Path):
    """Parameter type for a path. Unlike `click.Path(path_type=Path)`, it imports `pathlib` only when used."""

    def coerce_path_result(self, value: str | os.PathLike[str]) -> Path:
        from pathlib import Path

        return Path(value)


PATH = _PathGiven()
BROKER = click.option(
    "--broker",
    metavar="ADDRESS",
    help="Address of the broker, tcp://HOST:PORT; with standbys: all addresses, separated by commas. "
    "[default: $RLSCHED_BROKER, else tcp://127.0.0.1:7461]",
)
HOME = click.option(
    "--keys",
    metavar="HOME",
    type=PATH,
    help="Directory of the keys for connections between broker, nodes and users. [default: $RLSCHED_HOME, "
    "else ~/.config/rlsched]",
)


def shown(*names: str, **settings: Any) -> Callable[[Command], Command]:
    """Return a `click.option` with its default in the help text. `settings`: arguments of `click.option`."""
    return click.option(*names, show_default=True, **settings)


def directory_option(help: str) -> Callable[[Command], Command]:
    """Return the option `--dir` (argument `directory`) of a verb that keeps files in a directory."""
    return click.option("--dir", "directory", metavar="DIR", type=PATH, help=help)


def json_option(help: str) -> Callable[[Command], Command]:
    """Return the flag `--json` (argument `as_json`) of a verb that can print JSON."""
    return click.option("--json", "as_json", is_flag=True, help=help)


def seed_option(help: str) -> Callable[[Command], Command]:
    """Return the option `--seed` of a verb that draws random numbers."""
    return shown("--seed", default=0, type=click.IntRange(min=0), metavar="K", help=help)


WORKERS = click.option(
    "--workers",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of parallel processes. [default: one per core]",
)
MODELS = click.option(
    "--models",
    is_flag=False,
    flag_value="default",
    metavar="[FILE]",
    help="Simulate the speed and power of jobs (GPU sharing, clocks, cores, energy). The models are in this "
    "TOML file; --models without FILE selects the default models. [default: no models]",
)
HTML = click.option(
    "--html",
    "html_path",
    type=PATH,
    metavar="FILE",
    help="Write the report to this file, as a web page with plots.",
)
TRACE_OUT = click.option(
    "-o", "--out", type=PATH, required=True, help="Trace file to write: .csv, .csv.gz or .parquet."
)
SCALED_NODES = click.option(
    "--nodes", type=click.IntRange(min=1), help="Scale the cluster to this number of nodes."
)
QUIET = click.option("--quiet", is_flag=True, help="Do not show progress.")
JSON = json_option("Print JSON instead of text.")
_ASKING = (
    BROKER,
    HOME,
    shown(
        "--timeout-s",
        default=5.0,
        type=click.FloatRange(min=0, min_open=True, max=3600),
        help="Seconds to wait for an answer from the broker, before the command fails.",
    ),
)


class BrokerAt(NamedTuple):
    """Address and keys of a broker, from the options `--broker`, `--keys` and `--timeout-s`.

    Attributes:
        address: Address of the broker; None selects the default address.
        keys: Key directory; None selects the default directory.
        timeout_s: Time-out for reaching the broker, seconds.
    """

    address: str | None
    keys: Path | None
    timeout_s: float

    def client(self, timeout_s: float | None = None, **settings: Any) -> Client:
        """Return a client that prints nothing while it waits. `settings`: further arguments of `Client`."""
        imported("rlsched.client.client")
        from rlsched.client.client import Client

        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        return Client(self.address, home=self.keys, timeout_s=timeout_s, **settings)

    def reach(self, *, is_patient: bool = False) -> Client:
        """Return a client that prints a message while it waits for the broker.

        `is_patient`: whether the client also waits for a broker that is still starting.
        """
        is_seen = sys.stderr.isatty()
        waits = None
        if is_seen or is_patient:
            from rlsched.transport.keys import KeyHome

            waits = _WaitingLine(KeyHome(self.keys).directory, is_seen=is_seen)
        return self.client(waits=waits, is_patient=is_patient)


class _WaitingLine:
    """Status line on standard error while the broker does not answer.

    On a terminal, the line is updated in place, and removed at the end. If standard error is not a terminal,
    a single line is printed, and only while a broker is starting.
    """

    def __init__(self, home: Path, *, is_seen: bool = True) -> None:
        self._home, self._is_seen = home, is_seen
        self._on_line = self._has_told = False

    def __call__(self, address: str, waited_s: float, most_s: float) -> None:
        if waited_s >= SILENT_S:
            from rlsched.transport.starting import is_starting, starting_at

            starts = starting_at(self._home, [address])
            said = f"the broker at {address} has not answered yet: {waited_s:.1f} of {most_s:.0f} s"
            said = f"{is_starting(starts)}; waited {waited_s:.0f} s" if starts else said
            if self._is_seen:
                import shutil  # slow: shutil imports the compression modules

                self._on_line = True
                width = shutil.get_terminal_size().columns - 1
                click.echo(f"\r\x1b[K{said[:width]}", nl=False, err=True, color=True)
            elif starts and not self._has_told:
                self._has_told = True
                click.echo(f"{is_starting(starts)}; waiting for it", err=True)
        elif not waited_s and self._on_line:
            self._on_line = False
            click.echo("\r\x1b[K", nl=False, err=True, color=True)


def asking(command: Command) -> Command:
    """Add the options for reaching the broker; the verb gets their values as its argument `at`."""

    @wraps(command)
    def asks(*args: Any, broker: str | None, keys: Path | None, timeout_s: float, **others: Any) -> Any:
        return command(*args, at=BrokerAt(broker, keys, timeout_s), **others)

    return cast("Command", with_options(_ASKING, asks))


def with_options(options: Sequence[Callable[[Command], Command]], command: Command) -> Command:
    """Add options to a command; the help text shows them in the given order."""
    for option in reversed(options):
        command = option(command)
    return command
