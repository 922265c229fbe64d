"""Adds the workloads and the GPU memory that a broker has learnt to the jobs of a replay."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlsched.broker.queries.learnt import learnt_by
from rlsched.broker.state.job_requests import memory_bound_mib, nearest_workload
from rlsched.errors import InputError
from rlsched.models.catalogue import load_catalogue
from rlsched.models.learning import Observed
from rlsched.workload.predict.facts import stem
from rlsched.workload.trace import Trace

COMMAND = "x_command"
"""Trace column of command lines, which predictors also read."""
NEED = "gpu_need_mib"
"""Trace column of the GPU memory that jobs use, MiB."""


class Profiled(NamedTuple):
    """A trace with the workloads and the GPU memory that a broker has learnt.

    Attributes:
        trace: The jobs, with their workloads and their GPU memory.
        used: (J,) whether a profile determined the workload of the job.
        pairs: Observed speeds of workloads that shared GPUs.
    """

    trace: Trace
    used: NDArray[np.bool_]
    pairs: tuple[Observed, ...]


def with_profiles(trace: Trace, store: str | Path) -> Profiled:
    """Assign the workload and GPU memory that the broker would use to each job with a learnt profile.

    The workload is the catalogue's workload with the nearest GPU time; a job whose column `workload` names a
    workload keeps that workload. The memory is the bound that 99 % of similar jobs stay below, or the job's
    own value in the columns `gpu_need_mib` and `gpu_memory_mib` if this value is larger.

    Args:
        trace: J jobs, with the columns `user` and `x_command`.
        store: The broker's directory, or its journal.

    Raises:
        InputError: the trace has no command lines.
        JournalError: there is no journal, or it is damaged.
    """
    if COMMAND not in trace.extra:
        raise InputError(
            f"{trace.name}: --profiles needs the command lines of jobs, and this trace has no column "
            f"{COMMAND}; add it"
        )
    learnt, names = learnt_by(store), load_catalogue().names
    workload = np.asarray(trace.extra.get("workload", np.full(len(trace), "")), dtype=object)
    need_mib, asked_mib = (_amounts(trace, name) for name in (NEED, "gpu_memory_mib"))
    used = np.zeros(len(trace), np.bool_)
    for job in np.flatnonzero(trace.num_gpus > 0).tolist():
        profiles = learnt.profiles.profiles_of((str(trace.user[job]), stem(str(trace.extra[COMMAND][job]))))
        number, bound_mib = nearest_workload(profiles), memory_bound_mib(profiles)
        if number and not workload[job]:
            workload[job], used[job] = names[number - 1], True
        if bound_mib:
            need_mib[job] = max(need_mib[job], asked_mib[job], bound_mib)
    extra = {**trace.extra, "workload": workload.astype(str)}
    if need_mib.any():
        extra[NEED] = need_mib
    return Profiled(replace(trace, extra=extra), used, learnt.pairs)


def _amounts(trace: Trace, name: str) -> NDArray[np.float64]:
    """Return the (J,) amounts in a column; 0 if blank."""
    return np.nan_to_num(np.array(trace.extra.get(name, np.zeros(len(trace))), np.float64))
