"""Jobs with whole nodes: allocated, waited for, refused, preempted, listed and restored."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlsched.broker.compaction.compaction import DAY_S
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.replay import journal_events, redecide
from rlsched.broker.queries.as_history import history_of
from rlsched.broker.state.job_requests import sharing_of
from rlsched.decide.actions import Preempt, Start
from rlsched.decide.registry import load_scheduler
from rlsched.wire.messages import (
    Explanation,
    Heartbeat,
    Jobs,
    Launch,
    ListJobs,
    Refused,
    Why,
)
from tests.support.broker.compacted import compacted
from tests.support.broker.hand import draft, ended, hello, launched, make, of_kind, state, submit
from tests.support.broker.hand_broker import HandBroker
from tests.support.broker.preempting import actions, killed, make_preempting


def cluster(journal: Journal, *sizes: int) -> HandBroker:
    broker = make(journal)
    for number, gpus in enumerate(sizes):
        broker.says(f"n{number}", hello(f"n{number}", gpus))
    return broker


def on(broker: HandBroker, job: int) -> list[str]:
    """The nodes of a job that has GPUs."""
    attempt = broker.state.jobs[job].active
    return [rank.node for rank in attempt.ranks] if attempt is not None else []


def reason(broker: HandBroker, job: int) -> str:
    jobs = broker.ask(ListJobs(job=job))
    assert isinstance(jobs, Jobs)
    return jobs.jobs[0].reason


def why(broker: HandBroker, job: int) -> str:
    said = broker.ask(Why(job=job))
    assert isinstance(said, Explanation)
    return "\n".join([said.summary, *said.details])


def test_no_other_job_starts_on_its_node_until_it_ends(journal: Journal) -> None:
    broker = cluster(journal, 4, 8)
    broker.ask(submit(1))
    broker.ask(submit(2, exclusive=True))
    assert (on(broker, 1), on(broker, 2)) == (["n0"], ["n1"])
    (launch,) = (one for _, one in broker.sent.orders if isinstance(one, Launch) and one.job == 2)
    assert launch.gpus == [0, 1], "it uses the GPUs that it requested"
    broker.ask(submit(1, exclusive=True))
    broker.ask(submit(4))
    broker.ask(submit(3))
    assert [state(broker, job) for job in (3, 4, 5)] == ["queued", "queued", "launching"]
    assert on(broker, 5) == ["n0"]
    broker.says("n1", launched(2))
    broker.says("n1", ended(2))
    assert (on(broker, 3), state(broker, 4)) == (["n1"], "queued")


def test_reason_counts_whole_nodes(journal: Journal) -> None:
    broker = cluster(journal, 4, 4, 2)
    broker.ask(submit(3))
    broker.ask(submit(8, exclusive=True))
    assert (
        reason(broker, 2)
        == "Resources: waits for 2 whole nodes, 2 of 3 up without jobs, which are too small together"
    )
    broker.ask(submit(1))
    broker.ask(submit(3, exclusive=True))
    assert on(broker, 4) == ["n1"]
    broker.ask(submit(3, exclusive=True))
    assert reason(broker, 5) == "Resources: waits for 1 whole node, 0 of 2 up without jobs"
    assert (
        "it needs 1 whole node on the cluster, without other jobs: of the 2 nodes that it can use, 0"
        in why(broker, 5)
    )
    broker.ask(submit(1))
    assert state(broker, 6) == "launching"


def test_reason_names_absent_nodes(journal: Journal) -> None:
    broker = cluster(journal, 4, 4)
    broker.ask(submit(1))
    broker.state.cluster.drain_node(1)
    broker.ask(submit(4, exclusive=True))
    assert reason(broker, 2).startswith(
        "NodeDown: waits for 1 whole node, 0 of 2 up without jobs, 1 more absent"
    )
    assert "and 1 are absent" in why(broker, 2)


def test_job_that_no_nodes_can_hold_is_refused(journal: Journal) -> None:
    broker = cluster(journal, 4, 2)
    refused = broker.ask(submit(7, exclusive=True))
    assert isinstance(refused, Refused)
    assert refused.message.endswith("7 GPUs can never be given together: its nodes have 4 + 2 GPUs")


def test_launch_waits_for_all_preempted_jobs_on_its_nodes(journal: Journal) -> None:
    """Jobs 2 and 3 get GPUs of the node on which job 1, which had it as a whole, is being ended."""
    broker = make_preempting(journal, nodes=1)
    broker.ask(submit(1, preemptible=True, exclusive=True))
    broker.says("n0", launched(1))
    broker.wait(12.0, "n0")
    broker.ask(submit(2))
    broker.ask(submit(2))
    assert Preempt(seq=0) in actions(journal)
    assert actions(journal)[-2:] == [Start(seq=1, gpus=(0, 1)), Start(seq=2, gpus=(2, 3))]
    launches = [one.job for _, one in broker.sent.orders if isinstance(one, Launch)]
    assert launches == [1], "the GPUs of job 3 are empty, its node is not"
    out = broker.says("n0", killed(1))
    assert [launch.job for launch in of_kind(out, Launch)] == [2, 3]


@pytest.mark.parametrize("share", ["auto", "yes"])
def test_it_never_shares(share: str) -> None:
    spec = draft()
    known = {"share": share, "workload": "bert-base-squad-b8"}
    shares = [
        sharing_of(type(spec)(**{**as_fields(spec), **known, "exclusive": exclusive}))["shares"]
        for exclusive in (False, True)
    ]
    assert shares == [True, False]


def as_fields(spec: object) -> dict[str, object]:
    return {name: getattr(spec, name) for name in spec.__struct_fields__}  # type: ignore[attr-defined]


def test_replay_decides_alike_and_history_has_the_column(journal: Journal) -> None:
    broker = cluster(journal, 4, 4)
    broker.ask(submit(1))
    broker.ask(submit(1, exclusive=True))
    broker.ask(submit(2, exclusive=True))
    for node, job in (("n0", 1), ("n1", 2)):
        broker.says(node, launched(job))
        broker.says(node, ended(job))
    events = journal_events(journal.path)
    again = [record.action for record in redecide(events, load_scheduler("fifo-backfill"))]
    assert again == [decided.action for decided in events.decisions]
    assert history_of(journal.path).trace.extra["exclusive"].tolist() == ["", "true", "true"]


def test_compacted_journal_keeps_nodes_taken(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    broker = cluster(Journal(path), 4, 4)
    broker.ask(submit(1, exclusive=True))
    broker.says("n0", launched(1))
    broker.ask(submit(4))
    broker.says("n1", launched(2))
    broker.ask(submit(2, exclusive=True))
    broker.says("n0", Heartbeat(name="n0"), after_s=2 * DAY_S)
    broker.ask(submit(1))
    digest = broker.state.cluster.digest()
    broker.journal.close()
    with compacted(path, 1_000.0 + DAY_S) as journal:
        again = make(journal)
        assert again.state.cluster.digest() == digest
        assert again.state.cluster.arrays.node.free.tolist() == [0, 0]
        assert [state(again, job) for job in (3, 4)] == ["queued", "queued"]
        for name in ("n0", "n1"):
            again.says(name, hello(name))
        assert [state(again, job) for job in (3, 4)] == ["queued", "queued"]
