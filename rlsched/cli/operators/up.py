"""`rlsched up`: run a whole local cluster in the foreground."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from rlsched.cli.shared.policies import PolicyCommand, given_policies
from rlsched.cli.shared.serving_options import deciding, listening
from rlsched.terminal.show import count


@click.command(cls=PolicyCommand)
@click.option("--nodes", default=2, show_default=True, type=click.IntRange(min=1, max=64), help="Nodes.")
@click.option(
    "--gpus",
    default=4,
    show_default=True,
    type=click.IntRange(min=1, max=64),
    help="Simulated GPUs per node.",
)
@click.option(
    "--gpu-type",
    default="generic",
    show_default=True,
    metavar="TYPE,...",
    help="GPU model, which jobs may request; several are given to the nodes in turn.",
)
@deciding
@listening
@click.option(
    "--dir",
    "directory",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Directory of the journal, logs and job output. [default: HOME/up]",
)
@click.pass_context
def up(
    ctx: click.Context,
    nodes: int,
    gpus: int,
    gpu_type: str,
    policy: str,  # noqa: ARG001 - read together by `given_policies`
    fallback: str | None,  # noqa: ARG001
    changes: Sequence[str],  # noqa: ARG001
    decision_budget_ms: float,
    grace_s: float,
    max_grace_s: float | None,
    speed_energy: float,
    shares: bool,
    prediction: str | None,
    logdir: Path | None,
    address: str | None,
    directory: Path | None,
    keys: Path | None,
) -> int:
    """Start a whole local cluster in the foreground; Ctrl-C stops it, jobs included.

    Restarted on the same directory, it continues with the jobs that waited or were ended by the stop.

    \b
    Example:
      rlsched up --nodes 2 --gpus 4
      rlsched submit --wait -- nvidia-smi       # in another terminal
    """
    click.echo(f"starting a broker and {count(nodes, 'node')}", err=True)
    from rlsched.broker.base.abilities import not_live
    from rlsched.transport.dealer import broker_address
    from rlsched.transport.keys import default_home
    from rlsched.transport.starting import Starting

    home = (keys or default_home()).absolute()
    word = Starting(home, broker_address(address))
    word.report_step("`rlsched up` has just started")
    from rlsched.client.local import LocalCluster

    options = ["--decision-budget-ms", str(decision_budget_ms)]
    for one in given_policies(ctx):
        file = Path(one.text)
        options += [one.option, str(file.absolute()) if one.policy and file.is_file() else one.text]
        options += [word for change in one.changes for word in ("--set", change)]
    options += ["--grace-s", str(grace_s), "--speed-energy", str(speed_energy)]
    options += ["--max-grace-s", str(max_grace_s)] if max_grace_s is not None else []
    options += ["--share"] if shares else []
    options += ["--prediction", prediction] if prediction else []
    options += ["--logdir", str(logdir.absolute())] if logdir else []
    cluster = LocalCluster(
        directory=(directory or home / "up").absolute(),
        keys=home,
        address=broker_address(address),
        nodes=nodes,
        gpus=gpus,
        gpu_types=[one.strip() for one in gpu_type.split(",") if one.strip()],
        broker_options=options,
        note=not_live(shares=shares, speed_energy=speed_energy),
    )
    with word:
        return cluster.run(click.echo, listens=word.remove_report)
