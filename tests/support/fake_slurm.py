"""A Slurm in memory, for tests of code that uses the gateway: it obeys lines for `scontrol`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rlsched.engine.facts import Facts, SlurmJob, SlurmNode, comment_of, marks_of


@dataclass
class FakeJob:
    """A job of a `FakeSlurm`.

    Attributes:
        request: Its `TresPerNode` since job_submit.lua has removed it.
        runs_s: Run time of the job's script, seconds.
        code: Exit code of the script.
        code_at_signal: Exit code with which the script ends at a signal; None: it continues.
        signals: Signals that the job got.
        starts: (nodes, GPU numbers, time) of each start of the script.
        requeued_s: Time of the end of each start but the last.
    """

    key: str
    gpus: int
    runs_s: float
    code: int
    nodes: int = 1
    code_at_signal: int | None = None
    signals: list[str] = field(default_factory=list)
    user: str = "ada"
    state: str = "PENDING"
    is_held: bool = True
    is_held_by_user: bool = False
    depends: bool = False
    comment: str = ""
    nice: int = 0
    restarts: int = 0
    request: str = ""
    wanted: list[str] = field(default_factory=list)
    wanted_gpus: list[int] = field(default_factory=list)
    on: list[str] = field(default_factory=list)
    start_s: float = 0.0
    end_s: float = 0.0
    exit_code: int = 0
    starts: list[tuple[list[str], list[int], float]] = field(default_factory=list)
    requeued_s: list[float] = field(default_factory=list)


class FakeSlurm:
    """Jobs and nodes of one partition, `gpu`. Each GPU of a node has its own type. Tests set the clock.

    Args:
        nodes: Names of the nodes.
        gpus: Number of GPUs on each node.
        holds: Whether jobs are held at their submission. If not, `FakeSlurm` starts them on free GPUs, in the
            order of their nices.

    Attributes:
        lines: Every write that was obeyed or refused.
        loses: Number of the next lines that are lost, as in a crash.
        why: By node, the reason why the node gets no jobs.
        limits: By job, the limit that keeps the job from starting.
    """

    def __init__(self, nodes: Sequence[str] = ("n1", "n2"), gpus: int = 4, *, holds: bool = True) -> None:
        self.nodes, self.gpus, self.holds = list(nodes), gpus, holds
        self.jobs: dict[str, FakeJob] = {}
        self.lines: list[str] = []
        self.now_s = 0.0
        self.loses = 0
        self.why: dict[str, str] = {}
        self.limits: dict[str, str] = {}

    def sbatch(self, gpus: int, runs_s: float = 1.0, code: int = 0, nodes: int = 1) -> str:
        """Submit a job; held as by job_submit.lua if `holds`. Returns the number of the job."""
        key = str(len(self.jobs) + 1)
        marks = {"g": str(gpus), "n": str(nodes), "s": f"s{key}", "x": "1"}
        comment = comment_of(marks) if self.holds else ""
        self.jobs[key] = FakeJob(key, gpus, runs_s, code, nodes, is_held=self.holds, comment=comment)
        return key

    def scancel(self, key: str) -> None:
        """Cancel a job as its user."""
        job = self.jobs[key]
        if job.state in ("PENDING", "RUNNING"):
            job.state, job.end_s, job.exit_code = "CANCELLED", self.now_s, 0

    def obey(self, lines: Sequence[str]) -> None:
        """Obey lines for `scontrol` and `scancel`."""
        for line in lines:
            if self.loses:
                self.loses -= 1
                continue
            self.lines.append(line)
            self._obey(line)

    def _obey(self, line: str) -> None:
        verb, _, rest = line.partition(" ")
        if verb in ("requeuehold", "signal"):
            self._stop(*line.rsplit(" ", 1))
            return
        said = dict(word.partition("=")[::2] for word in rest.split(" "))
        job = self.jobs.get(said.get("JobId", rest))
        if job is None or job.state not in ("PENDING", "RUNNING"):
            return
        waits = job.state == "PENDING"
        request = said.get("TresPerNode", job.request)
        if verb == "update" and {"ReqNodeList", "TresPerNode"} & said.keys() and not waits:
            return  # Slurm refuses the whole line for a running job
        if verb == "update" and request and job.request and (":i" in request) != (":i" in job.request):
            return  # GPUs with and without types
        if verb == "update":
            job.comment, job.nice = said.get("AdminComment", job.comment), int(said.get("Nice", job.nice))
            job.is_held = job.is_held or said.get("Priority") == "0"
            earlier, job.request = job.request, request
            if "ReqNodeList" in said:
                job.wanted = [node for node in said["ReqNodeList"].split(",") if node]
                types = {*earlier.split(","), *request.split(",")}  # Slurm adds them
                job.wanted_gpus = sorted(int(one.split(":")[2][1:]) for one in types if one.count(":") == 3)
        elif verb == "release" and waits:
            job.is_held = False
        elif verb == "hold" and waits:
            job.is_held = True
        elif verb == "cancel":
            self.scancel(job.key)

    def _stop(self, verb: str, key: str) -> None:
        job = self.jobs[key]
        if verb.startswith("signal ") and job.state == "RUNNING":
            job.signals.append(verb.removeprefix("signal "))
            if job.code_at_signal is not None:
                job.runs_s, job.code = self.now_s - job.start_s, job.code_at_signal
        elif job.state == "RUNNING" or (verb == "requeuehold" and job.state in ("FAILED", "COMPLETED")):
            job.state, job.is_held, job.on = "PENDING", True, []
            job.restarts += 1
            job.requeued_s.append(self.now_s)

    def step(self, now_s: float) -> None:
        """Advance the time: scripts end, and released jobs start on their GPUs if these are free."""
        self.now_s = now_s
        for job in self.jobs.values():
            if job.state == "RUNNING" and now_s >= job.start_s + job.runs_s:
                job.state = "COMPLETED" if job.code == 0 else "FAILED"
                job.end_s, job.exit_code = now_s, job.code
        for job in sorted(self.jobs.values(), key=lambda job: job.nice):
            if not self.holds and job.state == "PENDING":
                self._choose(job)
            if job.state == "PENDING" and not job.is_held and not job.depends and self._fits(job):
                job.state, job.start_s, job.on = "RUNNING", now_s, job.wanted
                job.starts.append((job.wanted, job.wanted_gpus, now_s))

    def _taken(self) -> set[tuple[str, int]]:
        return {
            (node, gpu)
            for other in self.jobs.values()
            if other.state == "RUNNING"
            for node in other.on
            for gpu in other.wanted_gpus
        }

    def _choose(self, job: FakeJob) -> None:
        """Choose free GPUs of one node."""
        taken = self._taken()
        for node in self.nodes:
            free = [gpu for gpu in range(self.gpus) if (node, gpu) not in taken]
            if len(free) >= job.gpus:
                job.wanted, job.wanted_gpus = [node], free[: job.gpus]
                return
        job.wanted = []

    def _fits(self, job: FakeJob) -> bool:
        taken = self._taken()
        return bool(job.wanted) and not any(
            node in self.why or (node, gpu) in taken for node in job.wanted for gpu in job.wanted_gpus
        )

    def facts(self) -> Facts:
        """Return the present facts."""
        return Facts(
            now_s=self.now_s,
            jobs={key: self._said(job) for key, job in self.jobs.items()},
            nodes={
                name: SlurmNode(
                    name=name,
                    partitions=["gpu"],
                    gpus=self.gpus,
                    gpu_type="generic",
                    types=[f"i{gpu}" for gpu in range(self.gpus)],
                    unusable=self.why.get(name, ""),
                )
                for name in self.nodes
            },
        )

    def _said(self, job: FakeJob) -> SlurmJob:
        return SlurmJob(
            key=job.key,
            name="job",
            user=job.user,
            partition="gpu",
            state=job.state,
            reason="JobHeldUser" if job.is_held else self.limits.get(job.key, "Resources"),
            is_held=job.is_held and job.state == "PENDING",
            is_held_by_user=job.is_held_by_user,
            depends=job.depends,
            eligible_s=0.0,
            restarts=job.restarts,
            marks=marks_of(job.comment),
            is_commented=bool(job.comment) and marks_of(job.comment) is None,
            gpus_asked=job.gpus * job.nodes if job.request or not self.holds else 0,
            nice=job.nice,
            submit_s=job.requeued_s[-1] if job.requeued_s else 1_000.0 + int(job.key),
            array=0,
            array_limit=0,
            is_exclusive=False,
            may_requeue=True,
            time_limit_s=None,
            nodes=list(job.on),
            gpus=[list(job.wanted_gpus) for _ in job.on],
            start_s=job.start_s,
            end_s=job.end_s if job.end_s else job.start_s + job.runs_s,
            exit_code=job.exit_code,
        )
