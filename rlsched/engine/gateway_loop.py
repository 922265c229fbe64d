"""The gateway's loop: connects the state machine with a socket, a clock and Slurm's commands."""

from __future__ import annotations

import fcntl
import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import zmq

from rlsched.engine.facts import Facts, SlurmError
from rlsched.engine.fallback import Alive
from rlsched.engine.gateway import Gateway
from rlsched.engine.reader import Reader
from rlsched.engine.steps import Ask, Say
from rlsched.errors import InputError, WireError
from rlsched.transport.dealer import connect_dealer, dial_address
from rlsched.transport.keys import KeyHome
from rlsched.wire.messages import ForNode, Heartbeat, OfNode, Refused, decode, encode

RENEW_S = 10.0
"""Seconds without a message from the broker after which a new socket is opened to the next address."""
FORGET_S = 60.0
"""Time after which the gateway no longer expects the broker's answer to a question, seconds."""
SLOW_S = 5.0
"""Duration of a query, seconds, after which Slurm is treated as unreachable until it answers."""
WAIT_MS = 20
Heard = tuple[list[ForNode], list[tuple[tuple[str, str], object]]]
_log = logging.getLogger("rlsched.engine")


class Link:
    """A connection to the broker, used for all nodes and all questions.

    Args:
        addresses: Addresses of the broker and its standbys.
        home: Directory with the keys.
        name: Name of the engine's key.

    Attributes:
        has_lost: Whether a sent message may have been lost.
    """

    def __init__(self, addresses: Sequence[str], home: KeyHome, name: str) -> None:
        self.has_lost = False
        self._addresses, self._at = tuple(addresses), 0
        self._pair, self._public = home.engine(name), home.broker_public()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._requests, self._asked = 0, dict[int, tuple[float, tuple[str, str]]]()
        self._dial()

    def _dial(self) -> None:
        self._heard_s = time.monotonic()
        address = dial_address(self._addresses[self._at])
        self.socket = connect_dealer(self._context, address, self._pair, self._public)

    def renew(self) -> None:
        """If no message has arrived for `RENEW_S`, open a new socket to the next address."""
        if time.monotonic() - self._heard_s >= RENEW_S:
            self.socket.close(0)
            self.has_lost = True
            self._at = (self._at + 1) % len(self._addresses)
            self._dial()

    def send(self, steps: Sequence[Say | Ask]) -> None:
        """Send messages and questions. A message that cannot be sent now is dropped, and sets `has_lost`."""
        now_s = time.monotonic()
        for step in steps:
            self._requests += 1
            try:
                if isinstance(step, Ask):
                    self._asked[self._requests] = now_s, step.about
                    frame = encode(step.message, self._requests)
                else:
                    request = self._requests if isinstance(step.message, Heartbeat) else 0
                    frame = encode(OfNode(node=step.node, message=step.message), request)
                self.socket.send(frame, zmq.NOBLOCK)
            except zmq.Again:
                self.has_lost = True
                return
            except WireError as error:
                _log.error("%s", error)
        if len(self._asked) > 1000:
            self._asked = {n: one for n, one in self._asked.items() if now_s - one[0] < FORGET_S}

    def receive(self, timeout_ms: int) -> Heard:
        """Wait for messages. Return the broker's messages to nodes and its answers: (`Ask.about`, answer)."""
        orders: list[ForNode] = []
        answers: list[tuple[tuple[str, str], object]] = []
        if not self.socket.poll(timeout_ms):
            return orders, answers
        while True:
            try:
                envelope = decode(self.socket.recv(zmq.NOBLOCK))
            except zmq.Again:
                return orders, answers
            except WireError as error:
                _log.warning("%s", error)
                continue
            self._heard_s = time.monotonic()
            message = envelope.message
            if isinstance(message, ForNode):
                orders.append(message)
            elif envelope.request in self._asked:
                answers.append((self._asked.pop(envelope.request)[1], message))
            elif isinstance(message, Refused):
                _log.warning("the broker rejected a request: %s", message.message)

    def close(self) -> None:
        """Close the connection."""
        self.socket.close(200)
        self._context.term()


class _Query:
    """A query of Slurm in a thread.

    Attributes:
        began_s: Time at which the thread began the query, monotonic seconds. Until the thread begins: time at
            which the query was requested.
        facts: Result of the query.
    """

    def __init__(self, pool: ThreadPoolExecutor, reader: Reader) -> None:
        self.began_s = time.monotonic()
        self.facts = pool.submit(self._run, reader)

    def _run(self, reader: Reader) -> Facts:
        self.began_s = time.monotonic()
        return reader.facts()


def serve(
    gateway: Gateway,
    reader: Reader,
    link: Link,
    alive: Alive,
    poll_s: float,
    stop: threading.Event,
    first: Facts | None = None,
) -> None:
    """Run the gateway until `stop` is set.

    Args:
        gateway: The state machine.
        reader: Queries Slurm, at most once per `poll_s`.
        link: Connection to the broker.
        alive: Records for job_submit.lua whether a broker decides.
        poll_s: Seconds between two queries. The pause after a query is at least as long as the query.
        stop: Event that a signal handler sets.
        first: Facts of an earlier query; None: query first.
    """
    look_at_s = 0.0
    if first is not None:
        link.send(gateway.handle_facts(first))
        look_at_s = time.monotonic() + poll_s
    asked: _Query | None = None
    with ThreadPoolExecutor(1, "slurm") as pool:
        while not stop.is_set():
            if alive.is_over:
                _log.warning("rlsched was removed from this Slurm: the gateway exits")
                return
            heard = link.receive(WAIT_MS)
            now_s, elapsed_s = time.time(), time.monotonic()
            _hear(gateway, link, heard, now_s)
            if gateway.is_deciding(now_s) and not gateway.is_away:
                alive.write_time(gateway.decided_s)  # limits how long job_submit.lua holds jobs
            if asked is None and elapsed_s >= look_at_s:
                asked = _Query(pool, reader)
            elif asked is not None and asked.facts.done():
                link.send(_handle_query(gateway, asked.facts))
                look_at_s = max(asked.began_s + poll_s, 2 * elapsed_s - asked.began_s)
                asked = None
            elif asked is not None and elapsed_s - asked.began_s >= SLOW_S:
                link.send(gateway.cannot_look(f"no answer for {SLOW_S:g} s", now_s))
            else:
                link.send(gateway.tick(now_s))
            link.renew()
            if link.has_lost and any(heard):
                link.has_lost = False
                link.send(gateway.say_again(now_s))


def _hear(gateway: Gateway, link: Link, heard: Heard, now_s: float) -> None:
    orders, answers = heard
    if orders or answers:
        gateway.heard_of_broker(now_s)
    with gateway.writing_together():
        for told in orders:
            link.send(gateway.handle_message(told.node, told.message, now_s))
        for about, answer in answers:
            link.send(gateway.handle_answer(about, answer, now_s))


def _handle_query(gateway: Gateway, asked: Future[Facts]) -> list[Say | Ask]:
    try:
        return gateway.handle_facts(asked.result())
    except SlurmError as error:
        return gateway.cannot_look(str(error), time.time())


def locked(directory: Path) -> object:
    """Lock a gateway's directory against a second gateway, for as long as the returned object exists.

    Raises:
        InputError: another gateway uses the directory.
    """
    file = (directory / "lock").open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise InputError(
            f"{directory}: another `rlsched engine slurm` runs with this --dir; only one gateway "
            "may serve a Slurm cluster"
        ) from None
    return file
