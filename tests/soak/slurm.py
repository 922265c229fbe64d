"""A real Slurm on this machine as the system under test: slurmctld and two slurmd with four fake GPUs each.

Jobs are requeued after a failure of their node (`--requeue`), as rlsched's jobs are.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from rlsched.errors import InputError
from tests.soak.jobs import SECONDS, kill_9, strays
from tests.soak.systems import CONTROLLER, NODES, TARGETS, Found
from tests.support.online import real_slurm
from tests.support.online.cluster import until
from tests.support.online.real_slurm import RealSlurm, lacking

_STATES = {"COMPLETED": "completed", "FAILED": "failed", "CANCELLED": "cancelled"}
_LIVE = ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "REQUEUED")


class Slurm:
    """slurmctld and two slurmd.

    Args:
        directory: Folder for all files.

    Raises:
        InputError: a program or package is missing on this machine.
    """

    targets, run_times_s = TARGETS, SECONDS
    others: Mapping[str, Callable[[str], None]] = {}
    environment = "export RLSCHED_JOB=$SLURM_JOB_ID RLSCHED_ATTEMPT=${SLURM_RESTART_COUNT:-0} RLSCHED_RANK=0"

    def __init__(self, directory: Path) -> None:
        if lacking():
            raise InputError(lacking())
        self._slurm = RealSlurm(directory, NODES, exact=False)
        self._stopping: set[str] = set()

    def kill(self, name: str) -> None:
        """kill -9."""
        process = self._slurm.running[_of(name)]
        process.kill()
        process.wait(60.0)

    def stop(self, name: str) -> None:
        """SIGTERM."""
        self._stopping.add(_of(name))
        self._slurm.running[_of(name)].terminate()

    def restart_dead(self) -> None:
        """Restart processes that have exited."""
        for name, process in list(self._slurm.running.items()):
            if name in self._stopping:
                process.wait(60.0)
            if process.poll() is not None:
                self._slurm.start(name)
        self._stopping.clear()
        until(lambda: self._ask("scontrol", "ping").count(" UP") > 0, "slurmctld answers")

    def shims(self) -> dict[int, int]:
        """PID -> job of each slurmstepd."""
        found = {}
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_bytes().decode(errors="replace")
            except OSError:
                continue
            step = re.match(r"slurmstepd: \[(\d+)\.batch\]", words)
            if step:
                found[int(path.parent.name)] = int(step[1])
        return found

    def left(self) -> list[str]:
        """Processes of jobs."""
        return [f"process {pid}" for pid in self._strays()]

    def _strays(self) -> list[int]:
        """Processes of jobs, by their environments."""
        return strays(f"SLURM_CONF={self._slurm.config}", also="SLURM_JOB_ID=")

    def submit(self, plan: Path, acknowledged: Path) -> subprocess.Popen[bytes]:
        """Submit with sbatch; an unacknowledged job is submitted a second time, which makes a second job."""
        words = ("-m", "tests.soak.sbatch", str(plan), str(acknowledged))
        with (self._slurm.directory / "submitter.log").open("ab") as log:
            return subprocess.Popen([sys.executable, *words], stderr=log, env=self._slurm.environment)

    def live(self) -> set[int]:
        """Jobs that have not ended."""
        try:
            return {number for number, _, state, _, _ in self._all() if state in _LIVE}
        except subprocess.CalledProcessError:
            return {-1}

    def up(self) -> bool:
        """Whether both nodes are up."""
        states = self._ask("sinfo", "-h", "-N", "-p", "gpu", "-o", "%T").split()
        return sum(state in ("idle", "mixed", "allocated") for state in states) == len(NODES)

    def jobs(self) -> dict[int, Found]:
        """By number."""
        return {
            number: Found(token, _STATES.get(state, state.lower()), code, reason)
            for number, token, state, code, reason in self._all()
        }

    def _all(self) -> list[tuple[int, str, str, int | None, str]]:
        found: list[tuple[int, str, str, int | None, str]] = []
        for line in self._ask("scontrol", "show", "job", "-o").splitlines():
            said: dict[str, str] = dict(re.findall(r"(\w+)=(\S*)", line))
            if "JobId" in said:
                own, signalled = map(int, said["ExitCode"].split(":"))
                code = 128 + signalled if signalled else own
                found.append((int(said["JobId"]), said["JobName"], said["JobState"], code, said["Reason"]))
        return found

    def _ask(self, *words: str) -> str:
        asked = subprocess.run(
            words, capture_output=True, text=True, env=self._slurm.environment, check=False
        )
        if asked.returncode != 0 and words[0] == "scontrol" and words[1] == "show":
            asked.check_returncode()
        return asked.stdout

    def close(self) -> None:
        """Stop all processes, including jobs."""
        for pid in self._strays():
            kill_9(pid)
        self._slurm.close()


def _of(name: str) -> str:
    return real_slurm.CONTROLLER if name == CONTROLLER else name
