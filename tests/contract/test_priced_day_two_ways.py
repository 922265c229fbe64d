"""Two days with prices under a broker and under the simulator: the same starts and pauses at the same times.

The broker is the real machine on a real journal. Its clock jumps from event to event, and its nodes answer
after a millisecond. The simulator gets the jobs, the predictions and the ends of the journal.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from rlsched.broker.base.entries import AttemptOver, JobSubmitted
from rlsched.broker.base.limits import Limits
from rlsched.broker.events import ClientAsked, Due, Event, NodeSaid
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.replay import JournalEvents, journal_events
from rlsched.cluster.spec import ClusterSpec, EnergySignals, NodeGroup
from rlsched.decide.actions import Action, Preempt, Start
from rlsched.decide.dials.observing import NAMES
from rlsched.decide.dials.strategy import NUM_COLUMNS, NUM_DIALS, Strategy
from rlsched.decide.dials.turning import RANGES
from rlsched.decide.policies.policy import Policy
from rlsched.decide.rule_scheduler import RuleScheduler
from rlsched.energy.limits import EnergyTable, LimitTable
from rlsched.energy.relative import PriceTable
from rlsched.energy.series import HOUR_S, Series
from rlsched.energy.synth import synthesize, with_forecast
from rlsched.transport.roles import Peer
from rlsched.wire.messages import Ended, Kill, Launch, Launched, Submit
from rlsched.workload.trace import Trace
from rlsched_envs.sim.attempt_log import PreemptionCosts, RunRules
from rlsched_envs.sim.engine import Engine, PredictedTimes
from rlsched_envs.sim.modelling import Models
from tests.quick import quick
from tests.support.broker.hand import hello
from tests.support.broker.hand_broker import HandBroker

BEGINS = datetime(1970, 1, 1, tzinfo=UTC)
"""Second 0 of the broker's clock and of the simulator's: all times are the same numbers."""
DAYS, JOBS, NODES, GPUS = 2, 260, 3, 8
AHEAD_H = 12.0
LIMIT_AHEAD_H = 4.0
HIGH_KW, LOW_KW = 10.0, 3.0
"""Power limit: HIGH_KW, but LOW_KW from 8 to 12 o'clock."""
ANSWER_S = 0.001
LIMITS = Limits(lease_s=1e9, heartbeat_s=1e8, launch_timeout_s=1e9)
ONLY_PAUSES = {"by": "gittins", "margin": 10.0}
"""The queue preempts no job, because a real process takes time to end, and a simulated one none."""
NO_RESTART = RunRules(costs=PreemptionCosts(restart_s=0.0, restart_large_s=0.0))


def with_dials() -> Policy:
    """A policy whose dials change with the price, and with all other columns. No job pauses."""
    weights = np.random.default_rng(3).normal(0.0, 0.1, (NUM_DIALS, NUM_COLUMNS + 1))
    names = list(RANGES)
    weights[names.index("defer"), [NAMES.index("price"), -1]] = 0.5
    weights[names.index("pause")] = 0.0
    weights[names.index("pause"), -1] = -1.0
    dials = Strategy.from_layers(weights).text
    return Policy("gittins", preempt=ONLY_PAUSES, dials=dials, plain_without_models=False)


POLICIES = {
    "deferrals and pauses": Policy("gittins", preempt=ONLY_PAUSES, price={"defer": 5.0, "pause": 5.0}),
    "only pauses": Policy("gittins", preempt=ONLY_PAUSES, price={"pause": 5.0}),
    "window": Policy("gittins", preempt=ONLY_PAUSES, price={"window": True}),
    "percentile": Policy("gittins", preempt=ONLY_PAUSES, price={"percentile": 0.3}),
    "price-window": Policy("price-window", preempt=ONLY_PAUSES),
    "price-percentile": Policy("price-percentile", preempt=ONLY_PAUSES),
    "dials": with_dials(),
}


QUICK = ("deferrals and pauses",)
"""Policies that `make test` runs."""


@dataclass
class Day:
    """Nodes and users of a broker whose clock jumps from event to event."""

    broker: HandBroker
    runs_s: list[float]
    due: list[tuple[float, int, Event]] = field(default_factory=list)
    number: Iterator[int] = field(default_factory=itertools.count)
    begun_s: dict[int, float] = field(default_factory=dict)

    def at(self, when_s: float, event: Event) -> None:
        """Let an event come at a time."""
        heapq.heappush(self.due, (round(when_s, 3), next(self.number), event))

    def obey(self, node: str, order: Any, now_s: float) -> None:
        """Obey an order of the broker as a node does. A job keeps the work that it has done."""
        rank: dict[str, Any] = {name: getattr(order, name, 0) for name in ("job", "attempt", "rank")}
        if isinstance(order, Launch):
            self.at(now_s + ANSWER_S, NodeSaid(node, 0, Launched(pid=7, **rank)))
            self.begun_s[order.job] = now_s
            self.at(
                now_s + self.runs_s[order.job - 1], NodeSaid(node, 0, Ended(exit_code=0, reason="", **rank))
            )
        elif isinstance(order, Kill):
            ran_s = now_s - self.begun_s[order.job]
            if order.rank == 0:
                self.runs_s[order.job - 1] -= ran_s
            gone = (order.job, order.attempt, order.rank)
            self.due = [one for one in self.due if _rank_of(one[2]) != gone]
            heapq.heapify(self.due)
            end = Ended(exit_code=143, reason="killed", ran_s=ran_s, **rank)
            self.at(now_s + ANSWER_S, NodeSaid(node, 0, end))

    def pass_by(self) -> None:
        """Let time pass until no event is left."""
        while self.due:
            next_s = min(self.due[0][0], max(self.broker.machine.due_s(), self.broker.now_s + ANSWER_S))
            events: list[Event] = [] if self.due[0][0] <= next_s else [Due()]
            while self.due and self.due[0][0] <= next_s:
                events.append(heapq.heappop(self.due)[2])
            orders = len(self.broker.sent.orders)
            self.broker.batch(events, after_s=next_s - self.broker.now_s)
            for node, order in self.broker.sent.orders[orders:]:
                self.obey(node, order, self.broker.now_s)


def _rank_of(event: Event) -> tuple[int, int, int] | None:
    if isinstance(event, NodeSaid) and isinstance(event.message, Ended):
        return event.message.job, event.message.attempt, event.message.rank
    return None


def runs() -> NDArray[np.float64]:
    """Run time of each job, seconds."""
    return np.exp(np.random.default_rng(6).normal(8.0, 1.3, JOBS)).round(3)


def live(policy: Policy, folder: Path, *, limited: bool = False) -> JournalEvents:
    """Two days of jobs under a broker; half of the jobs accept a delay, and may be preempted.

    `limited`: with an announced power limit, in place of prices.
    """
    rng = np.random.default_rng(8)
    submit_s = np.sort(np.round(rng.uniform(600.0, DAYS * 24 * HOUR_S, JOBS), 3))
    runs_s = runs()
    price = with_forecast(synthesize("solar", BEGINS, DAYS + 14, seed=1), 0.2)
    price.write(folder / "price.csv")
    journal = Journal(folder / "journal.sqlite")
    table = EnergyTable(PriceTable(price, AHEAD_H * HOUR_S))
    if limited:
        hour = np.arange((DAYS + 14) * 24) % 24
        values = np.where((hour >= 8) & (hour < 12), LOW_KW, HIGH_KW)
        limit = Series("limit", BEGINS, HOUR_S, values)
        limit.write(folder / "limit.csv")
        table = EnergyTable(None, LimitTable(limit, LIMIT_AHEAD_H * HOUR_S))
    broker = HandBroker(RuleScheduler(policy), journal, limits=LIMITS, now_s=1.0, prices=table)
    for node in range(NODES):
        known: dict[str, Any] = {"gpu_type": "V100", "sm_clocks_mhz": [1380, 690]} if limited else {}
        broker.says(f"n{node}", msgspec.structs.replace(hello(f"n{node}", GPUS), **known))
    day = Day(broker, runs_s.tolist())
    for job in range(JOBS):
        slack_s = float(rng.choice([0.0, 4 * HOUR_S, 24 * HOUR_S]))
        ask = Submit(
            token=f"t{job}",
            command=["true"],
            num_gpus=int(rng.choice([1, 1, 2, 4, 8, 16])),
            time_limit_s=round(runs_s.tolist()[job] * rng.uniform(2.0, 5.0)) if rng.random() < 0.7 else None,
            slack_s=slack_s,
            preemptible=slack_s > 0.0,
        )
        day.at(float(submit_s[job]), ClientAsked(b"peer", job + 1, ask, Peer("admin", "hand")))
    day.pass_by()
    assert all(job.state == "completed" for job in broker.state.jobs.values())
    journal.close()
    return journal_events(folder / "journal.sqlite")


def simulated(
    policy: Policy,
    events: JournalEvents,
    folder: Path,
    *,
    limited: bool = False,
    ahead_h: float = LIMIT_AHEAD_H,
) -> list[tuple[float, Action]]:
    """Starts and preemptions of the simulator, with the jobs, predictions and ends of the journal."""
    submitted: list[tuple[float, JobSubmitted]] = []
    end_s: dict[int, float] = {}
    runs_s = runs()
    for instant in events.instants:
        for change in instant.changes:
            if isinstance(change, JobSubmitted):
                submitted.append((instant.now_s, change))
            elif isinstance(change, AttemptOver) and change.outcome != "queued":
                end_s[change.job] = instant.now_s
    jobs = [job for _, job in submitted]
    trace = Trace.from_columns(
        name="live",
        submit_s=[now_s for now_s, _ in submitted],
        duration_s=runs_s,
        num_gpus=[job.num_gpus for job in jobs],
        time_limit_s=[math.nan if job.time_limit_s is None else job.time_limit_s for job in jobs],
    )
    extra = {
        "slack_s": np.array([job.slack_s for job in jobs]),
        "preemptible": np.array(["true" if job.preemptible else "false" for job in jobs]),
    }
    energy = EnergySignals(price=str(folder / "price.csv"), begins="1970-01-01T00:00Z", known_ahead_h=AHEAD_H)
    nodes = NodeGroup(count=NODES, gpus=GPUS)
    if limited:
        nodes = NodeGroup(count=NODES, gpus=GPUS, gpu_type="V100")
        energy = EnergySignals(
            power_limit=str(folder / "limit.csv"),
            begins="1970-01-01T00:00Z",
            power_limit_known_ahead_h=ahead_h,
        )
    engine = Engine(
        replace(trace, extra=extra),
        ClusterSpec(name="live", nodes=(nodes,), energy=energy),
        models=Models() if limited else None,
        order=policy.rule.order,
        predictions=PredictedTimes(
            np.array([job.predicted_s for job in jobs]), np.array([job.spread for job in jobs])
        ),
        fixed_end_s=np.array([end_s[job.job] for job in jobs]),
        rules=NO_RESTART,
    )
    found: list[tuple[float, Action]] = []
    engine.run(RuleScheduler(policy), on_record=lambda one: found.append((one.now_s, one.action)))
    return [(now_s, action) for now_s, action in found if isinstance(action, Start | Preempt)]


@pytest.mark.parametrize(
    "name", quick(POLICIES, QUICK.__contains__, soak=("only pauses", "window", "percentile"))
)
def test_broker_and_simulator_start_and_pause_the_same_jobs_at_the_same_times(
    name: str, tmp_path: Path
) -> None:
    policy = POLICIES[name]
    events = live(policy, tmp_path)
    decided = [
        (instant.now_s, one.action)
        for instant in events.instants
        for one in instant.decisions
        if isinstance(one.action, Start | Preempt)
    ]
    paused = sum(isinstance(action, Preempt) for _, action in decided)
    assert len(decided) == JOBS + 2 * paused
    assert (paused > 5) == (name not in ("dials", "window", "price-window"))
    assert simulated(policy, events, tmp_path) == decided
    assert simulated(policy.with_settings(price=None, dials=""), events, tmp_path) != decided


def test_broker_and_simulator_follow_an_announced_power_limit_alike(tmp_path: Path) -> None:
    policy = Policy("gittins", preempt=ONLY_PAUSES)
    events = live(policy, tmp_path, limited=True)
    decided = [
        (instant.now_s, one.action)
        for instant in events.instants
        for one in instant.decisions
        if isinstance(one.action, Start | Preempt)
    ]
    assert len(decided) > JOBS, "no job has paused"
    assert simulated(policy, events, tmp_path, limited=True) == decided
    assert simulated(policy, events, tmp_path, limited=True, ahead_h=0.0) != decided
