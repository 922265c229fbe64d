"""Options for the verbs that run a broker: its address, its policy, and the log format."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from rlsched.cli.shared.options import HOME, PATH, Command, shown, with_options
from rlsched.cli.shared.policies import complete_policy, given_policies, setting
from rlsched.logs import FORMATS

LOG_FORMAT = shown(
    "--log-format",
    default="text",
    envvar="RLSCHED_LOG_FORMAT",
    type=click.Choice(FORMATS),
    help="Format of logs on standard error; json: one object per line.",
)
_LISTENING = (
    click.option(
        "--address",
        metavar="tcp://HOST:PORT",
        help="Address to listen on; 0.0.0.0: all interfaces; port 0: any free port. "
        "[default: $RLSCHED_BROKER, else tcp://127.0.0.1:7461]",
    ),
    HOME,
)
_DECIDING = (
    shown(
        "--policy",
        default="tuned",
        metavar="NAME|FILE",
        shell_complete=complete_policy,
        help="Policy: a name of `rlsched policies`, ppo:PATH, sb3:PATH, a TOML file, or FILE.py[:NAME].",
    ),
    click.option(
        "--fallback",
        metavar="NAME|FILE",
        shell_complete=complete_policy,
        help="Fallback rule, used when the policy fails or is late. "
        "[default: the rule that the policy follows]",
    ),
    setting,
    shown(
        "--decision-budget-ms",
        default=100.0,
        type=click.FloatRange(min=0.001),
        help="Time-out for one decision, ms; if the policy takes longer, the fallback decides.",
    ),
    shown(
        "--grace-s",
        default=30.0,
        type=click.FloatRange(min=0, max=3600),
        help="Time between SIGTERM and SIGKILL, seconds, when a job reaches its time limit or is "
        "cancelled, preempted or requeued. `submit --grace` requests another time.",
    ),
    click.option(
        "--max-grace-s",
        type=click.FloatRange(min=0, max=86_400),
        metavar="SECONDS",
        help="Longest grace time that a job can request, seconds.  [default: 300, or --grace-s if that is "
        "longer]",
    ),
    click.option(
        "--speed-energy",
        default=0.0,
        type=click.FloatRange(min=0, max=1),
        envvar="RLSCHED_SPEED_ENERGY",
        metavar="W",
        help="Weight of energy against time, for jobs without a weight of their own: 0 only speed, 1 only "
        "energy. It determines the SM clocks, on nodes that allow setting them. [default: "
        "$RLSCHED_SPEED_ENERGY, else 0]",
    ),
    click.option(
        "--energy",
        type=PATH,
        metavar="FILE",
        help="Cluster file whose table [energy] names a CSV file with the price of electricity or its carbon "
        "intensity. With policy `priced`, jobs with --slack then wait for cheaper hours. The CSV "
        "file is read again when it changes.  [default: no price is known]",
    ),
    click.option(
        "--share",
        "shares",
        is_flag=True,
        help="Let jobs share GPUs if the jobs allow it (rlsched submit --share), the policy shares GPUs, "
        "and the models predict that no job gets too slow.",
    ),
    shown(
        "--on-slow-sharing",
        default="warn",
        type=click.Choice(["warn", "unshare"]),
        help="Reaction to a job on shared GPUs that is slower than share.min_speed or its predicted "
        "speed for a minute. warn: log it; unshare: share its GPUs no more from its next start on, "
        "and requeue it at once if it is preemptible.",
    ),
    click.option(
        "--no-learning",
        is_flag=True,
        help="Do not adapt the predicted speeds of jobs that share GPUs to their observed speeds.",
    ),
    click.option(
        "--sharing-watch-s",
        default=300.0,
        type=click.FloatRange(min=1.0),
        hidden=True,
        help="Time for which a job must be measured next to the same co-tenant before its speed is learnt, "
        "seconds.",
    ),
    click.option(
        "--prediction",
        type=click.Choice(["running-mean", "hedge"]),
        help="Predictor of run times. [default: hedge]",
    ),
    click.option(
        "--logdir",
        metavar="DIR",
        type=PATH,
        help="Directory for TensorBoard curves.",
    ),
)


def listening(command: Command) -> Command:
    """Add the options `address` and `keys` of a verb that listens for clients as a broker."""
    return with_options(_LISTENING, command)


def deciding(command: Command) -> Command:
    """Add the options that determine decisions; `given_policies` reads `policy`, `fallback` and `changes`."""
    return with_options(_DECIDING, command)


def as_words(ctx: click.Context, decided: Mapping[str, Any]) -> list[str]:
    """Return the options of `deciding` as command-line arguments for another process, with absolute paths.

    Raises:
        InputError: the policy cannot be read.
    """
    words: list[str] = []
    for one in given_policies(ctx):
        file = Path(one.text)
        words += [one.option, str(file.absolute()) if one.policy and file.is_file() else one.text]
        words += [word for change in one.changes for word in ("--set", change)]
    for param in ctx.command.params:
        value = decided.get(param.name or "")
        if param.name in ("policy", "fallback", "changes") or value is None or value is False:
            continue
        words.append(param.opts[0])
        if value is not True:
            words.append(str(value.absolute() if isinstance(value, Path) else value))
    return words
