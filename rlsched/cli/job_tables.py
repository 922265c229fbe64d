"""Jobs, nodes and explanations as tables and as plain data."""

from __future__ import annotations

import time
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rlsched.cli import show
from rlsched.decide.record import DecisionRecord
from rlsched.terminal import visible
from rlsched.wire.messages import MAX_CLOCK_SKEW_S, Explanation, JobInfo, NodeInfo

NARROW = 100
"""Columns of a terminal below which tables leave something out."""
COLOURS = {
    "queued": "yellow",
    "launching": "cyan",
    "running": "green",
    "failed": "red",
    "rejected": "red",
    "completed": "dim",
    "cancelled": "dim",
}


def print_jobs(jobs: list[JobInfo], *, now_s: float | None = None, console: Console | None = None) -> None:
    """A table of jobs on standard output; a narrow one leaves out a user or a VC that all of them share."""
    now_s = time.time() if now_s is None else now_s
    console = console or show.console()
    if not jobs:
        console.print("no jobs; `rlsched queue --all` lists those that are over")
        return
    narrow = console.width < NARROW
    rows = [_narrow_cells(job, now_s) if narrow else _cells(job, now_s) for job in jobs]
    same = [name for name in ("user", "vc") if narrow and len({row[name] for row in rows}) == 1]
    shown = [name for name in rows[0] if name not in same]
    table = Table(box=None, pad_edge=False, collapse_padding=narrow)
    for name in shown:
        folds = name in ("where", "reason", "where, reason")
        table.add_column(
            name,
            justify="right" if name in ("job", "gpus", "time") else "left",
            overflow="fold" if folds else "ellipsis",
            no_wrap=not folds,
            max_width=(14 if narrow else 40) if name in ("name", "user", "vc") else None,
        )
    for row in rows:
        table.add_row(*(row[name] for name in shown))
    console.print(table)


def _narrow_cells(job: JobInfo, now_s: float) -> dict[str, str]:
    """A job's row with one column for place and reason; few jobs have both."""
    cells = _cells(job, now_s)
    both = [cells.pop("where"), cells.pop("reason")]
    return cells | {"where, reason": "  ".join(filter(None, both))}


def _cells(job: JobInfo, now_s: float) -> dict[str, str]:
    """A job's row, by column."""
    colour = COLOURS.get(job.state, "")
    return {
        "job": str(job.job),
        "name": _text(job.name),
        "user": _text(job.user),
        "vc": _text(job.vc),
        "gpus": str(job.num_gpus),
        "state": f"[{colour}]{job.state}[/]" if colour else job.state,
        "time": _span(job, now_s),
        "where": _text(_where(job) + _clock(job)),
        "by": job.decided_by,
        "reason": _text((f"priority {job.priority}; " if _is_ranked(job) else "") + job.reason),
    }


def _is_ranked(job: JobInfo) -> bool:
    return job.state == "queued" and job.priority != "normal"


def print_nodes(nodes: list[NodeInfo], *, console: Console | None = None) -> None:
    """A table of nodes on standard output."""
    console = console or show.console()
    if not nodes:
        console.print("no node has registered yet; start one with `rlsched node --name n0`")
        return
    table = Table(box=None, pad_edge=False)
    clocked = any(node.max_sm_clock_mhz or node.clocks_note for node in nodes)
    notes = [[*([node.reason] if node.reason else []), *_skew(node), *node.notes] for node in nodes]
    columns = ["node", "state", "gpus", "free", "type", *(["SM clock"] if clocked else []), "vc", "jobs"]
    for name in [*columns, *(["reason"] if any(notes) else [])]:
        table.add_column(name, justify="right" if name in ("gpus", "free") else "left")
    for node, said in zip(nodes, notes, strict=True):
        colour = {"up": "green", "down": "red"}.get(node.state, "yellow")
        table.add_row(
            _text(node.name),
            f"[{colour}]{node.state}[/]",
            str(node.gpus),
            str(node.free_gpus),
            _text(node.gpu_type),
            *([_settable(node)] if clocked else []),
            _text(node.vc),
            " ".join(map(str, node.jobs)),
            *([_text("; ".join(said))] if any(notes) else []),
        )
    console.print(table)


def _skew(node: NodeInfo) -> list[str]:
    """A note where a node's clock is off by more than a person would put up with."""
    skew_s = node.clock_skew_s
    if skew_s is None or abs(skew_s) <= MAX_CLOCK_SKEW_S:
        return []
    return [f"its clock is {abs(skew_s):.1f} s {'ahead' if skew_s > 0 else 'behind'}"]


def explanation_as_data(explanation: Explanation) -> dict[str, Any]:
    """An explanation for JSON, the record unpacked (features as base64)."""
    data: dict[str, Any] = msgspec.to_builtins(explanation)
    data["record"] = None
    if explanation.record is not None:
        record = msgspec.msgpack.decode(explanation.record, type=DecisionRecord)
        data["record"] = msgspec.to_builtins(record)
    return data


def _text(text: str) -> str:
    """What somebody else has written, as a cell: no markup, no control characters."""
    return escape(visible(text))


def _where(job: JobInfo) -> str:
    if job.state == "queued":
        return ""
    more = [f"and {job.nodes_omitted:,} more nodes"] if job.nodes_omitted else []
    named = (f"{node}[{','.join(map(str, gpus))}]" for node, gpus in zip(job.nodes, job.gpus, strict=True))
    return " ".join([*named, *more])


def _settable(node: NodeInfo) -> str:
    return f"up to {node.max_sm_clock_mhz} MHz" if node.max_sm_clock_mhz else "fixed"


def _clock(job: JobInfo) -> str:
    """Its SM clock, where it is not the highest: as its nodes have set it, else as it was decided on."""
    if job.state == "queued" or job.sm_clock_frac is None or job.sm_clock_frac >= 1.0:
        return ""
    said = {f"{mhz} MHz" if mhz else f"{job.sm_clock_frac:.0%} clock" for mhz in job.sm_clocks_mhz}
    return f" {'/'.join(sorted(said))}"


def _span(job: JobInfo, now_s: float) -> str:
    """Time in the queue while it waits, else time since its start, H:MM:SS."""
    began = job.submit_s if job.start_s is None or job.state == "queued" else job.start_s
    return clock((job.end_s or now_s) - began)


def clock(seconds: float) -> str:
    """A duration, H:MM:SS."""
    whole = max(0, int(seconds))
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
