"""Cores and memory that jobs request: allocated, waited for, refused, sorted and restored."""

from __future__ import annotations

import math
from contextlib import closing
from pathlib import Path

import msgspec

from rlsched.broker.base.entries import JobSubmitted, NodeUp, decode_entry, encode_entry
from rlsched.broker.compaction.compaction import DAY_S, made, put
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.replay import journal_events, redecide
from rlsched.broker.queries.as_history import history_of
from rlsched.decide.registry import load_scheduler
from rlsched.wire.messages import (
    AttemptReport,
    Capabilities,
    Explanation,
    Heartbeat,
    Hello,
    Jobs,
    Launch,
    ListJobs,
    ListNodes,
    Nodes,
    Refused,
    Why,
)
from tests.support.broker.compacted import compacted
from tests.support.broker.hand import draft, ended, hello, launched, make, state, submit
from tests.support.broker.hand_broker import HandBroker

GIB = 1024
HOLDS = Capabilities(holds_to=["cores", "memory", "processes"])


def big(name: str, memory_gib: int = 64, **more: object) -> Hello:
    facts = {"cpus": 16, "memory_mib": memory_gib * GIB, "capabilities": HOLDS, **more}
    return msgspec.structs.replace(hello(name), **facts)


def cluster(journal: Journal, *nodes: Hello) -> HandBroker:
    broker = make(journal)
    for node in nodes or (big("n0"),):
        broker.says(node.name, node)
    return broker


def orders(broker: HandBroker, job: int) -> dict[str, tuple[int, int]]:
    """(cores, MiB) of each launched rank, by node."""
    sent = [(node, order) for node, order in broker.sent.orders if isinstance(order, Launch)]
    return {node: (order.cores, order.memory_mib) for node, order in sent if order.job == job}


def reason(broker: HandBroker, job: int) -> str:
    jobs = broker.ask(ListJobs(job=job))
    assert isinstance(jobs, Jobs)
    return jobs.jobs[0].reason


def why(broker: HandBroker, job: int) -> list[str]:
    said = broker.ask(Why(job=job))
    assert isinstance(said, Explanation)
    return [said.summary, *said.details]


def notes(broker: HandBroker, name: str) -> list[str]:
    nodes = broker.ask(ListNodes())
    assert isinstance(nodes, Nodes)
    return next(node.notes for node in nodes.nodes if node.name == name)


def test_launch_has_the_ranks_share_of_cores_and_memory(journal: Journal) -> None:
    broker = cluster(journal, big("n0"), big("n1"))
    broker.ask(submit(6, num_cpus=12, memory_mib=6 * GIB))
    assert sorted(orders(broker, 1).values()) == [(4, 2 * GIB), (8, 4 * GIB)]
    broker.ask(submit(2))
    assert list(orders(broker, 2).values()) == [(0, 0)], "a job that requests none has none in its launch"


def test_job_that_requests_more_than_is_free_waits_with_a_reason(journal: Journal) -> None:
    broker = cluster(journal)
    broker.ask(submit(1, num_cpus=4, memory_mib=48 * GIB))
    broker.ask(submit(1, memory_mib=32 * GIB))
    broker.ask(submit(1, num_cpus=13))
    broker.ask(submit(1, num_cpus=12, memory_mib=16 * GIB))
    assert [state(broker, job) for job in (1, 2, 3, 4)] == ["launching", "queued", "queued", "launching"]
    assert (
        reason(broker, 2)
        == "Resources: needs 32 GiB of memory, which are not free on nodes with enough free GPUs"
    )
    assert reason(broker, 3) == "Resources: needs 13 cores, which are not free on nodes with enough free GPUs"
    assert "it needs 32 GiB of memory" in why(broker, 2)[0]
    broker.says("n0", launched(1))
    broker.says("n0", ended(1))
    assert [state(broker, job) for job in (2, 3)] == ["launching", "queued"]
    broker.says("n0", launched(4))
    broker.says("n0", ended(4))
    assert state(broker, 3) == "launching"


def test_job_that_requests_more_than_any_node_has_is_refused(journal: Journal) -> None:
    broker = cluster(journal)
    for asked in ({"memory_mib": 65 * GIB}, {"num_cpus": 17}, {"num_cpus": 16, "memory_mib": 70 * GIB}):
        refused = broker.ask(submit(2, **asked))
        assert isinstance(refused, Refused)
        assert "can never be given with 2 GPUs: its largest node has 16 cores and 64 GiB" in refused.message
        assert "\n" not in refused.message
    for asked in ({"memory_mib": -1}, {"num_cpus": -1}, {"memory_mib": 1 << 41}):
        refused = broker.ask(submit(1, **asked))
        assert isinstance(refused, Refused)
        assert "must be 0 to" in refused.message


def test_jobs_without_a_request_are_counted_as_before(journal: Journal) -> None:
    broker = cluster(journal)
    broker.ask(submit(1, num_cpus=16, memory_mib=64 * GIB))
    broker.ask(submit(3))
    assert [state(broker, job) for job in (1, 2)] == ["launching", "launching"]


def test_node_that_returns_with_less_memory_offers_less(journal: Journal) -> None:
    broker = cluster(journal)
    broker.ask(submit(1, memory_mib=40 * GIB))
    broker.says("n0", launched(1))
    runs = {"cluster": "c1", "attempts": [AttemptReport(job=1, attempt=1, rank=0, state="running")]}
    broker.says("n0", big("n0", memory_gib=32, **runs))
    broker.ask(submit(1, memory_mib=8 * GIB))
    broker.ask(submit(1))
    assert [state(broker, job) for job in (2, 3)] == ["queued", "launching"]
    runs["attempts"].append(AttemptReport(job=3, attempt=1, rank=0, state="running"))  # type: ignore[attr-defined]
    broker.says("n0", big("n0", memory_gib=128, **runs))
    broker.ask(submit(1, memory_mib=80 * GIB))
    assert [state(broker, job) for job in (2, 4)] == ["launching", "launching"]
    assert make(journal).state.cluster.digest() == broker.state.cluster.digest()


def test_node_without_limits_is_noted_and_its_jobs_get_a_warning(journal: Journal) -> None:
    old = msgspec.structs.replace(big("n0"), capabilities=Capabilities())
    loose = big("n1", capabilities=Capabilities(holds_to=["cores"]), notes=["no control groups: ..."])
    broker = cluster(journal, old, loose)
    assert "its rlsched is too old to limit" in notes(broker, "n0")[0]
    assert notes(broker, "n1") == ["no control groups: ..."]
    broker.ask(submit(4, num_cpus=2, memory_mib=GIB))
    broker.ask(submit(4, num_cpus=2, memory_mib=GIB))
    told = [line for job in (1, 2) for line in why(broker, job) if line.startswith("not held")]
    assert [line.partition(":")[0] for line in told] == [
        "not held as a whole to its cores, 2 cores and 1 GiB of memory, by n0",
        "not held as a whole to its memory, 2 cores and 1 GiB of memory, by n0",
        "not held as a whole to its memory, 2 cores and 1 GiB of memory, by n1",
    ]


def test_engine_counts_cores_and_memory_itself(journal: Journal) -> None:
    """An engine reports neither cores nor memory of its nodes: no note, no accounting."""
    broker = cluster(journal, hello("n0"))
    assert notes(broker, "n0") == []
    broker.ask(submit(1, num_cpus=1000, memory_mib=1000 * GIB))
    assert state(broker, 1) == "launching"


def test_out_of_memory_is_reported_in_words(journal: Journal) -> None:
    broker = cluster(journal)
    for job, asked in ((1, {"memory_mib": 4 * GIB}), (2, {})):
        broker.ask(submit(1, **asked))
        broker.says("n0", launched(job))
        broker.says("n0", ended(job, exit_code=137, reason="out_of_memory"))
        assert state(broker, job) == "failed"
    assert reason(broker, 1) == "was out of memory: it asked for 4 GiB (rlsched submit --mem)"
    assert "it asked for none" in reason(broker, 2)


def test_replay_decides_alike(journal: Journal) -> None:
    broker = cluster(journal, big("n0"), big("n1", memory_gib=16))
    for gpus, cores, gib in ((1, 4, 40), (2, 0, 0), (4, 16, 16), (1, 2, 30), (1, 0, 12), (2, 8, 1)):
        broker.ask(submit(gpus, num_cpus=cores, memory_mib=gib * GIB))
    for job in (1, 2):
        broker.says(broker.state.jobs[job].attempt.ranks[0].node, launched(job))  # type: ignore[union-attr]
        broker.says(broker.state.jobs[job].attempt.ranks[0].node, ended(job))  # type: ignore[union-attr]
    records = [record for kept in broker.records for record in kept.records]
    again = redecide(journal_events(journal.path), load_scheduler("fifo-backfill"))
    assert len(again) == len(records) > 4
    for theirs, ours in zip(records, again, strict=True):
        assert msgspec.structs.replace(ours, took_us=theirs.took_us) == theirs
    trace = history_of(Path(journal.path)).trace
    assert trace.num_cpus.tolist()[:1] == [4.0]
    assert math.isnan(trace.num_cpus[1])
    assert trace.extra["memory_mib"].tolist()[:1] == [40.0 * GIB]


def test_compacted_journal_keeps_requests_of_live_jobs(tmp_path: Path) -> None:
    path = tmp_path / "compacted.sqlite"
    broker = cluster(Journal(path))
    broker.ask(submit(1, num_cpus=4, memory_mib=48 * GIB))
    broker.says("n0", launched(1))
    broker.ask(submit(1, memory_mib=32 * GIB))
    broker.says("n0", Heartbeat(name="n0"), after_s=2 * DAY_S)
    broker.ask(submit(1, num_cpus=2))
    digest = broker.state.cluster.digest()
    broker.journal.close()
    with compacted(path, 1_000.0 + DAY_S) as journal:
        again = make(journal)
        assert again.state.cluster.digest() == digest
        again.says("n0", big("n0", cluster="c1"))
        assert reason(again, 2).startswith("Resources: needs 32 GiB of memory")


def test_cores_in_older_journals_are_not_counted(journal: Journal) -> None:
    """A start that was legal then stays legal: 1000 cores on a node of 16."""
    before = msgspec.structs.replace(draft(), num_cpus=1000, predicted_s=60.0, spread=1.0)
    packed = msgspec.msgpack.decode(encode_entry(before))
    del packed["counted"], packed["memory_mib"]
    entry = decode_entry(msgspec.msgpack.encode(packed))
    assert isinstance(entry, JobSubmitted)
    broker = cluster(journal)
    broker.machine._out.record(entry)  # type: ignore[attr-defined]
    broker.ask(submit(1))
    assert state(broker, 1) == "launching"
    assert orders(broker, 1) == {"n0": (0, 0)}


def test_node_in_an_older_journal_has_no_limits() -> None:
    up = NodeUp(
        name="n0", gpus=1, gpu_type="x", gpu_uuids=[], cpus=1, memory_mib=1, vc="", boot_id="",
    )  # fmt: skip
    packed = msgspec.msgpack.decode(encode_entry(up))
    packed["capabilities"] = {"exact_gpus": True}
    found = decode_entry(msgspec.msgpack.encode(packed))
    assert isinstance(found, NodeUp)
    assert found.capabilities.holds_to is None


# ---- memory of GPUs --------------------------------------------------------------------------------------


def card(name: str, gpu_type: str, gib: int, **more: object) -> Hello:
    can = Capabilities(holds_to=[], gpu_memory_mib=gib * GIB)
    return msgspec.structs.replace(hello(name), gpu_type=gpu_type, capabilities=can, **more)


def out_of_gpu_memory(broker: HandBroker, job: int, attempt: int = 1) -> None:
    node = broker.state.jobs[job].attempt.ranks[0].node  # type: ignore[union-attr]
    broker.says(node, launched(job, attempt))
    broker.says(node, ended(job, attempt, exit_code=1, reason="gpu_out_of_memory"))


def node_of(broker: HandBroker, job: int) -> str:
    attempt = broker.state.jobs[job].attempt
    return attempt.ranks[0].node if attempt is not None and state(broker, job) == "launching" else ""


def test_job_gets_or_waits_for_gpus_with_enough_memory(journal: Journal) -> None:
    broker = cluster(journal, card("n0", "small", 40), card("n1", "large", 80))
    broker.ask(submit(3, gpu_memory_mib=48 * GIB))
    assert node_of(broker, 1) == "n1"
    assert [order.gpu_memory_mib for _, order in broker.sent.orders if isinstance(order, Launch)] == [
        48 * GIB
    ]
    broker.ask(submit(2, gpu_memory_mib=48 * GIB))
    assert state(broker, 2) == "queued"
    assert (
        reason(broker, 2)
        == "Resources: needs GPUs of 48 GiB, which are not free on nodes with enough free GPUs"
    )
    broker.ask(submit(2, gpu_memory_mib=40 * GIB))
    assert node_of(broker, 3) == "n0"
    refused = broker.ask(submit(1, gpu_memory_mib=81 * GIB))
    assert isinstance(refused, Refused)
    assert refused.message.endswith(
        "1 GPU of 81 GiB or more can never be given: the largest GPU of its nodes has 80 GiB"
    )


def test_unknown_gpu_memory_counts_as_enough(journal: Journal) -> None:
    broker = cluster(journal, hello("n0"))
    broker.ask(submit(1, gpu_memory_mib=48 * GIB))
    assert node_of(broker, 1) == "n0"


def test_smallest_gpu_of_a_type_counts(journal: Journal) -> None:
    broker = cluster(journal, card("n0", "x", 80), card("n1", "x", 40))
    assert isinstance(broker.ask(submit(1, gpu_memory_mib=48 * GIB)), Refused)
    broker.says("n0", card("n0", "x", 40, cluster="c1"))
    assert isinstance(broker.ask(submit(1, gpu_memory_mib=48 * GIB)), Refused)
    for name in ("n0", "n1"):
        broker.says(name, card(name, "x", 80, cluster="c1"))
    broker.ask(submit(1, gpu_memory_mib=48 * GIB))
    assert [job.state for job in broker.state.jobs.values()][-1] == "launching"
    assert make(journal).state.cluster.digest() == broker.state.cluster.digest()


def test_job_out_of_gpu_memory_is_requeued_once_for_a_larger_gpu(journal: Journal) -> None:
    broker = cluster(journal, card("n0", "small", 40), card("n1", "large", 80, unhealthy="not yet"))
    broker.ask(submit(4))
    assert node_of(broker, 1) == "n0"
    out_of_gpu_memory(broker, 1)
    assert state(broker, 1) == "queued"
    assert "it is queued once more, for larger GPUs" in reason(broker, 1)
    broker.ask(submit(1))
    assert node_of(broker, 2) == "n0", "small GPUs are still allocated to other jobs"
    broker.says("n1", Heartbeat(name="n1"))
    assert node_of(broker, 1) == "n1"
    assert broker.state.jobs[1].retries == 0, "it is not charged"
    again = make(journal)
    assert again.state.cluster.digest() == broker.state.cluster.digest()
    assert again.state.jobs[1].gpu_memory_mib == 40 * GIB + 1
    out_of_gpu_memory(broker, 1, attempt=2)


def test_job_out_of_gpu_memory_is_not_requeued_twice_and_replays_alike(journal: Journal) -> None:
    broker = cluster(journal, card("n0", "a", 20), card("n1", "b", 40, unhealthy="x"), card("n2", "c", 80))
    broker.ask(submit(4, gpu_memory_mib=48 * GIB))
    broker.ask(submit(4))
    assert (node_of(broker, 1), node_of(broker, 2)) == ("n2", "n0")
    out_of_gpu_memory(broker, 2)
    broker.says("n1", Heartbeat(name="n1"))
    assert node_of(broker, 2) == "n1"
    out_of_gpu_memory(broker, 2, attempt=2)
    assert state(broker, 2) == "failed"
    assert reason(broker, 2).startswith("was out of GPU memory, as its output says")
    records = [record for kept in broker.records for record in kept.records]
    made_again = redecide(journal_events(journal.path), load_scheduler("fifo-backfill"))
    assert len(made_again) == len(records) > 2
    for theirs, ours in zip(records, made_again, strict=True):
        assert msgspec.structs.replace(ours, took_us=theirs.took_us) == theirs


def test_job_out_of_gpu_memory_on_the_largest_gpu_fails(journal: Journal) -> None:
    broker = cluster(journal, card("n0", "x", 80))
    broker.ask(submit(1))
    out_of_gpu_memory(broker, 1)
    assert state(broker, 1) == "failed"


def test_compacted_journal_keeps_learned_gpu_memory(tmp_path: Path) -> None:
    path = tmp_path / "compacted.sqlite"
    broker = cluster(Journal(path), card("n0", "small", 40), card("n1", "large", 80, unhealthy="away"))
    broker.ask(submit(1))
    out_of_gpu_memory(broker, 1)
    assert state(broker, 1) == "queued"
    broker.says("n0", Heartbeat(name="n0"), after_s=2 * DAY_S)
    broker.ask(submit(1))
    digest = broker.state.cluster.digest()
    broker.journal.close()
    cut = made(path, 1_000.0 + DAY_S)
    assert cut is not None
    with closing(Journal(path)) as journal:
        assert put(journal, cut)
        again = make(journal)
        assert again.state.cluster.digest() == digest
        assert again.state.jobs[1].gpu_memory_mib == 40 * GIB + 1
