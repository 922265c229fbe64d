"""`rlsched evaluate`: replay a trace under several policies and compare them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from rlsched.cli.policies import PolicyCommand, said, setting

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from rlsched.models.memory import SharingMode
    from rlsched_agents.evaluate.run import Outcome, Task


PLACEMENTS = ("consolidate", "best-fit", "worst-fit", "spread", "fgd")
"""The placement rules of `rlsched.cluster.choose`; a test holds this to them."""


@click.command(cls=PolicyCommand)
@click.option("--trace", "trace_path", required=True, metavar="T", help="Trace: .csv, .csv.gz or .parquet.")
@click.option("--cluster", "cluster_path", required=True, metavar="C", help="Cluster: TOML.")
@click.option(
    "--policy",
    "policies",
    required=True,
    multiple=True,
    metavar="NAME|FILE",
    help="Policy to replay; may be repeated: a name of `rlsched policies`, ppo:PATH, or a TOML or Python "
    "file.",
)
@setting
@click.option("--baseline", metavar="NAME", help="Policy to compare the others with [default: the first].")
@click.option("--nodes", type=click.IntRange(min=1), metavar="N", help="Nodes instead of the cluster's own.")
@click.option("--load", type=float, metavar="L", help="Scale each VC's nodes to this offered load.")
@click.option(
    "--since",
    type=float,
    metavar="S",
    help="Measure jobs submitted from here on, seconds of the trace; the replay starts 7 days earlier.",
)
@click.option("--until", type=float, metavar="S", help="Measure jobs submitted before this.")
@click.option(
    "--placement",
    type=click.Choice(PLACEMENTS),
    default="consolidate",
    show_default=True,
    help="Rule that picks a job's GPUs, the same for all policies.",
)
@click.option(
    "--node-events",
    "node_events_path",
    metavar="FILE",
    help="Nodes that go down, drain and come up: CSV with time,node,event (down, drain, up).",
)
@click.option(
    "--max-retries",
    type=click.IntRange(min=0),
    metavar="N",
    help="How often a job that fails is queued again [default: always].",
)
@click.option(
    "--seed",
    "seeds",
    type=click.IntRange(min=0),
    multiple=True,
    default=(0,),
    show_default=True,
    metavar="K",
    help="Seed of the policies' draws; may be repeated, numbers are then means.",
)
@click.option(
    "--models",
    "with_models",
    is_flag=True,
    help="Model speed and power: sharing, clocks, cores, energy [default: jobs run as the trace says].",
)
@click.option(
    "--assumed-scale",
    type=float,
    metavar="X",
    help="With --models: multiply the catalogue's assumed figures (0.7, 1.3) [default: 1].",
)
@click.option(
    "--workload-seed",
    type=click.IntRange(min=0),
    metavar="K",
    help="With --models: seed of the draw of workloads that the trace does not name [default: 0].",
)
@click.option(
    "--energy-weight",
    type=float,
    metavar="W",
    help="With --models: what energy counts against time for policies that weigh them, 0 to 1 [default: 0].",
)
@click.option(
    "--no-noise", is_flag=True, help="With --models: pairs that were never measured keep to the formula."
)
@click.option(
    "--no-learning",
    is_flag=True,
    help="With --models: what is predicted of pairs stays as modelled, whatever they are seen to do.",
)
@click.option(
    "--power-cap",
    type=float,
    metavar="FRAC",
    help="With --models: cap of every GPU's power, of its board's limit [default: 1].",
)
@click.option(
    "--sharing-mode",
    type=click.Choice(["time-sliced", "mps"]),
    help="With --models: how jobs share a GPU; under MPS a fault of one ends all [default: time-sliced].",
)
@click.option(
    "--power-down",
    metavar="RULE",
    help="With --models: idle nodes sleep: `default`, or `trailing:3h,10` (10 nodes above the highest demand "
    "of 3 h) [default: all nodes stay on].",
)
@click.option("--json", "json_path", metavar="FILE", help="Write the report as JSON.")
@click.option(
    "--jobs-out", metavar="DIR", help="Write every job's start, end and GPUs: NAME.csv and NAME.segments.csv."
)
@click.option("--records", metavar="DIR", help="Write every decision's record: NAME.msgpack.")
@click.option("--logdir", metavar="DIR", help="Write the decisions for TensorBoard.")
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    metavar="N",
    help="Processes to run policies in [default: one a core]; with --ray, tasks at once.",
)
@click.option(
    "--ray",
    "ray_address",
    metavar="ADDRESS",
    help="Run policies on a Ray cluster: `local`, `auto`, HOST:PORT or ray://HOST:PORT (extra `ray`).",
)
@click.pass_context
def evaluate(
    ctx: click.Context,
    trace_path: str,
    cluster_path: str,
    policies: tuple[str, ...],  # noqa: ARG001 - these two come together, from `said`
    changes: tuple[str, ...],  # noqa: ARG001
    baseline: str | None,
    nodes: int | None,
    load: float | None,
    since: float | None,
    until: float | None,
    placement: str,
    node_events_path: str | None,
    max_retries: int | None,
    seeds: tuple[int, ...],
    with_models: bool,
    assumed_scale: float | None,
    workload_seed: int | None,
    energy_weight: float | None,
    no_noise: bool,
    no_learning: bool,
    power_cap: float | None,
    sharing_mode: SharingMode | None,
    power_down: str | None,
    json_path: str | None,
    jobs_out: str | None,
    records: str | None,
    logdir: str | None,
    workers: int | None,
    ray_address: str | None,
) -> None:
    """Replay a trace under several policies and compare them.

    Rules replay tens of thousands of jobs a second, compiled; other policies take one decision at a time.
    With records or a log folder, every policy does.

    \b
    Example:
      rlsched evaluate --trace t.csv.gz --cluster c.toml --policy fifo-backfill --policy qssf-backfill \\
          --policy ppo --load 0.9 --json out.json
      rlsched evaluate --trace t.csv.gz --cluster c.toml --models --policy qssf-backfill --policy pack \\
          --set share.min_speed=0.7
      rlsched evaluate --trace t.csv.gz --cluster c.toml --policy ppo --seed 0 --seed 1 --ray HOST:6379
    """
    import os
    from functools import partial

    from rich.console import Console

    from rlsched.cluster.spec import ClusterSpec
    from rlsched.errors import InputError
    from rlsched.workload.load import offered_load
    from rlsched.workload.trace import Trace
    from rlsched_agents.evaluate.jobs_out import seed_stem, write_jobs
    from rlsched_agents.evaluate.modelled import make_models
    from rlsched_agents.evaluate.report import build_report, rejected_lines, write_json
    from rlsched_agents.evaluate.run import check_policies, distinct, replay_tasks, run_tasks, stamps_for
    from rlsched_agents.evaluate.tables import print_report
    from rlsched_agents.evaluate.windows import scaled_cluster, window_of
    from rlsched_envs.attempt_log import RunRules
    from rlsched_envs.node_events import read_node_events

    if ray_address is not None:
        from rlsched_agents.evaluate.ray_sweep import run_on_ray

        sweep = partial(run_on_ray, address=ray_address, workers=workers)
    else:
        sweep = partial(run_tasks, workers=workers or len(os.sched_getaffinity(0)))
    chosen = distinct(one.policy for one in said(ctx))
    names = [one.name for one in chosen]
    if baseline is not None and baseline not in names:
        raise InputError(f"--baseline {baseline!r} is not among the policies: {', '.join(names)}")
    for flag, given in (
        ("--assumed-scale", assumed_scale is not None),
        ("--workload-seed", workload_seed is not None),
        ("--energy-weight", energy_weight is not None),
        ("--no-noise", no_noise),
        ("--no-learning", no_learning),
        ("--power-cap", power_cap is not None),
        ("--sharing-mode", sharing_mode is not None),
        ("--power-down", power_down is not None),
    ):
        if given and not with_models:
            raise InputError(f"{flag} sets the models of a run with --models; add --models, or leave it out")
    models = None
    if with_models:
        models = make_models(
            assumed_scale,
            workload_seed,
            energy_weight,
            noise=not no_noise,
            learn=not no_learning,
            power_cap_frac=power_cap,
            sharing_mode=sharing_mode or "time-sliced",
            power_down=power_down,
        )
    check_policies(chosen, models)
    notes = Console(stderr=True, highlight=False)
    trace = Trace.read(trace_path)
    window = window_of(trace, since, until)
    spec = scaled_cluster(trace, ClusterSpec.read(cluster_path), window, nodes=nodes, load=load)
    if load is not None:
        got = offered_load(trace.select(window.measured(trace)), spec)
        notes.print(f"load {load:g} asked for, {got:.3f} on {spec.num_nodes} nodes, {spec.num_gpus} GPUs")
    seeds = tuple(dict.fromkeys(seeds))
    node_events = read_node_events(node_events_path, spec) if node_events_path is not None else ()
    tasks = replay_tasks(
        trace,
        spec,
        window,
        stamps_for(chosen, trace, spec, window, looked_at=with_models or bool(records or logdir)),
        chosen,
        list(seeds),
        records=Path(records) if records else None,
        logdir=Path(logdir) if logdir else None,
        rules=RunRules(max_retries=max_retries, node_events=node_events),
        placement=placement,
        models=models,
    )
    outcomes = _run(tasks, sweep, notes)
    report = build_report(trace, spec, window, list(seeds), outcomes, baseline, models)
    if json_path is not None:
        write_json(report, json_path)
    if jobs_out is not None:
        for one in outcomes:
            write_jobs(
                one.table,
                spec,
                window.measured(one.table.trace),
                jobs_out,
                seed_stem(one.policy.name, one.seed, seeds),
            )
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)
    print_report(report, console)
    for line in rejected_lines(outcomes[0].table, window.measured(outcomes[0].table.trace)):
        notes.print(line, markup=False)


def _run(tasks: list[Task], sweep: Callable[..., list[Outcome]], notes: Console) -> list[Outcome]:
    """Run the tasks under a bar each, on standard error and only for people."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        console=notes,
        transient=True,
        disable=not notes.is_terminal,
    ) as bars:
        several = len({task.seed for task in tasks}) > 1
        bar_of = {
            (task.policy.name, task.seed): bars.add_task(
                f"{task.policy.name} seed {task.seed}" if several else task.policy.name, total=1.0
            )
            for task in tasks
        }

        def show(policy: str, seed: int, done: float) -> None:
            bars.update(bar_of[policy, seed], completed=done)

        return sweep(tasks, progress=show)
