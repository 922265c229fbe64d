"""A job of a Slurm script, without broker and daemon: its ranks as their shims would start them."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from rlsched.wire.messages import Launch
from rlsched_node.gpu.simulated import SimulatedGpus
from rlsched_node.processes.launch import launch_command, rank_environment

PATIENCE_S = 60.0
_numbers = iter(range(1 + os.getpid() % 300, 1 << 20))


class BatchJob:
    """The ranks of a job, each in a process group of its own; all are killed at the end of the `with` block.

    Args:
        folder: The job's directory.
        script: Text of the script below `#!/bin/bash`.
        gpus: Number of GPUs on each node.
        env: Variables that the submission sets.
        shell: First line of the script.
        started: The ranks that are started at once.
    """

    def __init__(
        self,
        folder: Path,
        script: str,
        *,
        gpus: Sequence[int] = (2, 2),
        env: dict[str, str] | None = None,
        shell: str = "#!/bin/bash",
        started: Sequence[int] | None = None,
    ) -> None:
        self.folder, self._gpus, self._job = folder, gpus, next(_numbers)
        path = folder / "job.sh"
        self._command = [*shell[2:].split(), "-c", f"{shell}\n{script}", str(path)]
        self._env = {
            "SLURM_SUBMIT_DIR": str(folder),
            "SLURM_JOB_NAME": "job.sh",
            "RLSCHED_STEPS_KEY": secrets.token_hex(),
            "HOME": str(folder),
        } | (env or {})
        self._errors = ""
        self.ranks: dict[int, subprocess.Popen[str]] = {}
        for rank in range(len(gpus)) if started is None else started:
            self.start(rank)

    def start(self, rank: int) -> None:
        """Start a rank."""
        launch = Launch(
            epoch=1,
            job=self._job,
            attempt=1,
            rank=rank,
            num_ranks=len(self._gpus),
            nodes=[f"n{number}" for number in range(len(self._gpus))],
            gpus=list(range(self._gpus[rank])),
            command=self._command,
            env=self._env,
            cwd=str(self.folder),
            grace_s=5.0,
            gpus_of_ranks=list(self._gpus),
            master="127.0.0.1",
            hosts=["127.0.0.1"] * len(self._gpus),
        )
        directory = self.folder / f"rank{rank}"
        directory.mkdir()
        env = rank_environment(
            launch,
            gpus=SimulatedGpus(max(self._gpus)),
            directory=str(directory),
            is_local=True,
            inherited={"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        )
        self.ranks[rank] = subprocess.Popen(
            launch_command(launch, env),
            env=env,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> BatchJob:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.ranks.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(PATIENCE_S)
            for pipe in (process.stdout, process.stderr):
                assert pipe is not None
                pipe.close()
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def signal(self, number: int) -> None:
        """Send a signal to the process group of each rank, as shims do."""
        for process in self.ranks.values():
            os.killpg(process.pid, number)

    def wait(self) -> list[int]:
        """Wait for the end of all ranks. Return their exit codes."""
        return [process.wait(PATIENCE_S) for _, process in sorted(self.ranks.items())]

    def output(self) -> str:
        """Wait for the end of the job, which must succeed on the other nodes. Return the script's output."""
        text, self._errors = self.ranks[0].communicate(timeout=PATIENCE_S)
        others = [process.wait(PATIENCE_S) for rank, process in self.ranks.items() if rank]
        assert others == [0] * (len(self._gpus) - 1)
        return text

    def errors(self) -> str:
        """Return the standard error of the script, after `output`."""
        return self._errors

    def until(self, holds: Callable[[], object], what: str) -> None:
        """Wait until something holds."""
        give_up_s = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < give_up_s, what
            time.sleep(0.02)

    def has_files(self, *names: str) -> None:
        """Wait until the job has made these files."""
        self.until(lambda: all((self.folder / name).exists() for name in names), f"{names} exist")

    def processes(self) -> list[int]:
        """The running processes of the job."""
        mark = f"RLSCHED_ATTEMPT_DIR={self.folder}/rank".encode()
        found = []
        for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
            with suppress(OSError):
                is_zombie = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
                if mark in Path(f"/proc/{pid}/environ").read_bytes() and not is_zombie:
                    found.append(pid)
        return found
