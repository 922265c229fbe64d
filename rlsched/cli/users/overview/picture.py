"""The state of a cluster at one moment, from its broker's answers."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rlsched.cli.shared.job_number import called
from rlsched.cli.shared.selecting import waits
from rlsched.wire.messages import JobInfo, NodeInfo, StatsReport
from rlsched.wire.states import QUEUED

if TYPE_CHECKING:
    from rlsched.client.client import Client

LEARNT = ("prediction",)
"""Fields of the broker's statistics that `top --json` omits, because `rlsched predictor` shows them."""


@dataclass
class UserSummary:
    """GPUs and jobs of a user.

    Attributes:
        user: User name; "" for jobs without a user.
        gpus: Number of GPUs that the user's jobs have.
        running: Number of jobs that have GPUs.
        waiting: Number of waiting jobs; an array counts once.
        wanted_gpus: Number of GPUs that the waiting jobs request.
    """

    user: str
    gpus: int = 0
    running: int = 0
    waiting: int = 0
    wanted_gpus: int = 0


@dataclass(frozen=True)
class Picture:
    """State of a cluster, from its broker's answers.

    Attributes:
        at_s: Time of the answers, Unix seconds.
        stats: Statistics of the broker.
        nodes: All nodes, in natural order of their names (n2, n10).
        jobs: Waiting and running jobs.
    """

    at_s: float
    stats: StatsReport
    nodes: list[NodeInfo]
    jobs: list[JobInfo]

    @cached_property
    def running(self) -> list[JobInfo]:
        """Jobs that have GPUs, including tasks of arrays, in the order of their numbers."""
        return [job for job in self.jobs if job.state != QUEUED and not job.num_tasks]

    @cached_property
    def queue(self) -> list[JobInfo]:
        """Waiting jobs and arrays with waiting tasks, in queue order; jobs without a queue key are last."""
        waiting = [job for job in self.jobs if waits(job)]
        return sorted(
            waiting, key=lambda job: (math.inf if job.queue_key is None else job.queue_key, job.job)
        )

    @cached_property
    def owners(self) -> list[UserSummary]:
        """Users with GPUs or waiting jobs; users with the most GPUs are first."""
        found: dict[str, UserSummary] = {}
        for job in self.running:
            owner = found.setdefault(job.user, UserSummary(job.user))
            owner.gpus += job.num_gpus
            owner.running += 1
        for job in self.queue:
            owner = found.setdefault(job.user, UserSummary(job.user))
            owner.waiting += 1
            owner.wanted_gpus += job.num_gpus
        return sorted(found.values(), key=lambda owner: (-owner.gpus, -owner.wanted_gpus, owner.user))

    @cached_property
    def jobs_by_gpu(self) -> dict[str, dict[int, JobInfo]]:
        """Node -> (GPU index -> the job that has the GPU). For a shared GPU, one of its jobs is listed."""
        found: dict[str, dict[int, JobInfo]] = {}
        for job in self.running:
            for node, gpus in zip(job.nodes, job.gpus, strict=True):
                found.setdefault(node, {}).update(dict.fromkeys(gpus, job))
        return found

    @property
    def power_w(self) -> float | None:
        """Total power of the GPUs, W; None if no node has measured its power."""
        drawn = [node.power_w for node in self.nodes if node.state != "down" and node.power_w is not None]
        return sum(drawn) if drawn else None

    def as_data(self) -> dict[str, Any]:
        """Return the state as plain data, for JSON."""
        import msgspec

        stats: dict[str, Any] = msgspec.to_builtins(self.stats)
        held = self.jobs_by_gpu
        return {
            "at_s": self.at_s,
            "broker": {name: value for name, value in stats.items() if name not in LEARNT},
            "power_w": self.power_w,
            "nodes": [
                msgspec.to_builtins(node)
                | {
                    "held": [
                        {"gpu": gpu, "job": job.job, "called": called(job), "user": job.user}
                        for gpu, job in sorted(held.get(node.name, {}).items())
                    ]
                }
                for node in self.nodes
            ],
            "running": [msgspec.to_builtins(job) for job in self.running],
            "queue": [msgspec.to_builtins(job) for job in self.queue],
            "users": [vars(owner) for owner in self.owners],
        }


def picture(client: Client) -> Picture:
    """Request the state of the cluster from its broker."""
    return Picture(at_s=time.time(), stats=client.stats(), nodes=client.nodes(), jobs=client.jobs())


def title(job: JobInfo) -> str:
    """Return a job's number and name as text."""
    return f"{called(job)} ({job.name})" if job.name else called(job)
