"""The verb `rlsched node`, which runs the node daemon."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from rlsched.cli.operators.nodes import down, drain, remove, resume
from rlsched.cli.shared.options import BROKER, HOME, PATH, directory_option, shown
from rlsched.cli.shared.serving_options import LOG_FORMAT
from rlsched.errors import InputError
from rlsched.logs import LogFormat, set_up

EPILOG = """\b
Example:
  rlsched node --name n0 --gpus 4 --simulated
  rlsched node --broker tcp://127.0.0.1:7461 --name gpu-a --gpu-type h200 --vc research
  rlsched node --name gpu-b --mig-create 0:1g.10gb,1g.10gb,3g.40gb
  rlsched node drain gpu-a --reason "new driver"
"""


@click.group(
    epilog=EPILOG,
    invoke_without_command=True,
    commands={"drain": drain, "resume": resume, "down": down, "remove": remove},
    subcommand_metavar="[drain|resume|down|remove ...]",
)
@BROKER
@click.option("--name", help="Name of this node; its key must have the same name.  [required]")
@click.option(
    "--gpus",
    type=int,
    metavar="N",
    help="Number of GPUs to offer to the broker. [default: all GPUs that NVML lists]",
)
@click.option(
    "--simulated",
    "is_simulated",
    is_flag=True,
    help="Simulate the GPUs instead of using real GPUs through NVML.",
)
@click.option(
    "--simulated-truth",
    type=PATH,
    metavar="FILE",
    hidden=True,
    help="TOML file with figures that replace the catalogue's figures for simulated GPUs; for tests.",
)
@click.option(
    "--replay-gpus",
    type=PATH,
    metavar="FILE",
    help="Read GPU values from this file, which --record-gpus has written, instead of from NVML.",
)
@click.option(
    "--record-gpus",
    type=PATH,
    metavar="FILE",
    help="Write the values that the GPUs report to this file, once a second; --replay-gpus reads the file.",
)
@click.option(
    "--no-gpm",
    is_flag=True,
    help="Do not read GPU performance monitoring (GPM). Needed if a DCGM exporter reads the same counters.",
)
@click.option(
    "--gpu-type",
    metavar="TYPE",
    help="GPU model that jobs name to request these GPUs. MODEL/PROFILE, such as h100-80gb/1g.10gb, offers "
    "the MIG instances of this profile. [default: the model that NVML reports]",
)
@click.option(
    "--mig-create",
    multiple=True,
    metavar="GPU:PROFILE,...",
    help="Create MIG instances of these profiles at the start, on the GPU with this number or on all GPUs "
    "(all:PROFILE,...); destroy them at the exit if no job runs. Requires root, and GPUs in MIG mode; may be "
    "repeated. [default: only existing instances are used]",
)
@shown(
    "--sharing",
    type=click.Choice(["time-slicing", "mps"]),
    default="time-slicing",
    help="How jobs share a GPU if the broker permits sharing (`rlsched broker --share`): in alternating time "
    "slices (time-slicing), or simultaneously under NVIDIA MPS (mps).",
)
@click.option(
    "--torch-memory-limit",
    is_flag=True,
    help="Under time slicing, limit the GPU memory of PyTorch in jobs that can share GPUs to the memory that "
    "the job needs, as requested or learnt. The daemon sets PYTORCH_ALLOC_CONF in these jobs "
    "(per_process_memory_fraction), which torch 2.13 reads; earlier versions may fail.",
)
@click.option(
    "--vc",
    default="",
    help="Virtual cluster that owns this node. [default: none; the node serves all virtual clusters]",
)
@directory_option(
    "Directory for output and records of jobs. [default: nodes/NAME in the directory of --keys]"
)
@HOME
@click.option(
    "--host",
    default="",
    metavar="ADDR",
    help="Address at which other nodes reach this node, for jobs on several nodes. [default: the address "
    "that the broker sees]",
)
@click.option(
    "--forget-cluster",
    is_flag=True,
    help="If jobs of another cluster run on this node, end them and join the broker's cluster immediately. "
    "[default: the jobs continue, and the node joins after they have ended]",
)
@click.option(
    "--end-jobs-on-exit",
    "--end-jobs",
    "end_jobs",
    is_flag=True,
    help="End the jobs when this daemon stops. [default: the jobs continue, and the next daemon adopts them]",
)
@shown(
    "--max-output-mib",
    type=click.IntRange(min=0),
    default=1024,
    metavar="N",
    help="Maximum output that is stored for each rank of a job, MiB; of longer output, the first and the "
    "last part are kept. 0 stores all output.",
)
@click.option(
    "--min-free-mib",
    type=click.IntRange(min=0),
    metavar="N",
    help="Free space that the disk of --dir must have to start a job, MiB. [default: 1024, or 5 % of the "
    "disk if that is less]",
)
@click.option(
    "--max-processes",
    type=click.IntRange(min=0),
    metavar="N",
    help="Maximum number of processes and threads of each rank of a job; 0 sets no limit. [default: 16384, "
    "or half of the kernel's limit if that is lower]",
)
@shown(
    "--keep-output-days",
    type=click.FloatRange(min=0.0),
    default=30.0,
    metavar="D",
    help="Days for which the output of a finished job is kept.",
)
@click.option(
    "--pass-env",
    multiple=True,
    metavar="NAME",
    help="Pass this environment variable of the daemon to jobs; may be repeated.",
)
@click.option(
    "--run-as",
    metavar="USER",
    help="Run all jobs as this user; requires a daemon that runs as root. [default: the daemon's user]",
)
@click.option(
    "--run-as-owner",
    is_flag=True,
    help="Run each job as the account of the user who submitted it; requires a daemon that runs as root.",
)
@click.option(
    "--users",
    type=PATH,
    metavar="FILE",
    help='With --run-as-owner: file with a line `user = "account"` for each user whose account on '
    "this node has another name.",
)
@click.option(
    "--allow-root",
    is_flag=True,
    envvar="RLSCHED_ALLOW_ROOT",
    help="Permit a daemon that runs as root to run jobs as root; RLSCHED_ALLOW_ROOT=1 has the same effect.",
)
@click.option(
    "--health-check",
    default="",
    metavar="CMD",
    help="Shell command that checks the node; while it fails, the node gets no new jobs, and the last line "
    "of its output is shown as the reason.",
)
@shown(
    "--health-check-every-s",
    type=click.FloatRange(min=1.0),
    default=60.0,
    metavar="S",
    help="Interval between two starts of the health check, seconds.",
)
@shown(
    "--health-check-timeout-s",
    type=click.FloatRange(min=0.1),
    default=30.0,
    metavar="S",
    help="Time after which the health check is killed and counts as failed, seconds.",
)
@LOG_FORMAT
@click.pass_context
def node(
    ctx: click.Context,
    /,
    broker: str | None,
    name: str | None,
    gpus: int | None,
    is_simulated: bool,
    simulated_truth: Path | None,
    replay_gpus: Path | None,
    no_gpm: bool,
    gpu_type: str | None,
    mig_create: tuple[str, ...],
    directory: Path | None,
    keys: Path | None,
    users: Path | None,
    log_format: LogFormat,
    **config: Any,
) -> None:
    """Offer this machine's GPUs to a broker, and run the jobs that the broker places here.

    Jobs survive a restart of this daemon, and the daemon survives a restart of the broker. A job's output is
    in DIR/attempts/CLUSTER/JOB.ATTEMPT.RANK/output.log, where DIR is --dir. The exit code of a job is its
    command's exit code, or 128 + n after signal n, 124 at the time limit, 126 or 127 if the command cannot be
    run, and 137 if the job disappeared.
    """
    if ctx.invoked_subcommand is not None:
        return
    if simulated_truth is not None and not is_simulated:
        raise InputError("--simulated-truth can be used only together with --simulated")
    if gpus is not None and replay_gpus is not None:
        raise InputError(
            "--gpus has no effect with --replay-gpus, because the recording defines the GPUs: omit --gpus"
        )
    if name is None:
        raise click.UsageError("Missing option '--name'.", ctx)
    set_up(log_format, node=name)
    from rlsched.models.gpu_types import GENERIC
    from rlsched.transport.dealer import broker_addresses
    from rlsched.transport.keys import KeyHome, default_home
    from rlsched_node.config import NodeConfig
    from rlsched_node.daemon import NodeDaemon, run_until_signalled
    from rlsched_node.gpu import open_gpus, type_of
    from rlsched_node.isolation.user import read_users
    from rlsched_node.mig import created_instances, parse_layout

    is_nvml = not is_simulated and replay_gpus is None
    if mig_create and not is_nvml:
        raise InputError("--mig-create needs NVIDIA GPUs: omit --simulated and --replay-gpus")
    layout = parse_layout(mig_create)
    home = keys if keys is not None else default_home()
    address = ",".join(broker_addresses(broker))
    key_home = KeyHome(home)
    pair, broker_public = key_home.node(name), key_home.broker_public()
    at = (directory or home / "nodes" / name).absolute()
    with created_instances(at, name, layout) if is_nvml else nullcontext() as locked:
        opened = open_gpus(
            gpus,
            is_simulated=is_simulated,
            node=name,
            gpu_type=gpu_type or GENERIC,
            replayed=replay_gpus,
            gpm=not no_gpm,
            truth=simulated_truth,
        )
        settings = NodeConfig(
            name=name,
            broker=address,
            directory=at,
            gpu_type=type_of(opened, gpu_type or ""),
            accounts=None if users is None else read_users(users),
            gpm=not no_gpm,
            **config,
        )
        run_until_signalled(NodeDaemon(settings, opened, pair, broker_public, locked))
