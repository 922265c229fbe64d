"""Synthetic against real workloads, and accuracy of predictions.

RLSCHED_DATA=../shared python -m studies.workload.compare_synth
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rlsched.workload.describe import spearman
from rlsched.workload.predictability import Predictability
from rlsched.workload.synth import synthesize
from rlsched.workload.trace import Trace
from studies.workload.fit_synth import DURATION_CAP_S, SOURCES, training_part

JOBS = 100_000
CLASSES = ((1, 1), (2, 7), (8, 8), (9, 1 << 20))
LEVELS: tuple[Predictability, ...] = ("causal", "informative", 0.2, 0.6, 1.4)


def row(label: str, gpus: NDArray[np.float64], duration: NDArray[np.float64]) -> str:
    """One line of the first table."""
    work = gpus * duration
    masks = [(gpus >= low) & (gpus <= high) for low, high in CLASSES]
    quantiles = (f"{np.quantile(duration, q):,.0f}" for q in (0.5, 0.9, 0.99))
    jobs = (f"{100 * mask.mean():.1f}" for mask in masks)
    time = (f"{100 * work[mask].sum() / work.sum():.0f}" for mask in masks)
    cells = (label, *quantiles, f"{duration.mean():,.0f}", " / ".join(jobs), " / ".join(time))
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print both tables as Markdown."""
    folder = Path(os.environ.get("RLSCHED_DATA", "../shared")) / "traces"
    print("| workload | median | p90 | p99 | mean | % of jobs: 1 / 2-7 / 8 / more | % of GPU-time |")
    print("|---|---|---|---|---|---|---|")
    for like, files in SOURCES.items():
        parts = [training_part(Trace.read(folder / f"{file}.csv.gz")) for file in files]
        print(
            row(
                f"{like}, real",
                np.concatenate([part.num_gpus for part in parts]),
                np.minimum(DURATION_CAP_S, np.concatenate([part.duration_s for part in parts])),
            )
        )
        drawn, _ = synthesize(like, JOBS, 0.9, 1024)
        print(row(f"{like}, synthetic", drawn.num_gpus, drawn.duration_s))
    print("\n| Spearman / sd of ln(true / predicted) | " + " | ".join(SOURCES) + " |")
    print("|---|" + "---|" * len(SOURCES))
    for level in LEVELS:
        cells = []
        for like in SOURCES:
            drawn, _ = synthesize(like, JOBS, 0.9, 1024, predictability=level)
            error = np.log(drawn.duration_s / drawn.predicted_s)
            cells.append(f"{spearman(drawn.duration_s, drawn.predicted_s):.2f} / {error.std():.2f}")
        print(f"| `{level}` | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
