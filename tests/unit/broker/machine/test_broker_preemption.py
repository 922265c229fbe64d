"""The broker's state machine: preempted jobs, jobs that wait for their GPUs, and the outcomes for both."""

from __future__ import annotations

import pytest

from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.replay import journal_events, redecide
from rlsched.broker.nodes.launches import MAX_RETRIES
from rlsched.broker.state.broker_state import BrokerState
from rlsched.broker.state.predictions import HEDGE, Predictions
from rlsched.decide.actions import Preempt, Start
from rlsched.decide.order.keys import Order
from rlsched.decide.registry import load_scheduler
from rlsched.wire.messages import (
    Cancel,
    EndedAck,
    Kill,
    Launch,
    LaunchRefused,
    Ok,
)
from tests.support.broker.hand import LIMITS, draft, ended, hello, launched, of_kind, state, submit
from tests.support.broker.hand_broker import HandBroker
from tests.support.broker.preempting import (
    GRACE_S,
    actions,
    killed,
    make_preempting,
    preempted,
    tiresias,
)

# ---- order of events -------------------------------------------------------------------------------------


def test_preempted_job_is_killed_and_its_gpus_are_reused_once_its_node_reports_the_end(
    journal: Journal,
) -> None:
    broker = preempted(journal)
    orders = [message for _, message in broker.sent.orders][-1:]
    assert orders == [Kill(epoch=1, job=1, attempt=1, rank=0, grace_s=GRACE_S, again=True)], "and no launch"
    assert actions(journal)[-2:] == [Preempt(seq=0), Start(seq=1, gpus=(0, 1, 2, 3))]
    assert (state(broker, 1), state(broker, 2)) == ("running", "launching")
    out = broker.says("n0", killed(1))
    (launch,) = of_kind(out, Launch)
    assert EndedAck(job=1, attempt=1, rank=0) in out
    assert (launch.job, launch.attempt, launch.grace_s) == (2, 1, GRACE_S)
    assert state(broker, 1) == "queued"
    broker.says("n0", launched(2))
    out = broker.says("n0", ended(2))
    (again,) = of_kind(out, Launch)
    assert (again.job, again.attempt, again.grace_s) == (1, 2, GRACE_S)
    broker.says("n0", launched(1, 2))
    broker.says("n0", ended(1, 2))
    assert (state(broker, 1), state(broker, 2)) == ("completed", "completed")
    assert (broker.state.jobs[1].preemptions, broker.state.jobs[1].retries) == (1, 0)


def test_job_that_is_being_preempted_is_no_longer_a_candidate(journal: Journal) -> None:
    broker = preempted(journal)
    made = len(actions(journal))
    broker.ask(submit(1, preemptible=True))
    broker.wait(25.0, "n0")
    assert [a for a in actions(journal)[made:] if isinstance(a, Preempt | Start)] == []
    assert state(broker, 3) == "queued"


def test_job_not_declared_preemptible_is_never_preempted(journal: Journal) -> None:
    broker = make_preempting(journal, nodes=1)
    broker.ask(submit(2))
    broker.ask(submit(2, preemptible=True))
    for job in (1, 2):
        broker.says("n0", launched(job))
    broker.wait(12.0, "n0")
    broker.ask(submit(4))
    assert not any(isinstance(action, Preempt) for action in actions(journal)), "it would make no room"
    broker.ask(submit(2))
    assert [action for action in actions(journal) if isinstance(action, Preempt)] == [Preempt(seq=1)]


def test_gang_is_launched_once_its_last_gpu_is_free(journal: Journal) -> None:
    broker = preempted(journal, nodes=2, gpus=8)
    told = of_kind([message for _, message in broker.sent.orders], Kill)
    assert [(kill.job, kill.rank) for kill in told] == [(1, 0), (1, 1)]
    assert of_kind(broker.says("n1", killed(1, rank=1)), Launch) == []
    assert state(broker, 1) == "running"
    out = broker.says("n0", killed(1, rank=0))
    assert [(launch.job, launch.rank) for launch in of_kind(out, Launch)] == [(2, 0), (2, 1)]


def test_gittins_preempts_in_the_same_way(journal: Journal) -> None:
    """`gittins` preempts two jobs, one by one, for a gang that needs the GPUs of both."""
    broker = make_preempting(journal, 1, load_scheduler("gittins"))
    for job in (1, 2):
        broker.ask(submit(2, preemptible=True))
        broker.says("n0", launched(job))
    for _ in range(20):
        broker.wait(15.0, "n0")
    broker.ask(submit(4, preemptible=True, time_limit_s=30.0))
    assert actions(journal)[-3:] == [Preempt(seq=0), Preempt(seq=1), Start(seq=2, gpus=(0, 1, 2, 3))]
    assert of_kind(broker.says("n0", killed(2)), Launch) == []
    assert [launch.job for launch in of_kind(broker.says("n0", killed(1)), Launch)] == [3]
    assert (state(broker, 1), state(broker, 2)) == ("queued", "queued")
    records = [record for kept in broker.records for record in kept.records]
    made = redecide(journal_events(journal.path), load_scheduler("gittins"))
    assert [record.action for record in made] == [record.action for record in records]
    assert [record.state_digest for record in made] == [record.state_digest for record in records]


def test_small_job_waits_only_for_its_own_gpus(journal: Journal) -> None:
    broker = preempted(journal, nodes=2, gpus=4)
    (rank,) = broker.state.jobs[2].attempt.ranks  # type: ignore[union-attr]
    number = int(rank.node[1:])
    assert of_kind(broker.says(f"n{1 - number}", killed(1, rank=1 - number)), Launch) == []
    assert [launch.job for launch in of_kind(broker.says(rank.node, killed(1, rank=number)), Launch)] == [2]


def test_launch_timeout_counts_from_the_launch(journal: Journal) -> None:
    broker = preempted(journal)
    for _ in range(3):
        broker.wait(15.0, "n0")
    assert state(broker, 2) == "launching"
    assert broker.state.jobs[2].attempt.ending == ""  # type: ignore[union-attr]
    broker.says("n0", killed(1))
    broker.wait(15.0, "n0")
    assert broker.state.jobs[2].attempt.ending == ""  # type: ignore[union-attr]
    broker.wait(15.0, "n0")
    assert "did not start it within 30 s" in broker.state.jobs[2].attempt.ending_reason  # type: ignore[union-attr]


def test_kill_is_repeated_with_the_same_grace(journal: Journal) -> None:
    broker = preempted(journal)
    broker.wait(1.0, "n0")
    out = broker.wait(LIMITS.kill_again_s, "n0")
    assert out == [Kill(epoch=1, job=1, attempt=1, rank=0, grace_s=GRACE_S, again=True)]


# ---- outcomes -------------------------------------------------------------------------------------------


def test_job_that_completes_within_its_grace_is_completed(journal: Journal) -> None:
    broker = preempted(journal)
    out = broker.says("n0", ended(1, exit_code=0, reason="killed"))
    assert (state(broker, 1), broker.state.jobs[1].exit_code) == ("completed", 0)
    assert [launch.job for launch in of_kind(out, Launch)] == [2]
    assert broker.state.jobs[1].preemptions == 0
    assert broker.state.jobs[1].reason == (
        "it was preempted by decision 1 for job 2, and left exit code 0: the job is done"
    )


def test_job_that_completed_before_the_kill_has_no_preemption(journal: Journal) -> None:
    broker = preempted(journal)
    broker.says("n0", ended(1, exit_code=0))
    assert (state(broker, 1), broker.state.jobs[1].reason) == ("completed", "")


def test_job_that_failed_before_the_kill_is_failed(journal: Journal) -> None:
    broker = preempted(journal)
    broker.says("n0", ended(1, exit_code=3, reason=""))
    assert (state(broker, 1), broker.state.jobs[1].exit_code) == ("failed", 3)


def test_gang_with_one_preempted_rank_is_not_failed(journal: Journal) -> None:
    """Its other rank lost the connection and exited with an error before it received the kill."""
    broker = preempted(journal, nodes=2, gpus=8)
    broker.says("n1", ended(1, rank=1, exit_code=1, reason=""))
    broker.says("n0", killed(1, rank=0))
    assert state(broker, 1) == "queued"
    assert broker.state.jobs[1].reason == "preempted by decision 1 for job 2"


def test_preemptions_use_up_no_retries(journal: Journal) -> None:
    broker = make_preempting(journal, nodes=1)
    broker.ask(submit(4, preemptible=True))
    for attempt in range(1, MAX_RETRIES + 3):
        broker.says("n0", launched(1, attempt))
        broker.wait(12.0, "n0")
        broker.ask(submit(4))
        other = len(broker.state.jobs)
        broker.says("n0", killed(1, attempt))
        broker.says("n0", launched(other))
        broker.says("n0", ended(other))
    job = broker.state.jobs[1]
    assert (job.state, job.attempt.number, job.retries) == ("launching", MAX_RETRIES + 3, 0)  # type: ignore[union-attr]
    assert job.preemptions == MAX_RETRIES + 2


def test_cancelled_job_is_not_requeued_after_its_preemption(journal: Journal) -> None:
    broker = preempted(journal)
    assert broker.ask(Cancel(job=1)) == Ok()
    assert broker.sent.orders[-1][1] == Kill(epoch=1, job=1, attempt=1, rank=0), "not requeued"
    out = broker.says("n0", killed(1))
    assert state(broker, 1) == "cancelled"
    assert [launch.job for launch in of_kind(out, Launch)] == [2]


def test_job_cancelled_before_its_gpus_are_free_releases_them(journal: Journal) -> None:
    broker = preempted(journal)
    broker.ask(Cancel(job=2))
    assert broker.sent.orders[-1] == ("n0", Kill(epoch=1, job=2, attempt=1, rank=0))
    broker.says("n0", killed(2))
    assert state(broker, 2) == "cancelled"
    out = broker.says("n0", killed(1))
    assert [(launch.job, launch.attempt) for launch in of_kind(out, Launch)] == [(1, 2)]


def test_job_that_waits_for_gpus_can_be_preempted_before_its_launch(journal: Journal) -> None:
    """Job 2 has had the GPUs in the ledger for 12 s; then job 3 needs both."""
    broker = make_preempting(journal, nodes=1)
    broker.ask(submit(4, preemptible=True))
    broker.says("n0", launched(1))
    broker.wait(12.0, "n0")
    broker.ask(submit(4, preemptible=True))
    broker.wait(12.0, "n0")
    broker.ask(submit(4))
    assert broker.state.jobs[3].attempt.leaving == {(1, 0), (2, 0)}  # type: ignore[union-attr]
    assert of_kind(broker.says("n0", killed(2)), Launch) == []
    assert state(broker, 2) == "queued"
    assert [launch.job for launch in of_kind(broker.says("n0", killed(1)), Launch)] == [3]
    assert broker.state.jobs[2].earlier_s == 0.0


def test_job_being_cancelled_can_be_preempted_and_stays_cancelled(journal: Journal) -> None:
    broker = make_preempting(journal, nodes=1)
    broker.ask(submit(4, preemptible=True))
    broker.says("n0", launched(1))
    broker.wait(12.0, "n0")
    broker.ask(Cancel(job=1))
    broker.ask(submit(4))
    assert actions(journal)[-2:] == [Preempt(seq=0), Start(seq=1, gpus=(0, 1, 2, 3))]
    out = broker.says("n0", killed(1))
    assert state(broker, 1) == "cancelled"
    assert [launch.job for launch in of_kind(out, Launch)] == [2]


def test_lost_node_ends_both_jobs(journal: Journal) -> None:
    broker = preempted(journal)
    broker.wait(LIMITS.lease_s)
    assert (state(broker, 1), state(broker, 2)) == ("queued", "queued")
    assert [broker.state.jobs[job].losses for job in (1, 2)] == [0, 1]
    out = broker.says("n0", hello("n0", cluster="c1"))
    assert [(launch.job, launch.attempt) for launch in of_kind(out, Launch)] == [(1, 2)], (
        "waiting counts for 2"
    )


def test_successor_is_named_once_after_repeated_starts(journal: Journal) -> None:
    """Node n1 is lost before job 1 has left n0: job 2 starts there instead and waits for job 1 again."""
    broker = preempted(journal, nodes=2, gpus=8)
    broker.wait(LIMITS.lease_s, "n0")
    broker.says("n0", killed(2))
    assert state(broker, 2) == "queued"
    broker.says("n1", hello("n1", cluster="c1"))
    assert broker.state.jobs[2].attempt.number == 2  # type: ignore[union-attr]
    assert broker.state.jobs[1].attempt.ending_reason.count("job 2") == 1  # type: ignore[union-attr]


def test_rank_that_never_started_counts_as_ended(journal: Journal) -> None:
    broker = make_preempting(journal, nodes=1)
    broker.ask(submit(4, preemptible=True))
    broker.wait(12.0, "n0")
    broker.ask(submit(2))
    out = broker.says("n0", LaunchRefused(job=1, attempt=1, rank=0, message="disk full"))
    assert [launch.job for launch in of_kind(out, Launch)] == [2], "it is drained and keeps its jobs"
    assert (state(broker, 1), broker.state.jobs[1].retries) == ("queued", 0)


def test_predictor_learns_the_run_time_of_all_attempts(journal: Journal) -> None:
    broker = preempted(journal)
    broker.says("n0", killed(1), after_s=4.0)
    broker.says("n0", launched(2))
    broker.says("n0", ended(2), after_s=5.0)
    broker.says("n0", launched(1, 2))
    began_s = broker.state.jobs[1].attempt.seated_s  # type: ignore[union-attr]
    learnt: list[tuple[int, float]] = []
    broker.state.predictions.record_run_time = (  # type: ignore[method-assign]
        lambda spec, duration_s, _: learnt.append((spec.job, duration_s))
    )
    broker.says("n0", ended(1, 2), after_s=7.0)
    assert learnt == [(1, pytest.approx(12.0 + 4.0 + (broker.now_s - began_s), abs=0.01))]
    assert broker.state.jobs[1].earlier_s == pytest.approx(16.0, abs=0.01)


def test_the_hedge_learns_from_preempted_jobs_and_is_rebuilt_from_them(journal: Journal) -> None:
    pytest.importorskip("sklearn")
    broker = HandBroker(tiresias(), journal, limits=LIMITS, prediction=HEDGE)
    broker.says("n0", hello("n0"))
    for job in (1, 3):
        broker.ask(submit(4, preemptible=True))
        broker.says("n0", launched(job))
        broker.wait(12.0, "n0")
        broker.ask(submit(4))
        broker.says("n0", killed(job), after_s=4.0)
        broker.says("n0", launched(job + 1))
        broker.says("n0", ended(job + 1), after_s=5.0)
        broker.says("n0", launched(job, 2))
        broker.says("n0", ended(job, 2), after_s=7.0)
    assert {job.state for job in broker.state.jobs.values()} == {"completed"}
    again = BrokerState(Predictions(HEDGE), Order())
    again.replay(journal.rows())
    ours, theirs = (
        state.predictions.predict([draft(99)], broker.now_s)[0] for state in (broker.state, again)
    )
    assert (ours.predicted_s, ours.spread) == (theirs.predicted_s, theirs.spread)


def test_wait_for_free_gpus_is_not_run_time(journal: Journal) -> None:
    broker = preempted(journal)
    broker.says("n0", killed(1), after_s=20.0)
    learnt: list[float] = []
    broker.state.predictions.record_run_time = lambda _, duration_s, __: learnt.append(duration_s)  # type: ignore[method-assign]
    broker.says("n0", launched(2))
    broker.says("n0", ended(2), after_s=3.0)
    assert learnt == [pytest.approx(3.0, abs=0.01)]
