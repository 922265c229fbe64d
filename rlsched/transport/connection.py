"""A client's connection: repeats a request until an answer arrives, or explains why no answer arrives."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import zmq

from rlsched.errors import BrokerUnavailableError, InputError, WireError
from rlsched.transport.dealer import broker_addresses, connect_watched_dealer
from rlsched.transport.epochs import Epochs
from rlsched.transport.keys import KeyPair
from rlsched.transport.starting import is_starting
from rlsched.wire.messages import Refused, Serving, WhoServes, decode_answer, encode

if TYPE_CHECKING:
    import msgspec

    from rlsched.wire.messages import ClientRequest, Join

RESEND_S = 2.0
RENEW_S = 10.0
"""Time without an answer after which the socket is replaced, seconds."""
REFUSED_S = 1.0
"""Time after which a refused handshake is tried again, seconds. libzmq does not try again, but a broker that
starts, stops or takes over can later accept the key.
"""
MANY_HANG_UPS = 3
WAITS_S = 0.25
APART_S = 0.05
"""Pause between two connection attempts to an address without a listener, seconds."""


class Connection:
    """A client's socket to a broker. The connection replaces a socket that does not reconnect by itself.

    Args:
        address: Address of the broker, tcp://HOST:PORT. Addresses of standbys can follow, separated by
            commas.
        pair: Key pair of this client.
        broker_public: Public key of the broker, z85.
        keys: Key directory, for error messages.
        epochs: Highest known epoch of each cluster; a later broker has a higher epoch. With several
            addresses, a broker with a lower epoch gets no request.
        waits: Callback for progress, which is called a few times a second while a call waits. Its arguments
            are the address, the time waited and the maximum waiting time, seconds. At the end of the wait,
            the time waited is 0. None: no callback.
        starting: Function that returns a description of a broker that is starting at the given addresses; ""
            if there is none.
        is_patient: Whether to wait without a time-out while a broker is starting.

    Attributes:
        is_refused: Whether the last call failed because the broker does not accept this key.
    """

    def __init__(
        self,
        address: str,
        pair: KeyPair,
        broker_public: bytes,
        keys: str,
        epochs: Epochs | None = None,
        waits: Callable[[str, float, float], object] | None = None,
        starting: Callable[[Sequence[str]], str] = lambda _: "",
        *,
        is_patient: bool = False,
    ) -> None:
        self._waits, self._starting, self._is_patient = waits, starting, is_patient
        self._addresses, self._at = broker_addresses(address), 0
        self._pair, self._broker_public, self._keys, self._epochs = pair, broker_public, keys, epochs
        self.is_refused = False
        self._failed: list[int] = []
        self._outdated = ""
        self._next_request = 1
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._dial()

    @property
    def address(self) -> str:
        """The address in use."""
        return self._addresses[self._at]

    def close(self) -> None:
        """Close the socket."""
        self._hang_up()
        self._context.destroy(linger=0)

    def ask(self, message: ClientRequest | Join, kind: type[msgspec.Struct], timeout_s: float) -> object:
        """Send a request repeatedly until an answer arrives; return the answer, which can be a `Refused`.

        The broker may receive the request twice. With several addresses, the next address is tried if no
        answer arrives.

        Args:
            message: The request.
            kind: Class of the expected answer; the answer can be of another class.
            timeout_s: Time-out, seconds.

        Raises:
            InputError: the message cannot be sent, or the broker does not accept it from this key.
            BrokerUnavailableError: no answer arrived within the time-out.
            WireError: the answer is malformed.
        """
        try:
            return self._ask(message, kind, timeout_s)
        finally:
            if self._waits is not None:
                self._waits(self.address, 0.0, timeout_s)

    def _ask(self, message: ClientRequest | Join, kind: type[msgspec.Struct], timeout_s: float) -> object:
        request, who = self._next_request, self._next_request + 1
        self._next_request += 2
        frame = _frame(message, request)
        began_s = time.monotonic()
        deadline = began_s + timeout_s
        self._send_at, self._give_up_at = 0.0, time.monotonic() + self._patience_s
        while True:
            now = time.monotonic()
            if now >= deadline:
                if not (self._is_patient and self._starting(self._addresses)):
                    break
                deadline = now + timeout_s
            if self._waits is not None:
                self._waits(self.address, now - began_s, timeout_s)
            if now >= self._give_up_at:
                self._next()
            elif self._watch():
                continue
            if now >= self._send_at:
                try:
                    self._socket.send(frame if self._is_known else _frame(WhoServes(), who), zmq.NOBLOCK)
                    self._send_at = now + RESEND_S
                except zmq.Again:
                    self._poll(0.1, deadline, zmq.PollEvent.POLLOUT)
                    continue
            if self._poll(self._send_at - now, deadline, zmq.PollEvent.POLLIN):
                number, answer = decode_answer(self._socket.recv(zmq.NOBLOCK), kind)
                if number == request:
                    self._failed.clear()
                    self._outdated = ""
                    return answer
                if number == who and isinstance(answer, Serving):
                    self._judge(answer)
                elif number == 0 and isinstance(answer, Refused):
                    raise InputError(answer.message)
        self._watch()
        why = self._silence()
        self._next()
        raise BrokerUnavailableError(why)

    @property
    def _patience_s(self) -> float:
        """Time to wait for an answer from one address before the socket is replaced, seconds."""
        return RENEW_S if len(self._addresses) == 1 else RESEND_S

    def _judge(self, serving: Serving) -> None:
        """Decide from a broker's answer to `WhoServes` whether the broker gets the request.

        The broker's epoch must be at least the highest known epoch of the cluster. A standby reports epoch 0.
        """
        highest = (
            serving.epoch if self._epochs is None else self._epochs.highest(serving.cluster, serving.epoch)
        )
        self._is_known = serving.epoch >= max(highest, 1)
        self._send_at = 0.0
        if not self._is_known and not serving.epoch:
            self._outdated = f"no primary answers; the broker at {self.address} is a standby"
        elif not self._is_known:
            self._outdated = (
                f"the broker at {self.address} is at epoch {serving.epoch}, but a later broker of this "
                f"cluster has been at {highest}: no request was sent. "
                "Stop this broker, and start the later broker"
            )
        if not self._is_known:
            self._give_up_at = time.monotonic() + APART_S
            self._send_at = self._give_up_at

    def _poll(self, seconds: float, deadline: float, events: zmq.PollEvent) -> bool:
        """Wait until the socket is ready, its connection has an event, or the wait times out.

        Args:
            seconds: Longest duration of this wait, seconds.
            deadline: Latest end of this wait, seconds of `time.monotonic`; the earlier limit applies.
            events: Direction in which the socket must be ready: input or output.

        Returns:
            Whether the socket is ready.
        """
        now = time.monotonic()
        until = min(now + seconds, deadline, self._give_up_at)
        if self._waits is not None:
            until = min(until, now + WAITS_S)
        ready = dict(self._pollers[events].poll(int(1000 * max(0.0, until - now)) + 1))
        return self._socket in ready

    def _watch(self) -> bool:
        """Record events of the connection. Return whether the connection was lost or could not be opened."""
        has_gone = False
        while self._monitor.poll(0):
            from zmq.utils.monitor import recv_monitor_message  # loads asyncio, and is rarely needed

            event = recv_monitor_message(self._monitor)["event"]
            if event in (zmq.EVENT_DISCONNECTED, zmq.EVENT_CONNECT_RETRIED):
                has_gone = True
            else:
                self._failed.append(event)
                if event != zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
                    self._give_up_at = min(self._give_up_at, time.monotonic() + REFUSED_S)
        if has_gone:
            self._send_at = 0.0  # send as soon as there is a connection
            if len(self._addresses) > 1:
                self._give_up_at = min(self._give_up_at, self._dialled_s + APART_S)
        return has_gone

    def is_let_in(self, timeout_s: float) -> bool:
        """Return whether the broker accepts the connection with this key within `timeout_s`, seconds."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self._socket.poll(20, zmq.POLLOUT):
                return True
            self._watch()
            if zmq.EVENT_HANDSHAKE_FAILED_AUTH in self._failed:
                self.is_refused = True
                return False
        return False

    def _dial(self) -> None:
        self._dialled_s = time.monotonic()
        self._give_up_at, self._send_at = self._dialled_s + self._patience_s, 0.0
        self._is_known = len(self._addresses) == 1
        self._socket, self._monitor = connect_watched_dealer(
            self._context,
            self.address,
            self._pair,
            self._broker_public,
            zmq.EVENT_HANDSHAKE_FAILED_AUTH
            | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
            | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
            | zmq.EVENT_DISCONNECTED
            | zmq.EVENT_CONNECT_RETRIED,
        )
        self._pollers = {
            events: self._poller(events) for events in (zmq.PollEvent.POLLIN, zmq.PollEvent.POLLOUT)
        }

    def _poller(self, events: zmq.PollEvent) -> zmq.Poller:
        poller = zmq.Poller()
        poller.register(self._socket, events)
        poller.register(self._monitor, zmq.POLLIN)
        return poller

    def _hang_up(self) -> None:
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=0)

    def _next(self) -> None:
        """Replace the socket, and use the next address. libzmq does not reconnect after every disconnect."""
        self._hang_up()
        self._at = (self._at + 1) % len(self._addresses)
        self._dial()

    def _silence(self) -> str:
        """Return the error message if no answer arrives. It depends on the events since the last answer.

        A listener that cannot decrypt our messages disconnects immediately, so handshakes fail repeatedly. A
        broker that was killed or is slow causes only one or two failed handshakes.
        """
        failures, self._failed = self._failed, []
        outdated, self._outdated = self._outdated, ""
        hung_up = failures.count(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
        self.is_refused = len(failures) > hung_up
        if self.is_refused:
            return (
                f"the broker at {self.address} refuses the key in {self._keys}; use the broker's own --keys "
                "directory, or join with a token of `rlsched keys new`"
            )
        if hung_up >= MANY_HANG_UPS:
            return (
                f"the process at {self.address} does not have the broker key {self._keys}/broker.public; "
                "give the address of the broker with this key, or with --keys a directory with the key of "
                "the broker at this address"
            )
        starts = self._starting(self._addresses)
        if starts:
            return f"{is_starting(starts)}; try again in a moment"
        return outdated or nobody_answers(" or ".join(self._addresses))


def nobody_answers(address: str) -> str:
    """Return the error message for an address without a reachable broker."""
    return f"no broker answers at {address}; start one with `rlsched up` or `rlsched broker`"


def _frame(message: ClientRequest | Join, request: int) -> bytes:
    with what_cannot_be_sent():
        return encode(message, request)


@contextmanager
def what_cannot_be_sent() -> Iterator[None]:
    """Convert encoding errors in the `with` block to an `InputError` of one line.

    Raises:
        InputError: a text is not valid UTF-8, a number has too many digits, or a message is too long.
    """
    try:
        yield
    except WireError as error:
        raise InputError(str(error)) from error
    except OverflowError as error:
        raise InputError("a number is too large: expected at most 18 digits") from error
    except UnicodeEncodeError as error:
        raise InputError(
            f"{error.object[max(0, error.start - 20) : error.end]!r} is not valid UTF-8: expected text"
        ) from error
