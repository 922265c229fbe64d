"""Priorities, ageing and fair share in the broker: queue order, preemption, restarts."""

from __future__ import annotations

import math

import pytest

from rlsched.broker.base.entries import JobsRanked
from rlsched.broker.events import ClientAsked
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.replay import journal_events, redecide
from rlsched.broker.state.broker_state import BrokerState
from rlsched.broker.state.predictions import Predictions
from rlsched.broker.state.priorities import PriorityRules
from rlsched.decide.actions import Preempt
from rlsched.decide.policies.policy import Policy
from rlsched.decide.registry import load_scheduler
from rlsched.decide.scheduler import Scheduler
from rlsched.transport.roles import Peer
from rlsched.wire.messages import (
    AttemptReport,
    DownNode,
    Explanation,
    JobInfo,
    Jobs,
    ListJobs,
    Ok,
    Refused,
    RemoveNode,
    Requeue,
    Submitted,
    Why,
)
from rlsched.workload.predict.kinds import RUNNING_MEAN
from tests.support.broker.hand import LIMITS, ended, hello, launched, state, submit
from tests.support.broker.hand_broker import HandBroker
from tests.support.broker.preempting import actions, killed

DAY_S = 86_400.0
ROOT = Peer("admin", "default", "root")
ADA, BOB = Peer("user", "ada", "ada"), Peer("user", "bob", "bob")


def begin(journal: Journal, policy: Policy | str = "fifo-backfill", **ranks: object) -> HandBroker:
    """A broker on this journal; registers its first node if it had none."""
    scheduler = load_scheduler(policy)
    broker = HandBroker(scheduler, journal, limits=LIMITS, ranks=PriorityRules(**ranks))  # type: ignore[arg-type]
    if not broker.state.nodes:
        broker.says("n0", hello("n0"))
    return broker


def ask(broker: HandBroker, by: Peer, **fields: object) -> object:
    broker.batch([ClientAsked(b"peer", 1, submit(**fields), by)])  # type: ignore[arg-type]
    return broker.sent.replies[-1][2]


def order(broker: HandBroker) -> list[int]:
    """Numbers of waiting jobs in queue order."""
    arrays = broker.state.cluster.arrays
    count = arrays.derived.part.queue_len[0]
    return [broker.state.number_of_seq[int(arrays.job.seq[slot])] for slot in arrays.derived.queue[0, :count]]


def fill(broker: HandBroker, by: Peer = ROOT, **fields: object) -> int:
    """A running job on all GPUs."""
    reply = ask(broker, by, num_gpus=4, **fields)
    assert isinstance(reply, Submitted)
    attempt = broker.state.jobs[reply.job].active
    assert attempt is not None, "it should start at once"
    broker.says("n0", launched(reply.job, attempt.number))
    return reply.job


@pytest.mark.parametrize("policy", ["fifo-backfill", "sjf", "gittins", "tuned"])
def test_jobs_of_a_higher_priority_are_ahead_of_all_others(journal: Journal, policy: str) -> None:
    broker = begin(journal, policy)
    fill(broker)
    for priority in ("low", "normal", "urgent", "high", "normal", "urgent"):
        ask(broker, ROOT, priority=priority, num_gpus=4)
    assert order(broker) == [4, 7, 5, 3, 6, 2]
    again = begin(journal, policy)
    assert order(again) == [4, 7, 5, 3, 6, 2]
    (info,) = again.ask(ListJobs(job=4)).jobs  # type: ignore[union-attr]
    assert info.priority == "urgent"


def test_broker_limits_the_priority_of_users(journal: Journal) -> None:
    broker = begin(journal)
    assert ask(broker, ADA, priority="high") == Refused(
        message="priority high is reserved for admins: use normal or a lower priority, "
        "from lowest to highest: low, normal, high, urgent"
    )
    assert ask(broker, ADA, priority="low") == Submitted(job=1)
    assert ask(broker, ROOT, priority="urgent", user="ada") == Submitted(job=2)
    broker = begin(journal, highest="high")
    assert ask(broker, ADA, priority="high") == Submitted(job=3)
    assert isinstance(ask(broker, ADA, priority="urgent"), Refused)


def test_raised_priority_reserves_at_once(journal: Journal) -> None:
    """Otherwise short jobs without priority would start before it until the next reservation."""
    patient = Policy("fifo-backfill", reserve_after="10d")
    for priority, first in (("normal", True), ("high", False)):
        broker = begin(journal, patient)
        ask(broker, ROOT, num_gpus=3)
        broker.says("n0", launched(broker.state.last_number))
        held = broker.state.last_number
        ask(broker, ROOT, num_gpus=4, priority=priority)
        ask(broker, ROOT, num_gpus=1)
        small = broker.state.last_number
        assert (state(broker, small) == "launching") is first
        for number in [job.number for job in list(broker.state.job_of_seq.values())]:
            if broker.state.jobs[number].active is not None:
                broker.says("n0", ended(number))
        for number in [job.number for job in list(broker.state.job_of_seq.values())]:
            broker.says("n0", launched(number))
            broker.says("n0", ended(number))
        assert state(broker, held) == "completed"


def by_priority() -> Policy:
    return Policy("gittins", preempt={"by": "priority"})


def test_only_lower_priorities_are_preempted(journal: Journal) -> None:
    broker = begin(journal, by_priority(), preemptible="normal")
    fill(broker)
    broker.wait(5000.0, "n0")
    ask(broker, ROOT, num_gpus=1)
    broker.wait(100.0, "n0")
    assert not any(isinstance(action, Preempt) for action in actions(journal)), "not within one priority"
    ask(broker, ROOT, num_gpus=2, priority="high")
    assert Preempt(seq=0) in actions(journal)
    broker.says("n0", killed(1))
    assert (state(broker, 3), state(broker, 2), state(broker, 1)) == ("launching", "launching", "queued")
    broker.says("n0", launched(3))
    ask(broker, ROOT, num_gpus=4, priority="urgent")
    assert [state(broker, job) for job in (2, 3)] == ["launching", "running"], "high is above the maximum"
    assert broker.state.jobs[3].active is not None
    assert not broker.state.jobs[3].active.ending


def test_operator_can_make_a_priority_preemptible(journal: Journal) -> None:
    broker = begin(journal)
    ask(broker, ROOT, priority="low")
    assert not broker.state.jobs[1].spec.preemptible
    broker = begin(journal, preemptible="low")
    ask(broker, ROOT, priority="low")
    ask(broker, ROOT)
    assert [broker.state.jobs[job].spec.preemptible for job in (2, 3)] == [True, False]


def test_heavy_users_are_behind_light_users(journal: Journal) -> None:
    broker = begin(journal, "sjf", half_life_s=DAY_S)
    fill(broker, ADA)
    broker.wait(3600.0, "n0")
    for by in (ADA, BOB):
        ask(broker, by, num_gpus=4)
    broker.wait(61.0, "n0")
    assert order(broker) == [3, 2]
    assert broker.state.priorities.ln_weights["ada"] == pytest.approx(-2.0 * math.log(2.0)), "U = 1, S = 1/2"
    said = broker.ask(Why(job=2))
    assert isinstance(said, Explanation)
    assert "fair share: by the usage of ada, its jobs count 0.25 of others'" in said.details
    again = begin(journal, "sjf", half_life_s=DAY_S)
    assert order(again) == [3, 2]
    assert again.state.usage.usage_by_user(again.now_s, again.state.job_of_seq.values()) == pytest.approx(
        broker.state.usage.usage_by_user(again.now_s, broker.state.job_of_seq.values())
    )


def test_usage_decays(journal: Journal) -> None:
    broker = begin(journal, "sjf", half_life_s=3600.0)
    first = fill(broker, ADA)
    broker.wait(3600.0, "n0")
    broker.says("n0", ended(first))
    running: list[object] = []
    used = broker.state.usage.usage_by_user(broker.now_s, running)["ada"]  # type: ignore[arg-type]
    assert used == pytest.approx(4 * 3600.0 * 0.5 / math.log(2.0), rel=1e-2), "the integral of 2^(-t / 1 h)"
    later = broker.state.usage.usage_by_user(broker.now_s + 7200.0, running)["ada"]  # type: ignore[arg-type]
    assert later == pytest.approx(used / 4.0)


def test_weights_are_dropped_without_fair_share(journal: Journal) -> None:
    broker = begin(journal, "sjf", half_life_s=DAY_S)
    fill(broker, ADA)
    broker.wait(3600.0, "n0")
    for by in (ADA, BOB):
        ask(broker, by, num_gpus=4)
    broker.wait(61.0, "n0")
    assert order(broker) == [3, 2]
    again = begin(journal, "sjf")
    again.wait(1.0, "n0")
    assert not again.state.priorities.ln_weights
    assert order(again) == [2, 3]


def test_ageing_stops_at_high(journal: Journal) -> None:
    broker = begin(journal, age_s=DAY_S)
    fill(broker)
    for priority in ("high", "low", "urgent"):
        ask(broker, ROOT, num_gpus=4, priority=priority)
    assert order(broker) == [4, 2, 3]
    broker.now_s += DAY_S
    broker.wait(61.0, "n0")
    assert [broker.state.priorities.level(job) for job in (2, 3, 4)] == [1, 0, 2]
    broker.now_s += 4 * DAY_S
    broker.wait(61.0, "n0")
    assert [broker.state.priorities.level(job) for job in (2, 3, 4)] == [1, 1, 2]
    assert order(broker) == [4, 2, 3]
    said = broker.ask(Why(job=3))
    assert isinstance(said, Explanation)
    assert "submitted with priority low, and has waited itself up to high" in said.details


@pytest.mark.parametrize("policy", ["sjf", "fifo-backfill"])
def test_journal_with_priorities_and_shares_replays_alike(journal: Journal, policy: str) -> None:
    broker = begin(journal, policy, half_life_s=DAY_S, age_s=3600.0)
    for round_ in range(12):
        for by in (ADA, BOB):
            ask(broker, ROOT, user=by.person, num_gpus=1 + round_ % 4, priority=("low", "high")[round_ % 2])
        for job in list(broker.state.job_of_seq.values()):
            if job.state == "launching" and job.active is not None:
                broker.says("n0", launched(job.number, job.active.number))
        broker.wait(900.0, "n0")
        for job in [job for job in broker.state.job_of_seq.values() if job.state == "running"][:1]:
            assert job.active is not None
            broker.says("n0", ended(job.number, job.active.number))
    assert any(isinstance(row.entry, JobsRanked) for row in journal.rows())
    made = [record for batch in broker.records for record in batch.records]
    again = redecide(journal_events(journal.path), scheduler(policy))
    assert [(one.number, one.action) for one in again] == [(one.number, one.action) for one in made]
    state = BrokerState(Predictions(RUNNING_MEAN), scheduler(policy).order, DAY_S)
    state.replay(journal.rows())
    assert state.cluster.digest() == broker.state.cluster.digest()


def scheduler(policy: str) -> Scheduler:
    return load_scheduler(policy)


def test_queue_shows_the_priority(journal: Journal) -> None:
    broker = begin(journal)
    ask(broker, ROOT, priority="high")
    reply = broker.ask(ListJobs())
    assert isinstance(reply, Jobs)
    (info,) = reply.jobs
    assert isinstance(info, JobInfo)
    assert info.priority == "high"


def stopped(job: int, rank: int) -> AttemptReport:
    return AttemptReport(job=job, attempt=1, rank=rank, state="ended", exit_code=143, reason="node_stopped")


@pytest.mark.parametrize("policy", ["fifo-backfill", "sjf", "gittins", "tuned"])
def test_gang_ended_with_its_nodes_starts_before_a_later_smaller_job(journal: Journal, policy: str) -> None:
    """The whole cluster is stopped, the broker first, and started again; nodes register one by one."""
    broker = begin(journal, policy)
    broker.says("n1", hello("n1"))
    ask(broker, ROOT, num_gpus=8)
    for rank in range(2):
        broker.says(f"n{rank}", launched(1, rank=rank))
    ask(broker, ROOT, num_gpus=1)
    assert [state(broker, job) for job in (1, 2)] == ["running", "queued"]
    again, identity = begin(journal, policy), broker.state.identity
    for rank in range(2):
        again.says(f"n{rank}", hello(f"n{rank}", 4, stopped(1, rank), cluster=identity, epoch=1))
    attempt = again.state.jobs[1].attempt
    assert attempt is not None
    assert (state(again, 1), attempt.number, state(again, 2)) == ("launching", 2, "queued")
    made = redecide(journal_events(journal.path), load_scheduler(policy))
    assert [record.action for record in made] == actions(journal)


def test_job_ended_with_its_node_is_one_priority_higher_and_why_shows_it(journal: Journal) -> None:
    broker = begin(journal, "tuned")
    fill(broker)
    ask(broker, ROOT, num_gpus=4, priority="urgent")
    broker.says("n0", ended(1, exit_code=143, reason="node_stopped"))
    assert [(state(broker, job), broker.state.priorities.level(job)) for job in (1, 2)] == [
        ("queued", 1),
        ("launching", 2),
    ]
    said = broker.ask(Why(job=1))
    assert isinstance(said, Explanation)
    assert "submitted with priority normal, and goes as high: it was ended with its node" in said.details
    assert begin(journal, "tuned").state.priorities.level(1) == 1


@pytest.mark.parametrize("order", [DownNode(node="n0"), RemoveNode(node="n0")], ids=["down", "removed"])
def test_job_of_a_node_declared_down_is_one_priority_higher(
    journal: Journal, order: DownNode | RemoveNode
) -> None:
    broker = begin(journal, "tuned")
    fill(broker, lost_after_s=0.0)
    broker.wait(LIMITS.lease_s)
    assert broker.ask(order) == Ok()
    assert (state(broker, 1), broker.state.jobs[1].losses) == ("queued", 1)
    assert broker.state.priorities.level(1) == 1
    said = broker.ask(Why(job=1))
    assert isinstance(said, Explanation)
    assert "submitted with priority normal, and goes as high: it was ended with its node" in said.details
    assert begin(journal, "tuned").state.priorities.level(1) == 1


@pytest.mark.parametrize("is_back", [True, False], ids=["back without it", "unreachable too long"])
def test_job_of_a_lost_node_keeps_its_priority(journal: Journal, is_back: bool) -> None:
    broker = begin(journal, "tuned")
    fill(broker, lost_after_s=LIMITS.lost_after_s)
    if is_back:
        broker.says("n0", hello("n0", cluster=broker.state.identity, epoch=1))
    else:
        broker.wait(LIMITS.lost_after_s)
    assert (broker.state.jobs[1].losses, broker.state.priorities.level(1)) == (1, 0)


def test_job_requeued_for_another_reason_keeps_its_priority(journal: Journal) -> None:
    broker = begin(journal, "tuned")
    fill(broker)
    assert broker.ask(Requeue(job=1)) == Ok()
    broker.says("n0", killed(1))
    assert (broker.state.jobs[1].attempts, broker.state.priorities.level(1)) == (2, 0)
