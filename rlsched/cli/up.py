"""`rlsched up`: a whole local cluster in the foreground."""

from __future__ import annotations

from pathlib import Path

import click

from rlsched.cli.options import deciding, listening


@click.command()
@click.option("--nodes", default=2, show_default=True, type=click.IntRange(min=1, max=64), help="Nodes.")
@click.option(
    "--gpus", default=4, show_default=True, type=click.IntRange(min=1, max=64), help="Simulated GPUs on each."
)
@deciding
@listening
@click.option(
    "--dir",
    "directory",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Journal, logs and job output. [default: HOME/up]",
)
def up(
    nodes: int,
    gpus: int,
    policy: str,
    fallback: str | None,
    decision_budget_ms: float,
    search_ms: float | None,
    grace_s: float,
    speed_energy: float,
    reclock_s: float | None,
    prediction: str | None,
    logdir: Path | None,
    address: str | None,
    directory: Path | None,
    keys: Path | None,
) -> int:
    """Start a whole local cluster in the foreground; Ctrl-C takes it down, jobs included.

    Started again on the same directory, it goes on with the jobs that were waiting or were ended with it.

    \b
    Example:
      rlsched up --nodes 2 --gpus 4
      rlsched submit --wait -- nvidia-smi       # in another terminal
    """
    from rlsched.broker.keys import default_home
    from rlsched.client.local import LocalCluster
    from rlsched.wire.dealer import broker_address

    home = (keys or default_home()).absolute()
    options = ["--policy", policy, "--decision-budget-ms", str(decision_budget_ms)]
    options += ["--grace-s", str(grace_s), "--speed-energy", str(speed_energy)]
    options += ["--fallback", fallback] if fallback else []
    options += ["--search-ms", str(search_ms)] if search_ms is not None else []
    options += ["--reclock-s", str(reclock_s)] if reclock_s is not None else []
    options += ["--prediction", prediction] if prediction else []
    options += ["--logdir", str(logdir.absolute())] if logdir else []
    cluster = LocalCluster(
        directory=(directory or home / "up").absolute(),
        keys=home,
        address=broker_address(address),
        nodes=nodes,
        gpus=gpus,
        broker_options=options,
    )
    return cluster.run(click.echo)
