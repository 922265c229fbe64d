"""Signal handlers are restored: by the context manager, and by the verbs that use it."""

from __future__ import annotations

import os
import signal

import pytest

from rlsched.signals import END, on_signals


def test_handler_is_called_and_then_the_previous_one_is_restored() -> None:
    seen: list[int] = []
    outer: list[int] = []
    with on_signals(lambda number, _: outer.append(number), [signal.SIGTERM]):
        with on_signals(lambda number, _: seen.append(number)):
            for number in END:
                os.kill(os.getpid(), number)
        os.kill(os.getpid(), signal.SIGTERM)
    assert (seen, outer) == ([signal.SIGTERM, signal.SIGINT], [signal.SIGTERM])


def test_exception_restores_them_too() -> None:
    before = signal.getsignal(signal.SIGTERM)

    def end(number: int, _: object) -> None:
        raise InterruptedError(number)

    with pytest.raises(InterruptedError), on_signals(end):
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_empty_list_of_signals_is_not_the_default() -> None:
    before = [signal.getsignal(number) for number in END]
    with on_signals(lambda *_: None, []):
        assert [signal.getsignal(number) for number in END] == before
