"""The broker's state machine: batches in order, questions and their answers, restarts."""

from __future__ import annotations

import pytest

from rlsched.broker.base.entries import Decided
from rlsched.broker.events import ClientAsked, Commit, NodeSaid, Reply, Tick
from rlsched.broker.journal.journal import Journal
from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Start, Wait
from rlsched.decide.registry import load_scheduler
from rlsched.decide.scheduler import Decision, Scheduler
from rlsched.decide.start import start_action
from rlsched.wire.messages import (
    AttemptReport,
    Cancel,
    FetchLog,
    Jobs,
    Launch,
    ListJobs,
    ListNodes,
    LogChunk,
    LogData,
    Nodes,
    ReadLog,
    Refused,
    Stats,
    StatsReport,
    Submitted,
    Why,
)
from tests.support.broker.hand import LIMITS, ended, hello, launched, make, of_kind, submit
from tests.support.broker.hand_broker import HandBroker

# ---- order, time, batches --------------------------------------------------------------------------------


def test_batch_is_applied_in_canonical_order_and_decided_once(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    broker.ask(submit(4))
    broker.says("n0", launched(1))
    before = len(list(journal.rows()))
    broker.batch(
        [Tick(), ClientAsked(b"a", 1, submit(4)), NodeSaid("n1", 0, hello("n1")), NodeSaid("n0", 0, ended(1))]
    )
    kinds = [type(row.entry).__name__ for row in list(journal.rows())[before:]]
    assert kinds == ["RankEnded", "AttemptOver", "NodeUp", "JobSubmitted", "Decided"]
    assert len({row.now_s for row in list(journal.rows())[before:]}) == 1


def test_acknowledgements_are_no_decision_point(journal: Journal) -> None:
    broker = make(journal, nodes=1, policy="fifo")
    broker.ask(submit(3))
    broker.ask(submit(4))
    broker.ask(submit(1))
    decisions = broker.state.cluster.decisions
    assert decisions == 2, "one start, then a wait: job 3 fits but is behind job 2"
    broker.says("n0", launched(1))
    assert broker.state.cluster.decisions == decisions


class Waiting(Scheduler):
    """A scheduler that starts the first job and then waits."""

    name = policy_id = "waiter"

    def decide(self, state: ClusterState, partition: int, now_s: float, *, record: bool = False) -> Decision:  # noqa: ARG002
        if state.decisions == 0:
            return Decision(action=start_action(state, partition, 0), source="rule")
        return Decision(action=Wait(), source="policy")


def test_wait_lasts_until_the_next_event_also_after_a_restart(journal: Journal) -> None:
    """It holds no job back, and its end is no decision point."""
    broker = HandBroker(Waiting(), journal, limits=LIMITS)
    broker.says("n0", hello("n0"))
    broker.ask(submit(3))
    broker.says("n0", launched(1))
    broker.ask(submit(1))
    assert broker.state.cluster.decisions == 2
    broker.wait(3600.0, "n0")
    assert broker.state.cluster.decisions == 2
    again = HandBroker(Waiting(), journal, limits=LIMITS, now_s=broker.now_s)
    again.wait(3600.0, "n0")
    assert again.state.cluster.decisions == 2
    again.ask(submit(4))
    assert again.state.cluster.decisions == 3, "the first waiting job fits, and is considered again"


def test_time_must_grow(broker: HandBroker) -> None:
    with pytest.raises(ValueError, match="time must grow"):
        broker.machine.handle_batch([], broker.now_s)


def test_commit_comes_before_every_message(broker: HandBroker) -> None:
    effects = broker.machine.handle_batch([ClientAsked(b"a", 5, submit())], broker.now_s + 1)
    assert isinstance(effects[0], Commit)
    assert effects[1] == Reply(b"a", 5, Submitted(job=1))


def test_queries_are_answered_after_the_decisions_of_their_batch(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    out = broker.batch([ClientAsked(b"a", 1, ListJobs()), ClientAsked(b"b", 2, submit())])
    (jobs,) = of_kind(out, Jobs)
    assert [job.state for job in jobs.jobs] == ["launching"]


# ---- questions ------------------------------------------------------------------------------------------


def test_logs_are_fetched_from_the_node_and_end_with_the_job(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    broker.ask(submit())
    (fetch,) = broker.batch([ClientAsked(b"a", 9, ReadLog(job=1, offset=3))])
    assert fetch == FetchLog(job=1, attempt=1, rank=0, offset=3, max_bytes=65536)
    out = broker.batch([NodeSaid("n0", 1, LogData(data=b"x", offset=3, eof=True))])
    assert out == [LogChunk(data=b"x", offset=3, eof=False, attempt=1)], "the job still runs"
    broker.says("n0", launched(1), ended(1))
    broker.batch([ClientAsked(b"a", 10, ReadLog(job=1))])
    out = broker.batch([NodeSaid("n0", 2, LogData(data=b"", offset=0, eof=True))])
    assert out == [LogChunk(data=b"", offset=0, eof=True, attempt=1)]


def test_log_request_without_an_answer_times_out(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    broker.ask(submit())
    broker.batch([ClientAsked(b"a", 9, ReadLog(job=1))])
    (late,) = broker.wait(11.0, "n0")
    assert isinstance(late, Refused)


def test_waiting_job_has_no_output_yet(broker: HandBroker) -> None:
    broker.ask(submit())
    assert broker.ask(ReadLog(job=1)) == LogChunk(data=b"", offset=0, eof=False)
    assert isinstance(broker.ask(ReadLog(job=2)), Refused)


def test_lists_of_nodes_and_jobs_and_statistics(journal: Journal) -> None:
    broker = make(journal, nodes=2)
    broker.ask(submit(3, name="train", user="ada"))
    broker.ask(submit(8))
    nodes = broker.ask(ListNodes())
    assert isinstance(nodes, Nodes)
    assert [(n.name, n.state, n.gpus, n.free_gpus, n.jobs) for n in nodes.nodes] == [
        ("n0", "up", 4, 1, [1]),
        ("n1", "up", 4, 4, []),
    ]
    jobs = broker.ask(ListJobs())
    assert isinstance(jobs, Jobs)
    first, second = jobs.jobs
    assert (first.name, first.user, first.nodes, first.gpus, first.attempt) == (
        "train",
        "ada",
        ["n0"],
        [[0, 1, 2]],
        1,
    )
    assert (second.state, second.reason) == ("queued", "Resources: needs 8 GPUs, 5 free")
    stats = broker.ask(Stats())
    assert isinstance(stats, StatsReport)
    assert (stats.policy, stats.decisions) == ("fifo-backfill", {"rule": 1})
    assert (stats.queued, stats.running, stats.ended) == (1, 1, 0)


def test_nodes_are_listed_in_natural_order(broker: HandBroker) -> None:
    for name in ("n10", "n2", "gpu-a", "n1"):
        broker.says(name, hello(name))
    nodes = broker.ask(ListNodes())
    assert isinstance(nodes, Nodes)
    assert [node.name for node in nodes.nodes] == ["gpu-a", "n1", "n2", "n10"]


def test_every_query_about_an_unknown_job_is_refused(broker: HandBroker) -> None:
    for question in (Why(job=3), ReadLog(job=3), ListJobs(job=3), Cancel(job=3)):
        reply = broker.ask(question)
        assert isinstance(reply, Refused)
        assert "no job 3" in reply.message


# ---- restart --------------------------------------------------------------------------------------------


def test_restarted_broker_has_the_same_state_and_starts_nothing_twice(journal: Journal) -> None:
    broker = make(journal, nodes=2)
    for gpus in (4, 3, 4, 8):
        broker.ask(submit(gpus))
    broker.says("n0", launched(1))
    again = make(journal)
    assert again.state.epoch == 2
    assert again.state.identity == broker.state.identity
    assert again.state.cluster.digest() == broker.state.cluster.digest()
    assert again.state.cluster.decisions == broker.state.cluster.decisions
    assert {n: job.state for n, job in again.state.jobs.items()} == {
        n: job.state for n, job in broker.state.jobs.items()
    }
    assert again.state.decisions == broker.state.decisions
    assert of_kind([message for _, message in again.sent.orders], Launch) == []
    running = AttemptReport(job=1, attempt=1, rank=0, state="running")
    out = again.says("n0", hello("n0", 4, running, cluster="c1", epoch=1))
    assert of_kind(out, Launch) == []
    out = again.says("n1", hello("n1", cluster="c1", epoch=1))
    assert [(m.job, m.attempt, m.epoch) for m in of_kind(out, Launch)] == [(2, 1, 2)]


def test_time_does_not_go_backwards_across_a_restart(journal: Journal) -> None:
    make(journal, nodes=1)
    last_s = list(journal.rows())[-1].now_s
    HandBroker(load_scheduler("fifo"), journal, now_s=1.0)
    times = [row.now_s for row in journal.rows()]
    assert times == sorted(times)
    assert times[-1] > last_s


def test_wait_that_skipped_jobs_is_replayed(journal: Journal) -> None:
    broker = make(journal, nodes=1, policy="random")
    for gpus in (1, 2, 3, 1, 2, 4, 1, 1, 2):
        broker.ask(submit(gpus))
        for number, job in list(broker.state.jobs.items()):
            if job.state == "launching" and number % 2:
                broker.says("n0", launched(number))
                broker.says("n0", ended(number))
    actions = [row.entry.action for row in journal.rows() if isinstance(row.entry, Decided)]
    assert any(isinstance(action, Wait) for action in actions)
    again = HandBroker(load_scheduler("random"), journal)
    assert again.state.cluster.digest() == broker.state.cluster.digest()


def test_decisions_and_their_records_have_the_same_numbers(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    for gpus in (1, 2, 4, 1):
        broker.ask(submit(gpus))
    facts = [row.entry for row in journal.rows() if isinstance(row.entry, Decided)]
    records = [record for kept in broker.records for record in kept.records]
    assert [fact.number for fact in facts] == list(range(len(facts)))
    assert [record.number for record in records] == [fact.number for fact in facts]
    assert [record.action for record in records] == [fact.action for fact in facts]
    assert all(isinstance(fact.action, Start) for fact in facts)
    assert [fact.contested for fact in facts] == [True] * len(facts), "it could have started later"
    assert broker.state.contested == {"rule": sum(fact.contested for fact in facts)}
