"""The broker's state machine: who is preempted, who waits for the GPUs, and what restarts make of it."""

from __future__ import annotations

import msgspec
import pytest

from rlsched.broker.attempts import MAX_RETRIES
from rlsched.broker.book import Book
from rlsched.broker.entries import AttemptOver, Decided, JobSubmitted, decode_entry, encode_entry
from rlsched.broker.fakes import HandBroker
from rlsched.broker.journal import Journal
from rlsched.broker.predictions import HEDGE, RUNNING_MEAN, Predictions
from rlsched.broker.replay import journal_events, redecide
from rlsched.decide.actions import Preempt, Start
from rlsched.decide.quota_walk import PreemptiveRule
from rlsched.decide.scheduler import Scheduler, load_scheduler
from rlsched.wire.messages import (
    AttemptReport,
    Cancel,
    EndedAck,
    Explanation,
    Jobs,
    Kill,
    Launch,
    LaunchRefused,
    ListJobs,
    Ok,
    Why,
)
from rlsched_agents.heuristics.preemptive import QuotaWalk
from tests.unit.broker_machine.hand import LIMITS, draft, ended, hello, launched, of_kind, state, submit

GRACE_S = LIMITS.grace_s


def tiresias() -> QuotaWalk:
    """Whoever has had 10 GPU-seconds gives way; asked at every event."""
    return QuotaWalk(PreemptiveRule(name="tiresias", order="submit", threshold_gpu_s=10.0, tick_s=0.0))


def make(journal: Journal, nodes: int = 0, scheduler: Scheduler | None = None) -> HandBroker:
    broker = HandBroker(scheduler or tiresias(), journal, limits=LIMITS)
    for number in range(nodes):
        broker.says(f"n{number}", hello(f"n{number}"))
    return broker


def killed(job: int, attempt: int = 1, rank: int = 0, exit_code: int = 143) -> object:
    return ended(job, attempt, rank, exit_code, "killed")


def preempted(journal: Journal, nodes: int = 1, gpus: int = 4) -> HandBroker:
    """Job 1 had all GPUs for 12 s, then job 2 came: 1 is told to leave, 2 has its GPUs in the ledger."""
    broker = make(journal, nodes)
    broker.ask(submit(nodes * 4, preemptible=True))
    for rank in range(nodes):
        broker.says(f"n{rank}", launched(1, rank=rank))
    broker.wait(12.0, *(f"n{rank}" for rank in range(nodes)))
    broker.ask(submit(gpus))
    return broker


def actions(journal: Journal) -> list[object]:
    return [decided.action for decided in journal_events(journal.path).decisions]


def shape(book: Book) -> list[object]:
    """All that a restart has to find again."""
    jobs = [
        (job.number, job.seq, job.state, job.retries, job.preemptions, job.earlier_s, job.end_s, job.reason)
        + ((msgspec.json.encode(job.attempt),) if job.attempt else ())
        for job in book.jobs.values()
    ]
    nodes = [(name, node.up, sorted(node.live_jobs)) for name, node in book.nodes.items()]
    return [book.cluster.digest(), jobs, nodes, book.asked_for_s, book.decisions]


def replayed(journal: Journal) -> Book:
    book = Book(Predictions(RUNNING_MEAN), "submit")
    book.replay(journal.rows())
    return book


# ---- the order of things ---------------------------------------------------------------------------------


def test_a_preempted_job_is_told_and_its_gpus_are_anothers_when_its_node_says_so(journal: Journal) -> None:
    broker = preempted(journal)
    orders = [message for _, message in broker.sent.orders][-1:]
    assert orders == [Kill(epoch=1, job=1, attempt=1, rank=0, grace_s=GRACE_S)], "and no launch"
    assert actions(journal)[-2:] == [Preempt(seq=0), Start(seq=1, gpus=(0, 1, 2, 3))]
    assert (state(broker, 1), state(broker, 2)) == ("running", "launching")
    out = broker.says("n0", killed(1))
    (launch,) = of_kind(out, Launch)
    assert EndedAck(job=1, attempt=1, rank=0) in out
    assert (launch.job, launch.attempt, launch.grace_s) == (2, 1, None)
    assert state(broker, 1) == "queued"
    broker.says("n0", launched(2))
    out = broker.says("n0", ended(2))
    (again,) = of_kind(out, Launch)
    assert (again.job, again.attempt, again.grace_s) == (1, 2, GRACE_S)
    broker.says("n0", launched(1, 2))
    broker.says("n0", ended(1, 2))
    assert (state(broker, 1), state(broker, 2)) == ("completed", "completed")
    assert (broker.book.jobs[1].preemptions, broker.book.jobs[1].retries) == (1, 0)


def test_a_job_that_leaves_is_asked_about_no_more(journal: Journal) -> None:
    broker = preempted(journal)
    made = len(actions(journal))
    broker.ask(submit(1, preemptible=True))
    broker.wait(25.0, "n0")
    assert [a for a in actions(journal)[made:] if isinstance(a, Preempt | Start)] == []
    assert state(broker, 3) == "queued"


def test_a_job_that_did_not_declare_it_is_never_preempted(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    broker.ask(submit(2))
    broker.ask(submit(2, preemptible=True))
    for job in (1, 2):
        broker.says("n0", launched(job))
    broker.wait(12.0, "n0")
    broker.ask(submit(4))
    assert not any(isinstance(action, Preempt) for action in actions(journal)), "it would make no room"
    broker.ask(submit(2))
    assert [action for action in actions(journal) if isinstance(action, Preempt)] == [Preempt(seq=1)]


def test_a_gang_is_launched_whole_once_the_last_of_its_gpus_is_empty(journal: Journal) -> None:
    broker = preempted(journal, nodes=2, gpus=8)
    told = of_kind([message for _, message in broker.sent.orders], Kill)
    assert [(kill.job, kill.rank) for kill in told] == [(1, 0), (1, 1)]
    assert of_kind(broker.says("n1", killed(1, rank=1)), Launch) == []
    assert state(broker, 1) == "running"
    out = broker.says("n0", killed(1, rank=0))
    assert [(launch.job, launch.rank) for launch in of_kind(out, Launch)] == [(2, 0), (2, 1)]


def test_another_rule_that_preempts_does_it_in_the_same_way(journal: Journal) -> None:
    """`gittins` preempts two jobs, one by one, for a gang that needs the GPUs of both."""
    broker = make(journal, 1, load_scheduler("gittins"))
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


def test_a_small_job_waits_for_its_own_gpus_alone(journal: Journal) -> None:
    broker = preempted(journal, nodes=2, gpus=4)
    (rank,) = broker.book.jobs[2].attempt.ranks  # type: ignore[union-attr]
    number = int(rank.node[1:])
    assert of_kind(broker.says(f"n{1 - number}", killed(1, rank=1 - number)), Launch) == []
    assert [launch.job for launch in of_kind(broker.says(rank.node, killed(1, rank=number)), Launch)] == [2]


def test_who_takes_over_has_its_launch_timeout_from_then_on(journal: Journal) -> None:
    broker = preempted(journal)
    for _ in range(3):
        broker.wait(15.0, "n0")
    assert state(broker, 2) == "launching"
    assert broker.book.jobs[2].attempt.ending == ""  # type: ignore[union-attr]
    broker.says("n0", killed(1))
    broker.wait(15.0, "n0")
    assert broker.book.jobs[2].attempt.ending == ""  # type: ignore[union-attr]
    broker.wait(15.0, "n0")
    assert "did not start it within 30 s" in broker.book.jobs[2].attempt.ending_reason  # type: ignore[union-attr]


def test_an_order_is_repeated_with_the_same_grace(journal: Journal) -> None:
    broker = preempted(journal)
    broker.wait(1.0, "n0")
    out = broker.wait(LIMITS.kill_again_s, "n0")
    assert out == [Kill(epoch=1, job=1, attempt=1, rank=0, grace_s=GRACE_S)]


# ---- how it ends -----------------------------------------------------------------------------------------


def test_a_job_that_finished_in_its_grace_is_finished(journal: Journal) -> None:
    broker = preempted(journal)
    out = broker.says("n0", ended(1, exit_code=0, reason="killed"))
    assert (state(broker, 1), broker.book.jobs[1].exit_code) == ("completed", 0)
    assert [launch.job for launch in of_kind(out, Launch)] == [2]
    assert broker.book.jobs[1].preemptions == 0


def test_a_job_that_failed_before_the_order_came_has_failed(journal: Journal) -> None:
    broker = preempted(journal)
    broker.says("n0", ended(1, exit_code=3, reason=""))
    assert (state(broker, 1), broker.book.jobs[1].exit_code) == ("failed", 3)


def test_a_gang_of_which_one_rank_was_stopped_has_not_failed(journal: Journal) -> None:
    """Its other rank lost the connection, and ended with an error before the order reached it."""
    broker = preempted(journal, nodes=2, gpus=8)
    broker.says("n1", ended(1, rank=1, exit_code=1, reason=""))
    broker.says("n0", killed(1, rank=0))
    assert state(broker, 1) == "queued"
    assert broker.book.jobs[1].reason == "preempted by decision 1 for job 2"


def test_preemptions_use_up_no_retries(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    broker.ask(submit(4, preemptible=True))
    for attempt in range(1, MAX_RETRIES + 3):
        broker.says("n0", launched(1, attempt))
        broker.wait(12.0, "n0")
        broker.ask(submit(4))
        other = len(broker.book.jobs)
        broker.says("n0", killed(1, attempt))
        broker.says("n0", launched(other))
        broker.says("n0", ended(other))
    job = broker.book.jobs[1]
    assert (job.state, job.attempt.number, job.retries) == ("launching", MAX_RETRIES + 3, 0)  # type: ignore[union-attr]
    assert job.preemptions == MAX_RETRIES + 2


def test_a_cancel_ends_a_leaving_job_sooner_and_for_good(journal: Journal) -> None:
    broker = preempted(journal)
    assert broker.ask(Cancel(job=1)) == Ok()
    assert broker.sent.orders[-1][1] == Kill(epoch=1, job=1, attempt=1, rank=0), "with the short grace"
    out = broker.says("n0", killed(1))
    assert state(broker, 1) == "cancelled"
    assert [launch.job for launch in of_kind(out, Launch)] == [2]


def test_a_job_that_is_cancelled_before_its_gpus_are_empty_leaves_them_to_others(journal: Journal) -> None:
    broker = preempted(journal)
    broker.ask(Cancel(job=2))
    assert broker.sent.orders[-1] == ("n0", Kill(epoch=1, job=2, attempt=1, rank=0))
    broker.says("n0", killed(2))
    assert state(broker, 2) == "cancelled"
    out = broker.says("n0", killed(1))
    assert [(launch.job, launch.attempt) for launch in of_kind(out, Launch)] == [(1, 2)]


def test_who_takes_over_may_be_preempted_before_it_ever_ran(journal: Journal) -> None:
    """Job 2 has had the GPUs in the ledger for 12 s; job 3 then waits for both."""
    broker = make(journal, nodes=1)
    broker.ask(submit(4, preemptible=True))
    broker.says("n0", launched(1))
    broker.wait(12.0, "n0")
    broker.ask(submit(4, preemptible=True))
    broker.wait(12.0, "n0")
    broker.ask(submit(4))
    assert broker.book.jobs[3].attempt.leaving == {(1, 0), (2, 0)}  # type: ignore[union-attr]
    assert of_kind(broker.says("n0", killed(2)), Launch) == []
    assert state(broker, 2) == "queued"
    assert [launch.job for launch in of_kind(broker.says("n0", killed(1)), Launch)] == [3]
    assert broker.book.jobs[2].earlier_s == 0.0


def test_a_job_that_is_being_cancelled_may_be_preempted_and_stays_cancelled(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    broker.ask(submit(4, preemptible=True))
    broker.says("n0", launched(1))
    broker.wait(12.0, "n0")
    broker.ask(Cancel(job=1))
    broker.ask(submit(4))
    assert actions(journal)[-2:] == [Preempt(seq=0), Start(seq=1, gpus=(0, 1, 2, 3))]
    out = broker.says("n0", killed(1))
    assert state(broker, 1) == "cancelled"
    assert [launch.job for launch in of_kind(out, Launch)] == [2]


def test_a_lost_node_ends_both(journal: Journal) -> None:
    broker = preempted(journal)
    broker.wait(LIMITS.lease_s)
    assert (state(broker, 1), state(broker, 2)) == ("queued", "queued")
    assert [broker.book.jobs[job].retries for job in (1, 2)] == [0, 1]
    out = broker.says("n0", hello("n0", cluster="c1"))
    assert [(launch.job, launch.attempt) for launch in of_kind(out, Launch)] == [(1, 2)], (
        "waiting counts for 2"
    )


def test_a_rank_that_never_started_is_over_too(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    broker.ask(submit(4, preemptible=True))
    broker.wait(12.0, "n0")
    broker.ask(submit(2))
    out = broker.says("n0", LaunchRefused(job=1, attempt=1, rank=0, message="disk full"))
    assert [launch.job for launch in of_kind(out, Launch)] == [2], "it rests, and keeps who is there"
    assert (state(broker, 1), broker.book.jobs[1].retries) == ("queued", 0)


def test_the_run_time_that_is_learnt_is_that_of_all_attempts(journal: Journal) -> None:
    broker = preempted(journal)
    broker.says("n0", killed(1), after_s=4.0)
    broker.says("n0", launched(2))
    broker.says("n0", ended(2), after_s=5.0)
    broker.says("n0", launched(1, 2))
    began_s = broker.book.jobs[1].attempt.seated_s  # type: ignore[union-attr]
    learnt: list[tuple[int, float]] = []
    broker.book.predictions.ended = (  # type: ignore[method-assign]
        lambda spec, duration_s, _: learnt.append((spec.job, duration_s))
    )
    broker.says("n0", ended(1, 2), after_s=7.0)
    assert learnt == [(1, pytest.approx(12.0 + 4.0 + (broker.now_s - began_s), abs=0.01))]
    assert broker.book.jobs[1].earlier_s == pytest.approx(16.0, abs=0.01)


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
    assert {job.state for job in broker.book.jobs.values()} == {"completed"}
    again = Book(Predictions(HEDGE), "submit")
    again.replay(journal.rows())
    ours, theirs = (book.predictions.stamped([draft(99)], broker.now_s)[0] for book in (broker.book, again))
    assert (ours.predicted_s, ours.spread) == (theirs.predicted_s, theirs.spread)


def test_the_wait_for_empty_gpus_is_no_run_time(journal: Journal) -> None:
    broker = preempted(journal)
    broker.says("n0", killed(1), after_s=20.0)
    learnt: list[float] = []
    broker.book.predictions.ended = lambda _, duration_s, __: learnt.append(duration_s)  # type: ignore[method-assign]
    broker.says("n0", launched(2))
    broker.says("n0", ended(2), after_s=3.0)
    assert learnt == [pytest.approx(3.0, abs=0.01)]


# ---- restarts --------------------------------------------------------------------------------------------


def test_a_restart_in_the_middle_tells_the_node_again_and_launches_nothing(journal: Journal) -> None:
    broker = preempted(journal)
    again = make(journal)
    assert shape(again.book) == shape(broker.book)
    runs = AttemptReport(job=1, attempt=1, rank=0, state="running")
    out = again.says("n0", hello("n0", 4, runs, cluster="c1", epoch=1))
    assert of_kind(out, Kill) == [Kill(epoch=2, job=1, attempt=1, rank=0, grace_s=GRACE_S)]
    assert of_kind(out, Launch) == []
    assert [launch.job for launch in of_kind(again.says("n0", killed(1)), Launch)] == [2]


def test_an_end_while_the_broker_was_away_is_the_answer(journal: Journal) -> None:
    preempted(journal)
    again = make(journal)
    over = AttemptReport(job=1, attempt=1, rank=0, state="ended", exit_code=143, reason="killed")
    out = again.says("n0", hello("n0", 4, over, cluster="c1", epoch=1))
    assert [(launch.job, launch.attempt) for launch in of_kind(out, Launch)] == [(2, 1)]
    assert state(again, 1) == "queued"


def test_a_launch_that_a_crash_swallowed_is_sent_when_the_node_is_back(journal: Journal) -> None:
    broker = preempted(journal)
    broker.says("n0", killed(1))
    again = make(journal)
    assert shape(again.book) == shape(broker.book)
    out = again.says("n0", hello("n0", cluster="c1", epoch=1))
    assert [(launch.job, launch.attempt) for launch in of_kind(out, Launch)] == [(2, 1)]


def test_a_replay_comes_to_the_same_state_after_every_batch(journal: Journal) -> None:
    broker = preempted(journal, nodes=2, gpus=4)
    batches = [
        lambda: broker.ask(submit(8)),
        lambda: broker.says("n0", killed(1, rank=0)),
        lambda: broker.ask(submit(2, preemptible=True)),
        lambda: broker.says("n1", killed(1, rank=1, exit_code=137)),
        lambda: broker.says("n0", launched(2)),
        lambda: broker.wait(12.0, "n0", "n1"),
        lambda: broker.ask(Cancel(job=3)),
        lambda: broker.says("n0", ended(2)),
        lambda: broker.wait(15.0, "n0", "n1"),
        lambda: broker.ask(submit(4)),
        lambda: broker.wait(15.0, "n0"),
    ]
    for number, batch in enumerate(batches):
        assert shape(replayed(journal)) == shape(broker.book), number
        batch()
    assert shape(replayed(journal)) == shape(broker.book)
    preemptions = [action for action in actions(journal) if isinstance(action, Preempt)]
    assert len(preemptions) >= 2
    assert sum(isinstance(row.entry, AttemptOver) for row in journal.rows()) >= 2

    records = [record for kept in broker.records for record in kept.records]
    made = redecide(journal_events(journal.path), tiresias())
    assert len(made) == len(records)
    for theirs, ours in zip(records, made, strict=True):
        assert msgspec.structs.replace(ours, took_us=theirs.took_us) == theirs


def test_a_journal_from_before_replays_and_its_jobs_are_not_preempted() -> None:
    entry = msgspec.structs.replace(draft(1), predicted_s=60.0, spread=1.0, preemptible=True)
    fields = msgspec.msgpack.decode(encode_entry(entry))
    del fields["preemptible"]
    old = decode_entry(msgspec.msgpack.encode(fields))
    assert isinstance(old, JobSubmitted)
    assert old == msgspec.structs.replace(entry, preemptible=False)
    book = Book(Predictions(RUNNING_MEAN), "submit")
    book.apply(old, 1.0)
    assert book.cluster.arrays.job.pinned[book.cluster.slot_of(0)] == 1
    book.apply(msgspec.structs.replace(entry, job=2, token="t2"), 2.0)
    assert book.cluster.arrays.job.pinned[book.cluster.slot_of(1)] == 0


# ---- what people are told --------------------------------------------------------------------------------


def told(broker: HandBroker, job: int) -> str:
    answer = broker.ask(Why(job=job))
    assert isinstance(answer, Explanation)
    return "\n".join([answer.summary, *answer.details])


def listed(broker: HandBroker, job: int) -> object:
    answer = broker.ask(ListJobs(job=job))
    assert isinstance(answer, Jobs)
    return answer.jobs[0]


def test_why_says_who_was_preempted_for_whom(journal: Journal) -> None:
    broker = preempted(journal)
    number = next(
        row.entry.number
        for row in journal.rows()
        if isinstance(row.entry, Decided) and isinstance(row.entry.action, Preempt)
    )
    why = f"preempted by decision {number} for job 2"
    assert f"it is being ended: {why}" in told(broker, 1)
    assert "it waits until job 1, preempted, has left its GPUs" in told(broker, 2)
    info = listed(broker, 1)
    assert (info.preemptible, info.preemptions, info.reason) == (True, 0, f"being ended: {why}")  # type: ignore[attr-defined]
    assert listed(broker, 2).reason == "waits until job 1, preempted, has left its GPUs"  # type: ignore[attr-defined]
    broker.says("n0", killed(1))
    assert f"its last attempt: {why}" in told(broker, 1)
    info = listed(broker, 1)
    assert (info.state, info.preemptions) == ("queued", 1)  # type: ignore[attr-defined]
    assert info.reason.startswith(f"{why}; queued again; needs 4 GPUs")  # type: ignore[attr-defined]
    broker.says("n0", launched(2))
    broker.says("n0", ended(2))
    assert "it was preempted before: 1 of its 2 attempts" in told(broker, 1)
    assert "after its submission as attempt 2, decided by rule" in told(broker, 1)
    assert not listed(broker, 2).preemptible  # type: ignore[attr-defined]


def test_a_record_says_what_was_preempted(journal: Journal) -> None:
    broker = preempted(journal)
    records = [record for kept in broker.records for record in kept.records]
    (record,) = [record for record in records if isinstance(record.action, Preempt)]
    assert (record.action, record.policy_id) == (Preempt(seq=0), "tiresias")
    assert broker.machine.memory.of(0) in records[records.index(record) :], "`why` goes by it"
