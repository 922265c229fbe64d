"""`rlsched trace predict`: adds to a trace the run times that are predicted at each job's submission."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlsched.cli.shared.options import PATH, SCALED_NODES, TRACE_OUT, json_option, seed_option, shown
from rlsched.terminal.show import percent, print_json, print_table

if TYPE_CHECKING:
    from rlsched.workload.predict.at_submission import AtSubmission
    from rlsched.workload.trace import Trace


@click.command()
@click.argument("file", metavar="TRACE", type=PATH)
@click.option(
    "--cluster",
    type=PATH,
    help="Cluster file (TOML); the trace is replayed on this cluster under the policy fifo-backfill to find "
    "out when jobs end.",
)
@SCALED_NODES
@click.option(
    "--as-recorded",
    is_flag=True,
    help="Use the end times of jobs in the trace instead of a replay; no cluster is needed.",
)
@TRACE_OUT
@shown(
    "--model",
    default="hedge",
    metavar="NAME",
    help="Predictor: hedge (weighted average of the others), running-mean, nearest, survival or boosting.",
)
@shown(
    "--point",
    type=click.Choice(["mean", "median"]),
    default="median",
    help="Statistic to write as predicted_duration. Policies that preempt by the Gittins index expect the "
    "median. Policies without preemption have shorter waits with the mean.",
)
@seed_option("Random seed for the fits of the predictor.")
@json_option("Print the summary as JSON.")
def predict(
    file: Path,
    cluster: Path | None,
    nodes: int | None,
    as_recorded: bool,
    out: Path,
    model: str,
    point: str,
    seed: int,
    as_json: bool,
) -> None:
    """Predict the run time of every job from the data known at its arrival; write the predictions to a trace.

    Writes the columns predicted_duration, predicted_spread, x_predicted_median_s, and the probabilities of a
    longer run time x_p_longer_10min, _1h, _4h, _1d. A job is predicted only from jobs that ended before its
    arrival; a replay of the trace on the cluster determines when jobs end. Existing predictions are replaced.

    \b
    Example:
      rlsched trace predict t.csv.gz --cluster c.toml -o predicted.csv.gz
      rlsched trace predict t.csv.gz --as-recorded --model running-mean -o predicted.csv.gz
    """
    import time

    from rlsched.cluster.spec import ClusterSpec
    from rlsched.workload.load import scaled_to_nodes
    from rlsched.workload.predict.at_submission import with_predictions
    from rlsched.workload.predict.quality import quality
    from rlsched.workload.predict.reference import recorded_end_s, replayed_end_s
    from rlsched.workload.trace import Trace

    if (cluster is None) == (not as_recorded):
        raise click.UsageError("expected either --cluster or --as-recorded, to get the end times of jobs")
    if nodes is not None and cluster is None:
        raise click.UsageError("--nodes scales a cluster: use it together with --cluster")
    jobs = Trace.read(file)
    if cluster is None:
        end_s = recorded_end_s(jobs)
    else:
        spec = ClusterSpec.read(cluster)
        end_s = replayed_end_s(jobs, scaled_to_nodes(spec, nodes) if nodes is not None else spec)
    began = time.process_time()
    predictions = _with_bar(jobs, end_s, model, seed)
    took_s = time.process_time() - began
    with_predictions(jobs, predictions, point).write(out)
    report = {
        "trace": str(out),
        "model": model,
        "point": point,
        "fits": predictions.fits,
        "cpu_s": round(took_s, 2),
        **quality(predictions.probabilities, jobs.duration_s, jobs.num_gpus),
    }
    if as_json:
        print_json(report)
    else:
        _print_report(report)


def _with_bar(jobs: Trace, end_s: Any, model: str, seed: int) -> AtSubmission:
    """Return the predictions for the jobs of a trace, and show a progress bar meanwhile."""
    from rlsched.terminal.progress import Progress
    from rlsched.workload.predict.at_submission import predict_at_submission

    with Progress() as shown:
        bar = shown.begin("predicting")
        return predict_at_submission(
            jobs, end_s, model=model, seed=seed, progress=lambda done: shown.update(bar, done)
        )


def _print_report(report: dict[str, Any]) -> None:
    """Print the summary of the predictions as text."""
    click.echo(
        f"{report['trace']}: {report['jobs']:,} jobs predicted by {report['model']} "
        f"({report['fits']} fits, {report['cpu_s']:.1f} CPU s); Spearman {_number(report['spearman_mean'])}, "
        f"gangs of 8 and more {_number(report['large_spearman_mean'])}; "
        f"{percent(report['covered_frac'])} inside the 10 to 90 % interval"
    )
    print_table(
        "P(longer)",
        ("than", "were", "predicted", "area under curve"),
        [
            (f"{row['than_s']:,.0f} s", percent(row["true_frac"]), percent(row["predicted_frac"]),
             _number(row["auc"]))
            for row in report["longer"]
        ],
    )  # fmt: skip


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
