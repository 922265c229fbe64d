"""`rlsched up` as a process."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from tests.support.online.cluster import DEADLINE_S, RLSCHED, until


class Up:
    """`rlsched up` with 2 nodes of 4 simulated GPUs under `qssf-backfill`, unless other options are given.

    Attributes:
        directory: Directory of the journal, logs and job output.
        keys: Key directory.
        output: Output of the process.
        process: The process.
    """

    def __init__(self, directory: Path, *options: str) -> None:
        self.directory, self.keys = directory / "up", directory / "home"
        directory.mkdir(exist_ok=True)
        self.output = directory / "up.txt"
        place = ("--address", "tcp://127.0.0.1:0", "--dir", str(self.directory), "--keys", str(self.keys))
        usual = ("--nodes", "2", "--gpus", "4", "--policy", "qssf-backfill", "--decision-budget-ms", "10000")
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [*RLSCHED, "up", *place, *usual, *options],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )

    @property
    def broker(self) -> Path:
        """Directory of the broker."""
        return self.directory / "broker"

    def wait_ready(self) -> str:
        """Wait until the cluster is up, however long its kernels compile; returns the broker's address."""
        until(
            lambda: "ready" in self.output.read_text() or self.process.poll() is not None,
            "it is up",
            progress=lambda: self.output.stat().st_size,
        )
        assert self.process.poll() is None, self.output.read_text() + self._logs()
        return (self.broker / "address").read_text().strip()

    def _logs(self) -> str:
        """Return the logs, for the message of a failure."""
        logs = sorted(self.directory.glob("*.log"))
        return "\n".join(f"== {path.name}\n{path.read_text()}" for path in logs)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Stop the cluster; returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(DEADLINE_S)
