"""The parts of a live screen: background queries, pages that scroll, keys as terminals send them."""

from __future__ import annotations

import os
import pty
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rich.text import Text

from rlsched.cli.shared.screen.looking import Looking
from rlsched.cli.shared.screen.page import ListPage
from rlsched.cli.shared.screen.terminal import Terminal
from rlsched.errors import BrokerUnavailableError, InputError

DEADLINE_S = 60.0


def until(look: Callable[[], object]) -> None:
    give_up_s = time.monotonic() + DEADLINE_S
    while not look():
        assert time.monotonic() < give_up_s, "deadline passed"
        time.sleep(0.005)


class Broker:
    """Replaces a client."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.answers = threading.Event()
        self.answers.set()
        self.asked = 0

    def __enter__(self) -> Broker:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def look(self, client: Any) -> int:
        assert client is self
        self.answers.wait(DEADLINE_S)
        if self.error is not None:
            raise self.error
        self.asked += 1
        return self.asked


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture
def looking(broker: Broker) -> Iterator[Looking]:
    looking = Looking(lambda: broker, 0.01, lambda: None)  # type: ignore[arg-type, return-value]
    looking.begin()
    yield looking
    broker.answers.set()
    looking.end()


def found(looking: Looking, broker: Broker) -> int:
    at = looking.last_answer(broker.look)
    return 0 if at is None else at[0]


def test_unreachable_broker_is_shown_until_it_is_back(broker: Broker, looking: Looking) -> None:
    until(lambda: found(looking, broker) > 2)
    assert looking.trouble == ""
    broker.error = BrokerUnavailableError("no broker answers")
    until(lambda: looking.trouble == "no broker answers")
    known = found(looking, broker)
    assert known == broker.asked, "the last data stays"
    broker.error = None
    until(lambda: looking.trouble == "" and found(looking, broker) > known)


def test_slow_broker_is_shown_before_the_time_out(
    broker: Broker, looking: Looking, monkeypatch: pytest.MonkeyPatch
) -> None:
    until(lambda: found(looking, broker) > 0)
    broker.answers.clear()
    until(lambda: looking._out_since is not None)
    now_s = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now_s + 7.0)
    assert looking.trouble == "the broker has not answered for 7 s"
    monkeypatch.undo()


def test_order_is_sent_once_and_its_result_shown(broker: Broker, looking: Looking) -> None:
    until(lambda: found(looking, broker) > 0)
    done = list[Any]()

    def order(client: Any) -> str:
        done.append(client)
        return "job 7: cancelled"

    def refused(client: Any) -> str:  # noqa: ARG001
        raise InputError("job 7 has ended")

    looking.order(order)
    until(lambda: looking.said == "job 7: cancelled")
    looking.order(refused)
    until(lambda: looking.said == "job 7 has ended")
    assert done == [broker]


def test_bug_is_not_reported_as_a_broker_fault(broker: Broker, looking: Looking) -> None:
    until(lambda: found(looking, broker) > 0)
    broker.error = KeyError("x")
    with pytest.raises(KeyError):
        until(lambda: found(looking, broker) < 0)


def test_page_scrolls_and_stays_within_its_text() -> None:
    page = ListPage("list", lambda _: None, lambda found, _: [Text(str(k)) for k in found])

    def shown() -> list[str]:
        return [line.plain for line in page.lines(range(10), 80, 5, 0.0)]

    assert shown() == ["list", "0", "1", "2", "3"]
    for key, first in (
        ("up", "0"),
        ("down", "1"),
        ("page down", "5"),
        ("page down", "6"),
        ("k", "5"),
        ("x", "5"),
    ):
        assert page.key(key, None) is page  # type: ignore[arg-type]
        assert shown()[1] == first, key
    assert page.key("q", None) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("typed", "keys"),
    [
        (b"q", ["q"]),
        (b"\x1b[B\x1b[B\x1b[A", ["down", "down", "up"]),
        (b"\x1bOAw", ["up", "w"]),
        (b"\x1b", ["escape"]),
        (b"\x1b[6~\x1b[1;5C\r", ["page down", "\x1b[1;5C", "enter"]),
        ("ä".encode(), ["ä"]),
    ],
)
def test_keys_are_read_as_terminals_send_them(
    typed: bytes, keys: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "r+b", buffering=0) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        monkeypatch.setattr(sys, "stdout", os.fdopen(os.dup(theirs), "w"))
        with Terminal() as screen:
            os.write(ours, typed)
            assert screen.keys(DEADLINE_S) == keys
            screen.wake()
            assert screen.keys(DEADLINE_S) == []
        sys.stdout.close()
    os.close(ours)
