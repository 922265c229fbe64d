"""A standby takes over: nothing starts before all running jobs are known, and job numbers are new."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from rlsched.broker.base.entries import NodeDrained, Restored
from rlsched.broker.compaction.compaction import made, put
from rlsched.broker.compaction.keeping import Keeps
from rlsched.broker.journal.backup import take_over
from rlsched.broker.journal.checking import check
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.reading import read_journal
from rlsched.broker.journal.recovery import recover_state
from rlsched.broker.journal.superseded import Superseded
from rlsched.broker.standby.copying import CopyBounds, _Copy
from rlsched.broker.standby.shipping import HOLD_S, PAGE_BYTES, Shipping, access_digest
from rlsched.broker.standby.warm import Warm
from rlsched.broker.state.predictions import Predictions
from rlsched.decide.registry import load_scheduler
from rlsched.errors import JournalError, SupersededError
from rlsched.transport.access import AccessEntry, AccessList
from rlsched.transport.keys import KeyHome
from rlsched.transport.roles import may_send
from rlsched.wire.messages import (
    AttemptReport,
    ClientReply,
    JournalRows,
    LaterBroker,
    Launch,
    ReadJournal,
    Refused,
    Submitted,
)
from rlsched.workload.predict.kinds import RUNNING_MEAN
from tests.support.broker.hand import (
    ended,
    hello,
    launched,
    make,
    state,
    states,
    submit,
)
from tests.support.broker.hand_broker import HandBroker


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite"


OPEN: list[Journal] = []


def opened(path: Path) -> Journal:
    OPEN.append(Journal(path))
    return OPEN[-1]


@pytest.fixture(autouse=True)
def all_closed() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()


def with_history(path: Path) -> HandBroker:
    """Job 1 runs on n0, job 2 is being launched on n1, jobs 3 and 4 wait."""
    broker = make(opened(path), nodes=2)
    for number in (1, 2, 3):
        assert broker.ask(submit(4)) == Submitted(job=number)
    assert broker.ask(submit(4)) == Submitted(job=4)
    broker.says("n0", launched(1))
    return broker


def taken_over(path: Path) -> HandBroker:
    broker = with_history(path)
    broker.journal.close()
    journal = opened(path)
    copy = make(journal)  # of a broker that only replayed it
    before = journal.last
    take_over(journal, copy.state)
    assert journal.last > before
    journal.close()
    return make(opened(path))


def back(broker: HandBroker, name: str, *reports: AttemptReport) -> list[Launch]:
    out = broker.says(name, hello(name, 4, *reports, cluster="c1", epoch=1))
    return [order for order in out if isinstance(order, Launch)]


def report(job: int, attempt: int = 1, rank: int = 0) -> AttemptReport:
    return AttemptReport(job=job, attempt=attempt, rank=rank, state="running")


def test_jobs_start_as_soon_as_every_node_has_registered(path: Path) -> None:
    broker = taken_over(path)
    assert broker.state.taken_over
    assert broker.state.epoch > 1_000
    assert states(broker) == {"n0": "drained", "n1": "drained"}
    assert broker.ask(submit(1)) == Submitted(job=1_000_001)
    assert back(broker, "n1") == [], "job 2 may run elsewhere by now"
    assert states(broker)["n1"] == "drained"
    orders = back(broker, "n0", report(1))
    assert [(order.job, order.attempt) for order in orders] == [(2, 1)], (
        "its launch was pending, and no node has it"
    )
    assert states(broker) == {"n0": "up", "n1": "up"}
    assert [state(broker, job) for job in (1, 2, 3, 4)] == ["running", "launching", "queued", "queued"]


def test_job_started_after_the_copy_keeps_running_and_is_not_restarted(path: Path) -> None:
    broker = taken_over(path)
    back(broker, "n0", report(3))
    back(broker, "n1", report(2))
    assert state(broker, 3) == "cancelled"
    assert "this attempt continues" in broker.state.jobs[3].reason
    assert state(broker, 2) == "running"
    assert state(broker, 1) == "queued", "its end was not copied or was lost"
    assert states(broker) == {"n0": "drained", "n1": "up"}
    assert broker.state.nodes["n0"].drained_reason.startswith("a standby took over: jobs 3 continue")


def test_end_missing_in_the_copy_is_reported_again_and_the_job_runs_once(path: Path) -> None:
    broker = taken_over(path)
    over = AttemptReport(job=1, attempt=1, rank=0, state="ended", exit_code=0, ended_s=1.0, ran_s=5.0)
    back(broker, "n0", over)
    assert state(broker, 1) == "completed"
    back(broker, "n1", report(2))
    back(broker, "n0", over)
    assert [state(broker, job) for job in (1, 2, 3)] == ["completed", "running", "launching"]


def test_job_that_started_and_ended_after_the_copy_is_not_restarted(path: Path) -> None:
    broker = taken_over(path)
    over = [
        AttemptReport(job=job, attempt=1, rank=0, state="ended", exit_code=code, reason=reason)
        for job, code, reason in ((3, 0, ""), (4, 137, "fenced"))
    ]
    back(broker, "n0", report(1), *over)
    assert [state(broker, job) for job in (3, 4)] == ["cancelled", "queued"]
    assert "has ended on node n0 with exit code 0" in broker.state.jobs[3].reason


def test_drain_by_an_operator_is_kept(path: Path) -> None:
    broker = with_history(path)
    broker.batch([])
    broker.journal.commit([NodeDrained(name="n0", until_s=float("inf"), reason="mine")], broker.now_s)
    broker.journal.close()
    journal = opened(path)
    take_over(journal, make(journal).state)
    journal.close()
    broker = make(opened(path))
    back(broker, "n0", report(1))
    back(broker, "n1", report(2))
    assert states(broker) == {"n0": "drained", "n1": "up"}
    assert broker.state.nodes["n0"].drained_reason == "mine"


def test_mark_names_the_copy(path: Path) -> None:
    taken_over(path).journal.close()
    [mark] = [row.entry for row in read_journal(path) if isinstance(row.entry, Restored)]
    assert mark.taken_over
    assert (mark.last_number, mark.last_attempt) == (1_000_000, 1_000)


# ---- a later broker ---------------------------------------------------------------------------------------


def test_majority_of_nodes_can_report_a_later_broker(path: Path) -> None:
    broker = make(opened(path), nodes=3)
    assert broker.machine.later_epoch() == 0
    broker.says("n0", LaterBroker(cluster="c1", epoch=1_002))
    broker.says("n1", LaterBroker(cluster="another", epoch=1_002))
    broker.says("n1", LaterBroker(cluster="c1", epoch=1))
    broker.says("stranger", LaterBroker(cluster="c1", epoch=1_002))
    assert broker.machine.later_epoch() == 0
    out = broker.says("n1", hello("n1", cluster="c1", epoch=1_002))
    assert isinstance(out[0], Refused)
    assert broker.machine.later_epoch() == 1_002


def test_superseded_broker_stays_stopped_until_it_has_a_later_journal(tmp_path: Path) -> None:
    superseded = Superseded(tmp_path)
    superseded.check(1)
    superseded.stop_for(0, "")
    with pytest.raises(SupersededError, match=r"serves, at epoch 1002 \(it reported itself\)"):
        superseded.stop_for(1_002, "it reported itself")
    with pytest.raises(SupersededError, match="as recorded here"):
        Superseded(tmp_path).check(2)
    Superseded(tmp_path).check(1_003)
    Superseded(tmp_path).check(2)


def test_only_admins_copy_a_journal_and_only_admins_and_nodes_report_later_brokers() -> None:
    copy, later = ReadJournal(after=0, checksum=0), LaterBroker(cluster="c1", epoch=2)
    assert [may_send(role, copy) for role in ("user", "node", "joining", "admin")] == [
        False,
        False,
        False,
        True,
    ]
    assert [may_send(role, later) for role in ("user", "node", "joining", "admin")] == [
        False,
        True,
        False,
        True,
    ]


# ---- the copy ---------------------------------------------------------------------------------------------


class Copied:
    """The answers to a standby."""

    def __init__(self, journal: Journal, home: KeyHome) -> None:
        self.answers: list[JournalRows] = []
        self.said: list[str] = []
        self.shipping = Shipping(journal, home.access, self._reply, self.said.append)
        self.shipping.began("c1", 1)

    def _reply(self, _route: bytes, _request: int, message: ClientReply) -> None:
        assert isinstance(message, JournalRows)
        self.answers.append(message)

    def ask(self, **question: int) -> JournalRows | None:
        """The answer of this turn."""
        before = len(self.answers)
        self.shipping.ask(b"standby", 1, ReadJournal(**question))
        self.shipping.step()
        return self.answers[-1] if len(self.answers) > before else None


@pytest.fixture
def copied(tmp_path: Path) -> Callable[[HandBroker], Copied]:
    return lambda broker: Copied(broker.journal, KeyHome(tmp_path / "home"))


def test_journal_is_copied_row_by_row_in_pages(
    path: Path, tmp_path: Path, copied: Callable[[HandBroker], Copied], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlsched.broker.standby.shipping.PAGE_BYTES", 300)
    broker, copy = with_history(path), opened(tmp_path / "copy.sqlite")
    primary = copied(broker)
    checksum = pages = 0
    while copy.last < broker.journal.last:
        answer = primary.ask(after=copy.last, checksum=checksum)
        assert answer is not None
        assert not answer.is_other
        copy.append(answer.rows)
        checksum, pages = answer.rows[-1][4], pages + 1
    assert pages > 2
    assert PAGE_BYTES < 1 << 20
    copy.close()
    assert read_journal(tmp_path / "copy.sqlite") == read_journal(path)
    assert primary.said == ["a standby copies the journal; it has 0 of 10 entries"]


def test_rows_of_jobs_before_a_base_are_copied_too(
    path: Path, tmp_path: Path, copied: Callable[[HandBroker], Copied], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = make(Journal(path))
    broker.says("n0", hello("n0"))
    for job in range(1, 21):
        broker.ask(submit(1))
        broker.says("n0", launched(job))
        broker.says("n0", ended(job))
    cut = made(path, math.inf, keep_entries=8)
    assert cut is not None
    assert put(broker.journal, cut)
    monkeypatch.setattr("rlsched.broker.standby.shipping.PAGE_BYTES", 1_500)
    primary, copy = copied(broker), Journal(tmp_path / "copy.sqlite")
    assert copy.ended_copied == -1
    checksum, pages = 0, 0
    while copy.ended_copied >= 0 or copy.last < broker.journal.last:
        answer = primary.ask(after=copy.last, checksum=checksum, ended_after=copy.ended_copied)
        assert answer is not None
        copy.append(answer.rows)
        checksum = answer.rows[-1][4] if answer.rows else checksum
        if answer.ended is not None:
            again = msgspec.msgpack.decode(msgspec.msgpack.encode(answer), type=JournalRows)
            copy.add_copied(again.ended or [], is_all=again.is_ended_all)
            pages += 1
            reopened = copy.ended_copied
            copy.close()
            copy = Journal(tmp_path / "copy.sqlite")
            assert copy.ended_copied == reopened, "it continues at its last row"
    assert pages > 2
    recover_state(copy, Predictions(RUNNING_MEAN), load_scheduler("fifo-backfill"))
    copy.close()
    broker.journal.close()
    assert check(tmp_path / "copy.sqlite").derived == check(tmp_path / "copy.sqlite").damage == []
    rows = [opened(one).ended.page(0, 1 << 30) for one in (path, tmp_path / "copy.sqlite")]
    assert rows[0] == rows[1]
    assert len(rows[0][0]) == 20


@pytest.mark.slow
def test_copy_is_compacted_too(
    path: Path, tmp_path: Path, copied: Callable[[HandBroker], Copied], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlsched.broker.compaction.compacting.GROWN_EVERY_S", 0.0)
    broker = with_history(path)
    for _ in range(30):
        broker.ask(submit(8))
    primary, said = copied(broker), list[str]()
    warm = Warm(load_scheduler("fifo-backfill"), "", RUNNING_MEAN)
    bounds = CopyBounds(Keeps(entries=8), math.inf)
    with closing(
        _Copy(tmp_path / "copy.sqlite", KeyHome(tmp_path / "keys"), warm, said.append, bounds)
    ) as copy:
        while not any("a base replaces" in line for line in said):
            question = copy.question()
            answer = primary.ask(after=question.after, checksum=question.checksum, access=question.access)
            if answer is not None:
                copy.take(answer)
            copy.compact()
        assert copy.journal.first > 1
        broker.ask(submit(8))
        question = copy.question()
        answer = primary.ask(after=question.after, checksum=question.checksum, access=question.access)
        assert answer is not None
        assert not answer.is_other, "it continues after its base"
        copy.take(answer)
        assert copy.journal.last == broker.journal.last
    again = Warm(load_scheduler("fifo-backfill"), "", RUNNING_MEAN)
    with closing(
        _Copy(tmp_path / "copy.sqlite", KeyHome(tmp_path / "keys"), again, said.append, bounds)
    ) as copy:
        assert copy.state.cluster.digest() == broker.state.cluster.digest()
    assert check(tmp_path / "copy.sqlite").damage == check(tmp_path / "copy.sqlite").derived == []


def test_damaged_row_is_not_copied(path: Path) -> None:
    broker = with_history(path)
    broker.journal.close()
    with closing(Journal(path)) as journal, pytest.raises(JournalError, match="was received damaged"):
        journal.add_copied([(1, *range(20), 7)], is_all=True)


def test_request_waits_for_new_rows_until_a_timeout(
    path: Path, copied: Callable[[HandBroker], Copied]
) -> None:
    broker = with_history(path)
    primary, last = copied(broker), broker.journal.last
    checksum = broker.journal.checksum_of(last)
    assert checksum is not None
    began_s, access = time.monotonic(), access_digest({})
    assert primary.ask(after=last, checksum=checksum, access=access) is None
    broker.ask(submit(1))
    primary.shipping.step()
    assert [row[0] for row in primary.answers[-1].rows] == list(range(last + 1, broker.journal.last + 1))
    last, checksum = broker.journal.last, broker.journal.checksum_of(broker.journal.last) or 0
    assert primary.ask(after=last, checksum=checksum, access=access) is None
    while len(primary.answers) == 1:
        primary.shipping.step()
        assert time.monotonic() - began_s < 60.0
    assert time.monotonic() - began_s >= HOLD_S
    assert primary.answers[-1].rows == []


def test_copy_of_another_journal_is_reported(path: Path, copied: Callable[[HandBroker], Copied]) -> None:
    broker = with_history(path)
    primary, last = copied(broker), broker.journal.last
    for question in ({"after": 3, "checksum": 1}, {"after": last + 1, "checksum": 7}):
        answer = primary.ask(**question)
        assert answer is not None
        assert answer.is_other
        assert answer.rows == []


def test_access_list_is_copied_too(
    path: Path, tmp_path: Path, copied: Callable[[HandBroker], Copied]
) -> None:
    broker, home = with_history(path), KeyHome(tmp_path / "home")
    home.node("n0")
    primary = copied(broker)
    answer = primary.ask(after=0, checksum=0)
    assert answer is not None
    assert answer.access is not None
    [(file, text)] = answer.access.items()
    assert AccessEntry.parse(file, text) == next(
        iter(AccessList(home.directory / "authorised").members().values())
    )
    last = broker.journal.last
    checksum = broker.journal.checksum_of(last) or 0
    assert primary.ask(after=last, checksum=checksum, access=access_digest(answer.access)) is None


def test_rows_that_are_damaged_or_do_not_follow_are_refused(path: Path, tmp_path: Path) -> None:
    rows = with_history(path).journal.page(0, PAGE_BYTES)
    copy = opened(tmp_path / "copy.sqlite")
    n, now_s, kind, payload, crc = rows[0]
    for wrong in (rows[1:2], [(n, now_s + 1.0, kind, payload, crc)], [rows[0], rows[2]]):
        with pytest.raises(JournalError, match="was received damaged or out of order"):
            copy.append(wrong)
    assert copy.last == 0
    copy.append(rows[:2])
    assert copy.last == 2
    copy.close()
    assert [row.n for row in read_journal(tmp_path / "copy.sqlite")] == [1, 2]
