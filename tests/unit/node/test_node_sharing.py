"""Ranks that share GPUs on a node: launches that wait, separate ends, and one clock for all."""

from __future__ import annotations

import msgspec
import pytest

from rlsched.wire.messages import (
    DEFAULT_GRACE_S,
    AttemptKey,
    HoldClock,
    Kill,
    Launch,
    Launched,
    LaunchRefused,
    Welcome,
)
from rlsched_node.link.machine import NodeMachine
from rlsched_node.processes.attempt import LocalRank, Phase
from rlsched_node.processes.steps import (
    ClocksLocked,
    Connected,
    Disconnected,
    Effect,
    EndRank,
    Exited,
    HoldClocks,
    Received,
    RenewLease,
    ResetClocks,
    Send,
    Started,
    StartRank,
)
from tests.support.node_events import CLUSTER, HELLO, ended, launch, registered, silent


def key(job: int) -> AttemptKey:
    return AttemptKey(job, 1, 0, CLUSTER)


def sharing(job: int, *beside: int, mhz: int = 0, gpus: list[int] | None = None) -> Launch:
    return msgspec.structs.replace(launch(job, gpus=gpus), beside=list(beside), sm_clock_mhz=mhz)


def handled(machine: NodeMachine, message: object) -> list[Effect]:
    return silent(machine.handle(Received(message), 0.0))  # type: ignore[arg-type]


def running(machine: NodeMachine, order: Launch) -> None:
    """Launch a rank: it gets its clock and runs."""
    for effect in handled(machine, order):
        if isinstance(effect, HoldClocks):
            machine.handle(ClocksLocked(effect.key, effect.mhz, ""), 0.0)
        elif isinstance(effect, StartRank) and effect.launch.sm_clock_mhz:
            machine.handle(ClocksLocked(key(order.job), effect.launch.sm_clock_mhz, ""), 0.0)
    machine.handle(Started(key(order.job), 70 + order.job), 0.0)


def test_rank_starts_next_to_its_named_co_tenants() -> None:
    machine = registered()
    running(machine, sharing(1))
    assert handled(machine, sharing(2, 1)) == [StartRank(sharing(2, 1))]
    machine.handle(Started(key(2), 72), 0.0)
    assert machine.attempts.gpus_held == {0}
    assert silent(machine.handle(Exited(key(1), 3), 1.0)) == [ended(1, 3)]
    assert [attempt.key for attempt in machine.attempts.live] == [key(2)]
    assert silent(machine.handle(Exited(key(2), 0), 1.0)) == [ended(2, 0)]


@pytest.mark.parametrize("beside", [(), (7,)])
def test_exclusive_ranks_do_not_share(beside: tuple[int, ...]) -> None:
    machine = registered()
    running(machine, sharing(1))
    (refusal,) = handled(machine, sharing(2, *beside))
    assert isinstance(refusal, Send)
    assert isinstance(refusal.message, LaunchRefused)
    assert "GPUs [0] are held by attempt 1.1.0" in refusal.message.message


def test_kill_ends_only_one_of_them() -> None:
    machine = registered()
    running(machine, sharing(1))
    running(machine, sharing(2, 1))
    assert handled(machine, Kill(epoch=1, job=2, attempt=1, rank=0)) == [
        EndRank(key(2), DEFAULT_GRACE_S, "killed")
    ]


def test_next_co_tenant_waits_until_the_killed_one_has_exited() -> None:
    """Its memory is not free earlier."""
    machine = registered()
    running(machine, sharing(1))
    running(machine, sharing(2, 1))
    handled(machine, Kill(epoch=1, job=2, attempt=1, rank=0))
    assert handled(machine, sharing(3, 1)) == []
    assert silent(machine.handle(Exited(key(2), 143, "killed"), 1.0)) == [
        ended(2, 143, "killed"),
        StartRank(sharing(3, 1)),
    ]


def test_two_launches_that_wait_for_the_same_gpus_start_together() -> None:
    machine = registered()
    running(machine, sharing(1))
    handled(machine, Kill(epoch=1, job=1, attempt=1, rank=0))
    assert handled(machine, sharing(3, 2)) == []
    assert handled(machine, sharing(2, 3)) == []
    _, *starts = silent(machine.handle(Exited(key(1), 143, "killed"), 1.0))
    assert starts == [StartRank(sharing(3, 2)), StartRank(sharing(2, 3))]


def test_repeated_launch_starts_nothing_twice() -> None:
    machine = registered()
    running(machine, sharing(1))
    running(machine, sharing(2, 1))
    again = [Send(Launched(job=2, attempt=1, rank=0, pid=72))]
    assert handled(machine, sharing(2, 1)) == again
    machine.handle(Disconnected(), 0.0)
    machine.handle(Connected(), 0.0)
    machine.handle(Received(Welcome(cluster=CLUSTER, epoch=1, heartbeat_s=10.0)), 0.0)
    assert handled(machine, sharing(2, 1)) == again


def test_adopted_ranks_can_have_co_tenants() -> None:
    machine = NodeMachine(HELLO, [LocalRank(key(job), (0,), Phase.RUNNING, 70 + job) for job in (1, 2)])
    machine.handle(Connected(), 0.0)
    effects = machine.handle(Received(Welcome(cluster=CLUSTER, epoch=1, heartbeat_s=10.0)), 0.0)
    reports = [effect for effect in silent(effects) if not isinstance(effect, RenewLease)]
    assert [effect.message.job for effect in reports if isinstance(effect, Send)] == [1, 2]  # type: ignore[union-attr]
    assert handled(machine, sharing(3, 1, 2)) == [StartRank(sharing(3, 1, 2))]


# ---- one clock -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first_mhz", "second_mhz", "joint_mhz"), [(900, 1200, 1200), (1200, 900, 1200), (900, 900, 900)]
)
def test_highest_clock_counts(first_mhz: int, second_mhz: int, joint_mhz: int) -> None:
    machine = registered()
    running(machine, sharing(1, mhz=first_mhz))
    effects = handled(machine, sharing(2, 1, mhz=second_mhz))
    *held, started = effects
    assert held == ([HoldClocks(key(1), (0,), joint_mhz)] if joint_mhz != first_mhz else [])
    assert started == StartRank(sharing(2, 1, mhz=joint_mhz))


def test_rank_without_a_clock_resets_it_until_its_end() -> None:
    machine = registered()
    running(machine, sharing(1, mhz=900))
    running(machine, sharing(2, 1))
    assert machine.attempts.known[key(1)].sm_clock_mhz == 0
    effects = silent(machine.handle(Exited(key(2), 0), 1.0))
    assert HoldClocks(key(1), (0,), 900) in effects
    machine.handle(ClocksLocked(key(1), 900, ""), 1.0)
    assert ResetClocks((0,)) in machine.handle(Exited(key(1), 0), 2.0)


def test_last_rank_resets_the_clock() -> None:
    machine = registered()
    running(machine, sharing(1, mhz=900))
    running(machine, sharing(2, 1, mhz=1200))
    effects = machine.handle(Exited(key(2), 0), 1.0)
    assert HoldClocks(key(1), (0,), 900) in effects
    assert not any(isinstance(effect, ResetClocks) for effect in effects)
    machine.handle(ClocksLocked(key(1), 900, ""), 1.0)
    assert ResetClocks((0,)) in machine.handle(Exited(key(1), 0), 1.0)


def test_changed_clock_of_one_rank_gives_the_new_highest() -> None:
    machine = registered()
    running(machine, sharing(1, mhz=900))
    running(machine, sharing(2, 1, mhz=900))
    order = HoldClock(epoch=1, job=1, attempt=1, rank=0, sm_clock_mhz=700)
    assert handled(machine, order) == [HoldClocks(key(1), (0,), 900), HoldClocks(key(2), (0,), 900)]
