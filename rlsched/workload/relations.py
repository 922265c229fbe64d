"""Relations between jobs of a trace, and properties of jobs: dependencies, failures, flags."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlsched.workload.cells import entries
from rlsched.workload.trace import Trace


def dependencies(trace: Trace) -> dict[int, list[int]]:
    """Rows of the jobs that each row waits for; jobs outside this (part of a) trace are left out."""
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
    """By row: seconds of running after which it fails, for the first time, for the second, ..."""
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
    """Why each job can never run, also because it waits for a job that never will. (J,) "" if it can."""
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
