"""Facts of an engine: GPUs held by foreign jobs, outages, jobs ended outside the broker."""

from __future__ import annotations

import pytest

from rlsched.broker.events import ClientAsked
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.replay import journal_events, redecide
from rlsched.broker.journal.snapshots import book_of, picture_of
from rlsched.decide.registry import load_scheduler
from rlsched.engine.offers import WITHDRAWN
from rlsched.transport.roles import Peer
from rlsched.wire.messages import (
    Begin,
    Cancel,
    Capabilities,
    Explanation,
    Heartbeat,
    Held,
    Hello,
    Holding,
    JobInfo,
    Jobs,
    Launch,
    ListJobs,
    Ok,
    Refused,
    Submitted,
    Why,
)
from tests.support.broker.hand import TICK, ended, hello, launched, make, state, submit
from tests.support.broker.hand_broker import HandBroker

SLURM = Capabilities(per_node_indices=False, clocks=False)
ENGINE = Peer("engine", "slurm", nodes="n*")


def holding(*gpus: int, by: str = "job 9", until_s: float | None = None) -> Holding:
    return Holding(by=by, gpus=list(gpus), until_s=until_s)


def gpus_of(answers: list[object]) -> list[list[int]]:
    return [one.gpus for one in answers if isinstance(one, Launch)]


def test_gpus_held_by_foreign_jobs_are_not_offered_until_released(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    broker.says("n0", Held(held=[holding(0, 1), holding(3, by="job 8")]))
    broker.ask(submit(2, token="two"))
    assert state(broker, 1) == "queued"
    left = broker.says("n0", Held(held=[holding(0, 1)]))
    assert gpus_of(left) == [[2, 3]]
    assert broker.says("n0", Held(held=[holding(0, 1)])) == [], "a repeated report changes nothing"


def test_holding_waits_for_the_end_of_our_job(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    broker.ask(submit(4))
    broker.says("n0", launched(1))
    broker.says("n0", Held(held=[holding(1)]))
    broker.ask(submit(4))
    answers = broker.says("n0", ended(1))
    assert state(broker, 1) == "completed"
    assert gpus_of(answers) == []
    assert state(broker, 2) == "queued"
    assert gpus_of(broker.says("n0", Held(held=[]))) == [[0, 1, 2, 3]]


def test_holdings_survive_a_restart_and_a_drain(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    broker.says("n0", Heartbeat(name="n0", unhealthy="drained in Slurm: fan"))
    broker.says("n0", Held(held=[holding(0, 1, 2, until_s=broker.now_s + 60.0)]))
    again = make(journal)
    assert again.state.holdings.holdings_of("n0") == broker.state.holdings.holdings_of("n0") != []
    again.says("n0", Hello(name="n0", gpus=4, held=[holding(0, 1, 2, until_s=broker.now_s + 59.0)]))
    again.ask(submit(2))
    assert state(again, 1) == "queued"
    again.says("n0", Held(held=[]))
    assert state(again, 1) == "launching"


def test_journal_with_holdings_replays_alike(journal: Journal) -> None:
    broker = make(journal, nodes=2)
    broker.ask(submit(1))
    broker.says("n0", Held(held=[holding(1), holding(2, by="job 8")]))
    broker.ask(submit(2))
    broker.ask(submit(4))
    broker.says("n0", Held(held=[]))
    broker.ask(submit(1))
    live = [record for kept in broker.records for record in kept.records]
    again = redecide(journal_events(journal.path), load_scheduler("fifo-backfill"))
    assert len(live) == 3
    assert [(one.state_digest, one.action, one.names) for one in again] == [
        (one.state_digest, one.action, one.names) for one in live
    ]


def test_new_number_of_gpus_ends_earlier_holdings(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    broker.says("n0", Held(held=[holding(0, 1, 2, 3)]))
    broker.says("n0", hello("n0", gpus=2))
    broker.ask(submit(2))
    assert state(broker, 1) == "launching"


@pytest.mark.parametrize("held", [[holding(7)], [holding(-1)], [holding()], [holding(0), holding(0, by="b")]])
def test_invalid_holding_is_ignored(journal: Journal, held: list[Holding]) -> None:
    broker = make(journal, nodes=1)
    broker.says("n0", Held(held=held))
    broker.ask(submit(3))
    assert state(broker, 1) == "launching"


def test_no_time_out_while_an_engine_is_unreachable(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    broker.ask(submit(1))
    assert state(broker, 1) == "launching"
    for _ in range(60):
        away = Heartbeat(name="n0", unhealthy="Slurm does not answer", engine_away=True)
        broker.says("n0", away, after_s=1.0)
        broker.batch([TICK])
    assert (state(broker, 1), broker.state.jobs[1].attempts) == ("launching", 1)
    broker.ask(submit(1))
    assert state(broker, 2) == "queued"
    broker.wait(20.0, "n0")
    assert state(broker, 1) == "launching", "its whole time-out starts then"
    broker.wait(20.0, "n0")
    assert broker.state.jobs[1].active is None or broker.state.jobs[1].active.ending == "queued"


def test_job_cancelled_in_the_engine_is_cancelled(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    broker.ask(submit(1))
    broker.says("n0", launched(1))
    broker.says("n0", ended(1, exit_code=143, reason="cancelled"))
    assert state(broker, 1) == "cancelled"


def test_gang_with_different_gpu_counts_on_its_nodes_is_rejected(journal: Journal) -> None:
    broker = make(journal)
    for name in ("n0", "n1"):
        broker.says(name, Hello(name=name, gpus=4, capabilities=SLURM))
    refused = broker.ask(submit(6))
    assert isinstance(refused, Refused)
    assert "same GPU numbers on every node" in refused.message
    assert isinstance(broker.ask(submit(8)), Submitted)
    assert gpus_of(broker.batch([TICK])) == []
    orders = [order for _, order in broker.sent.orders if isinstance(order, Launch)]
    assert [order.gpus for order in orders] == [[0, 1, 2, 3]] * 2


def test_nodes_of_a_partition_of_such_an_engine_are_equal(journal: Journal) -> None:
    broker = make(journal)
    broker.says("n0", Hello(name="n0", gpus=4, capabilities=SLURM, vc="a"))
    (refused,) = broker.says("n1", Hello(name="n1", gpus=8, capabilities=SLURM, vc="a"))
    assert isinstance(refused, Refused)
    assert "n1 has 8 GPUs, n0 has 4" in refused.message
    broker.says("n1", Hello(name="n1", gpus=8, capabilities=SLURM, vc="b"))
    assert set(broker.state.nodes) == {"n0", "n1"}


def ask(broker: HandBroker, message: object) -> object:
    broker.batch([ClientAsked(b"gateway", 1, message, ENGINE)])  # type: ignore[arg-type]
    return broker.sent.replies[-1][2]


def test_engine_submits_for_any_user_and_controls_only_its_own_jobs(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    assert ask(broker, submit(1, token="slurm-c-1", user="ada")) == Submitted(job=1)
    broker.ask(submit(1, token="else", user="ada"))
    assert isinstance(ask(broker, Cancel(job=2)), Refused)
    assert ask(broker, Cancel(job=1)) == Ok()
    attempt = broker.state.jobs[1].active
    assert attempt is not None
    assert attempt.ending_reason == WITHDRAWN
    listed = ask(broker, ListJobs())
    assert isinstance(listed, Jobs)
    assert [type(one) for one in listed.jobs][:1] == [JobInfo]


def begin(*gpus: int, job: int = 1, node: str = "n0") -> Begin:
    return Begin(job=job, nodes=[node], gpus=[list(gpus)])


def test_starts_by_the_engine_are_tracked_like_decisions(journal: Journal) -> None:
    broker = make(journal)
    places = Hello(name="n0", gpus=4, capabilities=Capabilities(places=False))
    broker.says("n0", places)
    for token in ("slurm-1", "slurm-2", "slurm-3"):
        assert isinstance(ask(broker, submit(2, token=token, user="ada")), Submitted)
    assert [state(broker, job) for job in (1, 2, 3)] == ["queued"] * 3, "the broker starts nothing"
    assert broker.state.nodes["n0"].state == "up"
    listed = ask(broker, ListJobs())
    assert isinstance(listed, Jobs)
    keys = [one.queue_key for one in listed.jobs]
    assert None not in keys
    assert keys == sorted(keys)  # type: ignore[type-var]
    assert "order of the queue" in listed.jobs[0].reason
    why = broker.ask(Why(job=3))
    assert isinstance(why, Explanation)
    assert "the engine starts it" in why.summary
    assert "2 of 3 waiting jobs are ahead" in why.details[0]
    assert ask(broker, begin(1, 3, job=2)) == Ok()
    assert ask(broker, begin(1, 3, job=2)) == Ok(), "the answer was lost"
    orders = [order for _, order in broker.sent.orders if isinstance(order, Launch)]
    assert [(order.job, order.attempt, order.gpus) for order in orders] == [(2, 1, [1, 3])] * 2
    for wrong in (begin(0, 1), begin(0), begin(0, 9), begin(0, 1, node="n7"), begin(0, 2, job=2)):
        assert isinstance(ask(broker, wrong), Refused), wrong
    assert ask(broker, begin(0, 2)) == Ok()
    broker.says("n0", launched(2))
    broker.says("n0", ended(2, exit_code=3))
    assert (state(broker, 1), state(broker, 2)) == ("launching", "failed")
    assert broker.state.decisions == {"engine": 2}
    again = make(journal)
    assert again.state.cluster.digest() == broker.state.cluster.digest()
    assert redecide(journal_events(journal.path), load_scheduler("fifo-backfill")) == []


def test_snapshot_keeps_holdings(journal: Journal) -> None:
    broker = make(journal)
    broker.says("n0", Hello(name="n0", gpus=4, capabilities=SLURM, held=[holding(1, until_s=2_000.0)]))
    state = book_of(picture_of(broker.state))
    assert state.holdings.holdings_of("n0") == [holding(1, until_s=2_000.0)]
    assert state.nodes["n0"].spec.capabilities == SLURM
    assert state.cluster.digest() == broker.state.cluster.digest()
