"""The broker's state machine: events in, effects out."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from rlsched.broker.attempts import MAX_RETRIES
from rlsched.broker.entries import Decided, JobSubmitted
from rlsched.broker.events import ClientAsked, NodeSaid, Reply, Tick
from rlsched.broker.events import Journal as Commit
from rlsched.broker.fakes import HandBroker
from rlsched.broker.journal import Journal
from rlsched.broker.limits import Limits
from rlsched.broker.replay import journal_events, redecide
from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Start, Wait
from rlsched.decide.candidates import start_action
from rlsched.decide.scheduler import Decision, load_scheduler
from rlsched.decide.schema import HOLD_S
from rlsched.wire.messages import (
    AttemptReport,
    Cancel,
    Ended,
    EndedAck,
    FetchLog,
    Heartbeat,
    Hello,
    Jobs,
    Kill,
    Launch,
    Launched,
    LaunchRefused,
    ListJobs,
    ListNodes,
    LogChunk,
    LogData,
    Nodes,
    Ok,
    ReadLog,
    Refused,
    Stats,
    StatsReport,
    Submit,
    Submitted,
    Welcome,
    Why,
)

LIMITS = Limits(heartbeat_s=2.0, lease_s=20.0, launch_timeout_s=30.0, kill_again_s=10.0, log_timeout_s=10.0)
TOKENS = itertools.count()


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal(tmp_path / "journal.sqlite")
    yield journal
    journal.close()


@pytest.fixture
def broker(journal: Journal) -> HandBroker:
    return make(journal)


def make(journal: Journal, nodes: int = 0, policy: str = "fifo-backfill") -> HandBroker:
    broker = HandBroker(load_scheduler(policy), journal, limits=LIMITS)
    for number in range(nodes):
        broker.says(f"n{number}", hello(f"n{number}"))
    return broker


def hello(
    name: str, gpus: int = 4, *attempts: AttemptReport, cluster: str = "", epoch: int = 0, vc: str = ""
) -> Hello:
    return Hello(name=name, gpus=gpus, attempts=list(attempts), cluster=cluster, epoch=epoch, vc=vc)


def submit(num_gpus: int = 1, token: str = "", **more: object) -> Submit:
    return Submit(token=token or f"t{next(TOKENS)}", command=["true"], num_gpus=num_gpus, **more)  # type: ignore[arg-type]


def launched(job: int, attempt: int = 1, rank: int = 0) -> Launched:
    return Launched(job=job, attempt=attempt, rank=rank, pid=100 + rank)


def ended(job: int, attempt: int = 1, rank: int = 0, exit_code: int = 0, reason: str = "") -> Ended:
    return Ended(job=job, attempt=attempt, rank=rank, exit_code=exit_code, reason=reason)


def state(broker: HandBroker, job: int) -> str:
    return broker.book.jobs[job].state


def states(broker: HandBroker) -> dict[str, str]:
    """State of each node, as people see it."""
    nodes = broker.ask(ListNodes())
    assert isinstance(nodes, Nodes)
    return {node.name: node.state for node in nodes.nodes}


def of_kind(messages: list[object], kind: type) -> list[object]:
    return [message for message in messages if isinstance(message, kind)]


# ---- a job's life ---------------------------------------------------------------------------------------


def test_a_job_goes_from_queued_over_launching_and_running_to_completed(broker: HandBroker) -> None:
    assert broker.ask(submit()) == Submitted(job=1)
    assert state(broker, 1) == "queued"
    welcome, launch = broker.says("n0", hello("n0"))
    assert isinstance(welcome, Welcome)
    assert (welcome.epoch, welcome.cluster, welcome.forget) == (1, "c1", [])
    assert launch == Launch(
        epoch=1,
        job=1,
        attempt=1,
        rank=0,
        num_ranks=1,
        nodes=["n0"],
        gpus=[0],
        command=["true"],
        env={},
        cwd="",
    )
    assert state(broker, 1) == "launching"
    assert broker.says("n0", launched(1)) == []
    assert state(broker, 1) == "running"
    assert broker.says("n0", ended(1)) == [EndedAck(job=1, attempt=1, rank=0)]
    job = broker.book.jobs[1]
    assert (job.state, job.exit_code) == ("completed", 0)
    assert broker.book.cluster.running() == []


def test_a_failed_job_has_its_own_exit_code(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    broker.ask(submit())
    broker.says("n0", launched(1), ended(1, exit_code=7))
    job = broker.book.jobs[1]
    assert (job.state, job.exit_code, job.reason) == ("failed", 7, "ended with exit code 7")


def test_a_gang_runs_only_when_all_ranks_have_acknowledged_and_ends_when_all_have(journal: Journal) -> None:
    broker = make(journal, nodes=2)
    broker.ask(submit(8))
    launches = of_kind([message for _, message in broker.sent.orders], Launch)
    assert [(m.rank, m.num_ranks, m.nodes, m.gpus) for m in launches] == [
        (0, 2, ["n0", "n1"], [0, 1, 2, 3]),
        (1, 2, ["n0", "n1"], [0, 1, 2, 3]),
    ]
    broker.says("n0", launched(1, rank=0))
    assert state(broker, 1) == "launching"
    broker.says("n1", launched(1, rank=1))
    assert state(broker, 1) == "running"
    broker.says("n0", ended(1, rank=0))
    assert state(broker, 1) == "running"
    assert len(broker.book.cluster.running()) == 1
    broker.says("n1", ended(1, rank=1))
    assert state(broker, 1) == "completed"


def test_a_rank_that_fails_ends_the_others_and_gives_the_exit_code(journal: Journal) -> None:
    broker = make(journal, nodes=2)
    broker.ask(submit(8))
    broker.says("n0", launched(1, rank=0))
    broker.says("n1", launched(1, rank=1))
    out = broker.says("n1", ended(1, rank=1, exit_code=9))
    assert out == [Kill(epoch=1, job=1, attempt=1, rank=0), EndedAck(job=1, attempt=1, rank=1)]
    assert state(broker, 1) == "running"
    broker.says("n0", ended(1, rank=0, exit_code=143, reason="killed"))
    assert (state(broker, 1), broker.book.jobs[1].exit_code) == ("failed", 9)
    assert "rank 1 on n1 ended with exit code 9" in broker.book.jobs[1].reason


def test_a_time_limit_is_told_as_such(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    broker.ask(submit(time_limit_s=5.0))
    assert broker.sent.orders[-1][1].time_limit_s == 5.0  # type: ignore[union-attr]
    broker.says("n0", launched(1), ended(1, exit_code=124, reason="time_limit"))
    assert broker.book.jobs[1].reason == "reached its time limit of 5 s"


def test_a_repeated_end_is_acknowledged_again_and_changes_nothing(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    broker.ask(submit())
    broker.says("n0", launched(1), ended(1))
    before = len(list(journal.rows()))
    assert broker.says("n0", ended(1)) == [EndedAck(job=1, attempt=1, rank=0)]
    assert broker.says("n0", ended(77)) == [EndedAck(job=77, attempt=1, rank=0)]
    assert len(list(journal.rows())) == before


# ---- launch protocol -------------------------------------------------------------------------------------


def test_a_refused_rank_ends_the_attempt_on_every_node_and_queues_the_job_again(journal: Journal) -> None:
    broker = make(journal, nodes=2)
    broker.ask(submit(8))
    broker.says("n0", launched(1, rank=0))
    out = broker.says("n1", LaunchRefused(job=1, attempt=1, rank=1, message="no such directory"))
    assert out == [Kill(epoch=1, job=1, attempt=1, rank=0)]
    assert broker.says("n0", ended(1, rank=0, exit_code=143, reason="killed")) == [
        EndedAck(job=1, attempt=1, rank=0)
    ]
    assert state(broker, 1) == "queued", "it needs both nodes, and n1 rests"
    broker.says("n0", Heartbeat(name="n0"), after_s=15.0)
    out = broker.wait(15.0, "n0", "n1")
    assert [m.attempt for m in of_kind(out, Launch)] == [2, 2]
    assert state(broker, 1) == "launching"


def test_a_node_that_refused_gets_no_new_jobs_for_a_while_and_keeps_its_own(journal: Journal) -> None:
    broker = make(journal, nodes=2)
    broker.ask(submit(2))
    broker.says("n0", launched(1))
    broker.ask(submit(2))
    out = broker.says("n0", LaunchRefused(job=2, attempt=1, rank=0, message="GPU 2 is in use"))
    assert [(m.attempt, m.nodes) for m in of_kind(out, Launch)] == [(2, ["n1"])]
    assert states(broker) == {"n0": "drained", "n1": "up"}
    assert state(broker, 1) == "running"
    broker.ask(submit(2))
    assert broker.book.jobs[3].attempt.ranks[0].node == "n1"  # type: ignore[union-attr]
    broker.ask(submit(2))
    assert state(broker, 4) == "queued"
    broker.says("n0", hello("n0", 4, AttemptReport(job=1, attempt=1, rank=0, state="running")))
    assert states(broker)["n0"] == "drained", "saying hello again is no way round it"
    assert of_kind(broker.wait(15.0, "n0", "n1"), Launch) == []
    assert [(m.job, m.nodes) for m in of_kind(broker.wait(15.0, "n0", "n1"), Launch)] == [(4, ["n0"])]
    assert states(broker) == {"n0": "up", "n1": "up"}


def test_a_refusal_outlasts_a_restart_and_is_decided_again_bit_for_bit(journal: Journal) -> None:
    broker = make(journal, nodes=2)
    for gpus in (3, 2, 4, 1):
        broker.ask(submit(gpus))
    broker.says("n0", launched(1))
    broker.says("n1", LaunchRefused(job=2, attempt=1, rank=0, message="GPU 1 is in use"))
    again = make(journal)
    assert again.book.cluster.digest() == broker.book.cluster.digest()
    assert states(again) == {"n0": "up", "n1": "drained"}
    again.says("n0", hello("n0", 4, AttemptReport(job=1, attempt=1, rank=0, state="running"), cluster="c1"))
    again.says("n1", hello("n1", cluster="c1"))
    assert state(again, 2) == "queued"
    again.wait(15.0, "n0", "n1")
    again.wait(15.0, "n0", "n1")
    assert (state(again, 2), states(again)["n1"]) == ("launching", "up")
    again.says("n1", LaunchRefused(job=2, attempt=2, rank=0, message="GPU 1 is in use"))
    again.wait(21.0, "n0")
    assert states(again)["n1"] == "down"
    again.says("n1", hello("n1", cluster="c1"))
    assert states(again)["n1"] == "up", "a node that was down begins anew"

    records = [record for one in (broker, again) for kept in one.records for record in kept.records]
    made = redecide(journal_events(journal.path), load_scheduler("fifo-backfill"))
    assert len(made) == len(records) > 4
    for theirs, ours in zip(records, made, strict=True):
        assert msgspec.structs.replace(ours, took_us=theirs.took_us) == theirs


def test_after_bounded_retries_the_job_has_failed_with_the_last_reason(journal: Journal) -> None:
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
    assert f"after {MAX_RETRIES + 1} attempts" in broker.book.jobs[1].reason
    assert "disk full" in broker.book.jobs[1].reason


def test_a_launch_that_is_not_acknowledged_in_time_is_ended_everywhere(journal: Journal) -> None:
    broker = make(journal, nodes=2)
    broker.ask(submit(8))
    broker.says("n0", launched(1, rank=0))
    assert broker.wait(15.0, "n0", "n1") == []
    out = broker.wait(15.0, "n0", "n1")
    assert out == [Kill(epoch=1, job=1, attempt=1, rank=0), Kill(epoch=1, job=1, attempt=1, rank=1)]
    assert "n1 did not start it within 30 s" in broker.book.jobs[1].attempt.ending_reason  # type: ignore[union-attr]
    broker.says("n0", ended(1, rank=0, exit_code=143, reason="killed"))
    assert state(broker, 1) == "launching", "GPUs are given again only when every rank is over"
    out = broker.says("n1", ended(1, rank=1, exit_code=143, reason="killed"))
    assert {m.attempt for m in of_kind(out, Launch)} == {2}


def test_a_late_acknowledgement_of_a_given_up_attempt_is_ended(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    broker.ask(submit())
    broker.says("n0", LaunchRefused(job=1, attempt=1, rank=0, message="x"))
    assert broker.says("n0", launched(1, attempt=1)) == [Kill(epoch=1, job=1, attempt=1, rank=0)]
    broker.wait(15.0, "n0")
    broker.wait(15.0, "n0")
    assert broker.book.jobs[1].attempt.number == 2  # type: ignore[union-attr]


def test_an_order_to_end_is_repeated_until_it_is_obeyed(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    broker.ask(submit())
    broker.says("n0", launched(1))
    assert broker.ask(Cancel(job=1)) == Ok()
    kill = Kill(epoch=1, job=1, attempt=1, rank=0)
    assert broker.sent.orders[-1] == ("n0", kill)
    assert broker.wait(1.0, "n0") == []
    assert broker.wait(10.0, "n0") == [kill]
    assert broker.wait(10.0, "n0") == [kill]
    broker.says("n0", ended(1, exit_code=143, reason="killed"))
    assert (state(broker, 1), broker.book.jobs[1].exit_code) == ("cancelled", None)
    assert broker.wait(10.0, "n0") == []


# ---- nodes ----------------------------------------------------------------------------------------------


def test_a_silent_node_is_down_after_its_lease_and_its_job_goes_elsewhere(journal: Journal) -> None:
    broker = make(journal, nodes=2)
    broker.ask(submit(4))
    broker.says("n0", launched(1))
    assert broker.wait(19.0, "n1") == []
    assert state(broker, 1) == "running"
    out = broker.wait(1.5, "n1")
    assert broker.sent.dropped == ["n0"]
    assert [(m.attempt, m.nodes) for m in of_kind(out, Launch)] == [(2, ["n1"])]
    assert broker.book.nodes["n0"].up is False


def test_a_node_that_comes_back_forgets_what_was_given_up(journal: Journal) -> None:
    broker = make(journal, nodes=2)
    broker.ask(submit(4))
    broker.says("n0", launched(1))
    broker.wait(21.0, "n1")
    report = AttemptReport(job=1, attempt=1, rank=0, state="running")
    out = broker.says("n0", hello("n0", 4, report, cluster="c1", epoch=1))
    assert of_kind(out, Welcome)[0].forget == [(1, 1)]
    assert broker.book.nodes["n0"].up
    assert broker.book.jobs[1].attempt.ranks[0].node == "n1"  # type: ignore[union-attr]


def test_heartbeats_keep_a_lease(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    for _ in range(10):
        broker.says("n0", Heartbeat(name="n0"), after_s=10.0)
        broker.wait(5.0)
    assert broker.book.nodes["n0"].up


def test_a_stopped_node_gives_its_jobs_back_without_charging_them(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    broker.ask(submit())
    for attempt in range(1, MAX_RETRIES + 4):
        broker.says("n0", launched(1, attempt))
        broker.says("n0", ended(1, attempt, exit_code=143, reason="node_stopped"))
        assert state(broker, 1) == "queued", "a node that is being stopped gets no new jobs"
        assert not broker.book.nodes["n0"].up
        broker.says("n0", hello("n0"))
    assert state(broker, 1) == "launching"
    assert broker.book.jobs[1].retries == 0


def test_a_node_cannot_belong_to_a_vc_called_shared(broker: HandBroker) -> None:
    (refused,) = broker.says("n0", hello("n0", vc="shared"))
    assert isinstance(refused, Refused)
    assert "cannot be the name of a virtual cluster" in refused.message
    assert broker.book.nodes == {}


def test_a_node_is_who_its_key_says(broker: HandBroker) -> None:
    (refused,) = broker.says("n0", hello("n1"))
    assert isinstance(refused, Refused)
    assert "belongs to node 'n0'" in refused.message
    assert broker.book.nodes == {}


def test_a_node_cannot_change_its_gpus(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    (refused,) = broker.says("n0", hello("n0", gpus=8))
    assert isinstance(refused, Refused)
    assert "another --name" in refused.message


def test_a_node_that_obeys_a_newer_broker_is_refused(journal: Journal) -> None:
    broker = make(journal, nodes=0)
    (refused,) = broker.says("n0", hello("n0", cluster="c1", epoch=5))
    assert isinstance(refused, Refused)
    assert "epoch 5" in refused.message


def test_attempts_of_another_cluster_are_forgotten(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    broker.ask(submit())
    report = AttemptReport(job=1, attempt=1, rank=0, state="running")
    out = broker.says("n0", hello("n0", 4, report, cluster="older", epoch=9))
    assert of_kind(out, Welcome)[0].forget == [(1, 1)]
    assert len(of_kind(out, Launch)) == 1, "ours is started: the node has never had it"


def test_hello_repeats_orders_that_may_not_have_arrived(journal: Journal) -> None:
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


def test_a_running_job_that_its_node_does_not_know_any_more_is_queued_again(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    broker.ask(submit())
    broker.says("n0", launched(1))
    out = broker.says("n0", hello("n0", cluster="c1", epoch=1))
    assert [m.attempt for m in of_kind(out, Launch)] == [2]
    assert broker.book.jobs[1].retries == 1


# ---- order, time, batches --------------------------------------------------------------------------------


def test_a_batch_is_applied_in_canonical_order_and_decided_once(journal: Journal) -> None:
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


def test_acknowledgements_alone_are_no_decision_point(journal: Journal) -> None:
    broker = make(journal, nodes=1, policy="fifo")
    broker.ask(submit(3))
    broker.ask(submit(4))
    broker.ask(submit(1))
    decisions = broker.book.cluster.decisions
    assert decisions == 2, "one start, then a wait: job 3 fits, but stands behind job 2"
    broker.says("n0", launched(1))
    assert broker.book.cluster.decisions == decisions


class Waiting:
    """A scheduler that starts the first job, and then waits."""

    name = "waiter"
    order = "submit"
    information = "causal"

    def decide(self, state: ClusterState, partition: int, now_s: float, *, record: bool = False) -> Decision:  # noqa: ARG002
        if state.decisions == 0:
            return Decision(action=start_action(state, partition, 0), source="rule")
        return Decision(action=Wait(), source="policy", marks_hold=True)


def test_the_end_of_a_hold_is_a_decision_point_also_after_a_restart(journal: Journal) -> None:
    broker = HandBroker(Waiting(), journal, limits=LIMITS)  # type: ignore[arg-type]
    broker.says("n0", hello("n0"))
    broker.ask(submit(3))
    broker.says("n0", launched(1))
    broker.ask(submit(1))
    assert broker.book.cluster.decisions == 2
    broker.wait(HOLD_S / 2, "n0")
    assert broker.book.cluster.decisions == 2
    again = HandBroker(Waiting(), journal, limits=LIMITS, now_s=broker.now_s)  # type: ignore[arg-type]
    again.wait(HOLD_S / 2 - 1.0, "n0")
    assert again.book.cluster.decisions == 2
    again.wait(2.0, "n0")
    assert again.book.cluster.decisions == 3


def test_time_must_grow(broker: HandBroker) -> None:
    with pytest.raises(ValueError, match="time must grow"):
        broker.machine.handle_batch([], broker.now_s)


def test_the_journal_comes_before_everything_else(broker: HandBroker) -> None:
    effects = broker.machine.handle_batch([ClientAsked(b"a", 5, submit())], broker.now_s + 1)
    assert isinstance(effects[0], Commit)
    assert effects[1] == Reply(b"a", 5, Submitted(job=1))


def test_questions_are_answered_after_the_decisions_of_their_batch(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    out = broker.batch([ClientAsked(b"a", 1, ListJobs()), ClientAsked(b"b", 2, submit())])
    (jobs,) = of_kind(out, Jobs)
    assert [job.state for job in jobs.jobs] == ["launching"]


# ---- submissions -----------------------------------------------------------------------------------------


def test_the_same_token_gets_the_same_job(broker: HandBroker) -> None:
    assert broker.ask(submit(token="x")) == Submitted(job=1)
    assert broker.ask(submit(token="x")) == Submitted(job=1)
    assert len(broker.book.jobs) == 1


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (Submit(token="", command=["a"], num_gpus=1), "token"),
        (Submit(token="t", command=[], num_gpus=1), "command"),
        (Submit(token="t", command=["a"], num_gpus=0), "num_gpus"),
        (Submit(token="t", command=["a"], num_gpus=1, time_limit_s=0.0), "time_limit_s"),
        (Submit(token="t", command=["a"], num_gpus=1, time_limit_s=float("nan")), "time_limit_s"),
        (Submit(token="t", command=["a\0"], num_gpus=1), "NUL"),
        (Submit(token="t", command=["a"], num_gpus=1, env={"A=B": "c"}), "environment"),
    ],
)
def test_a_wrong_submission_is_refused_in_one_line_and_not_journalled(
    broker: HandBroker, wrong: Submit, said: str
) -> None:
    reply = broker.ask(wrong)
    assert isinstance(reply, Refused)
    assert said in reply.message
    assert "\n" not in reply.message
    assert broker.book.jobs == {}


def test_a_gang_that_can_never_run_is_rejected_and_journalled(journal: Journal) -> None:
    broker = make(journal, nodes=2)
    reply = broker.ask(submit(9))
    assert isinstance(reply, Refused)
    assert "9 GPUs can never be given together" in reply.message
    assert state(broker, 1) == "rejected"
    last = list(journal.rows())[-1].entry
    assert isinstance(last, JobSubmitted)
    assert last.rejected
    assert broker.ask(submit(8)) == Submitted(job=2)


def test_without_any_node_even_a_large_gang_is_queued(broker: HandBroker) -> None:
    assert broker.ask(submit(64)) == Submitted(job=1)
    assert state(broker, 1) == "queued"


def test_a_vc_without_nodes_is_rejected_by_name(journal: Journal) -> None:
    broker = make(journal)
    broker.says("n0", hello("n0", vc="physics"))
    reply = broker.ask(submit(1, vc="biology"))
    assert isinstance(reply, Refused)
    assert "'biology'" in reply.message
    assert "physics" in reply.message


def test_predictions_are_stamped_at_submission_and_learn_from_ends(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    broker.ask(submit())
    first = broker.book.jobs[1].spec.predicted_s
    broker.says("n0", launched(1))
    broker.says("n0", ended(1), after_s=10.0)
    broker.ask(submit())
    assert broker.book.jobs[2].spec.predicted_s < first
    broker.ask(submit(time_limit_s=3.0))
    assert broker.book.jobs[3].spec.predicted_s == 3.0


def test_a_cancelled_job_teaches_nothing(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    broker.ask(submit())
    first = broker.book.jobs[1].spec.predicted_s
    broker.says("n0", launched(1))
    broker.ask(Cancel(job=1))
    broker.says("n0", ended(1, exit_code=143, reason="killed"))
    broker.ask(submit())
    assert broker.book.jobs[2].spec.predicted_s == first


def test_cancel_takes_a_waiting_job_out(broker: HandBroker) -> None:
    broker.ask(submit())
    assert broker.ask(Cancel(job=1)) == Ok()
    assert state(broker, 1) == "cancelled"
    assert broker.ask(Cancel(job=1)) == Ok(), "a repeated request is harmless"
    assert isinstance(broker.ask(Cancel(job=5)), Refused)


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


def test_a_log_that_no_node_delivers_is_refused_in_time(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    broker.ask(submit())
    broker.batch([ClientAsked(b"a", 9, ReadLog(job=1))])
    (late,) = broker.wait(11.0, "n0")
    assert isinstance(late, Refused)


def test_a_waiting_job_has_no_output_yet(broker: HandBroker) -> None:
    broker.ask(submit())
    assert broker.ask(ReadLog(job=1)) == LogChunk(data=b"", offset=0, eof=False)
    assert isinstance(broker.ask(ReadLog(job=2)), Refused)


def test_nodes_jobs_and_stats_as_people_see_them(journal: Journal) -> None:
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
    assert (second.state, second.reason) == ("queued", "needs 8 GPUs, 5 free")
    stats = broker.ask(Stats())
    assert isinstance(stats, StatsReport)
    assert (stats.policy, stats.decisions) == ("fifo-backfill", {"rule": 1})
    assert (stats.queued, stats.running, stats.ended) == (1, 1, 0)


def test_nodes_are_listed_in_the_order_of_their_numbers(broker: HandBroker) -> None:
    for name in ("n10", "n2", "gpu-a", "n1"):
        broker.says(name, hello(name))
    nodes = broker.ask(ListNodes())
    assert isinstance(nodes, Nodes)
    assert [node.name for node in nodes.nodes] == ["gpu-a", "n1", "n2", "n10"]


def test_every_question_about_an_unknown_job_is_refused(broker: HandBroker) -> None:
    for question in (Why(job=3), ReadLog(job=3), ListJobs(job=3), Cancel(job=3)):
        reply = broker.ask(question)
        assert isinstance(reply, Refused)
        assert "no job 3" in reply.message


# ---- restart --------------------------------------------------------------------------------------------


def test_a_restarted_broker_knows_everything_and_starts_nothing_twice(journal: Journal) -> None:
    broker = make(journal, nodes=2)
    for gpus in (4, 3, 4, 8):
        broker.ask(submit(gpus))
    broker.says("n0", launched(1))
    again = make(journal)
    assert again.book.epoch == 2
    assert again.book.identity == broker.book.identity
    assert again.book.cluster.digest() == broker.book.cluster.digest()
    assert again.book.cluster.decisions == broker.book.cluster.decisions
    assert {n: job.state for n, job in again.book.jobs.items()} == {
        n: job.state for n, job in broker.book.jobs.items()
    }
    assert again.book.decisions == broker.book.decisions
    assert of_kind([message for _, message in again.sent.orders], Launch) == []
    running = AttemptReport(job=1, attempt=1, rank=0, state="running")
    out = again.says("n0", hello("n0", 4, running, cluster="c1", epoch=1))
    assert of_kind(out, Launch) == []
    out = again.says("n1", hello("n1", cluster="c1", epoch=1))
    assert [(m.job, m.attempt, m.epoch) for m in of_kind(out, Launch)] == [(2, 1, 2)]


def test_time_does_not_run_back_over_a_restart(journal: Journal) -> None:
    make(journal, nodes=1)
    last_s = list(journal.rows())[-1].now_s
    HandBroker(load_scheduler("fifo"), journal, now_s=1.0)
    times = [row.now_s for row in journal.rows()]
    assert times == sorted(times)
    assert times[-1] > last_s


def test_a_wait_that_passed_over_jobs_is_replayed(journal: Journal) -> None:
    broker = make(journal, nodes=1, policy="random")
    for gpus in (1, 2, 3, 1, 2, 4, 1, 1, 2):
        broker.ask(submit(gpus))
        for number, job in list(broker.book.jobs.items()):
            if job.state == "launching" and number % 2:
                broker.says("n0", launched(number))
                broker.says("n0", ended(number))
    assert any(row.entry.marks_hold for row in journal.rows() if isinstance(row.entry, Decided))
    again = HandBroker(load_scheduler("random"), journal)
    assert again.book.cluster.digest() == broker.book.cluster.digest()


def test_decisions_carry_numbers_that_their_records_repeat(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    for gpus in (1, 2, 4, 1):
        broker.ask(submit(gpus))
    facts = [row.entry for row in journal.rows() if isinstance(row.entry, Decided)]
    records = [record for kept in broker.records for record in kept.records]
    assert [fact.number for fact in facts] == list(range(len(facts)))
    assert [record.number for record in records] == [fact.number for fact in facts]
    assert [record.action for record in records] == [fact.action for fact in facts]
    assert all(isinstance(fact.action, Start) for fact in facts)
    assert [fact.contested for fact in facts] == [sum(record.halves[0].legal) > 1 for record in records]
    assert broker.book.contested == {"rule": sum(fact.contested for fact in facts)}
