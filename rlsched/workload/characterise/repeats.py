"""Repeated jobs: jobs of one user with the same name, and bursts of submissions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlsched.workload.characterise.parts import Floats, Ints, Keys, Report, keyed, missing, quotient
from rlsched.workload.trace import Trace

BURST_GAP_S = 60.0
"""Longest gap between two submissions of one burst, seconds."""
RUNS: tuple[tuple[str, int], ...] = (("1", 1), ("2-4", 2), ("5-9", 5), ("10-49", 10), ("50 or more", 50))
"""Ranges of the number of jobs per name: (label, minimum number of jobs)."""


def bursts(vc: Ints, num_gpus: Floats, submit_s: Floats, gap_s: float = BURST_GAP_S) -> Ints:
    """Return the (J,) index of the burst of each job, 0, 1, ...

    A burst is a sequence of jobs of one VC with the same number of GPUs. Each job is submitted at most
    `gap_s` after the previous job.

    Args:
        vc: (J,) code of each job's VC; all jobs with an unknown VC have the same code, such as -1.
        num_gpus: (J,) GPUs.
        submit_s: (J,) submissions, ascending, seconds.
        gap_s: Longest gap within a burst, seconds.
    """
    order = np.lexsort((num_gpus, vc))
    new = np.ones(len(order), dtype=bool)
    new[1:] = (np.diff(vc[order]) != 0) | (np.diff(num_gpus[order]) != 0) | (np.diff(submit_s[order]) > gap_s)
    burst = np.empty(len(order), dtype=np.int64)
    burst[order] = np.cumsum(new) - 1
    return burst


def in_bursts(trace: Trace, vcs: Keys) -> Report:
    """Report the number and sizes of bursts.

    `jobs_frac` is the fraction of the jobs that are in bursts of 2 or more jobs.
    """
    count = np.bincount(bursts(vcs.code, trace.num_gpus, trace.submit_s))
    return {
        "gap_s": BURST_GAP_S,
        "bursts": len(count),
        "jobs_frac": float(count[count > 1].sum() / len(trace)),
        "jobs_mean": float(count.mean()),
        "jobs_max": int(count.max()),
    }


def repeats(trace: Trace, users: Keys, gpu_s: Floats) -> Report:
    """Report how many jobs of one user have the same name, and how similar their durations are.

    Returns:
        A name here is a pair of user and job name; it is repeated if it has two jobs or more.
        `names`: number of names.
        `repeated_jobs_frac`, `repeated_gpu_time_frac`: fraction of the jobs and of the GPU-time of repeated
        names.
        `runs`: a row per range of the number of jobs per name.
        `ln_duration_sd`: standard deviation of ln(duration) over all jobs of repeated names.
        `ln_duration_sd_within`: standard deviation of these jobs around the mean of their name.
        Durations below 1 s count as 1 s. Both deviations are None without repeated names.
    """
    known = trace.job_name != ""
    if not known.any():
        return missing("The trace does not record the names of its jobs.", "name")
    pair = keyed(trace.job_name[known]).code * (len(users.names) + 1) + users.code[known] + 1
    _, code, runs = np.unique(pair, return_inverse=True, return_counts=True)
    work = gpu_s[known]
    again = runs[code] > 1
    return {
        "jobs": int(known.sum()),
        "left_out": int((~known).sum()),
        "with_user": bool(users.names),
        "names": len(runs),
        "runs_mean": float(runs.mean()),
        "runs_max": int(runs.max()),
        "repeated_jobs_frac": float(again.mean()),
        "repeated_gpu_time_frac": quotient(float(work[again].sum()), float(work.sum())),
        "runs": _by_runs(runs, code, work),
        **_likeness(trace.duration_s[known][again], code[again], runs),
    }


def _by_runs(runs: Ints, code: Ints, work: Floats) -> list[Report]:
    kind = np.searchsorted([low for _, low in RUNS], runs, side="right") - 1
    rows = []
    for position, (label, _) in enumerate(RUNS):
        names = kind == position
        jobs: NDArray[np.bool_] = names[code]
        rows.append(
            {
                "runs": label,
                "names": int(names.sum()),
                "jobs_frac": float(jobs.mean()),
                "gpu_time_frac": quotient(float(work[jobs].sum()), float(work.sum())),
            }
        )
    return rows


def _likeness(duration_s: Floats, code: Ints, runs: Ints) -> Report:
    """Return how similar the durations of repeated jobs are.

    The two values are the standard deviation of ln(duration) around the mean of all these jobs, and around
    the mean of the jobs with the same user and name.
    """
    if not len(duration_s):
        return {"ln_duration_sd": None, "ln_duration_sd_within": None}
    x = np.log(np.maximum(duration_s, 1.0))
    mean = np.bincount(code, weights=x, minlength=len(runs)) / runs
    return {
        "ln_duration_sd": float(x.std()),
        "ln_duration_sd_within": float(np.sqrt(np.mean((x - mean[code]) ** 2))),
    }
