"""What each sender may take of the broker's loop: a rate, and a share of each turn.

A sender is a key, however many connections it has. Its budget fills with time. A message costs little of it,
one that is refused much more: to make out what is wrong, and to say so, takes the loop longest. One that
submits many jobs counts as many. Whose budget
is spent is not read until it has filled again; clients ask anew by themselves. What a key says beyond its
share of a turn waits for the next turns, behind what others say.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")
MAX_KNOWN = 10_000
"""Budgets that are kept; those who have not been heard for longest begin with a full one again."""


class SenderLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one key may say.

    Attributes:
        messages_per_s: Messages, in the long run; a table of jobs is one for each of them ...
        refusals_per_s: ... of which so many may be refused.
        burst_s: A key that has rested may say at once what is due in so long.
        a_turn: Messages in one turn of the loop, counted likewise; the others wait for the next.
        waiting: Messages that may wait for a turn; more are dropped.
        handshakes_a_turn: Handshakes of all who knock together, in one turn.
    """

    messages_per_s: float = 10_000.0
    refusals_per_s: float = 100.0
    burst_s: float = 3.0
    a_turn: int = 64
    waiting: int = 256
    handshakes_a_turn: int = 10


class Budgets:
    """Budgets by key, counted in messages.

    Args:
        limits: What one key may say.
        elapsed: A clock that never jumps, seconds.
    """

    def __init__(self, limits: SenderLimits, elapsed: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._full = limits.messages_per_s, limits.messages_per_s * limits.burst_s
        self._refusal = limits.messages_per_s / limits.refusals_per_s
        self._elapsed = elapsed
        self._left: dict[bytes, tuple[float, float]] = {}  # what was left, and when

    def has(self, key: bytes) -> bool:
        """Whether the key may be heard."""
        return key not in self._left or self._now(key) > 0.0

    def spend(self, key: bytes, messages: int = 1) -> None:
        """It was; what it said is as long as so many messages."""
        self._take(key, float(messages))

    def refused(self, key: bytes) -> None:
        """What it said was refused."""
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
    """What keys have said beyond their share of a turn.

    Args:
        limits: What one key may say.
    """

    def __init__(self, limits: SenderLimits) -> None:
        self._limits = limits
        self._waiting: dict[bytes, deque[T]] = {}
        self._taken: dict[bytes, int] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def begin(self) -> Iterator[T]:
        """Another turn: what waited for it, one by one, up to each key's share."""
        self._taken = {}
        for key, waiting in list(self._waiting.items()):
            while waiting and self._taken.get(key, 0) < self._limits.a_turn:
                self._taken[key] = self._taken.get(key, 0) + 1
                yield waiting.popleft()
            if not waiting:
                del self._waiting[key]

    def add(self, key: bytes, messages: int) -> None:
        """What the key has just said is as long as so many more messages."""
        self._taken[key] = self._taken.get(key, 0) + messages

    def is_due(self, key: bytes) -> bool:
        """Whether the key may say one more thing in this turn, which counts."""
        taken = self._taken.get(key, 0)
        if key in self._waiting or taken >= self._limits.a_turn:
            return False
        self._taken[key] = taken + 1
        return True

    def wait(self, key: bytes, said: T) -> bool:
        """Let it wait for the next turn. False: so many wait already that it is dropped."""
        waiting = self._waiting.setdefault(key, deque())
        if len(waiting) >= self._limits.waiting:
            return False
        waiting.append(said)
        return True
