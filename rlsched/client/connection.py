"""A client's connection: a request goes out until it is answered, and a silence is explained."""

from __future__ import annotations

import time

import zmq
from zmq.utils.monitor import recv_monitor_message

from rlsched.broker.keys import KeyPair
from rlsched.errors import BrokerUnavailableError, InputError, WireError
from rlsched.wire.dealer import connect_dealer
from rlsched.wire.messages import ClientRequest, Join, Refused, decode, encode

RESEND_S = 2.0
RENEW_S = 10.0
"""Without an answer for so long, or for the whole of a call, another socket is taken."""
MANY_HANG_UPS = 3


class Connection:
    """One socket to a broker, replaced where it does not help itself.

    Args:
        address: tcp://HOST:PORT.
        pair: This side's keys.
        broker_public: The broker's public key, z85.
        keys: Where the keys are from, for messages.

    Attributes:
        is_refused: The last call came to nothing because the broker does not let this key in.
    """

    def __init__(self, address: str, pair: KeyPair, broker_public: bytes, keys: str) -> None:
        self.address, self._pair, self._broker_public, self._keys = address, pair, broker_public, keys
        self.is_refused = False
        self._next_request = 1
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._dial()

    def close(self) -> None:
        """Let go of it."""
        self._hang_up()
        self._context.destroy(linger=0)

    def ask(self, message: ClientRequest | Join, timeout_s: float) -> object:
        """Send until answered; the message may arrive twice. Returns the answer, which may be a `Refused`.

        Raises:
            InputError: it cannot be sent, or the broker does not take it from this key.
            BrokerUnavailableError: nothing came in time.
            WireError: what came is malformed.
        """
        request, self._next_request = self._next_request, self._next_request + 1
        frame = _frame(message, request)
        now = time.monotonic()
        deadline, renew_at, send_at = now + timeout_s, now + RENEW_S, 0.0
        while (now := time.monotonic()) < deadline:
            if now >= renew_at:
                self._renew()
                renew_at, send_at = now + RENEW_S, 0.0
            if now >= send_at:
                try:
                    self._socket.send(frame, zmq.NOBLOCK)
                    send_at = now + RESEND_S
                except zmq.Again:
                    self._socket.poll(min(100, int(1000 * (deadline - now))), zmq.POLLOUT)
                    continue
            if self._socket.poll(int(1000 * (min(send_at, deadline) - now)) + 1, zmq.POLLIN):
                envelope = decode(self._socket.recv(zmq.NOBLOCK))
                if envelope.request == request:
                    self._failures()
                    return envelope.message
                if envelope.request == 0 and isinstance(envelope.message, Refused):
                    raise InputError(envelope.message.message)
        why = self._silence()
        self._renew()
        raise BrokerUnavailableError(why)

    def is_let_in(self, timeout_s: float) -> bool:
        """Whether the broker lets this key in."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self._socket.poll(20, zmq.POLLOUT):
                return True
            if zmq.EVENT_HANDSHAKE_FAILED_AUTH in self._failures():
                self.is_refused = True
                return False
        return False

    def _dial(self) -> None:
        self._socket = connect_dealer(self._context, self.address, self._pair, self._broker_public)
        self._refusals = self._socket.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_FAILED_AUTH
            | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
            | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        )

    def _hang_up(self) -> None:
        self._socket.disable_monitor()
        self._refusals.close(linger=0)
        self._socket.close(linger=0)

    def _renew(self) -> None:
        """Another socket: libzmq does not dial again after every end of a connection."""
        self._hang_up()
        self._dial()

    def _failures(self) -> list[int]:
        """Handshakes that failed since this was last asked."""
        events = []
        while self._refusals.poll(0):
            events.append(recv_monitor_message(self._refusals)["event"])
        return events

    def _silence(self) -> str:
        """Why nothing came, from what the connection went through since the last answer.

        A listener that cannot decrypt what we say hangs up at once, so we fail again and again; a broker that
        is killed or slow fails a handshake or two.
        """
        failures = self._failures()
        hung_up = failures.count(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
        self.is_refused = len(failures) > hung_up
        if self.is_refused:
            return (
                f"the broker at {self.address} refuses the key in {self._keys}; use the broker's own --keys "
                "directory, or join with a token of `rlsched keys new`"
            )
        if hung_up >= MANY_HANG_UPS:
            return (
                f"what listens at {self.address} is not the broker of {self._keys}/broker.public; "
                "give that broker's address, or the --keys directory of this one"
            )
        return nobody_answers(self.address)


def nobody_answers(address: str) -> str:
    """What to tell those who reach no broker."""
    return f"no broker answers at {address}; start one with `rlsched up` or `rlsched broker`"


def _frame(message: ClientRequest | Join, request: int) -> bytes:
    try:
        return encode(message, request)
    except WireError as error:
        raise InputError(str(error)) from error
    except UnicodeEncodeError as error:
        raise InputError(
            f"{error.object[max(0, error.start - 20) : error.end]!r} is not valid UTF-8: expected text"
        ) from error
