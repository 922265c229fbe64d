"""The node's state machine: changed time limits of running, waiting and ended ranks, and of older shims."""

from __future__ import annotations

import math

import msgspec

from rlsched.wire.messages import Kill, Launched, LimitTime, TimeLimited, Welcome
from rlsched_node.link.machine import NodeMachine
from rlsched_node.processes.attempt import LocalRank, Phase
from rlsched_node.processes.steps import (
    Connected,
    Exited,
    Limited,
    LimitRank,
    Received,
    Send,
    Started,
    StartRank,
)
from tests.support.node_events import CLUSTER, HELLO, KEY, ended, launch, registered, running, silent


def limit(limit_s: float, job: int = 1, epoch: int = 1) -> Received:
    return Received(LimitTime(epoch=epoch, job=job, attempt=1, rank=0, limit_s=limit_s))


def limited(limit_s: float) -> Send:
    return Send(TimeLimited(job=1, attempt=1, rank=0, limit_s=limit_s))


def knowing(*attempts: LocalRank) -> NodeMachine:
    """A machine registered with a broker that supports changed time limits."""
    machine = NodeMachine(HELLO, attempts)
    machine.handle(Connected(), 0.0)
    told = Welcome(cluster=CLUSTER, epoch=1, heartbeat_s=1.0, hears_limits=True)
    machine.handle(Received(told), 0.0)
    return machine


def test_running_rank_gets_the_limit_and_every_order_is_answered() -> None:
    machine = registered()
    running(machine, msgspec.structs.replace(launch(), time_limit_s=60.0))
    assert machine.handle(limit(30.0), 1.0) == [LimitRank(KEY, 30.0)]
    assert machine.handle(limit(30.0), 1.0) == [LimitRank(KEY, 30.0)]  # as if it could not be written
    assert silent(machine.handle(Limited(KEY, 30.0), 1.0)) == [limited(30.0)]
    assert machine.handle(limit(30.0), 2.0) == [limited(30.0)]  # the answer was lost
    assert machine.handle(limit(math.inf, job=9), 2.0) == []  # unknown job
    assert LimitRank(KEY, 5.0) not in machine.handle(limit(5.0, epoch=0), 2.0)


def test_limit_is_reported_only_to_brokers_that_support_it() -> None:
    for machine, expected_s in ((knowing(), math.inf), (registered(), None)):
        machine.handle(Received(launch()), 1.0)
        out = machine.handle(Started(KEY, 42), 1.0)
        assert Send(Launched(job=1, attempt=1, rank=0, pid=42, limit_s=expected_s)) in out
    (attempt,) = machine.attempts.known.values()
    assert attempt.report().limit_s == math.inf  # in a hello, which every broker accepts


def test_waiting_rank_starts_with_the_limit_and_an_ended_one_reports_its_end() -> None:
    machine = registered()
    running(machine, launch())
    machine.handle(Received(Kill(epoch=1, job=1, attempt=1, rank=0)), 2.0)
    machine.handle(Received(launch(job=2)), 2.0)
    assert machine.handle(limit(7.0, job=2), 2.0) == []
    out = machine.handle(Exited(KEY, 143, "killed"), 3.0)
    assert out[-1] == StartRank(msgspec.structs.replace(launch(job=2), time_limit_s=7.0))
    assert machine.handle(limit(7.0), 3.0) == [ended(exit_code=143, reason="killed")]


def test_older_shim_is_not_changed() -> None:
    machine = knowing(LocalRank(KEY, (0,), Phase.RUNNING, 42))
    assert machine.handle(limit(7.0), 1.0) == []
    (attempt,) = machine.attempts.known.values()
    assert (attempt.report().limit_s, attempt.launched(tells_limit=True).limit_s) == (None, None)
