"""The reason of a waiting job starts with a word for its kind."""

from __future__ import annotations

from rlsched.broker.journal.journal import Journal
from rlsched.broker.queries.waiting import fits_now, rooms
from rlsched.cluster.demand import Demand
from rlsched.decide.plans.plan_text import span
from rlsched.wire.messages import DependsOn, DrainNode, Explanation, JobInfo, Jobs, ListJobs, SetQuota, Why
from tests.support.broker.hand import ended, hello, launched, make, submit
from tests.support.broker.hand_broker import HandBroker


def row(broker: HandBroker, job: int) -> JobInfo:
    page = broker.ask(ListJobs(job=job))
    assert isinstance(page, Jobs)
    return page.jobs[0]


def kind(broker: HandBroker, job: int) -> str:
    return row(broker, job).reason.partition(":")[0]


def test_busy_gpus_and_nodes_that_are_down_have_different_kinds(journal: Journal) -> None:
    broker = make(journal, nodes=2)
    broker.ask(submit(4))
    broker.ask(submit(8))
    assert row(broker, 2).reason == "Resources: needs 8 GPUs, 4 free"
    broker.ask(DrainNode(node="n1"))
    broker.ask(submit(4))
    assert row(broker, 3).reason == "NodeDown: needs 4 GPUs, 0 free, 4 on absent nodes"
    assert kind(broker, 2) == "Resources", "a job has the other half"
    broker.says("n0", launched(1))
    broker.says("n0", ended(1))
    assert row(broker, 3).state == "launching"
    assert kind(broker, 2) == "Resources"


def test_gpus_kept_for_an_earlier_job_are_a_reservation(journal: Journal) -> None:
    broker = make(journal, nodes=1, policy="fifo")
    for gpus in (3, 4, 1):
        broker.ask(submit(gpus))
    assert row(broker, 2).reason == "Resources: needs 4 GPUs, 1 free"
    assert row(broker, 3).reason == "Reservation: GPUs are kept for job 2, which needs 4"
    broker.ask(SetQuota(kind="user", name="ada", gpus=1))
    for _ in range(2):
        broker.ask(submit(1, user="ada"))
    assert [kind(broker, job) for job in (3, 4, 5)] == ["Reservation", "Reservation", "Reservation"]
    broker.says("n0", launched(1))
    broker.says("n0", ended(1))
    broker.says("n0", launched(2))
    broker.says("n0", ended(2))
    assert [kind(broker, job) for job in (3, 4, 5)] == ["", "", "Quota"], "two of ada's would be too many"


def why(broker: HandBroker, job: int) -> list[str]:
    answer = broker.ask(Why(job=job))
    assert isinstance(answer, Explanation)
    return answer.details


def test_lost_attempt_does_not_count_as_queueing_time(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    broker.ask(submit(4))
    broker.says("n0", launched(1))
    started = "started after 0 s in the queue as attempt 1, decided by rule (decision 0) at "
    assert any(line.startswith(started) for line in why(broker, 1))
    broker.wait(50.0, "n0")
    broker.wait(30.0)
    end_s = broker.state.jobs[1].stopped.end_s  # type: ignore[union-attr]
    ran = span(end_s - broker.state.jobs[1].submit_s)
    lost = f"attempt 1 ended after {ran}: {broker.state.jobs[1].reason}"
    assert "n0" in lost
    assert lost in why(broker, 1)
    assert f"it has waited {span(broker.now_s - end_s)} since then" in "".join(why(broker, 1))
    broker.says("n0", hello("n0"))
    after, waited = span(broker.now_s - broker.state.jobs[1].submit_s), span(broker.now_s - end_s)
    started = f"started {after} after its submission as attempt 2, decided by rule (decision 1) at "
    assert any(line.startswith(started) for line in why(broker, 1))
    assert f"{lost}; it then waited {waited} in the queue" in why(broker, 1)


def test_end_of_an_attempt_survives_a_restart(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    broker.ask(submit(4))
    broker.says("n0", launched(1))
    broker.says("n0", ended(1, exit_code=143, reason="node_stopped"))
    again = make(journal)
    assert [line for line in why(again, 1) if line.startswith("attempt 1 ended after")] == [
        "attempt 1 ended after 0 s: node n0 was stopped; it then waited 0 s in the queue"
    ]


def test_plan_of_a_gang_shows_nodes_and_prediction(journal: Journal) -> None:
    broker = make(journal, nodes=3)
    broker.ask(submit(6))
    broker.ask(submit(1))
    run = span(broker.state.jobs[1].spec.predicted_s)
    then = "its plans then: node {} (generic), predicted to run {} (taken)"
    assert then.format("n0 and 1 more", run) in why(broker, 1)
    assert then.format("n1", run) in why(broker, 2)


def test_hold_is_the_first_reason(broker: HandBroker) -> None:
    broker.says("n0", hello("n0"))
    broker.ask(submit(4))
    broker.ask(submit(1, hold=True))
    broker.ask(submit(1, depends_on=[DependsOn("afterok", 1)]))
    broker.ask(submit(1, begin_s=broker.now_s + 3600.0))
    assert [kind(broker, job) for job in (2, 3, 4)] == ["Held", "Dependency", "BeginTime"]


def test_demands_that_the_cluster_has_not_seen_fit_as_others_do(journal: Journal) -> None:
    broker = make(journal)
    broker.says("n0", hello("n0"))
    state = broker.machine.state
    (room,) = rooms(state, "")
    classes = state.cluster.arrays.demand.shape[0]
    for gpus in range(1, 9):
        assert fits_now(state, Demand(gpus=gpus), room) == (gpus <= 4)
    assert state.cluster.arrays.demand.shape[0] > classes, "the arrays have grown on the way"
