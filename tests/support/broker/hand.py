"""A broker driven by hand, with messages of nodes and clients."""

from __future__ import annotations

import itertools
import math

from rlsched.broker.base.entries import JobSubmitted
from rlsched.broker.base.limits import Limits
from rlsched.broker.events import Due, Tick
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.replay import journal_events, redecide
from rlsched.decide.policies.policy import Policy
from rlsched.decide.registry import load_scheduler
from rlsched.wire.messages import (
    AttemptReport,
    BrokerToNode,
    Capabilities,
    ClientReply,
    Ended,
    Hello,
    JobInfo,
    Jobs,
    Launched,
    ListJobs,
    ListNodes,
    Nodes,
    Submit,
)
from tests.support.broker.hand_broker import HandBroker

LIMITS = Limits(
    heartbeat_s=2.0,
    lease_s=20.0,
    lost_after_s=20.0,
    launch_timeout_s=30.0,
    kill_again_s=10.0,
    log_timeout_s=10.0,
    ended_s=math.inf,
)
TOKENS = itertools.count()
TICK = Tick()


def make(journal: Journal, nodes: int = 0, policy: str = "fifo-backfill") -> HandBroker:
    broker = HandBroker(load_scheduler(policy), journal, limits=LIMITS)
    for number in range(nodes):
        broker.says(f"n{number}", hello(f"n{number}"))
    return broker


def hello(
    name: str, gpus: int = 4, *attempts: AttemptReport, cluster: str = "", epoch: int = 0, vc: str = ""
) -> Hello:
    return Hello(
        name=name,
        gpus=gpus,
        attempts=list(attempts),
        cluster=cluster,
        epoch=epoch,
        vc=vc,
        capabilities=Capabilities(fences=True),
    )


def submit(num_gpus: int = 1, token: str = "", **more: object) -> Submit:
    facts = {"command": ["true"], **more}
    return Submit(token=token or f"t{next(TOKENS)}", num_gpus=num_gpus, **facts)  # type: ignore[arg-type]


def launched(job: int, attempt: int = 1, rank: int = 0) -> Launched:
    return Launched(job=job, attempt=attempt, rank=rank, pid=100 + rank)


def ended(job: int, attempt: int = 1, rank: int = 0, exit_code: int = 0, reason: str = "") -> Ended:
    return Ended(job=job, attempt=attempt, rank=rank, exit_code=exit_code, reason=reason)


def state(broker: HandBroker, job: int) -> str:
    return broker.state.jobs[job].state


def states(broker: HandBroker) -> dict[str, str]:
    """State of each node, as in lists."""
    nodes = broker.ask(ListNodes())
    assert isinstance(nodes, Nodes)
    return {node.name: node.state for node in nodes.nodes}


def of_kind(messages: list[object], kind: type) -> list[object]:
    return [message for message in messages if isinstance(message, kind)]


def run_one(broker: HandBroker, seconds: float, **facts: object) -> int:
    """Run a job from submission to end for this time; returns its number."""
    broker.ask(submit(**facts))  # type: ignore[arg-type]
    job = len(broker.state.jobs)
    broker.says("n0", launched(job))
    broker.says("n0", ended(job), after_s=seconds - 0.001)
    return job


def draft(job: int = 1) -> JobSubmitted:
    """A submission without a prediction."""
    return JobSubmitted(
        job=job, token=f"t{job}", command=["true"], num_gpus=1, name="x", vc="", user="", num_cpus=0,
        time_limit_s=None, env={}, cwd="", predicted_s=float("nan"), spread=float("nan"),
    )  # fmt: skip


def pass_until(broker: HandBroker, at_s: float) -> list[ClientReply | BrokerToNode]:
    """Let time pass; the broker decides exactly when its policy asks for it. Returns the output."""
    said: list[ClientReply | BrokerToNode] = []
    while broker.now_s < at_s:
        due_s = broker.machine.due_s()
        next_s = due_s if broker.now_s < due_s <= at_s else at_s
        said += broker.batch([Due()], after_s=next_s - broker.now_s)
    return said


def shown(broker: HandBroker, job: int) -> JobInfo:
    """The job as in lists."""
    reply = broker.ask(ListJobs(job=job, finished=True))
    assert isinstance(reply, Jobs)
    (info,) = reply.jobs
    return info


def decided_alike(journal: Journal, policy: Policy) -> None:
    """A replay of the journal makes the same decisions."""
    events = journal_events(journal.path)
    again = [record.action for record in redecide(events, load_scheduler(policy))]
    assert again == [decided.action for decided in events.decisions]
    assert again
