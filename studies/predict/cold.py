"""Best predictor before boosting is fitted: the hedge's other parts, or the running mean by itself?

    RLSCHED_DATA=../shared .venv/bin/python -m studies.predict.cold

Jobs submitted before the 200th has ended, ends as recorded: the first 1,200 jobs of each real trace,
and of synthetic ones with two seeds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from rlsched.terminal.show import print_table
from rlsched.workload.predict.at_submission import predict_at_submission
from rlsched.workload.predict.boosting import MIN_ENDED
from rlsched.workload.predict.distribution import Floats, bin_of
from rlsched.workload.predict.predictor import EXPERTS
from rlsched.workload.predict.quality import quality
from rlsched.workload.predict.reference import recorded_end_s
from rlsched.workload.synth import synthesize
from rlsched.workload.trace import Trace

TRACES = ("philly", "helios_venus", "ms_itp_02", "ms_itp_06", "ms_itp_07", "ms_itp_08", "ms_itp_09")
LIKE, SEEDS = ("helios", "philly", "itp"), (1, 2)
JOBS = 1200


def traces() -> Iterator[tuple[str, Trace]]:
    folder = Path(os.environ.get("RLSCHED_DATA", "../shared")) / "traces"
    for name in TRACES:
        yield name, Trace.read(folder / f"{name}.csv.gz").select(slice(0, JOBS))
    for like in LIKE:
        for seed in SEEDS:
            yield f"{like}-like, seed {seed}", synthesize(like, JOBS, 0.9, 256, seed=seed)[0]


def figures(said: Floats, duration_s: Floats, gpus: Floats) -> tuple[float, float, float]:
    """(mean -ln P(outcome), median |ln(true / median)|, Spearman of the mean)."""
    bins = [bin_of(one) for one in duration_s.tolist()]
    score = -np.log(np.maximum(said[np.arange(len(bins)), bins], 1e-4)).mean()
    judged = quality(said, duration_s, gpus)
    return float(score), judged["median_abs_ln"], judged["spearman_mean"] or 0.0


def main() -> None:
    rows = []
    for name, trace in traces():
        end_s = recorded_end_s(trace)
        predictions = predict_at_submission(
            trace, end_s, model="survival"
        )  # never fitted: boosting repeats survival
        early = trace.submit_s < np.sort(end_s)[MIN_ENDED - 1]
        experts = predictions.experts[early].astype(np.float64)
        hedge = np.einsum("je,jeb->jb", predictions.weights[early], experts)
        mean = experts[:, EXPERTS.index("running-mean")]
        pair = [figures(said, trace.duration_s[early], trace.num_gpus[early]) for said in (mean, hedge)]
        rows.append((name, f"{early.sum()}", *(f"{a:.2f} / {b:.2f}" for a, b in zip(*pair, strict=True))))
    print_table(
        "running mean / hedge without boosting",
        ("trace", "jobs", "log score", "median |ln(true / median)|", "Spearman of the mean"),
        rows,
    )


if __name__ == "__main__":
    main()
