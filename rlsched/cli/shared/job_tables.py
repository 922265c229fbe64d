"""Jobs and nodes as tables, and explanations of decisions as plain data."""

from __future__ import annotations

import time
from collections.abc import Container, Mapping, Sequence
from typing import Any, Final

import msgspec
from rich.text import Text

from rlsched.broker.base.usage_words import cells, energy, memory, share
from rlsched.cli.shared.job_number import called
from rlsched.decide.record import DecisionRecord
from rlsched.forecast.forecast_text import cell
from rlsched.terminal.layout import Column, table
from rlsched.terminal.show import clock_skew, count
from rlsched.wire.messages import MAX_CLOCK_SKEW_S, Explanation, JobInfo, NodeInfo
from rlsched.wire.states import CANCELLED, COMPLETED, FAILED, LAUNCHING, QUEUED, REJECTED, RUNNING

NARROW = 100
"""Width of a terminal, in characters, below which tables omit columns or shorten names."""
COLOURS = {
    QUEUED: "yellow",
    LAUNCHING: "cyan",
    RUNNING: "green",
    FAILED: "red",
    REJECTED: "red",
    COMPLETED: "dim",
    CANCELLED: "dim",
}


_JOBS: Final = {
    column.title: column
    for column in (
        Column("job", is_right=True),
        Column("name", shrinks=True),
        Column("user"),
        Column("vc"),
        Column("gpus", is_right=True),
        Column("state"),
        Column("time", is_right=True),
        Column("starts"),
        Column("ends"),
        Column("gpu", is_right=True),
        Column("gpu memory", is_right=True),
        Column("cores", is_right=True),
        Column("memory", is_right=True),
        Column("where", 60, shrinks=True),
        Column("by"),
        Column("reason"),
        Column("where, reason"),
    )
}
USED: Final = ("gpu", "gpu memory", "cores", "memory")
"""Columns of a running job's usage: GPU utilization, peak GPU memory, cores, peak host memory."""
NARROW_NAME: Final = 14
"""Maximum width of names, users and VCs in a narrow table, characters."""


def job_lines(jobs: list[JobInfo], width: int | None, now_s: float | None = None) -> list[Text]:
    """Return a table of jobs, cut to `width` characters; None: lines are not cut.

    A table narrower than `NARROW` omits the columns of users and VCs if all jobs have the same value.
    """
    now_s = time.time() if now_s is None else now_s
    if not jobs:
        return [Text("no jobs; `rlsched queue --all` lists finished jobs")]
    narrow = width is not None and width < NARROW
    rows = [_narrow_cells(job, now_s) if narrow else _cells(job, now_s) for job in jobs]
    same = [name for name in ("user", "vc") if narrow and len({str(row[name]) for row in rows}) == 1]
    rare = ("starts", "ends", *USED)
    same += [name for name in rare if narrow or not any(row[name] for row in rows)]
    return named_table(_JOBS, rows, same, width)


def named_table(
    columns: Mapping[str, Column],
    rows: Sequence[Mapping[str, str | Text]],
    hidden: Container[str],
    width: int | None,
) -> list[Text]:
    """Return a table without the columns in `hidden`.

    A table narrower than `NARROW` has shortened names, and smaller gaps between columns.
    """
    shown = [name for name in rows[0] if name not in hidden]
    narrow = width is not None and width < NARROW
    named = [
        columns[name]._replace(max_width=NARROW_NAME)
        if narrow and name in ("name", "user", "vc", "account")
        else columns[name]
        for name in shown
    ]
    return table(named, [[row[name] for name in shown] for row in rows], width, gap=1 if narrow else 2)


def _narrow_cells(job: JobInfo, now_s: float) -> dict[str, str | Text]:
    """Return a job's cells for a narrow table. Nodes and reason are in one column: few jobs have both."""
    cells = _cells(job, now_s)
    both = [str(cells.pop("where")), str(cells.pop("reason"))]
    return cells | {"where, reason": "  ".join(filter(None, both))}


def _cells(job: JobInfo, now_s: float) -> dict[str, str | Text]:
    """Return a job's cells, by column title."""
    return {
        "job": called(job),
        "name": job.name,
        "user": job.user,
        "vc": job.vc,
        "gpus": str(job.num_gpus),
        "state": Text(job.state, style=COLOURS.get(job.state, "")),
        "time": _span(job, now_s),
        "starts": _when(job, now_s, starts=True),
        "ends": _when(job, now_s, starts=False),
        **dict(zip(USED, cells(job.usage if job.state == RUNNING else None), strict=True)),
        "where": _where(job) + _clock(job),
        "by": job.decided_by,
        "reason": (f"priority {job.priority}; " if _is_ranked(job) else "") + job.reason,
    }


def _when(job: JobInfo, now_s: float, *, starts: bool) -> str:
    """Return the forecast start or end of a job as time from now: median, 10 % and 90 % quantiles, or ""."""
    if job.forecast is None:
        return ""
    times = job.forecast.start_s if starts else job.forecast.end_s
    return cell(times, now_s, job.forecast.said_s)


def _is_ranked(job: JobInfo) -> bool:
    return job.state == QUEUED and job.priority != "normal"


_NODES: Final = {
    column.title: column
    for column in (
        Column("node"),
        Column("state"),
        Column("gpus", is_right=True),
        Column("free", is_right=True),
        Column("type", 24),
        Column("SM clock"),
        Column("gpu", is_right=True),
        Column("cores", is_right=True),
        Column("memory", is_right=True),
        Column("power", is_right=True),
        Column("today", is_right=True),
        Column("vc"),
        Column("jobs", 60, shrinks=True),
        Column("reason"),
    )
}


def node_lines(nodes: list[NodeInfo], width: int | None, num_registered: int = 0) -> list[Text]:
    """Return a table of nodes; columns that are empty for all nodes are left out.

    `num_registered`: number of all registered nodes, for the message if `nodes` is empty.
    """
    if not nodes and num_registered:
        return [Text(f"no such node; `rlsched nodes` lists {count(num_registered, 'node')}")]
    if not nodes:
        return [Text("no node has registered yet; start one with `rlsched node --name n0`")]
    clocked = any(node.max_sm_clock_mhz or node.clocks_note for node in nodes)
    rows = [_node_cells(node) for node in nodes]
    rare = ("gpu", "cores", "memory", "power", "today", "reason")
    hidden = {name for name in rare if not any(row[name] for row in rows)}
    if width is not None and width < NARROW:
        hidden |= {"cores", "memory", "today"}
    hidden |= set() if clocked else {"SM clock"}
    if width is not None and width < NARROW and len({str(row["vc"]) for row in rows}) == 1:
        hidden.add("vc")
    return named_table(_NODES, rows, hidden, width)


def _node_cells(node: NodeInfo) -> dict[str, str | Text]:
    colour = {"up": "green", "down": "red", "asleep": "blue"}.get(node.state, "yellow")
    return {
        "node": node.name,
        "state": Text(node.state, style=colour),
        "gpus": str(node.gpus),
        "free": str(node.free_gpus),
        "type": node.gpu_type,
        "SM clock": _settable(node),
        "gpu": share(node.gpu_frac),
        "cores": "" if node.cores is None else f"{node.cores:.1f}",
        "memory": "" if node.memory_mib is None else memory(node.memory_mib),
        "power": "" if node.power_w is None else f"{node.power_w:,.0f} W",
        "today": "" if node.energy_day_j is None else energy(node.energy_day_j),
        "vc": node.vc,
        "jobs": " ".join(node.called or map(str, node.jobs)),
        "reason": "; ".join([*([node.reason] if node.reason else []), *_skew(node), *node.notes]),
    }


def _skew(node: NodeInfo) -> list[str]:
    """Return a note if a node's clock differs from the broker's clock by more than `MAX_CLOCK_SKEW_S`."""
    skew_s = node.clock_skew_s
    if skew_s is None or abs(skew_s) <= MAX_CLOCK_SKEW_S:
        return []
    return [f"its clock is {clock_skew(skew_s).removesuffix(' of')}"]


def explanation_as_data(explanation: Explanation) -> dict[str, Any]:
    """Return an explanation as plain data for JSON; its decision record is decoded."""
    data: dict[str, Any] = msgspec.to_builtins(explanation)
    data["record"] = None
    if explanation.record is not None:
        record = msgspec.msgpack.decode(explanation.record, type=DecisionRecord)
        data["record"] = msgspec.to_builtins(record)
    return data


def _where(job: JobInfo) -> str:
    if job.state == QUEUED:
        return ""
    more = [f"and {job.nodes_omitted:,} more nodes"] if job.nodes_omitted else []
    named = (f"{node}[{','.join(map(str, gpus))}]" for node, gpus in zip(job.nodes, job.gpus, strict=True))
    return " ".join([*named, *more, *beside(job)])


def beside(job: JobInfo) -> list[str]:
    """Return a list with one text: the jobs that share GPUs with a job, and the job's predicted speed.

    The list is empty if the job shares no GPU.
    """
    if not job.beside:
        return []
    speed = "" if job.speed_frac is None else f" at {job.speed_frac:.0%}"
    return [f"shared with {', '.join(job.beside)}{speed}"]


def _settable(node: NodeInfo) -> str:
    return f"up to {node.max_sm_clock_mhz} MHz" if node.max_sm_clock_mhz else "fixed"


def _clock(job: JobInfo) -> str:
    """Return the reduced SM clock of a job as text; "" if the job waits or runs at the highest clock.

    The clock is in MHz for nodes that have set it, and in per cent of the highest clock for other nodes.
    """
    if job.state == QUEUED or job.sm_clock_frac is None or job.sm_clock_frac >= 1.0:
        return ""
    said = {f"{mhz} MHz" if mhz else f"{job.sm_clock_frac:.0%} clock" for mhz in job.sm_clocks_mhz}
    return f" {'/'.join(sorted(said))}"


def _span(job: JobInfo, now_s: float) -> str:
    """Return how long a job has waited or, after its start, how long it has run, H:MM:SS."""
    began = job.submit_s if job.start_s is None or job.state == QUEUED else job.start_s
    return clock((job.end_s or now_s) - began)


def clock(seconds: float) -> str:
    """Return a duration as text: `1:05:00`; from one day on, `2d 03:00:00`."""
    whole = max(0, int(seconds))
    hours, rest = divmod(whole % 86_400, 3600)
    of_a_day = f"{rest // 60:02d}:{rest % 60:02d}"
    return f"{whole // 86_400}d {hours:02d}:{of_a_day}" if whole >= 86_400 else f"{hours}:{of_a_day}"
