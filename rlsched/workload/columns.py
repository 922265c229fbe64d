"""The columns of a trace in its normal form: their headers, their attributes, and their permitted values."""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["text", "seconds", "gpus", "amount", "flag", "times", "instant"]

EXPECTED: dict[str, str] = {
    "text": "text",
    "seconds": "seconds, finite and 0 or more",
    "gpus": "a whole number of GPUs, or a share between 0 and 1",
    "amount": "a finite number, 0 or more",
    "flag": "true or false",
    "times": "seconds, finite and 0 or more, with ';' between",
    "instant": "the same time in every row, such as 2024-03-01T09:00:00+01:00",
}
"""Permitted values of a cell of each kind, as worded in an error message."""


class TraceColumn(NamedTuple):
    """One column of the normal form.

    Attributes:
        attribute: Its name as an array of `Trace`, or None: it is kept in `Trace.extra` (`origin`: as one
            time, `Trace.origin`).
        kind: Kind of its values.
        required: Whether the column must exist, without blank cells.
    """

    name: str
    attribute: str | None
    kind: Kind
    required: bool = False


BASE: tuple[TraceColumn, ...] = (
    TraceColumn("job_id", "job_id", "text", required=True),
    TraceColumn("user", "user", "text"),
    TraceColumn("vc", "vc", "text"),
    TraceColumn("name", "job_name", "text"),
    TraceColumn("submit_time", "submit_s", "seconds", required=True),
    TraceColumn("duration", "duration_s", "seconds", required=True),
    TraceColumn("num_gpus", "num_gpus", "gpus", required=True),
    TraceColumn("num_cpus", "num_cpus", "amount"),
    TraceColumn("status", "status", "text"),
)
"""The nine columns that are always written."""

OPTIONAL: tuple[TraceColumn, ...] = (
    TraceColumn("gpu_type", "gpu_type", "text"),
    TraceColumn("gpu_memory_mib", None, "amount"),
    TraceColumn("memory_mib", None, "amount"),
    TraceColumn("workload", None, "text"),
    TraceColumn("queue_s", None, "seconds"),
    TraceColumn("predicted_duration", "predicted_s", "seconds"),
    TraceColumn("predicted_spread", "predicted_spread", "amount"),
    TraceColumn("time_limit", "time_limit_s", "seconds"),
    TraceColumn("preemptible", None, "flag"),
    TraceColumn("shares", None, "flag"),
    TraceColumn("checkpoint_s", None, "seconds"),
    TraceColumn("restart_s", None, "seconds"),
    TraceColumn("fail_after_s", None, "times"),
    TraceColumn("depends_on", None, "text"),
    TraceColumn("array_id", None, "text"),
    TraceColumn("array_limit", None, "amount"),
    TraceColumn("origin", None, "instant"),
)
"""Written only if a value is known. `predicted_spread` is the sd of ln(true / predicted)."""

KNOWN: dict[str, TraceColumn] = {column.name: column for column in BASE + OPTIONAL}
BY_ATTRIBUTE: dict[str, TraceColumn] = {
    column.attribute: column for column in KNOWN.values() if column.attribute
}
PASS_THROUGH = "x_"
"""Columns with this prefix are passed through unchanged."""


def column_of(name: str) -> TraceColumn | None:
    """Return the column with this header; None: unknown to rlsched."""
    if name.startswith(PASS_THROUGH) and len(name) > len(PASS_THROUGH):
        return TraceColumn(name, None, "text")
    return KNOWN.get(name)


def known_names() -> str:
    """All headers, for a message."""
    return ", ".join([*KNOWN, PASS_THROUGH + "*"])
