"""Alibaba PAI (cluster-trace-gpu-v2020): tables of jobs, tasks, instances, tags and machines, without header.

Columns: alibaba/clusterdata, cluster-trace-gpu-v2020/data/*.header, commits
4453045c01f58e2241e963293d2e707a5f64a0f1 (jobs, instances) and 518b6250441986aca19199944065fffd1f2e79c9 (other
tables). Meaning: cluster-trace-gpu-v2020/README.md, commit 02a1be14f86d8221b53d3cbbde2c2b60ea68b95a.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rlsched.cluster.spec import ClusterSpec
from rlsched.workload.formats.account import Account, LeftOutError
from rlsched.workload.formats.frame import Conversion, JobFrame, Node, Request, node_gpus, nodes_to_cluster
from rlsched.workload.formats.lines import TextRow, read_csv
from rlsched.workload.formats.places import beside, named, title
from rlsched.workload.formats.spans import queueing

JOBS = ("job_name", "inst_id", "user", "status", "start_time", "end_time")
TASKS = (
    *("job_name", "task_name", "inst_num", "status", "start_time", "end_time"),
    *("plan_cpu", "plan_mem", "plan_gpu", "gpu_type"),
)
INSTANCES = (
    *("job_name", "task_name", "inst_name", "worker_name", "inst_id"),
    *("status", "start_time", "end_time", "machine"),
)
TAGS = ("inst_id", "user", "gpu_type_spec", "group", "workload")
MACHINES = ("machine", "gpu_type", "cap_cpu", "cap_mem", "cap_gpu")
MAIN = ("pai_job_table",)
NODES = ("pai_machine_spec",)
_PERCENT = 100.0
_MIB_PER_GB = 1024
"""MiB per GB of the publisher: the publisher's example, 29.296875 GB, is exactly 30,000 MiB."""

LOST = (
    "tasks and their roles: a job is one gang that requests the sum of its instances; above one GPU the "
    "sum is rounded up to whole GPUs, and x_plan_gpu has the exact sum",
    "the machine of each instance, its use of resources (pai_sensor_table), and the metrics of machines "
    "(pai_machine_metric)",
    "the GPU type that a task was allocated: it is kept as x_gpu_type; gpu_type is the requested type, if "
    "there is a pai_group_tag_table",
    "the publisher's clock: second 0 is the first submission (its hours and weekdays are in UTC+8)",
)


@dataclass(slots=True)
class _PaiJob:
    """A job of the job table. `gpus`, `cpus` and `memory_gb` are sums over the job's tasks.

    `cpus` and `memory_gb` are nan if the value of a task is unknown. `first_s` and `last_s` are the first
    start and the last end in the task table; `ran_from_s` and `ran_until_s`, in the instance table.
    """

    line: int
    inst_id: str
    user: str
    status: str
    submit_s: float | None
    end_s: float | None
    tasks: int = 0
    gpus: float = 0.0
    cpus: float = 0.0
    memory_gb: float = 0.0
    gpu_types: set[str] = field(default_factory=set)
    first_s: float = math.inf
    last_s: float = 0.0
    ran_from_s: float = math.inf
    ran_until_s: float = 0.0


class _Tag:
    """A row of `pai_group_tag_table`: requested GPU type, group of repeated instances, workload."""

    __slots__ = ("gpu_type", "group", "workload")

    def __init__(self, row: TextRow) -> None:
        self.gpu_type, self.group, self.workload = (
            row.word("gpu_type_spec"),
            row.text("group"),
            row.text("workload"),
        )


def convert(request: Request) -> Conversion:
    """Read `pai_job_table` and `pai_task_table`, and the optional tables in the same folder.

    Raises:
        InputError: there is no `pai_task_table` next to the job table.
        TraceError: no job is left, or `request.strict` is true and a row is malformed.
    """
    account = Account(request.path, request.strict)
    found: dict[str, _PaiJob] = {}
    account.read(read_csv(request.path, columns=JOBS), lambda row: _take_job(row, found), TextRow.fields)
    accounts = [account, _read_tasks(request, found)]
    folder = request.path.parent
    instances, groups = (named(folder, (name,))[:1] for name in ("pai_instance_table", "pai_group_tag_table"))
    tags: dict[str, _Tag] = {}
    accounts += [_read_instances(path, request, found) for path in instances]
    accounts += [_read_tags(path, request, tags) for path in groups]
    jobs = JobFrame(("queue_s", "x_workload", "memory_mib", "x_plan_gpu", "x_gpu_type"))
    for name, job in found.items():
        account.use_later(job.line, partial(_add, name, job, tags.get(job.inst_id), jobs, account))
    trace, origin_s = jobs.trace(title(request.path), account)
    cluster = None
    if request.cluster_name is not None:
        machines, cluster = _cluster(request)
        accounts.append(machines)
    return Conversion(trace, tuple(accounts), f"second {origin_s:g} of the publisher's clock", LOST, cluster)


def _take_job(row: TextRow, found: dict[str, _PaiJob]) -> None:
    name = row.word("job_name")
    if name in found:
        raise LeftOutError("job id of an earlier row")
    found[name] = _PaiJob(
        line=row.line,
        inst_id=row.word("inst_id"),
        user=row.text("user"),
        status=row.word("status"),
        submit_s=_time(row, "start_time"),
        end_s=_time(row, "end_time"),
    )


def _time(row: TextRow, column: str) -> float | None:
    """Return the time in a column, seconds; None if the field is 0 or blank, because both mean unknown."""
    return row.number(column) or None


def _read_tasks(request: Request, found: dict[str, _PaiJob]) -> Account:
    account = Account(beside(request.path, ("pai_task_table",)), request.strict)

    def use(row: TextRow) -> None:
        job = _job_of(row, found)
        instances = row.number("inst_num")
        if instances is None:
            account.note(row.line, "inst_num is blank: counted as one instance")
            instances = 1.0
        gpus, cpus, memory_gb = (row.number(f"plan_{kind}") for kind in ("gpu", "cpu", "mem"))
        if gpus is None:
            account.note(row.line, "plan_gpu is blank: its instances ask for no GPU")
            gpus = 0.0
        start_s, end_s = _time(row, "start_time"), _time(row, "end_time")
        job.tasks += 1
        job.gpus += instances * gpus / _PERCENT
        job.cpus += instances * (math.nan if cpus is None else cpus) / _PERCENT
        job.memory_gb += instances * (math.nan if memory_gb is None else memory_gb)
        if gpus and row.word("gpu_type"):
            job.gpu_types.add(row.word("gpu_type"))
        if start_s is not None:
            job.first_s = min(job.first_s, start_s)
        if end_s is not None:
            job.last_s = max(job.last_s, end_s)

    account.read(read_csv(account.path, columns=TASKS), use, TextRow.fields)
    return account


def _read_instances(path: Path, request: Request, found: dict[str, _PaiJob]) -> Account:
    account = Account(path, request.strict)

    def use(row: TextRow) -> None:
        job = _job_of(row, found)
        start_s, end_s = _time(row, "start_time"), _time(row, "end_time")
        if start_s is not None:
            job.ran_from_s = min(job.ran_from_s, start_s)
        if end_s is not None:
            job.ran_until_s = max(job.ran_until_s, end_s)

    account.read(read_csv(path, columns=INSTANCES), use)
    return account


def _job_of(row: TextRow, found: dict[str, _PaiJob]) -> _PaiJob:
    job = found.get(row.word("job_name"))
    if job is None:
        raise LeftOutError("row of a job that the job table lacks")
    return job


def _read_tags(path: Path, request: Request, tags: dict[str, _Tag]) -> Account:
    account = Account(path, request.strict)

    def use(row: TextRow) -> None:
        tags.setdefault(row.word("inst_id"), _Tag(row))

    account.read(read_csv(path, columns=TAGS), use)
    return account


def _add(name: str, job: _PaiJob, tag: _Tag | None, jobs: JobFrame, account: Account) -> None:
    if job.status == "Running":
        raise LeftOutError("still running")
    if not job.tasks:
        raise LeftOutError("no task in the task table")
    start_s = min(job.ran_from_s, job.first_s) if job.ran_from_s == math.inf else job.ran_from_s
    end_s = (job.ran_until_s if job.ran_from_s < math.inf else job.last_s) or job.end_s
    if job.status == "Waiting" or start_s == math.inf:
        raise LeftOutError("never started")
    if end_s is None:
        raise LeftOutError("no end recorded")
    if job.submit_s is None:
        raise LeftOutError("no submission time")
    exact = round(job.gpus, 6)
    gpus = exact if exact <= 1 else float(math.ceil(exact))
    if gpus != exact:
        account.note(job.line, "GPUs rounded up to a whole number")
    jobs.add(
        job_id=name,
        submit_s=job.submit_s,
        duration_s=end_s - start_s,
        num_gpus=gpus,
        user=job.user,
        job_name=tag.group if tag else "",
        status=job.status,
        gpu_type=tag.gpu_type if tag else "",
        num_cpus=None if math.isnan(job.cpus) else round(job.cpus, 6),
        extra=(
            queueing(job.submit_s, start_s, job.line, account),
            tag.workload if tag else "",
            None if math.isnan(job.memory_gb) else job.memory_gb * _MIB_PER_GB,
            exact,
            "|".join(sorted(job.gpu_types)),
        ),
    )


def _cluster(request: Request) -> tuple[Account, ClusterSpec]:
    path = beside(request.path, NODES)
    account = Account(path, request.strict)
    nodes: list[Node] = []

    def use(row: TextRow) -> None:
        gpus = node_gpus(row.need("cap_gpu"))
        memory_mib = int(row.need("cap_mem") * _MIB_PER_GB)
        nodes.append(
            (gpus, row.word("gpu_type") if gpus else "none", int(row.need("cap_cpu")), memory_mib, None)
        )

    account.read(read_csv(path, columns=MACHINES), use, TextRow.fields)
    return account, nodes_to_cluster(request.cluster_name or "", nodes, path)
