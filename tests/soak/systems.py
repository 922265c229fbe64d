"""What a sweep shoots at: a cluster whose parts can be shot and started again; rlsched's own here."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from rlsched.errors import RlschedError
from tests.soak.jobs import all_pids, shims, strays
from tests.support.online.cluster import Cluster, until

CONTROLLER = "controller"
NODES = ("n0", "n1")
_ALL_JOBS = 1_000_000
"""More than a sweep submits: by default a client reads the latest 2,000 jobs."""
TARGETS = (
    (CONTROLLER,),
    ("node",),
    (CONTROLLER, "node"),
    ("shim",),
    ("command",),
    ("client",),
    (CONTROLLER, "shim"),
    ("node", "shim"),
    (CONTROLLER, "node", "node"),
    ("stopped node",),
    ("stopped controller",),
)
"""What is shot in a round, by turns, of any system."""
RESTART, REBOOT = "stopped cluster", "rebooted node"
OWN_TARGETS = ((RESTART,), (REBOOT,), (CONTROLLER, REBOOT))
"""And of rlsched's own."""
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_BOOTED = ("unshare", "--mount", "sh", "-c", f'mount --bind "$0" {_BOOT_ID} && exec "$@"')
"""Begins a command line: a file with a boot id, and the command that reads that one, as do its children."""


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
    targets: Sequence[Sequence[str]]
    """What is shot in each round, by turns."""
    others: Mapping[str, Callable[[str], None]]
    """What does the targets that no other method does to a node, by target."""

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


class _Machines(Cluster):
    """A cluster whose nodes each have a boot id of their own, and n1 ends its jobs when it is stopped.

    Args:
        directory: Everything is kept below it.
        has_boots: Whether nodes have such a boot id.
    """

    def __init__(self, directory: Path, *, has_boots: bool) -> None:
        self._boots = directory / "boots"
        self._boots.mkdir()
        self._boot_ids: dict[str, str] = {}
        self._has_boots = has_boots
        super().__init__(directory, nodes=NODES, broker_options=("--policy", "fifo-backfill"))

    def command(self, name: str, *args: str) -> list[str]:
        """A node's is started in a mount namespace of its own."""
        if name not in NODES:
            return super().command(name, *args)
        ends = ("--end-jobs-on-exit",) if name == NODES[-1] else ()
        if not self._has_boots:
            return super().command(name, *args, *ends)
        if name not in self._boot_ids:
            self._boot_ids[name] = str(uuid.uuid4())
            self._boot_file(name).write_text(self._boot_ids[name] + "\n")
        return [*_BOOTED, str(self._boot_file(name)), *super().command(name, *args, *ends)]

    def reboot(self, name: str) -> None:
        """End all processes of a node at once; the next start has another boot id.

        They are stopped first: no shim sees its command die, which it would write down.
        """
        stopped: set[int] = set()
        while found := set(self._of_boot(name)) - stopped:
            for pid in sorted(found):
                _send(pid, signal.SIGSTOP)
            stopped |= found
        for pid in sorted(stopped):
            _send(pid, signal.SIGKILL)
        self.running[name].wait(30.0)
        until(lambda: not self._of_boot(name), f"no process of {name} is left")
        del self._boot_ids[name]

    def _boot_file(self, name: str) -> Path:
        return self._boots / self._boot_ids[name]

    def _of_boot(self, name: str) -> list[int]:
        """Processes that read this node's boot id."""
        return [pid for pid in all_pids() if _boot_id_of(pid) == self._boot_ids[name]]


def _boot_id_of(pid: int) -> str:
    """The boot id that a process reads; "" of one that is gone."""
    try:
        return Path(f"/proc/{pid}/root{_BOOT_ID}").read_text().strip()
    except OSError:
        return ""


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def cannot_reboot() -> str:
    """Why nodes cannot have boot ids of their own on this machine; "" where they can."""
    if shutil.which("unshare") is None:
        return "a reboot of a node needs unshare(1)"
    with tempfile.NamedTemporaryFile() as file:
        tried = subprocess.run([*_BOOTED, file.name, "true"], capture_output=True, text=True, check=False)
    why = " ".join(tried.stderr.split())
    return f"a reboot of a node needs the right to mount: {why}" if tried.returncode else ""


class Ours:
    """rlsched: the broker is the controller.

    Args:
        directory: Everything is kept below it.

    Attributes:
        left_out: Why no node is rebooted; "" where that is done.
    """

    environment = ""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.left_out = cannot_reboot()
        self._cluster = _Machines(directory, has_boots=not self.left_out)
        self._stopping: set[str] = set()
        own = [targets for targets in OWN_TARGETS if not (self.left_out and REBOOT in targets)]
        self.targets: Sequence[Sequence[str]] = (*own, *TARGETS)
        self.others = {RESTART: self._stop_all, REBOOT: self._cluster.reboot}

    def kill(self, name: str) -> None:
        """kill -9."""
        self._cluster.kill(_ours(name))

    def stop(self, name: str) -> None:
        """SIGTERM."""
        self._stopping.add(_ours(name))
        self._cluster.running[_ours(name)].terminate()

    def _stop_all(self, node: str) -> None:  # noqa: ARG002 - it is all of them
        """Stop the broker, then the nodes, as `rlsched up` does, and wait."""
        for names in ((CONTROLLER,), NODES):
            for name in names:
                self.stop(name)
            for name in names:
                self._cluster.running[_ours(name)].wait(60.0)

    def mend(self) -> None:
        """Start again what is no more."""
        for name, process in list(self._cluster.running.items()):
            if name in self._stopping:
                process.wait(60.0)
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
                for job in client.jobs(finished=True, limit=_ALL_JOBS)
            }

    def close(self) -> None:
        """End everything."""
        self._cluster.close()


def _ours(name: str) -> str:
    return "broker" if name == CONTROLLER else name
