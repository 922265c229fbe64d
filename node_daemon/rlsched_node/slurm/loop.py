"""A loop that waits for descriptors, times and signals."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import selectors
import signal
import time
from collections.abc import Callable
from typing import Any

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class Loop:
    """Calls functions when descriptors are ready, when times have come, and after signals.

    Attributes:
        on_signal: Function that is called with each received signal, before the functions of descriptors;
            None: signals wait until the function is set.
    """

    def __init__(self) -> None:
        self.on_signal: Callable[[int], None] | None = None
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._signals: list[int] = []

    def watch(self, fd: Any, events: int, call: Callable[[], object]) -> None:
        """Call a function whenever a descriptor is ready for `events`. 0: stop watching the descriptor."""
        try:
            key = self._selector.get_key(fd)
        except KeyError:
            if events:
                self._selector.register(fd, events, call)
            return
        if not events:
            self._selector.unregister(fd)
        elif (key.events, key.data) != (events, call):
            self._selector.modify(fd, events, call)

    def at(self, when_s: float, call: Callable[[], None]) -> None:
        """Call a function at the time `when_s`, monotonic seconds."""
        heapq.heappush(self._timers, (when_s, next(self._numbers), call))

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Call a function after `seconds`."""
        self.at(time.monotonic() + seconds, call)

    def listen(self, *numbers: int) -> None:
        """Receive these signals. Call this method only once."""
        self._wake_fd, write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
        self.watch(self._wake_fd, READ, self._drain)
        for number in numbers:
            signal.signal(number, lambda number, _: self._signals.append(number))

    def turn(self, within_s: float = 60.0) -> None:
        """Wait for the next event, at most `within_s` seconds, and call the functions that are due."""
        if self._timers:
            within_s = min(within_s, self._timers[0][0] - time.monotonic())
        ready = self._selector.select(max(within_s, 0.0))
        self._handle_signals()
        for key, _ in ready:
            if self._selector.get_map().get(key.fd) is key:  # a function called before may have closed it
                key.data()
        while self._timers and self._timers[0][0] <= time.monotonic():
            heapq.heappop(self._timers)[2]()

    def _handle_signals(self) -> None:
        while self._signals and self.on_signal is not None:
            self.on_signal(self._signals.pop(0))

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake_fd, 4096):
                pass
        self._handle_signals()  # the bytes of signals since the last check are drained now
