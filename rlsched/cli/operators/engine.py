"""`rlsched engine`: runs the gateway through which rlsched schedules the jobs of a Slurm cluster."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from rlsched.cli.shared.options import BROKER, HOME, PATH, directory_option, shown
from rlsched.cli.shared.policies import PolicyCommand, setting
from rlsched.cli.shared.serving_options import LOG_FORMAT
from rlsched.logs import LogFormat, set_up

_DIRECTORY = Path("/var/lib/rlsched/slurm")
_SHADOW_DIRECTORY = Path("/var/lib/rlsched/shadow")
WRITTEN_S = 0.5
"""Time that `--remove` gives a running gateway to write its last changes, seconds."""
_SECONDS = click.FloatRange(min=0.05, max=86_400)


@click.group()
def engine() -> None:
    """Run a gateway through which rlsched schedules the jobs of another system, such as Slurm.

    \b
    Example:
      rlsched engine slurm --partition gpu
    """


@engine.command(cls=PolicyCommand)
@click.option(
    "--partition",
    "partitions",
    multiple=True,
    metavar="NAME",
    help="Slurm partition that rlsched schedules or, with --shadow, follows; may be repeated.",
)
@BROKER
@shown(
    "--name",
    default="slurm",
    help="Name of the key (role engine) with which the gateway connects to the broker.",
)
@directory_option(
    "Directory of the gateway's heartbeat file, which job_submit.lua reads; with --shadow, directory of the "
    f"recorded decisions and the journal. [default: {_DIRECTORY}; {_SHADOW_DIRECTORY} with --shadow]"
)
@click.option(
    "--poll-s",
    type=_SECONDS,
    help="Interval between two queries of Slurm's jobs and nodes, seconds; slurmctld is never queried more "
    "often. [default: 1; 10 with --shadow]",
)
@click.option(
    "--slurmrestd",
    default="",
    metavar="ADDRESS",
    help="Query jobs and nodes through slurmrestd at this address, unix:/PATH or http://HOST:PORT, with the "
    "token in $SLURM_JWT if it is set.  [default: run squeue and sinfo]",
)
@shown(
    "--release-after",
    "release_after_s",
    default=120.0,
    type=_SECONDS,
    metavar="SECONDS",
    help="Release held jobs to Slurm's own order if there was no decision for this time, seconds.",
)
@click.option("--preempt", is_flag=True, help="Permit the policy to preempt jobs that Slurm can requeue.")
@click.option(
    "--sm-clocks-mhz",
    default="",
    metavar="MHZ,...",
    help="SM clocks from which the policy chooses a clock for each job, MHz, separated by commas. Slurm "
    "must be able to set each of them with --gpu-freq on all GPUs.  [default: clocks are not set]",
)
@click.option(
    "--priority-only",
    is_flag=True,
    help="Do not hold and place jobs: only set their nice values, so that Slurm starts jobs in the order of "
    "the policy.",
)
@click.option(
    "--print-lua",
    is_flag=True,
    help="Print the Slurm plugin job_submit.lua for the partitions of --partition, and exit.",
)
@click.option(
    "--gateway-user",
    metavar="USER",
    help="With --print-lua: user who runs the gateway; the plugin accepts changes of jobs by this user.  "
    "[default: the current user]",
)
@click.option(
    "--release",
    is_flag=True,
    help="Check once, for use in cron: if there was no decision for --release-after seconds, release held "
    "jobs to Slurm's own order; then exit.",
)
@click.option(
    "--remove",
    is_flag=True,
    help="Release all held jobs to Slurm's own order, hold no further jobs, and exit.",
)
@click.option(
    "--shadow",
    is_flag=True,
    help="Change nothing in Slurm: follow its jobs, and record the decisions that the policy would have "
    "made (see `rlsched shadow`).",
)
@shown(
    "--policy",
    default="tuned",
    metavar="NAME|FILE",
    help="With --shadow: policy whose decisions are recorded.",
)
@setting
@click.option(
    "--history",
    metavar="FILE",
    type=PATH,
    help="With --shadow: file with the output of sacct for earlier jobs, from which the run times of the "
    "first jobs are predicted.",
)
@LOG_FORMAT
@HOME
@click.pass_context
def slurm(
    ctx: click.Context,
    partitions: tuple[str, ...],
    broker: str | None,
    name: str,
    directory: Path | None,
    poll_s: float | None,
    slurmrestd: str,
    release_after_s: float,
    preempt: bool,
    sm_clocks_mhz: str,
    priority_only: bool,
    print_lua: bool,
    gateway_user: str | None,
    release: bool,
    remove: bool,
    shadow: bool,
    policy: str,  # noqa: ARG001 - read together by `given_policies`
    changes: tuple[str, ...],  # noqa: ARG001
    history: Path | None,
    log_format: LogFormat,
    keys: Path | None,
) -> int:
    """Schedule the jobs of a Slurm cluster: the policy decides order, nodes and GPUs; Slurm runs the jobs.

    Run this gateway process on a machine with Slurm's commands, with the rights of a Slurm operator. Users
    still use sbatch, squeue and scancel. See docs/how-to/slurm.md.

    \b
    Example:
      rlsched engine slurm --partition gpu --print-lua > /etc/slurm/job_submit.lua
      rlsched engine slurm --partition gpu
      rlsched engine slurm --partition gpu --priority-only
      rlsched engine slurm --remove
      rlsched engine slurm --partition gpu --shadow --policy easy
    """
    import threading
    import time

    from rlsched.engine.facts import SlurmError
    from rlsched.engine.fallback import Alive, own_uid, plugin
    from rlsched.engine.fallback import release as give_back
    from rlsched.engine.gateway import Gateway
    from rlsched.engine.offers import offer_secret
    from rlsched.engine.ordering import nices_of
    from rlsched.engine.orders import RELEASED, REMOVED, is_held_for_us
    from rlsched.engine.partitions import unlike
    from rlsched.engine.reader import Reader, check_plugin
    from rlsched.engine.steps import Times
    from rlsched.engine.writer import Writer
    from rlsched.errors import InputError
    from rlsched.transport.keys import KeyHome

    if sum((print_lua, release, remove, shadow)) > 1:
        raise InputError("--print-lua, --release, --remove and --shadow: give only one of them")
    if not partitions and not (release or remove):
        raise InputError(
            "--partition: expected at least one Slurm partition to schedule or follow; `sinfo` lists them"
        )
    if shadow:
        from rlsched.cli.operators.shadow import follow

        place = directory or _SHADOW_DIRECTORY
        return follow(
            ctx,
            Reader(partitions, rest=slurmrestd),
            place,
            poll_s or 10.0,
            history,
            preempt=preempt,
            log_format=log_format,
        )
    directory, poll_s = directory or _DIRECTORY, poll_s or 1.0
    reader, alive = Reader(partitions, rest=slurmrestd), Alive(directory)
    config = reader.check()
    writer = Writer()
    if remove or (release and alive.age_s(time.time()) >= release_after_s):
        if remove:
            alive.mark_removed()
            time.sleep(WRITTEN_S)
        count = give_back(reader, writer, why=REMOVED if remove else RELEASED)
        click.echo(f"{count} waiting jobs were released to Slurm's own order")
        if remove:
            click.echo("no new jobs are held, and the gateway exits; remove lua from JobSubmitPlugins")
        return 0
    if release:
        click.echo(
            f"a gateway is running: its last heartbeat is {alive.age_s(time.time()):.0f} s old", err=True
        )
        return 0
    times = Times(release_after_s=release_after_s)
    if priority_only and (preempt or print_lua):
        raise InputError(
            "--priority-only: omit --preempt and --print-lua, because this mode holds and stops no jobs"
        )
    gateway = Gateway(
        name,
        config.get("ClusterName", "slurm"),
        partitions,
        writer,
        times,
        preempts=preempt,
        secret=b"" if print_lua else offer_secret(KeyHome(keys).engine(name)),
        nices=nices_of(config) if priority_only else None,
        sm_clocks_mhz=_clocks(sm_clocks_mhz),
    )
    try:
        first = reader.facts()
    except SlurmError as error:
        raise InputError(str(error)) from error
    if print_lua:
        uid = own_uid() if gateway_user is None else _uid(gateway_user)
        click.echo(
            plugin(partitions, directory, release_after_s, uid, exact=gateway.is_exact(first)), nl=False
        )
        return 0
    if not priority_only:
        check_plugin(config)
    elif any(is_held_for_us(job, partitions) for job in first.jobs.values()):
        raise InputError(
            "--priority-only: jobs are still held by a gateway that ran without this option; release them "
            "first with `rlsched engine slurm --remove`"
        )
    for line in unlike(first, partitions, "hand over") if not priority_only else ():
        raise InputError(line)
    from rlsched.engine.gateway_loop import Link, locked, serve
    from rlsched.engine.rights import check_rights
    from rlsched.signals import on_signals
    from rlsched.transport.dealer import broker_addresses

    check_rights(config)
    set_up(log_format)
    held = locked(directory)
    alive.begin()
    link = Link(broker_addresses(broker), KeyHome(keys), name)
    stop = threading.Event()
    what = "nodes and exact GPUs" if gateway.is_exact(first) else "nodes, and Slurm the GPUs on them"
    what = "the order, and Slurm nodes and GPUs" if priority_only else what
    click.echo(
        f"rlsched engine ready: Slurm {config['SLURM_VERSION']} cluster {gateway.cluster}, partitions "
        f"{', '.join(partitions)}; rlsched decides {what}",
        err=True,
    )
    sys.stderr.flush()
    try:
        with on_signals(lambda *_: stop.set()):
            serve(gateway, reader, link, alive, poll_s, stop, first)
    finally:
        link.close()
        del held
    return 0


def _clocks(text: str) -> tuple[int, ...]:
    """Return the SM clocks in the text of `--sm-clocks-mhz`, MHz, highest first.

    Raises:
        InputError: a clock is not a number of MHz.
    """
    from rlsched.errors import InputError

    words = [word.strip() for word in text.split(",")] if text else []
    if not all(word.isdecimal() and 0 < int(word) < 100_000 for word in words):
        raise InputError(
            f"--sm-clocks-mhz {text!r}: expected clocks in MHz separated by commas, such as 1980,1395"
        )
    return tuple(sorted({int(word) for word in words}, reverse=True))


def _uid(user: str) -> int:
    import pwd

    from rlsched.errors import InputError

    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        raise InputError(f"--gateway-user {user!r}: there is no such user on this machine") from None
