"""Three small clusters with their jobs, in three modes each: plain, with attempts, with models.

`helios`: one pool of equal nodes. `philly`: longer jobs, larger gangs, predictions of every quality. `mixed`:
VCs, three GPU types, jobs that request types, cores, memory, a share of a GPU, or no GPU at all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from rlsched.cluster.arrays import NODE_DOWN, NODE_DRAINED, NODE_UP
from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.power_down.plan import PowerDownPlan
from rlsched.workload.synth import synthesize
from rlsched.workload.trace import Trace
from rlsched_envs.sim.attempt_log import RunRules
from rlsched_envs.sim.engine import PredictedTimes, predict_trace
from rlsched_envs.sim.modelling import Models
from rlsched_envs.sim.node_events import NodeEvent

WORLDS = ("helios", "philly", "mixed")
MODES = ("plain", "attempts", "models")


@dataclass(frozen=True)
class World:
    """A workload on a cluster, and its possible events."""

    trace: Trace
    spec: ClusterSpec
    rules: RunRules
    models: Models | None

    @property
    def predictions(self) -> PredictedTimes:
        """Predictions for every policy without true run times."""
        return predict_trace(self.trace, self.spec)


@cache
def world(name: str, mode: str) -> World:
    """One of `WORLDS` in one of `MODES`, or the world `slices`."""
    trace, spec = {"helios": _helios, "philly": _philly, "mixed": _mixed, "slices": _slices}[name]()
    made = World(trace, spec, RunRules(), None)
    if mode == "attempts":
        made = _with_attempts(made)
    elif mode == "models":
        made = replace(made, models=_models(name))
    elif mode == "sleeping":
        made = replace(made, models=Models(power_down=PowerDownPlan()))
    return made


def _helios() -> tuple[Trace, ClusterSpec]:
    return synthesize("helios", jobs=600, load=1.1, gpus=48, seed=3, predictability="informative")


def _philly() -> tuple[Trace, ClusterSpec]:
    trace, spec = synthesize("philly", jobs=450, load=1.2, gpus=32, gpus_per_node=4, seed=5)
    rng = np.random.default_rng(17)
    wrong = rng.normal(0.0, 1.2, len(trace))
    predicted_s = np.where(rng.random(len(trace)) < 0.8, trace.duration_s * np.exp(wrong), np.nan)
    limit_s = np.where(rng.random(len(trace)) < 0.2, trace.duration_s * rng.uniform(0.5, 3.0), np.nan)
    preemptible = np.where(rng.random(len(trace)) < 0.5, "true", "false")
    return replace(
        trace,
        predicted_s=predicted_s,
        time_limit_s=np.round(limit_s, 1),
        extra={**trace.extra, "preemptible": preemptible},
    ), spec


def _mixed() -> tuple[Trace, ClusterSpec]:
    spec = ClusterSpec(
        name="mixed",
        nodes=(
            NodeGroup(count=3, gpus=8, gpu_type="V100", cpus=48, memory_mib=262_144),
            NodeGroup(count=2, gpus=4, gpu_type="P100", cpus=28, memory_mib=131_072),
            NodeGroup(count=2, gpus=8, gpu_type="A100", cpus=64, memory_mib=524_288, vc="alpha"),
            NodeGroup(count=2, gpus=4, gpu_type="V100", cpus=20, memory_mib=131_072, vc="beta"),
            NodeGroup(count=1, gpus=0, gpu_type="generic", cpus=32, memory_mib=65_536),
        ),
    )
    rng, jobs = np.random.default_rng(23), 420
    sizes, odds = [0.0, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 8.0, 12.0], [5, 6, 9, 42, 14, 4, 12, 7, 1]
    gpus = rng.choice(sizes, jobs, p=np.array(odds) / 100.0)
    duration_s = np.round(np.exp(rng.normal(6.8, 1.6, jobs)), 2)
    submit_s = np.round(np.cumsum(rng.exponential(105.0, jobs) * (rng.random(jobs) < 0.6)))
    some_cores = np.where(rng.random(jobs) < 0.3, np.ceil(gpus) * rng.integers(1, 8, jobs), np.nan)
    types = rng.choice(["", "V100", "V100|A100", "P100"], jobs, p=[0.7, 0.15, 0.1, 0.05])
    memory_mib = np.where(rng.random(jobs) < 0.15, np.ceil(np.maximum(gpus, 1)) * 8192, np.nan)
    trace = Trace.from_columns(
        name="mixed",
        submit_s=submit_s,
        duration_s=duration_s,
        num_gpus=gpus,
        vc=rng.choice(["", "alpha", "beta"], jobs, p=[0.5, 0.3, 0.2]),
        user=rng.choice(["ann", "bob", "cy", "dee"], jobs),
        num_cpus=np.where(gpus == 0, rng.integers(1, 9, jobs), some_cores),
        gpu_type=np.where(gpus > 0, types, ""),
        extra={"memory_mib": memory_mib},
    )
    return trace, spec


def _slices() -> tuple[Trace, ClusterSpec]:
    thirds = ("2g.10gb", "2g.10gb", "2g.10gb")
    spec = ClusterSpec(
        name="slices",
        nodes=(
            NodeGroup(count=2, gpus=4, gpu_type="A100-40GB", cpus=64),
            NodeGroup.sliced(thirds, count=2, gpus=2, gpu_type="A100-40GB", cpus=32),
        ),
    )
    trace, _ = synthesize("helios", jobs=250, load=1.3, gpus=16, gpus_per_node=4, seed=8)
    return trace, spec


def _with_attempts(made: World) -> World:
    """Failures, dependencies, arrays with limits, checkpoints, restart costs, retries; nodes that fail."""
    trace, rng = made.trace, np.random.default_rng(29)
    jobs, ids = len(trace), trace.job_id
    fails = [
        ";".join(f"{duration_s * rng.uniform(0.1, 0.9):.3f}" for _ in range(rng.integers(1, 4)))
        if rng.random() < 0.12
        else ""
        for duration_s in trace.duration_s.tolist()
    ]
    depends_on = [
        ";".join(sorted({str(ids[k]) for k in rng.integers(max(0, row - 30), row, 2)}))
        if row and rng.random() < 0.08
        else ""
        for row in range(jobs)
    ]
    array_id = np.where(rng.random(jobs) < 0.2, rng.choice(["x", "y", "z"], jobs), "")
    extra = {
        **trace.extra,
        "fail_after_s": np.array(fails),
        "depends_on": np.array(depends_on),
        "array_id": array_id,
        "array_limit": np.where(array_id != "", 3.0, np.nan),
        "checkpoint_s": np.where(rng.random(jobs) < 0.4, rng.choice([0.0, 120.0, 900.0], jobs), np.nan),
        "restart_s": np.where(rng.random(jobs) < 0.3, rng.choice([0.0, 15.0, 200.0], jobs), np.nan),
    }
    first_s, last_s = float(trace.submit_s[0]), float(trace.submit_s[-1])
    events, status = [], (NODE_DOWN, NODE_DRAINED)
    for at_s in np.sort(rng.uniform(first_s, last_s, 8)).tolist():
        node = int(rng.integers(0, made.spec.num_nodes))
        events += [
            NodeEvent(round(at_s), node, int(rng.choice(status))),
            NodeEvent(round(at_s) + 7200.0, node, NODE_UP),
        ]
    rules = RunRules(max_retries=2, node_events=tuple(events))
    return replace(made, trace=replace(trace, extra=extra), rules=rules)


def _models(name: str) -> Models:
    return {
        "helios": Models(),
        "philly": Models(workload_seed=3, energy_weight=0.35, sharing_mode="mps", fault_frac=0.5),
        "mixed": Models(
            workload_seed=1, assumed_scale=1.3, energy_weight=0.2, learning=False, power_cap_frac=0.8
        ),
        "slices": Models(noise=False),
    }[name]
