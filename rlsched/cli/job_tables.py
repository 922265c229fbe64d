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
from rlsched.wire.messages import Explanation, JobInfo, NodeInfo

_COLOURS = {
    "queued": "yellow",
    "launching": "cyan",
    "running": "green",
    "failed": "red",
    "rejected": "red",
    "completed": "dim",
    "cancelled": "dim",
}


def print_jobs(jobs: list[JobInfo], *, now_s: float | None = None, console: Console | None = None) -> None:
    """A table of jobs on standard output."""
    now_s = time.time() if now_s is None else now_s
    console = console or show.console()
    if not jobs:
        console.print("no jobs; `rlsched queue --all` lists those that are over")
        return
    table = Table(box=None, pad_edge=False)
    for name in ("job", "name", "user", "vc", "gpus", "state", "time", "where", "by", "reason"):
        table.add_column(
            name,
            justify="right" if name in ("job", "gpus", "time") else "left",
            overflow="fold" if name == "reason" else "ellipsis",
            no_wrap=name != "reason",
        )
    for job in jobs:
        colour = _COLOURS.get(job.state, "")
        state = f"[{colour}]{job.state}[/]" if colour else job.state
        table.add_row(
            str(job.job),
            escape(job.name),
            escape(job.user),
            escape(job.vc),
            str(job.num_gpus),
            state,
            _span(job, now_s),
            escape(_where(job)),
            job.decided_by,
            escape(job.reason),
        )
    console.print(table)


def print_nodes(nodes: list[NodeInfo], *, console: Console | None = None) -> None:
    """A table of nodes on standard output."""
    console = console or show.console()
    if not nodes:
        console.print("no node has registered yet; start one with `rlsched node --name n0`")
        return
    table = Table(box=None, pad_edge=False)
    for name in ("node", "state", "gpus", "free", "type", "vc", "jobs"):
        table.add_column(name, justify="right" if name in ("gpus", "free") else "left")
    for node in nodes:
        colour = {"up": "green", "down": "red"}.get(node.state, "yellow")
        table.add_row(
            escape(node.name),
            f"[{colour}]{node.state}[/]",
            str(node.gpus),
            str(node.free_gpus),
            escape(node.gpu_type),
            escape(node.vc),
            " ".join(map(str, node.jobs)),
        )
    console.print(table)


def explanation_as_data(explanation: Explanation) -> dict[str, Any]:
    """An explanation for JSON, the record unpacked (features as base64)."""
    data: dict[str, Any] = msgspec.to_builtins(explanation)
    data["record"] = None
    if explanation.record is not None:
        record = msgspec.msgpack.decode(explanation.record, type=DecisionRecord)
        data["record"] = msgspec.to_builtins(record)
    return data


def _where(job: JobInfo) -> str:
    if job.state == "queued":
        return ""
    return " ".join(
        f"{node}[{','.join(map(str, gpus))}]" for node, gpus in zip(job.nodes, job.gpus, strict=True)
    )


def _span(job: JobInfo, now_s: float) -> str:
    """Time in the queue while it waits, else time since its start, H:MM:SS."""
    began = job.submit_s if job.start_s is None or job.state == "queued" else job.start_s
    seconds = max(0, int((job.end_s or now_s) - began))
    return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
