"""`rlsched evaluate`: replays a trace under several policies and compares them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rlsched.cli.shared.options import HTML, MODELS
from rlsched.cli.shared.policies import PolicyCommand, given_policies, policies_option, setting
from rlsched_agents.cli.ray_options import ray_options

if TYPE_CHECKING:
    from pathlib import Path


@click.command(cls=PolicyCommand)
@click.option("--trace", required=True, metavar="T", help="Trace to replay: .csv, .csv.gz or .parquet.")
@click.option(
    "--cluster", required=True, metavar="C", help="Cluster file (TOML): nodes, placement, failures."
)
@policies_option(
    "Policy to replay: a name that `rlsched policies` lists, a TOML file, a trained policy (ppo:PATH, "
    "sb3:PATH), or your own code (FILE.py[:NAME]); may be repeated.",
    required=True,
)
@setting
@click.option(
    "--baseline",
    metavar="NAME",
    help="Name of the policy that the other policies are compared with. [default: the first --policy]",
)
@click.option(
    "--nodes",
    type=click.IntRange(1, 1_000_000),
    metavar="N",
    help="Number of nodes; replaces the number in the cluster file.",
)
@click.option(
    "--load",
    type=float,
    metavar="L",
    help="Scale the number of nodes of each VC (virtual cluster) so that the offered load, requested GPU "
    "time / available GPU time, is L.",
)
@click.option(
    "--since",
    type=float,
    metavar="S",
    help="Report only on jobs submitted at or after second S of the trace; the replay starts 7 days earlier.",
)
@click.option(
    "--until", type=float, metavar="S", help="Report only on jobs submitted before second S of the trace."
)
@click.option(
    "--seed",
    "seeds",
    type=click.IntRange(min=0),
    multiple=True,
    default=(0,),
    metavar="K",
    help="Random seed of the policies; may be repeated, and the report then contains means over the seeds. "
    "[default: 0]",
)
@MODELS
@click.option(
    "--profiles",
    metavar="STORE",
    help="With --models: simulate jobs with the GPU use, the GPU memory and the speeds on shared GPUs that "
    "a broker has measured. STORE is the directory or the journal of that broker.",
)
@click.option(
    "--prediction",
    metavar="KIND",
    help="Predictor of run times if the trace has no predictions: hedge (weighted average of several "
    "predictors) or running-mean. [default: hedge if the trace names users, jobs or commands, else "
    "running-mean]",
)
@click.option(
    "--objective",
    metavar="O",
    help="Also report the cost of each policy by this objective, relative to the baseline: balanced, bill, "
    "carbon, peak, small-first, or a TOML file with weights, classes of jobs and bounds "
    "(docs/how-to/train.md).",
)
@click.option("--json", "json_path", metavar="FILE", help="Write the report to this file, as JSON.")
@HTML
@click.option(
    "--jobs-out",
    metavar="DIR",
    help="Write all jobs and all attempts (starts of jobs) to this directory, as CSV files.",
)
@click.option(
    "--records",
    metavar="DIR",
    help="Write all decisions to this directory, for `rlsched explain` and `rlsched board`.",
)
@click.option(
    "--logdir", metavar="DIR", help="Write curves and decisions to this directory, for TensorBoard."
)
@ray_options("replays")
@click.pass_context
def evaluate(
    ctx: click.Context,
    trace: str,
    cluster: str,
    policies: tuple[str, ...],  # noqa: ARG001 - `given_policies` passes these two together
    changes: tuple[str, ...],  # noqa: ARG001
    baseline: str | None,
    nodes: int | None,
    load: float | None,
    since: float | None,
    until: float | None,
    seeds: tuple[int, ...],
    models: str | None,
    profiles: str | None,
    prediction: str | None,
    objective: str | None,
    json_path: str | None,
    html_path: Path | None,
    jobs_out: str | None,
    records: str | None,
    logdir: str | None,
    workers: int | None,
    ray: str | None,
) -> None:
    """Replay a trace under several policies and compare them.

    \b
    Example:
      rlsched evaluate --trace t.csv.gz --cluster c.toml --policy fifo --policy tuned --load 0.9
      rlsched evaluate --trace t.csv.gz --cluster c.toml --models --policy pack --policy ours.toml
      rlsched evaluate --trace t.csv.gz --cluster c.toml --policy easy --policy easy --set order=area
    """
    import os

    from rich.console import Console

    from rlsched.errors import InputError
    from rlsched_agents.evaluate.run import distinct
    from rlsched_agents.evaluate.simulate import simulate
    from rlsched_agents.evaluate.tables import TABLE_WIDTH, print_report

    if html_path is not None:
        import rlsched_agents.evaluate.page  # noqa: F401 - reports a missing extra before the long run
    chosen = distinct(one.policy for one in given_policies(ctx))
    names = [one.name for one in chosen]
    if baseline is not None and baseline not in names:
        raise InputError(f"--baseline {baseline!r} is not among the policies: {', '.join(names)}")
    at_once = 0 if ray is not None else len(os.sched_getaffinity(0))
    runs = simulate(
        trace,
        cluster,
        chosen,
        load=load,
        nodes=nodes,
        since_s=since,
        until_s=until,
        seeds=seeds,
        models=models,
        profiles=profiles,
        prediction=prediction,
        objective=objective,
        records=records,
        logdir=logdir,
        workers=workers or at_once,
        ray=ray,
        progress=True,
    )
    notes = Console(stderr=True, highlight=False)
    if load is not None:
        notes.print(
            f"load {load:g} asked for, {runs.load_frac:.3f} on {runs.cluster.num_nodes} nodes, "
            f"{runs.cluster.num_gpus} GPUs"
        )
    if json_path is not None:
        runs.to_json(json_path, baseline)
    if html_path is not None:
        runs.to_html(html_path, baseline)
    if jobs_out is not None:
        runs.write_jobs(jobs_out)
    console = Console()
    if not console.is_terminal:
        console = Console(width=TABLE_WIDTH)
    print_report(runs.compare(baseline), console)
    for line in runs.rejected:
        notes.print(line, markup=False)
