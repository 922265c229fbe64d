"""Tiny clusters, jobs in a few words, and a scheduler with a script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlsched.cluster.spec import ClusterSpec
from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Action, Preempt, Wait
from rlsched.decide.loop import fitting_jobs
from rlsched.decide.order.keys import Order
from rlsched.decide.policies.policy import Policy
from rlsched.decide.rule_scheduler import RuleScheduler
from rlsched.decide.scheduler import Abilities, Decision, Scheduler
from rlsched.decide.start import start_action
from rlsched.workload.trace import Trace
from rlsched_envs.sim.attempt_log import RunRules
from rlsched_envs.sim.engine import Engine
from rlsched_envs.sim.job_table import JobTable

Attempt = tuple[str, int, float, float, str, float]
"""Job, attempt, start, end, reason, work kept."""


def trace_of(
    jobs: Sequence[tuple[float, float, float]], *, ids: Sequence[str] = (), **columns: Sequence[Any]
) -> Trace:
    """Jobs as (submission, duration, GPUs), called a, b, c, ...; other columns by name."""
    submit, duration, gpus = ([job[k] for job in jobs] for k in range(3))
    attributes = {
        name: columns.pop(name)
        for name in ("time_limit_s", "vc", "num_cpus", "gpu_type", "user", "job_name")
        if name in columns
    }
    return Trace.from_columns(
        name="hand",
        submit_s=submit,
        duration_s=duration,
        num_gpus=gpus,
        job_id=list(ids) or [chr(ord("a") + k) for k in range(len(jobs))],
        extra=columns,
        **attributes,
    )


class Scripted(Scheduler):
    """FIFO that skips jobs that do not fit, and preempts jobs at the times of a script.

    Args:
        stops: Numbers of the jobs to preempt, by time.
        only: Jobs to start at a time, in place of the first jobs that fit.
    """

    name = policy_id = "scripted"
    order = Order()
    oracle = True
    abilities = Abilities(preempts=True)

    def __init__(
        self, stops: Mapping[float, Sequence[int]], only: Mapping[float, Sequence[int]] | None = None
    ) -> None:
        self._stops = {at: list(jobs) for at, jobs in stops.items()}
        self._only = {at: list(jobs) for at, jobs in (only or {}).items()}
        self.asked_at: list[float] = []

    def decide(self, state: ClusterState, partition: int, now_s: float, *, record: bool = False) -> Decision:
        """The next action at this time."""
        del record
        self.asked_at.append(now_s)
        return Decision(action=self.next_action(state, partition, now_s), source="rule")

    def next_action(self, state: ClusterState, partition: int, now_s: float) -> Action:
        """The action at this time."""
        if self._stops.get(now_s):
            return Preempt(self._stops[now_s].pop(0))
        if now_s in self._only:
            if self._only[now_s]:
                return start_action(state, partition, self._only[now_s].pop(0))
        elif fitting := fitting_jobs(state, partition):
            return start_action(state, partition, fitting[0])
        return Wait(until_s=min((at for at in self._stops if at > now_s), default=None))


def run(
    trace: Trace,
    scheduler: Scripted | str,
    *,
    nodes: int = 1,
    gpus: int = 1,
    compiled: bool = True,
    rules: RunRules | None = None,
) -> JobTable:
    """Replay on nodes with this many GPUs, under a script or a rule."""
    spec = ClusterSpec.uniform(nodes, gpus)
    if isinstance(scheduler, Scripted):
        return Engine(trace, spec, order=Order(), oracle=True, rules=rules).run(scheduler)
    policy = Policy(scheduler)
    engine = Engine(trace, spec, order=policy.rule.order, oracle=True, rules=rules)
    return engine.run_rule(policy.rule) if compiled else engine.run(RuleScheduler(policy))


def attempts(table: JobTable) -> list[Attempt]:
    """Every attempt, by start, then job."""
    log = table.log
    assert log is not None
    return [
        (
            str(table.trace.job_id[log.job[k]]),
            int(log.attempt[k]),
            float(log.start_s[k]),
            float(log.end_s[k]),
            log.reason_name(k),
            float(log.useful_s[k]),
        )
        for k in np.lexsort((log.job, log.start_s)).tolist()
    ]
