"""Histories of synthetic jobs started by a known rule, with delayed submissions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rlsched.cluster.spec import ClusterSpec
from rlsched.decide.policies.policy import Policy
from rlsched.workload.predictability import parse_predictability
from rlsched.workload.synth import synthesize
from rlsched.workload.trace import Trace
from rlsched_envs.sim.engine import Engine, PredictedTimes


def easy_history(jobs: int, load: float, gpus: int, *, late_s: float = 0.0) -> tuple[Trace, ClusterSpec]:
    """Replay synthetic jobs under EASY with requested limits. Returns the history as a site records it.

    Args:
        jobs: Number of jobs.
        load: Offered load.
        gpus: Number of GPUs of the cluster.
        late_s: Largest delay between submission and the scheduler's first sight of a job, 2 % of jobs an hour
            more. No replay knows these delays.
    """
    trace, spec = synthesize(
        "helios", jobs, load, gpus, seed=3, predictability=parse_predictability("causal")
    )
    rng = np.random.default_rng(0)
    limit_s = np.ceil((trace.duration_s * np.exp(rng.exponential(1.0, jobs)) + 600) / 60) * 60
    noticed_s = trace.submit_s + late_s * (rng.random(jobs) + 120 * (rng.random(jobs) < 0.02))
    order = np.argsort(noticed_s, kind="stable")
    seen = replace(trace.select(order), submit_s=noticed_s[order])
    policy = Policy("easy")
    predictions = PredictedTimes(limit_s[order], np.zeros(jobs))
    table = Engine(seen, spec, order=policy.rule.order, predictions=predictions).run_rule(policy.rule)
    wait_s = np.empty(jobs)
    wait_s[order] = table.start_s - trace.submit_s[order]
    unknown = np.full(jobs, np.nan)
    history = replace(
        trace,
        extra={**trace.extra, "queue_s": wait_s},
        time_limit_s=limit_s,
        predicted_s=unknown,
        predicted_spread=unknown,
    )
    return history, spec
