"""Determines the types of MIG slices that have enough GPU memory for each job."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.demand import Demand
from rlsched.cluster.spec import ClusterSpec
from rlsched.models.memory import memory_limit_mib
from rlsched.models.mig import slice_of
from rlsched.workload.distinct import distinct_rows
from rlsched.workload.load import Runnable, runnable_mask, trace_demands
from rlsched.workload.trace import Trace, reject_dependents
from rlsched_envs.sim.modelling import Models, gpu_need_mib


class Fitted(NamedTuple):
    """Result of `fit_slices`: the trace with restricted `gpu_type`, and which of its jobs can run."""

    trace: Trace
    runnable: Runnable


def fit_slices(trace: Trace, spec: ClusterSpec, models: Models) -> Fitted:
    """Restrict the `gpu_type` of each job to slices with enough memory.

    If the scheduler chooses the type of slice, a job can use at most 90 % of the slice's usable memory (the
    margin of `rlsched.models.memory`). A job that requests a type by name can use all of it.

    Args:
        trace: J jobs.
        spec: The cluster, with slices.
        models: The models of the run, which give the memory that each job needs.
    """
    kinds = sorted({group.gpu_type for group in spec.nodes if group.gpus})
    catalogue = models.catalogue()
    workload, memory_mib = catalogue.draw(trace, models.workload_seed), catalogue.traits(kinds).memory_mib
    demands, which = trace_demands(trace)
    own_mib = gpu_need_mib(trace)
    types, reasons = trace.gpu_type.astype(object), np.full(len(trace), "", object)
    first, case = distinct_rows([which, workload, own_mib])
    for number, row in enumerate(first.tolist()):
        demand, needs_mib = demands[which[row]], memory_mib[workload[row]].tolist()
        if own_mib[row]:
            needs_mib = [float(own_mib[row])] * len(kinds)
        accepted = [k for k, kind in enumerate(kinds) if demand.accepts(kind)] if demand.gpus else []
        left = [k for k in accepted if _fits(demand, kinds[k], needs_mib[k])]
        if left == accepted:
            continue
        if left:
            types[case == number] = "|".join(kinds[k] for k in left)
        else:
            reasons[case == number] = (
                f"its workload needs {needs_mib[accepted[0]]:,.0f} MiB of GPU memory, more than a job may "
                f"use of {', '.join(kinds[k] for k in accepted)}"
            )
    fitted = replace(trace, gpu_type=types.astype(np.str_))
    return Fitted(fitted, _with_reasons(fitted, runnable_mask(fitted, spec), reasons))


def _fits(demand: Demand, kind: str, needs_mib: float) -> bool:
    """Return whether a GPU of this type has the memory that a job needs. Only MIG slices are checked."""
    cut = slice_of(kind)
    if cut is None:
        return True
    tenants = 1 if kind in demand.gpu_types else 2
    return needs_mib <= memory_limit_mib(float(cut.profile.memory_mib), tenants)


def _with_reasons(trace: Trace, runnable: Runnable, more: NDArray[np.object_]) -> Runnable:
    """Return `runnable`, changed so that the jobs with a reason in `more` can never run.

    Jobs that depend on such a job can never run either (`reject_dependents`). `more`: (J,) further reason
    why each job can never run; "" if there is none.
    """
    if not (more != "").any():
        return runnable
    reasons = reject_dependents(trace, np.where(more != "", more, runnable.reasons).astype(np.str_))
    return Runnable(reasons == "", reasons)
