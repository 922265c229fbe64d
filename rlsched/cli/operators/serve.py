"""`rlsched broker`: runs the broker in the foreground."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import click
import msgspec

from rlsched.broker.compaction.keeping import GROWN, KEEP_ENDED_DAYS, KEEP_ENTRIES, Keeps
from rlsched.cli.shared.job_options import lost_after_time_s
from rlsched.cli.shared.options import PATH, directory_option, shown
from rlsched.cli.shared.policies import PolicyCommand, given_policies
from rlsched.cli.shared.serving_options import LOG_FORMAT, deciding, listening
from rlsched.compile.compiling import COMPILING
from rlsched.decisions.schema import KEEP_MIB
from rlsched.errors import InputError
from rlsched.files.space import MIN_FREE_MIB
from rlsched.logs import LogFormat, set_up
from rlsched.settings import Seconds
from rlsched.wire.messages import Priority

S = TypeVar("S", bound=msgspec.Struct)
_log = logging.getLogger("rlsched.broker")


@click.command(cls=PolicyCommand)
@listening
@directory_option(
    "Directory of the journal and the decision records. [default: broker in the directory of --keys]"
)
@deciding
@click.option(
    "--history",
    metavar="FILE",
    type=PATH,
    help="File with the output of sacct for earlier jobs; the last 10,000 of these jobs train the predictor "
    "of run times. Give the same file at every start.",
)
@shown(
    "--lease-s",
    default=20.0,
    type=click.FloatRange(min=1.0),
    help="Time without a heartbeat after which a node is marked unreachable, seconds; its jobs continue, "
    "but it gets no new jobs.",
)
@shown(
    "--lost-after",
    default="never",
    metavar="TIME",
    help="Default of `rlsched submit --lost-after`: time (such as 10m) without contact with a node, "
    "after which that node ends the job and the broker requeues it. `never`: the broker waits until the node "
    "returns, or until an operator runs `rlsched node down`.",
)
@shown(
    "--launch-timeout-s",
    default=30.0,
    type=click.FloatRange(min=0.1),
    help="Time-out for the start of all ranks of a job, seconds.",
)
@shown(
    "--min-free-mib",
    default=MIN_FREE_MIB,
    type=click.IntRange(min=0),
    help="Free space on the journal's disk below which new jobs are rejected, MiB; running jobs continue.",
)
@click.option(
    "--keep-days",
    metavar="DAYS|all",
    help="Once a day, replace journal entries older than this number of days by a summary; with the value "
    f"all, keep all entries. [default: keep the latest {KEEP_ENTRIES:,} to {GROWN * KEEP_ENTRIES:,} entries, "
    "whatever their age]",
)
@shown(
    "--keep-ended-days",
    default=f"{KEEP_ENDED_DAYS:g}",
    metavar="DAYS|all",
    help="Time for which `rlsched history` and `rlsched account` list finished jobs, days; with the value "
    "all, jobs are never removed.",
)
@shown(
    "--keep-decisions-mib",
    default=KEEP_MIB,
    type=click.IntRange(min=16),
    help="Maximum size of the recorded decisions (for `rlsched explain`) on disk, MiB; the oldest "
    "decisions are removed first.",
)
@shown(
    "--keep-decisions-days",
    default="all",
    metavar="DAYS|all",
    help="Remove recorded decisions that are older than this number of days; with the value all, only "
    "--keep-decisions-mib limits the decisions.",
)
@click.option(
    "--new-cluster",
    is_flag=True,
    help="If the journal was lost: start with an empty journal, without the jobs of the lost journal. Nodes "
    "join when their old jobs have ended, or immediately with `rlsched node --forget-cluster`. The broker "
    "refuses this option if the journal is intact.",
)
@shown(
    "--ended-s",
    default=3600.0,
    type=click.FloatRange(min=0.0),
    help="Time for which finished jobs stay in memory, seconds (at most 10,000 jobs); older jobs are read "
    "from the journal.",
)
@shown(
    "--messages-per-s",
    default=10_000.0,
    type=click.FloatRange(min=1.0),
    help="Maximum messages per second from one key; further messages are dropped, and clients send them "
    "again.",
)
@shown(
    "--refusals-per-s",
    default=100.0,
    type=click.FloatRange(min=1.0),
    help="Maximum rejected messages per second from one key; if a key exceeds it, all messages from this "
    "key are dropped for a while.",
)
@shown(
    "--fair-share",
    "half_life",
    default="off",
    metavar="HALF_LIFE",
    help="Start jobs of users with little recent usage before jobs of other users. HALF_LIFE, such as 7d, "
    "is the time after which past usage counts half.",
)
@shown(
    "--priority-age",
    default="off",
    metavar="TIME",
    help="Raise the priority of a waiting job by one level each time it has waited for this time, such as "
    "1d; at most to high.",
)
@shown(
    "--user-priority",
    type=click.Choice(get_args(Priority)),
    default="normal",
    help="Highest priority that users other than admins can request.",
)
@click.option(
    "--preemptible-priority",
    type=click.Choice(get_args(Priority)),
    help="Permit preemption of jobs with this or a lower priority, even without --preemptible. The policy "
    "decides which jobs preempt them; with `--set preempt.by=priority`, only jobs of a higher priority do. "
    "[default: only jobs with --preemptible can be preempted]",
)
@click.option(
    "--forecaster",
    metavar="NAME",
    help="Forecaster of job starts and ends, which runs in a separate process at low CPU priority: a name "
    "in the entry point group rlsched.forecasters, or none.  [default: futures]",
)
@click.option(
    "--suspend-cmd",
    metavar="COMMAND",
    help="Command that powers an idle node down; its argument is the node's name. Needs --resume-cmd. "
    "[default: nodes are not powered down]",
)
@click.option(
    "--resume-cmd", metavar="COMMAND", help="Command that powers a node up; its argument is the node's name."
)
@shown(
    "--suspend-idle",
    default="10m",
    metavar="TIME",
    help="Idle time after which a node is powered down, such as 10m.",
)
@shown(
    "--suspend-timeout",
    default="60s",
    metavar="TIME",
    help="Time from the start of --suspend-cmd after which a node is assumed to be off.",
)
@shown(
    "--resume-timeout",
    default="15m",
    metavar="TIME",
    help="Time from the start of --resume-cmd after which a node that has not registered is marked down.",
)
@shown(
    "--keep-awake",
    default=0,
    metavar="N",
    type=click.IntRange(min=0),
    help="Minimum number of nodes that stay powered on.",
)
@click.option(
    "--suspend-exclude",
    multiple=True,
    metavar="PATTERN",
    help="Glob pattern for names of nodes that are never powered down; may be repeated.",
)
@click.option(
    "--suspend-plan",
    metavar="FILE",
    type=PATH,
    help="TOML file whose table power_down defines how many nodes stay powered on for expected jobs; "
    "replaces --suspend-idle.",
)
@click.option(
    "--standby",
    "stands_by",
    is_flag=True,
    help="Wait until the broker that holds the journal in --dir has exited, then take over.",
)
@click.option(
    "--of",
    metavar="tcp://HOST:PORT",
    help="With --standby on another machine: address of the primary broker, whose journal is copied. Both "
    "brokers must have the same keys.",
)
@click.option(
    "--take-over-after-s",
    type=click.FloatRange(min=3.0),
    metavar="SECONDS",
    help="With --of: take over if the primary broker has not answered for this time, seconds. [default: "
    "take over only at SIGUSR1]",
)
@shown("--seed", default=0, help="Random seed of the policy.")
@LOG_FORMAT
@click.pass_context
def broker(
    ctx: click.Context,
    /,
    address: str | None,
    directory: Path | None,
    keys: Path | None,
    lost_after: str,
    keep_days: str | None,
    keep_ended_days: str,
    keep_decisions_days: str,
    forecaster: str | None,
    suspend_cmd: str | None,
    resume_cmd: str | None,
    suspend_idle: str,
    suspend_timeout: str,
    resume_timeout: str,
    keep_awake: int,
    suspend_exclude: tuple[str, ...],
    suspend_plan: Path | None,
    half_life: str,
    priority_age: str,
    user_priority: Priority,
    preemptible_priority: Priority | None,
    stands_by: bool,
    of: str | None,
    take_over_after_s: float | None,
    no_learning: bool,
    sharing_watch_s: float,
    on_slow_sharing: Literal["warn", "unshare", "move"],
    log_format: LogFormat,
    **asked: Any,
) -> None:
    """Run the broker, which schedules the jobs.

    Jobs continue when the broker stops. A broker that is restarted on the same directory recovers all jobs.

    \b
    Example:
      rlsched broker --policy ppo --logdir runs/broker
      rlsched node --name n0 --gpus 4 --simulated      # in another terminal
      rlsched broker --policy ppo --standby            # takes over when the first broker ends
    """
    announce = set_up(log_format, level=logging.WARNING, timed=False)
    lost_after_s, lease_s = lost_after_time_s(lost_after), asked["lease_s"]
    if 0 < lost_after_s < lease_s:
        raise InputError(f"--lost-after {lost_after}: expected at least --lease-s, which is {lease_s:g} s")
    grace_s, max_grace_s = asked["grace_s"], asked["max_grace_s"]
    if max_grace_s is not None and max_grace_s < grace_s:
        raise InputError(f"--max-grace-s {max_grace_s:g}: expected at least --grace-s, which is {grace_s:g}")
    if of is not None and not stands_by:
        raise InputError("--of: use it together with --standby, which waits until the primary broker exits")
    if take_over_after_s is not None and of is None:
        raise InputError("--take-over-after-s: use it together with --of, the address of the primary broker")
    if asked["new_cluster"] and stands_by:
        raise InputError("--new-cluster: omit --standby, because a standby continues an existing journal")
    given = {one.option: one for one in given_policies(ctx)}
    if not stands_by:
        announce(
            f"rlsched broker is starting: it loads policy {given['--policy'].text}, and compiles it if it is "
            "new"
        )
    with COMPILING.during("loading the broker"):
        from rlsched.broker.base.limits import Limits
        from rlsched.broker.nodes.sleepers import SleepPlan
        from rlsched.broker.nodes.slow_sharing import SharingRules
        from rlsched.broker.server.running import run_broker
        from rlsched.broker.server.settings import BrokerSettings
        from rlsched.broker.standby.copying import Copies
        from rlsched.broker.state.priorities import PriorityRules
        from rlsched.cli.operators.sleeping import power_settings, sleep_plan
        from rlsched.transport.budgets import SenderLimits
        from rlsched.transport.dealer import broker_address
        from rlsched.transport.keys import default_home

    copies = None if of is None else Copies(broker_address(of), take_over_after_s)
    chosen = {option: one.policy for option, one in given.items()}
    home = keys or default_home()
    settings = {
        "address": broker_address(address),
        "directory": directory or home / "broker",
        "keys": home,
        "policy": chosen["--policy"],
        "fallback": chosen.get("--fallback"),
        "keeps": Keeps(
            days=None if keep_days is None else _days("--keep-days", keep_days),
            ended_days=_days("--keep-ended-days", keep_ended_days),
        ),
        "keep_decisions_days": _days("--keep-decisions-days", keep_decisions_days),
        "forecaster": _forecaster(forecaster),
        "power": power_settings(
            suspend_cmd,
            resume_cmd,
            SleepPlan(
                plan=sleep_plan(suspend_plan, suspend_idle),
                suspend_timeout_s=time_s("--suspend-timeout", suspend_timeout),
                resume_timeout_s=time_s("--resume-timeout", resume_timeout),
                keep_awake=keep_awake,
                exclude=suspend_exclude,
            ),
        ),
        "ranks": PriorityRules(
            half_life_s=time_s("--fair-share", half_life),
            age_s=time_s("--priority-age", priority_age),
            highest=user_priority,
            preemptible=preemptible_priority,
        ),
        "limits": _with(
            Limits,
            asked,
            heartbeat_s=min(2.0, lease_s / 5),
            lost_after_s=lost_after_s,
            max_grace_s=max(Limits().max_grace_s, grace_s) if max_grace_s is None else max_grace_s,
        ),
        "senders": _with(SenderLimits, asked),
        "sharing": SharingRules(
            learns=not no_learning,
            watch_s=sharing_watch_s,
            on_slow=on_slow_sharing,
        ),
    }
    run_broker(
        _with(BrokerSettings, asked, **settings),
        announce=announce,
        warn=_log.warning if log_format == "json" else announce,
        stands_by=stands_by,
        copies=copies,
    )


def _with(kind: type[S], asked: Mapping[str, Any], **settings: Any) -> S:
    """Return an object of class `kind`. Its fields are from `settings`, else from options of that name."""
    return kind(**{name: asked[name] for name in kind.__struct_fields__ if name in asked} | settings)


def time_s(option: str, text: str) -> float:
    """Return the time in the text of an option, seconds; infinite for `off`.

    Raises:
        InputError: the text is not a time above 0.
    """
    if text == "off":
        return math.inf
    try:
        time_s = Seconds.parse(text)
    except ValueError as error:
        raise InputError(f"{option}: {error}; `off` is also accepted") from error
    if time_s <= 0.0:
        raise InputError(f"{option}: expected a time above 0, or off, got {text!r}")
    return float(time_s)


def _days(option: str, text: str) -> float:
    """Return the number of days in the text of an option, 1 or more; infinite for `all`.

    Raises:
        InputError: the text is neither `all` nor a number of at least 1.
    """
    if text == "all":
        return math.inf
    try:
        days = float(text)
    except ValueError:
        days = 0.0
    if not 1.0 <= days < math.inf:
        raise InputError(f"{option}: expected 1 day or more, or all, got {text!r}")
    return days


def _forecaster(name: str | None) -> str:
    """Return the name of the forecaster to run; "": none. If `name` is None, return the default forecaster.

    Raises:
        InputError: no forecaster of this name is installed.
    """
    from rlsched.forecast.world import DEFAULT, forecaster_names

    if name is None:
        return DEFAULT
    known = forecaster_names()
    if name != "none" and name not in known:
        raise InputError(f"--forecaster {name!r}: expected one of {', '.join(['none', *known])}")
    return "" if name == "none" else name
