"""Unreachable nodes: when their jobs stay, and when they are lost."""

from __future__ import annotations

import msgspec
import pytest

from rlsched.broker.base.entries import AttemptOver
from rlsched.broker.events import NodeSaid
from rlsched.broker.journal.journal import Journal
from rlsched.broker.nodes.launches import MAX_LOSSES
from rlsched.decide.registry import load_scheduler
from rlsched.wire.messages import (
    AttemptReport,
    Capabilities,
    DownNode,
    Heartbeat,
    HeartbeatAck,
    Hello,
    Launch,
    LaunchRefused,
    Leaving,
    Ok,
    Refused,
    RemoveNode,
    Submitted,
    Welcome,
)
from tests.support.broker import hand
from tests.support.broker.hand import (
    ended,
    hello,
    launched,
    of_kind,
    state,
    states,
    submit,
)
from tests.support.broker.hand_broker import HandBroker

LIMITS = msgspec.structs.replace(hand.LIMITS, lost_after_s=100.0)
RUNNING = AttemptReport(job=1, attempt=1, rank=0, state="running")


def make(journal: Journal, nodes: int = 2) -> HandBroker:
    """Job 1 runs on n0."""
    broker = HandBroker(load_scheduler("fifo-backfill"), journal, limits=LIMITS)
    for number in range(nodes):
        broker.says(f"n{number}", hello(f"n{number}"))
    return broker


def running(journal: Journal, **facts: object) -> HandBroker:
    broker = make(journal)
    broker.ask(submit(4, **facts))
    broker.says("n0", launched(1))
    return broker


def reasons(journal: Journal) -> list[str]:
    """Why attempts ended."""
    return [row.entry.reason for row in journal.rows() if isinstance(row.entry, AttemptOver)]


def test_unreachable_node_keeps_its_job_and_gets_no_other(journal: Journal) -> None:
    broker = running(journal)
    broker.ask(submit(1))
    broker.says("n1", launched(2))
    broker.wait(LIMITS.lease_s, "n1")
    assert states(broker) == {"n0": "unreachable", "n1": "up"}
    broker.says("n1", ended(2))
    broker.ask(submit(4))
    broker.ask(submit(4))
    assert [state(broker, job) for job in (1, 3, 4)] == ["running", "launching", "queued"]
    out = broker.says("n0", hello("n0", 4, RUNNING, cluster="c1", epoch=1))
    assert of_kind(out, Welcome)[0].forget == []
    assert (states(broker)["n0"], state(broker, 1)) == ("up", "running"), "as before"


def test_node_that_stays_unreachable_is_down_and_its_job_restarts_elsewhere(journal: Journal) -> None:
    broker = running(journal)
    broker.wait(LIMITS.lost_after_s - 1.0, "n1")
    assert state(broker, 1) == "running"
    out = broker.wait(2.0, "n1")
    assert [(launch.attempt, launch.nodes) for launch in of_kind(out, Launch)] == [(2, ["n1"])]
    assert set(broker.sent.dropped) == {"n0"}
    assert states(broker)["n0"] == "unreachable"
    assert (broker.state.jobs[1].retries, broker.state.jobs[1].losses) == (0, 1), "not caused by the job"
    assert reasons(journal) == ["node n0 was unreachable for its --lost-after of 100 s"]


def test_node_without_fencing_keeps_its_jobs(journal: Journal) -> None:
    broker = make(journal, nodes=0)
    older = msgspec.structs.replace(hello("n0"), capabilities=Capabilities())
    broker.says("n0", older)
    broker.says("n1", hello("n1"))
    broker.ask(submit(4))
    broker.says("n0", launched(1))
    broker.wait(3 * LIMITS.lost_after_s, "n1")
    assert (states(broker)["n0"], state(broker, 1)) == ("unreachable", "running")


def test_operator_declares_an_unreachable_node_down(journal: Journal) -> None:
    broker = running(journal, lost_after_s=0.0)
    refused = broker.ask(DownNode(node="n0"))
    assert isinstance(refused, Refused)
    assert "node n0 is up: only an unreachable node can be declared down" in refused.message
    broker.wait(LIMITS.lease_s, "n1")
    assert broker.ask(DownNode(node="n0", reason="power supply")) == Ok()
    assert (states(broker)["n0"], state(broker, 1)) == ("down", "launching")
    assert reasons(journal) == ["node n0 is down: power supply"]
    out = broker.says("n0", hello("n0", 4, RUNNING, cluster="c1", epoch=1))
    assert of_kind(out, Welcome)[0].forget == [(1, 1)], "if it still runs, it is killed"
    assert isinstance(broker.ask(DownNode(node="n7")), Refused)


def test_invalid_lost_after_is_refused(journal: Journal) -> None:
    broker = make(journal)
    for wrong in (-1.0, 5.0, float("nan"), float("inf")):
        refused = broker.ask(submit(1, lost_after_s=wrong))
        assert isinstance(refused, Refused), wrong
        assert "lost_after_s must be 0 (never) or at least 20, the seconds" in refused.message
    assert broker.ask(submit(1, lost_after_s=20.0)) == Submitted(job=1)


def test_job_without_lost_after_stays_with_its_unreachable_node(journal: Journal) -> None:
    broker = running(journal, lost_after_s=0.0)
    broker.wait(1_000 * LIMITS.lost_after_s, "n1")
    assert (states(broker)["n0"], state(broker, 1)) == ("unreachable", "running")
    broker.says("n0", hello("n0", 4, RUNNING, cluster="c1", epoch=1))
    assert (states(broker)["n0"], state(broker, 1)) == ("up", "running")
    assert broker.state.jobs[1].attempt.number == 1  # type: ignore[union-attr]
    broker.says("n0", hello("n0", 4, cluster="c1", epoch=1))
    assert broker.state.jobs[1].attempt.number == 2, "its node does not report it"  # type: ignore[union-attr]


def test_lost_after_is_the_jobs_own_or_the_brokers(journal: Journal) -> None:
    broker = make(journal)
    for lost_after_s in (None, 0.0, 30.0):
        broker.ask(submit(1, lost_after_s=lost_after_s))
    orders = [order for _, order in broker.sent.orders if isinstance(order, Launch)]
    assert [order.lost_after_s for order in orders] == [LIMITS.lost_after_s, 0.0, 30.0]


@pytest.mark.parametrize("pause_s", [25.0, 1_000.0])
def test_downtime_of_the_broker_expires_no_lease(journal: Journal, pause_s: float) -> None:
    broker = running(journal)
    broker.wait(1.0)
    broker.batch([hand.TICK], after_s=pause_s)
    assert states(broker) == {"n0": "up", "n1": "up"}
    assert state(broker, 1) == "running"
    broker.wait(LIMITS.lease_s + 1.0, "n1")
    assert states(broker) == {"n0": "unreachable", "n1": "up"}, "heartbeats are required from then on"


def test_heartbeat_is_answered_with_its_number(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    (answer,) = broker.batch([NodeSaid("n0", 7, Heartbeat(name="n0"))])
    assert (answer, broker.sent.requests[-1]) == (HeartbeatAck(), 7)
    assert broker.says("n0", Heartbeat(name="n0")) == [], "an older node does not ask for it"


def test_job_keeps_its_lost_after_if_the_default_changes(journal: Journal) -> None:
    running(journal)
    shorter = msgspec.structs.replace(LIMITS, lost_after_s=20.0)
    again = HandBroker(load_scheduler("fifo-backfill"), journal, limits=shorter, now_s=2_000.0)
    again.says("n1", hello("n1", cluster="c1", epoch=1))
    again.wait(60.0, "n1")
    assert state(again, 1) == "running", "its node received 100 s"
    again.wait(41.0, "n1")
    assert state(again, 1) == "launching", "elsewhere"


def test_stopped_daemon_announces_it_and_its_jobs_keep_running(journal: Journal) -> None:
    broker = running(journal)
    broker.says("n0", Leaving(name="n0"))
    assert (states(broker)["n0"], state(broker, 1)) == ("unreachable", "running")
    broker.says("n0", hello("n0", 4, RUNNING, cluster="c1", epoch=1))
    assert (states(broker)["n0"], state(broker, 1)) == ("up", "running")


def test_end_reported_by_a_returning_node_is_accepted(journal: Journal) -> None:
    """`rlsched up` is stopped with a running job, and started again."""
    broker = running(journal)
    broker.says("n0", Leaving(name="n0"))
    over = AttemptReport(
        job=1, attempt=1, rank=0, state="ended", exit_code=143, reason="node_stopped", ended_s=1_001.0
    )
    broker.says("n0", hello("n0", 4, over, cluster="c1", epoch=1))
    broker.says("n0", ended(1, exit_code=143, reason="node_stopped"))
    assert states(broker) == {"n0": "up", "n1": "up"}
    assert (state(broker, 1), broker.state.jobs[1].retries) == ("launching", 0)


def test_fenced_job_uses_no_retry(journal: Journal) -> None:
    broker = running(journal)
    broker.says("n0", ended(1, exit_code=143, reason="fenced"))
    assert (state(broker, 1), broker.state.jobs[1].retries) == ("launching", 0)
    assert states(broker)["n0"] == "up"


def test_job_lost_in_a_reboot_has_this_reason(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    broker.ask(submit(4))
    broker.says("n0", launched(1))
    broker.says("n0", msgspec.structs.replace(hello("n0", cluster="c1", epoch=1), boot_id="another"))
    assert broker.state.jobs[1].attempt.number == 2  # type: ignore[union-attr]
    assert reasons(journal) == ["node n0 was rebooted"]


def rebooted(broker: HandBroker, attempt: int, *, code: int | None = None) -> None:
    """n0 registers after a reboot in which it lost job 1. `code`: the exit code that its daemon reports."""
    report = AttemptReport(
        job=1, attempt=attempt, rank=0, state="ended", exit_code=code, reason="node_stopped", ended_s=1_001.0
    )
    said = hello("n0", 4, *([] if code is None else [report]), cluster="c1", epoch=1)
    broker.says("n0", msgspec.structs.replace(said, boot_id=f"boot-{attempt}"))


def lose(broker: HandBroker, attempt: int, how: str) -> None:
    broker.says("n0", launched(1, attempt))
    if how == "down":
        broker.says("n0", Leaving(name="n0"))
        assert broker.ask(DownNode(node="n0")) == Ok()
        broker.says("n0", hello("n0", cluster="c1", epoch=1))
    elif how == "removed":
        broker.says("n0", Leaving(name="n0"))
        assert broker.ask(RemoveNode(node="n0")) == Ok()
        broker.says("n0", hello("n0", cluster="c1", epoch=1))
    else:
        rebooted(broker, attempt, code=137 if how == "found dead" else None)


@pytest.mark.parametrize("how", ["down", "removed", "rebooted", "found dead"])
def test_job_that_loses_its_node_uses_retries_only_after_repeated_losses(journal: Journal, how: str) -> None:
    """Bounds how often a job that crashes its nodes is restarted."""
    broker = make(journal, nodes=1)
    broker.ask(submit(4))
    for attempt in range(1, MAX_LOSSES + 1):
        lose(broker, attempt, how)
        job = broker.state.jobs[1]
        assert (job.state, job.retries, job.losses) == ("launching", 0, attempt)
    assert make(journal).state.jobs[1].losses == MAX_LOSSES, "a restarted broker continues the count"
    lose(broker, MAX_LOSSES + 1, how)
    job = broker.state.jobs[1]
    assert (job.state, job.exit_code) == ("failed", 255)
    assert job.reason.startswith(
        f"given up after {MAX_LOSSES + 1} attempts in a row that ended with a lost node, the last one: node"
    )


@pytest.mark.parametrize("between", ["node_stopped", "refused", "stopped in order"])
def test_only_consecutive_node_losses_count(journal: Journal, between: str) -> None:
    broker = make(journal, nodes=1)
    broker.ask(submit(4))
    for attempt in range(1, MAX_LOSSES + 1):
        lose(broker, attempt, "rebooted")
    attempt = MAX_LOSSES + 1
    if between == "refused":
        broker.says("n0", LaunchRefused(job=1, attempt=attempt, rank=0, message="disk full"))
        while state(broker, 1) == "queued":
            broker.wait(1.0, "n0")
    elif between == "node_stopped":
        broker.says("n0", launched(1, attempt))
        broker.says("n0", ended(1, attempt, exit_code=143, reason="node_stopped"))
    else:  # its daemon was stopped with its jobs, and then the machine was rebooted
        broker.says("n0", launched(1, attempt))
        rebooted(broker, attempt, code=143)
    assert broker.state.jobs[1].losses == 0
    for more in range(attempt + 1, attempt + 1 + MAX_LOSSES):
        lose(broker, more, "rebooted")
    assert (state(broker, 1), broker.state.jobs[1].losses) == ("launching", MAX_LOSSES)


# ---- identity of a node -----------------------------------------------------------------------------------


def from_directory(directory: str, *reports: AttemptReport, boot: str = "b1") -> Hello:
    said = hello("n0", 4, *reports, cluster="c1", epoch=1)
    return msgspec.structs.replace(said, directory_id=directory, boot_id=boot)


def test_second_daemon_of_a_live_node_is_refused(journal: Journal) -> None:
    broker = make(journal, nodes=0)
    broker.says("n0", from_directory("d1"))
    (refused,) = broker.says("n0", from_directory("d2"))
    assert isinstance(refused, Refused)
    assert "node n0 already has a daemon" in refused.message
    broker.says("n0", Leaving(name="n0"))
    assert of_kind(broker.says("n0", from_directory("d2")), Welcome), "in the place of a stopped daemon"


def test_daemon_with_another_directory_starts_no_job_twice(journal: Journal) -> None:
    broker = make(journal, nodes=0)
    broker.says("n0", from_directory("d1"))
    broker.ask(submit(4))
    broker.says("n0", launched(1))
    broker.wait(LIMITS.lease_s + 1.0)
    (refused,) = broker.says("n0", from_directory("d2"))
    assert isinstance(refused, Refused)
    assert "jobs 1 of node n0 may still run" in refused.message
    assert state(broker, 1) == "running"
    broker.wait(LIMITS.lost_after_s)
    assert of_kind(broker.says("n0", from_directory("d2")), Welcome), "they have fenced themselves by now"
    assert broker.state.jobs[1].attempt.number == 2  # type: ignore[union-attr]


def test_job_that_waits_for_its_node_waits_for_its_directory(journal: Journal) -> None:
    broker = make(journal, nodes=0)
    broker.says("n0", from_directory("d1"))
    broker.ask(submit(4, lost_after_s=0.0))
    broker.says("n0", launched(1))
    broker.wait(3 * LIMITS.lost_after_s)
    (refused,) = broker.says("n0", from_directory("d2"))
    assert isinstance(refused, Refused)
    assert "for as long as they run" in refused.message
    assert of_kind(broker.says("n0", from_directory("d2", boot="b2")), Welcome), (
        "after a reboot no process runs"
    )
    assert broker.state.jobs[1].attempt.number == 2  # type: ignore[union-attr]
