"""Limits for each sender's use of the broker's loop: a rate of messages, and a maximum per turn of the loop.

A sender is a key, with any number of connections. Its budget refills with time. A message that submits many
jobs costs as much as one message per job, and a refused message costs much more. Messages of a sender without
budget are dropped; clients repeat them. Messages above the maximum per turn (`SenderLimits.a_turn`) wait for
later turns, behind the messages of other keys.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")
MAX_KNOWN = 10_000
"""Maximum number of budgets in memory. If there are more, the budget of the key that has been silent longest
is removed, so that the budget of this key is full again."""


class SenderLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one key.

    Attributes:
        messages_per_s: Long-term rate of messages, 1/s. A message that submits many jobs counts as one
            message per job; this also applies to `a_turn`.
        refusals_per_s: Long-term rate of refused messages, 1/s.
        burst_s: Capacity of the budget, as the time in which an empty budget refills, seconds.
        a_turn: Maximum number of messages read in one turn of the loop. Later turns read the remaining
            messages.
        waiting: Maximum number of messages that wait for a turn; further messages are dropped.
        handshakes_a_turn: Maximum number of handshakes of all peers together in one turn.
    """

    messages_per_s: float = 10_000.0
    refusals_per_s: float = 100.0
    burst_s: float = 3.0
    a_turn: int = 64
    waiting: int = 256
    handshakes_a_turn: int = 10


class Budgets:
    """The remaining budget of each key, counted in messages.

    Args:
        limits: Limits for one key.
        elapsed: A monotonic clock, seconds.
    """

    def __init__(self, limits: SenderLimits, elapsed: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._full = limits.messages_per_s, limits.messages_per_s * limits.burst_s
        self._refusal = limits.messages_per_s / limits.refusals_per_s
        self._elapsed = elapsed
        self._left: dict[bytes, tuple[float, float]] = {}  # budget left, and the time of this value

    def has_budget(self, key: bytes) -> bool:
        """Return whether a key has budget left."""
        return key not in self._left or self._now(key) > 0.0

    def spend(self, key: bytes, messages: int = 1) -> None:
        """Charge a key for a message that costs as much as `messages` messages."""
        self._take(key, float(messages))

    def charge_refusal(self, key: bytes) -> None:
        """Charge a refused message to its key."""
        self._take(key, self._refusal)

    def _now(self, key: bytes) -> float:
        left, at_s = self._left.get(key, (self._full, 0.0))
        return min(self._full, left + (self._elapsed() - at_s) * self._rate)

    def _take(self, key: bytes, cost: float) -> None:
        left = self._now(key) - cost
        self._left.pop(key, None)
        self._left[key] = left, self._elapsed()
        if len(self._left) > MAX_KNOWN:
            del self._left[next(iter(self._left))]


class Turns(Generic[T]):
    """Messages that wait because their keys have reached their maximum per turn (`SenderLimits.a_turn`).

    Args:
        limits: Limits for one key.
    """

    def __init__(self, limits: SenderLimits) -> None:
        self._limits = limits
        self._waiting: dict[bytes, deque[T]] = {}
        self._taken: dict[bytes, int] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def begin(self) -> Iterator[T]:
        """Begin the loop's next turn. Yield waiting messages, up to the maximum per turn of each key."""
        self._taken = {}
        for key, waiting in list(self._waiting.items()):
            while waiting and self._taken.get(key, 0) < self._limits.a_turn:
                self._taken[key] = self._taken.get(key, 0) + 1
                yield waiting.popleft()
            if not waiting:
                del self._waiting[key]

    def add(self, key: bytes, messages: int) -> None:
        """Count `messages` more messages of a key in this turn of the loop, such as one per submitted job."""
        self._taken[key] = self._taken.get(key, 0) + messages

    def is_due(self, key: bytes) -> bool:
        """If one more message of a key may be handled in this turn of the loop, count it and return True."""
        taken = self._taken.get(key, 0)
        if key in self._waiting or taken >= self._limits.a_turn:
            return False
        self._taken[key] = taken + 1
        return True

    def wait(self, key: bytes, said: T) -> bool:
        """Queue a message for a later turn of the loop. Return False if too many wait, and it is dropped."""
        waiting = self._waiting.setdefault(key, deque())
        if len(waiting) >= self._limits.waiting:
            return False
        waiting.append(said)
        return True
