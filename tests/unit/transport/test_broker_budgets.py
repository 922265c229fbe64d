"""A sender's share of the loop: budgets and shares of a turn by hand, then over real sockets."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from rlsched.transport.access import AccessEntry
from rlsched.transport.budgets import MAX_KNOWN, Budgets, SenderLimits, Turns
from rlsched.transport.keys import KeyHome
from rlsched.transport.roles import Peer
from rlsched.transport.router import Heard, Transport
from rlsched.wire.messages import Refused, Stats, Submit, SubmitMany, encode
from tests.support.broker.peers import PATIENCE_S, Peers

LIMITS = SenderLimits(messages_per_s=100.0, refusals_per_s=10.0, burst_s=1.0, a_turn=3, waiting=4)
ON_THE_WAY = LIMITS.a_turn + LIMITS.waiting
"""Messages accepted before the budget was used up."""


class Clock:
    now_s = 50.0

    def __call__(self) -> float:
        return self.now_s


def num_accepted(budgets: Budgets, key: bytes, take: str = "spend") -> int:
    """Number of messages accepted from a key at one instant."""
    count = 0
    while budgets.has_budget(key) and count < 10_000:
        getattr(budgets, take)(key)
        count += 1
    return count


def test_budget_refills_with_time_up_to_its_size() -> None:
    clock = Clock()
    budgets = Budgets(LIMITS, clock)
    assert num_accepted(budgets, b"a") == 100
    clock.now_s += 0.25
    assert num_accepted(budgets, b"a") == 25
    clock.now_s += 1e6
    assert num_accepted(budgets, b"a") == 100


def test_refused_message_costs_its_sender_more_and_others_nothing() -> None:
    budgets = Budgets(LIMITS, Clock())
    assert num_accepted(budgets, b"a", "charge_refusal") == 10
    assert num_accepted(budgets, b"b") == 100


def test_budgets_of_inactive_senders_are_dropped() -> None:
    budgets = Budgets(LIMITS, Clock())
    num_accepted(budgets, b"first")
    assert not budgets.has_budget(b"first")
    for number in range(MAX_KNOWN):
        budgets.spend(b"%d" % number)
    assert budgets.has_budget(b"first")


def test_messages_beyond_a_share_wait_in_order_in_a_bounded_queue() -> None:
    turns = Turns[int](LIMITS)
    assert list(turns.begin()) == []
    heard = [number for number in range(9) if turns.is_due(b"a") or not turns.wait(b"a", number)]
    assert heard == [0, 1, 2, 7, 8], "7 and 8 were dropped"
    assert turns.is_due(b"b"), "another key has a share of its own"
    assert (list(turns.begin()), bool(turns)) == ([3, 4, 5], True)
    assert not turns.is_due(b"a"), "new messages come after its earlier ones"
    assert (list(turns.begin()), bool(turns)) == ([6], False)
    assert turns.is_due(b"a")


def test_long_message_uses_the_share_of_many() -> None:
    turns = Turns[int](LIMITS)
    assert list(turns.begin()) == []
    assert turns.is_due(b"a")
    turns.add(b"a", 5)
    for number in range(3):
        assert not turns.is_due(b"a")
        assert turns.wait(b"a", number)
    heard = []
    for number in turns.begin():
        heard.append(number)
        turns.add(b"a", 5)
    assert heard == [0], "the others wait for later turns"
    assert list(turns.begin()) == [1, 2]


# ---- over sockets -----------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path) -> KeyHome:
    return KeyHome(tmp_path / "home")


@pytest.fixture
def transport(home: KeyHome) -> Iterator[Transport]:
    """On real sockets, at one instant: no budget refills."""
    transport = Transport("tcp://127.0.0.1:0", home, LIMITS)
    transport._budgets = Budgets(LIMITS, Clock())
    yield transport
    transport.close()


@pytest.fixture
def peers() -> Iterator[Peers]:
    peers = Peers()
    yield peers
    peers.close()


def handshake(transport: Transport, socket: zmq.Socket[bytes]) -> None:
    """Serve handshakes until this socket is connected."""
    until_s = time.monotonic() + PATIENCE_S
    while not socket.poll(0, zmq.POLLOUT):
        assert time.monotonic() < until_s
        assert transport.receive(20, 128)[0] == []


def test_flood_of_malformed_messages_is_dropped_and_others_are_served(
    home: KeyHome, transport: Transport, peers: Peers
) -> None:
    pair = home.client("mallory")
    home.put(AccessEntry.new(Peer("user", "mallory", "mallory"), pair.public))
    flooder = peers.connect(transport, home, pair)
    other = peers.connect(transport, home, home.client())
    for socket in (flooder, other):
        handshake(transport, socket)
    for _ in range(400):
        flooder.send(b"\xff" * 40)
    other.send(encode(Stats(), 7))
    heard, until_s = 0, time.monotonic() + PATIENCE_S
    while transport.counts.get("malformed", 0) + transport.counts.get("dropped", 0) < 400 or not heard:
        assert time.monotonic() < until_s
        found, _ = transport.receive(10, 128)
        heard += sum(isinstance(one.envelope.message, Stats) for one in found)
    assert heard == 1
    assert 10 <= transport.counts["malformed"] <= 10 + ON_THE_WAY, "the size of its budget"
    assert transport.counts["malformed"] + transport.counts["dropped"] == 400


def test_table_of_jobs_costs_as_much_as_its_jobs(home: KeyHome, transport: Transport, peers: Peers) -> None:
    asks = peers.connect(transport, home, home.client())
    handshake(transport, asks)
    jobs = [Submit(token=f"{number}", command=["true"], num_gpus=1) for number in range(2_000)]
    asks.send(encode(SubmitMany(jobs=jobs), 1))
    asks.send(encode(Stats(), 2))
    heard, until_s = list[Heard](), time.monotonic() + PATIENCE_S
    while not transport.counts.get("dropped"):
        assert time.monotonic() < until_s
        heard += transport.receive(10, 128)[0]
    assert [type(one.envelope.message) for one in heard] == [SubmitMany], "that was the budget of 20 seconds"


def test_refusals_of_the_machine_count_too(home: KeyHome, transport: Transport, peers: Peers) -> None:
    asks = peers.connect(transport, home, home.client())
    handshake(transport, asks)
    until_s, answered = time.monotonic() + PATIENCE_S, 0
    while not transport.counts.get("dropped"):
        assert time.monotonic() < until_s
        asks.send(encode(Stats(), 1))
        for one in transport.receive(10, 128)[0]:
            transport.reply(one.route, 1, Refused(message="no"))
            answered += 1
    assert 10 <= answered <= 10 + ON_THE_WAY


def test_share_of_a_turn_is_per_key(home: KeyHome, transport: Transport, peers: Peers) -> None:
    asks = peers.connect(transport, home, home.client())
    handshake(transport, asks)
    for number in range(6):
        asks.send(encode(Stats(), number))
    turns: list[list[int]] = []
    until_s = time.monotonic() + PATIENCE_S
    while sum(map(len, turns)) < 6:
        assert time.monotonic() < until_s
        turns.append([one.envelope.request for one in transport.receive(10, 128)[0]])
    assert [number for turn in turns for number in turn] == list(range(6))
    assert max(map(len, turns)) <= LIMITS.a_turn
