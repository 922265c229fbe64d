"""The broker's state machine: launches and their refusals, nodes and their leases."""

from __future__ import annotations

import msgspec
import pytest

from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.replay import journal_events, redecide
from rlsched.broker.nodes.launches import MAX_LOSSES, MAX_RETRIES
from rlsched.decide.registry import load_scheduler
from rlsched.wire.messages import (
    NOT_STARTED,
    AttemptReport,
    Cancel,
    EndedAck,
    Heartbeat,
    Kill,
    Launch,
    LaunchRefused,
    Leaving,
    ListNodes,
    Nodes,
    Refused,
    SayHello,
    Stats,
    StatsReport,
    Welcome,
)
from tests.support.broker.hand import (
    LIMITS,
    ended,
    hello,
    launched,
    make,
    of_kind,
    state,
    states,
    submit,
)
from tests.support.broker.hand_broker import HandBroker

# ---- launch protocol -------------------------------------------------------------------------------------


def test_refused_rank_ends_the_attempt_on_every_node_and_requeues_the_job(journal: Journal) -> None:
    broker = make(journal, nodes=2)
    broker.ask(submit(8))
    broker.says("n0", launched(1, rank=0))
    out = broker.says("n1", LaunchRefused(job=1, attempt=1, rank=1, message="no such directory"))
    assert out == [Kill(epoch=1, job=1, attempt=1, rank=0, again=True)]
    assert broker.says("n0", ended(1, rank=0, exit_code=143, reason="killed")) == [
        EndedAck(job=1, attempt=1, rank=0)
    ]
    assert state(broker, 1) == "queued", "it needs both nodes, and n1 is drained"
    broker.says("n0", Heartbeat(name="n0"), after_s=15.0)
    out = broker.wait(15.0, "n0", "n1")
    assert [m.attempt for m in of_kind(out, Launch)] == [2, 2]
    assert state(broker, 1) == "launching"


def test_node_that_refused_is_drained_for_a_time_and_keeps_its_jobs(journal: Journal) -> None:
    broker = make(journal, nodes=2)
    broker.ask(submit(2))
    broker.says("n0", launched(1))
    broker.ask(submit(2))
    out = broker.says("n0", LaunchRefused(job=2, attempt=1, rank=0, message="GPU 2 is in use"))
    assert [(m.attempt, m.nodes) for m in of_kind(out, Launch)] == [(2, ["n1"])]
    assert states(broker) == {"n0": "drained", "n1": "up"}
    assert state(broker, 1) == "running"
    broker.ask(submit(2))
    assert broker.state.jobs[3].attempt.ranks[0].node == "n1"  # type: ignore[union-attr]
    broker.ask(submit(2))
    assert state(broker, 4) == "queued"
    broker.says("n0", hello("n0", 4, AttemptReport(job=1, attempt=1, rank=0, state="running")))
    assert states(broker)["n0"] == "drained", "a new hello does not end the drain"
    assert of_kind(broker.wait(15.0, "n0", "n1"), Launch) == []
    assert [(m.job, m.nodes) for m in of_kind(broker.wait(15.0, "n0", "n1"), Launch)] == [(4, ["n0"])]
    assert states(broker) == {"n0": "up", "n1": "up"}


def test_refusal_survives_a_restart_and_replays_bit_for_bit(journal: Journal) -> None:
    broker = make(journal, nodes=2)
    for gpus in (3, 2, 4, 1):
        broker.ask(submit(gpus))
    broker.says("n0", launched(1))
    broker.says("n1", LaunchRefused(job=2, attempt=1, rank=0, message="GPU 1 is in use"))
    again = make(journal)
    assert again.state.cluster.digest() == broker.state.cluster.digest()
    assert states(again) == {"n0": "up", "n1": "drained"}
    again.says("n0", hello("n0", 4, AttemptReport(job=1, attempt=1, rank=0, state="running"), cluster="c1"))
    again.says("n1", hello("n1", cluster="c1"))
    assert state(again, 2) == "queued"
    again.wait(15.0, "n0", "n1")
    again.wait(15.0, "n0", "n1")
    assert (state(again, 2), states(again)["n1"]) == ("launching", "up")
    again.says("n1", LaunchRefused(job=2, attempt=2, rank=0, message="GPU 1 is in use"))
    again.wait(21.0, "n0")
    assert states(again)["n1"] == "unreachable"
    again.says("n1", hello("n1", cluster="c1"))
    assert states(again)["n1"] == "drained", "it is drained until its time"
    again.wait(15.0, "n0", "n1")
    assert state(again, 2) == "launching"

    records = [record for one in (broker, again) for kept in one.records for record in kept.records]
    made = redecide(journal_events(journal.path), load_scheduler("fifo-backfill"))
    assert len(made) == len(records) > 4
    for theirs, ours in zip(records, made, strict=True):
        assert msgspec.structs.replace(ours, took_us=theirs.took_us) == theirs


def test_job_fails_with_the_last_reason_after_its_retries(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    broker.ask(submit())
    for attempt in range(1, MAX_RETRIES + 2):
        assert state(broker, 1) == "launching"
        broker.says("n0", LaunchRefused(job=1, attempt=attempt, rank=0, message="disk full"))
        began_s = broker.now_s
        while state(broker, 1) == "queued":
            broker.wait(1.0, "n0")
        assert broker.now_s - began_s == pytest.approx(LIMITS.drain_s if attempt <= MAX_RETRIES else 0.0)
    assert state(broker, 1) == "failed"
    assert f"after {MAX_RETRIES + 1} attempts" in broker.state.jobs[1].reason
    assert "disk full" in broker.state.jobs[1].reason


def test_temporary_refusal_uses_no_retry(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    broker.ask(submit())
    for attempt in range(1, MAX_RETRIES + 4):
        assert state(broker, 1) == "launching"
        refusal = LaunchRefused(job=1, attempt=attempt, rank=0, message="disk full", is_for_now=True)
        broker.says("n0", refusal)
        assert state(broker, 1) == "queued"
        while state(broker, 1) == "queued":
            broker.wait(1.0, "n0")


NEVER_BEGAN = ended(1, exit_code=126, reason=NOT_STARTED)


def test_job_whose_command_never_began_goes_elsewhere_and_uses_no_retry(journal: Journal) -> None:
    broker = make(journal, nodes=2)
    broker.ask(submit(4))
    broker.says("n0", launched(1), NEVER_BEGAN)
    job = broker.state.jobs[1]
    assert (job.state, job.retries, job.losses) == ("launching", 0, 1)
    assert job.active is not None
    assert (job.active.ranks[0].node, states(broker)) == ("n1", {"n0": "drained", "n1": "up"})
    reason = broker.state.nodes["n0"].reason
    assert reason.endswith("it had no free process or no memory for the command")
    broker.says("n1", launched(1, 2), ended(1, 2))
    assert make(journal).state.jobs[1].state == "completed"


def test_exit_code_126_of_a_command_is_its_own(journal: Journal) -> None:
    broker = make(journal, nodes=2)
    broker.ask(submit(4))
    broker.says("n0", launched(1), ended(1, exit_code=126))
    assert (state(broker, 1), broker.state.jobs[1].exit_code) == ("failed", 126)
    assert states(broker) == {"n0": "up", "n1": "up"}


def test_job_whose_command_never_begins_fails_after_as_many_attempts_as_with_lost_nodes(
    journal: Journal,
) -> None:
    broker = make(journal, nodes=1)
    broker.ask(submit())
    for attempt in range(1, MAX_LOSSES + 2):
        assert state(broker, 1) == "launching"
        broker.says("n0", launched(1, attempt), msgspec.structs.replace(NEVER_BEGAN, attempt=attempt))
        began_s = broker.now_s
        while state(broker, 1) == "queued":
            broker.wait(1.0, "n0")
        assert broker.now_s - began_s == pytest.approx(LIMITS.drain_s if attempt <= MAX_LOSSES else 0.0)
    job = broker.state.jobs[1]
    assert (job.state, job.exit_code, job.retries) == ("failed", 255, 0)
    assert job.reason == (
        f"given up after {MAX_LOSSES + 1} attempts in a row that ended with a lost node or did not start, "
        "the last one: node n0 could not start rank 0: it had no free process or no memory for the command"
    )


def test_gang_is_queued_again_if_one_rank_never_began(journal: Journal) -> None:
    broker = make(journal, nodes=2)
    broker.ask(submit(8))
    for rank in (0, 1):
        broker.says(f"n{rank}", launched(1, rank=rank))
    out = broker.says("n1", msgspec.structs.replace(NEVER_BEGAN, rank=1))
    assert [order.rank for order in of_kind(out, Kill)] == [0]  # type: ignore[attr-defined]
    assert (state(broker, 1), states(broker)) == ("running", {"n0": "up", "n1": "drained"})
    broker.says("n0", ended(1, exit_code=143, reason="killed"))
    assert (state(broker, 1), broker.state.jobs[1].retries) == ("queued", 0)


def test_cancelled_job_whose_command_never_began_stays_cancelled(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    broker.ask(submit())
    broker.says("n0", launched(1))
    broker.ask(Cancel(job=1))
    broker.says("n0", NEVER_BEGAN)
    assert (state(broker, 1), states(broker)) == ("cancelled", {"n0": "drained"})


def test_launch_without_acknowledgement_times_out_on_every_node(journal: Journal) -> None:
    broker = make(journal, nodes=2)
    broker.ask(submit(8))
    broker.says("n0", launched(1, rank=0))
    assert broker.wait(15.0, "n0", "n1") == []
    out = broker.wait(15.0, "n0", "n1")
    assert out == [
        Kill(epoch=1, job=1, attempt=1, rank=0, again=True),
        Kill(epoch=1, job=1, attempt=1, rank=1, again=True),
    ]
    assert "n1 did not start it within 30 s" in broker.state.jobs[1].attempt.ending_reason  # type: ignore[union-attr]
    broker.says("n0", ended(1, rank=0, exit_code=143, reason="killed"))
    assert state(broker, 1) == "launching", "GPUs are free again only when every rank has ended"
    out = broker.says("n1", ended(1, rank=1, exit_code=143, reason="killed"))
    assert {m.attempt for m in of_kind(out, Launch)} == {2}


def test_late_acknowledgement_of_a_timed_out_attempt_is_killed(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    broker.ask(submit())
    broker.says("n0", LaunchRefused(job=1, attempt=1, rank=0, message="x"))
    assert broker.says("n0", launched(1, attempt=1)) == [Kill(epoch=1, job=1, attempt=1, rank=0)]
    broker.wait(15.0, "n0")
    broker.wait(15.0, "n0")
    assert broker.state.jobs[1].attempt.number == 2  # type: ignore[union-attr]


# ---- nodes ----------------------------------------------------------------------------------------------


def test_node_that_returns_forgets_lost_attempts(journal: Journal) -> None:
    broker = make(journal, nodes=2)
    broker.ask(submit(4))
    broker.says("n0", launched(1))
    broker.wait(21.0, "n1")
    report = AttemptReport(job=1, attempt=1, rank=0, state="running")
    out = broker.says("n0", hello("n0", 4, report, cluster="c1", epoch=1))
    assert of_kind(out, Welcome)[0].forget == [(1, 1)]
    assert broker.state.nodes["n0"].up
    assert broker.state.jobs[1].attempt.ranks[0].node == "n1"  # type: ignore[union-attr]


def test_heartbeats_renew_a_lease(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    for _ in range(10):
        broker.says("n0", Heartbeat(name="n0"), after_s=10.0)
        broker.wait(5.0)
    assert broker.state.nodes["n0"].up


def test_jobs_of_a_stopped_node_are_requeued_without_using_retries(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    broker.ask(submit())
    for attempt in range(1, MAX_RETRIES + 4):
        broker.says("n0", launched(1, attempt))
        broker.says("n0", Leaving(name="n0"))
        broker.says("n0", ended(1, attempt, exit_code=143, reason="node_stopped"))
        assert state(broker, 1) == "queued", "a node that is being stopped gets no new jobs"
        assert states(broker) == {"n0": "unreachable"}
        broker.says("n0", hello("n0"))
    assert state(broker, 1) == "launching"
    assert broker.state.jobs[1].retries == 0


@pytest.mark.parametrize(
    ("reason", "why"),
    [
        ("node_stopped", "node n0 was stopped"),
        ("fenced", "node n0 had no answer from a broker for its --lost-after"),
    ],
)
def test_job_with_exit_code_0_in_the_grace_of_its_node_is_completed(
    journal: Journal, reason: str, why: str
) -> None:
    broker = make(journal, nodes=1)
    broker.ask(submit())
    broker.says("n0", launched(1))
    broker.says("n0", Leaving(name="n0"))
    broker.says("n0", ended(1, exit_code=0, reason=reason))
    job = broker.state.jobs[1]
    assert (job.state, job.exit_code, job.retries) == ("completed", 0, 0)
    assert job.reason == f"{why}, and left exit code 0: the job is done"
    broker.says("n0", hello("n0"))
    assert make(journal).state.jobs[1].state == "completed"


@pytest.mark.parametrize(("code", "then"), [(0, "completed"), (143, "queued")])
def test_gang_is_completed_if_all_ranks_exit_with_0(journal: Journal, code: int, then: str) -> None:
    """The ranks on other nodes are killed, as in a preemption."""
    broker = make(journal, nodes=2)
    broker.ask(submit(8))
    for rank in (0, 1):
        broker.says(f"n{rank}", launched(1, rank=rank))
    broker.says("n0", Leaving(name="n0"))
    out = broker.says("n0", ended(1, exit_code=0, reason="node_stopped"))
    assert [order.rank for order in of_kind(out, Kill)] == [1]  # type: ignore[attr-defined]
    assert state(broker, 1) == "running"
    broker.says("n1", ended(1, rank=1, exit_code=code, reason="killed"))
    assert (state(broker, 1), broker.state.jobs[1].retries) == (then, 0)


def test_node_cannot_belong_to_a_vc_named_shared(broker: HandBroker) -> None:
    (refused,) = broker.says("n0", hello("n0", vc="shared"))
    assert isinstance(refused, Refused)
    assert "cannot be the name of a virtual cluster" in refused.message
    assert broker.state.nodes == {}


def test_node_has_the_name_in_its_key(broker: HandBroker) -> None:
    (refused,) = broker.says("n0", hello("n1"))
    assert isinstance(refused, Refused)
    assert "belongs to node 'n0'" in refused.message
    assert broker.state.nodes == {}


def test_node_of_a_newer_broker_is_refused(journal: Journal) -> None:
    broker = make(journal, nodes=0)
    (refused,) = broker.says("n0", hello("n0", cluster="c1", epoch=5))
    assert isinstance(refused, Refused)
    assert "epoch 5" in refused.message


def test_node_of_another_cluster_keeps_its_attempts_and_is_not_registered(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    broker.ask(submit())
    report = AttemptReport(job=1, attempt=1, rank=0, state="running")
    out = broker.says("n0", hello("n0", 4, report, cluster="older", epoch=9))
    assert of_kind(out, Welcome) == out, "it learns the broker's cluster and gets no order"
    assert of_kind(out, Welcome)[0].forget == []
    assert state(broker, 1) == "launching", "it reports another job with the same number"
    broker.says("n0", ended(1))
    assert state(broker, 1) == "launching"
    assert of_kind(broker.says("n0", Heartbeat(name="n0")), SayHello) != []
    out = broker.says("n0", hello("n0", cluster="c1", epoch=1))
    assert len(of_kind(out, Launch)) == 1, "it has joined: our job starts, as this node never had it"


def test_node_that_belongs_to_another_cluster_is_shown(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    report = AttemptReport(job=1, attempt=1, rank=0, state="running")
    for name in ("n0", "n1"):
        broker.says(name, hello(name, 4, report, cluster="older", epoch=9))
    assert states(broker) == {"n0": "foreign", "n1": "foreign"}
    nodes = broker.ask(ListNodes())
    assert isinstance(nodes, Nodes)
    assert "belongs to cluster older, 1 ranks of which run there" in nodes.nodes[1].reason
    stats = broker.ask(Stats())
    assert isinstance(stats, StatsReport)
    assert stats.nodes == {"foreign": 2}
    assert stats.absent_nodes["n1"].startswith("foreign: belongs to cluster older")
    broker.wait(LIMITS.lease_s + 1.0)
    assert states(broker).keys() == {"n0"}, "n1 sends nothing and is not a node of this cluster"
    assert states(broker)["n0"] == "unreachable"
    broker.says("n1", hello("n1", cluster="c1", epoch=1))
    assert states(broker)["n1"] == "up"


def test_attempt_missing_in_a_truncated_journal_keeps_running(journal: Journal) -> None:
    """The journal has lost its end: the attempt on the node is not killed, and its number is not reused."""
    broker = make(journal, nodes=1)
    running = AttemptReport(job=7, attempt=1, rank=0, state="running")
    out = broker.says("n0", hello("n0", 4, running, cluster="c1", epoch=1))
    assert of_kind(out, Welcome)[0].forget == []
    assert of_kind(out, Kill) == []
    assert states(broker) == {"n0": "drained"}
    assert "the journal does not know what runs here: jobs 7 continue" in broker.state.nodes["n0"].reason
    assert getattr(broker.ask(submit()), "job", None) == 8
    assert of_kind(broker.says("n0", ended(7)), Launch) != []
    assert states(broker) == {"n0": "up"}
    broker.says("n0", hello("n0", 4, running, cluster="c1", epoch=1))
    broker.ask(Cancel(job=7))
    assert [kill.job for _, kill in broker.sent.orders if isinstance(kill, Kill)] == [7], (
        "an admin cancels it"
    )


def test_hello_repeats_orders_that_may_be_lost(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    broker.ask(submit())
    assert len(of_kind(broker.says("n0", hello("n0")), Launch)) == 1
    broker.says("n0", launched(1))
    broker.ask(Cancel(job=1))
    running = AttemptReport(job=1, attempt=1, rank=0, state="running")
    out = broker.says("n0", hello("n0", 4, running, cluster="c1", epoch=1))
    assert len(of_kind(out, Kill)) == 1
    over = AttemptReport(job=1, attempt=1, rank=0, state="ended", exit_code=143, reason="killed")
    out = broker.says("n0", hello("n0", 4, over, cluster="c1", epoch=1))
    assert of_kind(out, EndedAck) == [EndedAck(job=1, attempt=1, rank=0)]
    assert state(broker, 1) == "cancelled"


def test_running_job_missing_in_the_hello_is_requeued(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    broker.ask(submit())
    broker.says("n0", launched(1))
    out = broker.says("n0", hello("n0", cluster="c1", epoch=1))
    assert [m.attempt for m in of_kind(out, Launch)] == [2]
    assert (broker.state.jobs[1].retries, broker.state.jobs[1].losses) == (0, 1)


def test_job_that_ended_before_its_requeue_stays_ended(journal: Journal) -> None:
    """Its node reported the end late. The job ran once and does not run a second time."""
    broker = make(journal, 1)
    for job, code, state_then in ((1, 0, "completed"), (2, 3, "failed")):
        broker.ask(submit())
        broker.wait(LIMITS.launch_timeout_s + 1.0, "n0")
        attempt = broker.state.jobs[job].active
        assert attempt is not None
        assert attempt.ending == "queued"
        broker.says("n0", ended(job, exit_code=code))
        assert (state(broker, job), broker.state.jobs[job].exit_code) == (state_then, code)
    broker.ask(submit())
    broker.wait(LIMITS.launch_timeout_s + 1.0, "n0")
    broker.says("n0", ended(3, exit_code=143, reason="killed"))
    assert state(broker, 3) in ("queued", "launching")
