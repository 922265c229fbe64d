"""Draws the figure of `Runs.plot`, an overview of the comparison of policies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from rlsched_agents.evaluate.jobs import MeasuredJobs
    from rlsched_agents.evaluate.report import EvaluationReport


def plot(report: EvaluationReport, jobs: Mapping[str, MeasuredJobs]) -> Figure:
    """Draw waits by job size, distributions of waits and completion times, and GPUs in use over time."""
    figure = Figure(figsize=(11, 7), layout="constrained")
    by_size, waits, jcts, in_use = figure.subplots(2, 2).flat
    _by_size(report, by_size)
    _distribution(jobs, "queue_s", "queueing delay, s", waits)
    _distribution(jobs, "jct_s", "job completion time, s", jcts)
    _in_use(report, in_use)
    by_size.legend(frameon=False, fontsize="small")
    for axes in figure.axes:
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"{report.trace} on {report.cluster}, {report.gpus} GPUs")
    return figure


def _by_size(report: EvaluationReport, axes: Axes) -> None:
    sizes = list(next(iter(report.policies.values())).by_gpus)
    width = 0.8 / len(report.policies)
    for k, (name, one) in enumerate(report.policies.items()):
        waits_h = [(one.by_gpus[size].queue_mean_s or 0.0) / 3600 for size in sizes]
        axes.bar(
            np.arange(len(sizes)) + (k - (len(report.policies) - 1) / 2) * width, waits_h, width, label=name
        )
    axes.set_xticks(range(len(sizes)), sizes)
    axes.set_xlabel("GPUs")
    axes.set_ylabel("mean queueing delay, h")


def _distribution(jobs: Mapping[str, MeasuredJobs], field: str, label: str, axes: Axes) -> None:
    for name, some in jobs.items():
        values = getattr(some, field)
        known = np.sort(values[np.isfinite(values)])
        axes.step(np.maximum(known, 1.0), 100 * np.arange(1, len(known) + 1) / max(len(known), 1), label=name)
    axes.set_xscale("log")
    axes.set_xlabel(label)
    axes.set_ylabel("% of the jobs at or below")


def _in_use(report: EvaluationReport, axes: Axes) -> None:
    for name, one in report.policies.items():
        steps = one.over_time
        if steps is not None:
            edges = [steps.from_s + k * steps.step_s for k in range(len(steps.gpus_allocated))] + [steps.to_s]
            axes.stairs(steps.gpus_allocated, np.array(edges) / 86400, baseline=None, label=name)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("day of the trace")
    axes.set_ylabel("GPUs in use")
