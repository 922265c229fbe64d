"""Input (`Request`) and output (`Conversion`) of every converter; `JobFrame`, which collects the jobs."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from rlsched.cluster.spec import MAX_GPUS_PER_NODE, ClusterSpec, NodeGroup
from rlsched.errors import TraceError
from rlsched.workload.formats.account import Account, LeftOutError, MalformedError, summed
from rlsched.workload.trace import Trace
from rlsched.workload.validate import KNOWN, MAX_TEXT

_SURROGATE = re.compile("[\ud800-\udfff]")
"""A surrogate code point. JSON can contain one without its partner, but UTF-8 cannot encode it."""

Node = tuple[int, str, int, int, str | None]
"""A node: GPUs, GPU type, CPU cores (0: unknown), memory in MiB (0: unknown), VC (None: serves all VCs)."""


@dataclass(frozen=True)
class Request:
    """Input of a conversion.

    Attributes:
        path: The publisher's main file.
        strict: Whether to stop at the first malformed row.
        timezone: Zone of times that are written without a zone; None: the format's own zone.
        processors: Meaning of the word processor in the Standard Workload Format: `cpus` or `gpus`.
        cluster_name: Name of the cluster to create from the description of the nodes; None: create none.
        more: Further files (exports) with the same list of jobs; a line that occurs in several files counts
            once.
    """

    path: Path
    strict: bool = False
    timezone: str | None = None
    processors: str = "cpus"
    cluster_name: str | None = None
    more: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Conversion:
    """Result of the conversion of a publisher's file.

    Attributes:
        trace: The jobs that were kept.
        accounts: For each file, the numbers of rows read, kept and skipped. The first `exports` entries are
            for the files that list jobs; their `kept` rows are in the trace.
        origin: Second 0 of the trace as text, in the publisher's clock.
        lost: Data of the original files that the trace lacks.
        cluster: The nodes; None: they were not requested.
        exports: Number of files with the list of jobs.
    """

    trace: Trace
    accounts: tuple[Account, ...]
    origin: str
    lost: tuple[str, ...]
    cluster: ClusterSpec | None = None
    exports: int = 1


class JobFrame:
    """Collector of the jobs of a conversion, column by column.

    Args:
        extra: Headers of optional columns without an attribute in `Trace`. The argument `extra` of `add`
            takes their values, in this order.
    """

    def __init__(self, extra: Sequence[str] = ()) -> None:
        self._headers = tuple(extra)
        self._columns: dict[str, list[Any]] = {
            name: []
            for name in (
                *(
                    "job_id",
                    "submit_s",
                    "duration_s",
                    "num_gpus",
                    "user",
                    "vc",
                    "job_name",
                    "status",
                    "gpu_type",
                ),
                *("num_cpus", "time_limit_s", *self._headers),
            )
        }
        self._ids: set[str] = set()

    def __len__(self) -> int:
        return len(self._ids)

    def add(
        self,
        *,
        job_id: str,
        submit_s: float,
        duration_s: float,
        num_gpus: float,
        user: str = "",
        vc: str = "",
        job_name: str = "",
        status: str = "",
        gpu_type: str = "",
        num_cpus: float | None = None,
        time_limit_s: float | None = None,
        extra: Sequence[Any] = (),
    ) -> None:
        """Add one job. A value of None is unknown. `submit_s` is in seconds of the publisher's clock.

        Raises:
            MalformedError: a value violates the normal form.
            LeftOutError: an earlier job has the same ID.
        """
        if not job_id:
            raise MalformedError("job id", "expected a job id, got a blank")
        if duration_s < 0:
            raise MalformedError(
                "end before start", f"expected an end after the start, got {duration_s:.15g} s"
            )
        numbers = (submit_s, duration_s, num_gpus, num_cpus, time_limit_s, *extra)
        if not all(math.isfinite(value) for value in numbers if isinstance(value, float)):
            raise MalformedError("number too large", "expected finite numbers, got infinity or nan")
        if num_gpus < 0 or (num_gpus > 1 and num_gpus != int(num_gpus)):
            raise MalformedError("GPUs", f"expected whole GPUs, or a share of one, got {num_gpus:g}")
        texts = (job_id, user, vc, job_name, status, gpu_type, *(x for x in extra if isinstance(x, str)))
        for text in texts:
            if len(text) > MAX_TEXT or "\0" in text or _SURROGATE.search(text):
                raise MalformedError(
                    "text",
                    f"expected text of at most {MAX_TEXT} characters without NUL or surrogates, "
                    f"got {text[:40]!r}...",
                )
        if job_id in self._ids:
            raise LeftOutError("job id of an earlier row")
        self._ids.add(job_id)
        row = (
            *(job_id, submit_s, duration_s, num_gpus),
            *(
                sys.intern(user),
                sys.intern(vc),
                sys.intern(job_name),
                sys.intern(status),
                sys.intern(gpu_type),
            ),
            *(num_cpus, time_limit_s, *extra),
        )
        for column, value in zip(self._columns.values(), row, strict=True):
            column.append(value)

    def has_job(self, job_id: str) -> bool:
        """Return whether a job with this ID has been added."""
        return job_id in self._ids

    def trace(
        self, name: str, *accounts: Account, at: Callable[[float], datetime | None] | None = None
    ) -> tuple[Trace, float]:
        """Return the trace, and the time of its second 0 in seconds of the publisher's clock.

        Second 0 is the first submission.

        Args:
            name: Name of the trace.
            *accounts: Row counts of the files that list jobs; used in error messages.
            at: Function that converts seconds of the publisher's clock to wall-clock time; None: the
                wall-clock time is unknown.

        Raises:
            TraceError: there is no job, because every row was skipped; the message names the reasons.
        """
        if not self._ids:
            raise TraceError(_nothing_kept(accounts))
        columns = dict(self._columns)
        submit_s = np.array(columns.pop("submit_s"), dtype=np.float64)
        origin_s = float(submit_s.min())
        extra = {header: _cells(header, columns.pop(header)) for header in self._headers}
        for header in ("num_cpus", "time_limit_s"):
            columns[header] = [np.nan if value is None else value for value in columns[header]]
        trace = Trace.from_columns(
            name=name,
            submit_s=submit_s - origin_s,
            duration_s=columns.pop("duration_s"),
            num_gpus=columns.pop("num_gpus"),
            extra={header: cells for header, cells in extra.items() if any(cell != "" for cell in cells)},
            origin=at(origin_s) if at is not None else None,
            **columns,
        )
        return trace, origin_s


def _cells(header: str, values: list[Any]) -> list[Any]:
    column = KNOWN.get(header)
    if column is not None and column.kind != "text":
        return ["" if value is None else float(value) for value in values]
    return ["" if value is None else _plain(value) for value in values]


def _plain(value: object) -> str:
    return f"{value:.0f}" if isinstance(value, float) and value.is_integer() else str(value)


def _nothing_kept(accounts: Sequence[Account]) -> str:
    skipped = summed([account.skipped for account in accounts])
    reasons = ", ".join(f"{tally.count:,} {reason}" for reason, tally in skipped.items())
    first = next((tally.example for tally in skipped.values() if tally.example), "")
    files = ", ".join(str(account.path) for account in accounts)
    rows = sum(account.rows for account in accounts)
    return (
        f"{files}: expected at least one job, kept none of {rows:,} rows"
        + (f" ({reasons})" if reasons else "")
        + (f"; the first malformed one: {first}" if first else "")
    )


def nodes_to_cluster(name: str, nodes: Iterable[Node], source: Path) -> ClusterSpec:
    """Return the cluster of these nodes; equal nodes form one group, in order of first appearance.

    Args:
        name: Name of the cluster.
        nodes: The nodes.
        source: File from which the nodes were read, for messages.

    Raises:
        ClusterSpecError: no node has a GPU.
    """
    counts: dict[Node, int] = {}
    for node in nodes:
        counts[node] = counts.get(node, 0) + 1
    spec = ClusterSpec(
        name=name,
        nodes=tuple(
            NodeGroup(count=count, gpus=gpus, gpu_type=gpu_type, cpus=cpus, memory_mib=memory_mib, vc=vc)
            for (gpus, gpu_type, cpus, memory_mib, vc), count in counts.items()
        ),
    )
    spec.check(str(source))
    return spec


def node_gpus(gpus: float) -> int:
    """Check the number of GPUs of one node.

    Raises:
        MalformedError: The number is not a whole number from 0 to the maximum of a node.
    """
    if gpus != int(gpus) or not 0 <= gpus <= MAX_GPUS_PER_NODE:
        raise MalformedError("GPUs", f"expected 0 to {MAX_GPUS_PER_NODE} whole GPUs on a node, got {gpus:g}")
    return int(gpus)
