"""Signal handlers are restored by the context manager, and worker processes end with their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rlsched.signals import END, on_signals
from tests.support.exited import has_exited
from tests.support.online.ranks import until

POOL = """
import multiprocessing, os, sys, time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from rlsched.signals import exit_with_parent

def work(folder):
    (Path(folder) / str(os.getpid())).touch()
    time.sleep(600)

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    with ProcessPoolExecutor(2, context, exit_with_parent) as pool:
        list(pool.map(work, [sys.argv[2]] * 2))
"""


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


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_killed_process_end(method: str, tmp_path: Path) -> None:
    script, folder = tmp_path / "pool.py", tmp_path / "workers"
    script.write_text(POOL)
    folder.mkdir()
    parent = subprocess.Popen([sys.executable, str(script), method, str(folder)])
    try:
        until(lambda: len(list(folder.iterdir())) == 2)
        workers = [int(one.name) for one in folder.iterdir()]
        assert not any(map(has_exited, workers))
    finally:
        parent.kill()
        parent.wait()
    until(lambda: all(map(has_exited, workers)))
