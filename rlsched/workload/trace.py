"""`Trace`: jobs in the normal form (rlsched's own columns), sorted by submission."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlsched.errors import TraceError
from rlsched.workload.cells import Where, entries
from rlsched.workload.dependencies import AFTER_NOT_OK, Parent, parents_of
from rlsched.workload.table_files import read_table, split_suffix, write_table
from rlsched.workload.validate import BASE, BY_ATTRIBUTE, KNOWN, OPTIONAL, Cells, check_columns

Text = NDArray[np.str_]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False, kw_only=True)
class Trace:
    """J jobs, sorted by `submit_s`; jobs with equal `submit_s` keep the order of their rows.

    All arrays have shape (J,). An unknown text is "", an unknown number is nan. `submit_s`, `duration_s`,
    `num_gpus` and `job_id` are known for every job.

    Attributes:
        name: Name of the trace: the name of its file without suffix.
        job_id: Unique ID of each job.
        user: User who submitted the job.
        vc: Virtual cluster of the job.
        job_name: Name of the job (column `name`).
        status: Final status, in the publisher's words.
        gpu_type: GPU model that the job requests.
        submit_s: Submission, seconds from the trace's origin, 0 or more, ascending.
        duration_s: True run time, seconds, 0 or more.
        num_gpus: GPUs of each job: 0 (CPU only), a fraction of one GPU (between 0 and 1), or whole GPUs.
        num_cpus: CPU cores of each job.
        predicted_s: Predicted run time, seconds.
        predicted_spread: Standard deviation of ln(true / predicted).
        time_limit_s: The user's limit on the run time, seconds.
        extra: Header -> column, for optional columns without an attribute (`queue_s`, `workload`, `x_*`).
        origin: Wall-clock time of second 0 (column `origin`), with or without an offset from UTC; None: it
            is unknown.
    """

    name: str
    job_id: Text
    user: Text
    vc: Text
    job_name: Text
    status: Text
    gpu_type: Text
    submit_s: Floats
    duration_s: Floats
    num_gpus: Floats
    num_cpus: Floats
    predicted_s: Floats
    predicted_spread: Floats
    time_limit_s: Floats
    extra: dict[str, NDArray[Any]]
    origin: datetime | None = None

    def __len__(self) -> int:
        return len(self.job_id)

    @classmethod
    def read(cls, path: str | Path) -> Trace:
        """Read and check a file: `.csv`, `.csv.gz` or `.parquet`.

        The columns `job_id`, `submit_time`, `duration` and `num_gpus` are required. The values of any other
        missing column are unknown.

        Raises:
            TraceError: a value is invalid; the message names file, row (in CSV the line, where the header is
                line 1), column, expected value and found value.
            InputError: the file is Parquet and pyarrow is missing.
        """
        path = Path(path)
        name, _ = split_suffix(path)
        return cls._of(name, _read_columns(path))

    @classmethod
    def from_columns(
        cls,
        *,
        name: str,
        submit_s: Cells,
        duration_s: Cells,
        num_gpus: Cells,
        extra: Mapping[str, Cells] | None = None,
        origin: datetime | None = None,
        **optional: Cells,
    ) -> Trace:
        """Build a trace from arrays or sequences; the values are checked like the values of a file.

        Args:
            name: Name of the trace.
            submit_s: Submission of each job, seconds.
            duration_s: Run time of each job, seconds.
            num_gpus: GPUs of each job.
            extra: Header -> column, for optional columns without an attribute.
            origin: Wall-clock time of second 0.
            **optional: Other columns, by attribute (`job_id`, `vc`, `predicted_s`, ...). Without `job_id`,
                the IDs are 0, 1, 2, ... in the given order.

        Raises:
            TraceError: a value is invalid; the message names row, column, expected value and found value.
        """
        cells: dict[str, Cells] = {
            "submit_time": np.asarray(submit_s),
            "duration": np.asarray(duration_s),
            "num_gpus": np.asarray(num_gpus),
        }
        for attribute, values in optional.items():
            if attribute not in BY_ATTRIBUTE:
                raise TraceError(f"{name}: unknown attribute {attribute!r}; known: {', '.join(BY_ATTRIBUTE)}")
            cells[BY_ATTRIBUTE[attribute].name] = values
        if "job_id" not in cells:
            cells["job_id"] = np.arange(len(submit_s)).astype(np.str_)
        cells.update(extra or {})
        if origin is not None:
            cells["origin"] = np.full(len(submit_s), origin.isoformat())
        columns = check_columns(cells, Where(name))
        return cls._of(name, {header: np.array(column) for header, column in columns.items()})

    @classmethod
    def _of(cls, name: str, columns: dict[str, NDArray[Any]]) -> Trace:
        """Build the trace: add missing columns as unknown, and sort the jobs. Changes the dict `columns`."""
        submit_s = columns["submit_time"]
        jobs = len(submit_s)
        origins = columns.pop("origin", np.empty(0, np.str_))
        known = origins[origins != ""][:1].tolist()
        if (submit_s[1:] < submit_s[:-1]).any():
            order = np.argsort(submit_s, kind="stable")
            for header in columns:
                columns[header] = columns[header][order]
        values: dict[str, Any] = {}
        for attribute, column in BY_ATTRIBUTE.items():
            if column.name in columns:
                values[attribute] = columns.pop(column.name)
            elif column.kind == "text":
                values[attribute] = np.full(jobs, "", dtype=np.str_)
            else:
                values[attribute] = np.full(jobs, np.nan)
        origin = datetime.fromisoformat(known[0]) if known else None
        return cls(name=name, extra=columns, origin=origin, **values)

    def select(self, which: NDArray[Any] | slice | Sequence[int]) -> Trace:
        """Return a trace of the selected jobs; submission times and origin do not change.

        `which` is a mask, a slice, or ascending indices. If a mask or a slice selects all jobs, returns this
        trace itself.
        """
        index = which if isinstance(which, slice) else np.asarray(which)
        if self._is_all(index):
            return self
        arrays = {
            field.name: getattr(self, field.name)[index]
            for field in fields(self)
            if field.name not in ("name", "extra", "origin")
        }
        extra = {key: cells[index] for key, cells in self.extra.items()}
        return Trace(name=self.name, extra=extra, origin=self.origin, **arrays)

    def _is_all(self, index: NDArray[Any] | slice) -> bool:
        """Return whether a slice or a mask selects all jobs."""
        if isinstance(index, slice):
            return index.indices(len(self)) == (0, len(self), 1)
        return index.dtype == np.bool_ and len(index) == len(self) and bool(index.all())

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return the columns that `write` writes: `BASE`, optional columns with known values, and `x_*`."""
        out = {column.name: self._column(column.attribute or "") for column in BASE}
        for column in OPTIONAL:
            cells = self._column(column.attribute) if column.attribute else self.extra.get(column.name)
            if cells is not None and _anything_known(cells):
                out[column.name] = cells
        if self.origin is not None:
            out["origin"] = np.full(len(self), self.origin.isoformat())
        return out | {header: cells for header, cells in self.extra.items() if header not in KNOWN}

    def write(self, path: str | Path) -> None:
        """Write a `.csv`, `.csv.gz` or `.parquet` file that `read` can read. Equal traces give equal bytes.

        Raises:
            TraceError: the suffix is not one of these three, or the file cannot be written.
            InputError: the file is Parquet and pyarrow is missing.
        """
        write_table(Path(path), self.columns())

    def _column(self, attribute: str) -> NDArray[Any]:
        cells: NDArray[Any] = getattr(self, attribute)
        return cells


def _read_columns(path: Path) -> dict[str, NDArray[Any]]:
    """Read a file and return its columns, after their values are checked."""
    table = read_table(path)
    columns = check_columns(table.columns, Where(str(path), table.rows))
    if not table.rows:
        raise TraceError(f"{path}: expected at least one job, got only a header")
    return columns


def _anything_known(cells: NDArray[Any]) -> bool:
    return bool((cells != "").any()) if cells.dtype.kind == "U" else not bool(np.isnan(cells).all())


def dependencies(trace: Trace) -> dict[int, list[Parent]]:
    """Return a dict: index of each job with dependencies -> the jobs on which it depends (`parents_of`)."""
    cells = trace.extra.get("depends_on")
    if cells is None:
        return {}
    return parents_of(
        {"job_id": trace.job_id, "depends_on": cells, "user": trace.user, "name": trace.job_name}
    )


def failures(trace: Trace) -> dict[int, list[float]]:
    """Return a dict: index of each job with failing attempts -> run times of these attempts, seconds."""
    cells = trace.extra.get("fail_after_s")
    if cells is None:
        return {}
    rows = np.flatnonzero(cells != "").tolist()
    return {row: [float(entry) for entry in entries(str(cells[row]))] for row in rows}


def flags(trace: Trace, name: str) -> NDArray[np.int8]:
    """Return the (J,) values of a flag column: 1 (true), 0 (false), -1 (blank, or no such column)."""
    cells = trace.extra.get(name)
    if cells is None:
        return np.full(len(trace), -1, np.int8)
    return np.where(cells == "true", 1, np.where(cells == "false", 0, -1)).astype(np.int8)


def slack_s(trace: Trace) -> Floats:
    """Return the (J,) slack: the longest delay that a job's user accepts, seconds."""
    return np.nan_to_num(np.asarray(trace.extra.get("slack_s", np.zeros(len(trace))), np.float64))


def reject_dependents(trace: Trace, reasons: NDArray[np.str_]) -> NDArray[np.str_]:
    """Return `reasons`, with a reason added for each job that depends on a job that can never run.

    A dependency `afternotok` on such a job is met. `reasons`: (J,) why each job can never run; "" if it can.
    """
    found = dependencies(trace)
    if not found or not (reasons != "").any():
        return reasons
    children: dict[int, list[int]] = {}
    for row, parents in found.items():
        for parent in parents:
            if parent.kind != AFTER_NOT_OK:
                children.setdefault(parent.row, []).append(row)
    out = {row: str(reason) for row, reason in enumerate(reasons.tolist()) if reason}
    left = list(out)
    while left:
        lost = left.pop()
        for row in children.get(lost, ()):
            if row not in out:
                out[row] = f"depends on job {trace.job_id[lost]!s}, which can never run"
                left.append(row)
    return np.array([out.get(row, "") for row in range(len(trace))], dtype=np.str_)
