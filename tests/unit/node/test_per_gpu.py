"""One process for each GPU of a rank: signals reach each of them once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import rlsched_node.processes.per_gpu

COUNTS = """
import os, pathlib, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGUSR1])
here = pathlib.Path(sys.argv[1], os.environ["LOCAL_RANK"])
here.write_text("")
while signal.sigwait([signal.SIGTERM, signal.SIGUSR1]) == signal.SIGTERM:
    here.write_text(here.read_text() + "T")
sys.exit(3)
"""
PATIENCE_S = 60.0


def until(texts: list[str], folder: Path) -> None:
    """Wait until the processes have written these texts."""
    give_up_s = time.monotonic() + PATIENCE_S
    while (found := [one.read_text() for one in sorted(folder.iterdir())]) != texts:
        assert time.monotonic() < give_up_s, found
        time.sleep(0.01)


def test_signal_to_the_group_reaches_each_process_once(tmp_path: Path) -> None:
    words = [
        sys.executable,
        rlsched_node.processes.per_gpu.__file__,
        sys.executable,
        "-c",
        COUNTS,
        str(tmp_path),
    ]
    env = os.environ | {"LOCAL_WORLD_SIZE": "2", "RLSCHED_FIRST_RANK": "4"}
    process = subprocess.Popen(words, env=env, start_new_session=True)
    try:
        until(["", ""], tmp_path)
        process.send_signal(signal.SIGTERM)  # no process continues from here
        os.killpg(process.pid, signal.SIGTERM)
        until(["T", "T"], tmp_path)
        os.killpg(process.pid, signal.SIGUSR1)
        assert process.wait(PATIENCE_S) == 3
        until(["T", "T"], tmp_path)
    finally:
        process.kill()
        process.wait()
