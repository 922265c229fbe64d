"""A running cluster and a user at a shell."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from rlsched.client.client import Client
from rlsched.errors import InputError
from tests.support.online.cluster import DEADLINE_S, RLSCHED, until


class Place:
    """A running cluster, a folder with scripts, and a user at a shell."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.python = folder, sys.executable
        self.home = folder / "home"
        for name, text in (("train.sh", "sleep 0.2"), ("quick.sh", "true")):
            (folder / name).write_text(f"#!/bin/bash\n#SBATCH --mem=1G\n{text}\n", encoding="utf-8")
        verb = folder / "bin" / "rlsched"
        verb.parent.mkdir()
        verb.write_text(f'#!/bin/sh\nexec {sys.executable} -m rlsched "$@"\n', encoding="utf-8")
        verb.chmod(0o755)
        self.log = folder / "up.txt"
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [
                    *(*RLSCHED, "up", "--nodes", "2", "--gpus", "2", "--policy", "qssf-backfill"),
                    *("--gpu-type", "NVIDIA A100-SXM4-40GB"),
                    *("--keys", str(self.home), "--address", "tcp://127.0.0.1:0"),
                ],
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        until(lambda: "ready" in self.log.read_text() or self.process.poll() is not None, "it is up")
        assert self.process.poll() is None, self.log.read_text()
        self.address = (self.home / "up" / "broker" / "address").read_text().strip()
        self.client = Client(self.address, home=self.home)

    def type(self, line: str) -> subprocess.CompletedProcess[str]:
        """Type a line into a shell."""
        env = os.environ | {"RLSCHED_HOME": str(self.home), "RLSCHED_BROKER": self.address}
        env["PATH"] = f"{self.folder / 'bin'}:{Path(self.python).parent}:{env['PATH']}"
        return subprocess.run(
            ["sh", "-c", line],
            cwd=self.folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )

    def with_numbers(self, line: str) -> str:
        """The line with the numbers of existing jobs."""
        if "RUN" in line.split("RUNNING")[0]:
            job = self.client.submit(["sleep", "600"], name="runs")
            until(lambda: self.client.job(job).state == "running", "it runs")
            line = re.sub(r"\bRUN\b", str(job), line)
        if "ARRAY" in line:
            array = self.client.submit(["sleep", "600"], name="many", array="0-3")
            until(lambda: len(self.client.jobs()) > 2, "its tasks run")
            line = line.replace("ARRAY", str(array))
        if "JOB" in line:
            line = re.sub(r"\bJOB\b", str(self.client.submit(["true"], name="waits", hold=True)), line)
        return line

    def stop(self) -> None:
        """Stop the cluster."""
        self.client.close()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(DEADLINE_S)

    def clear(self) -> None:
        """Cancel all jobs and wait until none waits or runs."""
        for job in self.client.jobs():
            with suppress(InputError):  # it has just ended
                self.client.cancel(job.job)
        until(lambda: not self.client.jobs(), "all jobs have ended")
