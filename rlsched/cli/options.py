"""Options that several verbs have: where the broker is, where keys are, and who decides."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rlsched.cli.policies import complete_policy, setting
from rlsched.logs import FORMATS

if TYPE_CHECKING:
    from rlsched.client.client import Client

Command = TypeVar("Command", bound=Callable[..., Any])

SILENT_S = 1.0
"""Who waits for a broker for longer is told so."""
PRIORITIES = ("low", "normal", "high", "urgent")
"""As `Priority` of the messages, which are not read before they are needed."""
HOME = click.option(
    "--keys",
    metavar="HOME",
    type=click.Path(path_type=Path),
    help="Key directory. [default: $RLSCHED_HOME, else ~/.config/rlsched]",
)
LOG_FORMAT = click.option(
    "--log-format",
    default="text",
    show_default=True,
    envvar="RLSCHED_LOG_FORMAT",
    type=click.Choice(FORMATS),
    help="json: one object a line, on standard error.",
)
_LISTENING = (
    click.option(
        "--address",
        metavar="tcp://HOST:PORT",
        help="Where the broker listens; 0.0.0.0: on every interface; port 0: any free one. "
        "[default: $RLSCHED_BROKER, else tcp://127.0.0.1:7461]",
    ),
    HOME,
)
_ASKING = (
    click.option(
        "--broker",
        metavar="ADDRESS",
        help="tcp://HOST:PORT of the broker, with commas between also of its standbys. "
        "[default: $RLSCHED_BROKER, else tcp://127.0.0.1:7461]",
    ),
    HOME,
    click.option(
        "--timeout-s",
        default=5.0,
        show_default=True,
        type=click.FloatRange(min=0, min_open=True, max=3600),
        help="How long to try to reach the broker.",
    ),
)
_DECIDING = (
    click.option(
        "--policy",
        default="tuned",
        show_default=True,
        metavar="NAME|FILE",
        shell_complete=complete_policy,
        help="Who decides: a name of `rlsched policies`, ppo:PATH, sb3:PATH, a TOML file, or FILE.py[:NAME].",
    ),
    click.option(
        "--fallback",
        metavar="NAME|FILE",
        shell_complete=complete_policy,
        help="The rule in its place when it fails or is late. [default: the one that the policy follows]",
    ),
    setting,
    click.option(
        "--decision-budget-ms",
        default=100.0,
        show_default=True,
        type=click.FloatRange(min=0.001),
        help="A decision that takes longer is the fallback's.",
    ),
    click.option(
        "--grace-s",
        default=30.0,
        show_default=True,
        type=click.FloatRange(min=0, max=3600),
        help="A job has so long between SIGTERM and SIGKILL: at its time limit, when it is cancelled, "
        "preempted or queued again. `submit --grace` asks for another grace.",
    ),
    click.option(
        "--max-grace-s",
        type=click.FloatRange(min=0, max=86_400),
        metavar="SECONDS",
        help="The longest grace that a job may ask for.  [default: 300, or --grace-s where that is longer]",
    ),
    click.option(
        "--speed-energy",
        default=0.0,
        type=click.FloatRange(min=0, max=1),
        envvar="RLSCHED_SPEED_ENERGY",
        metavar="W",
        help="What energy counts against time for jobs that do not say it themselves: 0 speed alone, 1 "
        "energy alone. SM clocks are set by it, where nodes may. [default: $RLSCHED_SPEED_ENERGY, else 0]",
    ),
    click.option(
        "--share",
        "shares",
        is_flag=True,
        help="Jobs that may (rlsched submit --share) share GPUs, where the policy shares and by the models "
        "none of them gets too slow.",
    ),
    click.option(
        "--prediction",
        type=click.Choice(["running-mean", "hedge"]),
        help="Who predicts run times. [default: hedge]",
    ),
    click.option("--logdir", metavar="DIR", type=click.Path(path_type=Path), help="Curves for TensorBoard."),
)


def reach(broker: str | None, keys: Path | None, timeout_s: float, *, is_patient: bool = False) -> Client:
    """Who asks the broker; a patient one waits on while a broker is starting there."""
    from rlsched.broker.access.keys import KeyHome
    from rlsched.client.client import Client

    is_seen = sys.stderr.isatty()
    waits = _Waiting(KeyHome(keys).directory, is_seen=is_seen) if is_seen or is_patient else None
    return Client(broker, home=keys, timeout_s=timeout_s, waits=waits, is_patient=is_patient)


class _Waiting:
    """One line on a terminal while the broker does not answer, rewritten, and gone afterwards.

    Elsewhere a line once, where a broker is starting.
    """

    def __init__(self, home: Path, *, is_seen: bool = True) -> None:
        self._home, self._is_seen = home, is_seen
        self._on_line = self._has_told = False

    def __call__(self, address: str, waited_s: float, most_s: float) -> None:
        if waited_s >= SILENT_S:
            from rlsched.broker.starting import is_starting, starting_at

            starts = starting_at(self._home, [address])
            said = f"the broker at {address} has not answered yet: {waited_s:.1f} of {most_s:.0f} s"
            said = f"{is_starting(starts)}; waited {waited_s:.0f} s" if starts else said
            if self._is_seen:
                self._on_line = True
                width = shutil.get_terminal_size().columns - 1
                click.echo(f"\r\x1b[K{said[:width]}", nl=False, err=True, color=True)
            elif starts and not self._has_told:
                self._has_told = True
                click.echo(f"{is_starting(starts)}; waiting for it", err=True)
        elif not waited_s and self._on_line:
            self._on_line = False
            click.echo("\r\x1b[K", nl=False, err=True, color=True)


def listening(command: Command) -> Command:
    """Where a broker listens, and its keys: `address`, `keys`."""
    return _with(_LISTENING, command)


def asking(command: Command) -> Command:
    """How a client reaches the broker: `broker`, `keys`, `timeout_s`."""
    return _with(_ASKING, command)


def deciding(command: Command) -> Command:
    """Who decides in a broker: `policy`, `fallback` and `changes` (`policies.said`), `decision_budget_ms`,
    `grace_s`, `max_grace_s`, `speed_energy`, `shares`, `prediction`, `logdir`."""
    return _with(_DECIDING, command)


def _with(options: tuple[Callable[[Command], Command], ...], command: Command) -> Command:
    """Add these options, in the order in which help shows them."""
    for option in reversed(options):
        command = option(command)
    return command
