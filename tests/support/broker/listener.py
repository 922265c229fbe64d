"""A socket that counts its connections."""

from __future__ import annotations

import threading
from collections.abc import Callable

import zmq

from rlsched.transport.keys import KeyHome


class Listener:
    """A broker's socket in a thread, with scripted answers and without any limit."""

    def __init__(self, home: KeyHome, answer: Callable[[int, bytes], bytes]) -> None:
        self._context = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.curve_server = True
        self._router.curve_publickey, self._router.curve_secretkey = home.broker()
        self.address = f"tcp://127.0.0.1:{self._router.bind_to_random_port('tcp://127.0.0.1')}"
        self._answer, self._stopping = answer, threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        heard = 0
        while not self._stopping.is_set():
            if self._router.poll(10):
                route, frame = self._router.recv_multipart()
                self._router.send_multipart([route, self._answer(heard, frame)])
                heard += 1

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._router.close(linger=0)
        self._context.term()
