"""`why`: ranked reasons for waiting and for running."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from rlsched.broker.events import ClientAsked
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.replay import journal_events, redecide
from rlsched.broker.queries.explain import explain
from rlsched.broker.queries.memory import RecordMemory
from rlsched.cli.shared.job_tables import explanation_as_data
from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Start, Wait
from rlsched.decide.order.keys import Order
from rlsched.decide.record import DecisionRecord
from rlsched.decide.recording import Recording
from rlsched.decide.registry import load_scheduler
from rlsched.decide.scheduler import Decision, Scheduler
from rlsched.decide.start import start_action
from rlsched.decisions.decision_text import done
from rlsched.wire.messages import (
    MAX_MESSAGE_BYTES,
    Cancel,
    DownNode,
    DrainNode,
    Ended,
    Explanation,
    Hello,
    JobForecast,
    Launched,
    LaunchRefused,
    Submit,
    Why,
    encode,
)
from tests.support.broker.hand_broker import HandBroker

TOKENS = itertools.count()


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal(tmp_path / "journal.sqlite")
    yield journal
    journal.close()


def make(journal: Journal, *nodes: int) -> HandBroker:
    broker = HandBroker(load_scheduler("fifo-backfill"), journal)
    for number, gpus in enumerate(nodes):
        broker.says(f"n{number}", Hello(name=f"n{number}", gpus=gpus))
    return broker


def submit(broker: HandBroker, *gangs: int) -> None:
    for gpus in gangs:
        broker.ask(Submit(token=f"t{next(TOKENS)}", command=["x"], num_gpus=gpus))


def why(broker: HandBroker, job: int) -> Explanation:
    reply = broker.ask(Why(job=job))
    assert isinstance(reply, Explanation)
    return reply


def test_missing_nodes_are_the_reason(journal: Journal) -> None:
    broker = make(journal)
    submit(broker, 1)
    assert why(broker, 1).summary == "no node has registered yet"


def test_gang_that_never_fits_has_this_as_first_reason(journal: Journal) -> None:
    broker = make(journal)
    submit(broker, 16)
    broker.says("n0", Hello(name="n0", gpus=4))
    assert "cannot run on the nodes that have registered so far" in why(broker, 1).summary
    assert "its nodes have 4 GPUs" in why(broker, 1).summary


def test_too_few_free_gpus_with_counts_order_and_estimate(journal: Journal) -> None:
    broker = make(journal, 4, 4)
    submit(broker, 3, 3, 4, 2, 4)
    told = why(broker, 5)
    assert told.summary == (
        "not enough free GPUs: it needs 4, 2 of 8 are free on the cluster (most on one node: 1)"
    )
    assert told.details[0] == "2 of 3 waiting jobs are ahead in the queue order (submission time): 3, 4"
    assert told.forecast is None, "there is no forecaster"


def test_forecast_is_shown_with_its_age(journal: Journal) -> None:
    broker = make(journal, 4)
    submit(broker, 4, 4)
    now_s = broker.now_s
    said = JobForecast(
        said_s=now_s - 90.0,
        start_s=[now_s + 60.0, now_s + 600.0, None],
        end_s=[now_s + 3_600.0, None, None],
    )
    told = explain(broker.state, broker.state.jobs[2], None, now_s, said)
    assert told.forecast == said
    assert told.details[0] == (
        "starts in 10 min (10 % 1 min, 90 % not within 7 days); ends not within 7 days "
        "(10 % in 1 h); forecast 1 min 30 s ago"
    )


def test_enough_gpus_but_no_node_with_room(journal: Journal) -> None:
    broker = make(journal, 4, 4)
    submit(broker, 3, 3, 2)
    assert why(broker, 3).summary == (
        "no hole is large enough: 2 of 8 GPUs are free on the cluster, but the gang of 2 needs them together "
        "and the largest hole on one node is 1"
    )


def test_reason_names_the_nodes_of_the_virtual_cluster(journal: Journal) -> None:
    broker = make(journal, 2)
    broker.says("v", Hello(name="v", gpus=2, vc="vision"))
    submit(broker, 2, 2)
    for _ in range(2):
        broker.ask(Submit(token=f"t{next(TOKENS)}", command=["x"], num_gpus=2, vc="vision"))
    assert "0 of 2 are free on the nodes that serve every VC" in why(broker, 2).summary
    assert "0 of 2 are free on the nodes of VC vision" in why(broker, 4).summary


def test_reason_names_a_node_that_is_down(journal: Journal) -> None:
    broker = make(journal, 4, 4)
    submit(broker, 8, 8)
    broker.wait(25.0, "n0")
    assert "nodes unreachable: n1" in why(broker, 2).details
    broker.ask(DownNode(node="n1"))
    assert "nodes down: n1" in why(broker, 2).details


def test_reason_names_drained_nodes_and_the_remaining_time(journal: Journal) -> None:
    broker = make(journal, 4, 4)
    submit(broker, 4, 4, 4)
    broker.ask(DrainNode(node="n1", reason="a fan is broken"))
    broker.says("n0", LaunchRefused(job=1, attempt=1, rank=0, message="no such directory"))
    told = why(broker, 3).details
    assert any(line.startswith("node n1 gets no new jobs until it is resumed: a fan") for line in told)
    assert any(line.startswith("node n0 gets no new jobs for 30 s: ") for line in told)


def test_explanation_fits_a_frame(journal: Journal) -> None:
    broker = make(journal, 4)
    submit(broker, 1)
    job, record = broker.state.jobs[1], broker.machine.memory.last_record(0)
    assert record is not None
    job.state, job.attempt, job.reason = "failed", None, "x" * 3_000_000
    huge = msgspec.structs.replace(record, guard="x" * 3_000_000)
    told = explain(broker.state, job, huge, broker.now_s)
    assert len(encode(told)) < MAX_MESSAGE_BYTES
    assert told.record is None
    assert "bytes, is too long to send" in told.details[-1]


def test_started_job_shows_place_time_and_policy(journal: Journal) -> None:
    broker = make(journal, 4, 4)
    submit(broker, 6)
    told = why(broker, 1)
    assert told.summary.startswith("launching on n0[0,1,2,3] n1[0,1] for 0 s")
    assert "decided by rule (decision 0)" in told.details[0]
    started = time.strftime("%F %T %Z", time.localtime(broker.now_s))
    assert told.details[0].endswith(f" at {started}")
    assert told.record is not None
    assert msgspec.msgpack.decode(told.record, type=DecisionRecord).number == 0


def test_record_has_names_of_jobs_and_nodes(journal: Journal) -> None:
    broker = make(journal)
    for name in ("z", "gpu-a"):
        broker.says(name, Hello(name=name, gpus=4))
    submit(broker, 16, 16)  # rejected: they have job numbers, but no row in the cluster's state
    submit(broker, 4, 2, 2)
    told = why(broker, 5)
    assert told.record is not None
    record = msgspec.msgpack.decode(told.record, type=DecisionRecord)
    assert isinstance(record.action, Start)
    assert (record.action.seq, record.turn) == (2, 2)
    assert record.names.jobs[2] == "5"
    assert done(record).startswith("start job 5 on 2 GPUs: node gpu-a")
    data = explanation_as_data(told)["record"]
    assert (data["turn"], data["names"]["jobs"][2]) == (2, "5")
    assert redecide(journal_events(journal.path), load_scheduler("fifo-backfill"))[2].names == record.names


class Forced(Scheduler):
    """A scheduler whose decisions have only one option."""

    name = policy_id = "forced"
    order = Order(by="area")

    def decide(self, state: ClusterState, partition: int, now_s: float, *, record: bool = False) -> Decision:  # noqa: ARG002
        return Decision(action=start_action(state, partition, 0), source="automatic")


def test_start_without_alternatives_is_marked(journal: Journal) -> None:
    broker = HandBroker(Forced(), journal)
    broker.says("n0", Hello(name="n0", gpus=4))
    submit(broker, 1)
    assert "as attempt 1, with no alternative (decision 0) at " in why(broker, 1).details[0]


def test_ended_job_shows_its_end(journal: Journal) -> None:
    broker = make(journal, 4)
    submit(broker, 1, 1)
    broker.says("n0", Launched(job=1, attempt=1, rank=0, pid=1))
    broker.says("n0", Ended(job=1, attempt=1, rank=0, exit_code=137), after_s=65.0)
    assert why(broker, 1).summary == "failed, exit code 137 after 1 min 5 s on n0[0]: was ended by signal 9"
    broker.ask(Cancel(job=2))
    assert "it is being ended: cancelled by its user" in why(broker, 2).details


class Waiting(Scheduler):
    """A scheduler that starts the first job, then always waits."""

    name = policy_id = "waiter"
    order = Order(by="area")

    def decide(self, state: ClusterState, partition: int, now_s: float, *, record: bool = False) -> Decision:
        if state.decisions == 0:
            return Decision(action=start_action(state, partition, 0), source="rule")
        return Recording(state, partition, now_s, wanted=record).decision(Wait(), "policy", self.name)


def test_wait_of_the_policy_is_shown_with_the_plans_of_the_job(journal: Journal) -> None:
    broker = HandBroker(Waiting(), journal)
    broker.says("n0", Hello(name="n0", gpus=4))
    broker.batch(
        [
            ClientAsked(b"c", n, Submit(token=f"h{n}", command=["x"], num_gpus=gpus))
            for n, gpus in enumerate((3, 1, 1))
        ]
    )
    for job in (2, 3):
        told = why(broker, job)
        assert told.summary.startswith(
            "it would fit, but the last decision (decision 1) was: wait, by the policy waiter, at "
        )
        assert "its plans now: node n0 (generic), predicted to run 30 min (open)" in told.details
        data = explanation_as_data(told)["record"]
        assert (data["source"], data["turn"], data["names"]["jobs"][1]) == ("policy", 1, "2")
        assert [(plan["how"], plan["node"]) for plan in data["plans"] if plan["how"] == "free"] == [
            ("free", "n0")
        ]
    submit(broker, 1)
    assert "(decision 2) was: wait" in why(broker, 2).summary, "its turn again, at the next event"


def test_reason_names_a_node_that_refused_and_why(journal: Journal) -> None:
    broker = make(journal, 4)
    submit(broker, 1)
    broker.says("n0", LaunchRefused(job=1, attempt=1, rank=0, message="GPU 0 is in use by process 7"))
    assert (
        "node n0 gets no new jobs for 30 s: it refused to start a rank: GPU 0 is in use by process 7"
    ) in why(broker, 1).details


def test_jobs_preempted_for_a_start_are_named(journal: Journal) -> None:
    """`gittins` names the job that gains; a restarted broker knows it from its records."""
    broker = HandBroker(load_scheduler("gittins"), journal)
    broker.says("n0", Hello(name="n0", gpus=4))
    for job in (1, 2):
        broker.ask(Submit(token=f"p{job}", command=["x"], num_gpus=2, preemptible=True))
        broker.says("n0", Launched(job=job, attempt=1, rank=0, pid=job))
    for _ in range(20):
        broker.wait(15.0, "n0")
    broker.ask(Submit(token="big", command=["x"], num_gpus=4, time_limit_s=30.0))
    records = [record for kept in broker.records for record in kept.records]
    lines = [line for line in why(broker, 3).details if "made room for it" in line]
    assert [line.partition(": ")[2] for line in lines] == [
        "preempt job 1 for job 3, by the rule gittins",
        "preempt job 2 for job 3, by the rule gittins",
    ]
    job = broker.state.jobs[3]
    assert job.attempt is not None
    again = RecordMemory(records)
    assert again.made_room(job.seq, job.attempt.decision) == records[-3:-1]
    assert again.made_room(job.seq, 0) == []


def test_last_record_of_each_job_is_kept(journal: Journal) -> None:
    broker = make(journal, 4)
    submit(broker, 4, 2, 2)
    records = [record for kept in broker.records for record in kept.records]
    memory = RecordMemory(records)
    assert memory.last_record(0) == records[0]
    assert memory.last_record(1) is None, "job 2 has never been a candidate: no GPU was free"
    job = broker.state.jobs[1]
    assert explain(broker.state, job, memory.last_record(0), broker.now_s).job == 1
