"""The broker's state machine: migrated jobs, the gang in their place, and jobs that arrive meanwhile."""

from __future__ import annotations

from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.replay import journal_events, redecide
from rlsched.broker.server.fakes import HandBroker
from rlsched.decide.actions import Preempt, Start
from rlsched.decide.policies.policy import Policy
from rlsched.decide.registry import load_scheduler
from rlsched.decide.scheduler import Scheduler
from rlsched.wire.messages import Explanation, Kill, Launch, Why
from tests.support.broker.hand import ended, hello, launched, of_kind, state, submit
from tests.support.broker.preempting import actions, killed, make_preempting, replayed, shape


def migrating() -> Scheduler:
    """A policy that migrates jobs before it preempts any into the queue."""
    return load_scheduler(Policy("gittins", migrate={"first": True}))


def moved(journal: Journal, scheduler: Scheduler | None = None) -> HandBroker:
    """Jobs 2 and 3 have had a GPU of either node for 11 minutes.

    Job 4 needs a whole node: job 2 is migrated.
    """
    broker = make_preempting(journal, 2, scheduler or migrating())
    for gpus in (3, 1, 1):
        broker.ask(submit(gpus, preemptible=True))
    for job in (1, 2, 3):
        (rank,) = broker.state.jobs[job].attempt.ranks  # type: ignore[union-attr]
        broker.says(rank.node, launched(job))
    broker.says("n0", ended(1))
    for _ in range(44):
        broker.wait(15.0, "n0", "n1")
    broker.ask(submit(4, preemptible=True))
    return broker


def test_migrated_job_continues_on_its_reserved_node(journal: Journal) -> None:
    broker = moved(journal)
    assert [message.job for _, message in broker.sent.orders if isinstance(message, Kill)] == [2]
    assert actions(journal)[-2:] == [Preempt(seq=1, moved_for=3), Start(seq=3, gpus=(0, 1, 2, 3))]
    assert (state(broker, 2), state(broker, 4)) == ("running", "launching")
    out = broker.says("n0", killed(2))
    assert sorted(launch.job for launch in of_kind(out, Launch)) == [2, 4]
    assert actions(journal)[-1] == Start(seq=1, gpus=(5,)), "at once, on the other node"
    assert (state(broker, 2), state(broker, 3)) == ("launching", "running")
    assert (broker.state.jobs[2].preemptions, broker.state.jobs[2].moves, broker.state.jobs[2].retries) == (
        1,
        1,
        0,
    )


def test_job_that_arrives_meanwhile_gets_only_unreserved_gpus(journal: Journal) -> None:
    """One of three free GPUs is reserved for job 2: a job of two can start, a job of three cannot."""
    broker = moved(journal)
    broker.ask(submit(3, preemptible=True))
    assert state(broker, 5) == "queued"
    broker.ask(submit(2, preemptible=True))
    assert state(broker, 6) == "launching"
    made = len(actions(journal))
    broker.says("n0", killed(2))
    assert actions(journal)[made] == Start(seq=1, gpus=(7,)), "before all others"


def test_without_migration_the_gang_waits_or_jobs_are_preempted(journal: Journal) -> None:
    broker = moved(journal, load_scheduler("gittins"))
    assert not any(isinstance(action, Preempt) and action.moved_for >= 0 for action in actions(journal))
    broker.ask(submit(3, preemptible=True))
    assert state(broker, 5) == "launching"


def test_why_names_the_job_that_gets_the_gpus(journal: Journal) -> None:
    broker = moved(journal)

    def why_text(job: int) -> str:
        answer = broker.ask(Why(job=job))
        assert isinstance(answer, Explanation)
        return "\n".join([answer.summary, *answer.details])

    number = broker.state.cluster.decisions - 2
    assert f"it is being ended: moved by decision {number} for job 4" in why_text(2)
    assert "waits until job 2, preempted, has left its GPUs" in why_text(4)
    broker.says("n0", killed(2))
    assert (
        f"1 of these times it was moved, to go on elsewhere; last moved by decision {number} for job 4"
        in why_text(2)
    )


def test_replay_gives_the_same_migration(journal: Journal) -> None:
    broker = moved(journal)
    assert shape(replayed(journal)) == shape(broker.state)
    broker.says("n0", killed(2))
    assert shape(replayed(journal)) == shape(broker.state)
    records = [record for kept in broker.records for record in kept.records]
    made = redecide(journal_events(journal.path), migrating())
    assert [record.action for record in made] == [record.action for record in records]
    assert [record.state_digest for record in made] == [record.state_digest for record in records]


def test_reservation_lost_with_its_node_blocks_no_job(journal: Journal) -> None:
    broker = moved(journal)
    broker.wait(19.0, "n0")
    broker.wait(19.0, "n0")  # n1's lease expires, and job 3 is lost with it
    broker.says("n0", killed(2))
    assert state(broker, 2) == "queued"
    broker.says("n0", launched(4))
    broker.says("n0", ended(4))
    assert state(broker, 2) == "launching"


def test_gang_lost_after_its_start_has_no_reservation_any_more(journal: Journal) -> None:
    """Job 2 had no place when 4 started. Then 4 is lost too and n0 returns: 2 starts before 4."""
    broker = moved(journal)
    broker.wait(19.0, "n0")
    broker.wait(19.0, "n0")
    broker.says("n0", killed(2))
    broker.says("n0", launched(4))
    broker.wait(19.0)
    broker.wait(19.0)
    assert (state(broker, 2), state(broker, 4)) == ("queued", "queued")
    made = len(actions(journal))
    broker.says("n0", hello("n0"))
    first = actions(journal)[made]
    assert isinstance(first, Start)
    assert first.seq == 1
    assert state(broker, 4) == "queued"
    assert shape(replayed(journal)) == shape(broker.state)
    records = [record for kept in broker.records for record in kept.records]
    made_again = redecide(journal_events(journal.path), migrating())
    assert [record.action for record in made_again] == [record.action for record in records]
    assert [record.state_digest for record in made_again] == [record.state_digest for record in records]
