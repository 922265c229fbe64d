"""Nodes whose jobs share GPUs: GPUs of the fake NVML, whose clocks can be locked, and a fake MPS."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from rlsched_node.mps.control import pipes_of
from tests.soak.jobs import all_pids
from tests.support import fake_mps

GPUS = 4
SHARING: Mapping[str, str] = {"n0": "mps", "n1": "time-slicing"}
"""The way in which each node shares its GPUs."""
POLICY = 'base = "pack"\nclock = { rule = "weighed", energy_weight = 0.7 }\n'
"""Policy of the broker: jobs share GPUs, and run at clocks below the highest."""
WORKLOAD = "a2c-b64"
"""Workload of the jobs that share: light, so that `pack` lets two of them share."""
SECONDS = (0.0, 0.3, 1.0, 4.0)
"""Run times of the jobs, seconds. The longest outlast the restart of a node daemon, which adopts them."""
MEMORY_MIB = 143_771
USED_MIB, PERCENT = 512, 20
"""GPU memory of each job, MiB, and its part of the GPU's time, percent, as the fake NVML reports them."""
_SOURCE = Path(__file__).parents[1] / "support" / "fake_nvml.c"
_REBOOT = "reboot"
_STARTED = re.compile(r"MPS control daemon \d+ serves")
_ADOPTED = re.compile(r", (\d+) jobs adopted")
_FOREIGN = re.compile(r"GPU \d+ gets no new jobs: in use by process \d+")
_ADOPTED_MPS = re.compile(r"MPS control daemon \d+ is adopted")


class Counts(NamedTuple):
    """Counts of a sweep.

    Attributes:
        daemons: Control daemons of MPS that were started.
        locks: Calls that locked a clock.
        adopted_jobs: Ranks that a new node daemon adopted while they ran.
        adopted_daemons: Control daemons of MPS that a new node daemon adopted.
        foreign: GPUs that a node took out of service because of a process that it did not recognise.
    """

    daemons: int
    locks: int
    adopted_jobs: int
    adopted_daemons: int
    foreign: int

    @property
    def adopted(self) -> tuple[int, int]:
        """Ranks and control daemons that were adopted."""
        return self.adopted_jobs, self.adopted_daemons


def lacking() -> str:
    """Why nodes cannot share on this machine; "" if they can."""
    return "" if shutil.which("gcc") else "jobs that share need gcc, which compiles the fake NVML"


class SharedGpus:
    """The fake NVML and the fake MPS of all nodes. Each node has its own four GPUs of type H200.

    Args:
        directory: Folder for all files. Its path is short, because MPS has sockets in it.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        library = directory / "libnvidia-ml.so.1"
        words = ("gcc", "-shared", "-fPIC", f"-DGPUS={GPUS}", "-o", str(library), str(_SOURCE))
        subprocess.run(words, check=True)
        fake_mps.install(directory / "bin")

    @property
    def broker_options(self) -> tuple[str, ...]:
        """Options of the broker."""
        policy = self._directory / "sharing.toml"
        policy.write_text(POLICY)
        return ("--share", "--policy", str(policy), "--prediction", "running-mean", "--forecaster", "none")

    @staticmethod
    def options(name: str) -> tuple[str, ...]:
        """Options of a node's daemon."""
        return ("--gpu-type", "h200", "--sharing", SHARING[name])

    def environment(self, name: str) -> list[str]:
        """Variables of a node's daemon, each as `NAME=VALUE`."""
        return [
            f"LD_LIBRARY_PATH={self._directory}",
            f"PATH={self._directory / 'bin'}:{os.environ['PATH']}",
            f"FAKE_NVML_CLOCKS={self._calls(name)}",
            f"FAKE_NVML_MEMORY_MIB={MEMORY_MIB}",
            f"FAKE_NVML_PROCESSES={self._processes_of(name)}",
            "FAKE_NVML_SUMS=1",
        ]

    @property
    def job_environment(self) -> str:
        """Shell code by which a job lists its shell as a process on its GPUs."""
        files = self._processes_of('$(expr "$RLSCHED_ATTEMPT_DIR" : ".*/\\(n[01]\\)/")')
        return (
            f'list="{files}"; for gpu in $(echo "$CUDA_VISIBLE_DEVICES" | tr , " "); do '
            f'echo "${{gpu##*-}} $$ {USED_MIB} {PERCENT}" >> "$list"; done'
        )

    def reboot(self, name: str) -> None:
        """Unlock the clocks of a node, as its driver does when the machine boots."""
        with self._calls(name).open("a") as file:
            file.write(f"{_REBOOT}\n")

    def left(self) -> list[str]:
        """MPS processes, directories of control daemons, and locked clocks, a line each.

        The lists of the fake NVML become empty, because another process may get the number of an ended one.
        """
        for name in SHARING:
            self._processes_of(name).write_text("")
        return [*self._processes(), *self._directories(), *self._locked()]

    @property
    def counts(self) -> Counts:
        """How much of sharing, clocks and adoption the rounds have seen."""
        logs = "".join((self._directory / f"{name}.log").read_text() for name in SHARING)
        return Counts(
            daemons=len(_STARTED.findall(logs)),
            locks=sum(call.startswith("lock ") for name in SHARING for call in self._read(name)),
            adopted_jobs=sum(map(int, _ADOPTED.findall(logs))),
            adopted_daemons=len(_ADOPTED_MPS.findall(logs)),
            foreign=len(_FOREIGN.findall(logs)),
        )

    def _processes(self) -> Iterator[str]:
        for pid in all_pids():
            pipes = pipes_of(pid)
            if pipes is not None and Path(pipes).is_relative_to(self._directory):
                yield f"MPS process {pid} of {pipes}"

    def _directories(self) -> Iterator[str]:
        for name in SHARING:
            yield from (f"directory {path}" for path in (self._directory / name / "mps").glob("*"))

    def _locked(self) -> Iterator[str]:
        for name in SHARING:
            locked: dict[str, str] = {}
            for call in self._read(name):
                what, *words = call.split()
                if what == "lock":
                    locked[words[0]] = words[2]
                elif what == "reset":
                    locked.pop(words[0], None)
                elif what == _REBOOT:
                    locked.clear()
            yield from (f"GPU {gpu} of {name} locked to {mhz} MHz" for gpu, mhz in locked.items())

    def _processes_of(self, name: str) -> Path:
        """File of the processes on a node's GPUs."""
        return self._directory / f"processes-{name}"

    def _calls(self, name: str) -> Path:
        """File of the calls that change a node's clocks."""
        return self._directory / f"clocks-{name}"

    def _read(self, name: str) -> list[str]:
        path = self._calls(name)
        return path.read_text().splitlines() if path.exists() else []
