"""Why a job waits begins with a word for each kind of reason."""

from __future__ import annotations

from rlsched.broker.fakes import HandBroker
from rlsched.broker.journal.journal import Journal
from rlsched.wire.messages import DependsOn, DrainNode, JobInfo, Jobs, ListJobs, SetQuota
from tests.unit.broker_machine.hand import ended, hello, launched, make, submit


def row(broker: HandBroker, job: int) -> JobInfo:
    page = broker.ask(ListJobs(job=job))
    assert isinstance(page, Jobs)
    return page.jobs[0]


def kind(broker: HandBroker, job: int) -> str:
    return row(broker, job).reason.partition(":")[0]


def test_resources_and_nodes_that_are_down_are_told_apart(journal: Journal) -> None:
    broker = make(journal, nodes=2)
    broker.ask(submit(4))
    broker.ask(submit(8))
    assert row(broker, 2).reason == "Resources: needs 8 GPUs, 4 free"
    broker.ask(DrainNode(node="n1"))
    broker.ask(submit(4))
    assert row(broker, 3).reason == "NodeDown: needs 4 GPUs, 0 free, 4 on absent nodes"
    assert kind(broker, 2) == "Resources", "the other half is a job's"
    broker.says("n0", launched(1))
    broker.says("n0", ended(1))
    assert row(broker, 3).state == "launching"
    assert kind(broker, 2) == "Resources"


def test_gpus_that_are_kept_for_a_job_ahead_are_a_reservation(journal: Journal) -> None:
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


def test_who_holds_it_back_comes_before_everything_else(broker: HandBroker) -> None:
    broker.says("n0", hello("n0"))
    broker.ask(submit(4))
    broker.ask(submit(1, hold=True))
    broker.ask(submit(1, depends_on=[DependsOn("afterok", 1)]))
    broker.ask(submit(1, begin_s=broker.now_s + 3600.0))
    assert [kind(broker, job) for job in (2, 3, 4)] == ["Held", "Dependency", "BeginTime"]
