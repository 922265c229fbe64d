"""A Slurm in memory that starts jobs as the test orders, and a shadow that follows it on a real disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from rlsched.broker.server.settings import BrokerSettings
from rlsched.decide.policies.policy import Policy
from rlsched.engine.facts import Facts, SlurmError, SlurmJob, SlurmNode
from rlsched.engine.reader import Reader
from rlsched.engine.shadow.notes import StartComparison, read_notes
from rlsched.engine.shadow.shadow_loop import ShadowBroker

BEGAN_S = 1_700_000_000.0
CONFIG = {"ClusterName": "c", "MinJobAge": "300 sec"}


class SlurmInMemory(Reader):
    """A Slurm with the clock `now_s`, read by a shadow.

    Attributes:
        is_away: Whether it does not answer.
    """

    def __init__(self, nodes: int = 2, gpus: int = 4) -> None:
        super().__init__(("gpu",))
        self.now_s, self.gpus, self.is_away = BEGAN_S, gpus, False
        self.names = [f"n{k}" for k in range(1, nodes + 1)]
        self.why: dict[str, str] = {}
        self.jobs: dict[str, SlurmJob] = {}

    def submit(self, gpus: int, key: str = "", **said: Any) -> str:
        """A new job, which can start at once."""
        key = key or str(len(self.jobs) + 1)
        job = SlurmJob(
            key=key, name="job", user="ada", partition="gpu", state="PENDING", reason="Resources",
            is_held=False, is_held_by_user=False, depends=False, eligible_s=self.now_s, restarts=0,
            marks=None, array=0, array_limit=0, is_exclusive=False, may_requeue=True, time_limit_s=None,
            nodes=[], gpus=[], start_s=0.0, end_s=0.0, exit_code=0, submit_s=self.now_s, gpus_asked=gpus,
        )  # fmt: skip
        self.jobs[key] = msgspec.structs.replace(job, **said)
        return key

    def change(self, key: str, **said: Any) -> None:
        """Change fields of a job."""
        self.jobs[key] = msgspec.structs.replace(self.jobs[key], **said)

    def start(self, key: str, node: str, gpus: list[int]) -> None:
        """Start a job."""
        self.change(key, state="RUNNING", nodes=[node], gpus=[gpus], start_s=self.now_s)

    def end(self, key: str, state: str = "COMPLETED", exit_code: int = 0) -> None:
        """End a job."""
        self.change(key, state=state, end_s=self.now_s, exit_code=exit_code)

    def facts(self) -> Facts:
        """The current facts."""
        if self.is_away:
            raise SlurmError("`squeue --json` failed: Unable to contact slurm controller")
        nodes = {
            name: SlurmNode(
                name=name, partitions=["gpu"], gpus=self.gpus, gpu_type="generic",
                types=[f"i{gpu}" for gpu in range(self.gpus)], unusable=self.why.get(name, ""),
            )
            for name in self.names
        }  # fmt: skip
        return Facts(now_s=self.now_s, jobs=dict(self.jobs), nodes=nodes)


class Bench:
    """A shadow and its Slurm.

    Args:
        directory: Folder of the shadow.
        slurm: The Slurm, for a restarted shadow.
        policy: Policy of the shadow.
    """

    def __init__(
        self, directory: Path, slurm: SlurmInMemory | None = None, policy: Policy | str = "fifo-backfill"
    ) -> None:
        self.directory, self.slurm = directory, slurm or SlurmInMemory()
        settings = BrokerSettings(
            address="", directory=directory, keys=directory, policy=policy, prediction="running-mean"
        )
        self.shadow = ShadowBroker(settings, self.slurm, CONFIG, 10.0, preempts=False)

    def look(self, after_s: float = 0.0) -> None:
        """Time passes, and the shadow polls."""
        self.slurm.now_s += after_s
        self.shadow.query_slurm()

    def compared(self) -> dict[str, StartComparison]:
        """Compared starts, by job."""
        return {note.job: note for note in read_notes(self.directory) if isinstance(note, StartComparison)}

    def states(self) -> dict[str, str]:
        """State and GPUs of each job in the broker's book, by Slurm's number."""
        return self.shadow.states()

    def close(self) -> None:
        """As after kill -9: no notes and no snapshot at the end."""
        self.shadow.close()
