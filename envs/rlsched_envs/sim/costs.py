"""Compiled sums of a run's costs so far: the terms of an objective (`rlsched.objective`).

The slack of a job is the delay that its user accepts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlsched.compile.jit import kernel
from rlsched.decide.constants import PRICED
from rlsched.decide.order.gittins import age_s
from rlsched.objective import LATE_S, NUM_TERMS, Term
from rlsched_envs.sim.constants import PHYSICS
from rlsched_envs.sim.sim_arrays import SimArrays


@kernel
def terms_so_far(sim: SimArrays, found: NDArray[np.float64]) -> None:
    """Write the terms of an objective up to now (`rlsched.objective.TERMS`) to `found`, (NUM_TERMS,).

    - Energy is the energy of the jobs, J; 0 without models.
    - Money is the integral of price x power of the jobs, J x price; without prices, money equals the energy.
      If unused nodes sleep (`unused_sleep`), money includes the idle power of nodes that run a job.
    - Time is the delay, summed over the jobs: time in the system less the run time on unshared GPUs at full
      clock, job-seconds. If `by_job` is set, only the part of a delay beyond the job's slack counts,
      multiplied by the job's weight.
    - The terms that need the delay of each job are 0 if `by_job` is not set.
    """
    run, books = sim.progress.run[0], sim.progress.books[0]
    for k in range(NUM_TERMS):
        found[k] = 0.0
    found[Term.TIME] = run.queued_s
    if PHYSICS and sim.state.config[0].modelled:
        found[Term.TIME] += books.lost_s
        found[Term.ENERGY] = books.jobs_j
    found[Term.MONEY] = found[Term.ENERGY]
    if PRICED and sim.progress.signal.shape[1] > 0:
        uncharged = books.unused_cost if books.unused_sleep > 0.0 else books.idle_cost
        found[Term.MONEY] = books.cost - uncharged
    found[Term.PEAK], found[Term.WAKE_UPS] = books.peak_w, books.wake_ups
    found[Term.PREEMPTIONS] = run.preemptions
    if books.by_job > 0.0:
        found[Term.TIME] = 0.0
        _add_jobs(sim, found)


@kernel
def _add_jobs(sim: SimArrays, found: NDArray[np.float64]) -> None:
    """Add the terms that depend on the delay of each job to `found`, (NUM_TERMS,).

    The delay of a job that has not ended is the time since its submission less its run time so far. Run time
    in which two jobs share GPUs counts half.
    """
    truth, outcome, s, run = sim.truth, sim.progress.outcome, sim.state, sim.progress.run[0]
    tail_after_s = sim.progress.books[0].tail_after_s
    for row in range(run.next_row):
        if outcome.end_s[row] == outcome.end_s[row]:
            delay_s = outcome.end_s[row] - truth.submit_s[row] - truth.duration_s[row]
            _add_job(found, delay_s, truth.slack_s[row], truth.weight[row], tail_after_s)
    for at in range(s.job.shape[0] - s.counters[0].live_jobs, s.job.shape[0]):
        slot = s.derived.slot.stack[at]
        row = sim.progress.ends.row[slot]
        delay_s = run.now_s - s.job.submit_s[slot] - age_s(s, slot, run.now_s)
        _add_job(found, delay_s, truth.slack_s[row], truth.weight[row], tail_after_s)


@kernel
def _add_job(
    found: NDArray[np.float64], delay_s: float, slack_s: float, weight: float, tail_after_s: float
) -> None:
    beyond_s = max(delay_s - slack_s, 0.0) if slack_s > 0.0 else delay_s
    found[Term.TIME] += beyond_s if weight < 0.0 else weight * beyond_s
    found[Term.TAIL] += max(beyond_s - tail_after_s, 0.0) * (1.0 if weight < 0.0 else weight)
    if weight < 0.0:
        found[Term.REST] += beyond_s
    if slack_s > 0.0:
        found[Term.LATE] += delay_s > slack_s + LATE_S
    else:
        found[Term.URGENT] += delay_s
