"""What jobs of a trace say of each other and of their own lives: dependencies, arrays, failures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from rlsched.workload.trace import Trace
    from rlsched.workload.validate import Where

SEPARATOR = ";"
"""Between the entries of `depends_on` and of `fail_after_s`."""


def entries(cell: str) -> list[str]:
    """The entries of a cell that holds several; none of a blank one."""
    return [entry.strip() for entry in cell.split(SEPARATOR)] if cell else []


def dependencies(trace: Trace) -> dict[int, list[int]]:
    """Rows of the jobs that each row waits for; jobs that are not in this (part of a) trace are left out."""
    cells = trace.extra.get("depends_on")
    if cells is None or not (cells != "").any():
        return {}
    row_of = {job_id: row for row, job_id in enumerate(trace.job_id.tolist())}
    found = {}
    for row in np.flatnonzero(cells != "").tolist():
        parents = dict.fromkeys(row_of[job_id] for job_id in entries(str(cells[row])) if job_id in row_of)
        if parents:
            found[row] = list(parents)
    return found


def failures(trace: Trace) -> dict[int, list[float]]:
    """By row: after how many seconds of running it fails, for the first time, for the second, ..."""
    cells = trace.extra.get("fail_after_s")
    if cells is None:
        return {}
    rows = np.flatnonzero(cells != "").tolist()
    return {row: [float(entry) for entry in entries(str(cells[row]))] for row in rows}


def flags(trace: Trace, name: str) -> NDArray[np.int8]:
    """(J,) a flag column: 1 true, 0 false, -1 blank."""
    cells = trace.extra.get(name)
    if cells is None:
        return np.full(len(trace), -1, np.int8)
    return np.where(cells == "true", 1, np.where(cells == "false", 0, -1)).astype(np.int8)


def reject_dependents(trace: Trace, reasons: NDArray[np.str_]) -> NDArray[np.str_]:
    """Why each job can never run: also those that wait for a job that never will. (J,) "" where it can."""
    found = dependencies(trace)
    if not found or not (reasons != "").any():
        return reasons
    children: dict[int, list[int]] = {}
    for row, parents in found.items():
        for parent in parents:
            children.setdefault(parent, []).append(row)
    out = {row: str(reason) for row, reason in enumerate(reasons.tolist()) if reason}
    left = list(out)
    while left:
        parent = left.pop()
        for row in children.get(parent, ()):
            if row not in out:
                out[row] = f"depends on job {trace.job_id[parent]!s}, which can never run"
                left.append(row)
    return np.array([out.get(row, "") for row in range(len(trace))], dtype=np.str_)


def check_relations(columns: Mapping[str, NDArray[Any]], where: Where) -> None:
    """Refuse dependencies on unknown jobs or in a circle, and limits of arrays that contradict each other.

    Raises:
        TraceError: naming file, row, column, what was expected and what came.
    """
    if "depends_on" in columns:
        _check_dependencies(columns["job_id"], columns["depends_on"], where)
    if "array_limit" in columns:
        _check_arrays(columns.get("array_id"), columns["array_limit"], where)


def _check_dependencies(job_id: NDArray[np.str_], cells: NDArray[np.str_], where: Where) -> None:
    rows = np.flatnonzero(cells != "").tolist()
    if not rows:
        return
    row_of = {one: row for row, one in enumerate(job_id.tolist())}
    parents: dict[int, set[int]] = {}
    for row in rows:
        for entry in entries(str(cells[row])):
            if entry not in row_of:
                expected = f"ids of jobs of this trace, with {SEPARATOR!r} between"
                where.refuse(row, "depends_on", expected, entry)
            if row_of[entry] == row:
                where.refuse(row, "depends_on", "ids of other jobs than this one", entry)
            parents.setdefault(row, set()).add(row_of[entry])
    children: dict[int, list[int]] = {}
    for row, mine in parents.items():
        for parent in mine:
            children.setdefault(parent, []).append(row)
    open_parents = {row: len(mine) for row, mine in parents.items()}
    free = [row for row in children if row not in parents]
    while free:
        for row in children.get(free.pop(), ()):
            open_parents[row] -= 1
            if not open_parents[row]:
                free.append(row)
    caught = [row for row in rows if open_parents[row]]
    if caught:
        row = _on_circle(caught[0], parents, open_parents)
        where.refuse(row, "depends_on", "no circle of jobs that wait for each other", cells[row])


def _on_circle(row: int, parents: dict[int, set[int]], open_parents: dict[int, int]) -> int:
    """The first row of a circle that this one waits for, or is on itself."""
    seen: dict[int, None] = {}
    while row not in seen:
        seen[row] = None
        row = min(parent for parent in parents[row] if open_parents.get(parent))
    path = list(seen)
    return min(path[path.index(row) :])


def _check_arrays(ids: NDArray[np.str_] | None, limit: NDArray[np.float64], where: Where) -> None:
    limit_of: dict[str, float] = {}
    for row in np.flatnonzero(~np.isnan(limit)).tolist():
        array = "" if ids is None else str(ids[row])
        if not array:
            where.refuse(row, "array_limit", "blank, since the job has no array_id", f"{limit[row]:g}")
        if limit[row] < 1 or limit[row] != int(limit[row]):
            where.refuse(row, "array_limit", "a whole number of tasks, 1 or more", f"{limit[row]:g}")
        if limit_of.setdefault(array, limit[row]) != limit[row]:
            expected = f"the limit that array {array!r} has elsewhere, {limit_of[array]:g}"
            where.refuse(row, "array_limit", expected, f"{limit[row]:g}")
