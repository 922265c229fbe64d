"""The plots of `Runs.plot`: one figure that says most of how policies compare."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from rlsched_agents.evaluate.simulate import Runs


def plot(runs: Runs) -> Figure:
    """Waiting by size, the distribution of waiting, of completion times, and GPUs in use over time."""
    figure = Figure(figsize=(11, 7), layout="constrained")
    by_size, waits, jcts, in_use = figure.subplots(2, 2).flat
    _by_size(runs, by_size)
    _distribution(runs, "queue_s", "queueing delay, s", waits)
    _distribution(runs, "jct_s", "job completion time, s", jcts)
    _in_use(runs, in_use)
    by_size.legend(frameon=False, fontsize="small")
    for axes in figure.axes:
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"{runs.trace.name} on {runs.cluster.name}, {runs.cluster.num_gpus} GPUs")
    return figure


def _by_size(runs: Runs, axes: Axes) -> None:
    sizes = list(next(iter(runs.values())).metrics.by_gpus)
    width = 0.8 / len(runs)
    for k, (name, run) in enumerate(runs.items()):
        waits_h = [(run.metrics.by_gpus[size].queue_mean_s or 0.0) / 3600 for size in sizes]
        axes.bar(np.arange(len(sizes)) + (k - (len(runs) - 1) / 2) * width, waits_h, width, label=name)
    axes.set_xticks(range(len(sizes)), sizes)
    axes.set_xlabel("GPUs")
    axes.set_ylabel("mean queueing delay, h")


def _distribution(runs: Runs, field: str, label: str, axes: Axes) -> None:
    for name, run in runs.items():
        values = getattr(run.jobs, field)
        known = np.sort(values[np.isfinite(values)])
        axes.step(np.maximum(known, 1.0), 100 * np.arange(1, len(known) + 1) / max(len(known), 1), label=name)
    axes.set_xscale("log")
    axes.set_xlabel(label)
    axes.set_ylabel("% of the jobs at or below")


def _in_use(runs: Runs, axes: Axes) -> None:
    for name, run in runs.items():
        steps = run.metrics.over_time
        if steps is not None:
            edges = [steps.from_s + k * steps.step_s for k in range(len(steps.gpus_allocated))] + [steps.to_s]
            axes.stairs(steps.gpus_allocated, np.array(edges) / 86400, baseline=None, label=name)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("day of the trace")
    axes.set_ylabel("GPUs in use")
