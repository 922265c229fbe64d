"""The Standard Workload Format, version 2.2: 18 numbers per job, -1 if unknown; comments begin with `;`.

Fields and codes: the Parallel Workloads Archive's definition,
https://www.cs.huji.ac.il/labs/parallel/workload/swf.html.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rlsched.cluster.spec import MAX_GPUS_PER_NODE, ClusterSpec
from rlsched.errors import InputError
from rlsched.workload.formats.account import Account, LeftOutError, MalformedError
from rlsched.workload.formats.clock import TimeParser
from rlsched.workload.formats.frame import Conversion, JobFrame, Request, nodes_to_cluster
from rlsched.workload.formats.lines import read_lines
from rlsched.workload.formats.places import title
from rlsched.workload.formats.spans import enforced_limit

FIELDS = (
    *("job number", "submit time", "wait time", "run time", "allocated processors", "average CPU time"),
    *("used memory", "requested processors", "requested time", "requested memory", "status", "user", "group"),
    *("executable", "queue", "partition", "preceding job", "think time"),
)
STATUS = {0: "failed", 1: "completed", 5: "cancelled", -1: ""}
PARTIAL = (2, 3, 4)
"""Status codes of lines with a part of a job that was swapped out; another line has the whole job."""
GPUS = "processors are CPU cores; give --processors gpus to `rlsched trace convert` if they are GPUs"
"""Advice for a history in which no job has GPUs."""
_KIB_PER_MIB = 1024

LOST = (
    "GPUs: a processor is a CPU core, or with --processors gpus a GPU",
    "CPU time and memory that were used; group, queue and think time are kept only as x_group, x_queue "
    "and x_think_time_s",
    "time between the end of the preceding job and the submission: depends_on has only the order; "
    "a preceding job that was skipped, or that is on a later line",
    "the zone of the wall clock: the origin is in UTC",
)


class _Header:
    """Header comments of the form `; Key: value`."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def take(self, comment: str) -> None:
        key, colon, value = comment.lstrip("; \t").partition(":")
        if colon:
            self.values.setdefault(key.strip(), value.strip())

    def number(self, key: str) -> int | None:
        value = (self.values.get(key, "").split() or [""])[0]
        return int(value) if value.isdecimal() else None


def convert(request: Request) -> Conversion:
    """Read a workload log.

    Raises:
        TraceError: no job is left, or `request.strict` is true and a line is malformed.
        InputError: the nodes are requested, and the header comments do not describe them.
    """
    account = Account(request.path, request.strict)
    jobs = JobFrame(
        ("queue_s", "memory_mib", "depends_on", "x_queue", "x_group", "x_think_time_s", "x_time_limit_s")
    )
    header = _Header()
    gpus = request.processors == "gpus"
    account.read(_rows(request.path, header), lambda row: _add(row, jobs, gpus, account), _fields)
    start = header.number("UnixStartTime")
    clock = TimeParser("UTC")
    at = None if start is None else lambda log_s: clock.instant(start + log_s)
    trace, origin_s = jobs.trace(title(request.path), account, at=at)
    cluster = _cluster(request, header) if request.cluster_name is not None else None
    origin = f"second {origin_s:g} of the log"
    if start is not None:
        origin += f", {clock.show(start + origin_s)}"
    return Conversion(trace, (account,), origin, LOST, cluster)


class _SwfLine(NamedTuple):
    """A line of the file: its line number, and its fields."""

    line: int
    numbers: list[float]


def _fields(row: _SwfLine) -> bytes:
    return struct.pack(f"{len(FIELDS)}d", *row.numbers)


def _rows(path: Path, header: _Header) -> Iterator[tuple[int, _SwfLine | MalformedError]]:
    for line, text in read_lines(path):
        if isinstance(text, MalformedError):
            yield line, text
        elif text.lstrip().startswith(";"):
            header.take(text.strip())
        else:
            numbers = _numbers(text)
            yield line, numbers if isinstance(numbers, MalformedError) else _SwfLine(line, numbers)


def _numbers(text: str) -> list[float] | MalformedError:
    words = text.split()
    if len(words) != len(FIELDS):
        return MalformedError("number of fields", f"expected {len(FIELDS)} fields, got {len(words)}")
    numbers: list[float] = []
    for name, word in zip(FIELDS, words, strict=True):
        try:
            number = float(word)
        except ValueError:
            number = float("nan")
        if not -1 <= number < float("inf") or "_" in word:
            return MalformedError(name, f"field {name!r}: expected a number, -1 or more, got {word[:40]!r}")
        numbers.append(number)
    return numbers


def _add(row: _SwfLine, jobs: JobFrame, as_gpus: bool, account: Account) -> None:
    field = dict(zip(FIELDS, row.numbers, strict=True))
    for name in ("job number", "preceding job", "status"):
        if not field[name].is_integer():
            raise MalformedError(name, f"field {name!r}: expected a whole number, got {field[name]:g}")
    if field["job number"] < 0:
        raise MalformedError("job number", "field 'job number': expected 0 or more, got -1")
    status = int(field["status"])
    if status in PARTIAL:
        raise LeftOutError("partial record of a job that another line sums up")
    if status not in STATUS:
        raise MalformedError("status", f"field 'status': expected -1 to 5, got {status}")
    if field["run time"] < 0 or (status == 5 and field["run time"] == 0):
        raise LeftOutError("cancelled before it started" if status == 5 else "run time unknown")
    if field["submit time"] < 0:
        raise LeftOutError("submit time unknown")
    processors = field["allocated processors"]
    if processors <= 0:
        processors = field["requested processors"]
    if processors <= 0:
        raise LeftOutError("processors unknown")
    memory_kib = _known(field["requested memory"])
    preceding = f"{field['preceding job']:.0f}"
    limit_s, asked_s = enforced_limit(_known(field["requested time"]), field["run time"], row.line, account)
    jobs.add(
        job_id=f"{field['job number']:.0f}",
        submit_s=field["submit time"],
        duration_s=field["run time"],
        num_gpus=processors if as_gpus else 0.0,
        num_cpus=None if as_gpus else processors,
        user=_id(field["user"]),
        vc=_id(field["partition"]),
        job_name=_id(field["executable"]),
        status=STATUS[status],
        time_limit_s=limit_s,
        extra=(
            _known(field["wait time"]),
            None if memory_kib is None else memory_kib * processors / _KIB_PER_MIB,
            preceding if jobs.has_job(preceding) else "",
            _id(field["queue"]),
            _id(field["group"]),
            _id(field["think time"]),
            asked_s,
        ),
    )


def _known(value: float) -> float | None:
    return None if value < 0 else value


def _id(value: float) -> str:
    return "" if value < 0 else f"{value:g}" if value < 1e6 else f"{value:.0f}"


def _cluster(request: Request, header: _Header) -> ClusterSpec:
    """Return a cluster of equal nodes: `MaxNodes` nodes with `MaxProcs` processors (GPUs) in total."""
    if request.processors != "gpus":
        raise InputError(
            f"{request.path}: the format does not describe GPUs; give --processors gpus, or leave out "
            "--cluster-out"
        )
    nodes, processors = header.number("MaxNodes"), header.number("MaxProcs")
    if not nodes or not processors or processors % nodes or processors // nodes > MAX_GPUS_PER_NODE:
        raise InputError(
            f"{request.path}: expected 1 to {MAX_GPUS_PER_NODE} processors per node, from the comments "
            f"MaxProcs and MaxNodes, got {processors} processors on {nodes} nodes; leave out --cluster-out"
        )
    kind = (processors // nodes, "generic", 0, 0, None)
    return nodes_to_cluster(request.cluster_name or "", [kind] * nodes, request.path)
