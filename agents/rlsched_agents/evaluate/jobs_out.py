"""Writes a schedule as two CSV files: one row per job, and one row per attempt."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from rlsched.errors import InputError
from rlsched_agents.evaluate.modelled import asked_shares, mean_of_jobs

if TYPE_CHECKING:
    from rlsched.cluster.spec import ClusterSpec
    from rlsched_envs.sim.job_table import JobTable

JOB_COLUMNS: Final = (
    "job_id",
    "submit_time",
    "start_time",
    "end_time",
    "node",
    "gpus",
    "share",
    "sm_clock_frac",
    "energy_j",
    "cost",
    "carbon_kg",
)
SEGMENT_COLUMNS: Final = (
    "job_id",
    "attempt",
    "start_time",
    "end_time",
    "node",
    "gpus",
    "share",
    "sm_clock_frac",
    "energy_j",
    "reason",
)


class Places:
    """Converts indices of GPUs in the cluster to names of nodes and indices of GPUs on these nodes."""

    def __init__(self, spec: ClusterSpec) -> None:
        nodes = spec.expand()
        self._names = [node.name for node in nodes]
        self._first_gpu = np.array([0, *accumulate(node.gpus for node in nodes)])

    def cells(self, gpus: Sequence[int]) -> tuple[str, str]:
        """Return the CSV cells `node` and `gpus` of an allocation, such as `n3;n7` and `0,1;0-7`."""
        numbers = np.sort(np.asarray(gpus, dtype=np.int64))
        owners = np.searchsorted(self._first_gpu, numbers, side="right") - 1
        used = np.unique(owners)
        return (
            ";".join(self._names[node] for node in used),
            ";".join(ranges((numbers[owners == node] - self._first_gpu[node]).tolist()) for node in used),
        )


def ranges(numbers: Iterable[int]) -> str:
    """Format ascending numbers, with three or more consecutive ones as a range: `0,1`, `0-7`, `0-2,5`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs)


def file_stem(policy: str) -> str:
    """Convert a policy's name to a file name: `:` and `/` become `_`, `*` becomes `_changed`."""
    return policy.replace(":", "_").replace("/", "_").replace("*", "_changed")


def seed_stem(policy: str, seed: int, seeds: Sequence[int]) -> str:
    """Return the file name of a run: the policy's name for the first seed, `NAME.seedK` for other seeds."""
    return file_stem(policy) + ("" if seed == seeds[0] else f".seed{seed}")


class _Books:
    """Formats the CSV cells `share`, `sm_clock_frac` and `energy_j` of jobs and attempts.

    The share of a job is the fraction that the job has of each of its GPUs. With models, share and clock are
    means over the time in which the job had GPUs. Without models, the share is as requested, the clock is 1,
    and the energy is blank.
    """

    def __init__(self, table: JobTable) -> None:
        self._asked = asked_shares(table.trace)
        self._attempts = table.attempts
        self._energy_j = None if table.energy is None else table.energy.job_j
        self._bills = [None, None] if table.energy is None else [table.energy.cost, table.energy.carbon]
        self._means = None if self._attempts.books is None else mean_of_jobs(table, self._attempts.books)

    def of_job(self, job: int) -> tuple[str, str, str]:
        if self._means is None or self._energy_j is None:
            return self._as_asked(job)
        shares, clocks = self._means
        return _cell(shares[job]), _cell(clocks[job]), _cell(self._energy_j[job])

    def bills_of_job(self, job: int) -> tuple[str, ...]:
        """Return the CSV cells `cost` and `carbon_kg`; blank if the price or the intensity is unknown."""
        return tuple("" if bill is None else _cell(bill.jobs[job]) for bill in self._bills)

    def of_attempt(self, k: int) -> tuple[str, str, str]:
        attempts, job = self._attempts, self._attempts.job[k]
        if attempts.books is None:
            return self._as_asked(job)
        energy = _cell(attempts.books.energy_j[k])
        length_s = attempts.end_s[k] - attempts.start_s[k]
        if np.isnan(self._asked[job]) or not length_s > 0:
            return "", "", energy
        return (
            _cell(attempts.books.share_s[k] / length_s),
            _cell(attempts.books.clock_s[k] / length_s),
            energy,
        )

    def _as_asked(self, job: int) -> tuple[str, str, str]:
        return ("", "", "") if np.isnan(self._asked[job]) else (f"{self._asked[job]:g}", "1", "")


def _cell(value: float) -> str:
    """Format a number with nine significant digits, nan as blank."""
    return "" if np.isnan(value) else f"{value:.9g}"


def write_jobs(
    table: JobTable, spec: ClusterSpec, measured: NDArray[np.bool_], folder: str | Path, stem: str
) -> None:
    """Write `folder`/`stem`.csv and `folder`/`stem`.segments.csv for the measured jobs, in submission order.

    The first file has a row per job, the second a row per attempt. Times are seconds of the trace, blank if
    the event never happened. A job with several attempts has its first start, its last end, and the GPUs of
    its last attempt. For a job without GPUs, the cells from `node` to `sm_clock_frac` are blank. Cost (in the
    currency of the cluster file) and carbon are blank if the price or the carbon intensity is unknown.

    Raises:
        InputError: the folder is not writable.
    """
    folder = Path(folder)
    places = Places(spec)
    attempts = table.attempts
    books = _Books(table)
    order = np.lexsort((attempts.attempt, attempts.job))
    bounds = np.searchsorted(attempts.job[order], np.arange(len(table.trace) + 1))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (
            (folder / f"{stem}.csv").open("w", newline="", encoding="utf-8") as jobs_file,
            (folder / f"{stem}.segments.csv").open("w", newline="", encoding="utf-8") as segments_file,
        ):
            jobs, segments = csv.writer(jobs_file), csv.writer(segments_file)
            jobs.writerow(JOB_COLUMNS)
            segments.writerow(SEGMENT_COLUMNS)
            for job in np.flatnonzero(measured).tolist():
                job_id, submit = table.trace.job_id[job], seconds(table.trace.submit_s[job])
                if np.isnan(table.start_s[job]):
                    jobs.writerow([job_id, submit, *[""] * (len(JOB_COLUMNS) - 2)])
                    continue
                mine = order[bounds[job] : bounds[job + 1]].tolist()
                for k in mine:
                    times = [seconds(attempts.start_s[k]), seconds(attempts.end_s[k])]
                    where = places.cells(attempts.gpus(k))
                    cells = [*times, *where, *books.of_attempt(k), attempts.reason_name(k)]
                    row = [job_id, attempts.attempt[k], *cells]
                    segments.writerow(row)
                times = [seconds(table.start_s[job]), seconds(table.end_s[job])]
                jobs.writerow([job_id, submit, *times, *where, *books.of_job(job), *books.bills_of_job(job)])
    except OSError as error:
        raise InputError(f"{folder}: cannot write job files here: {error.strerror}") from error


def seconds(value: float) -> str:
    """Format whole seconds without a decimal point, other values in full precision, nan as blank."""
    if np.isnan(value):
        return ""
    return str(int(value)) if value == int(value) else repr(float(value))
