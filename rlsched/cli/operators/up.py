"""`rlsched up`: runs a whole local cluster in the foreground."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from rlsched.cli.shared.options import PATH, directory_option, shown
from rlsched.cli.shared.policies import PolicyCommand
from rlsched.cli.shared.serving_options import as_words, deciding, listening
from rlsched.terminal.show import count


@click.command(cls=PolicyCommand)
@shown("--nodes", default=2, type=click.IntRange(min=1, max=64), help="Number of nodes.")
@shown("--gpus", default=4, type=click.IntRange(min=1, max=64), help="Simulated GPUs per node.")
@shown(
    "--gpu-type",
    default="generic",
    metavar="TYPE,...",
    help="GPU model of the nodes; if several models are given, separated by commas, the nodes get them in "
    "turn.",
)
@click.option(
    "--simulated-truth",
    type=PATH,
    metavar="FILE",
    hidden=True,
    help="TOML file with figures for the simulated nodes' GPUs, instead of the catalogue's; for tests.",
)
@deciding
@listening
@directory_option("Directory of the journal, logs and job output. [default: up in the directory of --keys]")
@click.pass_context
def up(
    ctx: click.Context,
    /,
    nodes: int,
    gpus: int,
    gpu_type: str,
    simulated_truth: Path | None,
    address: str | None,
    directory: Path | None,
    keys: Path | None,
    **decided: Any,
) -> int:
    """Start a local cluster in the foreground: a broker, and nodes with simulated GPUs.

    Ctrl-C stops the cluster and its jobs. If `rlsched up` is started again on the same directory, the cluster
    continues with the jobs that waited or were stopped.

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

    cluster = LocalCluster(
        directory=(directory or home / "up").absolute(),
        keys=home,
        address=broker_address(address),
        nodes=nodes,
        gpus=gpus,
        gpu_types=[one.strip() for one in gpu_type.split(",") if one.strip()],
        broker_options=as_words(ctx, decided),
        node_options=[]
        if simulated_truth is None
        else ["--simulated-truth", str(simulated_truth.absolute())],
        note=not_live(shares=decided["shares"], speed_energy=decided["speed_energy"]),
    )
    with word:
        return cluster.run(click.echo, listens=word.remove_report)
