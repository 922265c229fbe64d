"""The broker's state machine: preemptions across restarts, and their explanations."""

from __future__ import annotations

import msgspec

from rlsched.broker.base.entries import AttemptOver, Decided, JobSubmitted, decode_entry, encode_entry
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.replay import journal_events, redecide
from rlsched.broker.state.broker_state import BrokerState
from rlsched.broker.state.predictions import RUNNING_MEAN, Predictions
from rlsched.decide.actions import Preempt
from rlsched.decide.order.keys import Order
from rlsched.wire.messages import (
    AttemptReport,
    Cancel,
    Explanation,
    Jobs,
    Kill,
    Launch,
    ListJobs,
    Why,
)
from tests.support.broker.hand import draft, ended, hello, launched, of_kind, state, submit
from tests.support.broker.hand_broker import HandBroker
from tests.support.broker.preempting import (
    GRACE_S,
    actions,
    killed,
    make_preempting,
    preempted,
    replayed,
    shape,
    tiresias,
)

# ---- restarts --------------------------------------------------------------------------------------------


def test_restart_during_a_preemption_repeats_the_kill_and_launches_nothing(journal: Journal) -> None:
    broker = preempted(journal)
    again = make_preempting(journal)
    assert shape(again.state) == shape(broker.state)
    runs = AttemptReport(job=1, attempt=1, rank=0, state="running")
    out = again.says("n0", hello("n0", 4, runs, cluster="c1", epoch=1))
    assert of_kind(out, Kill) == [Kill(epoch=2, job=1, attempt=1, rank=0, grace_s=GRACE_S, again=True)]
    assert of_kind(out, Launch) == []
    assert [launch.job for launch in of_kind(again.says("n0", killed(1)), Launch)] == [2]


def test_end_during_the_brokers_downtime_completes_the_preemption(journal: Journal) -> None:
    preempted(journal)
    again = make_preempting(journal)
    over = AttemptReport(job=1, attempt=1, rank=0, state="ended", exit_code=143, reason="killed")
    out = again.says("n0", hello("n0", 4, over, cluster="c1", epoch=1))
    assert [(launch.job, launch.attempt) for launch in of_kind(out, Launch)] == [(2, 1)]
    assert state(again, 1) == "queued"


def test_launch_lost_in_a_crash_is_sent_when_the_node_registers(journal: Journal) -> None:
    broker = preempted(journal)
    broker.says("n0", killed(1))
    again = make_preempting(journal)
    assert shape(again.state) == shape(broker.state)
    out = again.says("n0", hello("n0", cluster="c1", epoch=1))
    assert [(launch.job, launch.attempt) for launch in of_kind(out, Launch)] == [(2, 1)]


def test_replay_has_the_same_state_after_every_batch(journal: Journal) -> None:
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
        assert shape(replayed(journal)) == shape(broker.state), number
        batch()
    assert shape(replayed(journal)) == shape(broker.state)
    preemptions = [action for action in actions(journal) if isinstance(action, Preempt)]
    assert len(preemptions) >= 2
    assert sum(isinstance(row.entry, AttemptOver) for row in journal.rows()) >= 2

    records = [record for kept in broker.records for record in kept.records]
    made = redecide(journal_events(journal.path), tiresias())
    assert len(made) == len(records)
    for theirs, ours in zip(records, made, strict=True):
        assert msgspec.structs.replace(ours, took_us=theirs.took_us) == theirs


def test_older_journal_replays_and_its_jobs_are_not_preempted() -> None:
    entry = msgspec.structs.replace(draft(1), predicted_s=60.0, spread=1.0, preemptible=True)
    fields = msgspec.msgpack.decode(encode_entry(entry))
    del fields["preemptible"]
    old = decode_entry(msgspec.msgpack.encode(fields))
    assert isinstance(old, JobSubmitted)
    assert old == msgspec.structs.replace(entry, preemptible=False)
    state = BrokerState(Predictions(RUNNING_MEAN), Order())
    state.apply(old, 1.0)
    assert state.cluster.arrays.job.pinned[state.cluster.slot_of(0)] == 1
    state.apply(msgspec.structs.replace(entry, job=2, token="t2"), 2.0)
    assert state.cluster.arrays.job.pinned[state.cluster.slot_of(1)] == 0


# ---- explanations ---------------------------------------------------------------------------------------


def why_text(broker: HandBroker, job: int) -> str:
    answer = broker.ask(Why(job=job))
    assert isinstance(answer, Explanation)
    return "\n".join([answer.summary, *answer.details])


def listed(broker: HandBroker, job: int) -> object:
    answer = broker.ask(ListJobs(job=job))
    assert isinstance(answer, Jobs)
    return answer.jobs[0]


def test_why_names_preempted_job_and_successor(journal: Journal) -> None:
    broker = preempted(journal)
    number = next(
        row.entry.number
        for row in journal.rows()
        if isinstance(row.entry, Decided) and isinstance(row.entry.action, Preempt)
    )
    why = f"preempted by decision {number} for job 2"
    assert f"it is being ended: {why}" in why_text(broker, 1)
    assert "it waits until job 1, preempted, has left its GPUs" in why_text(broker, 2)
    made_room = f"decision {number} made room for it: preempt job 1, by the rule "
    assert made_room in why_text(broker, 2)
    assert "made room" not in why_text(broker, 1)
    info = listed(broker, 1)
    assert (info.preemptible, info.preemptions, info.reason) == (True, 0, f"being ended: {why}")  # type: ignore[attr-defined]
    assert listed(broker, 2).reason == "waits until job 1, preempted, has left its GPUs"  # type: ignore[attr-defined]
    broker.says("n0", killed(1))
    assert f"attempt 1 ended after 12 s: {why}" in why_text(broker, 1)
    info = listed(broker, 1)
    assert (info.state, info.preemptions) == ("queued", 1)  # type: ignore[attr-defined]
    assert info.reason.startswith("Resources: needs 4 GPUs")  # type: ignore[attr-defined]
    assert info.reason.endswith(f"; queued again: {why}")  # type: ignore[attr-defined]
    broker.says("n0", launched(2))
    broker.says("n0", ended(2))
    assert made_room in why_text(broker, 2), "also after its end"
    assert "made room" not in why_text(broker, 1), "it took no GPUs of a preempted job"
    assert "it was preempted before: 1 of its 2 attempts" in why_text(broker, 1)
    assert "after its submission as attempt 2, decided by rule" in why_text(broker, 1)
    assert not listed(broker, 2).preemptible  # type: ignore[attr-defined]


def test_why_names_all_jobs_that_are_waited_for(journal: Journal) -> None:
    broker = make_preempting(journal, nodes=1)
    for job in (1, 2):
        broker.ask(submit(2, preemptible=True))
        broker.says("n0", launched(job))
    broker.wait(12.0, "n0")
    broker.ask(submit(4))
    assert "it waits until job 1, job 2, preempted, have left its GPUs" in why_text(broker, 3)


def test_record_lists_preempted_jobs(journal: Journal) -> None:
    broker = preempted(journal)
    records = [record for kept in broker.records for record in kept.records]
    (record,) = [record for record in records if isinstance(record.action, Preempt)]
    assert (record.action, record.policy_id) == (Preempt(seq=0), tiresias().policy_id)
    assert broker.machine.memory.last_record(0) in records[records.index(record) :], "`why` uses it"
