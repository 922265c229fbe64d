"""Acme (Shanghai AI Laboratory): `trace_seren.csv` and `trace_kalos.csv`, tables of jobs.

Columns and states: InternLM/AcmeTrace, README.md, commit 6d6ac9cd15f3b01151ac6ba00ecddd9156f0dc73.
"""

from __future__ import annotations

from rlsched.workload.formats.account import Account
from rlsched.workload.formats.clock import TimeParser
from rlsched.workload.formats.frame import Conversion, JobFrame, Request
from rlsched.workload.formats.lines import TextRow, read_csv
from rlsched.workload.formats.places import title
from rlsched.workload.formats.spans import read_span

REQUIRED = ("job_id", "user", "node_num", "gpu_num", "type", "state", "submit_time", "start_time", "end_time")
MAIN = ("trace_seren.csv", "trace_kalos.csv")
_MIB_PER_GB = 1024
"""MiB per unit of the column `mem_per_pod_GB`: values are GiB, because pods request round numbers of GiB."""

LOST = (
    "the number of nodes of a job: it is kept only as x_num_nodes",
    "Kalos' shared memory, and whether a job's end is the time of its failure or of its stop",
    "there are no VCs, job names or time limits, and the nodes are not described",
)


def convert(request: Request) -> Conversion:
    """Read a job trace of Seren or Kalos.

    Raises:
        TraceError: the header lacks a required column, no job is left, or `request.strict` is true and a row
            is malformed.
    """
    account = Account(request.path, request.strict)
    jobs = JobFrame(("queue_s", "x_workload", "memory_mib", "x_num_nodes"))
    clock = TimeParser("UTC")

    def use(row: TextRow) -> None:
        span = read_span(row, clock, account)
        num_nodes, memory_gb = row.number("node_num"), row.number("mem_per_pod_GB")
        jobs.add(
            job_id=row.word("job_id"),
            submit_s=span.submit_s,
            duration_s=span.duration_s,
            num_gpus=row.need("gpu_num"),
            user=row.text("user"),
            status=row.word("state"),
            num_cpus=row.number("cpu_num"),
            extra=(
                span.queue_s,
                row.word("type"),
                None if memory_gb is None or num_nodes is None else memory_gb * num_nodes * _MIB_PER_GB,
                num_nodes,
            ),
        )

    account.read(read_csv(request.path, REQUIRED), use, TextRow.fields)
    trace, origin_s = jobs.trace(title(request.path), account, at=clock.instant)
    return Conversion(trace, (account,), clock.show(origin_s), LOST)
