"""Options of the verbs that serve: where a broker listens, who decides in it, and how processes log."""

from __future__ import annotations

from pathlib import Path

import click

from rlsched.cli.shared.options import HOME, Command, with_options
from rlsched.cli.shared.policies import complete_policy, setting
from rlsched.logs import FORMATS

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


def listening(command: Command) -> Command:
    """Where a broker listens, and its keys: `address`, `keys`."""
    return with_options(_LISTENING, command)


def deciding(command: Command) -> Command:
    """Who decides in a broker: `policy`, `fallback` and `changes` (`policies.said`), `decision_budget_ms`,
    `grace_s`, `max_grace_s`, `speed_energy`, `shares`, `prediction`, `logdir`."""
    return with_options(_DECIDING, command)
