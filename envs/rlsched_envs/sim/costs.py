"""Compiled sums of a run's costs so far: delay beyond the jobs' slack, energy, and money.

The slack of a job is the delay that its user accepts for cheaper electricity.
"""

from __future__ import annotations

from rlsched.cluster.arrays import StateArrays
from rlsched.compile.jit import kernel
from rlsched.decide.constants import MODELLED, PRICED
from rlsched.decide.order.gittins import age_s
from rlsched_envs.sim.sim_arrays import SimArrays


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
