"""Notices: recipients, order, retries until a receiver is back, and restarts."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from rlsched.broker.journal.backup import back_up, restore
from rlsched.broker.journal.journal import Journal
from rlsched.errors import InputError, JournalError
from rlsched.notify.following import Cursor, CursorFile, NoticeFollower
from rlsched.notify.notices import Notice
from rlsched.notify.sending import Command, NotDeliveredError, Webhook
from rlsched.wire.messages import Refused
from tests.support.broker.hand import ended, hello, launched, make, submit
from tests.support.broker.hand_broker import HandBroker
from tests.support.online.cluster import until

NOTICE = Notice(
    id="c-7-0000beef", event="fail", cluster="c", job=3, name='a "name"\u2028', user="ada", vc="", num_gpus=2,
    attempt=1, state="failed", exit_code=1, reason="exit code 1", time="2026-01-02T03:04:05.000Z", time_s=1.5,
)  # fmt: skip


class Receiver:
    """Accepts notices, or raises an error of the test."""

    def __init__(self) -> None:
        self.taken: list[Notice] = []
        self.refuses: Callable[[Notice], NotDeliveredError | None] = lambda _: None
        self.tries = 0

    def __call__(self, notice: Notice) -> None:
        self.tries += 1
        error = self.refuses(notice)
        if error is not None:
            raise error
        self.taken.append(notice)

    @property
    def notices(self) -> list[tuple[int, str, str]]:
        return [(one.job, one.event, one.state) for one in self.taken]


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal(tmp_path / "journal.sqlite")
    yield journal
    journal.close()


@pytest.fixture
def broker(journal: Journal) -> HandBroker:
    broker = make(journal)
    broker.says("n0", hello("n0", 4))
    return broker


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


@pytest.fixture
def follow(tmp_path: Path, receiver: Receiver) -> Iterator[Callable[[], NoticeFollower]]:
    """A follower by the cursor on disk, as after a restart."""
    files: list[CursorFile] = []

    def begin() -> NoticeFollower:
        for file in files:
            file.close()
        files.append(CursorFile(tmp_path / "cursor.json"))
        stop = threading.Event()
        return NoticeFollower(tmp_path / "journal.sqlite", files[-1], receiver, stop, first_delay_s=0.0)

    yield begin
    for file in files:
        file.close()


def test_each_job_is_notified_as_requested(
    broker: HandBroker, receiver: Receiver, follow: Callable[[], NoticeFollower]
) -> None:
    follow().step()
    asked = ["end", "fail", "start,requeue", "", "start,end,fail,requeue"]
    for number, one in enumerate(asked, start=1):
        broker.ask(submit(notify=one, name=f"j{number}"))
        if number <= 4:
            broker.says("n0", launched(number))
    for number, code in ((1, 1), (2, 0), (3, 3)):
        broker.says("n0", ended(number, exit_code=code))
    broker.says("n0", launched(5))
    broker.says("n0", ended(5, exit_code=0))
    follow().step()
    assert receiver.notices == [
        (3, "start", "running"),
        (1, "fail", "failed"),
        (5, "start", "running"),
        (5, "end", "completed"),
    ]
    (first, failed, *_) = receiver.taken
    assert (failed.name, failed.exit_code, failed.attempt, failed.num_gpus) == ("j1", 1, 1, 1)
    assert failed.time.endswith("Z")
    assert first.exit_code is None
    assert len({one.id for one in receiver.taken}) == 4
    assert all(one.id.startswith(f"{broker.state.identity}-") for one in receiver.taken)


def test_lost_node_is_notified_and_a_failed_launch_is_not(
    broker: HandBroker, receiver: Receiver, follow: Callable[[], NoticeFollower]
) -> None:
    follow().step()
    broker.ask(submit(notify="requeue,end"))
    broker.ask(submit(4, notify="requeue,end"))
    broker.says("n0", launched(1))
    for _ in range(20):
        broker.wait(10.0)
    assert {job.state for job in broker.state.jobs.values()} == {"queued"}
    broker.says("n0", hello("n0", 4, cluster=broker.state.identity, epoch=1))
    for _ in range(20):
        broker.wait(5.0, "n0")
    follow().step()
    assert receiver.notices == [(1, "requeue", "queued")]
    assert "n0" in receiver.taken[0].reason


def test_cancelled_job_has_ended(
    broker: HandBroker, receiver: Receiver, follow: Callable[[], NoticeFollower]
) -> None:
    from rlsched.wire.messages import Cancel

    follow().step()
    broker.ask(submit(4, notify="end"))
    broker.ask(submit(4, notify="end,fail"))
    broker.ask(Cancel(job=2))
    follow().step()
    assert receiver.notices == [(2, "end", "cancelled")]
    assert receiver.taken[0].attempt == 0


def test_first_start_begins_at_the_end_and_loads_live_jobs(
    broker: HandBroker, receiver: Receiver, follow: Callable[[], NoticeFollower]
) -> None:
    for number in (1, 2):
        broker.ask(submit(notify="end"))
        broker.says("n0", launched(number))
    broker.says("n0", ended(1))
    follow().step()
    assert receiver.notices == []
    broker.says("n0", ended(2))
    follow().step()
    assert receiver.notices == [(2, "end", "completed")]


def test_follower_may_start_before_the_journal(tmp_path: Path, receiver: Receiver) -> None:
    """Then all events are news, also before it reads again."""
    file, stop = CursorFile(tmp_path / "cursor.json"), threading.Event()
    follower = NoticeFollower(tmp_path / "journal.sqlite", file, receiver, stop)
    thread = threading.Thread(target=follower.run, args=(0.01,))
    thread.start()
    try:
        until(lambda: follower._away != "", "it has found no journal")
        journal = Journal(tmp_path / "journal.sqlite")
        broker = make(journal)
        broker.says("n0", hello("n0", 4))
        broker.ask(submit(notify="end"))
        broker.says("n0", launched(1))
        broker.says("n0", ended(1))
        until(lambda: receiver.taken, "the end is notified")
        assert receiver.notices == [(1, "end", "completed")]
        journal.close()
    finally:
        stop.set()
        thread.join()
        file.close()


def test_absent_receiver_gets_all_notices_in_order_later(
    broker: HandBroker, receiver: Receiver, follow: Callable[[], NoticeFollower]
) -> None:
    follow().step()
    for number in (1, 2, 3):
        broker.ask(submit(notify="start,end"))
        broker.says("n0", launched(number))
        broker.says("n0", ended(number))
    away = NotDeliveredError("away", is_passing=True)
    receiver.refuses = lambda _: away if receiver.tries % 7 else None
    follow().step()
    assert receiver.tries == 42
    assert receiver.notices == [(k, event, state) for k in (1, 2, 3) for event, state in (
        ("start", "running"), ("end", "completed"))]  # fmt: skip


@pytest.mark.parametrize("at", range(6))
def test_kill_loses_no_notice_and_repeats_at_most_the_last(
    at: int, broker: HandBroker, receiver: Receiver, follow: Callable[[], NoticeFollower]
) -> None:
    """The kill comes after the receiver accepted notice `at`, before the cursor is written."""
    follow().step()
    for number in (1, 2, 3):
        broker.ask(submit(notify="start,end"))
        broker.says("n0", launched(number))
        broker.says("n0", ended(number))

    class Killed(BaseException):
        pass

    def send(notice: Notice) -> None:
        receiver(notice)
        if len(receiver.taken) == at + 1:
            raise Killed

    follower = follow()
    follower._send = send
    with pytest.raises(Killed):
        follower.step()
    follow().step()
    ids = [one.id for one in receiver.taken]
    assert ids[at] == ids[at + 1], "repeated"
    del ids[at]
    assert len(ids) == len(set(ids)) == 6
    follow().step()
    assert len(receiver.taken) == 7, "and not once more"


def test_refused_notice_is_retried_by_the_next_step(
    broker: HandBroker, receiver: Receiver, follow: Callable[[], NoticeFollower]
) -> None:
    follower = follow()
    follower.step()
    broker.ask(submit(notify="start,end"))
    broker.says("n0", launched(1))
    broker.says("n0", ended(1))
    away = NotDeliveredError("away", is_passing=True)
    for refused in ("start", "end"):
        refusing: dict[str, NotDeliveredError] = {refused: away}
        receiver.refuses = lambda notice, refusing=refusing: refusing.get(notice.event)  # type: ignore[misc]
        with pytest.raises(NotDeliveredError):
            follower.step(patiently=False)
    receiver.refuses = lambda _: None
    follower.step(patiently=False)
    assert receiver.notices == [(1, "start", "running"), (1, "end", "completed")]


def test_permanently_refused_notice_is_skipped(
    broker: HandBroker,
    receiver: Receiver,
    follow: Callable[[], NoticeFollower],
    caplog: pytest.LogCaptureFixture,
) -> None:
    follow().step()
    for number in (1, 2):
        broker.ask(submit(notify="end"))
        broker.says("n0", launched(number))
        broker.says("n0", ended(number))
    odd = NotDeliveredError("the receiver answered 400", is_passing=False)
    receiver.refuses = lambda notice: odd if notice.job == 1 else None
    follow().step()
    assert receiver.tries == 4
    assert receiver.notices == [(2, "end", "completed")]
    assert "of job 1 is skipped: the receiver answered 400" in caplog.text


def test_restored_journal_is_notified_from_where_it_differs(
    broker: HandBroker,
    journal: Journal,
    receiver: Receiver,
    follow: Callable[[], NoticeFollower],
    tmp_path: Path,
) -> None:
    follow().step()
    broker.ask(submit(notify="start,end,requeue"))
    broker.says("n0", launched(1))
    back_up(journal.path, tmp_path / "backup.sqlite")
    broker.says("n0", ended(1))
    for number in range(2, 6):
        broker.ask(submit(notify="end"))
        broker.says("n0", launched(number))
        broker.says("n0", ended(number))
    follow().step()
    assert len(receiver.taken) == 6
    journal.close()
    restore(tmp_path / "backup.sqlite", tmp_path)
    receiver.taken.clear()
    again = Journal(tmp_path / "journal.sqlite")
    try:
        new = make(again)
        new.says("n0", hello("n0", 4, cluster=new.state.identity, epoch=new.state.epoch))
        for _ in range(3):
            new.wait(5.0, "n0")
        follow().step()
        assert [(job, event) for job, event, _ in receiver.notices] == [(1, "requeue")]
        number = new.state.last_number + 1
        new.ask(submit(notify="end"))
        follow().step()
        follow().step()
        assert len(receiver.taken) == 1
        assert number > 5
    finally:
        again.close()


def test_damaged_row_is_neither_notified_nor_skipped(
    broker: HandBroker, journal: Journal, follow: Callable[[], NoticeFollower]
) -> None:
    follow().step()
    broker.ask(submit(notify="end"))
    journal._db.execute("UPDATE entries SET payload = x'00' WHERE n = ?", (journal.last,))
    with pytest.raises(JournalError, match=rf"entry {journal.last}: missing or damaged"):
        follow().step()


def test_cursor_belongs_to_one_process(tmp_path: Path) -> None:
    first = CursorFile(tmp_path / "cursor.json")
    with pytest.raises(InputError, match="another `rlsched notify` uses this cursor"):
        CursorFile(tmp_path / "cursor.json")
    first.write(Cursor(entry=3), durably=True)
    first.close()
    (tmp_path / "cursor.json").write_bytes(b'{"entry": "x"}')
    second = CursorFile(tmp_path / "cursor.json")
    with pytest.raises(InputError, match="cannot read this cursor"):
        second.read()
    second.close()


@pytest.mark.parametrize("asked", ["nonsense", "end,", "END", "end;fail", "end\n", "e" * 65])
def test_invalid_notification_is_one_line(broker: HandBroker, asked: str) -> None:
    reply = broker.ask(submit(notify=asked))
    assert isinstance(reply, Refused)
    assert "notify" in reply.message
    assert "\n" not in reply.message


# ---- receivers ------------------------------------------------------------------------------------


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server = self.server
        assert isinstance(server, Server)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        server.heard.append((dict(self.headers), body))
        self.send_response(server.answer)
        if 300 <= server.answer < 400:
            self.send_header("Location", "http://127.0.0.1:1/")
        self.end_headers()

    do_GET = do_POST  # noqa: N815 - the handler's own form

    def log_message(self, *_: object) -> None:
        """Do not log."""


class Server(ThreadingHTTPServer):
    answer = 204

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.heard: list[tuple[dict[str, str], bytes]] = []
        self.url = f"http://127.0.0.1:{self.server_port}/hook"
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


def test_webhook_gets_json_with_an_id(server: Server) -> None:
    Webhook(server.url, 5.0, "secret")(NOTICE)
    ((headers, body),) = server.heard
    assert headers["Idempotency-Key"] == NOTICE.id
    assert headers["Authorization"] == "Bearer secret"
    assert headers["Content-Type"] == "application/json"
    assert json.loads(body)["name"] == 'a "name"\u2028'
    assert body.isascii()
    assert body.count(b"\n") == 1


@pytest.mark.parametrize(
    ("answer", "passing"),
    [(500, True), (503, True), (404, True), (302, True), (429, True), (400, False), (413, False)],
)
def test_status_of_a_webhook_decides_about_a_retry(server: Server, answer: int, passing: bool) -> None:
    server.answer = answer
    with pytest.raises(NotDeliveredError, match=f"the receiver answered {answer}") as error:
        Webhook(server.url, 5.0)(NOTICE)
    assert error.value.is_passing == passing
    assert len(server.heard) == 1, "a redirect is not followed"


def test_webhook_that_has_the_notice_already_is_done(server: Server) -> None:
    server.answer = 409
    Webhook(server.url, 5.0)(NOTICE)


def test_unreachable_webhook_is_retried() -> None:
    with pytest.raises(NotDeliveredError, match="no answer") as error:
        Webhook("http://127.0.0.1:1/", 5.0)(NOTICE)
    assert error.value.is_passing


@pytest.mark.parametrize(
    "url",
    [
        "ftp://x/y",
        "file:///etc/passwd",
        "http://",
        "x",
        "",
        "http://a b/",
        "http://a\r\nX: 1/",
        "http://a:99999/",
    ],
)
def test_invalid_url_is_one_line(url: str) -> None:
    with pytest.raises(InputError, match="expected a URL") as error:
        Webhook(url, 1.0)
    assert "\n" not in str(error.value)


def test_command_gets_json_on_standard_input_and_no_shell(tmp_path: Path) -> None:
    out = tmp_path / "out"
    Command(f"dd 'of={out}'", 20.0)(NOTICE)
    assert json.loads(out.read_bytes())["id"] == NOTICE.id


@pytest.mark.parametrize(
    ("words", "passing", "why"),
    [
        ("sh -c 'exit 75'", True, "exit code 75"),
        ("sh -c 'echo no such user >&2; exit 67'", False, "exit code 67: no such user"),
        ("/no/such/program", True, "cannot be run"),
        ("sleep 60", True, "the program did not end within 0.2 s"),
    ],
)
def test_exit_code_of_a_command_decides_about_a_retry(words: str, passing: bool, why: str) -> None:
    with pytest.raises(NotDeliveredError, match=why) as error:
        Command(words, 0.2 if "sleep" in words else 20.0)(NOTICE)
    assert error.value.is_passing == passing


@pytest.mark.parametrize("words", ["", "  ", "sh -c 'x"])
def test_invalid_command_is_one_line(words: str) -> None:
    with pytest.raises(InputError, match="--command"):
        Command(words, 1.0)
