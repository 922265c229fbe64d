"""The Python client, against a stub with scripted answers."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rlsched.broker.base.limits import Limits
from rlsched.client import following
from rlsched.client.client import Client
from rlsched.client.submitting import MOST_AT_ONCE, JobRefusedError, as_submit, submit_many
from rlsched.errors import BrokerUnavailableError, InputError, RlschedError, WireError
from rlsched.transport import connection as connection_module
from rlsched.transport.keys import KeyHome
from rlsched.wire.messages import (
    ClientReply,
    ClientRequest,
    Jobs,
    ListJobs,
    LogChunk,
    Ok,
    ReadLog,
    Refused,
    Submit,
    SubmitMany,
    Submitted,
    SubmittedMany,
)
from tests.support.broker.stub import Stub


@pytest.fixture
def stub(tmp_path: Path) -> Iterator[Stub]:
    stub = Stub(tmp_path)
    yield stub
    stub.close()


@pytest.fixture
def client(stub: Stub, tmp_path: Path) -> Iterator[Client]:
    with Client(stub.address, home=tmp_path) as client:
        yield client


def test_submission_returns_the_jobs_number(stub: Stub, client: Client) -> None:
    stub.script = lambda _: Submitted(job=12)
    assert client.submit(["train", "--fast"], num_gpus=2, env={"A": "1"}) == 12
    message = stub.heard[0][1]
    assert isinstance(message, Submit)
    assert (message.command, message.num_gpus, message.env) == (["train", "--fast"], 2, {"A": "1"})
    assert len(message.token) == 32


def test_refusal_is_an_input_error_with_the_brokers_line(stub: Stub, client: Client) -> None:
    stub.script = lambda _: Refused(message="there is no job 3")
    with pytest.raises(InputError, match="there is no job 3"):
        client.cancel(3)


def test_lost_answer_is_requested_again_with_the_same_token(
    stub: Stub, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "RESEND_S", 0.05)
    answers = iter([None, None, Submitted(job=1)])
    stub.script = lambda _: next(answers, Submitted(job=1))
    assert client.submit(["x"]) == 1
    assert len(stub.heard) >= 3
    assert len({(request, message.token) for request, message in stub.heard}) == 1  # type: ignore[union-attr]


def test_late_answer_to_an_earlier_request_is_ignored(
    stub: Stub, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "RESEND_S", 0.02)
    stub.script = lambda message: Submitted(job=1) if isinstance(message, Submit) else Jobs(jobs=[])
    client.submit(["x"])
    assert client.jobs() == []


def test_answer_of_another_kind_is_a_wire_error(stub: Stub, client: Client) -> None:
    stub.script = lambda _: Ok()
    with pytest.raises(WireError, match="expected Jobs from the broker, got Ok"):
        client.jobs()


def test_broker_that_does_not_answer_is_unavailable(stub: Stub, tmp_path: Path) -> None:
    stub.script = lambda _: None
    with (
        Client(stub.address, home=tmp_path, timeout_s=0.3) as client,
        pytest.raises(BrokerUnavailableError, match="no broker answers at"),
    ):
        client.jobs()


def test_unreachable_broker_is_one_clear_line(tmp_path: Path) -> None:
    KeyHome(tmp_path).broker()
    with (
        Client("tcp://127.0.0.1:9", home=tmp_path, timeout_s=0.3) as client,
        pytest.raises(BrokerUnavailableError) as caught,
    ):
        client.jobs()
    assert str(caught.value) == (
        "no broker answers at tcp://127.0.0.1:9; start one with `rlsched up` or `rlsched broker`"
    )
    assert caught.value.exit_code == 2


def test_missing_keys_mean_that_no_broker_ever_ran(tmp_path: Path) -> None:
    with pytest.raises(BrokerUnavailableError, match="start one with `rlsched up`"):
        Client("tcp://127.0.0.1:9", home=tmp_path)


def test_unknown_key_is_reported_as_refused(stub: Stub, tmp_path: Path) -> None:
    other = KeyHome(tmp_path / "other")
    other.client()
    (other.directory / "broker.public").write_bytes(KeyHome(tmp_path).broker_public())
    with (
        Client(stub.address, home=other.directory, timeout_s=1.0) as client,
        pytest.raises(BrokerUnavailableError, match="refuses the key in"),
    ):
        client.jobs()


def test_key_that_is_refused_for_a_moment_is_accepted_later(stub: Stub, tmp_path: Path) -> None:
    """A broker that takes over can refuse a known key; without another attempt, the socket stays silent."""
    other = KeyHome(tmp_path / "other")
    pair = other.client()
    (other.directory / "broker.public").write_bytes(KeyHome(tmp_path).broker_public())
    file = tmp_path / "authorised" / "admin-later.public"
    allow = threading.Timer(0.5, lambda: file.write_bytes(pair.public))
    stub.script = lambda _: Jobs(jobs=[])
    timeout_s = 0.8 * connection_module.RENEW_S
    with Client(stub.address, home=other.directory, timeout_s=timeout_s) as client:
        allow.start()
        assert client.jobs() == []
    allow.join()


def test_key_of_another_broker_is_reported_as_such(stub: Stub, tmp_path: Path) -> None:
    other = KeyHome(tmp_path / "other")
    other.broker()
    with (
        Client(stub.address, home=other.directory, timeout_s=1.0) as client,
        pytest.raises(BrokerUnavailableError, match=r"does not have the broker key .*other/broker\.public"),
    ):
        client.jobs()


def test_log_is_followed_to_its_end_and_restarts_with_a_new_attempt(
    stub: Stub, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "POLL_S", 0.01)
    pieces = iter(
        [
            LogChunk(data=b"", offset=0, eof=False),
            LogChunk(data=b"one ", offset=0, eof=False, attempt=1),
            LogChunk(data=b"", offset=4, eof=False, attempt=1),
            LogChunk(data=b"", offset=4, eof=False, attempt=2),
            LogChunk(data=b"two", offset=0, eof=False, attempt=2),
            LogChunk(data=b"", offset=3, eof=True, attempt=2),
        ]
    )
    stub.script = lambda _: next(pieces)
    assert b"".join(client.log(1, follow=True)) == b"one two"
    offsets = [message.offset for _, message in stub.heard if isinstance(message, ReadLog)]
    assert offsets == [0, 0, 4, 4, 0, 3]


def test_wait_survives_a_downtime_of_the_broker(
    stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "POLL_S", 0.01)
    with Client(stub.address, home=tmp_path, timeout_s=0.1) as client:
        asked = []

        def script(message: ClientRequest) -> ClientReply | None:
            assert isinstance(message, ListJobs)
            asked.append(message)
            return None if len(asked) < 3 else Refused(message="enough")

        stub.script = script
        with pytest.raises(InputError, match="enough"):
            client.wait(1)
        assert len(asked) >= 3


def test_log_ends_with_the_output_of_this_run(tmp_path: Path) -> None:
    from rlsched.client.local import _tail

    log = tmp_path / "broker.log"
    log.write_text("error: of an earlier run\n", encoding="utf-8")
    start = log.stat().st_size
    with log.open("a", encoding="utf-8") as file:
        file.write("ready\nerror: of this one\n")
    assert _tail(log, start) == "ready | error: of this one"


def test_client_waits_longer_than_the_broker_waits_for_a_node() -> None:
    """Otherwise an unreachable node looks like an unreachable broker."""
    waits_s = inspect.signature(Client).parameters["timeout_s"].default
    assert Limits().log_timeout_s < waits_s


def test_refusal_of_a_later_message_reports_the_jobs_already_queued() -> None:
    """They need two messages: both pass the check, then a quota refuses the second."""
    asked: list[SubmitMany] = []

    def ask(many: SubmitMany, kind: type[SubmittedMany]) -> SubmittedMany:
        asked.append(many)
        if len(asked) == 4:
            raise failure
        return kind(jobs=[] if many.check else list(range(1, len(many.jobs) + 1)))

    jobs = [as_submit(["true"], token=str(number)) for number in range(MOST_AT_ONCE + 2)]
    failure: RlschedError = InputError("job 2: the quota of ada is 501 jobs")
    with pytest.raises(JobRefusedError, match=r"job 502: .*; jobs 1 to 500 .* queued: 1 to 500") as at:
        submit_many(ask, jobs)
    assert (at.value.place, at.value.queued) == (MOST_AT_ONCE + 1, list(range(1, MOST_AT_ONCE + 1)))
    asked.clear()
    failure = BrokerUnavailableError("no answer")
    with pytest.raises(BrokerUnavailableError, match=r"no answer; jobs 1 to 500 of these are queued"):
        submit_many(ask, jobs)


def test_numbers_with_too_many_digits_are_one_line(stub: Stub, client: Client) -> None:
    asks: list[Callable[[], object]] = [
        lambda: client.submit(["true"], num_gpus=10**30),
        lambda: client.update(7, array_limit=10**30),
        lambda: client.submit_many([as_submit(["true"]), as_submit(["true"], num_gpus=10**30)]),
    ]
    for ask in asks:
        with pytest.raises(InputError, match="a number is too large"):
            ask()
    assert stub.heard == []
