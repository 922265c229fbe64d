"""A real Slurm of this machine as what a sweep shoots at: slurmctld and two slurmd with four fake GPUs each.

Debian: `apt-get install slurmctld slurmd slurm-client munge`; it takes root. Jobs are told to be queued again
after a failure of their node (`--requeue`), as rlsched's are.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

from rlsched.errors import InputError
from tests.integration.cluster import until
from tests.soak.jobs import shoot, strays
from tests.soak.systems import CONTROLLER, NODES, Found

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "scontrol", "sinfo", "munge")
_CONFIG = """
ClusterName=soak
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
SlurmctldPort={port}
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool/%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.%n.pid
SwitchType=switch/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_min_interval=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
MaxJobCount=50000
MinJobAge=3600
KillWait=5
SlurmdParameters=config_overrides
NodeName=n0 NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs=64 RealMemory=1000 Gres=gpu:4
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs=64 RealMemory=1000 Gres=gpu:4
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
_STATES = {"COMPLETED": "completed", "FAILED": "failed", "CANCELLED": "cancelled"}
_LIVE = ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "REQUEUED")


def lacking() -> str:
    """What this machine lacks for a Slurm, "" if nothing."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    if os.geteuid() != 0:
        return "Slurm's daemons need root"
    if subprocess.run(["munge", "-n"], capture_output=True, check=False).returncode != 0:
        return "munged does not run"
    return ""


class Slurm:
    """slurmctld and two slurmd.

    Args:
        directory: Everything is kept below it.

    Raises:
        InputError: this machine lacks something.
    """

    environment = "export RLSCHED_JOB=$SLURM_JOB_ID RLSCHED_ATTEMPT=${SLURM_RESTART_COUNT:-0} RLSCHED_RANK=0"

    def __init__(self, directory: Path) -> None:
        if lacking():
            raise InputError(f"no Slurm here: {lacking()}")
        self._directory = directory
        for name in ("state", "spool/n0", "spool/n1", "dev"):
            (directory / name).mkdir(parents=True, exist_ok=True)
        port, first, second = _free_ports(3)
        host = socket.gethostname().partition(".")[0]
        self._config = directory / "slurm.conf"
        self._config.write_text(
            _CONFIG.format(host=host, port=port, directory=directory, first=first, second=second)
        )
        for gpu in range(4):
            (directory / "dev" / f"nvidia{gpu}").touch()
        (directory / "gres.conf").write_text(f"NodeName=n[0-1] Name=gpu File={directory}/dev/nvidia[0-3]\n")
        self._environment = {**os.environ, "SLURM_CONF": str(self._config)}
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._stopping: set[str] = set()
        for name in (CONTROLLER, *NODES):
            self._start(name)

    def _start(self, name: str) -> None:
        words = ["slurmctld", "-D"] if name == CONTROLLER else ["slurmd", "-D", "-N", name]
        with (self._directory / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [*words, "-f", str(self._config)], stdout=log, stderr=log, env=self._environment
            )

    def kill(self, name: str) -> None:
        """kill -9."""
        self._running[name].kill()
        self._running[name].wait(60.0)

    def stop(self, name: str) -> None:
        """SIGTERM."""
        self._stopping.add(name)
        self._running[name].terminate()

    def mend(self) -> None:
        """Start again what is no more."""
        for name, process in list(self._running.items()):
            if name in self._stopping:
                process.wait(60.0)
            if process.poll() is not None:
                self._start(name)
        self._stopping.clear()
        until(lambda: self._ask("scontrol", "ping").count(" UP") > 0, "slurmctld answers")

    def shims(self) -> dict[int, int]:
        """Each slurmstepd."""
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

    def strays(self) -> list[int]:
        """By what is in their environments."""
        return strays(f"SLURM_CONF={self._config}", also="SLURM_JOB_ID=")

    def submit(self, plan: Path, acknowledged: Path) -> subprocess.Popen[bytes]:
        """By sbatch; what was not acknowledged is submitted a second time, which makes a second job."""
        words = ("-m", "tests.soak.sbatch", str(plan), str(acknowledged))
        with (self._directory / "submitter.log").open("ab") as log:
            return subprocess.Popen([sys.executable, *words], stderr=log, env=self._environment)

    def live(self) -> set[int]:
        """Jobs that are not over."""
        try:
            return {number for number, _, state, _, _ in self._all() if state in _LIVE}
        except subprocess.CalledProcessError:
            return {-1}

    def up(self) -> bool:
        """Whether both nodes are."""
        states = self._ask("sinfo", "-h", "-N", "-o", "%T").split()
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
        asked = subprocess.run(words, capture_output=True, text=True, env=self._environment, check=False)
        if asked.returncode != 0 and words[0] == "scontrol" and words[1] == "show":
            asked.check_returncode()
        return asked.stdout

    def close(self) -> None:
        """End everything, jobs too."""
        for pid in self.strays():
            shoot(pid)
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            process.wait(60.0)


def _free_ports(count: int) -> list[int]:
    doors = [socket.socket() for _ in range(count)]
    for door in doors:
        door.bind(("127.0.0.1", 0))
    ports = [int(door.getsockname()[1]) for door in doors]
    for door in doors:
        door.close()
    return ports
