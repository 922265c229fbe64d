"""What a policy asks of rules and of starts, as kernels take it."""

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
"""Who shares GPUs: nobody; jobs that do not fit otherwise; as in Lucid, whoever may, before free GPUs; jobs
to which that is worth more than free GPUs (of another type), and those that do not fit."""

FULL: Final = 0
FIXED: Final = 1
SLOWDOWN: Final = 2
LULL: Final = 3
WEIGHED: Final = 4
"""SM clock of a job: the highest; one for all; the one of least energy within a slowdown; the same, but the
highest while other jobs wait; the one where time and energy, weighed against each other, cost least."""

KEEP_FRAC: Final = 0.85
"""Speed that all who share a GPU have to keep. How good a bound it is: `docs/explanation/sharing.md`."""


class Gate(NamedTuple):
    """What a job has to add to GPUs that others have. Its *gain* is its own predicted speed there, less what
    its co-tenants lose; the least gain is one of the first two, plus what the others come to.

    Attributes:
        is_shut: Whether there is a least gain at all.
        pair: Least gain of the second job on a GPU ...
        more: ... and of the third and fourth.
        by_length: Times tanh(ln(predicted run time of the newcomer / 1 h) / 3).
        by_left: Times tanh(ln(predicted time left of the running job / 1 h) / 3).
        by_queue: Times 1 - exp(-4 x waiting jobs a GPU).
        by_slowest: Times what the slowest of them falls below 0.85.
        by_hold: Times (2 h)^3 x t / (t + 1 h): they hold the share h of the partition's GPUs, and are
            predicted to hold them for t longer than without the newcomer.
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
    """How jobs are started where models say how fast they run; on whole GPUs at full clock without models.

    Attributes:
        share: Who shares GPUs: NEVER, BLOCKED, LUCID or BETTER.
        max_jobs: Jobs on a GPU at most.
        min_speed: Predicted speed that all who share a GPU have to keep, alone = 1.
        clock: How a job's SM clock is chosen: FULL ... WEIGHED.
        clock_value: FIXED: the clock, of the maximum. SLOWDOWN, LULL: the slowdown allowed. WEIGHED: what
            energy counts against time, -1: what the cluster says.
        cores: Whether input-bound jobs get idle cores, and others leave those that they have no use for.
        gate: What sharing has to gain.
        chooses_type: Whether a job's GPU type is chosen by what it is worth to it (`decide.plans.alone`) ...
        type_price: ... at this price of fast GPUs.
        later: How often the wait for GPUs of a better type counts; infinite: no job waits for them.
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


class MigrationOptions(NamedTuple):
    """When running jobs are moved so that a gang finds its GPUs together.

    Attributes:
        dwell_s: A job is moved when its attempt has lasted so long, seconds.
        gain: The gang's GPUs times its wait otherwise, as predicted, have to be so many times the GPU-seconds
            of the restarts.
        first: Whether jobs are moved before any is preempted to wait; else only where nobody gives way.
    """

    dwell_s: float
    gain: float
    first: bool


class RuleOptions(NamedTuple):
    """What any rule may be told; each reads what concerns it.

    Attributes:
        blocks: Whether the first job that does not fit blocks those behind it.
        reserve_after_s: A job that does not fit has a reservation once it has waited so long.
        long_job_s: A job that is predicted to run longer than this ...
        leave_frac: ... leaves this share of a partition's GPUs free when it starts.
        threshold_gpu_s: Attained service above which a job comes after all others.
        tick_s: Decisions are taken at multiples of this time; 0: at every event.
        preempts: Whether jobs may be preempted.
        start: How jobs are started.
        migration: When running jobs are moved.
        own: (n,) numbers that a rule of somebody's own reads.
    """

    blocks: bool
    reserve_after_s: float
    long_job_s: float
    leave_frac: float
    threshold_gpu_s: float
    tick_s: float
    preempts: bool
    start: StartOptions
    migration: MigrationOptions
    own: NDArray[np.float64]


PLAIN_START: Final = StartOptions(NEVER, 2, KEEP_FRAC, FULL, 1.0, False, NO_GATE, False, 0.0, math.inf)
NO_MIGRATION: Final = MigrationOptions(math.inf, math.inf, False)
PLAIN: Final = RuleOptions(
    False, math.inf, math.inf, 0.0, math.inf, 0.0, False, PLAIN_START, NO_MIGRATION, np.zeros(0)
)
"""Options of a rule that starts jobs on free GPUs and goes on behind one that does not fit."""


@kernel
def energy_weight(s: StateArrays) -> float:
    """What energy counts against time, 0 to 1; nothing without models."""
    return s.config[0].energy_ppm / 1e6 if MODELLED and s.config[0].modelled else 0.0


@kernel
def job_energy_weight(s: StateArrays, slot: int) -> float:
    """What energy counts for a job: what it says itself, else `energy_weight`; nothing without models."""
    own = s.job.energy_ppm[slot]
    return energy_weight(s) if own < 0 or not MODELLED or not s.config[0].modelled else own / 1e6


@kernel
def policy_start(s: StateArrays) -> StartOptions:
    """How a policy's reference rule starts jobs on this state: with all that its models know.

    Where models are there for clocks alone, it weighs clocks.
    """
    if not MODELLED or not s.config[0].modelled:
        return StartOptions(NEVER, 2, 0.0, FULL, 1.0, False, NO_GATE, False, 0.0, math.inf)
    if s.config[0].modelled == CLOCKS_ALONE:
        return StartOptions(NEVER, 2, 0.0, WEIGHED, energy_weight(s), False, NO_GATE, False, 0.0, math.inf)
    return StartOptions(BLOCKED, 2, KEEP_FRAC, WEIGHED, energy_weight(s), True, NO_GATE, False, 0.0, math.inf)


@kernel
def may_share(s: StateArrays) -> bool:
    """Whether models say how fast jobs run that share GPUs."""
    return MODELLED and s.config[0].modelled != 0 and s.config[0].modelled != CLOCKS_ALONE
