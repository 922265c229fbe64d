"""Options that several verbs have: where the broker is, where keys are, and who decides."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

_KEYS = click.option(
    "--keys",
    metavar="HOME",
    type=click.Path(path_type=Path),
    help="Key directory. [default: $RLSCHED_HOME, else ~/.config/rlsched]",
)
_LISTENING = (
    click.option(
        "--address",
        metavar="tcp://HOST:PORT",
        help="Where the broker listens, loopback only; port 0: any free one. "
        "[default: $RLSCHED_BROKER, else tcp://127.0.0.1:7461]",
    ),
    _KEYS,
)
_ASKING = (
    click.option(
        "--broker",
        metavar="ADDRESS",
        help="tcp://HOST:PORT of the broker. [default: $RLSCHED_BROKER, else tcp://127.0.0.1:7461]",
    ),
    _KEYS,
    click.option(
        "--timeout-s",
        default=5.0,
        show_default=True,
        type=click.FloatRange(min=0, min_open=True, max=3600),
        help="How long to try to reach the broker.",
    ),
)
_DECIDING = (
    click.option("--policy", default="ppo", show_default=True, metavar="NAME", help="Who decides."),
    click.option(
        "--fallback",
        metavar="NAME",
        help="The rule in its place when it fails or is late. "
        "[default: the one that the policy follows; easy:size for ppo]",
    ),
    click.option(
        "--decision-budget-ms",
        default=100.0,
        show_default=True,
        type=click.FloatRange(min=0.001),
        help="A decision that takes longer is the fallback's.",
    ),
    click.option(
        "--search-ms",
        type=click.FloatRange(min=0, max=10_000),
        metavar="B",
        help="Let `ppo` look ahead for so long a contested decision. [default: not at all]",
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
        "--reclock-s",
        type=click.FloatRange(min=10, max=2_592_000),
        metavar="SECONDS",
        help="Let running jobs follow the queue with their clocks, but keep one for so long at least. "
        "[default: a job keeps its clock]",
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
    """Who decides in a broker: `policy`, `fallback`, `decision_budget_ms`, `search_ms`, `grace_s`,
    `speed_energy`, `reclock_s`, `prediction`, `logdir`."""
    return _with(_DECIDING, command)


def _with(options: tuple[Callable[[Command], Command], ...], command: Command) -> Command:
    """Add these options, in the order in which help shows them."""
    for option in reversed(options):
        command = option(command)
    return command
