"""Options of rules and of starts, in the form that kernels read."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import CLOCKS_ALONE, StateArrays
from rlsched.compile.jit import kernel
from rlsched.decide.constants import MODELLED

NEVER: Final = 0
BLOCKED: Final = 1
LUCID: Final = 2
BETTER: Final = 3
"""Which jobs share GPUs: none; jobs that do not fit otherwise; any job, before free GPUs are used (Lucid);
jobs for which sharing is worth more than free GPUs (of another type), and jobs that do not fit."""

FULL: Final = 0
FIXED: Final = 1
SLOWDOWN: Final = 2
LULL: Final = 3
WEIGHED: Final = 4
"""SM clock of a job. FULL: the highest. FIXED: the same for all jobs. SLOWDOWN: the clock of least energy
within a slowdown. LULL: as SLOWDOWN, but the highest while other jobs wait. WEIGHED: the clock of least
weighted cost of time and energy.
"""

KEEP_FRAC: Final = 0.85
"""Speed that all jobs on a shared GPU must keep. Accuracy of this bound: `docs/explanation/sharing.md`."""


class Gate(NamedTuple):
    """Least gain of a job that joins GPUs that other jobs hold.

    The *gain* of the job is its own predicted speed there, less the speed that its co-tenants lose. The least
    gain is `pair` or `more`, plus the `by_*` terms.

    Attributes:
        is_shut: Whether there is a least gain at all.
        pair: Least gain of the second job on a GPU.
        more: Least gain of the third and fourth job.
        by_length: Factor of tanh(ln(predicted run time of the new job / 1 h) / 3).
        by_left: Factor of tanh(ln(predicted remaining time of the running job / 1 h) / 3).
        by_queue: Factor of 1 - exp(-4 x waiting jobs per GPU).
        by_slowest: Factor of the amount by which the slowest job is below a speed of 0.85.
        by_hold: Factor of (2 h)^3 x t / (t + 1 h): the jobs hold the share h of the partition's GPUs, and are
            predicted to hold them for t longer than without the new job.
    """

    is_shut: bool
    pair: float
    more: float
    by_length: float
    by_left: float
    by_queue: float
    by_slowest: float
    by_hold: float


NO_GATE: Final = Gate(False, -1.0, -1.0, 0.0, 0.0, 0.0, 0.0, 0.0)


class StartOptions(NamedTuple):
    """How jobs start if models predict their speed; without models, on whole GPUs at full clock.

    Attributes:
        share: Which jobs share GPUs: NEVER, BLOCKED, LUCID or BETTER.
        max_jobs: Most jobs on a GPU.
        min_speed: Predicted speed that all jobs on a shared GPU must keep; 1: the speed without sharing.
        clock: How a job's SM clock is chosen: FULL ... WEIGHED.
        clock_value: FIXED: clock as a fraction of the maximum. SLOWDOWN, LULL: slowdown allowed. WEIGHED:
            weight of energy against time, -1: the cluster's weight.
        cores: Whether input-bound jobs get idle cores, and other jobs release cores that they cannot use.
        gate: Least gain of sharing.
        chooses_type: Whether a job's GPU type is chosen by its value to the job (`decide.plans.alone`).
        type_price: Price of fast GPUs in that choice.
        later: Factor of the wait for GPUs of a better type; infinite: no job waits for them.
    """

    share: int
    max_jobs: int
    min_speed: float
    clock: int
    clock_value: float
    cores: bool
    gate: Gate
    chooses_type: bool
    type_price: float
    later: float


class RuleOptions(NamedTuple):
    """Options of all rules; each rule reads only its own options.

    Attributes:
        blocks: Whether the first job that does not fit blocks the jobs behind it.
        reserve_after_s: Waiting time, seconds, after which a job that does not fit gets a reservation.
        long_job_s: Predicted run time, seconds, above which a job counts as long.
        leave_frac: Share of a partition's GPUs that a long job leaves free when it starts.
        threshold_gpu_s: Attained service, GPU-seconds, above which a job comes after all others.
        tick_s: Decisions are taken at multiples of this time, seconds; 0: at every event.
        preempts: Whether jobs may be preempted.
        start: How jobs are started.
        own: (n,) numbers for a user-defined rule.
    """

    blocks: bool
    reserve_after_s: float
    long_job_s: float
    leave_frac: float
    threshold_gpu_s: float
    tick_s: float
    preempts: bool
    start: StartOptions
    own: NDArray[np.float64]


PLAIN_START: Final = StartOptions(NEVER, 2, KEEP_FRAC, FULL, 1.0, False, NO_GATE, False, 0.0, math.inf)
PLAIN: Final = RuleOptions(False, math.inf, math.inf, 0.0, math.inf, 0.0, False, PLAIN_START, np.zeros(0))
"""Options of a rule that starts jobs on free GPUs and continues past a job that does not fit."""


@kernel
def energy_weight(s: StateArrays) -> float:
    """Weight of energy against time, 0 to 1; 0 without models."""
    return s.config[0].energy_ppm / 1e6 if MODELLED and s.config[0].modelled else 0.0


@kernel
def job_energy_weight(s: StateArrays, slot: int) -> float:
    """Weight of energy for a job: its own setting, else `energy_weight`; 0 without models."""
    own = s.job.energy_ppm[slot]
    return energy_weight(s) if own < 0 or not MODELLED or not s.config[0].modelled else own / 1e6


@kernel
def policy_start(s: StateArrays) -> StartOptions:
    """Start options of a policy's reference rule on this state: all abilities that its models support.

    If models exist only for clocks, the options choose clocks by weighted cost.
    """
    if not MODELLED or not s.config[0].modelled:
        return StartOptions(NEVER, 2, 0.0, FULL, 1.0, False, NO_GATE, False, 0.0, math.inf)
    if s.config[0].modelled == CLOCKS_ALONE:
        return StartOptions(NEVER, 2, 0.0, WEIGHED, energy_weight(s), False, NO_GATE, False, 0.0, math.inf)
    return StartOptions(BLOCKED, 2, KEEP_FRAC, WEIGHED, energy_weight(s), True, NO_GATE, False, 0.0, math.inf)


@kernel
def may_share(s: StateArrays) -> bool:
    """Whether models predict the speed of jobs that share GPUs."""
    return MODELLED and s.config[0].modelled != 0 and s.config[0].modelled != CLOCKS_ALONE
