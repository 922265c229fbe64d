"""`rlsched trace`: describes, converts and generates traces (tables of jobs), and predicts run times."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import click

from rlsched.cli.shared.options import PATH, SCALED_NODES, TRACE_OUT, json_option, seed_option, shown
from rlsched.cli.traces.convert import convert
from rlsched.cli.traces.predict import predict
from rlsched.terminal.show import in_words, percent, print_json, print_table

_HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


@click.group(context_settings=_HELP)
def trace() -> None:
    """Describe, convert and generate traces, which are tables of jobs, and predict run times.

    \b
    Example:
      rlsched trace synth --like philly --jobs 5000 --load 0.9 --gpus 64 -o t.csv.gz --cluster-out c.toml
      rlsched trace describe t.csv.gz --cluster c.toml
    """


trace.add_command(predict)


@trace.command()
@click.argument("file", metavar="TRACE", type=PATH)
@click.option(
    "--cluster",
    type=PATH,
    help="Cluster file (TOML); the output then also has the load on this cluster, and the jobs that can "
    "never run.",
)
@SCALED_NODES
@click.option(
    "--load",
    type=float,
    help="Scale the cluster so that the offered load (requested GPU time / available GPU time) is about "
    "this value.",
)
@json_option("Print JSON: all figures of the text, and more.")
@click.option(
    "--html",
    type=PATH,
    help="Write the description to this file, as one self-contained web page with plots (needs "
    "rlsched[report]).",
)
@click.option(
    "--origin",
    type=click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S"]),
    help="Wall-clock time at which the trace begins (its second 0), from which hours and weekdays are "
    "computed. [default: the column origin of the trace]",
)
def describe(
    file: Path,
    cluster: Path | None,
    nodes: int | None,
    load: float | None,
    as_json: bool,
    html: Path | None,
    origin: datetime | None,
) -> None:
    """Describe a trace: sizes, durations, arrivals, GPU-time, waiting, failures, and load on a cluster.

    If the trace lacks data for a section, the section names the missing column.

    \b
    Example:
      rlsched trace describe t.csv.gz
      rlsched trace describe t.csv.gz --cluster c.toml --nodes 12 --json
      rlsched trace describe t.csv.gz --cluster c.toml --html report.html
    """
    from rlsched.cluster.spec import ClusterSpec
    from rlsched.workload.describe import describe as report_on
    from rlsched.workload.load import nodes_for_load, scaled_to_nodes
    from rlsched.workload.trace import Trace

    if cluster is None and (nodes is not None or load is not None):
        raise click.UsageError("--nodes and --load scale a cluster: use them together with --cluster")
    if nodes is not None and load is not None:
        raise click.UsageError("give --nodes or --load, not both")
    if html is not None:
        from rlsched.report.page import (
            write_page,
        )  # before a long read, so that a missing extra is reported immediately
    jobs = Trace.read(file)
    spec = ClusterSpec.read(cluster) if cluster else None
    if spec is not None and nodes is not None:
        spec = scaled_to_nodes(spec, nodes)
    if spec is not None and load is not None:
        spec = nodes_for_load(jobs, spec, load)
    report = report_on(jobs, spec, origin)
    if html is not None:
        sections = write_page(report, html)
        lacking = [one.title for one in sections if one.lacks]
        without = f"; without data: {', '.join(lacking)}" if lacking else ""
        click.echo(f"{html}: {len(sections)} sections{without}", err=as_json)
    if as_json:
        print_json(report)
    elif html is None:
        _print_report(report)


trace.add_command(convert)


@trace.command()
@shown(
    "--like",
    type=click.Choice(["helios", "philly", "itp", "acme"]),
    default="helios",
    help="Published trace to imitate; acme: an LLM cluster with a few jobs of hundreds of GPUs.",
)
@shown("--jobs", type=click.IntRange(2, 100_000_000), default=5000, help="Number of jobs.")
@shown(
    "--load",
    type=float,
    default=0.9,
    help="Offered load: sum of duration x GPUs of all jobs, divided by GPUs of the cluster x span of the "
    "trace.",
)
@shown("--gpus", type=click.IntRange(min=1), default=64, help="Number of GPUs in the cluster.")
@shown("--gpus-per-node", type=click.IntRange(min=1), default=8, help="Number of GPUs per node.")
@seed_option("Random seed; the same seed gives the same file.")
@shown(
    "--predictability",
    default="none",
    metavar="LEVEL",
    help="Accuracy of the predicted durations in the trace: none (no predictions), causal (as if predicted "
    "from earlier jobs), informative (more accurate), or a number, the standard deviation of ln(true / "
    "predicted).",
)
@click.option(
    "--habit",
    type=click.FloatRange(0.0, 1.0),
    help="Fraction of the variance of run times that user and job name explain, 0 to 1.  [default: as in the "
    "imitated trace, where it is small]",
)
@TRACE_OUT
@click.option("--cluster-out", type=PATH, help="Cluster file (TOML) to write.")
def synth(
    like: str,
    jobs: int,
    load: float,
    gpus: int,
    gpus_per_node: int,
    seed: int,
    predictability: str,
    habit: float | None,
    out: Path,
    cluster_out: Path | None,
) -> None:
    """Generate a synthetic trace, and the cluster on which the trace has the requested load.

    The parameters are fitted to real traces, or match published figures. docs/explanation/workload.md lists
    the sources, the accuracy of the match, and the assumptions.

    \b
    Example:
      rlsched trace synth --like helios --jobs 2000 --load 0.9 --gpus 64 --gpus-per-node 8 --seed 1 \\
          --predictability informative -o t.csv.gz --cluster-out c.toml
    """
    from rlsched.workload.load import offered_load
    from rlsched.workload.predictability import parse_predictability
    from rlsched.workload.synth import synthesize

    drawn, spec = synthesize(
        like, jobs, load, gpus, gpus_per_node, seed, parse_predictability(predictability), habit
    )
    drawn.write(out)
    if cluster_out is not None:
        spec.write(cluster_out)
    click.echo(
        f"{out}: {len(drawn):,} {like}-like jobs over {in_words(float(drawn.submit_s[-1]))}, "
        f"load {offered_load(drawn, spec):.3f} on {spec.num_nodes} nodes of {gpus_per_node} GPUs"
    )


def _print_report(report: dict[str, Any]) -> None:
    """Print the report of `workload.describe` as text."""
    facts = [
        f"{report['jobs']:,} jobs over {in_words(report['span_s'])}",
        f"{report['gpu_time_h']:,.0f} GPU-hours",
    ]
    if report["gpus_in_demand_mean"] is not None:
        facts.append(f"{report['gpus_in_demand_mean']:,.1f} GPUs in demand on average")
    facts += [f"{report[key]} {key}" for key in ("users", "vcs") if report[key]]
    click.echo(f"{report['trace']}: " + ", ".join(facts))
    total = {
        "gpus": "all",
        "jobs": report["jobs"],
        "jobs_frac": 1.0,
        "gpu_time_frac": 1.0,
        **report["durations"],
    }
    print_table(
        "Jobs by size",
        ("GPUs", "jobs", "of jobs", "of GPU-time", "median", "mean", "p99", "longest"),
        [
            (
                row["gpus"],
                f"{row['jobs']:,}",
                percent(row["jobs_frac"]),
                percent(row["gpu_time_frac"]),
                *(in_words(row[key]) for key in ("p50_s", "mean_s", "p99_s", "max_s")),
            )
            for row in [*report["sizes"], total]
        ],
    )
    arrivals = report["arrivals"]
    rate = arrivals["per_day_mean"]
    print_table(
        "Busiest hours" + (f" ({rate:,.0f} jobs a day on average)" if rate is not None else ""),
        ("from", "jobs", "GPU-hours submitted"),
        [
            (
                _when(hour["start_s"], report["clock"]["origin"]),
                f"{hour['jobs']:,}",
                f"{hour['gpu_time_h']:,.0f}",
            )
            for hour in arrivals["busiest_hours"]
        ],
    )
    waiting = report["waiting"]
    if "missing" not in waiting:
        click.echo(
            f"Waiting of {waiting['jobs']:,} jobs: median {in_words(waiting['p50_s'])}, mean "
            f"{in_words(waiting['mean_s'])}, p99 {in_words(waiting['p99_s'])}\n"
        )
    outcomes = report["outcomes"]
    if "missing" not in outcomes:
        shares = [
            f"{row['outcome']} {percent(row['jobs_frac'])} ({percent(row['gpu_time_frac'])} of the GPU-time)"
            for row in outcomes["outcomes"]
        ]
        click.echo(f"Ended: {'; '.join(shares)}\n")
    predictions = report["predictions"]
    if predictions:
        rank = predictions["spearman"]
        click.echo(
            f"Predictions for {predictions['jobs']:,} jobs: Spearman "
            f"{'-' if rank is None else f'{rank:.2f}'}, sd of ln(true / predicted) "
            f"{predictions['ln_error_sd']:.2f}\n"
        )
    if "cluster" in report:
        _print_cluster(report["cluster"])


def _when(at_s: float, origin: str | None) -> str:
    """Return a time of the trace as text: wall-clock time if the origin is known, else days from second 0."""
    if origin is None:
        return f"day {at_s / 86400:.2f}"
    return f"{datetime.fromisoformat(origin) + timedelta(seconds=at_s):%a %Y-%m-%d %H:%M}"


def _print_cluster(cluster: dict[str, Any]) -> None:
    load = cluster["load_frac"]
    click.echo(
        f"Against {cluster['cluster']} ({cluster['nodes']:,} nodes, {cluster['gpus']:,} GPUs): "
        f"offered load {'unknown (all at one instant)' if load is None else f'{load:.3f}'}, "
        f"{cluster['never_run']:,} jobs can never run"
    )
    if cluster["never_run"]:
        print_table(
            "Can never run",
            ("why", "jobs"),
            [(why, f"{count:,}") for why, count in cluster["never_run_by_reason"].items()],
        )
    if cluster["by_vc"]:
        print_table(
            "By VC",
            ("VC", "GPUs", "jobs", "offered load"),
            [
                (
                    row["vc"],
                    f"{row['gpus']:,}",
                    f"{row['jobs']:,}",
                    "-" if row["load_frac"] is None else f"{row['load_frac']:.3f}",
                )
                for row in cluster["by_vc"]
            ],
        )
