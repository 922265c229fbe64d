"""A broker processes every decodable message of nodes and clients, and so does its successor."""

from __future__ import annotations

import logging
from pathlib import Path
from random import Random

import pytest

from rlsched.broker.events import ClientAsked, NodeSaid, Tick
from rlsched.broker.journal.journal import Journal
from rlsched.decide.registry import load_scheduler
from rlsched.errors import WireError
from rlsched.wire.messages import ClientRequest, NodeMessage, decode, encode
from tests.support.broker.edges import make
from tests.support.broker.hand import LIMITS, hello, submit
from tests.support.broker.hand_broker import HandBroker
from tests.support.soak_size import times

NODES = ("n0", "n1")
LIKELY = {
    "name": NODES,
    "node": NODES,
    "job": tuple(range(1, 12)),
    "attempt": (1, 2),
    "rank": (0, 1),
    "gpus": (0, 3, 4),
    "num_gpus": (1, 2, 4, 8),
    "command": (["true"],),
    "cluster": ("", "c1"),
    "epoch": (0, 1),
    "exit_code": (0, 1, 143),
    "reason": ("", "killed", "time_limit", "node_stopped", "fenced", "not_started"),
    "vc": ("", "team"),
}
KINDS = (*NodeMessage.__args__, *ClientRequest.__args__)


def one(chance: Random) -> NodeSaid | ClientAsked | Tick:
    if chance.random() < 0.1:
        return Tick()
    kind = chance.choice(KINDS)
    try:
        message = decode(encode(make(kind, chance, LIKELY), 1)).message
    except (WireError, OverflowError, UnicodeEncodeError):
        return Tick()
    if kind in NodeMessage.__args__:
        return NodeSaid(chance.choice(NODES), chance.choice((0, 1, 7)), message)  # type: ignore[arg-type]
    return ClientAsked(b"peer", chance.randint(0, 99), message)  # type: ignore[arg-type]


def trial(directory: Path, seed: int, messages: int, caplog: pytest.LogCaptureFixture) -> None:
    """Send this many messages, and compare the broker with one that replays its journal."""
    chance = Random(seed)
    journal = Journal(directory / f"{seed}.sqlite")
    broker = HandBroker(load_scheduler("fifo-backfill"), journal, limits=LIMITS)
    for name in NODES:
        broker.says(name, hello(name))
    for number in range(messages):
        events = [one(chance) for _ in range(chance.choice((1, 1, 3)))]
        if number % 20 == 0:
            events.append(ClientAsked(b"peer", 1, submit(chance.choice((1, 4, 8)))))
        broker.batch(events, after_s=chance.choice((0.001, 0.4, 3.0)))
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []
    again = HandBroker(load_scheduler("fifo-backfill"), journal, limits=LIMITS, now_s=broker.now_s)
    assert again.state.cluster.digest() == broker.state.cluster.digest()
    assert {job.number: job.state for job in again.state.jobs.values()} == {
        job.number: job.state for job in broker.state.jobs.values()
    }
    journal.close()


@pytest.mark.parametrize(
    ("seed", "messages"),
    [
        *((seed, 400) for seed in range(4)),
        *(pytest.param(seed, 2_500, marks=pytest.mark.soak) for seed in range(100, 100 + times(8))),
    ],
)
def test_decodable_messages_do_not_break_a_broker(
    tmp_path: Path, seed: int, messages: int, caplog: pytest.LogCaptureFixture
) -> None:
    trial(tmp_path, seed, messages, caplog)
