"""Two days with prices under a broker and under the simulator: the same starts and pauses at the same times.

The broker is the real machine on a real journal. Its clock jumps from event to event, and its nodes answer
after a millisecond. The simulator gets the jobs, the predictions and the ends of the journal. In some of the
days, nodes sleep and are woken.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from rlsched.broker.base.entries import AttemptOver, JobSubmitted, NodeSlept, NodeWoken
from rlsched.broker.base.limits import Limits
from rlsched.broker.events import ClientAsked, Due, Event, NodeSaid, PowerNode
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.replay import JournalEvents, journal_events
from rlsched.broker.nodes.sleepers import SleepPlan
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
from rlsched.models.power import NodePower
from rlsched.power_down import Command, NodeStates, PowerDown, Sleep, Wake
from rlsched.power_down.plan import PowerDownPlan
from rlsched.settings import Seconds
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
FEWER = 5
"""If nodes sleep, one in so many jobs is submitted."""
SHUTDOWN_S, BOOT_S = 60.0, 450.0
KNOWN: dict[str, Any] = {"gpu_type": "V100", "sm_clocks_mhz": [1380, 690]}
"""Fields of a node's registration that determine the power of its GPUs."""
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
    "spare": Policy("gittins", preempt=ONLY_PAUSES, price={"defer": 5.0, "pause": 5.0, "spare": 1.0}),
    "only pauses": Policy("gittins", preempt=ONLY_PAUSES, price={"pause": 5.0}),
    "window": Policy("gittins", preempt=ONLY_PAUSES, price={"window": True}),
    "percentile": Policy("gittins", preempt=ONLY_PAUSES, price={"percentile": 0.3}),
    "price-window": Policy("price-window", preempt=ONLY_PAUSES),
    "price-percentile": Policy("price-percentile", preempt=ONLY_PAUSES),
    "dials": with_dials(),
    "order by slack": Policy("gittins", preempt=ONLY_PAUSES, slack={}),
}


QUICK = ("deferrals and pauses", "order by slack")
"""Policies that `make test` runs."""


@dataclass
class Day:
    """Nodes and users of a broker whose clock jumps from event to event."""

    broker: HandBroker
    runs_s: list[float]
    due: list[tuple[float, int, Event]] = field(default_factory=list)
    number: Iterator[int] = field(default_factory=itertools.count)
    begun_s: dict[int, float] = field(default_factory=dict)
    powered: int = 0

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

    def power(self, order: PowerNode, now_s: float) -> None:
        """Act as the operator's commands do: a node that is powered up registers once it has booted."""
        if order.order == "resume":
            booted = hello(order.node, GPUS, cluster="c1")
            self.at(now_s + BOOT_S, NodeSaid(order.node, 0, msgspec.structs.replace(booted, **KNOWN)))

    def pass_by(self) -> None:
        """Let time pass until all jobs have ended."""
        while self.due or self.broker.state.job_of_seq:
            event_s = self.due[0][0] if self.due else math.inf
            next_s = min(event_s, max(self.broker.machine.due_s(), round(self.broker.now_s + ANSWER_S, 3)))
            events: list[Event] = [] if event_s <= next_s else [Due()]
            while self.due and self.due[0][0] <= next_s:
                events.append(heapq.heappop(self.due)[2])
            orders = len(self.broker.sent.orders)
            self.broker.batch(events, after_s=next_s - self.broker.now_s)
            for node, order in self.broker.sent.orders[orders:]:
                self.obey(node, order, self.broker.now_s)
            for power in self.broker.powered[self.powered :]:
                self.power(power, self.broker.now_s)
            self.powered = len(self.broker.powered)


def _rank_of(event: Event) -> tuple[int, int, int] | None:
    if isinstance(event, NodeSaid) and isinstance(event.message, Ended):
        return event.message.job, event.message.attempt, event.message.rank
    return None


def runs() -> NDArray[np.float64]:
    """Run time of each job, seconds."""
    return np.exp(np.random.default_rng(6).normal(8.0, 1.3, JOBS)).round(3)


def live(
    policy: Policy, folder: Path, *, limited: bool = False, plan: PowerDownPlan | None = None
) -> JournalEvents:
    """Two days of jobs under a broker; half of the jobs accept a delay, and may be preempted.

    `limited`: with an announced power limit, in place of prices. `plan`: nodes sleep by this plan; one in
    `FEWER` jobs is submitted.
    """
    rng = np.random.default_rng(8)
    submit_s = np.sort(np.round(rng.uniform(600.0, DAYS * 24 * HOUR_S, JOBS), 3))
    if plan is not None:
        submit_s = submit_s[::FEWER]
        submit_s[0] = 2.0  # the simulator begins with the first job
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
    sleep = None
    if plan is not None:
        sleep = SleepPlan(plan=plan, suspend_timeout_s=SHUTDOWN_S, resume_timeout_s=HOUR_S)
    broker = HandBroker(RuleScheduler(policy), journal, limits=LIMITS, now_s=1.0, prices=table, sleep=sleep)
    for node in range(NODES):
        known = KNOWN if limited or plan else {}
        broker.says(f"n{node}", msgspec.structs.replace(hello(f"n{node}", GPUS), **known))
    day = Day(broker, runs_s.tolist())
    for job in range(len(submit_s)):
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
    plan: PowerDownPlan | None = None,
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
        duration_s=runs_s[: len(jobs)],
        num_gpus=[job.num_gpus for job in jobs],
        time_limit_s=[math.nan if job.time_limit_s is None else job.time_limit_s for job in jobs],
    )
    extra = {
        "slack_s": np.array([job.slack_s for job in jobs]),
        "preemptible": np.array(["true" if job.preemptible else "false" for job in jobs]),
    }
    energy = EnergySignals(price=str(folder / "price.csv"), begins="1970-01-01T00:00Z", known_ahead_h=AHEAD_H)
    nodes = NodeGroup(count=NODES, gpus=GPUS)
    if limited or plan is not None:
        nodes = NodeGroup(count=NODES, gpus=GPUS, gpu_type="V100")
    if limited:
        energy = EnergySignals(
            power_limit=str(folder / "limit.csv"),
            begins="1970-01-01T00:00Z",
            power_limit_known_ahead_h=ahead_h,
        )
    models = Models(power_down=plan, node_power=NodePower(boot_s=BOOT_S, shutdown_s=SHUTDOWN_S))
    engine = Engine(
        replace(trace, extra=extra),
        ClusterSpec(name="live", nodes=(nodes,), energy=energy),
        models=models if limited or plan is not None else None,
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
    assert (paused > 5) == (name not in ("dials", "window", "price-window", "order by slack"))
    assert simulated(policy, events, tmp_path) == decided
    plain = policy.with_settings(price=None, dials="", slack=None)
    assert simulated(plain, events, tmp_path) != decided


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


# ---- nodes that sleep -----------------------------------------------------------------------------

MOST_LATE_S = 0.0045
"""Processes need a millisecond to end, and a broker reviews the nodes a millisecond after decisions, or after
these processes have ended. A node that is woken later boots later.
"""
PLAN = PowerDownPlan(
    over=Seconds(1_800.0),
    falling=Seconds(0.0),
    buffer_nodes=0,
    wake_buffer_nodes=0,
    ramp_nodes=0,
    review=Seconds(120.0),
)


def changed(**settings: Any) -> PowerDownPlan:
    """`PLAN` with other settings; numbers are times, in seconds."""
    of_plan = {k: Seconds(v) if isinstance(v, float) else v for k, v in settings.items()}
    return msgspec.structs.replace(PLAN, **of_plan)


PLANS = {
    "paused and idle": PLAN,
    "idle time": changed(forecast="persistence", idle=900.0, slot=60.0, review=60.0),
    "odd times": changed(over=1_260.0, slot=420.0, review=50.0),
    "headroom": changed(headroom_nodes=1, ramp_nodes=1, falling=1_200.0),
}
QUICK_PLANS = ("paused and idle",)


class Noted(PowerDownPlan, frozen=True, kw_only=True):
    """A plan that notes the commands of its services as (time, `sleep` or `wake`, node)."""

    noted: list[tuple[float, str, str]] = msgspec.field(default_factory=list)

    def services(self, sizes: Sequence[int]) -> list[PowerDown]:
        """See `PowerDownPlan`."""
        return [_NotedService(one, self.noted) for one in super().services(sizes)]


@dataclass
class _NotedService:
    service: PowerDown
    noted: list[tuple[float, str, str]]

    def review(
        self,
        now_s: float,
        busy_nodes: NDArray[np.bool_],
        waiting_nodes: int,
        states: NodeStates,
        paused_nodes: int = 0,
    ) -> list[Command]:
        """See `PowerDown`."""
        commands = self.service.review(now_s, busy_nodes, waiting_nodes, states, paused_nodes)
        for one in commands:
            if isinstance(one, Sleep | Wake):
                self.noted.append((now_s, "sleep" if isinstance(one, Sleep) else "wake", f"n{one.node}"))
        return commands


def told(now_s: float, action: Action) -> tuple[float, str, int, tuple[int, ...]]:
    """A decision as (time, kind, job, GPUs)."""
    assert isinstance(action, Start | Preempt)
    return now_s, type(action).__name__, action.seq, action.gpus if isinstance(action, Start) else ()


def agree(first: Sequence[tuple[Any, ...]], then: Sequence[tuple[Any, ...]]) -> bool:
    """Return whether both have the same rows, whose times differ by at most `MOST_LATE_S`."""
    return [one[1:] for one in first] == [one[1:] for one in then] and all(
        abs(one[0] - other[0]) <= MOST_LATE_S for one, other in zip(first, then, strict=True)
    )


@pytest.mark.parametrize("name", quick(PLANS, QUICK_PLANS.__contains__))
def test_broker_and_simulator_put_the_same_nodes_to_sleep_and_wake_them_at_the_same_times(
    name: str, tmp_path: Path
) -> None:
    policy, plan = POLICIES["deferrals and pauses"], PLANS[name]
    events = live(policy, tmp_path, plan=plan)
    decided = [
        told(instant.now_s, one.action)
        for instant in events.instants
        for one in instant.decisions
        if isinstance(one.action, Start | Preempt)
    ]
    ordered = [
        (instant.now_s, "sleep" if isinstance(change, NodeSlept) else "wake", change.name)
        for instant in events.instants
        for change in instant.changes
        if isinstance(change, NodeSlept | NodeWoken)
    ]
    assert sum(one[1] == "Preempt" for one in decided) > 5, "jobs pause"
    assert sum(one[1] == "wake" for one in ordered) > 20
    noted = Noted(**msgspec.structs.asdict(plan))
    found = simulated(policy, events, tmp_path, plan=noted)
    assert agree([told(*one) for one in found], decided)
    assert agree(noted.noted, ordered)
    awake = simulated(policy, events, tmp_path, plan=PowerDownPlan(buffer_nodes=NODES))
    assert not agree([told(*one) for one in awake], decided)
