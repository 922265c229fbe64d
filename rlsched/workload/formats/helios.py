"""Helios (SenseTime): `cluster_log.csv` (Slurm jobs), and `cluster_gpu_number.csv` (GPUs of each VC by day).

Columns and states: S-Lab-System-Group/HeliosData, README.md, commit 106713b0d0fc761c70073b4af018681656b60f48.
"""

from __future__ import annotations

import numpy as np

from rlsched.cluster.spec import ClusterSpec
from rlsched.errors import TraceError
from rlsched.workload.formats.account import Account, MalformedError
from rlsched.workload.formats.clock import TimeParser
from rlsched.workload.formats.frame import Conversion, JobFrame, Node, Request, nodes_to_cluster
from rlsched.workload.formats.lines import TextRow, read_csv
from rlsched.workload.formats.places import beside, title
from rlsched.workload.formats.spans import read_span

REQUIRED = ("job_id", "user", "vc", "gpu_num", "state", "submit_time", "duration")
MAIN = ("cluster_log.csv",)
NODES = ("cluster_gpu_number.csv",)
GPUS_PER_NODE = 8
"""GPUs of every node of the four published clusters (Hu et al., SC'21, table 1)."""

LOST = (
    "the number of nodes of a job: it is kept only as x_num_nodes",
    "changes of VCs from day to day: the cluster file has the VCs of one day, in the middle of the"
    " submissions",
    "CPU cores and memory of the nodes, and the model of their GPUs, are not in the files",
)


def convert(request: Request) -> Conversion:
    """Read a `cluster_log.csv`.

    Raises:
        TraceError: the header lacks a required column, no job is left, or `request.strict` is true and a row
            is malformed.
    """
    account = Account(request.path, request.strict)
    jobs = JobFrame(("queue_s", "x_num_nodes"))
    clock = TimeParser()

    def use(row: TextRow) -> None:
        span = read_span(row, clock, account)
        jobs.add(
            job_id=row.word("job_id"),
            submit_s=span.submit_s,
            duration_s=span.duration_s,
            num_gpus=row.need("gpu_num"),
            user=row.text("user"),
            vc=row.text("vc"),
            job_name=row.text("jobname"),
            status=row.word("state"),
            num_cpus=row.number("cpu_num"),
            extra=(span.queue_s, row.number("node_num")),
        )

    account.read(read_csv(request.path, REQUIRED), use, TextRow.fields)
    trace, origin_s = jobs.trace(title(request.path), account, at=clock.instant)
    accounts, cluster = [account], None
    if request.cluster_name is not None:
        middle_s = origin_s + float(np.median(trace.submit_s))
        nodes, cluster = _cluster(request, clock.show(middle_s)[:10])
        accounts.append(nodes)
    return Conversion(trace, tuple(accounts), clock.show(origin_s), LOST, cluster)


def _cluster(request: Request, day: str) -> tuple[Account, ClusterSpec]:
    """Return the VCs and their nodes on `day` (YYYY-MM-DD), or on the nearest day in the table."""
    path = beside(request.path, NODES)
    account = Account(path, request.strict)
    days: dict[str, dict[str, float]] = {}
    lines: dict[str, int] = {}

    def use(row: TextRow) -> None:
        date = row.word("date")
        if TimeParser().read(f"{date} 00:00:00", "date") is None:
            raise MalformedError("date", f"'date': expected a day such as 2020-09-01, got {date!r}")
        days[date] = {vc: row.need(vc) for vc in row.places if vc not in ("date", "total")}
        lines[date] = row.line

    account.read(read_csv(path, ("date", "total")), use, TextRow.fields)
    if not days:
        raise TraceError(f"{path}: expected a row per day, got no readable row")
    nearest = min(days, key=lambda date: (abs(np.datetime64(date) - np.datetime64(day)), date))
    account.note(lines[nearest], f"used for the cluster: the VCs of {nearest}")
    nodes: list[Node] = []
    for vc, gpus in days[nearest].items():
        whole, rest = divmod(int(gpus), GPUS_PER_NODE)
        nodes += [(GPUS_PER_NODE, "generic", 0, 0, vc)] * whole + (
            [(rest, "generic", 0, 0, vc)] if rest else []
        )
    return account, nodes_to_cluster(request.cluster_name or "", nodes, path)
