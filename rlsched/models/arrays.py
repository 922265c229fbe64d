"""The arrays of the models: what is known of GPU types and of workloads, as compiled kernels read it.

K GPU types, W workloads. A job's *work* is its run time in seconds alone, at full clock, on its reference GPU
type, on the fewest nodes that hold it and with the cores that it asked for; its *rate* is work done a second,
exactly 1 under those conditions.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlsched.compile.reference import by_reference

Records = Any
"""A numpy record array: a struct of arrays, kept together in memory; `records.field` is an array."""

NUM_LEVELS: Final = 4
"""SM clocks that a decision chooses from, for each GPU type."""

MAX_WORKLOADS: Final = 128
"""Workloads of a catalogue at most, the unknown one included."""

GPU_MODEL: Final = np.dtype(
    [
        ("static_w", np.float64),  # P_s: drawn while any job runs, whatever the clock
        ("idle_w", np.float64),  # drawn while none does
        ("tdp_w", np.float64),  # board limit: clocks fall before power rises above it
        ("cap_w", np.float64),  # power cap that an operator set; the board's limit where none is
        ("knee_frac", np.float64),  # x_c: clock below which voltage falls no further, of the maximum
        ("voltage_slope", np.float64),  # k
        ("theta", np.float64),  # share of dynamic power that follows the work done, not the clock
        ("memory_mib", np.float64),
        ("max_clock_mhz", np.float64),
        ("switch_s", np.float64),  # time that a change of clock costs
        ("levels_frac", np.float64, (NUM_LEVELS,)),  # of the maximum, descending, the first 1
        ("usual_speed", np.float64),  # geometric mean speed of the workloads on it, 1 on the reference type
        ("sliced", np.int64),  # 1: a MIG slice, which has no clock of its own and is never shared
    ],
    align=True,
)
"""One entry a GPU type; the symbols are those of the clock model in `docs/explanation/model.md`."""

TRAIT: Final = np.dtype(
    [
        ("util_frac", np.float64),  # solo GPU utilisation
        ("memory_mib", np.float64),  # on each GPU
        ("clock_bound", np.float64),  # rho: share of the run time that follows the SM clock
        ("dynamic_w", np.float64),  # A: power above `static_w` alone at full clock, each GPU
        ("sensitivity", np.float64),  # latent factors of sharing; nan: the formula for strangers
        ("pressure", np.float64),
        ("speed", np.float64),  # relative to the same workload on the reference GPU type
        ("cores_each", np.float64),  # CPU cores a GPU that just feed it at full speed
        ("node_penalty", np.float64),  # time added by each doubling of nodes beyond the fewest, fraction
        ("checkpoint_s", np.float64),  # to save and load again: the cost of a preemption
        ("more_sensitive", np.float64),  # factor on the slowdown beside others, learnt; 1: as modelled
        ("more_pressing", np.float64),  # ... and on that of others beside it
        ("sensitivity_sd", np.float64),  # doubt about the logarithms of the two
        ("pressure_sd", np.float64),
        (
            "beside",
            np.float64,
            (MAX_WORKLOADS,),
        ),  # predicted speed beside each other one: modelled and learnt
        ("modelled", np.float64, (MAX_WORKLOADS,)),  # the same before anything was observed; `fill_beside`
        ("times_seen", np.float32, (MAX_WORKLOADS,)),  # observations of each pair ...
        ("seen_log", np.float32, (MAX_WORKLOADS,)),  # ... and their mean ln(speed)
    ],
    align=True,
)
"""One entry a workload and GPU type."""
WORKED_OUT: Final = (TRAIT.names or ())[(TRAIT.names or ()).index("more_sensitive") :]
"""Fields that no catalogue has: what the models predict (`speed.fill_beside`) and what is learnt."""


@by_reference
class ModelArrays(NamedTuple):
    """What the models know. Row 0 of `trait` and `pair` is no workload: a job of which nothing is known."""

    gpu: Records  # (K,) GPU_MODEL
    trait: Records  # (W, K) TRAIT
    pair: NDArray[np.float64]  # (K, W, W) measured speed of the first beside the second; nan: unknown


def no_models() -> ModelArrays:
    """What is known where no models are: nothing."""
    return ModelArrays(
        np.zeros(1, GPU_MODEL).view(np.recarray),
        np.zeros((1, 1), TRAIT).view(np.recarray),
        np.full((1, 1, 1), np.nan),
    )
