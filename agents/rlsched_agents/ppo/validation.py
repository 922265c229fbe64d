"""Validation windows: long replays on jobs that training never saw, by the policy and by heuristics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.spec import ClusterSpec
from rlsched.workload.trace import Trace
from rlsched_agents.evaluate.metrics import queue_s, utilisation
from rlsched_agents.heuristics.queue_order import RULES
from rlsched_agents.ppo.callbacks import REFERENCE_POLICY, Table
from rlsched_agents.ppo.recipes import Recipe
from rlsched_agents.runtime.policy import PpoScheduler
from rlsched_envs.engine import Engine, predict_trace
from rlsched_envs.job_table import JobTable
from rlsched_envs.sources import EpisodeSource, draw_window

RULES_TO_BEAT = (REFERENCE_POLICY, "fifo-backfill")


@dataclass(frozen=True)
class ValidationWindow:
    """Jobs on a cluster of their own.

    Attributes:
        trace: The jobs, with the stamps that every policy is fed.
        spec: The cluster.
        measured: (J,) jobs that count: those after the warm-up.
    """

    trace: Trace
    spec: ClusterSpec
    measured: NDArray[np.bool_]


def cut_windows(sources: Sequence[EpisodeSource], recipe: Recipe, seed: int) -> list[ValidationWindow]:
    """Windows for each source, load and size of cluster; a source with few jobs gives short ones."""
    rng = np.random.default_rng(seed)
    windows = []
    for source in sources:
        jobs = min(recipe.validation_jobs, source.submit_s.size)
        warmup = min(recipe.episode.warmup_jobs, jobs // 4)
        for _ in range(recipe.validation_windows):
            for load, nodes in product(recipe.validation_loads, recipe.validation_nodes):
                drawn = draw_window(
                    source,
                    msgspec.structs.replace(
                        recipe.episode,
                        warmup_jobs=warmup,
                        agent_jobs=jobs - warmup,
                        tail_jobs=0,
                        load_low=load,
                        load_high=load,
                        nodes_low=nodes,
                        nodes_high=nodes,
                    ),
                    rng,
                )
                trace = Trace.from_columns(
                    name=source.name,
                    submit_s=drawn.submit_s,
                    duration_s=drawn.duration_s,
                    num_gpus=drawn.gpus.astype(np.float64),
                    predicted_s=drawn.predicted_s,
                    predicted_spread=drawn.spread,
                )
                windows.append(
                    ValidationWindow(
                        trace, ClusterSpec.uniform(nodes, source.gpus_per_node), np.arange(jobs) >= warmup
                    )
                )
    return windows


class Validator:
    """Runs a policy on all windows; the heuristics run once and are remembered.

    Each row of the table has `queue_mean_s`, `queue_p99_s`, `jct_mean_s` and `gpu_utilisation_frac`, means
    over the windows; `queue_ratio_frac`, the geometric mean of the ratio of mean queueing delays to that of
    `qssf-backfill`; `worst_source_ratio_frac`, the same over the windows of the trace where it is largest;
    and `wins_frac`, the share of windows in which it is below 1.
    """

    def __init__(self, windows: Sequence[ValidationWindow]) -> None:
        self._windows = list(windows)
        self._runs: dict[str, list[dict[str, float]]] = {}

    def __call__(self, policy: PpoScheduler) -> Table:
        """The validation table: the policy as `ppo`, then the heuristics."""
        if not self._runs:
            self._runs = {
                name: [self._run_rule(window, name) for window in self._windows] for name in RULES_TO_BEAT
            }
        mine = [_metrics(_engine(window, policy.order).run(policy), window) for window in self._windows]
        reference = self._runs[REFERENCE_POLICY]
        sources = np.array([window.trace.name for window in self._windows])
        return {
            name: _summary(runs, reference, sources) for name, runs in [("ppo", mine), *self._runs.items()]
        }

    @staticmethod
    def _run_rule(window: ValidationWindow, name: str) -> dict[str, float]:
        rule = RULES[name]
        return _metrics(_engine(window, rule.order).run_rule(rule), window)


def _engine(window: ValidationWindow, order: str) -> Engine:
    return Engine(
        window.trace,
        window.spec,
        order=order,  # type: ignore[arg-type]
        predictions=predict_trace(window.trace, window.spec),
        keep_placements=False,
    )


def _metrics(table: JobTable, window: ValidationWindow) -> dict[str, float]:
    queued = queue_s(table)[window.measured]
    jct = (table.end_s - table.trace.submit_s)[window.measured]
    return {
        "queue_mean_s": float(queued.mean()),
        "queue_p99_s": float(np.percentile(queued, 99)),
        "jct_mean_s": float(jct.mean()),
        "gpu_utilisation_frac": utilisation(table, window.spec.num_gpus, window.measured) or 0.0,
    }


def _summary(
    runs: list[dict[str, float]], reference: list[dict[str, float]], sources: NDArray[np.str_]
) -> dict[str, float]:
    found = {metric: float(np.mean([run[metric] for run in runs])) for metric in runs[0]}
    ratios = np.array(
        [
            (run["queue_mean_s"] + 1.0) / (rule["queue_mean_s"] + 1.0)
            for run, rule in zip(runs, reference, strict=True)
        ]
    )
    return found | {
        "queue_ratio_frac": _geometric_mean(ratios),
        "worst_source_ratio_frac": max(_geometric_mean(ratios[sources == name]) for name in set(sources)),
        "wins_frac": float(np.mean(ratios < 1.0)),
    }


def _geometric_mean(ratios: NDArray[np.float64]) -> float:
    return float(np.exp(np.log(ratios).mean()))
