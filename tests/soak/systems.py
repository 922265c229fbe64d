"""The system under test of a sweep: a cluster whose parts can be killed and restarted; here rlsched."""

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
from tests.soak import sharing
from tests.soak.jobs import SECONDS, all_pids, shims, strays
from tests.soak.sharing import SharedGpus
from tests.support.online.cluster import Cluster, until

CONTROLLER = "controller"
NODES = ("n0", "n1")
_ALL_JOBS = 1_000_000
"""More jobs than a sweep submits: by default a client reads the latest 2,000."""
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
"""Targets of the rounds, in order, for any system."""
RESTART, REBOOT = "stopped cluster", "rebooted node"
OWN_TARGETS = ((RESTART,), (REBOOT,), (CONTROLLER, REBOOT))
"""Additional targets, for rlsched only."""
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_BOOTED = ("unshare", "--mount", "sh", "-c", f'mount --bind "$0" {_BOOT_ID} && exec "$@"')
"""Prefix of a command line. A file follows, then the command, which reads its boot id there."""


class Found(NamedTuple):
    """A job as the cluster reports it.

    Attributes:
        token: Name of the job.
        state: `completed`, `failed`, `cancelled`, or another word.
        exit_code: Exit code, or None.
        reason: Reason, one line.
    """

    token: str
    state: str
    exit_code: int | None
    reason: str


class System(Protocol):
    """A controller and two nodes with four GPUs each, as processes."""

    environment: str
    """Shell code that sets RLSCHED_JOB, RLSCHED_ATTEMPT and RLSCHED_RANK if the system does not."""
    run_times_s: Sequence[float]
    """Run times of jobs, seconds."""
    targets: Sequence[Sequence[str]]
    """Targets of the rounds, in order."""
    others: Mapping[str, Callable[[str], None]]
    """Functions for the targets without their own method, by target; the argument is a node."""

    def kill(self, name: str) -> None:
        """kill -9 of the controller or a node's daemon."""

    def stop(self, name: str) -> None:
        """Send a stop, without waiting."""

    def restart_dead(self) -> None:
        """Restart processes that have exited; wait first for processes that are stopping."""

    def shims(self) -> dict[int, int]:
        """PID -> job, of the processes that watch jobs on the nodes."""

    def left(self) -> list[str]:
        """Processes and other things that should not be left after all jobs have ended, a line each."""

    def submit(self, plan: Path, acknowledged: Path) -> subprocess.Popen[bytes]:
        """Start to submit a round's jobs; each acknowledged job is a line `token number`."""

    def live(self) -> set[int]:
        """Jobs that have not ended; job -1 if the controller is unreachable."""

    def up(self) -> bool:
        """Whether both nodes are up."""

    def jobs(self) -> dict[int, Found]:
        """Every job by number."""

    def close(self) -> None:
        """Stop all processes."""


class _Machines(Cluster):
    """A cluster whose nodes have separate boot ids; n1 ends its jobs when it is stopped.

    Args:
        directory: Folder for all files.
        has_boots: Whether nodes have separate boot ids.
        gpus: GPUs of nodes whose jobs share them; None: simulated GPUs, which no jobs share.
    """

    def __init__(self, directory: Path, *, has_boots: bool, gpus: SharedGpus | None = None) -> None:
        self._boots = directory / "boots"
        self._boots.mkdir()
        self._boot_ids: dict[str, str] = {}
        self._has_boots, self._gpus = has_boots, gpus
        if gpus is not None:
            self.gpu_options = ()
        options = ("--policy", "fifo-backfill") if gpus is None else gpus.broker_options
        super().__init__(directory, nodes=NODES, broker_options=options)

    def command(self, name: str, *args: str) -> list[str]:
        """A node is started in its own mount namespace."""
        if name not in NODES:
            return super().command(name, *args)
        ends = ("--end-jobs-on-exit",) if name == NODES[-1] else ()
        started = super().command(name, *args, *ends)
        if self._gpus is not None:
            started = ["env", *self._gpus.environment(name), *started, *self._gpus.options(name)]
        if not self._has_boots:
            return started
        if name not in self._boot_ids:
            self._boot_ids[name] = str(uuid.uuid4())
            self._boot_file(name).write_text(self._boot_ids[name] + "\n")
        return [*_BOOTED, str(self._boot_file(name)), *started]

    def reboot(self, name: str) -> None:
        """Kill all processes of a node at once; the next start has another boot id.

        The processes are stopped first, so that no shim sees and records the end of its command.
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
        if self._gpus is not None:
            self._gpus.reboot(name)
        del self._boot_ids[name]

    def _boot_file(self, name: str) -> Path:
        return self._boots / self._boot_ids[name]

    def _of_boot(self, name: str) -> list[int]:
        """Processes that read this node's boot id."""
        return [pid for pid in all_pids() if _boot_id_of(pid) == self._boot_ids[name]]


def _boot_id_of(pid: int) -> str:
    """The boot id that a process reads; "" if it has exited."""
    try:
        return Path(f"/proc/{pid}/root{_BOOT_ID}").read_text().strip()
    except OSError:
        return ""


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def cannot_reboot() -> str:
    """Why nodes cannot have separate boot ids on this machine; "" if they can."""
    if shutil.which("unshare") is None:
        return "a reboot of a node needs unshare(1)"
    with tempfile.NamedTemporaryFile() as file:
        tried = subprocess.run([*_BOOTED, file.name, "true"], capture_output=True, text=True, check=False)
    why = " ".join(tried.stderr.split())
    return f"a reboot of a node needs the right to mount: {why}" if tried.returncode else ""


class Ours:
    """rlsched: the broker is the controller.

    Args:
        directory: Folder for all files.
        shares: Whether jobs share GPUs, as `tests.soak.sharing` describes.
        only: Rounds with this target only; "": all targets.

    Attributes:
        left_out: Why no node is rebooted; "" if nodes are rebooted.
        gpus: GPUs of nodes whose jobs share them; None: no jobs share.
    """

    def __init__(self, directory: Path, *, shares: bool = False, only: str = "") -> None:
        self._directory, self._workload = directory, sharing.WORKLOAD if shares else ""
        self.left_out = cannot_reboot()
        self.gpus = SharedGpus(directory) if shares else None
        self.environment: str = self.gpus.job_environment if self.gpus is not None else ""
        self._cluster = _Machines(directory, has_boots=not self.left_out, gpus=self.gpus)
        self.run_times_s: Sequence[float] = sharing.SECONDS if shares else SECONDS
        self._stopping: set[str] = set()
        own = [targets for targets in OWN_TARGETS if not (self.left_out and REBOOT in targets)]
        self.targets: Sequence[Sequence[str]] = ((only,),) if only else (*own, *TARGETS)
        self.others: Mapping[str, Callable[[str], None]] = {
            RESTART: self._stop_all,
            REBOOT: self._cluster.reboot,
        }

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

    def restart_dead(self) -> None:
        """Restart processes that have exited."""
        for name, process in list(self._cluster.running.items()):
            if name in self._stopping:
                process.wait(60.0)
            if process.poll() is not None:
                self._cluster.start(name)
        self._stopping.clear()

    def shims(self) -> dict[int, int]:
        """PID -> job of each shim."""
        return {pid: job for pid, (job, _, _) in shims(self._directory).items()}

    def left(self) -> list[str]:
        """Processes of jobs, by their environments; if jobs share, also MPS processes and locked clocks."""
        found = [f"process {pid}" for pid in strays(f"RLSCHED_ATTEMPT_DIR={self._directory}")]
        return found if self.gpus is None else [*found, *self.gpus.left()]

    def submit(self, plan: Path, acknowledged: Path) -> subprocess.Popen[bytes]:
        """Submit with the client library; a second submission of a token is the same job."""
        words = (self._cluster.address, str(self._cluster.keys), str(plan), str(acknowledged), self._workload)
        with (self._directory / "submitter.log").open("ab") as log:
            return subprocess.Popen([sys.executable, "-m", "tests.soak.submitter", *words], stderr=log)

    def live(self) -> set[int]:
        """Jobs that have not ended."""
        try:
            with self._cluster.client(60.0) as client:
                return {job.job for job in client.jobs()}
        except RlschedError:
            return {-1}

    def up(self) -> bool:
        """Whether both nodes are up."""
        with self._cluster.client(60.0) as client:
            return sum(node.state == "up" for node in client.nodes()) == len(NODES)

    def jobs(self) -> dict[int, Found]:
        """Every job by number."""
        with self._cluster.client(60.0) as client:
            return {
                job.job: Found(job.name, job.state, job.exit_code, job.reason)
                for job in client.jobs(finished=True, limit=_ALL_JOBS)
            }

    def close(self) -> None:
        """Stop all processes."""
        self._cluster.close()


def _ours(name: str) -> str:
    return "broker" if name == CONTROLLER else name
