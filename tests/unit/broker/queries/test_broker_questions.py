"""Queries: lists have pages, reasons are computed once, and no client's queries delay other clients."""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from rlsched.broker.events import ClientAsked, Reply, SendNode
from rlsched.broker.journal.journal import Journal
from rlsched.broker.queries.backlog import MAX_WAITING, Backlog
from rlsched.broker.queries.pages import MAX_JOB_NODES, MAX_PAGE_BYTES
from rlsched.broker.queries.views import job_info
from rlsched.broker.queries.waiting import WaitingReasons
from rlsched.broker.state.jobs import Attempt, Job, Rank
from rlsched.client.client import Client
from rlsched.transport.roles import Peer
from rlsched.wire.messages import (
    MAX_MESSAGE_BYTES,
    Explanation,
    Jobs,
    Launch,
    ListJobs,
    ListNodes,
    Refused,
    Stats,
    StatsReport,
    Why,
    encode,
)
from tests.support.broker.hand import draft, ended, hello, launched, make, of_kind, submit
from tests.support.broker.hand_broker import HandBroker
from tests.support.broker.stub import Stub

JOBS = 700


@pytest.fixture
def crowd(journal: Journal) -> HandBroker:
    """JOBS jobs of three sizes on one node; the last 10 jobs that ran have ended."""
    broker = make(journal, nodes=1)
    sizes = (4, 2, 1)
    asked = [submit(sizes[k % 3], user=f"u{k % 7}") for k in range(JOBS)]
    broker.batch([ClientAsked(b"s", k, one, Peer("admin", "s")) for k, one in enumerate(asked)])
    for job in range(1, 11):
        broker.says("n0", launched(job))
        broker.says("n0", ended(job))
    return broker


@pytest.fixture
def asked(crowd: HandBroker, tmp_path: Path) -> Iterator[Client]:
    """The client of a user who queries this broker."""
    stub = Stub(tmp_path)
    stub.script = crowd.ask  # type: ignore[assignment]
    with Client(stub.address, home=tmp_path, timeout_s=60.0) as client:
        yield client
    stub.close()


def test_client_reads_all_pages(crowd: HandBroker, asked: Client) -> None:
    live = sorted(job.number for job in crowd.state.job_of_seq.values())
    assert len(live) > 600
    first = crowd.ask(ListJobs())
    assert isinstance(first, Jobs)
    assert len(first.jobs) < len(live), "more than one page"
    assert [row.job for row in asked.jobs()] == live
    assert [row.job for row in asked.jobs(finished=True)] == list(range(1, JOBS + 1))


def test_limit_lists_the_latest_jobs_and_counts_older_ones(crowd: HandBroker, asked: Client) -> None:
    found = asked.list_jobs(finished=True, limit=300)
    assert ([row.job for row in found.jobs], found.omitted) == (list(range(401, JOBS + 1)), 400)
    older = asked.list_jobs(finished=True, limit=300, before=found.jobs[0].job)
    assert ([row.job for row in older.jobs], older.omitted) == (list(range(101, 401)), 100)
    live = asked.list_jobs(limit=3)
    assert ([row.job for row in live.jobs], live.omitted) == (
        [698, 699, 700],
        len(crowd.state.job_of_seq) - 3,
    )
    assert asked.list_jobs(before=1) == Jobs(jobs=[])


def test_pages_of_nodes_end_with_the_last_node(journal: Journal, tmp_path: Path) -> None:
    broker = make(journal)
    names = [f"node-{k}" for k in range(600)]
    for name in reversed(names):
        broker.says(name, hello(name))
    stub = Stub(tmp_path)
    stub.script = broker.ask  # type: ignore[assignment]
    with Client(stub.address, home=tmp_path, timeout_s=60.0) as client:
        assert [node.name for node in client.nodes()] == names
    assert len([1 for _, message in stub.heard if isinstance(message, ListNodes)]) > 2
    stub.close()


def test_reason_is_computed_once_for_all_jobs_with_equal_requests(crowd: HandBroker) -> None:
    def worked_out() -> int:
        profile = cProfile.Profile()
        page = profile.runcall(crowd.ask, ListJobs())
        assert isinstance(page, Jobs)
        assert len(page.jobs) > 90
        stats = pstats.Stats(profile).stats  # type: ignore[attr-defined]
        return sum(calls for (_, _, name), (calls, *_) in stats.items() if name == "_work_out")

    assert worked_out() == 3, "one for each size"
    assert worked_out() == 0, "no event since then"
    crowd.says("n0", launched(11))
    crowd.says("n0", ended(11))
    assert worked_out() == 3


def test_cached_reason_is_dropped_when_its_facts_change(journal: Journal) -> None:
    broker = make(journal)
    broker.batch([ClientAsked(b"a", k, submit(gpus)) for k, gpus in enumerate((4, 4, 8))])

    def reasons() -> list[str]:
        page = broker.ask(ListJobs())
        assert isinstance(page, Jobs)
        return [row.reason for row in page.jobs]

    assert reasons() == ["Resources: no node has registered yet"] * 3
    broker.says("n0", hello("n0"))
    assert reasons() == [
        "",
        "Resources: needs 4 GPUs, 0 free",
        "Resources: does not fit the nodes that have registered so far",
    ]
    broker.says("n1", hello("n1", gpus=8))
    assert reasons() == ["", "", "Resources: needs 8 GPUs, 4 free"]


# ---- sizes of frames --------------------------------------------------------------------------------------


def test_long_names_are_shortened_in_lists(journal: Journal) -> None:
    reasons = WaitingReasons(make(journal).state)
    long = "x" * 1_000_000
    spec = msgspec.structs.replace(draft(), name=long, user=long, vc=long)
    row = job_info(Job(1, spec, 0.0, 0, "failed", reason=long), reasons, 10)
    assert (len(row.name), row.name[-4:], len(row.user), len(row.vc)) == (200, "x...", 200, 200)
    assert len(encode(Jobs(jobs=[row]))) < 2_000


def test_gang_on_thousands_of_nodes_fits_a_frame(journal: Journal) -> None:
    reasons = WaitingReasons(make(journal).state)
    job = Job(1, draft(), 0.0, 0, "running")
    job.attempt = Attempt(
        1, 0.0, [Rank(f"gpu-node-{k:06}", list(range(8))) for k in range(20_000)], 0, "rule"
    )
    row = job_info(job, reasons, MAX_JOB_NODES)
    assert (len(row.nodes), len(row.gpus), row.nodes_omitted) == (MAX_JOB_NODES, MAX_JOB_NODES, 16_000)
    assert len(encode(Jobs(jobs=[row]))) < MAX_MESSAGE_BYTES


def test_every_page_is_small(crowd: HandBroker) -> None:
    before = None
    while True:
        page = crowd.ask(ListJobs(finished=True, before=before))
        assert isinstance(page, Jobs)
        assert len(encode(page)) <= MAX_PAGE_BYTES
        if not page.omitted:
            break
        before = page.jobs[0].job


# ---- order of answers -------------------------------------------------------------------------------------


def question(peer: bytes, request: int) -> ClientAsked:
    return ClientAsked(peer, request, Stats())


def test_queries_are_answered_in_order_and_fairly(journal: Journal) -> None:
    broker = make(journal)
    broker.has_time = lambda: False
    broker.batch([*(question(b"a", k) for k in range(1, 5)), question(b"b", 1), question(b"c", 1)])
    for _ in range(5):
        broker.batch([])
    assert [(peer, request) for peer, request, _ in broker.sent.replies] == [
        (b"a", 1), (b"b", 1), (b"c", 1), (b"a", 2), (b"a", 3), (b"a", 4),
    ]  # fmt: skip


def test_flood_of_queries_does_not_starve_other_clients(journal: Journal) -> None:
    broker = make(journal)
    broker.has_time = lambda: False
    flood = iter(range(1, 10_000))
    broker.batch([question(b"flood", next(flood)) for _ in range(MAX_WAITING)])
    for turn in range(1, 20):
        broker.batch([question(b"flood", next(flood)), question(b"other", turn)])
        broker.batch([question(b"flood", next(flood))])
        assert (b"other", turn) in {(peer, request) for peer, request, _ in broker.sent.replies}


def test_too_many_queries_of_a_connection_are_refused_and_repeats_wait_once() -> None:
    backlog = Backlog()
    assert all(backlog.add(question(b"a", k)) for k in range(MAX_WAITING))
    assert backlog.add(question(b"a", 0)), "it waits already"
    assert not backlog.add(question(b"a", MAX_WAITING))
    assert backlog.add(question(b"b", 1)), "other connections have their own places"
    assert (len(backlog), backlog.askers, backlog.refused) == (MAX_WAITING + 1, 2, 1)
    assert [backlog.pop().peer for _ in range(3)] == [b"a", b"b", b"a"]
    while backlog:
        backlog.pop()
    with pytest.raises(KeyError):
        backlog.pop()


def test_refusal_of_too_many_queries_has_a_remedy(journal: Journal) -> None:
    broker = make(journal)
    broker.has_time = lambda: False
    out = broker.batch([question(b"a", k) for k in range(MAX_WAITING + 1)])
    (refused,) = of_kind(out, Refused)  # type: ignore[arg-type]
    assert isinstance(refused, Refused)
    assert "read the answers before asking more" in refused.message


def test_orders_are_sent_before_queries_are_answered(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    now_s = broker.now_s + 1.0
    effects = broker.machine.handle_batch(
        [ClientAsked(b"a", 1, ListJobs()), ClientAsked(b"b", 1, submit())], now_s
    )
    assert any(isinstance(effect, SendNode) and isinstance(effect.message, Launch) for effect in effects)
    assert not any(isinstance(effect, Reply) and isinstance(effect.message, Jobs) for effect in effects)
    (answer,) = broker.machine.answer(lambda: False)
    assert isinstance(answer, Reply)
    assert isinstance(answer.message, Jobs)
    assert broker.machine.answer(lambda: True) == []


def test_query_that_cannot_be_answered_is_refused_without_side_effects(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    broker.ask(submit(4))
    broker.ask(submit(4))
    broker.state.jobs[2].submit_s = float("nan")
    refused = broker.ask(Why(job=2))
    assert isinstance(refused, Refused)
    assert refused.message.startswith("the broker could not handle this Why: ValueError(")
    assert isinstance(broker.ask(Why(job=1)), Explanation)
    stats = broker.ask(Stats())
    assert isinstance(stats, StatsReport)
    assert stats.questions is not None
    assert (stats.questions.failed, stats.questions.waiting) == (1, 0)
