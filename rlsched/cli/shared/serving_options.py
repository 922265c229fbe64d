"""Options for the verbs that run a broker: its address, its policy, and the log format."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from rlsched.cli.shared.options import HOME, PATH, Command, shown, with_options
from rlsched.cli.shared.policies import POLICY_WITH_PRICES, complete_policy, given_policies, setting
from rlsched.logs import FORMATS

LOG_FORMAT = shown(
    "--log-format",
    default="text",
    envvar="RLSCHED_LOG_FORMAT",
    type=click.Choice(FORMATS),
    help="Format of log lines on standard error: text, or json (one object per line).",
)
_LISTENING = (
    click.option(
        "--address",
        metavar="tcp://HOST:PORT",
        help="Address to listen on; host 0.0.0.0 listens on all interfaces, port 0 on any free port. "
        "[default: $RLSCHED_BROKER, else tcp://127.0.0.1:7461]",
    ),
    HOME,
)
_DECIDING = (
    click.option(
        "--policy",
        default="tuned",
        metavar="NAME|FILE",
        shell_complete=complete_policy,
        help="Scheduling policy: a name that `rlsched policies` lists, a TOML file, a trained policy "
        "(ppo:PATH, sb3:PATH), or your own code (FILE.py[:NAME]). "
        f"[default: tuned; with --energy: {POLICY_WITH_PRICES}]",
    ),
    click.option(
        "--fallback",
        metavar="NAME|FILE",
        shell_complete=complete_policy,
        help="Policy that decides if --policy fails or exceeds --decision-budget-ms. [default: the rule on "
        "which --policy is based]",
    ),
    setting,
    shown(
        "--decision-budget-ms",
        default=100.0,
        type=click.FloatRange(min=0.001),
        help="Time limit for one decision, milliseconds; if the policy exceeds it, the policy of --fallback "
        "decides.",
    ),
    shown(
        "--grace-s",
        default=30.0,
        type=click.FloatRange(min=0, max=3600),
        help="Time between SIGTERM and SIGKILL, seconds, when a job reaches its time limit or is cancelled, "
        "preempted or requeued. `rlsched submit --grace` overrides it for a job.",
    ),
    click.option(
        "--max-grace-s",
        type=click.FloatRange(min=0, max=86_400),
        metavar="SECONDS",
        help="Longest time that `rlsched submit --grace` can request, seconds.  [default: 300, or --grace-s "
        "if that is longer]",
    ),
    click.option(
        "--speed-energy",
        default=0.0,
        type=click.FloatRange(min=0, max=1),
        envvar="RLSCHED_SPEED_ENERGY",
        metavar="W",
        help="Weight of energy against speed, from 0 (only speed counts) to 1 (only energy counts). The "
        "weight determines the SM clocks, on nodes that can set clocks. `rlsched submit --speed-energy` "
        "overrides it for a job. [default: $RLSCHED_SPEED_ENERGY, else 0]",
    ),
    click.option(
        "--energy",
        type=PATH,
        metavar="FILE",
        help="Cluster file, or another TOML file, whose table [energy] names a CSV file with electricity "
        "prices or carbon intensities, or limits the power of the nodes. Under the policies `priced` and "
        "`ppo`, jobs submitted with --slack then wait for cheaper hours. The broker reads CSV files again "
        "when they change.  [default: no prices, no limit]",
    ),
    click.option(
        "--share",
        "shares",
        is_flag=True,
        help="Run several jobs on the same GPUs if the jobs permit it (rlsched submit --share), the policy "
        "supports it, and no job is predicted to become slower than the policy's setting share.min_speed.",
    ),
    shown(
        "--on-slow-sharing",
        default="warn",
        type=click.Choice(["warn", "unshare", "move"]),
        help="Reaction if a job on shared GPUs is slower than predicted for more than 45 s, or slower than "
        "the policy's setting share.min_speed. warn: log a warning; unshare: give the job GPUs of its "
        "own from its next start on; move: the same, and requeue the job immediately if it is preemptible.",
    ),
    click.option(
        "--no-learning",
        is_flag=True,
        help="Do not correct the predicted speeds of jobs that share GPUs by the observed speeds.",
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
        help="Predictor of job run times: running-mean (mean of earlier jobs), or hedge (weighted average "
        "of several predictors). [default: hedge]",
    ),
    click.option(
        "--logdir",
        metavar="DIR",
        type=PATH,
        help="Write TensorBoard curves to this directory. [default: no curves]",
    ),
)


def listening(command: Command) -> Command:
    """Add the options `address` and `keys` of a verb that listens for clients as a broker."""
    return with_options(_LISTENING, command)


def deciding(command: Command) -> Command:
    """Add the options that determine decisions to a command.

    `given_policies` returns the values of `policy`, `fallback` and `changes` in the order of their options.
    """
    return with_options(_DECIDING, command)


def as_words(ctx: click.Context, decided: Mapping[str, Any]) -> list[str]:
    """Return the options of `deciding` that are set, as arguments for another process, with absolute paths.

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
