"""Runs `rlsched whatif` on a history: finds the site's rule, then compares policies on the last fifth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from rlsched.cluster.spec import ClusterSpec
from rlsched.decide.policies.policy import Policy
from rlsched.workload.predict.kinds import RUNNING_MEAN
from rlsched.workload.split import time_split
from rlsched_agents.evaluate.metrics import jct_s, queue_s
from rlsched_agents.evaluate.modelled import model_metrics
from rlsched_agents.evaluate.pairs import compare, ended_in_all
from rlsched_agents.evaluate.run import Task, load_policies, run_task, run_tasks
from rlsched_agents.evaluate.windows import MeasuredWindow
from rlsched_agents.whatif.capacity import Fewer, SleepPotential, fewer, sleep
from rlsched_agents.whatif.groups import groups
from rlsched_agents.whatif.job_history import JobHistory
from rlsched_agents.whatif.recorded import Mask, Recorded
from rlsched_agents.whatif.results import NO_WAIT_S, Under, WhatIf, best_of, verdict, why_refused
from rlsched_agents.whatif.site import Explained, Tell, explain, replayed
from rlsched_envs.sim.attempt_log import RunRules
from rlsched_envs.sim.engine import PredictedTimes, predict_trace
from rlsched_envs.sim.job_table import JobTable
from rlsched_envs.sim.modelling import Models
from rlsched_envs.sim.node_events import read_node_events

POLICIES: Final = ("tuned", "qssf-backfill", "easy")
"""Names of the policies that are compared by default."""
_EXPLAINED, _PREDICTED, _REPLAYED, _SLEPT = 0.2, 0.4, 0.6, 0.7
"""Progress of the whole run after each of its parts, 0 to 1."""


@dataclass(frozen=True)
class WhatifQuestion:
    """The request of a user: policies and models for the replays of a history.

    Attributes:
        policies: Policies to compare with the site's rule.
        models: Models of speed and power; None: jobs run as recorded, without energy.
        prediction: Predictor of run times.
        workers: Number of processes for policies that are not compiled rules.
    """

    policies: Sequence[Policy]
    models: Models | None = None
    prediction: str = RUNNING_MEAN
    workers: int = 1


def run_whatif(history: JobHistory, asked: WhatifQuestion, tell: Tell) -> WhatIf:
    """Measure how well rules explain a history, and how long jobs of its last fifth wait under policies.

    Args:
        history: The history.
        asked: Policies and models for the replays.
        tell: Called with the current step, and the progress of the whole run, 0 to 1.

    Raises:
        InputError: the history has no recorded starts or does not fit its cluster, or a policy is not
            available.
    """
    load_policies(asked.policies, asked.models)
    trace, cluster = history.trace, history.cluster
    events = read_node_events(cluster.node_events, cluster) if cluster.node_events else ()
    run = RunRules(max_retries=cluster.max_retries, node_events=events)
    tell("reading the record", 0.0)
    recorded = Recorded.from_history(trace, cluster)
    window = MeasuredWindow(time_split(trace).test[0])
    known = explain(recorded, run, window, lambda what, done: tell(what, done * _EXPLAINED))
    found = WhatIf(
        history=trace.name,
        form=history.format,
        jobs=len(trace),
        skipped=history.skipped,
        cluster=cluster.name,
        nodes=cluster.num_nodes,
        gpus=cluster.num_gpus,
        most_busy_gpus=recorded.most_busy,
        since_s=window.since_s,
        days=None,
        fits=known.fits,
        grade=known.best.grade,
        refused=why_refused(known.best, recorded.most_busy, cluster.num_gpus),
        verdict="",
    )
    if found.refused:
        return _with(found, verdict=f"nothing is claimed: {found.refused}")
    return _Claims(recorded, asked, run, window, known, tell).added_to(found)


class _Claims:
    """Computes the results of policies on the last fifth of a history, after the site's rule is identified.

    The whole history is replayed under each policy, so that the cluster's state at the start of the last
    fifth is a result of the same policy.
    """

    def __init__(
        self,
        recorded: Recorded,
        asked: WhatifQuestion,
        run: RunRules,
        window: MeasuredWindow,
        known: Explained,
        tell: Tell,
    ) -> None:
        self._recorded, self._asked, self._run, self._window = recorded, asked, run, window
        self._known, self._tell = known, tell
        self._measured: Mask = recorded.compared & window.measured(recorded.trace)

    def added_to(self, found: WhatIf) -> WhatIf:
        """Return `found` with the results of the policies added."""
        predictions = self._predicted()
        site_table = self._known.table
        if self._asked.models is not None:
            site_table = replayed(
                self._recorded, self._known.rule, self._run, self._window, self._asked.models
            )
        tables = self._replays(predictions)
        site = self._under(self._known.rule.policy, site_table, None)
        policies = [
            self._under(policy, table, site_table)
            for policy, table in zip(self._asked.policies, tables, strict=True)
        ]
        days = max((one.against.blocks or 0 for one in policies if one.against), default=0)
        best = best_of(policies)
        asleep = {self._known.rule.policy.name: self._sleep(site_table)}
        for policy, table in zip(self._asked.policies, tables, strict=True):
            if policy.name == best:
                asleep[best] = self._sleep(table)
        spared = self._fewer(best, predictions) if best and site.wait_s >= NO_WAIT_S else None
        said = verdict(site, policies, best, days, found.grade, spared)
        return _with(
            found,
            days=days,
            prediction=self._asked.prediction,
            site=site,
            policies=policies,
            best=best,
            sleep={name: one for name, one in asleep.items() if one is not None},
            fewer=spared,
            verdict=said,
        )

    def _predicted(self) -> PredictedTimes:
        """Return the predicted run time of each job, from jobs that ended before its submission."""
        return predict_trace(
            self._recorded.trace,
            self._recorded.cluster,
            recorded_until_s=math.inf,
            kind=self._asked.prediction,
            progress=lambda done: self._tell(
                "predicting run times", _EXPLAINED + done * (_PREDICTED - _EXPLAINED)
            ),
        )

    def _task(self, policy: Policy, predictions: PredictedTimes, cluster: ClusterSpec, run: RunRules) -> Task:
        return Task(
            policy,
            0,
            self._recorded.trace,
            cluster,
            self._window,
            predictions,
            rules=run,
            models=self._asked.models,
        )

    def _replays(self, predictions: PredictedTimes) -> list[JobTable]:
        done = dict.fromkeys((policy.name for policy in self._asked.policies), 0.0)

        def say(policy: str, _: int, frac: float) -> None:
            done[policy] = frac
            whole = sum(done.values()) / len(done)
            self._tell(f"replaying {policy}", _PREDICTED + whole * (_REPLAYED - _PREDICTED))

        tasks = [
            self._task(policy, predictions, self._recorded.cluster, self._run)
            for policy in self._asked.policies
        ]
        return [one.table for one in run_tasks(tasks, workers=self._asked.workers, progress=say)]

    def _under(self, policy: Policy, table: JobTable, site: JobTable | None) -> Under:
        self._tell(f"comparing {policy.name}", _REPLAYED)
        done = ended_in_all([table], self._measured)
        power = model_metrics(table, table.spec.num_gpus, self._measured)
        return Under(
            policy=policy.name,
            toml=policy.toml,
            oracle=policy.oracle,
            wait_s=float(queue_s(table)[done].mean()),
            jct_s=float(jct_s(table)[done].mean()),
            against=None if site is None else compare([table], [site], self._measured),
            groups=[] if site is None else groups(table, site, self._measured),
            energy_kwh=power.energy_kwh,
        )

    def _sleep(self, table: JobTable) -> SleepPotential | None:
        self._tell("putting nodes to sleep", _REPLAYED)
        return sleep(table, self._window.since_s)

    def _fewer(self, best: str, predictions: PredictedTimes) -> Fewer | None:
        """Return the smallest cluster for policy `best` (see `Fewer`), from replays without node events."""
        policy = next(one for one in self._asked.policies if one.name == best)
        run, site = replace(self._run, node_events=()), self._known.table
        if self._run.node_events or self._asked.models is not None:
            site = replayed(self._recorded, self._known.rule, run, self._window, self._asked.models)
        measured = ended_in_all([site], self._measured)
        return fewer(
            self._recorded.cluster,
            lambda cluster: run_task(self._task(policy, predictions, cluster, run), lambda _: None).table,
            measured,
            float(queue_s(site)[measured].mean()),
            lambda done: self._tell(f"{best} on fewer GPUs", _SLEPT + done * (1.0 - _SLEPT)),
        )


def _with(found: WhatIf, **changes: Any) -> WhatIf:
    return msgspec.structs.replace(found, **changes)
