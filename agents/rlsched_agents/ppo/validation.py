"""Validation windows: long replays of jobs outside the training, by the policy and by heuristics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby, product

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.spec import ClusterSpec
from rlsched.decide.order.keys import Order
from rlsched.decide.policies.policy import Policy
from rlsched.workload.trace import Trace
from rlsched_agents.evaluate.metrics import used_frac
from rlsched_agents.ppo.callbacks import REFERENCE_POLICY, Table
from rlsched_agents.ppo.recipes import Recipe
from rlsched_agents.ppo.replays import ReplayWindows, scorer
from rlsched_agents.runtime.policy import PpoScheduler
from rlsched_envs.sim.engine import Engine, predict_trace
from rlsched_envs.sim.job_table import JobTable
from rlsched_envs.sim.modelling import Models
from rlsched_envs.training.small_clusters import CORES_EACH
from rlsched_envs.training.sources import EpisodeJobs, EpisodeSource, draw_window

RULES_TO_BEAT = (REFERENCE_POLICY, "fifo-backfill")
BLOCK_JOBS = 256
"""Successive jobs per block of a composed window; fewer if it would have less than `BLOCKS_LEAST` blocks."""
BLOCKS_LEAST = 8


@dataclass(frozen=True)
class ValidationWindow:
    """A window of jobs with its own cluster.

    Attributes:
        trace: The jobs, with the predictions for all policies.
        spec: The cluster.
        measured: (J,) the measured jobs: jobs after the warm-up.
        drawn: The same jobs as arrays.
        models: Models of speed and power; None: jobs run as recorded in the trace.
    """

    trace: Trace
    spec: ClusterSpec
    measured: NDArray[np.bool_]
    drawn: EpisodeJobs
    models: Models | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """(jobs, jobs of the warm-up, GPUs per node): windows of one shape are replayed together."""
        jobs = self.measured.size
        return jobs, jobs - int(self.measured.sum()), self.spec.num_gpus // self.drawn.nodes


def cut_windows(sources: Sequence[EpisodeSource], recipe: Recipe, seed: int) -> list[ValidationWindow]:
    """Cut windows for each source, load and size of cluster, then one window with models per source.

    There are at least `recipe.validation_least` windows without models. Windows of the first round are as
    recorded. Further windows are composed of blocks of `BLOCK_JOBS` jobs, since a short source would repeat
    the same jobs. A source with few jobs gives short windows.
    """
    rng = np.random.default_rng(seed)
    windows = []
    each = list(product(recipe.validation_loads, recipe.validation_nodes))
    rounds = max(recipe.validation_windows, -(-recipe.validation_least // (len(sources) * len(each))))
    for number, source in product(range(rounds), sources):
        blocks = 0 if number < recipe.validation_windows else BLOCK_JOBS
        for load, nodes in each:
            windows.append(_cut(source, recipe, recipe.validation_jobs, load, nodes, rng, blocks))
    for number, source in enumerate(sources if recipe.validation_weights else ()):
        weight = recipe.validation_weights[number % len(recipe.validation_weights)]
        load, nodes = recipe.validation_loads[-1], recipe.validation_nodes[0]
        window = _cut(source, recipe, recipe.validation_jobs // 2, load, nodes, rng)
        windows.append(replace(window, models=Models(energy_weight=weight)))
    return windows


def _cut(
    source: EpisodeSource,
    recipe: Recipe,
    jobs: int,
    load: float,
    nodes: int,
    rng: np.random.Generator,
    block_jobs: int = 0,
) -> ValidationWindow:
    """Cut one window of a source, with its own cluster."""
    jobs = min(jobs, source.submit_s.size)
    warmup = min(recipe.episode.warmup_jobs, jobs // 4)
    like = msgspec.structs.replace(
        recipe.episode,
        warmup_jobs=warmup,
        agent_jobs=jobs - warmup,
        tail_jobs=0,
        load_low=load,
        load_high=load,
        nodes_low=nodes,
        nodes_high=nodes,
        block_jobs=min(block_jobs, max(jobs // BLOCKS_LEAST, 1)) if block_jobs else 0,
    )
    drawn = draw_window(source, like, rng)
    trace = Trace.from_columns(
        name=source.name,
        submit_s=drawn.submit_s,
        duration_s=drawn.duration_s,
        num_gpus=drawn.gpus.astype(np.float64),
        predicted_s=drawn.predicted_s,
        predicted_spread=drawn.spread,
    )
    gpus = source.gpus_per_node
    spec = ClusterSpec.uniform(nodes, gpus, gpu_type="V100", cpus=CORES_EACH * gpus)
    return ValidationWindow(trace, spec, np.arange(jobs) >= warmup, drawn)


class Validator:
    """Runs a policy on all windows; runs the heuristics once and caches their results.

    Windows without models are replayed in one batch (`replays`): the reference rule schedules the warm-up,
    the policy schedules the other jobs. All policies must have the same queue order, which determines the
    reference. Each row of the table has, over these windows, the means `queue_mean_s`, `queue_p99_s`,
    `jct_mean_s` and `gpu_utilisation_frac`; `queue_ratio_frac`, the geometric mean of mean queueing delay /
    the reference's mean queueing delay; `worst_source_ratio_frac`, the same over the windows of the trace
    with the largest ratio; and `wins_frac`, the share of windows with a ratio below 1. For the windows with
    models the table has `cost_ratio_frac`, the geometric mean of (1 - weight) x JCT + weight x energy of the
    jobs, each relative to `qssf-backfill` with all abilities at the same energy weight (equal to an untrained
    policy without reservations).
    """

    def __init__(self, windows: Sequence[ValidationWindow]) -> None:
        plain = [window for window in windows if window.models is None]
        self._plain = sorted(plain, key=lambda window: window.shape)
        self._modelled = [window for window in windows if window.models is not None]
        self._replays: list[ReplayWindows] = []
        self._rules: dict[str, list[dict[str, float]]] = {}
        self._costs: dict[str, list[tuple[float, float]]] = {}

    def __call__(self, policy: PpoScheduler) -> Table:
        """Return the validation table: the policy as `ppo`, then the heuristics."""
        if not self._replays:
            self._prepare(policy)
        score = scorer(policy.weights, policy.network)
        played = [
            one
            for replays in self._replays
            for one in replays.run(score, temperature=policy.temperature, seed=policy.seed)
        ]
        mine = [_metrics(one.start_s, window) for one, window in zip(played, self._plain, strict=True)]
        reference = [
            _metrics(one.reference_start_s, window) for one, window in zip(played, self._plain, strict=True)
        ]
        sources = np.array([window.trace.name for window in self._plain])
        rows = {"ppo": mine, _followed(policy): reference, **self._rules}
        table = {name: _summary(runs, reference, sources) for name, runs in rows.items()}
        if self._modelled:
            costs = [_cost(_engine(window, policy.order).run(policy), window) for window in self._modelled]
            for name, found in [("ppo", costs), *self._costs.items()]:
                table[name]["cost_ratio_frac"] = self._cost_ratio(found)
        return table

    def _prepare(self, policy: PpoScheduler) -> None:
        """Prepare the replays, and run the heuristics, for policies with this policy's reference rule."""
        for (_, warmup, gpus_per_node), of_shape in groupby(self._plain, key=lambda window: window.shape):
            drawn = [window.drawn for window in of_shape]
            replays = ReplayWindows(
                drawn, gpus_per_node, warmup, policy.permissions, revises=policy.order.revised
            )
            self._replays.append(replays)
        for name in RULES_TO_BEAT:
            self._costs[name] = [_cost(_run_rule(window, name), window) for window in self._modelled]
            if name != _followed(policy):
                starts = [_run_rule(window, name).start_s for window in self._plain]
                each = zip(starts, self._plain, strict=True)
                self._rules[name] = [_metrics(start_s, window) for start_s, window in each]

    def _cost_ratio(self, runs: list[tuple[float, float]]) -> float:
        """Return the geometric mean of weighted time and energy / the reference's, on windows with models."""
        ratios = []
        for window, mine, reference in zip(self._modelled, runs, self._costs[REFERENCE_POLICY], strict=True):
            assert window.models is not None
            weight = window.models.energy_weight
            ratios.append((1 - weight) * mine[0] / reference[0] + weight * mine[1] / reference[1])
        return _geometric_mean(np.array(ratios))


def _followed(policy: PpoScheduler) -> str:
    """Return the name of the policy's reference rule in tables."""
    assert policy.reference is not None
    return policy.reference.name


def _run_rule(window: ValidationWindow, name: str) -> JobTable:
    """Run a heuristic on a window; with models, the reference can also share GPUs and set clocks."""
    policy = Policy(name)
    if window.models is not None and name == REFERENCE_POLICY:
        weight = window.models.energy_weight
        policy = policy.with_settings(
            share={}, clock={"rule": "weighed", "energy_weight": weight}, cores=True
        )
    return _engine(window, policy.rule.order).run_rule(policy.rule)


def _engine(window: ValidationWindow, order: Order) -> Engine:
    return Engine(
        window.trace,
        window.spec,
        order=order,
        predictions=predict_trace(window.trace, window.spec),
        keep_placements=False,
        models=window.models,
    )


def _cost(table: JobTable, window: ValidationWindow) -> tuple[float, float]:
    """Return (mean JCT in seconds, energy in J) of the measured jobs of a run with models."""
    assert table.energy is not None
    jct = (table.end_s - table.trace.submit_s)[window.measured]
    return float(jct.mean()), float(table.energy.job_j[window.measured].sum())


def _metrics(start_s: NDArray[np.float64], window: ValidationWindow) -> dict[str, float]:
    """Compute the metrics of a run without models with these starts, (J,) seconds."""
    trace = window.trace
    queued = (start_s - trace.submit_s)[window.measured]
    times = trace.submit_s[window.measured]
    span_s = float(times[0]), float(times[-1])
    held = used_frac(start_s, start_s + trace.duration_s, trace.num_gpus, span_s, window.spec.num_gpus)
    return {
        "queue_mean_s": float(queued.mean()),
        "queue_p99_s": float(np.percentile(queued, 99)),
        "jct_mean_s": float((queued + trace.duration_s[window.measured]).mean()),
        "gpu_utilisation_frac": held,
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
