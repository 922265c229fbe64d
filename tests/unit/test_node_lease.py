"""How long ranks go on without a word from the broker: the machine's part, and the file's."""

from __future__ import annotations

import math
import os
from pathlib import Path

from rlsched.wire.messages import Heartbeat, HeartbeatAck, Hello, Launch, Welcome
from rlsched_node.lease_file import read_lease, write_lease
from rlsched_node.machine import NodeMachine
from rlsched_node.steps import Connected, Effect, Received, RenewLease, Send, StartRank, Tick

ORDER = Launch(
    epoch=1, job=1, attempt=1, rank=0, num_ranks=1, nodes=["n0"], gpus=[0], command=["true"], env={}, cwd="",
    fenced=True,
)  # fmt: skip


def leases(effects: list[Effect]) -> list[float]:
    return [effect.until_s for effect in effects if isinstance(effect, RenewLease)]


def registered(lost_after_s: float = 80.0) -> NodeMachine:
    """Its hello, number 1, left at 0 s."""
    machine = NodeMachine(Hello(name="n0", gpus=1))
    machine.handle(Connected(), 0.0)
    welcome = Welcome(cluster="c1", epoch=1, heartbeat_s=2.0, lost_after_s=lost_after_s)
    assert leases(machine.handle(Received(welcome, 1), 3.0)) == [
        80.0 - 10.0 - 5.0 if lost_after_s else math.inf
    ], "it counts from when the hello was sent; a grace of an eighth, and a margin of 5 s at most"
    return machine


def beat(machine: NodeMachine, now_s: float) -> int:
    """The request number of the heartbeat that is sent now."""
    (sent,) = [effect for effect in machine.handle(Tick(), now_s) if isinstance(effect, Send)]
    assert isinstance(sent.message, Heartbeat)
    return sent.request


def test_an_answer_renews_from_when_the_heartbeat_was_sent() -> None:
    machine = registered()
    first, second = beat(machine, 10.0), beat(machine, 12.0)
    assert leases(machine.handle(Received(HeartbeatAck(), second), 20.0)) == [12.0 + 65.0]
    assert machine.handle(Received(HeartbeatAck(), first), 20.0) == [], "an older answer shortens nothing"
    assert machine.handle(Received(HeartbeatAck(), second), 20.0) == [], "nor does the same again"
    assert machine.handle(Received(HeartbeatAck(), 999), 20.0) == []


def test_the_longest_grace_of_a_job_fits_before_the_broker_gives_up() -> None:
    for max_grace_s, grace_s in ((20.0, 20.0), (300.0, 75.0)):
        machine = NodeMachine(Hello(name="n0", gpus=1))
        machine.handle(Connected(), 0.0)
        welcome = Welcome(cluster="c1", epoch=1, heartbeat_s=2.0, lost_after_s=600.0, max_grace_s=max_grace_s)
        (lease,) = [one for one in machine.handle(Received(welcome, 1), 0.0) if isinstance(one, RenewLease)]
        assert (lease.until_s, lease.grace_s) == (600.0 - grace_s - 5.0, grace_s)


def test_a_broker_that_fences_nothing_leaves_ranks_alone() -> None:
    machine = registered(lost_after_s=0.0)
    assert machine.handle(Received(ORDER), 1e9)[-1] == StartRank(ORDER)


def test_an_order_from_before_the_lease_ran_out_is_not_obeyed() -> None:
    """The daemon was frozen, and finds it among its messages: the job may run elsewhere by now."""
    machine = registered()
    machine.handle(Received(ORDER), 65.0)
    assert machine.attempts.known == {}
    assert not machine.is_registered
    (hello,) = [e.message for e in machine.handle(Tick(), 66.0) if isinstance(e, Send)]
    assert isinstance(hello, Hello)


def test_what_an_earlier_daemon_went_by_is_told_until_there_is_another() -> None:
    machine = NodeMachine(Hello(name="n0", gpus=1, lost_after_s=600.0))
    (sent,) = machine.handle(Connected(), 0.0)
    assert isinstance(sent, Send)
    assert isinstance(sent.message, Hello)
    assert sent.message.lost_after_s == 600.0


def test_the_file_says_what_was_written_last_and_nothing_by_halves(tmp_path: Path) -> None:
    path = str(tmp_path / "lease")
    assert read_lease(path) is None
    write_lease(path, 1234.5678, 10.0, 80.0)
    before = os.stat(path)
    write_lease(path, math.inf, 30.0, 0.0)
    assert read_lease(path) == (math.inf, 30.0, 0.0)
    after = os.stat(path)
    assert (after.st_ino, after.st_size) == (before.st_ino, before.st_size), "a full disk must not end jobs"
    first, second = Path(path).read_text().splitlines(keepends=True)
    Path(path).write_text(first.replace("inf", "12.000") + second)
    assert read_lease(path) is None
