"""A connection that libzmq has closed is replaced: after a frame above the limit it never reconnects."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlsched.client.client import Client
from rlsched.errors import BrokerUnavailableError, InputError
from rlsched.transport.keys import KeyHome
from rlsched.wire.messages import (
    MAX_MESSAGE_BYTES,
    Hello,
    Jobs,
    LogData,
    SayHello,
    decode,
    encode,
)
from rlsched_node.link.link import RENEW_S, BrokerLink
from rlsched_node.processes.steps import Connected, Disconnected, Received
from tests.support.broker.listener import Listener

DEADLINE_S = 60.0
TOO_LONG = b"x" * (MAX_MESSAGE_BYTES + 1)


@pytest.fixture
def home(tmp_path: Path) -> KeyHome:
    return KeyHome(tmp_path)


@pytest.fixture
def first_too_long(home: KeyHome) -> Iterator[Listener]:
    """Answers the first message with a frame above the limit, all others normally."""

    def answer(heard: int, frame: bytes) -> bytes:
        envelope = decode(frame)
        good = SayHello() if isinstance(envelope.message, Hello) else Jobs(jobs=[])
        return TOO_LONG if heard == 0 else encode(good, envelope.request)

    listener = Listener(home, answer)
    yield listener
    listener.close()


def test_node_without_a_welcome_reconnects(home: KeyHome, first_too_long: Listener) -> None:
    now_s = [0.0]
    link = BrokerLink(
        [first_too_long.address], home.node("n0"), home.broker_public(), elapsed=lambda: now_s[0]
    )
    hello = Hello(name="n0", gpus=1)

    def until(kind: type, *, says: bool = False) -> list[object]:
        deadline, seen = time.monotonic() + DEADLINE_S, []
        while not any(isinstance(event, kind) for event in seen):
            assert time.monotonic() < deadline, seen
            seen += link.receive()
            if says:
                says = not link.send(hello)
            link.socket.poll(10)
        return seen

    try:
        until(Connected)
        assert not link.renew(is_registered=True)
        assert link.send(hello)
        until(Disconnected)
        now_s[0] = RENEW_S - 0.1
        assert not link.renew(is_registered=False)
        now_s[0] = RENEW_S
        assert link.renew(is_registered=False)
        assert isinstance(until(Received, says=True)[0], Disconnected)
        assert not link.renew(is_registered=False), "the new socket has its full time-out"
    finally:
        link.close()


def test_node_sends_no_frame_above_the_limit(home: KeyHome) -> None:
    home.broker()
    link = BrokerLink(["tcp://127.0.0.1:9"], home.node("n0"), home.broker_public())
    try:
        assert not link.send(LogData(data=TOO_LONG, offset=0, eof=True))
    finally:
        link.close()


def test_client_without_an_answer_retries_on_a_new_connection(
    home: KeyHome, first_too_long: Listener
) -> None:
    with Client(first_too_long.address, home=home.directory, timeout_s=0.5) as client:
        with pytest.raises(BrokerUnavailableError):
            client.jobs()
        client.timeout_s = DEADLINE_S
        assert client.jobs() == []


def test_request_above_the_limit_is_refused_before_it_is_sent(
    home: KeyHome, first_too_long: Listener
) -> None:
    with Client(first_too_long.address, home=home.directory) as client:
        with pytest.raises(InputError, match=r"message 'submit' of 1,048,\d+ bytes"):
            client.submit(["true", "x" * MAX_MESSAGE_BYTES])
        with pytest.raises(InputError, match="is not valid UTF-8"):
            client.submit(["true", "a\udcff"])
