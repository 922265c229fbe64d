"""A broker's socket with scripted answers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from rlsched.transport.keys import KeyHome
from rlsched.transport.router import Transport
from rlsched.wire.messages import (
    ClientReply,
    ClientRequest,
    Ok,
)

Script = Callable[[ClientRequest], "ClientReply | None"]


class Stub:
    """A transport whose messages a script answers, in a thread; None means no answer."""

    def __init__(self, home: Path) -> None:
        self.heard: list[tuple[int, ClientRequest]] = []
        self.script: Script = lambda _: Ok()
        self._transport = Transport("tcp://127.0.0.1:0", KeyHome(home))
        self.address = self._transport.address
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while not self._stopping.is_set():
            for heard in self._transport.receive(10, 10)[0]:
                self.heard.append((heard.envelope.request, heard.envelope.message))  # type: ignore[arg-type]
                answer = self.script(heard.envelope.message)  # type: ignore[arg-type]
                if answer is not None:
                    self._transport.reply(heard.route, heard.envelope.request, answer)

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._transport.close()
