"""Events of a node daemon's state machine."""

from __future__ import annotations

from rlsched.wire.messages import (
    AttemptKey,
    Ended,
    Hello,
    Launch,
    Launched,
    Welcome,
)
from rlsched_node.link.machine import (
    NodeMachine,
)
from rlsched_node.processes.attempt import LocalRank
from rlsched_node.processes.steps import (
    Connected,
    Effect,
    Note,
    Received,
    RenewLease,
    Send,
    Started,
    StartRank,
)

CLUSTER = "c1"
HELLO = Hello(name="n0", gpus=4, cluster=CLUSTER)
KEY = AttemptKey(1, 1, 0, CLUSTER)


def launch(
    job: int = 1,
    attempt: int = 1,
    rank: int = 0,
    *,
    gpus: list[int] | None = None,
    epoch: int = 1,
    num_ranks: int = 1,
) -> Launch:
    return Launch(
        epoch=epoch,
        job=job,
        attempt=attempt,
        rank=rank,
        num_ranks=num_ranks,
        nodes=[f"n{r}" for r in range(num_ranks)],
        gpus=[0] if gpus is None else gpus,
        command=["true"],
        env={},
        cwd="",
    )


def welcome(epoch: int = 1, heartbeat_s: float = 1.0) -> Received:
    return Received(Welcome(cluster=CLUSTER, epoch=epoch, heartbeat_s=heartbeat_s))


def ended(job: int = 1, exit_code: int = 0, reason: str = "") -> Send:
    return Send(Ended(job=job, attempt=1, rank=0, exit_code=exit_code, reason=reason))


def silent(effects: list[Effect]) -> list[Effect]:
    """Effects without notes and leases."""
    return [effect for effect in effects if not isinstance(effect, Note | RenewLease)]


def registered(*attempts: LocalRank) -> NodeMachine:
    machine = NodeMachine(HELLO, attempts)
    machine.handle(Connected(), 0.0)
    machine.handle(welcome(1, 10.0), 0.0)
    return machine


def running(machine: NodeMachine, order: Launch, pid: int = 77) -> None:
    key = AttemptKey(order.job, order.attempt, order.rank, CLUSTER)
    assert silent(machine.handle(Received(order), 0.0)) == [StartRank(order)]
    assert silent(machine.handle(Started(key, pid), 0.0)) == [
        Send(Launched(job=key.job, attempt=key.attempt, rank=key.rank, pid=pid))
    ]
