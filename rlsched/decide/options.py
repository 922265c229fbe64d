"""Options of rules and of starts, in the form that kernels read."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import CLOCKS_ALONE, StateArrays
from rlsched.compile.jit import kernel
from rlsched.decide.constants import MODELLED
from rlsched.energy.relative import PricesAsked

NEVER: Final = 0
BLOCKED: Final = 1
LUCID: Final = 2
BETTER: Final = 3
"""Which jobs share GPUs. NEVER: no job. BLOCKED: jobs that do not fit on free GPUs. LUCID: all jobs, before
free GPUs are used. BETTER: jobs for which shared GPUs (of another type) are worth more than free ones, and
jobs that do not fit on free GPUs."""

FULL: Final = 0
FIXED: Final = 1
SLOWDOWN: Final = 2
LULL: Final = 3
WEIGHED: Final = 4
"""SM clock of a job. FULL: the highest. FIXED: the same for all jobs. SLOWDOWN: the clock of least energy
within a slowdown. LULL: as SLOWDOWN, but the highest clock while other jobs wait. WEIGHED: the clock
of least weighted cost of time and energy.
"""

KEEP_FRAC: Final = 0.85
"""Least predicted speed of each job on a shared GPU; 1: the speed without sharing."""


class Gate(NamedTuple):
    """Least gain that a waiting job needs in order to share the GPUs of running jobs.

    The *gain* is the predicted speed of the job on these GPUs, less the speed that its co-tenants lose. The
    least gain is `pair` or `more`, plus the `by_*` terms.

    Attributes:
        is_shut: Whether a least gain is required at all.
        pair: Least gain of the second job on a GPU.
        more: Least gain of the third and fourth job on a GPU.
        by_length: Factor of tanh(ln(predicted run time of the new job / 1 h) / 3).
        by_left: Factor of tanh(ln(predicted remaining time of the running job / 1 h) / 3).
        by_queue: Factor of 1 - exp(-4 x waiting jobs per GPU).
        by_slowest: Factor of the amount by which the slowest job is below a speed of 0.85.
        by_hold: Factor of (2 f)^3 x t / (t + 1 hour). f: fraction of the partition's GPUs that the jobs would
            share; t: predicted time by which the new job delays the release of these GPUs.
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


class PriceOptions(NamedTuple):
    """Options that make decisions follow the price of electricity (`decide.price`); 0: no effect.

    Attributes:
        power: Exponent p: the weight of energy in the choice of clocks is multiplied by (price / mean)^p.
        defer: A waiting job does not start before it has used the fraction tanh(defer x ln(price / mean)) of
            its slack, at most 0.8.
        pause: A running job that has used less than the fraction tanh(pause x ln(price / mean)) of its slack,
            at most 0.8, is preempted.
        window: Whether a waiting job starts at the time at which its predicted run costs least. The wait uses
            at most 0.8 of its slack.
        percentile: While the price is above this quantile of the past 7 days, jobs that have used less than
            0.8 of their slack do not start, and are preempted if they run.
        longer_than_s: Predicted run time, seconds, up to which a waiting job starts at any price.
        spare: A job waits only while the rest of its slack is longer than `spare` x the clearing time
            (`decide.clearing`).
    """

    power: float
    defer: float
    pause: float
    window: bool
    percentile: float
    longer_than_s: float
    spare: float

    @property
    def asked(self) -> PricesAsked:
        """Details of the price that these options need."""
        return PricesAsked(ahead=self.window, rank=self.percentile > 0.0)


NO_PRICE: Final = PriceOptions(0.0, 0.0, 0.0, False, 0.0, 0.0, 0.0)


class StartOptions(NamedTuple):
    """Options for starting jobs if models predict speeds. Without models, jobs get whole GPUs at full clock.

    Attributes:
        share: Which jobs share GPUs: NEVER, BLOCKED, LUCID or BETTER.
        max_jobs: Maximum number of jobs on a GPU.
        min_speed: Least predicted speed of each job on a shared GPU; 1: the speed without sharing.
        clock: How a job's SM clock is chosen: FULL, FIXED, SLOWDOWN, LULL or WEIGHED.
        clock_value: FIXED: clock as a fraction of the maximum. SLOWDOWN, LULL: slowdown allowed. WEIGHED:
            weight of energy against time, -1: the cluster's weight.
        cores: Whether input-bound jobs get idle CPU cores, and other jobs release CPU cores that they cannot
            use.
        gate: Least gain that a job needs in order to share GPUs.
        chooses_type: Whether a job gets the GPU type of highest worth to it (`decide.plans.plan.type_worth`).
        type_price: Exponent p in the worth of a GPU type: (the job's speed on this type) / (the usual
            workload's speed on this type)^p.
        later: Factor of the predicted wait for GPUs of a better type; infinite: no job waits for such GPUs.
        price: How decisions follow the price of electricity.
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
    price: PriceOptions


class RuleOptions(NamedTuple):
    """Options of all rules; each rule reads only its own options.

    Attributes:
        blocks: Whether the first job that does not fit blocks the jobs behind it.
        reserve_after_s: Waiting time, seconds, after which a job that does not fit gets a reservation.
        long_job_s: Predicted run time, seconds, above which a job is long.
        leave_frac: Fraction of a partition's GPUs that a long job leaves free when it starts.
        threshold_gpu_s: Attained service, GPU-seconds; jobs above this value are ordered behind all other
            jobs.
        tick_s: Decisions are made only at multiples of this time, seconds; 0: decisions are made at every
            event.
        preempts: Whether jobs may be preempted.
        start: Options for starting jobs.
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


PLAIN_START: Final = StartOptions(
    NEVER, 2, KEEP_FRAC, FULL, 1.0, False, NO_GATE, False, 0.0, math.inf, NO_PRICE
)
PLAIN: Final = RuleOptions(False, math.inf, math.inf, 0.0, math.inf, 0.0, False, PLAIN_START, np.zeros(0))
"""Options of a rule that starts jobs on free GPUs and continues past a job that does not fit."""


@kernel
def energy_weight(s: StateArrays) -> float:
    """Return the cluster's weight of energy against time, 0 to 1; 0 without models."""
    return s.config[0].energy_ppm / 1e6 if MODELLED and s.config[0].modelled else 0.0


@kernel
def policy_start(s: StateArrays) -> StartOptions:
    """Return the default start options, which use all models of the state.

    If models exist only for clocks, clocks are chosen by weighted cost.
    """
    if not MODELLED or not s.config[0].modelled:
        return StartOptions(NEVER, 2, 0.0, FULL, 1.0, False, NO_GATE, False, 0.0, math.inf, NO_PRICE)
    if s.config[0].modelled == CLOCKS_ALONE:
        weight = energy_weight(s)
        return StartOptions(NEVER, 2, 0.0, WEIGHED, weight, False, NO_GATE, False, 0.0, math.inf, NO_PRICE)
    weight = energy_weight(s)
    return StartOptions(BLOCKED, 2, KEEP_FRAC, WEIGHED, weight, True, NO_GATE, False, 0.0, math.inf, NO_PRICE)


@kernel
def may_share(s: StateArrays) -> bool:
    """Return whether models predict the speed of jobs that share GPUs."""
    return MODELLED and s.config[0].modelled != 0 and s.config[0].modelled != CLOCKS_ALONE
