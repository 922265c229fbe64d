"""A thread that queries the broker repeatedly for a live screen, and sends commands between queries."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from rlsched.errors import RlschedError

if TYPE_CHECKING:
    from rlsched.client.client import Client

SLOW_S: Final = 2.0
"""Duration of a query after which the screen shows that the broker does not answer, seconds."""
REST: Final = 10.0
"""Minimum pause after a query, as a multiple of the query's duration. It limits the load on the broker."""
Fetch = Callable[["Client"], Any]


class Looking:
    """Queries the broker in a thread, so that the screen reacts to keys even if the broker does not answer.

    Args:
        reach: Function that creates the client; the thread calls it, and only the thread uses the client.
        every_s: Interval between queries, seconds.
        news: Function that the thread calls after each answer or error.

    Attributes:
        trouble: Reason why there is no new answer, in one line; "" if the last query was answered.
        said: Result of the last command (such as a cancellation), for the user.
    """

    def __init__(self, reach: Callable[[], Client], every_s: float, news: Callable[[], None]) -> None:
        self._reach, self._every_s, self._news = reach, every_s, news
        self._fetch: Fetch | None = None
        self._found: tuple[Fetch, Any, float] | None = None
        self._orders: deque[Callable[[Client], str]] = deque()
        self._asked = threading.Event()
        self._out_since: float | None = None
        self._is_over = False
        self._trouble = self.said = ""
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True, name="looking")

    def begin(self) -> None:
        """Start the thread."""
        self._thread.start()

    def end(self) -> None:
        """Stop the thread, without waiting for a pending query."""
        self._is_over = True
        self._asked.set()
        self._thread.join(0.2)

    def last_answer(self, fetch: Fetch) -> tuple[Any, float] | None:
        """Return the last answer to the query `fetch`, and the answer's time, Unix seconds; None: no answer.

        From this call on, the thread repeats the query `fetch`, and no longer the query of an earlier call.
        """
        if self._failure is not None:
            raise self._failure
        if fetch != self._fetch:
            self._fetch, self._trouble = fetch, ""
            self._asked.set()
        return self._found[1:] if self._found is not None and self._found[0] == fetch else None

    def order(self, order: Callable[[Client], str]) -> None:
        """Send a command (such as a cancellation) in the thread, then query the broker again."""
        self._orders.append(order)
        self._asked.set()

    @property
    def trouble(self) -> str:
        """Reason why there is no new answer, in one line; "" if the last query was answered."""
        since = self._out_since
        if not self._trouble and since is not None and time.monotonic() - since > SLOW_S:
            return f"the broker has not answered for {time.monotonic() - since:.0f} s"
        return self._trouble

    def _run(self) -> None:
        try:
            self._ask_on()
        except Exception as error:
            self._failure = error
            self._news()

    def _ask_on(self) -> None:
        with self._reach() as client:
            while not self._is_over:
                self._asked.clear()
                began_s = time.monotonic()
                self._turn(client)
                took_s = time.monotonic() - began_s
                self._asked.wait(self._every_s if self._trouble else max(self._every_s, REST * took_s))

    def _turn(self, client: Client) -> None:
        fetch = self._fetch
        self._out_since = time.monotonic()
        while self._orders:
            try:
                self.said = self._orders[0](client)
            except RlschedError as error:
                self.said = str(error)
            self._orders.popleft()
        try:
            if fetch is not None:
                self._found = (fetch, fetch(client), time.time())
            self._trouble = ""
        except RlschedError as error:
            self._trouble = str(error)
        self._out_since = None
        self._news()
