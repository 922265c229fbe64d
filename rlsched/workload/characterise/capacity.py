"""A trace relative to a cluster: the nodes, the offered load, and the jobs that can never run."""

from __future__ import annotations

import numpy as np

from rlsched.cluster.spec import ClusterSpec
from rlsched.workload.characterise.parts import Floats, Mask, Report, quotient
from rlsched.workload.load import Runnable, offered_load, partition_sizes, span_s
from rlsched.workload.trace import Trace


def against(trace: Trace, spec: ClusterSpec, runnable: Runnable, gpu_s: Floats) -> Report:
    """Report the capacity of a cluster, and the load that a trace offers to the cluster.

    Args:
        trace: J jobs.
        spec: The cluster.
        runnable: Result of `load.runnable_mask` for the trace and the cluster.
        gpu_s: (J,) GPU-time, GPU-seconds.
    """
    work = np.where(runnable.mask, gpu_s, 0.0)
    sizes = partition_sizes(spec)
    by_vc = []
    for vc in sorted(key for key in sizes if key is not None):
        gpus = sum(size * count for size, count in sizes[vc].items())
        mine: Mask = trace.vc == vc
        by_vc.append(
            {
                "vc": vc,
                "gpus": gpus,
                "jobs": int(mine.sum()),
                "load_frac": quotient(float(work[mine].sum()), gpus * span_s(trace)),
            }
        )
    load = offered_load(trace, spec)
    return {
        "cluster": spec.name,
        "nodes": spec.num_nodes,
        "gpus": spec.num_gpus,
        "groups": [
            {
                "count": group.count,
                "gpus": group.gpus,
                "gpu_type": group.gpu_type,
                "cpus": group.cpus or None,
                "memory_mib": group.memory_mib or None,
                "vc": group.vc,
            }
            for group in spec.nodes
        ],
        "load_frac": load if np.isfinite(load) else None,
        "jobs_that_can_run": int(runnable.mask.sum()),
        "never_run": int((~runnable.mask).sum()),
        "never_run_by_reason": runnable.counts,
        "by_vc": by_vc,
    }
