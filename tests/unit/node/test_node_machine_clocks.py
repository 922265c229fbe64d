"""The node's state machine: clocks locked for a rank, changed, and reset after its end."""

from __future__ import annotations

import msgspec

from rlsched.wire.messages import ClockHeld, Hello, HoldClock, Kill, Launch, Launched
from rlsched_node.link.machine import NodeMachine
from rlsched_node.processes.steps import (
    ClocksLocked,
    Connected,
    Effect,
    Event,
    Exited,
    HoldClocks,
    NodeTick,
    Received,
    ResetClocks,
    Send,
    Started,
    StartFailed,
    StartRank,
)
from tests.support.node_events import HELLO, KEY, launch, registered, silent, welcome


def clocked(mhz: int = 1560) -> Launch:
    return msgspec.structs.replace(launch(), sm_clock_mhz=mhz)


def test_locked_clock_is_reported_and_reset_before_the_next_rank_starts() -> None:
    machine = registered()
    assert quiet(machine, Received(clocked())) == [StartRank(clocked())]
    assert quiet(machine, ClocksLocked(KEY, 1560)) == []
    out = machine.handle(Started(KEY, 42), 1.0)
    assert Send(Launched(job=1, attempt=1, rank=0, pid=42, sm_clock_mhz=1560)) in out
    machine.handle(Received(Kill(epoch=1, job=1, attempt=1, rank=0)), 2.0)
    machine.handle(Received(launch(job=2)), 2.0)
    out = silent(machine.handle(Exited(KEY, 143, "killed"), 3.0))
    assert out[0] == ResetClocks((0,))
    assert out[-1] == StartRank(launch(job=2))


def test_failed_start_resets_the_clock() -> None:
    machine = registered()
    machine.handle(Received(clocked()), 1.0)
    machine.handle(ClocksLocked(KEY, 1560), 1.0)
    out = machine.handle(StartFailed(KEY, "no space left"), 1.0)
    assert ResetClocks((0,)) in out
    assert machine.handle(Received(launch(job=2)), 1.0) == [StartRank(launch(job=2))]


def test_clock_that_was_never_locked_is_not_reset() -> None:
    machine = registered()
    machine.handle(Received(clocked()), 1.0)
    machine.handle(ClocksLocked(KEY, 0, "No Permission", never=True), 1.0)
    machine.handle(Started(KEY, 42), 1.0)
    assert not any(isinstance(one, ResetClocks) for one in machine.handle(Exited(KEY, 0), 2.0))


def test_lost_permission_for_clocks_is_reported_once_no_start_is_pending() -> None:
    machine = NodeMachine(msgspec.structs.replace(HELLO, sm_clocks_mhz=[1980, 1560]))
    machine.handle(Connected(), 0.0)
    machine.handle(welcome(1, 10.0), 0.0)
    machine.handle(Received(clocked()), 1.0)
    machine.handle(ClocksLocked(KEY, 0, "No Permission", never=True), 1.0)
    assert not any(isinstance(sent(one), Hello) for one in machine.handle(NodeTick(), 1.1))
    out = machine.handle(Started(KEY, 42), 1.2)
    assert Send(Launched(job=1, attempt=1, rank=0, pid=42, clock_note="No Permission")) in out
    (hello,) = [sent(one) for one in machine.handle(NodeTick(), 1.3) if isinstance(sent(one), Hello)]
    assert isinstance(hello, Hello)
    assert (hello.sm_clocks_mhz, hello.clocks_note) == ([], "No Permission")
    assert [report.state for report in hello.attempts] == ["running"]


def test_clock_of_a_running_rank_is_changed_and_acknowledged() -> None:
    machine = registered()
    machine.handle(Received(launch()), 1.0)
    machine.handle(Started(KEY, 42), 1.0)
    order = HoldClock(epoch=1, job=1, attempt=1, rank=0, sm_clock_mhz=1200)
    assert quiet(machine, Received(order)) == [HoldClocks(KEY, (0,), 1200)]
    assert quiet(machine, ClocksLocked(KEY, 1200)) == [
        Send(ClockHeld(job=1, attempt=1, rank=0, sm_clock_mhz=1200))
    ]
    assert ResetClocks((0,)) in machine.handle(Exited(KEY, 0), 2.0)
    assert quiet(machine, Received(order)) == [], "it has ended"


def test_clock_for_a_waiting_rank_applies_at_its_launch() -> None:
    machine = registered()
    machine.handle(Received(launch()), 1.0)
    machine.handle(Started(KEY, 42), 1.0)
    machine.handle(Received(Kill(epoch=1, job=1, attempt=1, rank=0)), 1.0)
    machine.handle(Received(launch(job=2)), 1.0)
    assert quiet(machine, Received(HoldClock(epoch=1, job=2, attempt=1, rank=0, sm_clock_mhz=900))) == []
    out = machine.handle(Exited(KEY, 143, "killed"), 2.0)
    assert StartRank(msgspec.structs.replace(launch(job=2), sm_clock_mhz=900)) in out


def test_order_of_an_old_epoch_changes_no_clock() -> None:
    machine = registered()
    machine.handle(Received(launch(epoch=3)), 1.0)
    machine.handle(Started(KEY, 42), 1.0)
    order = HoldClock(epoch=2, job=1, attempt=1, rank=0, sm_clock_mhz=1200)
    assert not any(isinstance(one, HoldClocks) for one in machine.handle(Received(order), 1.0))


def quiet(machine: NodeMachine, event: Event) -> list[Effect]:
    return silent(machine.handle(event, 1.0))


def sent(effect: Effect) -> object:
    return effect.message if isinstance(effect, Send) else None
