"""GPUs of which other processes use memory: jobs that request more are placed elsewhere, or wait."""

from __future__ import annotations

import msgspec

from rlsched.broker.base.entries import GpuMemoryLimited
from rlsched.broker.compaction import compaction
from rlsched.broker.events import NodeSaid
from rlsched.broker.journal.codec import unpack
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.replay import journal_events, redecide
from rlsched.broker.journal.snapshots import picture_of
from rlsched.cluster.state import ClusterState
from rlsched.decide.registry import load_scheduler
from rlsched.wire.messages import (
    Capabilities,
    Explanation,
    GpuMemory,
    Hello,
    Jobs,
    LaunchRefused,
    Leaving,
    ListJobs,
    ListNodes,
    Nodes,
    Why,
)
from tests.support.broker.hand import ended, launched, make, state, states, submit
from tests.support.broker.hand_broker import HandBroker
from tests.support.broker.preempting import replayed, shape

POLICY = "fifo-backfill"
HELLO = Hello(name="n0", gpus=2, capabilities=Capabilities(gpu_memory_mib=16_000, tells_memory=True))
WHY_NOT = "GPU 0 has 6750 of 16000 MiB free, and the job asks for 8000"


def two_gpus(journal: Journal) -> HandBroker:
    broker = make(journal, policy=POLICY)
    broker.says("n0", HELLO)
    return broker


def has(broker: HandBroker, usable_mib: dict[int, int]) -> None:
    broker.says("n0", GpuMemory(usable_mib=usable_mib))


def why(broker: HandBroker, job: int) -> str:
    answer = broker.ask(Why(job=job))
    assert isinstance(answer, Explanation)
    return str(answer)


def reason(broker: HandBroker, job: int) -> str:
    answer = broker.ask(ListJobs(job=job))
    assert isinstance(answer, Jobs)
    return answer.jobs[0].reason


def gpus(broker: HandBroker, job: int) -> list[list[int]]:
    attempt = broker.state.jobs[job].active
    return [] if attempt is None else [rank.gpus for rank in attempt.ranks]


def facts(journal: Journal) -> list[GpuMemoryLimited]:
    return [row.entry for row in journal.rows() if isinstance(row.entry, GpuMemoryLimited)]


def test_job_waits_for_memory_with_its_reason_and_starts_when_it_is_free(journal: Journal) -> None:
    broker = two_gpus(journal)
    has(broker, {0: 6_750, 1: 7_000})
    broker.ask(submit(gpu_memory_mib=8_000))
    assert state(broker, 1) == "queued"
    needs = (
        "needs 8000 MiB free on each GPU, and free GPUs have less: node n0, GPU 0: 6750 MiB; node n0, GPU 1: "
        "7000 MiB"
    )
    assert reason(broker, 1) == f"Resources: {needs}"
    assert f"not enough free GPU memory on the cluster: it {needs}" in why(broker, 1)
    nodes = broker.ask(ListNodes())
    assert isinstance(nodes, Nodes)
    assert "GPU 0: 6.5 GiB free for jobs, GPU 1: 6.8 GiB free for jobs" in nodes.nodes[0].notes
    broker.ask(submit(gpu_memory_mib=6_751))
    broker.ask(submit())
    assert [gpus(broker, job) for job in (1, 2, 3)] == [[], [[1]], [[0]]], "others use these GPUs"
    broker.says("n0", launched(3))
    broker.says("n0", ended(3))
    assert state(broker, 1) == "queued"
    has(broker, {1: 7_000})
    assert gpus(broker, 1) == [[0]]
    assert len(facts(journal)) == 2
    records = redecide(journal_events(journal.path), load_scheduler(POLICY))
    live = [(one.now_s, one.state_digest) for kept in broker.records for one in kept.records]
    assert [(one.now_s, one.state_digest) for one in records] == live
    assert shape(replayed(journal)) == shape(broker.state)


def test_refused_job_gets_another_gpu_or_waits_and_neither_drains_nor_counts(journal: Journal) -> None:
    """The node reports the memory before it refuses the job."""
    broker = two_gpus(journal)
    broker.ask(submit(gpu_memory_mib=8_000))
    assert gpus(broker, 1) == [[0]]
    refusal = LaunchRefused(job=1, attempt=1, rank=0, message=WHY_NOT, is_for_now=True, is_about_memory=True)
    broker.batch([NodeSaid("n0", 0, GpuMemory(usable_mib={0: 6_750})), NodeSaid("n0", 0, refusal)])
    assert gpus(broker, 1) == [[1]]
    assert (broker.state.jobs[1].retries, states(broker)) == (0, {"n0": "up"})
    broker.says("n0", GpuMemory(usable_mib={0: 6_750, 1: 7_999}))
    broker.says("n0", msgspec.structs.replace(refusal, attempt=2))
    assert (state(broker, 1), broker.state.jobs[1].retries, states(broker)) == ("queued", 0, {"n0": "up"})
    broker.wait(300.0, "n0")
    assert broker.state.jobs[1].attempts == 2, "it is not tried again and again"
    assert WHY_NOT in why(broker, 1)


def test_same_or_invalid_figures_are_not_journalled(journal: Journal) -> None:
    broker = two_gpus(journal)
    for usable_mib in ({}, {0: 6_750}, {0: 6_750}, {0: 6_750, 2: 1, -1: 5}, {0: -1}):
        has(broker, usable_mib)
    assert [one.usable_mib for one in facts(journal)] == [{0: 6_750}, {0: 0}]


def test_figures_survive_restarts_and_compaction_and_end_with_a_node_that_reports_none(
    journal: Journal,
) -> None:
    broker = two_gpus(journal)
    has(broker, {0: 6_750})

    def usable_mib(cluster: ClusterState) -> dict[int, int]:
        return cluster.usable_gpu_memory(0)

    states = [broker.state, unpack(picture_of(broker.state)), replayed(journal)]
    cut = compaction.made(journal.path, broker.now_s + 1.0)
    assert cut is not None
    assert compaction.put(journal, cut)
    states.append(replayed(journal))
    assert [usable_mib(one.cluster) for one in states] == [{0: 6_750}] * 4
    broker.says("n0", Leaving(name="n0"))
    broker.says("n0", HELLO)
    assert usable_mib(broker.state.cluster) == {0: 6_750}, "its report follows"
    older = msgspec.structs.replace(HELLO, capabilities=Capabilities(gpu_memory_mib=16_000))
    broker.says("n0", older)
    assert usable_mib(broker.state.cluster) == {}
