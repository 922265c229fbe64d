"""GPU types that jobs request: allocated, waited for, refused, changed, listed, and replayed alike."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from rlsched.broker.base.entries import JobUpdated
from rlsched.broker.compaction.compaction import DAY_S
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.replay import journal_events, redecide
from rlsched.broker.queries.as_history import history_of
from rlsched.cluster.demand import Demand
from rlsched.cluster.spec import ClusterSpec
from rlsched.decide.registry import load_scheduler
from rlsched.wire.messages import (
    AttemptReport,
    Explanation,
    Heartbeat,
    Hello,
    History,
    Jobs,
    Leaving,
    ListHistory,
    ListJobs,
    Ok,
    Refused,
    Submitted,
    Tasks,
    Update,
    Why,
)
from tests.support.broker.compacted import compacted
from tests.support.broker.hand import ended, hello, launched, make, state, submit
from tests.support.broker.hand_broker import HandBroker

A100, H100 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"


def card(name: str, gpu_type: str, **more: object) -> Hello:
    return msgspec.structs.replace(hello(name), gpu_type=gpu_type, **more)


def cluster(journal: Journal, *nodes: Hello) -> HandBroker:
    broker = make(journal)
    for node in nodes or (card("n0", A100), card("n1", H100)):
        broker.says(node.name, node)
    return broker


def on(broker: HandBroker, job: int) -> list[str]:
    """Where a job is being launched, in order of ranks."""
    attempt = broker.state.jobs[job].attempt
    return [rank.node for rank in attempt.ranks] if attempt and state(broker, job) == "launching" else []


def listed(broker: HandBroker, job: int) -> tuple[str, list[str]]:
    """(reason, requested GPU types) as in lists."""
    jobs = broker.ask(ListJobs(job=job))
    assert isinstance(jobs, Jobs)
    return jobs.jobs[0].reason, jobs.jobs[0].gpu_types


def why(broker: HandBroker, job: int) -> list[str]:
    said = broker.ask(Why(job=job))
    assert isinstance(said, Explanation)
    return [said.summary, *said.details]


def end(broker: HandBroker, job: int) -> None:
    for rank, node in enumerate(on(broker, job)):
        broker.says(node, launched(job, rank=rank))
        broker.says(node, ended(job, rank=rank))


def test_job_gets_only_gpus_of_its_types(journal: Journal) -> None:
    broker = cluster(journal)
    broker.ask(submit(4, gpu_types=["h100"]))
    broker.ask(submit(1, gpu_types=["h100-80gb"]))
    broker.ask(submit(1, gpu_types=["H100", "a100"]))
    assert [on(broker, job) for job in (1, 2, 3)] == [["n1"], [], ["n0"]]
    reason, types = listed(broker, 2)
    assert (
        reason == "Resources: needs GPUs of type h100-80gb, which are not free on nodes with enough free GPUs"
    )
    assert types == ["h100-80gb"]
    assert listed(broker, 1)[1] == ["H100"], "a type of the table has the spelling of the table"
    assert listed(broker, 3)[1] == ["A100", "H100"]
    assert "it needs GPUs of type h100-80gb" in why(broker, 2)[0]
    end(broker, 1)
    assert on(broker, 2) == ["n1"]


def test_gang_may_mix_the_types_that_it_names(journal: Journal) -> None:
    broker = cluster(journal, card("n0", A100), card("n1", H100), card("n2", "Tesla T4"))
    broker.ask(submit(8, gpu_types=["A100", "H100"]))
    assert on(broker, 1) == ["n0", "n1"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            {"gpu_types": ["h10"]},
            f"no node that it may use has GPUs of type h10: did you mean H100? its nodes have {A100}, {H100}",
        ),
        (
            {"gpu_types": ["V100", "T4"]},
            f"no node that it may use has GPUs of type T4 or V100: its nodes have {A100}, {H100}",
        ),
        ({"num_gpus": 5, "gpu_types": ["H100"]}, "5 GPUs of type H100 can never be given together"),
        ({"gpu_types": [""]}, "gpu_types: expected names of GPU types"),
        ({"gpu_types": ["A100,H100"]}, "gpu_types: expected names of GPU types"),
        ({"gpu_types": ["x" * 65]}, "gpu_types must be at most 64 characters"),
        ({"gpu_types": ["a"] * 17}, "gpu_types: expected at most 16, got 17"),
        ({"gpu_types": ["H\x1b100"]}, "gpu_types must not contain control characters"),
    ],
)
def test_request_that_no_node_can_meet_is_refused_in_one_line(
    journal: Journal, asked: dict[str, object], said: str
) -> None:
    broker = cluster(journal)
    refused = broker.ask(submit(**{"num_gpus": 1} | asked))  # type: ignore[arg-type]
    assert isinstance(refused, Refused)
    assert said in refused.message
    assert "\n" not in refused.message


def test_memory_and_type_must_hold_for_the_same_gpu(journal: Journal) -> None:
    def sized(name: str, gpu_type: str, gib: int) -> Hello:
        capable = msgspec.structs.replace(hello(name).capabilities, gpu_memory_mib=gib << 10)
        return card(name, gpu_type, capabilities=capable)

    broker = cluster(journal, sized("n0", "A100", 40), sized("n1", "H200", 140))
    refused = broker.ask(submit(1, gpu_types=["A100"], gpu_memory_mib=80 << 10))
    assert isinstance(refused, Refused)
    assert refused.message.endswith(
        "1 GPU of type A100 of 80 GiB or more can never be given: the largest GPU of its nodes has 40 GiB"
    )
    broker.ask(submit(4, gpu_types=["A100", "H200"], gpu_memory_mib=80 << 10))
    broker.ask(submit(1, gpu_types=["A100", "H200"], gpu_memory_mib=80 << 10))
    jobs = [job for job in broker.state.jobs.values() if job.state != "rejected"]
    assert [on(broker, job.number) for job in jobs] == [["n1"], []]
    assert listed(broker, jobs[1].number)[0] == (
        "Resources: needs GPUs of type A100 or H200 of 80 GiB, which are not free on nodes with enough free "
        "GPUs"
    )


def test_reason_names_the_node_that_is_down(journal: Journal) -> None:
    broker = cluster(journal)
    broker.says("n1", Leaving(name="n1"))
    assert isinstance(broker.ask(submit(1, gpu_types=["H100"])), Submitted), "it waits and is not refused"
    said = "NodeDown: needs GPUs of type H100, and nodes with such GPUs are absent: n1"
    assert listed(broker, 1)[0] == said
    assert why(broker, 1)[0].endswith("it needs GPUs of type H100; it waits for n1")
    broker.says("n1", card("n1", H100, cluster="c1"))
    assert on(broker, 1) == ["n1"]


def test_type_of_a_waiting_job_can_change(journal: Journal) -> None:
    broker = cluster(journal)
    broker.ask(submit(4, gpu_types=["H100"]))
    broker.ask(submit(2, gpu_types=["H100"], hold=True))
    broker.ask(submit(2, gpu_types=["H100"]))
    refused = broker.ask(Update(job=3, gpu_types=["V100"]))
    assert isinstance(refused, Refused)
    assert "no node that it may use has GPUs of type V100: its nodes have" in refused.message
    assert isinstance(broker.ask(Update(job=1, gpu_types=["A100"])), Refused), "it has GPUs"
    assert isinstance(broker.ask(Update(job=2, gpu_types=["a100"])), Ok)
    assert on(broker, 3) == []
    assert isinstance(broker.ask(Update(job=3, gpu_types=[])), Ok)
    assert on(broker, 3) == ["n0"]
    assert listed(broker, 2)[1] == ["A100"]
    again = make(journal)
    assert again.state.cluster.digest() == broker.state.cluster.digest()
    assert again.state.jobs[2].spec.gpu_types == ["A100"]
    assert again.state.cluster.demands[-1] == Demand(gpus=2)


def test_tasks_of_an_array_have_its_types_also_after_a_change(journal: Journal) -> None:
    broker = cluster(journal)
    broker.ask(submit(4, gpu_types=["H100"], tasks=[Tasks(0, 3)]))
    assert on(broker, min(broker.state.jobs)) == ["n1"]
    assert listed(broker, 1)[1] == ["H100"]
    assert isinstance(broker.ask(Update(job=1, gpu_types=["A100", "H100"])), Ok)
    assert sorted(node for job in broker.state.jobs for node in on(broker, job)) == ["n0", "n1"]


def test_node_that_returns_with_other_gpus_offers_these(journal: Journal) -> None:
    broker = cluster(journal, card("n0", "generic"))
    broker.ask(submit(1))
    broker.says("n0", launched(1))
    assert isinstance(broker.ask(submit(1, gpu_types=["H100"])), Refused)
    runs = AttemptReport(job=1, attempt=1, rank=0, state="running")
    broker.says("n0", card("n0", H100, cluster="c1", attempts=[runs]))
    broker.ask(submit(1, gpu_types=["H100"]))
    assert on(broker, max(broker.state.jobs)) == ["n0"]
    assert isinstance(broker.ask(submit(1, gpu_types=["generic"])), Refused)
    assert make(journal).state.cluster.digest() == broker.state.cluster.digest()


def test_history_has_requested_and_allocated_types(journal: Journal) -> None:
    broker = cluster(journal)
    for _ in range(2):
        broker.ask(submit(1, gpu_types=["H100"]))
    end(broker, 1)
    rows = broker.ask(ListHistory())
    assert isinstance(rows, History)
    assert {row.job: (row.asked_gpu_types, row.gpu_types) for row in rows.jobs} == {
        1: ("H100", H100),
        2: ("H100", H100),
    }


def test_replay_decides_alike_and_the_journal_is_a_trace_with_types(journal: Journal) -> None:
    broker = cluster(journal)
    for gpus, types in ((3, ["H100"]), (2, ["H100"]), (4, []), (1, ["A100", "H100"]), (1, ["A100"]), (8, [])):
        broker.ask(submit(gpus, gpu_types=types))
    broker.ask(Update(job=2, gpu_types=["A100"]))
    for _ in range(6):
        for job in broker.state.jobs:
            end(broker, job)
    assert {job.state for job in broker.state.jobs.values()} == {"completed"}
    assert any(isinstance(row.entry, JobUpdated) for row in journal.rows())
    records = [record for kept in broker.records for record in kept.records]
    again = redecide(journal_events(journal.path), load_scheduler("fifo-backfill"))
    assert len(again) == len(records) > 4
    for theirs, ours in zip(records, again, strict=True):
        assert msgspec.structs.replace(ours, took_us=theirs.took_us) == theirs
    history = history_of(Path(journal.path))
    assert history.trace.gpu_type.tolist() == ["H100", "A100", "", "A100|H100", "A100", ""]
    assert [group.gpu_type for group in history.cluster.nodes] == [A100, H100]


def test_compacted_journal_keeps_types_of_live_jobs(tmp_path: Path) -> None:
    path = tmp_path / "compacted.sqlite"
    broker = cluster(Journal(path))
    broker.ask(submit(4, gpu_types=["H100"]))
    broker.says("n1", launched(1))
    broker.ask(submit(1, gpu_types=["H100"]))
    broker.says("n0", Heartbeat(name="n0"), after_s=2 * DAY_S)
    broker.ask(submit(1, gpu_types=["A100"]))
    digest = broker.state.cluster.digest()
    broker.journal.close()
    with compacted(path, 1_000.0 + DAY_S) as journal:
        again = make(journal)
        assert again.state.cluster.digest() == digest
        assert again.state.jobs[2].spec.gpu_types == ["H100"]
        assert {demand.gpu_types for demand in again.state.cluster.demands} == {("H100",), ("A100",)}


SLICES = f"{H100}/1g.10gb"


def test_mig_instances_go_whole_to_jobs_of_one_gpu(journal: Journal) -> None:
    instances = card("n1", SLICES, gpus=7, gpu_uuids=[f"MIG-{number}" for number in range(7)])
    broker = cluster(journal, card("n0", H100), instances)
    broker.ask(submit(1, gpu_types=["h100-80gb/1g.10gb"]))
    broker.ask(submit(1, gpu_types=["H100"]))
    assert [on(broker, job) for job in (1, 2)] == [["n1"], ["n0"]]
    refused = broker.ask(submit(2, gpu_types=["H100/1g.10gb"]))
    assert isinstance(refused, Refused)
    assert isinstance(broker.ask(submit(1, gpu_types=["H100/2g.20gb"])), Refused)
    for job in (1, 2):
        end(broker, job)
    whole, cut = history_of(Path(journal.path)).cluster.nodes
    assert (whole.slices, cut.gpus, cut.slices, cut.devices) == (0, 7, 7, 1)


def test_instances_of_a_history_divide_its_gpus(tmp_path: Path) -> None:
    for number, (gpus, slices) in enumerate(((14, 7), (6, 6), (11, 1))):
        with closing(Journal(tmp_path / f"{number}.sqlite")) as journal:
            broker = make(journal)
            broker.says("n0", card("n0", SLICES, gpus=gpus))
            broker.ask(submit(1))
        spec = history_of(tmp_path / f"{number}.sqlite").cluster
        assert spec.nodes[0].slices == slices
        path = tmp_path / f"{number}.toml"
        spec.write(path)
        assert ClusterSpec.read(path).nodes == spec.nodes
