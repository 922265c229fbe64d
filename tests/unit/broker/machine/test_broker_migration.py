"""The broker's state machine: a scheduler migrates a job; `why` names the job that gets its GPUs."""

from __future__ import annotations

from rlsched.broker.journal.journal import Journal
from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Preempt, Start
from rlsched.decide.policies.policy import Policy
from rlsched.decide.rule_scheduler import RuleScheduler
from rlsched.decide.scheduler import Decision
from rlsched.wire.messages import Explanation, Why
from tests.support.broker.hand import ended, launched, submit
from tests.support.broker.hand import state as state_of
from tests.support.broker.hand_broker import HandBroker
from tests.support.broker.preempting import actions, killed, make_preempting, replayed, shape


class Moving(RuleScheduler):
    """Moves the second job as soon as the fourth one waits; otherwise the rule `gittins`."""

    def decide(self, state: ClusterState, partition: int, now_s: float, *, record: bool = False) -> Decision:
        if 1 in state.running() and 3 in state.waiting(partition):
            return Decision(action=Preempt(seq=1, moved_for=3), source="rule")
        return super().decide(state, partition, now_s, record=record)


def moved(journal: Journal) -> HandBroker:
    """Jobs 2 and 3 each have a GPU of one node; job 4 needs a whole node."""
    broker = make_preempting(journal, 2, Moving(Policy("gittins")))
    for gpus in (3, 1, 1):
        broker.ask(submit(gpus, preemptible=True))
    for job in (1, 2, 3):
        (rank,) = broker.state.jobs[job].attempt.ranks  # type: ignore[union-attr]
        broker.says(rank.node, launched(job))
    broker.says("n0", ended(1))
    broker.wait(15.0, "n0", "n1")
    broker.ask(submit(4, preemptible=True))
    return broker


def why_text(broker: HandBroker, job: int) -> str:
    answer = broker.ask(Why(job=job))
    assert isinstance(answer, Explanation)
    return "\n".join([answer.summary, *answer.details])


def test_why_names_the_job_that_gets_the_gpus(journal: Journal) -> None:
    broker = moved(journal)
    assert actions(journal)[-2:] == [Preempt(seq=1, moved_for=3), Start(seq=3, gpus=(0, 1, 2, 3))]
    number = broker.state.cluster.decisions - 2
    assert f"it is being ended: moved by decision {number} for job 4" in why_text(broker, 2)
    assert "waits until job 2, preempted, has left its GPUs" in why_text(broker, 4)
    broker.says("n0", killed(2))
    assert state_of(broker, 2) == "launching"
    job = broker.state.jobs[2]
    assert (job.preemptions, job.moves, job.retries) == (1, 1, 0)
    assert f"1 of these times it was moved, to go on elsewhere; last moved by decision {number}" in why_text(
        broker, 2
    )


def test_replay_gives_the_same_migration(journal: Journal) -> None:
    broker = moved(journal)
    assert shape(replayed(journal)) == shape(broker.state)
    broker.says("n0", killed(2))
    assert shape(replayed(journal)) == shape(broker.state)
