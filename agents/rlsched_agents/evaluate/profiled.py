"""Adds what a broker has learnt to the jobs of a replay: workloads, GPU memory, cores and power."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlsched.broker.queries.learnt import learnt_by
from rlsched.broker.state.job_requests import learnt_use, memory_bound_mib, nearest_workload
from rlsched.errors import InputError
from rlsched.models.catalogue import load_catalogue
from rlsched.models.learning import Observed
from rlsched.workload.predict.facts import stem
from rlsched.workload.trace import Trace

COMMAND = "x_command"
"""Trace column of the command lines of jobs."""
NEED = "gpu_need_mib"
"""Trace column of the GPU memory that jobs use, MiB."""
CORES, POWER = "core_need", "power_ratio"
"""Trace columns. `core_need`: CPU cores that a job can use. `power_ratio`: dynamic power of the job / dynamic
power of its workload in the catalogue."""


class Profiled(NamedTuple):
    """A trace, and the figures that a broker has learnt of its jobs: workloads, GPU memory, cores and power.

    Attributes:
        trace: The jobs; the learnt figures are in their columns.
        used: (J,) whether a learnt profile determined the workload of the job.
        pairs: Observed speeds of workloads that shared GPUs.
    """

    trace: Trace
    used: NDArray[np.bool_]
    pairs: tuple[Observed, ...]


def with_profiles(trace: Trace, store: str | Path) -> Profiled:
    """For each job with a learnt profile, add to the trace the figures that the broker would assume.

    - Workload: that of the column `workload`, else the catalogue's workload with the nearest GPU time.
    - GPU memory: the highest of three values: the bound below which 99 % of similar jobs stay, and the
      columns `gpu_need_mib` and `gpu_memory_mib`.
    - Cores and power: the columns `core_need` and `power_ratio`, else `job_requests.learnt_use`.

    Args:
        trace: J jobs, with the columns `user` and `x_command`.
        store: The broker's directory, or the broker's journal.

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
    cores, power = _amounts(trace, CORES), _amounts(trace, POWER)
    used = np.zeros(len(trace), np.bool_)
    for job in np.flatnonzero(trace.num_gpus > 0).tolist():
        profiles = learnt.profiles.profiles_of((str(trace.user[job]), stem(str(trace.extra[COMMAND][job]))))
        number, bound_mib = nearest_workload(profiles), memory_bound_mib(profiles)
        if number and not workload[job]:
            workload[job], used[job] = names[number - 1], True
        named = str(workload[job])
        use = learnt_use(profiles, names.index(named) + 1 if named in names else 0)
        cores[job], power[job] = cores[job] or use.core_need_milli / 1000.0, power[job] or use.dynamic_ratio
        if bound_mib:
            need_mib[job] = max(need_mib[job], asked_mib[job], bound_mib)
    extra = {**trace.extra, "workload": workload.astype(str)}
    found = {NEED: need_mib, CORES: cores, POWER: power}
    extra |= {name: amounts for name, amounts in found.items() if amounts.any()}
    return Profiled(replace(trace, extra=extra), used, learnt.pairs)


def _amounts(trace: Trace, name: str) -> NDArray[np.float64]:
    """Return the (J,) values of a column; 0 for blank cells, or without this column."""
    return np.nan_to_num(np.array(trace.extra.get(name, np.zeros(len(trace))), np.float64))
