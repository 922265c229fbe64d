"""The clock that tests move: every clock of Python follows it, and no wait for a length of time does."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.moved_clock import MovedClock, needs_moved_clock

pytestmark = needs_moved_clock
CLOCKS = (
    "import json, subprocess, sys, time; "
    "print(json.dumps([time.time(), time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME), "
    "time.process_time()]), flush=True); "
)
HOUR_S = 3600.0


@pytest.fixture
def clock(tmp_path: Path) -> MovedClock:
    return MovedClock(tmp_path / "clock")


def clocks() -> list[float]:
    return [time.time(), time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME), 0.0]


def test_every_clock_is_ahead_also_in_child_interpreters(clock: MovedClock) -> None:
    child = "subprocess.run([sys.executable, '-I', '-c', sys.argv[1]], env={}, check=True)"
    clock.advance(HOUR_S)
    before = clocks()
    words = clock.command(CLOCKS + child, CLOCKS)
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    after = clocks()
    lines = [json.loads(line) for line in said.splitlines()]
    assert len(lines) == 2
    for *moving, cpu_s in lines:
        for early_s, found_s, late_s in zip(before, moving, after, strict=False):
            assert early_s <= found_s - HOUR_S <= late_s
        assert cpu_s < HOUR_S


WAITS = """
import signal, sys, threading, time
for wait in (
    lambda: time.sleep(0.01),
    lambda: threading.Event().wait(0.01),
    lambda: signal.sigtimedwait({signal.SIGUSR1}, 0.01),
):
    wait()
busy = threading.Thread(target=lambda: [None for _ in range(10**6)])  # waits for the lock of the interpreter
busy.start()
busy.join()
"""


def test_waits_have_their_real_length(clock: MovedClock) -> None:
    clock.advance(HOUR_S)
    subprocess.run(clock.command(WAITS), check=True, timeout=60.0)


def test_wait_for_a_signal_ends_when_the_clock_is_moved_past_its_end(clock: MovedClock) -> None:
    wait = (
        "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1]); print(flush=True); "
        "found = signal.sigtimedwait([signal.SIGUSR1], 3000.0); print(found and found.si_signo, flush=True)"
    )
    for is_moved, said in ((True, "None\n"), (False, f"{int(signal.SIGUSR1)}\n")):
        with subprocess.Popen(clock.command(wait), stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            child.stdout.readline()
            while is_moved and child.poll() is None:  # it may not wait yet when the clock is first moved
                clock.advance(HOUR_S)
                time.sleep(0.02)
            child.send_signal(signal.SIGUSR1)
            assert child.stdout.readline() == said
