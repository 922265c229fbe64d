"""Options of several verbs: the address of the broker, and the key directory."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rlsched.collector import imported

if TYPE_CHECKING:
    from pathlib import Path

    from rlsched.client.client import Client

Command = TypeVar("Command", bound=Callable[..., Any])

SILENT_S = 1.0
"""Wait for the broker after which a message is shown, seconds."""
PRIORITIES = ("low", "normal", "high", "urgent")
"""Same as `Priority` of the messages, which are imported only when needed."""


class _PathGiven(click.Path):
    """A path as in `click.Path(path_type=Path)`; `pathlib` is imported only if one is given."""

    def coerce_path_result(self, value: str | os.PathLike[str]) -> Path:
        from pathlib import Path

        return Path(value)


HOME = click.option(
    "--keys",
    metavar="HOME",
    type=_PathGiven(),
    help="Key directory. [default: $RLSCHED_HOME, else ~/.config/rlsched]",
)
_ASKING = (
    click.option(
        "--broker",
        metavar="ADDRESS",
        help="Address of the broker, tcp://HOST:PORT; separate standbys by commas. "
        "[default: $RLSCHED_BROKER, else tcp://127.0.0.1:7461]",
    ),
    HOME,
    click.option(
        "--timeout-s",
        default=5.0,
        show_default=True,
        type=click.FloatRange(min=0, min_open=True, max=3600),
        help="Time-out of reaching the broker, seconds.",
    ),
)


def reach(broker: str | None, keys: Path | None, timeout_s: float, *, is_patient: bool = False) -> Client:
    """Return a client of the broker; a patient one keeps waiting while a broker is starting."""
    imported("rlsched.client.client")
    from rlsched.client.client import Client

    is_seen = sys.stderr.isatty()
    waits = None
    if is_seen or is_patient:
        from rlsched.transport.keys import KeyHome

        waits = _WaitingLine(KeyHome(keys).directory, is_seen=is_seen)
    return Client(broker, home=keys, timeout_s=timeout_s, waits=waits, is_patient=is_patient)


class _WaitingLine:
    """A line on a terminal while the broker does not answer, rewritten, then removed.

    Without a terminal, one line is printed if a broker is starting.
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
                import shutil  # it loads the compressors

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
    """Add the options for reaching the broker: `broker`, `keys`, `timeout_s`."""
    return with_options(_ASKING, command)


def with_options(options: tuple[Callable[[Command], Command], ...], command: Command) -> Command:
    """Add these options, in the order in which help shows them."""
    for option in reversed(options):
        command = option(command)
    return command
