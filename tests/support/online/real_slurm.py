"""A real Slurm of this machine with fake GPUs: slurmctld and some slurmd on loopback, as root.

Debian: `apt-get install slurmctld slurmd slurm-client munge`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from rlsched.engine.facts import SlurmJob, jobs_of
from tests.support.online.cluster import until
from tests.support.ports import free_addresses

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "squeue", "sinfo", "scontrol", "scancel", "munge", "munged")
_CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
SlurmctldPort={controller_port}
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
{plugins}
ReturnToService=2
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_min_interval=0,default_queue_depth=1000,sched_interval=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PriorityType=priority/basic
GresTypes=gpu
MaxJobCount=50000
MaxArraySize=1001
MinJobAge=3600
MessageTimeout=30
KillWait=2
SlurmdParameters=config_overrides
"""
CONTROLLER = "slurmctld"
REST = "slurmrestd"
_REST_OPTIONS = ("-a", "rest_auth/local", "-s", "openapi/v0.0.38")
"""Options that need no slurmdbd; the default plugins do."""


def lacking() -> str:
    """Missing requirements of this machine for a Slurm, "" if none."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"no Slurm here: not installed: {', '.join(missing)}"
    return "" if os.geteuid() == 0 else "no Slurm here: its daemons need root"


def start_munged() -> None:
    """Start Slurm's daemon for authentication if it does not run."""
    if subprocess.run(["munge", "-n"], capture_output=True, check=False).returncode == 0:
        return
    for path, mode in (("/run/munge", "0755"), ("/var/log/munge", "0700"), ("/var/lib/munge", "0700")):
        subprocess.run(["install", "-d", "-o", "munge", "-g", "munge", "-m", mode, path], check=True)
    subprocess.run(["su", "-s", "/bin/sh", "munge", "-c", "/usr/sbin/munged"], check=True)
    answers = ["munge", "-n"]
    until(
        lambda: subprocess.run(answers, capture_output=True, check=False).returncode == 0,
        "munged answers",
    )


class RealSlurm:
    """A Slurm with one partition `gpu`, and one `other` of the last node.

    Args:
        directory: Directory of all files.
        nodes: Number of nodes, called `n1` and so on; or their names.
        gpus: GPUs of each node.
        plugin: Text of job_submit.lua; None: no plugin.
        exact: Give each GPU a separate GRES type (`i0`, `i1`, ...), so that jobs can choose it.
        settings: Further lines of slurm.conf.

    Attributes:
        environment: With `SLURM_CONF`.
        running: slurmctld and each slurmd, by its node.
    """

    def __init__(
        self,
        directory: Path,
        nodes: int | Sequence[str] = 4,
        gpus: int = 4,
        plugin: str | None = None,
        *,
        exact: bool = True,
        settings: str = "",
    ) -> None:
        self.directory = directory
        self.nodes = [f"n{k}" for k in range(1, nodes + 1)] if isinstance(nodes, int) else list(nodes)
        for name in ("state", "dev", *(f"spool/{node}" for node in self.nodes)):
            (directory / name).mkdir(parents=True, exist_ok=True)
        directory.chmod(0o755)
        start_munged()
        ports = [address.rpartition(":")[2] for address in free_addresses(len(self.nodes) + 1)]
        host = socket.gethostname().partition(".")[0]
        text = _CONFIG.format(
            host=host,
            controller_port=ports[0],
            directory=directory,
            plugins="JobSubmitPlugins=lua" if plugin is not None else "",
        )
        if "AccountingStorageType" in settings:
            text = text.replace("AccountingStorageType=accounting_storage/none\n", "")
        gres = ",".join(f"gpu:i{gpu}:1" for gpu in range(gpus)) if exact else f"gpu:{gpus}"
        for node, port in zip(self.nodes, ports[1:], strict=True):
            text += (
                f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=64 "
                f"RealMemory=1000 Gres={gres} State=UNKNOWN\n"
            )
        text += "PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n"
        text += settings
        text += f"PartitionName=other Nodes={self.nodes[-1]} MaxTime=INFINITE State=UP\n"
        self.config = directory / "slurm.conf"
        self.config.write_text(text)
        lines = []
        for gpu in range(gpus):
            device = directory / "dev" / f"nvidia{gpu}"
            if not device.exists():
                os.mknod(
                    device, 0o666 | stat.S_IFCHR, os.makedev(1, 3)
                )  # Slurm passes only such file names to jobs
            kind = f"Type=i{gpu} " if exact else ""
            lines.append(f"NodeName={','.join(self.nodes)} Name=gpu {kind}File={device}\n")
        (directory / "gres.conf").write_text("".join(lines))
        if plugin is not None:
            self.set_plugin(plugin)
        self.environment = {**os.environ, "SLURM_CONF": str(self.config)}
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        for name in (CONTROLLER, *self.nodes):
            self.start(name)
        try:
            until(lambda: self._idle() == len(self.nodes), "all nodes are idle")
        except AssertionError:
            print((directory / "slurmctld.log").read_text()[-2000:])
            self.close()
            raise

    def set_plugin(self, text: str) -> None:
        """Install another job_submit.lua; slurmctld reads it at its next start or `reconfigure`."""
        (self.directory / "job_submit.lua").write_text(text)

    def start(self, name: str) -> None:
        """Start slurmctld, slurmrestd, or a node's slurmd."""
        words = {
            CONTROLLER: ["slurmctld", "-D"],
            REST: ["slurmrestd", *_REST_OPTIONS, f"unix:{self._rest_socket}"],
        }.get(name, ["slurmd", "-D", "-N", name])
        # slurmrestd refuses to run as root or SlurmUser
        by: dict[str, Any] = {"user": "daemon", "group": "daemon", "extra_groups": []} if name == REST else {}
        if name == REST:
            self._rest_socket.unlink(missing_ok=True)
        with (self.directory / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(words, stdout=log, stderr=log, env=self.environment, **by)

    def start_rest(self) -> str:
        """Start slurmrestd. Returns its address."""
        self._rest_socket.parent.mkdir(exist_ok=True)
        self._rest_socket.parent.chmod(0o777)
        self.start(REST)
        until(self._rest_socket.exists, "slurmrestd listens")
        return f"unix:{self._rest_socket}"

    @property
    def _rest_socket(self) -> Path:
        return self.directory / "rest" / "socket"

    def _idle(self) -> int:
        return self.ask("sinfo", "-h", "-N", "-p", "gpu", "-o", "%T", check=False).split().count("idle")

    def tend(self) -> None:
        """An operator's repair after a kill -9 of slurmctld, with rlsched or without.

        slurmctld drains nodes that run a job which it has forgotten and started again («Duplicate jobid»):
        resume them. It counts jobs as running whose ends it has forgotten, until their nodes register the
        next time: reconfigure.
        """
        for line in self.ask("sinfo", "-h", "-N", "-p", "gpu", "-o", "%N %T", check=False).splitlines():
            name, state = line.split()
            if state.startswith("drain"):
                self.ask("scontrol", "update", f"NodeName={name}", "State=RESUME", check=False)
        self.ask("scontrol", "reconfigure", check=False)

    def end_hung_steps(self) -> None:
        """Kill its step daemons: one of Slurm 22.05 hangs now and then, and its job never ends."""
        sockets = {
            f"socket:[{words[6]}]"
            for words in map(str.split, Path("/proc/net/unix").read_text().splitlines())
            if words[-1].startswith(f"{self.directory}/")
        }
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                is_step = (path / "comm").read_text() == "slurmstepd\n"
                if is_step and sockets & {os.readlink(one) for one in (path / "fd").iterdir()}:
                    os.kill(int(path.name), signal.SIGKILL)

    def kill(self, name: str, *, saves: bool = False) -> None:
        """kill -9, or SIGTERM, at which slurmctld saves its state; then start again."""
        if saves:
            self.running[name].terminate()
        else:
            self.running[name].kill()
        self.running[name].wait(60.0)
        self.start(name)

    def ask(self, *words: str, said: str = "", check: bool = True, uid: int | None = None) -> str:
        """Output of a Slurm command."""
        asked = subprocess.run(
            words, input=said, capture_output=True, text=True, env=self.environment, check=False, user=uid
        )
        assert not check or asked.returncode == 0, f"{words}: {asked.stderr}"
        return asked.stdout.strip()

    def sbatch(
        self, *options: str, script: Path, arguments: tuple[str, ...] = (), uid: int | None = None
    ) -> str:
        """Submit; repeated while the controller is away. Returns the number."""
        words = ("sbatch", "--parsable", "-o", "/dev/null", "-D", "/tmp", *options, str(script), *arguments)
        return self.ask(*words, uid=uid)

    def jobs(self) -> dict[str, SlurmJob]:
        """Every job; empty while the controller is away."""
        said = self.ask("squeue", "--json", check=False)
        with contextlib.suppress(msgspec.MsgspecError):
            return jobs_of(said.encode()) if said else {}
        return {}

    def close(self) -> None:
        """End all processes and jobs."""
        self.ask("scancel", "-u", "root", check=False)
        self.ask("scancel", "--state=PENDING", "--partition=gpu", check=False)
        with contextlib.suppress(AssertionError):  # a slurmd ends late if its job has just been cancelled
            until(lambda: not self.ask("squeue", "-h", "-t", "R,CG", check=False), "no job runs", 10.0)
        self.end_hung_steps()
        for process in self.running.values():
            process.terminate()
        for process in self.running.values():
            try:
                process.wait(20.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(20.0)
