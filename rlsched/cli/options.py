"""Options that several verbs have: where the broker is, where keys are, and who decides."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from rlsched.cli.policies import setting
from rlsched.logs import FORMATS

Command = TypeVar("Command", bound=Callable[..., Any])

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
        help="Who decides: a name of `rlsched policies`, ppo:PATH, or a TOML or Python file.",
    ),
    click.option(
        "--fallback",
        metavar="NAME|FILE",
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
        help="A preempted job has so long between SIGTERM and SIGKILL.",
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
        "--prediction",
        type=click.Choice(["running-mean", "hedge"]),
        help="Who predicts run times. [default: hedge, where scikit-learn (extra predict) is installed]",
    ),
    click.option("--logdir", metavar="DIR", type=click.Path(path_type=Path), help="Curves for TensorBoard."),
)


def listening(command: Command) -> Command:
    """Where a broker listens, and its keys: `address`, `keys`."""
    return _with(_LISTENING, command)


def asking(command: Command) -> Command:
    """How a client reaches the broker: `broker`, `keys`, `timeout_s`."""
    return _with(_ASKING, command)


def deciding(command: Command) -> Command:
    """Who decides in a broker: `policy`, `fallback` and `changes` (`policies.said`), `decision_budget_ms`,
    `grace_s`, `speed_energy`, `prediction`, `logdir`."""
    return _with(_DECIDING, command)


def _with(options: tuple[Callable[[Command], Command], ...], command: Command) -> Command:
    """Add these options, in the order in which help shows them."""
    for option in reversed(options):
        command = option(command)
    return command
