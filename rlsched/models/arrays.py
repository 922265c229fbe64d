"""Arrays of the models, for compiled kernels: traits of GPU types and workloads.

There are K GPU types and W workloads. A job's *work* is its run time in seconds under reference conditions:
without co-tenants, at full clock, on its reference GPU type, on the fewest nodes that hold the job, and with
the cores that it requested. The *rate* of a job is the work done per second, which is exactly 1 under these
conditions.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlsched.compile.reference import by_reference

Records = Any
"""A numpy record array: an array of structs in memory; `records.field` is an array."""

NUM_LEVELS: Final = 4
"""Number of SM clocks that a decision chooses from, for each GPU type."""

MAX_WORKLOADS: Final = 128
"""Maximum number of workloads in a catalogue, including the unknown one."""

GPU_MODEL: Final = np.dtype(
    [
        ("static_w", np.float64),  # P_s: power while any job runs, at any clock
        ("idle_w", np.float64),  # power while no job runs
        ("tdp_w", np.float64),  # board power limit: clocks fall before power exceeds it
        ("cap_w", np.float64),  # power cap set by an operator; default: the board's limit
        ("knee_frac", np.float64),  # x_c: clock below which voltage no longer falls, fraction of the maximum
        ("voltage_slope", np.float64),  # k: slope of the voltage against the clock, above the knee
        ("theta", np.float64),  # fraction of dynamic power that follows the work done, not the clock
        ("memory_mib", np.float64),
        ("max_clock_mhz", np.float64),
        ("switch_s", np.float64),  # duration of a clock change
        ("levels_frac", np.float64, (NUM_LEVELS,)),  # fractions of the maximum, descending, the first 1
        ("usual_speed", np.float64),  # geometric mean speed of all workloads; 1 on the reference type
        ("sliced", np.int64),  # 1: a MIG slice, which has no clock of its own and is never shared
    ],
    align=True,
)
"""Fields of a GPU type; the symbols are as in the clock model of `docs/explanation/model.md`."""

TRAIT: Final = np.dtype(
    [
        ("util_frac", np.float64),  # solo GPU utilisation
        ("memory_mib", np.float64),  # memory that a job uses on each GPU
        ("clock_bound", np.float64),  # rho: fraction of the run time that depends on the SM clock
        ("dynamic_w", np.float64),  # A: power per GPU above `static_w`, running solo at full clock
        ("sensitivity", np.float64),  # latent factors of sharing; nan: `sharing.stranger_speed` applies
        ("pressure", np.float64),
        ("speed", np.float64),  # speed relative to the same workload on the reference GPU type
        ("cores_each", np.float64),  # CPU cores per GPU that are just sufficient for full speed
        ("node_penalty", np.float64),  # time added by each doubling of nodes beyond the fewest, fraction
        ("checkpoint_s", np.float64),  # time to save and load: the cost of a preemption
        ("more_sensitive", np.float64),  # learnt factor of the workload's own slowdown; 1: as modelled
        ("more_pressing", np.float64),  # learnt factor of the slowdown of co-tenants; 1: as modelled
        ("sensitivity_sd", np.float64),  # standard deviation of the logarithms of both factors
        ("pressure_sd", np.float64),
        (
            "beside",
            np.float64,
            (MAX_WORKLOADS,),
        ),  # predicted speed next to each other workload: modelled and learnt
        ("modelled", np.float64, (MAX_WORKLOADS,)),  # modelled speed, without learning; `fill_beside`
        ("times_seen", np.float32, (MAX_WORKLOADS,)),  # number of observations of each pair
        ("seen_log", np.float32, (MAX_WORKLOADS,)),  # mean ln(speed) of these observations
    ],
    align=True,
)
"""Fields of a workload on a GPU type."""
WORKED_OUT: Final = (TRAIT.names or ())[(TRAIT.names or ()).index("more_sensitive") :]
"""Fields of `TRAIT` that are not in a catalogue: predicted speeds next to other workloads (computed by
`rlsched.cluster.speed.fill_beside`), and values learnt from observations."""


@by_reference
class ModelArrays(NamedTuple):
    """Data of the models. Workload 0 in `trait` and `pair` is the unknown workload."""

    gpu: Records  # (K,) GPU_MODEL
    trait: Records  # (W, K) TRAIT
    pair: NDArray[np.float64]  # (K, W, W) speed of the first workload next to the second; nan: not measured


def no_models() -> ModelArrays:
    """Return empty arrays, for a state without models."""
    return ModelArrays(
        np.zeros(1, GPU_MODEL).view(np.recarray),
        np.zeros((1, 1), TRAIT).view(np.recarray),
        np.full((1, 1, 1), np.nan),
    )
