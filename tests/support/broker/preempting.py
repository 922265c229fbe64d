"""A broker driven by hand under `tiresias`, with a job that is preempted."""

from __future__ import annotations

import msgspec

from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.replay import journal_events
from rlsched.broker.state.broker_state import BrokerState
from rlsched.broker.state.predictions import RUNNING_MEAN, Predictions
from rlsched.decide.order.keys import Order
from rlsched.decide.policies.policy import Policy
from rlsched.decide.rule_scheduler import RuleScheduler
from rlsched.decide.scheduler import Scheduler
from tests.support.broker.hand import LIMITS, ended, hello, launched, submit
from tests.support.broker.hand_broker import HandBroker

GRACE_S = LIMITS.grace_s


def tiresias(threshold_gpu_s: float = 10.0, tick: str = "0s") -> RuleScheduler:
    """Jobs are preempted after 10 GPU-seconds; called at every event."""
    preempt = {"threshold_gpu_s": threshold_gpu_s, "tick": tick}
    return RuleScheduler(Policy("tiresias", name="tiresias", preempt=preempt))


def make_preempting(journal: Journal, nodes: int = 0, scheduler: Scheduler | None = None) -> HandBroker:
    broker = HandBroker(scheduler or tiresias(), journal, limits=LIMITS)
    for number in range(nodes):
        broker.says(f"n{number}", hello(f"n{number}"))
    return broker


def killed(job: int, attempt: int = 1, rank: int = 0, exit_code: int = 143) -> object:
    return ended(job, attempt, rank, exit_code, "killed")


def preempted(journal: Journal, nodes: int = 1, gpus: int = 4) -> HandBroker:
    """Job 1 has all GPUs for 12 s, then job 2 arrives: 1 is preempted, 2 has its GPUs in the ledger."""
    broker = make_preempting(journal, nodes)
    broker.ask(submit(nodes * 4, preemptible=True))
    for rank in range(nodes):
        broker.says(f"n{rank}", launched(1, rank=rank))
    broker.wait(12.0, *(f"n{rank}" for rank in range(nodes)))
    broker.ask(submit(gpus))
    return broker


def actions(journal: Journal) -> list[object]:
    return [decided.action for decided in journal_events(journal.path).decisions]


def shape(state: BrokerState) -> list[object]:
    """State that a restart must restore."""
    jobs = [
        (job.number, job.seq, job.state, job.retries, job.preemptions, job.earlier_s, job.end_s, job.reason)
        + ((msgspec.json.encode(job.attempt),) if job.attempt else ())
        for job in state.jobs.values()
    ]
    nodes = [(name, node.up, sorted(node.live_jobs)) for name, node in state.nodes.items()]
    return [state.cluster.digest(), jobs, nodes, state.asked_for_s, state.decisions]


def replayed(journal: Journal) -> BrokerState:
    state = BrokerState(Predictions(RUNNING_MEAN), Order())
    state.replay(journal.rows())
    return state
