"""Who asks the broker beside a screen: what is looked at, again and again, and orders in between."""

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
"""A question that is out for longer is told of."""
REST: Final = 10.0
"""The pause after a look, as a multiple of how long that took: a broker has more to do than to answer."""
Look = Callable[["Client"], Any]


class Looking:
    """Asks in a thread of its own: a broker that does not answer holds no key up.

    Args:
        reach: Makes the client, which that thread alone uses.
        every_s: How often to look.
        news: Called, in that thread, when there is something new.

    Attributes:
        trouble: Why there is nothing new, in a line; "" where there is.
        said: What came of the last order.
    """

    def __init__(self, reach: Callable[[], Client], every_s: float, news: Callable[[], None]) -> None:
        self._reach, self._every_s, self._news = reach, every_s, news
        self._look: Look | None = None
        self._found: tuple[Look, Any, float] | None = None
        self._orders: deque[Callable[[Client], str]] = deque()
        self._asked = threading.Event()
        self._out_since: float | None = None
        self._is_over = False
        self._trouble = self.said = ""
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True, name="looking")

    def begin(self) -> None:
        """Start to ask."""
        self._thread.start()

    def end(self) -> None:
        """Ask no more. A question that is out is not waited for."""
        self._is_over = True
        self._asked.set()
        self._thread.join(0.2)

    def at(self, look: Look) -> tuple[Any, float] | None:
        """What this look has found last, and when, Unix seconds; None: nothing yet. It is repeated."""
        if self._failure is not None:
            raise self._failure
        if look != self._look:
            self._look, self._trouble = look, ""
            self._asked.set()
        return self._found[1:] if self._found is not None and self._found[0] == look else None

    def order(self, order: Callable[[Client], str]) -> None:
        """Carry something out, and look again."""
        self._orders.append(order)
        self._asked.set()

    @property
    def trouble(self) -> str:
        """Why there is nothing new, in a line; "" where there is."""
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
        look = self._look
        self._out_since = time.monotonic()
        while self._orders:
            try:
                self.said = self._orders[0](client)
            except RlschedError as error:
                self.said = str(error)
            self._orders.popleft()
        try:
            if look is not None:
                self._found = (look, look(client), time.time())
            self._trouble = ""
        except RlschedError as error:
            self._trouble = str(error)
        self._out_since = None
        self._news()
