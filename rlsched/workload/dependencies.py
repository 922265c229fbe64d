"""Dependencies between jobs, named as in Slurm: their kinds, and when each kind is met.

Simulator and broker both read the table `RESULTS`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from rlsched.wire.messages import DependencyKind
from rlsched.workload.cells import entries

KINDS: Final[tuple[DependencyKind, ...]] = get_args(DependencyKind)
"""Conditions on the named job. `after`: it has started; `afterany`: it has ended; `afterok`: it has
completed; `afternotok`: it has ended in any other way."""
AFTER, AFTER_ANY, AFTER_OK, AFTER_NOT_OK = range(4)
"""Indices in `KINDS`."""
SINGLETON: Final = "singleton"
"""Entry of a job that waits until all earlier jobs with its user and name have ended."""

STARTED, COMPLETED, ENDED_OTHERWISE = range(3)
"""Events of a job on which another job depends. A job that fails, reaches its time limit or is cancelled has
ended otherwise."""
NOT_YET, MET, NEVER = 0, 1, -1
"""State of a dependency after an event of the job that it names. With `NEVER`, no later event of that job can
meet the dependency."""
RESULTS: Final = (
    (MET, NOT_YET, NOT_YET, NOT_YET),
    (MET, MET, MET, NEVER),
    (MET, MET, NEVER, MET),
)
"""State of a dependency: a row per event of the named job (`STARTED`, ...), a column per kind in `KINDS`."""


class Parent(NamedTuple):
    """A job on which another job depends.

    Attributes:
        row: Index of the job.
        kind: Index in `KINDS`.
    """

    row: int
    kind: int


class UnknownJobError(Exception):
    """An entry names no job of the trace.

    Attributes:
        row: Index of the job with the entry.
        entry: The entry.
    """

    def __init__(self, row: int, entry: str) -> None:
        super().__init__(row, entry)
        self.row, self.entry = row, entry


def parents_of(columns: Mapping[str, NDArray[np.str_]], *, strict: bool = False) -> dict[int, list[Parent]]:
    """Return a dict: index of each job with dependencies -> its `Parent` jobs, without duplicates.

    Args:
        columns: `job_id` and `depends_on`; for the entry `singleton` also `user` and `name`, "" if missing.
            The jobs are in the order of their submission.
        strict: Whether an entry that names no job of the trace is an error. Otherwise it is ignored.

    Raises:
        UnknownJobError: `strict` is true, and an entry names no job of the trace.
    """
    cells = columns["depends_on"]
    with_entries = np.flatnonzero(cells != "").tolist()
    if not with_entries:
        return {}
    row_of = {job_id: row for row, job_id in enumerate(columns["job_id"].tolist())}
    found: dict[int, dict[Parent, None]] = {}
    single: list[int] = []
    for row in with_entries:
        for entry in entries(str(cells[row])):
            parent = _parent(entry, row_of)
            if parent is not None:
                found.setdefault(row, {})[parent] = None
            elif entry == SINGLETON:
                single.append(row)
            elif strict:
                raise UnknownJobError(row, entry)
    plain = {row for row in single if row not in found}
    for row, others in _earlier_alike(columns, set(single), plain):
        found.setdefault(row, {}).update(dict.fromkeys(Parent(other, AFTER_ANY) for other in others))
    return {row: list(mine) for row, mine in sorted(found.items()) if mine}


def _parent(entry: str, row_of: Mapping[str, int]) -> Parent | None:
    """Return the job and the kind in an entry such as `afterok:17`; `17` means `afterany:17`.

    None: the entry names no job of the trace.
    """
    if entry in row_of:
        return Parent(row_of[entry], AFTER_ANY)
    kind, colon, job_id = entry.partition(":")
    if colon and kind in KINDS and job_id in row_of:
        return Parent(row_of[job_id], KINDS.index(kind))
    return None


def _earlier_alike(
    columns: Mapping[str, NDArray[np.str_]], single: set[int], plain: set[int]
) -> Iterator[tuple[int, list[int]]]:
    """For each job with the entry `singleton`, yield (the job, the jobs for which it must wait), as indices.

    It must wait for all earlier jobs with its user and name. The list leaves out the jobs before the latest
    one that is in `plain`, because that job itself waits for them.

    Args:
        columns: See `parents_of`.
        single: Jobs with the entry `singleton`.
        plain: Jobs in `single` without another dependency. Such a job is never cancelled because of a
            dependency.
    """
    if not single:
        return
    blank = np.full(len(columns["job_id"]), "")
    user, name = (columns.get(column, blank).tolist() for column in ("user", "name"))
    wanted = {(user[row], name[row]) for row in single}
    earlier: dict[tuple[str, str], list[int]] = {}
    for row, key in enumerate(zip(user, name, strict=True)):
        if key in wanted:
            mine = earlier.setdefault(key, [])
            if row in single:
                yield row, list(mine)
            if row in plain:
                mine.clear()
            mine.append(row)
