"""Status reports of the broker, as `rlsched top` and `rlsched status` show them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import islice

import msgspec
import numpy as np

from rlsched.broker.base.entries import BrokerStarted
from rlsched.broker.base.shortened import MAX_REASON_CHARS, shortened
from rlsched.broker.base.soft_errors import SoftErrors
from rlsched.broker.nodes.members import Members
from rlsched.broker.queries.backlog import Backlog
from rlsched.broker.queries.forecasts import Forecasts
from rlsched.broker.queries.loop_metrics import LoopMetrics
from rlsched.broker.queries.views import lent_cpus, out_of_service
from rlsched.broker.queries.waiting import waiting_for_power, waiting_for_price
from rlsched.broker.state.broker_state import BrokerState
from rlsched.broker.state.nodes import Node
from rlsched.cluster.arrays import NODE_UP, WAITING
from rlsched.cluster.state import ClusterState
from rlsched.decide.drift import unlike
from rlsched.decide.limit import drawn_w
from rlsched.decide.scheduler import Scheduler
from rlsched.wire.messages import (
    MAX_CLOCK_SKEW_S,
    DriftReport,
    ForecastReport,
    GpusReport,
    GuardReport,
    OutsideReport,
    PowerLimitReport,
    PriceReport,
    QuestionsReport,
    RecordsReport,
    StatsReport,
)
from rlsched.wire.states import QUEUED

MAX_NAMED_NODES = 50
MAX_UNLIKE = 20


class Reports:
    """Maker of the broker's status reports.

    Args:
        scheduler: The policy.
        started: The fact (journal entry) that begins this broker's epoch.
        now_s: Time at which the process began to serve, Unix seconds.
        backlog: Questions that wait for an answer.
        soft_errors: Failures that do not affect decisions.
        loop_metrics: Function that returns metrics of the loop; called once per report.
        members: The nodes and their measurements.
    """

    def __init__(
        self,
        state: BrokerState,
        scheduler: Scheduler,
        started: BrokerStarted,
        now_s: float,
        *,
        backlog: Backlog,
        soft_errors: SoftErrors,
        loop_metrics: Callable[[], LoopMetrics],
        forecasts: Forecasts,
        members: Members,
    ) -> None:
        self._state, self._scheduler, self._started, self._started_s = state, scheduler, started, now_s
        self._backlog, self._soft_errors, self._loop_metrics = backlog, soft_errors, loop_metrics
        self._forecasts, self._members = forecasts, members
        self.failed_answers = 0

    def report(self, now_s: float) -> StatsReport:
        """Return the broker's status report at `now_s`, Unix seconds."""
        state, loop_metrics = self._state, self._loop_metrics()
        live = list(state.job_of_seq.values())
        queued = sum(job.state == QUEUED for job in live)
        fixed = (
            (name, shortened(node.spec.clocks_note, MAX_REASON_CHARS) or "it did not say")
            for name, node in state.nodes.items()
            if node.up and not node.spec.sm_clocks_mhz
        )
        nodes = {name: node for name, node in state.nodes.items() if not node.removed}
        drawn_w = [watts for name in nodes if (watts := self._members.power_w(name)) is not None]
        foreign = self._members.foreign.infos(now_s)
        states = {name: node.state for name, node in nodes.items()} | dict.fromkeys(foreign, "foreign")
        absent = {name: _absence(node) for name, node in nodes.items() if node.state != "up"}
        absent |= {name: f"foreign: {info.reason}" for name, info in foreign.items()}
        out = {name: lines for name in nodes if (lines := out_of_service(state, name))}
        skews_s = {name: self._members.clock_skew_s(name) or 0.0 for name in nodes}
        skewed = {name: skew_s for name, skew_s in skews_s.items() if abs(skew_s) > MAX_CLOCK_SKEW_S}
        return StatsReport(
            policy=self._scheduler.name,
            decisions=dict(state.decisions),
            contested=dict(state.contested),
            queued=queued,
            running=len(live) - queued,
            ended=state.num_finished,
            uptime_s=now_s - self._started_s,
            prediction=state.predictions.report(now_s),
            forecasts=self._forecasts.report(),
            speed_energy=state.cluster.energy_counts,
            price=_price_report(state),
            power_limit=_power_limit_report(state),
            clocked=sum(job.active is not None and job.active.sm_clock_frac < 1.0 for job in live),
            shares=state.models.shares,
            sharing=sum(job.active is not None and job.active.tenants > 1 for job in live),
            slow_sharing=self._members.metered.speeds.slow_jobs(now_s),
            lent_cpus=sum(lent_cpus(state, job) for job in live) if state.models.shares else 0,
            fixed_clocks=dict(islice(fixed, MAX_NAMED_NODES)),
            version=self._started.version,
            epoch=state.epoch,
            address=loop_metrics.address,
            fallback=self._started.fallback,
            nodes=dict(Counter(states.values())),
            unhealthy_nodes=sum(bool(node.unhealthy) and node.up for node in nodes.values()),
            health_failures=state.health_failures,
            absent_nodes=dict(islice(absent.items(), MAX_NAMED_NODES)),
            gpus_out=sum(len(one.gpus) for name in out for one in state.holdings.holdings_of(name)),
            nodes_with_gpus_out={
                name: shortened("; ".join(lines), MAX_REASON_CHARS)
                for name, lines in islice(out.items(), MAX_NAMED_NODES)
            },
            nodes_off_clock=len(skewed),
            clock_skews_s=dict(islice(skewed.items(), MAX_NAMED_NODES)),
            journal=loop_metrics.journal,
            guard=GuardReport(
                decided=dict(state.interventions),
                now=self._scheduler.replaced_by_fallback(),
                drift=drift_report(self._scheduler, state.cluster),
            ),
            questions=QuestionsReport(
                waiting=len(self._backlog),
                askers=self._backlog.askers,
                refused=self._backlog.refused,
                failed=self.failed_answers,
            ),
            records=RecordsReport(
                kept=loop_metrics.records_kept,
                lost=dict(self._soft_errors.lost),
                troubles=dict(self._soft_errors.present),
            ),
            gpus=gpus_by_type(state.cluster),
            ineligible=state.eligibility.counts(),
            tasks_to_come=sum(array.num_left for array in state.arrays.live.values()),
            queued_gpus=sum(job.spec.num_gpus for job in live if job.state == QUEUED),
            oldest_queued_s=max((now_s - job.submit_s for job in live if job.state == QUEUED), default=0.0),
            outcomes=dict(state.outcomes),
            timings=loop_metrics.timings,
            connections=loop_metrics.connections,
            power_w=sum(drawn_w) if drawn_w else None,
            energy_day_j=self._members.metered.energy_day_j(),
            used=self._members.metered.running_usage(now_s),
        )


def drift_report(scheduler: Scheduler, cluster: ClusterState) -> DriftReport | None:
    """Return how far a policy's inputs are outside its training data; None if the policy was not trained."""
    drift = scheduler.drift()
    if drift is None:
        return None
    familiar = scheduler.familiar
    return DriftReport(
        note=drift.note,
        active=drift.active,
        looks=drift.looks,
        outside=[OutsideReport(**msgspec.structs.asdict(one)) for one in drift.outside],
        settings_refused=drift.settings_refused,
        unlike=unlike(familiar, cluster)[:MAX_UNLIKE] if familiar is not None else [],
    )


def drift_curves(scheduler: Scheduler) -> dict[str, float]:
    """Return TensorBoard scalars by tag: how far the policy's inputs are outside its training data."""
    drift = scheduler.drift()
    if drift is None or drift.note:
        return {}
    return {
        "drift/active": float(drift.active),
        "drift/most_outside_frac": max((one.share_frac for one in drift.outside), default=0.0),
        **{f"drift/outside_{one.column}_frac": one.share_frac for one in drift.outside},
        **{f"drift/value_{one.column}": one.value for one in drift.outside},
    }


def cluster_curves(cluster: ClusterState) -> dict[str, float]:
    """Return TensorBoard scalars by tag: numbers of waiting jobs by size, and the fraction of GPUs in use."""
    sizes = cluster.arrays.job.gpus[cluster.arrays.job.status == WAITING]
    gpus = gpus_by_type(cluster).values()
    total = sum(of.total for of in gpus)
    return {
        "cluster/waiting_1_gpu_jobs": float(np.count_nonzero(sizes <= 1)),
        "cluster/waiting_2_to_8_gpus_jobs": float(np.count_nonzero((sizes > 1) & (sizes <= 8))),
        "cluster/waiting_over_8_gpus_jobs": float(np.count_nonzero(sizes > 8)),
        "cluster/busy_frac": sum(of.held for of in gpus) / total if total else 0.0,
    }


def forecast_curves(report: ForecastReport | None) -> dict[str, float]:
    """Return TensorBoard scalars by tag: accuracy of the last week's forecasts, for jobs of all sizes."""
    found = dict[str, float]()
    for one in report.scores if report is not None else ():
        if one.size == "all":
            name = f"forecast/{one.what.replace('-', '_')}"
            found |= {f"{name}_inside_frac": one.covered_frac, f"{name}_loss_s": one.loss_s}
            found |= {f"{name}_loss_s_{rule}": loss for rule, loss in one.rules.items() if loss is not None}
    return found


def gpus_by_type(cluster: ClusterState) -> dict[str, GpusReport]:
    """Return the numbers of all, free, allocated (`held`) and absent GPUs, by GPU type.

    Absent GPUs are the free GPUs of nodes that are not up.
    """
    node, kinds = cluster.arrays.node, cluster.kind_names
    up = node.status == NODE_UP
    found = {}
    for number, kind in enumerate(kinds):
        of = node.kind == number
        total, free = int(node.gpus[of].sum()), int(node.free[of & up].sum())
        absent = int(node.free[of & ~up].sum())
        if total:
            found[kind] = GpusReport(total=total, free=free, held=total - free - absent, absent=absent)
    return found


def _price_report(state: BrokerState) -> PriceReport | None:
    known = state.energy_price
    if known is None or known.price is None:
        return None
    held = state.cluster.arrays.job[waiting_for_price(state)]
    jobs = [state.job_of_seq[seq] for seq in held.seq.tolist()]
    since_s = [job.submit_s if job.stopped is None else job.stopped.end_s for job in jobs]
    return PriceReport(
        price=known.price,
        ratio=known.ratio,
        until_s=known.until_s,
        deferred=len(jobs),
        deferred_gpus=int(held.gpus.sum()),
        waiting_since_s=min(since_s, default=None),
    )


def _power_limit_report(state: BrokerState) -> PowerLimitReport | None:
    known, s = state.energy_price, state.cluster.arrays
    if known is None or known.limit_w is None:
        return None
    urgent_cap, flexible_cap = s.config[0].clock_cap.tolist()
    return PowerLimitReport(
        limit_w=known.limit_w,
        until_s=known.until_s,
        most_w=float(drawn_w(s, urgent_cap, flexible_cap)),
        urgent_clock_frac=urgent_cap,
        flexible_clock_frac=flexible_cap,
        waiting=len(waiting_for_power(state)),
        falls=known.limit_falls,
        soft=known.limit_soft,
    )


def _absence(node: Node) -> str:
    return f"{node.state}: {shortened(node.reason, MAX_REASON_CHARS)}" if node.reason else node.state
