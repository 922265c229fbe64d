"""What a sweep shoots at: a cluster whose parts can be shot and started again; rlsched's own here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple, Protocol

from rlsched.errors import RlschedError
from tests.integration.cluster import Cluster
from tests.soak.jobs import shims, strays

CONTROLLER = "controller"
NODES = ("n0", "n1")


class Found(NamedTuple):
    """A job as the cluster says it is.

    Attributes:
        token: Its name.
        state: `completed`, `failed`, `cancelled`, or another word.
        exit_code: None where it has none.
        reason: One line.
    """

    token: str
    state: str
    exit_code: int | None
    reason: str


class System(Protocol):
    """A controller and two nodes with four GPUs each, as processes."""

    environment: str
    """Shell: sets RLSCHED_JOB, RLSCHED_ATTEMPT and RLSCHED_RANK where they are not set."""

    def kill(self, name: str) -> None:
        """kill -9 of the controller or a node's daemon."""

    def stop(self, name: str) -> None:
        """Tell it to stop, and do not wait."""

    def mend(self) -> None:
        """Start again what is no more; what was told to stop does so first."""

    def shims(self) -> dict[int, int]:
        """Process number -> job, of what watches a job on its node."""

    def strays(self) -> list[int]:
        """Processes of jobs, when all are over."""

    def submit(self, plan: Path, acknowledged: Path) -> subprocess.Popen[bytes]:
        """Begin to submit a round's jobs; each that is acknowledged is a line `token number`."""

    def live(self) -> set[int]:
        """Jobs that are not over; of nobody who answers, job -1."""

    def up(self) -> bool:
        """Whether both nodes are."""

    def jobs(self) -> dict[int, Found]:
        """Every job by number."""

    def close(self) -> None:
        """End everything."""


class Ours:
    """rlsched: the broker is the controller.

    Args:
        directory: Everything is kept below it.
    """

    environment = ""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._cluster = Cluster(directory, nodes=NODES, broker_options=("--policy", "fifo-backfill"))
        self._stopping: set[str] = set()

    def kill(self, name: str) -> None:
        """kill -9."""
        self._cluster.kill(_ours(name))

    def stop(self, name: str) -> None:
        """SIGTERM."""
        self._stopping.add(_ours(name))
        self._cluster.running[_ours(name)].terminate()

    def mend(self) -> None:
        """Start again what is no more."""
        for name, process in list(self._cluster.running.items()):
            if name in self._stopping:
                process.wait(30.0)
            if process.poll() is not None:
                self._cluster.start(name)
        self._stopping.clear()

    def shims(self) -> dict[int, int]:
        """By process number."""
        return {pid: job for pid, (job, _, _) in shims(self._directory).items()}

    def strays(self) -> list[int]:
        """By what is in their environments."""
        return strays(f"RLSCHED_ATTEMPT_DIR={self._directory}")

    def submit(self, plan: Path, acknowledged: Path) -> subprocess.Popen[bytes]:
        """By the client library; a second submission of a token is the same job."""
        words = (self._cluster.address, str(self._cluster.keys), str(plan), str(acknowledged))
        with (self._directory / "submitter.log").open("ab") as log:
            return subprocess.Popen([sys.executable, "-m", "tests.soak.submitter", *words], stderr=log)

    def live(self) -> set[int]:
        """Jobs that are not over."""
        try:
            with self._cluster.client(60.0) as client:
                return {job.job for job in client.jobs()}
        except RlschedError:
            return {-1}

    def up(self) -> bool:
        """Whether both nodes are."""
        with self._cluster.client(60.0) as client:
            return sum(node.state == "up" for node in client.nodes()) == len(NODES)

    def jobs(self) -> dict[int, Found]:
        """By number."""
        with self._cluster.client(60.0) as client:
            return {
                job.job: Found(job.name, job.state, job.exit_code, job.reason)
                for job in client.jobs(finished=True)
            }

    def close(self) -> None:
        """End everything."""
        self._cluster.close()


def _ours(name: str) -> str:
    return "broker" if name == CONTROLLER else name
