"""Value of predictions over many windows of a trace: one test window holds few congested days.

    .venv/bin/python -m studies.predict.windows --out runs/predict

The trace is predicted once, at every arrival from the jobs that had ended by then as recorded, by the running
mean and by the hedge. Six windows, each a tenth of the time, from 40 % on; in each the nodes are scaled to
the load of its jobs, the replay starts 7 days before it, and `qssf-backfill` runs under both predictions and
under true durations. Writes OUT/windows.md.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import numpy as np

from rlsched.cluster.spec import ClusterSpec
from rlsched.workload.load import nodes_for_load
from rlsched.workload.predict import causal_predictions
from rlsched.workload.predict.at_submission import predict_at_submission
from rlsched.workload.predict.distribution import spread_around
from rlsched.workload.predict.reference import recorded_end_s
from rlsched.workload.trace import Trace
from rlsched_agents.evaluate.windows import MeasuredWindow
from rlsched_envs.sim.engine import PredictedTimes
from studies.predict.results import LOADS, REAL, mean_queue_s, run
from studies.predict.tables import markdown, share

WINDOWS = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
MIN_JOBS = 300
"""A window with fewer jobs is left out."""

MIN_QUEUE_S = 60.0
"""A window is also left out if jobs hardly wait under the running mean."""

Queues = tuple[float, float, float]
"""Mean queueing delay under the running mean, the hedge, and true durations, s."""


def queues_of(
    trace: Trace, spec: ClusterSpec, load: float, predictions: list[PredictedTimes]
) -> list[Queues | None]:
    """Return the delays in each window; None for a window that is left out."""
    span_s = float(trace.submit_s[-1])
    out: list[Queues | None] = []
    for since in WINDOWS:
        window = MeasuredWindow(since * span_s, (since + 0.1) * span_s)
        measured = window.measured(trace)
        if measured.sum() < MIN_JOBS:
            out.append(None)
            continue
        scaled = nodes_for_load(trace.select(measured), spec, load)
        first, second, third = (mean_queue_s(run(trace, scaled, window, one), window) for one in predictions)
        out.append((first, second, third) if first > MIN_QUEUE_S else None)
    return out


def gap_of(none: float, got: float, full: float) -> str:
    """Return the closed share of the gap, as text; a gap of less than 2 % of `none` counts as no gap."""
    return share((none - got) / (none - full)) if none - full > 0.02 * none else "no gap"


def row_of(name: str, load: float, queues: list[Queues | None]) -> list[str]:
    """A row of the table: every window's share, and the share of all windows together."""
    none, got, full = np.array([one for one in queues if one is not None]).T
    gaps = ["-" if one is None else gap_of(*one) for one in queues]
    together = float((none - got).sum() / (none - full).sum())
    ratio, best = (float(np.exp(np.log(one / none).mean())) for one in (got, full))
    return [name, f"{load:g}", *gaps, f"**{share(together)}**",
            f"{ratio:.2f}", f"{best:.2f}"]  # fmt: skip


def main() -> None:
    """Read the command line, predict, replay, write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/predict"), help="folder of the table")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="only these traces")
    arguments = parser.parse_args()
    traces = Path(os.environ.get("RLSCHED_DATA", "../shared")) / "traces"
    arguments.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in arguments.only or REAL:
        trace = Trace.read(traces / f"{name}.csv.gz")
        spec = ClusterSpec.read(traces / f"{name}.cluster.toml")
        end_s = recorded_end_s(trace)
        hedge = predict_at_submission(trace, end_s)
        predictions = [
            PredictedTimes(*causal_predictions(trace, end_s)),
            PredictedTimes(hedge.median_s, spread_around(hedge.probabilities, hedge.median_s)),
            PredictedTimes(trace.duration_s, np.zeros(len(trace))),
        ]
        for load in LOADS:
            rows.append(row_of(name, load, queues_of(trace, spec, load, predictions)))
            print(rows[-1], file=sys.stderr)
    head = ("trace", "load", *(f"{100 * since:.0f} %" for since in WINDOWS), "of the gap, all",
            "queueing / running mean's", "true")  # fmt: skip
    table = arguments.out / "windows.md"
    table.write_text("\n".join([f"`python {' '.join(sys.argv)}`", "", *markdown(head, rows), ""]), "utf-8")
    print(table)


if __name__ == "__main__":
    main()
