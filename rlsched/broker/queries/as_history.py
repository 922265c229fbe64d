"""Reads the journal of a broker or a shadow as a history: jobs with starts and ends, and nodes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from rlsched.broker.base.entries import (
    AttemptOver,
    BasePart,
    Decided,
    GpusHeld,
    JobCancelled,
    JobSubmitted,
    JobUpdated,
    NodeAway,
    NodeDown,
    NodeDrained,
    NodeEntry,
    NodeHealth,
    NodeRemoved,
    NodeResumed,
    NodeSlept,
    NodeUp,
    NodeWoken,
    TaskSubmitted,
)
from rlsched.broker.journal.reading import Reading, reading
from rlsched.broker.journal.replay import JOURNAL_FILE
from rlsched.broker.state.base import Base, read_base
from rlsched.broker.state.finished_job import EndedJob, job_of
from rlsched.broker.state.finished_table import EndedTable
from rlsched.broker.state.jobs import called
from rlsched.broker.state.nodes import Node
from rlsched.broker.state.tasks import Heads
from rlsched.broker.state.updates import updated
from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.decide.actions import Start
from rlsched.errors import InputError
from rlsched.models.slice_name import is_slice
from rlsched.wire.messages import Holding
from rlsched.wire.states import QUEUED, RUNNING
from rlsched.workload.trace import Trace

OTHERS: Final = "(others)"
"""User name in the history for jobs that use GPUs but were not started by the broker."""
SHORTEST_S: Final = 0.001
_NODE = NodeAway | NodeDown | NodeDrained | NodeHealth | NodeRemoved | NodeResumed | NodeSlept | NodeWoken


class NodeStateChange(NamedTuple):
    """A change of a node's state.

    Attributes:
        time_s: Time of the change, seconds of the trace.
        node: Index of the node in `JournalHistory.cluster`.
        event: New state. `drain`: the node gets no new jobs. `down`: the node has lost its jobs. `up`: the
            node can get jobs.
    """

    time_s: float
    node: int
    event: str


@dataclass(frozen=True)
class JournalHistory:
    """Jobs and nodes in a journal.

    Attributes:
        trace: The jobs, with their predictions and recorded waits. The run time of a running job ends at the
            journal's end. A waiting job has no recorded wait.
        cluster: All nodes that ever registered.
        changes: State changes of the nodes.
        origin_s: Second 0 of the trace, Unix seconds.
        until_s: End of the journal, seconds of the trace.
    """

    trace: Trace
    cluster: ClusterSpec
    changes: list[NodeStateChange]
    origin_s: float
    until_s: float


@dataclass
class _HistoryJob:
    job_id: str
    submit_s: float
    spec: JobSubmitted | None
    num_gpus: int
    vc: str
    start_s: float = math.nan
    end_s: float = math.nan
    status: str = QUEUED


@dataclass
class _Reading:
    jobs: dict[str, _HistoryJob] = field(default_factory=dict)
    of_number: dict[int, _HistoryJob] = field(default_factory=dict)
    of_seq: dict[int, _HistoryJob] = field(default_factory=dict)
    held: dict[str, list[tuple[Holding, _HistoryJob]]] = field(default_factory=dict)
    nodes: dict[str, NodeUp] = field(default_factory=dict)
    reasons: dict[str, dict[str, str]] = field(default_factory=dict)
    changes: list[tuple[float, str, str]] = field(default_factory=list)
    next_seq: int = 0
    last_s: float = math.nan

    def add_submission(self, entry: JobSubmitted, now_s: float) -> None:
        if entry.rejected:
            return
        is_slurms = len(entry.command) == 3 and entry.command[0] == "slurm"
        job_id = entry.command[1] if is_slurms else called(entry)
        known = self.jobs.get(job_id)
        if known is not None and not math.isnan(known.start_s):
            job_id = f"{job_id}/{entry.job}"  # Slurm has reused the number
        job = _HistoryJob(job_id, now_s, entry, entry.num_gpus, entry.vc)
        self.jobs[job_id] = self.of_number[entry.job] = self.of_seq[self.next_seq] = job
        self.next_seq += 1

    def update_job(self, entry: JobUpdated) -> None:
        job = self.of_number[entry.job]
        job.spec = None if job.spec is None else updated(job.spec, entry)

    def holds(self, entry: GpusHeld, now_s: float) -> None:
        before = self.held.pop(entry.name, [])
        for holding, job in before:
            if holding not in entry.held:
                job.end_s, job.status = now_s, "over"
        found = []
        for holding in entry.held:
            known = next((job for one, job in before if one == holding), None)
            found.append((holding, known or self._add_holding(entry.name, holding, now_s)))
        self.held[entry.name] = found

    def _add_holding(self, node: str, holding: Holding, now_s: float, seq: int | None = None) -> _HistoryJob:
        number = self.next_seq if seq is None else seq
        job = _HistoryJob(f"held-{number}", now_s, None, len(holding.gpus), self.nodes[node].vc, now_s)
        self.jobs[job.job_id] = job
        self.next_seq += seq is None
        return job

    def end_attempt(self, entry: AttemptOver, now_s: float) -> None:
        job = self.of_number[entry.job]
        if entry.outcome == QUEUED:
            job.start_s = math.nan
        else:
            job.end_s, job.status = now_s, entry.outcome

    def node(self, entry: _NODE | NodeUp, now_s: float) -> None:
        why = self.reasons.setdefault(entry.name, {})
        was = "down" if "down" in why else "drain" if why else "up"
        match entry:
            case NodeUp():
                self.nodes.setdefault(entry.name, entry)
                why.pop("down", None)
                why.pop("away", None)
                why.pop("asleep", None)
            case NodeSlept() | NodeWoken():
                why.pop("down", None)
                why["asleep"] = entry.reason
            case NodeDown() | NodeRemoved():
                why["down"] = entry.reason
            case NodeAway():
                why["away"] = entry.reason
            case NodeDrained():
                why["drained"] = entry.reason
            case NodeResumed():
                why.pop("drained", None)
            case NodeHealth():
                why.pop("unhealthy", None)
                if entry.unhealthy:
                    why["unhealthy"] = entry.unhealthy
        now = "down" if "down" in why else "drain" if why else "up"
        if now != was:
            self.changes.append((now_s, entry.name, now))

    def add_base(self, base: Base, ended: Iterable[EndedJob]) -> None:
        """Add the content of a base (the compacted start of the journal) to the history.

        A base contains the live jobs, the held GPUs, and the last state of each node. Also add the jobs in
        `ended` (rows of the table of ended jobs) that finished before the end of the base.
        """
        live = {one.submitted.job for one in base.jobs}
        for row in ended:
            if row.job <= base.last_number and row.job not in live:
                self._add_finished(row)
        for one in base.jobs:
            spec = one.submitted if one.changed is None else updated(one.submitted, one.changed)
            job = _HistoryJob(called(spec), float(one.job["submit_s"]), spec, spec.num_gpus, spec.vc)
            what, when_s = one.moves[-1] if one.moves else ("", math.nan)
            job.start_s = when_s if what == "start" else math.nan
            self.jobs[job.job_id] = self.of_number[spec.job] = self.of_seq[one.job["seq"]] = job
        self.next_seq, self.last_s = base.ledger.next_seq, base.now_s
        for node in (msgspec.convert(one, Node) for one in base.nodes):
            self.nodes[node.spec.name] = node.spec
            if node.state != "up":
                whys = {"down": "down", "unreachable": "away", "asleep": "asleep", "waking": "asleep"}
                why = whys.get(node.state, "drained")
                self.reasons[node.spec.name] = {why: node.reason}
                self.changes.append((base.now_s, node.spec.name, "down" if why == "down" else "drain"))
        for holder in base.held:
            self.held[holder.node] = [
                (one, self._add_holding(holder.node, one, base.now_s, seq)) for one, seq in holder.held
            ]

    def _add_finished(self, row: EndedJob) -> None:
        job = job_of(row)
        if job.attempt is None:
            return  # the job never started
        spec = job.spec
        is_slurms = len(spec.command) == 3 and spec.command[0] == "slurm"
        job_id = spec.command[1] if is_slurms else called(spec)
        if job_id in self.jobs:
            job_id = f"{job_id}/{row.job}"
        self.jobs[job_id] = _HistoryJob(
            job_id,
            row.submit_s,
            spec,
            row.num_gpus,
            row.vc,
            job.attempt.start_s,
            row.end_s,
            row.state,
        )


def is_journal(path: Path) -> bool:
    """Return whether a path is a journal, or a directory with the journal of a broker or a shadow."""
    return path.name == JOURNAL_FILE or (path / JOURNAL_FILE).is_file()


def history_of(path: Path) -> JournalHistory:
    """Read a journal. A broker may write it at the same time.

    Jobs that finished before a base (the compacted start of the journal) are from the table of ended jobs.

    Raises:
        InputError: the journal has no job, or no node.
        JournalError: the journal is damaged.
    """
    path = path / JOURNAL_FILE if path.is_dir() else path
    read, heads, parts = _Reading(), Heads(), list[BasePart]()
    with reading(path) as journal:
        _read(journal, read, heads, parts)
    if not read.jobs or not read.nodes:
        raise InputError(f"{path}: expected a journal with jobs and nodes, but no job or no node is in it")
    return _made(path, read)


def _read(journal: Reading, read: _Reading, heads: Heads, parts: list[BasePart]) -> None:
    for row in journal.rows():
        read.last_s = row.now_s
        heads.note(row.entry)
        match row.entry:
            case BasePart():
                parts.append(row.entry)
                if row.entry.part == row.entry.parts:
                    base = read_base(parts)
                    read.add_base(base, EndedTable(journal.path, journal.db).rows())
                    for array in base.arrays:
                        heads.note(array.submitted)
            case JobSubmitted() if not row.entry.tasks:
                read.add_submission(row.entry, row.now_s)
            case TaskSubmitted():
                read.add_submission(heads[row.entry.array].task(row.entry), row.now_s)
            case JobUpdated(job=number) if number in read.of_number:
                read.update_job(row.entry)
            case Decided(action=Start(seq=seq)) if seq in read.of_seq:
                read.of_seq[seq].start_s = row.now_s
            case AttemptOver():
                read.end_attempt(row.entry, row.now_s)
            case JobCancelled(job=number) if number in read.of_number:
                cancelled = read.of_number[row.entry.job]
                if read.jobs.get(cancelled.job_id) is cancelled:
                    del read.jobs[cancelled.job_id]
            case GpusHeld():
                read.holds(row.entry, row.now_s)
            case node_entry if isinstance(node_entry, NodeEntry):
                read.node(node_entry, row.now_s)


def _made(path: Path, read: _Reading) -> JournalHistory:
    jobs = sorted(read.jobs.values(), key=lambda job: job.submit_s)
    origin_s = jobs[0].submit_s
    waits = ["" if math.isnan(job.start_s) else job.start_s - job.submit_s for job in jobs]
    alone = [job.spec is not None and job.spec.share == "no" for job in jobs]
    prefer = ["|".join(job.spec.preferred_types) if job.spec is not None else "" for job in jobs]
    whole = [job.spec is not None and job.spec.exclusive for job in jobs]
    memory = [float(_asked(job, "memory_mib") or math.nan) for job in jobs]
    preemptible = [job.spec is not None and job.spec.preemptible for job in jobs]
    slack_s = [0.0 if job.spec is None or job.spec.slack_s is None else job.spec.slack_s for job in jobs]
    trace = Trace.from_columns(
        name=path.absolute().parent.name,
        submit_s=[job.submit_s - origin_s for job in jobs],
        duration_s=[_ran_s(job, read.last_s) for job in jobs],
        num_gpus=[float(job.num_gpus) for job in jobs],
        job_id=[job.job_id for job in jobs],
        user=[job.spec.user if job.spec is not None else OTHERS for job in jobs],
        vc=[job.vc for job in jobs],
        gpu_type=["|".join(job.spec.gpu_types) if job.spec is not None else "" for job in jobs],
        num_cpus=[float(_asked(job, "num_cpus") or math.nan) for job in jobs],
        status=[_status(job) for job in jobs],
        predicted_s=[_predicted_s(job, read.last_s) for job in jobs],
        predicted_spread=[job.spec.spread if job.spec is not None else 0.0 for job in jobs],
        time_limit_s=[
            math.nan if job.spec is None or job.spec.time_limit_s is None else job.spec.time_limit_s
            for job in jobs
        ],
        extra={"queue_s": waits}
        | {"preemptible": ["true" if yes else "false" for yes in preemptible]}
        | ({} if all(map(math.isnan, memory)) else {"memory_mib": memory})
        | ({"shares": ["false" if no else "" for no in alone]} if any(alone) else {})
        | ({"exclusive": ["true" if yes else "" for yes in whole]} if any(whole) else {})
        | ({"prefer": prefer} if any(prefer) else {})
        | ({"slack_s": slack_s} if any(slack_s) else {}),
    )
    is_counted = any(job.spec is not None and job.spec.counted for job in jobs)
    numbers = {name: number for number, name in enumerate(read.nodes)}
    groups = [
        NodeGroup(
            gpus=one.gpus,
            gpu_type=one.gpu_type,
            vc=one.vc or None,
            cpus=one.cpus if is_counted else 0,
            memory_mib=one.memory_mib if is_counted else 0,
            slices=_slices(one),
        )
        for one in read.nodes.values()
    ]
    return JournalHistory(
        trace=trace,
        cluster=ClusterSpec(name=path.absolute().parent.name, nodes=tuple(groups)),
        changes=[
            NodeStateChange(max(at_s - origin_s, 0.0), numbers[name], what)
            for at_s, name, what in read.changes
        ],
        origin_s=origin_s,
        until_s=read.last_s - origin_s,
    )


def _slices(node: NodeUp) -> int:
    """Return the number of MIG instances of each GPU of a node; 0: the node has no MIG instances.

    Nodes do not report to which GPU an instance belongs. The result is therefore the largest number possible
    if all GPUs have the same number of instances.
    """
    if not is_slice(node.gpu_type):
        return 0
    from rlsched.models.mig import slice_of  # compiles kernels on import: only if needed

    cut = slice_of(node.gpu_type)
    at_most = 1 if cut is None else cut.profile.at_most
    return max(count for count in range(1, at_most + 1) if node.gpus % count == 0)


def _ran_s(job: _HistoryJob, last_s: float) -> float:
    """Return a job's run time, seconds: up to `last_s` if it runs, or the prediction if it did not start."""
    if math.isnan(job.start_s):
        return job.spec.predicted_s if job.spec is not None else SHORTEST_S
    end_s = last_s if math.isnan(job.end_s) else job.end_s
    return max(end_s - job.start_s, SHORTEST_S)


def _asked(job: _HistoryJob, field: str) -> int:
    """Return the number of cores, or the memory in MiB, that a job requested.

    The result is 0 if the ledger did not count them (`JobSubmitted.counted`). `field`: `num_cpus` or
    `memory_mib`.
    """
    return int(getattr(job.spec, field)) if job.spec is not None and job.spec.counted else 0


def _status(job: _HistoryJob) -> str:
    return RUNNING if not math.isnan(job.start_s) and math.isnan(job.end_s) else job.status


def _predicted_s(job: _HistoryJob, last_s: float) -> float:
    return job.spec.predicted_s if job.spec is not None else _ran_s(job, last_s)
