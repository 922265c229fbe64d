"""Pages of the history: filters, order, and cost."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlsched.broker.events import ClientAsked
from rlsched.broker.journal.journal import Journal
from rlsched.broker.queries import history_pages
from rlsched.broker.queries.history_pages import SCANNED
from rlsched.broker.state.finished_job import EndedJob
from rlsched.client.client import Client
from rlsched.transport.roles import Peer
from rlsched.wire.messages import (
    Cancel,
    History,
    ListHistory,
    ListUsage,
    Refused,
    Usage,
    encode,
)
from tests.support.broker.hand import ended, hello, launched, make, submit
from tests.support.broker.hand_broker import HandBroker
from tests.support.broker.stub import Stub

SOME = 30


@pytest.fixture
def broker(journal: Journal) -> HandBroker:
    """SOME jobs of two users and two VCs have ended, one a minute; every third failed. Two run, one waits."""
    broker = make(journal, nodes=1)
    broker.says("m0", hello("m0", vc="v"))
    for job in range(1, SOME + 1):
        vc = "v" if job % 5 == 0 else ""
        broker.ask(submit(2, name=f"job-{job}", user=("ada", "bob")[job % 2], vc=vc))
        node = "m0" if vc else "n0"
        broker.says(node, launched(job))
        broker.says(node, ended(job, exit_code=int(job % 3 == 0)), after_s=60.0)
    for user in ("ada", "bob"):
        broker.ask(submit(2, name="runs", user=user))
    broker.ask(submit(4, name="waits", user="ada"))
    return broker


@pytest.fixture
def client(broker: HandBroker, tmp_path: Path) -> Iterator[Client]:
    stub = Stub(tmp_path)
    stub.script = broker.ask
    with Client(stub.address, home=tmp_path, timeout_s=60.0) as client:
        yield client
    stub.close()


def numbers(client: Client, **wanted: object) -> list[int]:
    return [job.job for job in client.history(**wanted)]  # type: ignore[arg-type]


def test_jobs_are_sorted_by_end_with_running_ones_last(client: Client, broker: HandBroker) -> None:
    found = client.history()
    assert [job.job for job in found] == list(range(1, SOME + 3))
    assert [job.state for job in found[-3:]] == ["completed" if SOME % 3 else "failed", *["launching"] * 2]
    first, runs = found[0], found[-1]
    assert (first.name, first.user, first.exit_code, first.num_gpus) == ("job-1", "bob", 0, 2)
    assert first.gpu_s == pytest.approx(120.0, abs=0.1)
    assert (runs.end_s, runs.exit_code, runs.energy_j, runs.wait_s) == (None, None, None, 0.0)
    broker.says("n0", after_s=10.0)
    assert client.history(states=["running"])[-1].gpu_s == pytest.approx(20.0, abs=0.2)
    runs, *_, used = client.usage(unfinished=True)
    assert (runs.end_s, used.job) == (math.inf, 1)
    for row, start_s, gpu_s in ((runs, broker.now_s - 10.0, 20.0), (used, first.start_s, 120.0)):
        (span,) = row.spans
        assert (span.start_s, span.gpu_s) == (pytest.approx(start_s, abs=0.2), pytest.approx(gpu_s, abs=0.2))
        assert span.gpu_s == row.gpu_s


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"user": "ada"}, [*range(2, SOME + 1, 2), SOME + 1]),
        ({"user": "nobody"}, []),
        ({"vc": "v"}, list(range(5, SOME + 1, 5))),
        ({"vc": "v", "user": "bob"}, list(range(5, SOME + 1, 10))),
        ({"account": "no"}, []),
        ({"states": ["failed"]}, list(range(3, SOME + 1, 3))),
        ({"states": ["running"]}, [SOME + 1, SOME + 2]),
        ({"states": ["failed", "running"], "user": "bob"}, [*range(3, SOME + 1, 6), SOME + 2]),
        ({"name": "job-1?"}, list(range(10, 20))),
        ({"name": "job-[!12]*"}, [*range(3, 10), 30]),
        ({"name": "runs"}, [SOME + 1, SOME + 2]),
        ({"limit": 3}, list(range(SOME, SOME + 3))),
        ({"limit": 1}, [SOME + 2]),
        ({"limit": 4, "states": ["completed"]}, [25, 26, 28, 29]),
    ],
)
def test_filters(client: Client, wanted: dict[str, object], expected: list[int]) -> None:
    assert numbers(client, **wanted) == expected


def test_interval_includes_its_start_and_not_its_end(client: Client, broker: HandBroker) -> None:
    ends = {job: broker.state.jobs[job].end_s for job in range(1, SOME + 1)}
    assert numbers(client, since_s=ends[29]) == [29, 30, 31, 32]
    assert numbers(client, since_s=ends[5], until_s=ends[8]) == [5, 6, 7]
    assert numbers(client, until_s=ends[3], user="bob") == [1]
    assert numbers(client, since_s=math.nextafter(ends[30] or 0.0, math.inf), states=["failed"]) == []
    assert [row.end_s for row in client.usage(since_s=ends[5], until_s=ends[8])] == [
        ends[7],
        ends[6],
        ends[5],
    ]


def test_pages_of_any_length_list_the_same_jobs(
    client: Client, broker: HandBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, some = numbers(client), numbers(client, user="ada", states=["failed", "running"])
    usage, unfinished = list(client.usage(user="ada")), [SOME + 2, SOME + 1, *range(SOME, 0, -1)]
    assert len(usage) == SOME // 2
    for rows in (1, 2, 7, SOME):
        monkeypatch.setattr(history_pages, "SCANNED", rows)
        assert numbers(client) == whole
        assert numbers(client, user="ada", states=["failed", "running"]) == some
        assert list(client.usage(user="ada")) == usage
        assert [row.job for row in client.usage(unfinished=True)] == unfinished
    for name in ("MAX_PAGE_BYTES", "MAX_USAGE_BYTES"):
        monkeypatch.setattr(history_pages, name, 1)
    page = broker.ask(ListHistory())
    assert isinstance(page, History)
    assert len(page.jobs) == 1
    assert numbers(client) == whole
    page = broker.ask(ListUsage(states=["completed", "failed", "running"]))
    assert isinstance(page, Usage)
    assert [row.job for row in page.jobs] == [SOME + 2]
    assert [row.job for row in client.usage(unfinished=True)] == unfinished


@pytest.mark.parametrize("verb", ["history", "account"])
def test_job_that_ends_between_two_pages_is_listed_once(
    broker: HandBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    for name in ("MAX_PAGE_BYTES", "MAX_USAGE_BYTES"):
        monkeypatch.setattr(history_pages, name, 1)
    answers = 0

    def ending(question: ListHistory) -> object:
        nonlocal answers
        answers += 1
        if answers == (3 if verb == "history" else 2):
            broker.says("n0", launched(SOME + 1), ended(SOME + 1))
        return broker.ask(question)

    stub = Stub(tmp_path)
    stub.script = ending  # type: ignore[assignment]
    with Client(stub.address, home=tmp_path, timeout_s=60.0) as client:
        found = numbers(client) if verb == "history" else [row.job for row in client.usage(unfinished=True)]
    stub.close()
    assert broker.state.jobs[SOME + 1].state == "completed"
    assert sorted(found) == list(range(1, SOME + 3))


def test_ends_at_the_same_instant_are_all_listed(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    asked = [submit(1, user="ada") for _ in range(40)]
    broker.batch([ClientAsked(b"s", k, one, Peer("admin", "s")) for k, one in enumerate(asked)])
    waits = [number for number in range(1, 41) if broker.state.jobs[number].state == "queued"]
    broker.batch([ClientAsked(b"s", k, Cancel(job=k), Peer("admin", "s")) for k in waits])
    found, before = [], None
    while True:
        page = broker.ask(ListHistory(limit=7, before=before, states=["cancelled"]))
        assert isinstance(page, History)
        found += [job.job for job in page.jobs]
        before = page.next
        if before is None:
            break
    assert found == waits[::-1]


def test_page_without_matches_reads_few_rows_and_continues(broker: HandBroker) -> None:
    like = broker.journal.ended.row(1)
    assert like is not None
    copies = [like._replace(job=1_000 + k, token=f"c{k}", end_s=5_000.0 + k) for k in range(3 * SCANNED)]
    broker.journal.add_ended(copies)
    looked: list[int] = []
    scan = broker.journal.ended.scan

    def counted(
        *args: object,
    ) -> tuple[list[EndedJob], tuple[float, int] | None]:
        found = scan(*args)  # type: ignore[arg-type]
        looked.append(len(found[0]))
        return found

    broker.journal.ended.scan = counted  # type: ignore[method-assign, assignment]
    page = broker.ask(ListHistory(name="job-2", states=["completed"]))
    assert page == History(jobs=[], next=(5_000.0 + 2 * SCANNED, 1_000 + 2 * SCANNED))
    usage = broker.ask(ListUsage())
    assert isinstance(usage, Usage)
    assert len(usage.jobs) == SCANNED
    assert looked == [0, SCANNED]


def test_largest_page_fits_its_frame(broker: HandBroker) -> None:
    like = broker.journal.ended.row(1)
    assert like is not None
    like = like._replace(name="王" * 200, user="王" * 64, reason="王" * 10_000, nodes="n" * 100_000)
    copies = [like._replace(job=1_000 + k, token=f"c{k}", end_s=5_000.0 + k) for k in range(600)]
    broker.journal.add_ended(copies)
    for question in (ListHistory(), ListUsage()):
        page = broker.ask(question)
        assert isinstance(page, History | Usage)
        assert page.jobs
        assert len(encode(page)) < 2 * history_pages.MAX_PAGE_BYTES + 200 * SCANNED


def test_damaged_row_is_refused_in_one_line(broker: HandBroker) -> None:
    broker.journal._db.execute("UPDATE ended_jobs SET gpu_s = gpu_s * 2 WHERE job = 7")
    for question in (ListHistory(), ListUsage()):
        answer = broker.ask(question)
        assert isinstance(answer, Refused)
        assert "the row of ended job 7 is damaged; `rlsched journal compact --remake-ended`" in answer.message
        assert "\n" not in answer.message


@pytest.mark.parametrize(
    "question",
    [
        ListHistory(limit=-5),
        ListHistory(before=(math.nan, 3)),
        ListHistory(before=(1.0, 1 << 70)),
        ListHistory(before=(math.inf, -(1 << 70))),
        ListHistory(since_s=math.nan, until_s=-math.inf),
        ListHistory(name="[" * 300, user="\0", states=["?"] * 1_000),
        ListUsage(before=(-math.inf, 0), until_s=math.inf),
    ],
)
def test_invalid_queries_are_harmless(broker: HandBroker, question: ListHistory | ListUsage) -> None:
    answer = broker.ask(question)
    assert isinstance(answer, History | Usage | Refused)
    assert isinstance(broker.ask(ListHistory()), History)


def test_user_sees_jobs_of_all_users_as_in_the_queue(broker: HandBroker) -> None:
    broker.batch([ClientAsked(b"peer", 1, ListHistory(), Peer("user", "eve", "eve"))])
    answer = broker.sent.replies[-1][2]
    assert isinstance(answer, History)
    assert {job.user for job in answer.jobs} == {"ada", "bob"}
    assert b"true" not in encode(answer), "commands are private"
