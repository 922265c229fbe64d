"""Checks of columns that relate jobs: dependencies, and limits of job arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlsched.workload.cells import SEPARATOR, Where, entries


def check_relations(columns: Mapping[str, NDArray[Any]], where: Where) -> None:
    """Reject dependencies on unknown jobs or in a cycle, and contradicting limits of arrays.

    Raises:
        TraceError: names file, row, column, value expected and value found.
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
    """Return the first row of a cycle that this row waits for, or is part of."""
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
