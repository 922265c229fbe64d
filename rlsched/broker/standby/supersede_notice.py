"""Orders the previous primary to stop after a take-over, as soon as it is reachable."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing

from rlsched.broker.base.entries import BrokerStarted
from rlsched.errors import RlschedError
from rlsched.transport.connection import Connection
from rlsched.transport.keys import KeyHome
from rlsched.wire.messages import LaterBroker, Serving

ASK_S = 1.0
TELL_S = 2.0
"""Pause between attempts to reach the previous primary, seconds."""


class Telling:
    """Sends `LaterBroker` to the previous primary repeatedly, so that the previous primary stops.

    Args:
        of: Address of the previous primary.
        home: Key directory.
        started: Entry that began this broker's epoch.
        supersede: Function that is called with the previous primary's epoch, if it is higher than this
            broker's.
        say: Function that logs a line, called when the previous primary has received the message.
    """

    def __init__(
        self,
        of: str,
        home: KeyHome,
        started: BrokerStarted,
        supersede: Callable[[int], None],
        say: Callable[[str], None],
    ) -> None:
        self._of, self._home, self._supersede, self._say = of, home, supersede, say
        self._message = LaterBroker(cluster=started.cluster, epoch=started.epoch)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="telling", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        with closing(
            Connection(self._of, self._home.client(), self._home.broker_public(), str(self._home.directory))
        ) as connection:
            while not self._stopping.is_set():
                try:
                    answer = connection.ask(self._message, Serving, ASK_S)
                    self._handle_answer(answer)
                except RlschedError:  # the previous primary is unreachable, as expected
                    pass
                self._stopping.wait(TELL_S)

    def _handle_answer(self, answer: object) -> None:
        if isinstance(answer, Serving) and answer.cluster == self._message.cluster:
            if answer.epoch > self._message.epoch:
                self._supersede(answer.epoch)
            elif answer.epoch < self._message.epoch:
                self._say(f"the broker at {self._of}, at epoch {answer.epoch}, received the order to stop")
