"""The verb `rlsched node`."""

from __future__ import annotations

from pathlib import Path

import click

from rlsched.cli.operators.nodes import down, drain, remove, resume
from rlsched.cli.shared.serving_options import LOG_FORMAT
from rlsched.logs import LogFormat, set_up

EPILOG = """\b
Example:
  rlsched node --name n0 --gpus 4 --simulated
  rlsched node --broker tcp://127.0.0.1:7461 --name gpu-a --gpu-type h200 --vc research
  rlsched node drain gpu-a --reason "new driver"
"""


@click.group(
    epilog=EPILOG,
    invoke_without_command=True,
    commands={"drain": drain, "resume": resume, "down": down, "remove": remove},
    subcommand_metavar="[drain|resume|down|remove ...]",
)
@click.option(
    "--broker",
    metavar="ADDRESS",
    help="tcp://HOST:PORT, with commas between several; default: RLSCHED_BROKER, else tcp://127.0.0.1:7461.",
)
@click.option("--name", help="Name of this node, the one in its key.  [required]")
@click.option("--gpus", type=int, metavar="N", help="Offer N GPUs; default: all that NVML shows.")
@click.option("--simulated", "is_simulated", is_flag=True, help="Make up GPUs instead of asking NVML.")
@click.option(
    "--replay-gpus",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Play the GPUs of a recording instead.",
)
@click.option(
    "--record-gpus",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write what the GPUs show, once a second, for --replay-gpus.",
)
@click.option(
    "--no-gpm",
    is_flag=True,
    help="Leave GPU performance monitoring alone: beside a DCGM exporter, both perturb each other.",
)
@click.option(
    "--gpu-type", metavar="TYPE", help="Model of the GPUs, as jobs ask for it; default: as NVML calls it."
)
@click.option("--vc", default="", help="The virtual cluster that owns this node; default: serves every one.")
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where output and records of jobs are kept; default: nodes/NAME below the keys.",
)
@click.option(
    "--keys",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Directory of keys; default: RLSCHED_HOME, else ~/.config/rlsched.",
)
@click.option(
    "--host",
    default="",
    metavar="ADDR",
    help="Where other nodes reach this one, for gangs; default: the address that the broker sees.",
)
@click.option(
    "--forget-cluster",
    is_flag=True,
    help="Where the broker is of another cluster than the jobs that run here: end them and join it. "
    "[default: they go on, and the node joins once they have ended]",
)
@click.option(
    "--end-jobs-on-exit",
    "--end-jobs",
    "end_jobs",
    is_flag=True,
    help="End the jobs when this daemon is stopped; default: they go on for the next to adopt.",
)
@click.option(
    "--max-output-mib",
    type=click.IntRange(min=0),
    default=1024,
    show_default=True,
    metavar="N",
    help="What a job's output may take on disk: its first and its last part are kept; 0: no bound.",
)
@click.option(
    "--min-free-mib",
    type=click.IntRange(min=0),
    metavar="N",
    help="Start nothing with less space on the disk of --dir; default: 1024, or 5 % of a smaller disk.",
)
@click.option(
    "--max-processes",
    type=click.IntRange(min=0),
    metavar="N",
    help="Processes and threads of a job here; 0: no bound  [default: 16384, or half of the kernel's]",
)
@click.option(
    "--keep-output-days",
    type=click.FloatRange(min=0.0),
    default=30.0,
    show_default=True,
    metavar="D",
    help="How long output stays after its job is over.",
)
@click.option(
    "--pass-env",
    multiple=True,
    metavar="NAME",
    help="Give jobs this variable of the node's environment too; may be repeated.",
)
@click.option(
    "--run-as", metavar="USER", help="Run jobs as this user; for a node that is root. Default: as its own."
)
@click.option(
    "--run-as-owner",
    is_flag=True,
    help="Run each job as the account of the person who submitted it; for a node that is root.",
)
@click.option(
    "--users",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help='Lines `person = "account"`, where an account has another name; for --run-as-owner.',
)
@click.option(
    "--allow-root",
    is_flag=True,
    envvar="RLSCHED_ALLOW_ROOT",
    help="A node that is root may run jobs as root; or RLSCHED_ALLOW_ROOT=1.",
)
@click.option(
    "--health-check",
    default="",
    metavar="CMD",
    help="Run this by sh; while it fails, no new jobs come here. Its last line of output says why.",
)
@click.option(
    "--health-check-every-s",
    type=click.FloatRange(min=1.0),
    default=60.0,
    show_default=True,
    metavar="S",
    help="How often.",
)
@click.option(
    "--health-check-timeout-s",
    type=click.FloatRange(min=0.1),
    default=30.0,
    show_default=True,
    metavar="S",
    help="One that takes longer is killed, and has failed.",
)
@LOG_FORMAT
@click.pass_context
def node(
    ctx: click.Context,
    broker: str | None,
    name: str | None,
    gpus: int | None,
    is_simulated: bool,
    replay_gpus: Path | None,
    record_gpus: Path | None,
    no_gpm: bool,
    gpu_type: str | None,
    vc: str,
    directory: Path | None,
    keys: Path | None,
    forget_cluster: bool,
    end_jobs: bool,
    max_output_mib: int,
    min_free_mib: int | None,
    max_processes: int | None,
    keep_output_days: float,
    pass_env: tuple[str, ...],
    host: str,
    run_as: str | None,
    run_as_owner: bool,
    users: Path | None,
    allow_root: bool,
    health_check: str,
    health_check_every_s: float,
    health_check_timeout_s: float,
    log_format: LogFormat,
) -> None:
    """Offer this machine's GPUs to a broker, and run the jobs that it places here.

    Jobs outlive this daemon, and it outlives the broker: either may be killed and started again. A job's
    output is in DIR/attempts/CLUSTER/JOB.ATTEMPT.RANK/output.log. Exit codes of jobs: their own; 128 + n
    after signal n; 124 at the time limit; 126 or 127 when the command cannot be run; 137 when it vanished.
    """
    if ctx.invoked_subcommand is not None:
        return
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

    home = keys if keys is not None else default_home()
    address = ",".join(broker_addresses(broker))
    key_home = KeyHome(home)
    pair, broker_public = key_home.node(name), key_home.broker_public()
    opened = open_gpus(
        gpus,
        is_simulated=is_simulated,
        node=name,
        gpu_type=gpu_type or GENERIC,
        replayed=replay_gpus,
        gpm=not no_gpm,
    )
    config = NodeConfig(
        name=name,
        broker=address,
        directory=(directory or home / "nodes" / name).absolute(),
        gpu_type=gpu_type or type_of(opened),
        vc=vc,
        forget_cluster=forget_cluster,
        end_jobs=end_jobs,
        max_output_mib=max_output_mib,
        min_free_mib=min_free_mib,
        max_processes=max_processes,
        keep_output_days=keep_output_days,
        pass_env=pass_env,
        run_as=run_as,
        run_as_owner=run_as_owner,
        host=host,
        accounts=None if users is None else read_users(users),
        allow_root=allow_root,
        gpm=not no_gpm,
        record_gpus=record_gpus,
        health_check=health_check,
        health_check_every_s=health_check_every_s,
        health_check_timeout_s=health_check_timeout_s,
    )
    run_until_signalled(NodeDaemon(config, opened, pair, broker_public))
