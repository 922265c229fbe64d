"""Compiled sums of a run's costs so far: delay beyond the jobs' slack, energy, money, and further terms.

The slack of a job is the delay that its user accepts for cheaper electricity.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import StateArrays
from rlsched.compile.jit import kernel
from rlsched.decide.constants import MODELLED, PRICED
from rlsched.decide.order.gittins import age_s
from rlsched.objective import LATE_S, NUM_TERMS, Term
from rlsched_envs.sim.sim_arrays import SimArrays


@kernel
def terms_so_far(sim: SimArrays, found: NDArray[np.float64]) -> None:
    """Write the terms of an objective up to now (`rlsched.objective.TERMS`) to `found`, (NUM_TERMS,).

    Terms that depend on single jobs are 0 unless the run records them (`by_job`).
    """
    run, books = sim.progress.run[0], sim.progress.books[0]
    for k in range(NUM_TERMS):
        found[k] = 0.0
    found[Term.TIME], found[Term.ENERGY], found[Term.MONEY] = costs_so_far(sim)
    found[Term.PEAK], found[Term.WAKE_UPS] = books.peak_w, books.wake_ups
    found[Term.PREEMPTIONS] = run.preemptions
    if books.by_job > 0.0:
        found[Term.TIME] = 0.0
        add_jobs(sim, found)


@kernel
def add_jobs(sim: SimArrays, found: NDArray[np.float64]) -> None:
    """Add the terms of all jobs to `found`, (NUM_TERMS,).

    The delay of a job that has not ended is estimated as in `costs_so_far`.
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
    beyond_s = _beyond_s(delay_s, slack_s)
    found[Term.TIME] += beyond_s if weight < 0.0 else weight * beyond_s
    found[Term.TAIL] += max(beyond_s - tail_after_s, 0.0) * (1.0 if weight < 0.0 else weight)
    if weight < 0.0:
        found[Term.REST] += beyond_s
    if slack_s > 0.0:
        found[Term.LATE] += delay_s > slack_s + LATE_S
    else:
        found[Term.URGENT] += delay_s


@kernel
def costs_so_far(sim: SimArrays) -> tuple[float, float, float]:
    """Return (delay, energy, money) of a run up to now; energy and money are 0 without models.

    The delay is the sum over the jobs of the time beyond their run times on unshared GPUs at full clock,
    job-seconds. With prices, only the part beyond a job's slack counts, and the delay of a job that has not
    ended is estimated (`_beyond_slack_s`). The money is the integral of price x power of the jobs, J x price;
    without prices it is the energy, J. If unused nodes sleep (`unused_sleep`), the money also has the idle
    power of the nodes that run a job.
    """
    run, books = sim.progress.run[0], sim.progress.books[0]
    delay_s, energy_j = run.queued_s, 0.0
    if MODELLED and sim.state.config[0].modelled:
        delay_s, energy_j = delay_s + books.lost_s, books.jobs_j
    if not PRICED or sim.progress.signal.shape[1] == 0:
        return delay_s, energy_j, energy_j
    uncharged = books.unused_cost if books.unused_sleep > 0.0 else books.idle_cost
    return _beyond_slack_s(sim), energy_j, books.cost - uncharged


@kernel
def _beyond_slack_s(sim: SimArrays) -> float:
    """Return the sum over all jobs of their delay beyond their slack, job-seconds.

    The delay of a job that has not ended is the time since its submission less its attained service. Time on
    GPUs shared by two jobs counts half as service.
    """
    truth, outcome, total_s = sim.truth, sim.progress.outcome, 0.0
    for row in range(sim.progress.run[0].next_row):
        if outcome.end_s[row] == outcome.end_s[row]:
            delay_s = outcome.end_s[row] - truth.submit_s[row] - truth.duration_s[row]
            total_s += _beyond_s(delay_s, truth.slack_s[row])
    return total_s + _live_beyond_slack_s(sim.state, sim.progress.run[0].now_s)


@kernel
def _live_beyond_slack_s(s: StateArrays, now_s: float) -> float:
    total_s = 0.0
    for at in range(s.job.shape[0] - s.counters[0].live_jobs, s.job.shape[0]):
        slot = s.derived.slot.stack[at]
        delay_s = now_s - s.job.submit_s[slot] - age_s(s, slot, now_s)
        total_s += _beyond_s(delay_s, s.job.slack_s[slot])
    return total_s


@kernel
def _beyond_s(delay_s: float, slack_s: float) -> float:
    return max(delay_s - slack_s, 0.0) if slack_s > 0.0 else delay_s
