"""How long ranks run without contact to the broker: the node machine's lease and the fence file."""

from __future__ import annotations

import math
import os
from pathlib import Path

import msgspec

from rlsched.wire.messages import Heartbeat, HeartbeatAck, Hello, Launch, Welcome
from rlsched_node.lease_file import LOOK_S, Fence, fence_times, read_renewed, since_boot_s, write_renewed
from rlsched_node.link.machine import NodeMachine
from rlsched_node.processes.steps import Connected, Effect, NodeTick, Received, RenewLease, Send, StartRank

ORDER = Launch(
    epoch=1, job=1, attempt=1, rank=0, num_ranks=1, nodes=["n0"], gpus=[0], command=["true"], env={}, cwd="",
    lost_after_s=80.0,
)  # fmt: skip
ALLOWED_S = 80.0 - 10.0 - 5.0


def renewals(effects: list[Effect]) -> list[float]:
    return [effect.renewed_s for effect in effects if isinstance(effect, RenewLease)]


def registered() -> NodeMachine:
    """A registered machine. Its hello, number 1, was sent at 0 s."""
    machine = NodeMachine(Hello(name="n0", gpus=1))
    machine.handle(Connected(), 0.0)
    welcome = Welcome(cluster="c1", epoch=1, heartbeat_s=2.0)
    assert renewals(machine.handle(Received(welcome, 1), 3.0)) == [0.0], "when the hello was sent"
    return machine


def beat(machine: NodeMachine, now_s: float) -> int:
    """Request number of the heartbeat that is sent now."""
    (sent,) = [effect for effect in machine.handle(NodeTick(), now_s) if isinstance(effect, Send)]
    assert isinstance(sent.message, Heartbeat)
    return sent.request


def test_answer_renews_from_the_time_of_its_heartbeat() -> None:
    machine = registered()
    first, second = beat(machine, 10.0), beat(machine, 12.0)
    assert renewals(machine.handle(Received(HeartbeatAck(), second), 20.0)) == [12.0]
    assert machine.handle(Received(HeartbeatAck(), first), 20.0) == [], "an older answer shortens nothing"
    assert machine.handle(Received(HeartbeatAck(), second), 20.0) == [], "nor does a repeated answer"
    assert machine.handle(Received(HeartbeatAck(), 999), 20.0) == []


def test_launch_without_lost_after_never_expires() -> None:
    machine, order = registered(), msgspec.structs.replace(ORDER, lost_after_s=0.0)
    assert machine.handle(Received(order), 1e9)[-1] == StartRank(order)


def test_launch_from_before_the_lease_expired_is_ignored() -> None:
    """A frozen daemon finds it in its queue: the job may run elsewhere by now."""
    machine = registered()
    machine.handle(Received(ORDER), ALLOWED_S)
    assert machine.attempts.known == {}
    assert not machine.is_registered
    (hello,) = [e.message for e in machine.handle(NodeTick(), ALLOWED_S + 1.0) if isinstance(e, Send)]
    assert isinstance(hello, Hello)


def test_rank_is_fenced_a_grace_and_a_margin_before_the_broker_restarts_it() -> None:
    assert fence_times(80.0, 30.0) == (ALLOWED_S, 10.0)
    assert fence_times(3600.0, 30.0) == (3565.0, 30.0)
    assert fence_times(3600.0, 300.0) == (3295.0, 300.0), "the grace of the job counts"
    assert fence_times(600.0, 300.0) == (520.0, 75.0), "up to an eighth"
    for lost_after_s in (1.0, 8.0, 300.0, 1e6):
        allowed_s, grace_s = fence_times(lost_after_s, 30.0)
        assert 0.0 < allowed_s < allowed_s + grace_s + LOOK_S / 10 < lost_after_s + LOOK_S / 10


def test_fence_has_a_margin_for_the_end_of_the_rank() -> None:
    assert Fence("", 0.0, 30.0).margin_s == math.inf, "no fence"
    assert Fence("lease", 3600.0, 30.0).margin_s == 5.0
    assert Fence("lease", 8.0, 30.0).margin_s == 1.0


def test_file_holds_the_last_complete_deadline(tmp_path: Path) -> None:
    path = str(tmp_path / "lease")
    assert read_renewed(path) is None
    write_renewed(path, 1234.5678)
    before = os.stat(path)
    write_renewed(path, 99_999.25)
    assert read_renewed(path) == 99_999.25
    after = os.stat(path)
    assert (after.st_ino, after.st_size) == (before.st_ino, before.st_size), "a full disk must not end jobs"
    first, second = Path(path).read_text().splitlines(keepends=True)
    assert float(first.split()[0]) == math.inf, "a shim of an earlier version keeps running"
    Path(path).write_text(first.replace("99999", "12000") + second)
    assert read_renewed(path) is None


def test_fence_fires_once_and_only_for_ranks_with_lost_after(tmp_path: Path) -> None:
    path = str(tmp_path / "lease")
    write_renewed(path, since_boot_s() - 70.0)
    assert Fence(path, 0.0, 30.0).closed_grace_s() is None
    assert Fence(path, 800.0, 30.0).closed_grace_s() is None
    fence = Fence(path, 80.0, 30.0)
    assert fence.closed_grace_s() == 10.0
    assert fence.closed_grace_s() is None, "the rank is being killed"
    renewed = Fence(path, 80.0, 30.0)
    write_renewed(path, since_boot_s())
    assert renewed.closed_grace_s() is None
    Path(path).write_text("half")
    assert renewed.closed_grace_s() is None, "its last deadline holds"
