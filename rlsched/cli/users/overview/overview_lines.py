"""The overview of a cluster as lines of text, for a screen of any size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from rich.text import Text

from rlsched.broker.base.usage_words import cells, energy
from rlsched.cli.shared.job_number import called
from rlsched.cli.shared.job_tables import COLOURS, beside
from rlsched.cli.users.output import place
from rlsched.cli.users.overview.bars import Marks, node_cells, nodes_title, owner_cell
from rlsched.cli.users.overview.picture import Picture
from rlsched.cli.users.status import power_limit_words, queued
from rlsched.forecast.forecast_text import cell
from rlsched.terminal.layout import Column, joined, shares, side_by_side, table, window
from rlsched.terminal.show import brief, count, in_words, percent
from rlsched.terminal.visible import visible
from rlsched.wire.messages import JobInfo
from rlsched.wire.states import RUNNING

_FORECAST: Final = {"start": "starts", "end": "ends", "end-running": "ends (running)"}
WIDE: Final = 110
"""Minimum width, characters, of a screen that shows forecasts with their quantiles."""


def overview(
    picture: Picture,
    columns: int,
    height: int | None,
    now_s: float,
    marks: Marks,
    chosen: int | None = None,
) -> list[Text]:
    """Return the overview as lines.

    Args:
        picture: State of the cluster.
        columns: Maximum width of a line, characters.
        height: Maximum number of lines; None: no limit.
        now_s: Current time, Unix seconds.
        marks: Letters of the users.
        chosen: Number of the job at the cursor; None: there is no cursor.
    """
    head = _head(picture, columns)
    for owner in picture.owners:  # users with most GPUs get their letters first
        marks.letter_of(owner.user)
    nodes = side_by_side(node_cells(picture, marks), columns)
    users = side_by_side([owner_cell(one, marks) for one in picture.owners], columns)
    parts: list[tuple[Text, int, Callable[[int | None], list[Text]]]] = [
        (nodes_title(picture), len(nodes), lambda room: _cut(nodes, room, len(picture.nodes), "nodes")),
        (
            Text("USERS", style="bold"),
            len(users),
            lambda room: _cut(users, room, len(picture.owners), "users"),
        ),
        (
            Text(f"RUNNING {len(picture.running):,}", style="bold"),
            _height(picture.running),
            lambda room: _jobs(picture.running, _RUNNING, _running_row, columns, room, now_s, chosen),
        ),
        (
            Text(f"QUEUE {len(picture.queue):,}, in its order", style="bold"),
            _height(picture.queue),
            lambda room: _jobs(picture.queue, _QUEUE, _queue_row, columns, room, now_s, chosen),
        ),
    ]
    given: list[int | None] = [None] * len(parts)
    if height is not None:
        given = list(shares([wanted for _, wanted, _ in parts], height - len(head) - len(parts)))
    page = list(head)
    for (title, _, lines), room in zip(parts, given, strict=True):
        page += [title, *lines(room)]
    for line in page:
        line.truncate(columns, overflow="ellipsis")
    return page if height is None else page[:height]


def _head(picture: Picture, columns: int) -> list[Text]:
    stats = picture.stats
    counts = [
        queued(stats),
        f"{stats.running:,} running",
        f"{stats.ended:,} finished",
        f"policy {stats.policy}",
        f"up {in_words(stats.uptime_s)}",
    ]
    gpus = [
        f"{kind}: {of.held:,} of {count(of.total, 'GPU')} held, {of.free:,} free"
        + (f", {of.absent:,} absent" if of.absent else "")
        for kind, of in stats.gpus.items()
    ]
    lines = [
        joined([Text("rlsched top", style="bold"), *counts], columns),
        joined([*(gpus or ["no GPUs yet"]), *_energy(picture)], columns, between=" · "),
    ]
    lines += [joined(parts, columns, between=" · ") for parts in _forecasts(picture)]
    if stats.guard is not None and stats.guard.now:
        lines.append(Text(visible(f"the fallback {stats.fallback} decides: {stats.guard.now}"), style="red"))
    return lines


def _forecasts(picture: Picture) -> list[list[str]]:
    """Return the accuracy of the last week's forecasts as lines; each line is a list of texts.

    The result is empty if no outcome of a forecast is known.
    """
    report, told = picture.stats.forecasts, []
    for one in report.scores if report is not None else ():
        if one.size == "all":
            rules = (f"{name} {loss:,.0f}" for name, loss in one.rules.items() if loss is not None)
            share = f"{percent(one.covered_frac)} of {one.jobs:,} in 10 to 90 %"
            told.append(
                [
                    f"forecast {_FORECAST.get(one.what, one.what)}: {share}",
                    f"loss {one.loss_s:,.0f} s",
                    *rules,
                ]
            )
    return told


def _energy(picture: Picture) -> list[str]:
    """Return texts on power, energy, weight of energy, electricity price and power limit, as far as known."""
    stats, told = picture.stats, []
    if picture.power_w is not None:
        told.append(f"{picture.power_w / 1e3:,.2f} kW")
    if stats.energy_day_j is not None:
        told.append(f"{energy(stats.energy_day_j)} today")
    if stats.speed_energy or stats.clocked:
        told.append(
            f"energy counts {stats.speed_energy:g}: {stats.clocked:,} of {stats.running:,} jobs clocked down"
        )
    if stats.price is not None:
        told.append(
            f"price {stats.price.price:g}, {stats.price.ratio:.2f} times its mean; jobs that wait for a "
            f"lower one: {stats.price.deferred:,}"
        )
    if stats.power_limit is not None:
        told.append(power_limit_words(stats.power_limit))
    return told


# ---- nodes and users --------------------------------------------------------------------------------------


def _cut(lines: list[Text], room: int | None, count: int, what: str) -> list[Text]:
    """Return at most `room` lines. If lines are omitted, the last line has the number of omitted items.

    Each line shows several items, such as nodes. `count` is the number of all items, `what` their name.
    """
    if room is None or len(lines) <= room:
        return lines
    if room < 1:
        return []
    a_line = -(-count // len(lines))
    return [*lines[: room - 1], Text(f"… {count - a_line * (room - 1):,} more {what}", style="dim")]


# ---- jobs -------------------------------------------------------------------------------------------------

_COMMON = (Column(" job", 12), Column("name", 16), Column("user", 10), Column("gpus", 5, is_right=True))
_RUNNING: Final = (
    *_COMMON,
    Column("ran", 8, is_right=True),
    Column("left", 8, is_right=True),
    Column("speed (seen)", 12, is_right=True),
    Column("gpu", 5, is_right=True),
    Column("cores", 5, is_right=True),
    Column("where"),
)
_QUEUE: Final = (*_COMMON, Column("waited", 8, is_right=True), Column("starts", 20), Column("reason"))


def _common(job: JobInfo) -> list[str | Text]:
    return [f" {called(job)}", job.name, job.user, f"{job.num_gpus:,}"]


def _running_row(job: JobInfo, now_s: float, is_wide: bool) -> list[str | Text]:  # noqa: ARG001
    ran = "" if job.start_s is None else brief(now_s - job.start_s)
    speed = "" if job.speed_frac is None else f"{job.speed_frac:.0%}"
    if job.seen_speed_frac is not None:
        speed += f" ({job.seen_speed_frac:.0%})"
    where = Text(visible(place(job)))
    if job.state != RUNNING:
        where = Text(f"{job.state} ", style=COLOURS.get(job.state, "")).append_text(where)
    for word in beside(job):
        where.append(f"  {visible(word)}", style="dim")
    if job.reason:
        where.append(f"  {visible(job.reason)}", style="dim")
    used, _, cores, _ = cells(job.usage if job.state == RUNNING else None)
    return [*_common(job), ran, remaining_text(job, now_s), speed, used, cores, where]


def remaining_text(job: JobInfo, now_s: float) -> str:
    """Return the remaining time of a job by its forecast, else by its predicted run time, marked `~`."""
    if job.forecast is not None:
        end_s = job.forecast.end_s[1]
        return ">7d" if end_s is None else brief(max(end_s - now_s, 0.0))
    if job.predicted_s is None or job.start_s is None:
        return ""
    rest_s = job.start_s + job.predicted_s - now_s
    return f"~{brief(rest_s)}" if rest_s > 0.0 else "late"


def _queue_row(job: JobInfo, now_s: float, is_wide: bool) -> list[str | Text]:
    starts = "" if job.forecast is None else cell(job.forecast.start_s, now_s, job.forecast.said_s)
    ranked = f"priority {job.priority}; " if job.priority != "normal" else ""
    return [
        *_common(job),
        brief(now_s - job.submit_s),
        starts if is_wide else starts.partition(" ")[0],
        ranked + job.reason,
    ]


def _height(jobs: list[JobInfo]) -> int:
    return len(jobs) + 1 if jobs else 0


def _jobs(
    jobs: list[JobInfo],
    columns: Sequence[Column],
    row: Callable[[JobInfo, float, bool], list[str | Text]],
    width: int,
    room: int | None,
    now_s: float,
    chosen: int | None,
) -> list[Text]:
    """Return a table of at most `room` lines. If not all jobs fit, show the jobs around the cursor."""
    if not jobs or room == 0:
        return []
    shown, more = jobs, 0
    if room is not None and len(jobs) + 1 > room:
        at = next((at for at, job in enumerate(jobs) if job.job == chosen), None)
        first, last = window(len(jobs), max(room - 2, 0), at)
        shown, more = jobs[first:last], len(jobs) - (last - first)
    rows = [row(job, now_s, width >= WIDE) for job in shown]
    told = [at for at in range(len(columns)) if at == len(columns) - 1 or any(cells[at] for cells in rows)]
    lines = table([columns[at] for at in told], [[cells[at] for at in told] for cells in rows], width)
    for job, line in zip(shown, lines[1:], strict=True):
        if job.job == chosen:
            line.plain = ">" + line.plain[1:]
            line.stylize("reverse")
    if more:
        lines.append(Text(f"… {more:,} more", style="dim"))
    return lines[:room]
