"""Assigns workloads to the jobs of a trace by the resource use that a broker has learnt."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rlsched.broker.queries.learnt import learnt_profiles
from rlsched.broker.state.job_requests import nearest_workload
from rlsched.errors import InputError
from rlsched.models.catalogue import load_catalogue
from rlsched.workload.predict.facts import stem
from rlsched.workload.trace import Trace

COMMAND = "x_command"
"""Column of command lines, which predictors also read."""


def with_profiles(trace: Trace, store: str | Path) -> tuple[Trace, NDArray[np.bool_]]:
    """Give each job with a learnt profile the workload with which its broker would run the job.

    This is the catalogue's workload with the nearest GPU time. A job with a workload in the column `workload`
    keeps that workload.

    Args:
        trace: J jobs, with the columns `user` and `x_command`.
        store: The broker's directory, or its journal.

    Returns:
        The trace, and (J,) the jobs whose profile was used.

    Raises:
        InputError: the trace has no command lines.
        JournalError: there is no journal, or it is damaged.
    """
    if COMMAND not in trace.extra:
        raise InputError(
            f"{trace.name}: --profiles needs the command lines of jobs, and this trace has no column "
            f"{COMMAND}; add it"
        )
    profiles, names = learnt_profiles(store), load_catalogue().names
    workload = np.asarray(trace.extra.get("workload", np.full(len(trace), "")), dtype=object)
    used = np.zeros(len(trace), np.bool_)
    for job in np.flatnonzero(workload == "").tolist():
        signature = str(trace.user[job]), stem(str(trace.extra[COMMAND][job]))
        number = nearest_workload(profiles.profiles_of(signature))
        if number and trace.num_gpus[job] > 0:
            workload[job], used[job] = names[number - 1], True
    return replace(trace, extra={**trace.extra, "workload": workload.astype(str)}), used
