"""The attempt log, compiled: entries at the start and at the end of an attempt."""

from __future__ import annotations

import numpy as np

from rlsched.cluster.arrays import MAX_TENANTS, Records
from rlsched.compile.jit import kernel
from rlsched.decide.constants import MODELLED
from rlsched_envs.sim.attempt_arrays import ENDED, FAILED, ONGOING, PREEMPTED, TIMEOUT
from rlsched_envs.sim.heap import push_end
from rlsched_envs.sim.pace import begin_attempt, settled_s
from rlsched_envs.sim.sim_arrays import SimArrays


@kernel
def has_room(sim: SimArrays, jobs: int) -> bool:
    """Whether this number of jobs can start, on any free GPUs, without growing the log."""
    log = sim.log
    if log.attempts.shape[0] - log.counters[0].attempts < jobs:
        return False
    gpus = MAX_TENANTS * sim.state.gpu.shape[0]
    return log.attempt_gpu.shape[0] == 0 or log.attempt_gpu.shape[0] - log.counters[0].attempt_gpus >= gpus


@kernel
def log_start(sim: SimArrays, slot: int) -> None:
    """Log the start of an attempt and plan its end. There must be room for one more (`has_room`)."""
    s, r, log = sim.state, sim.progress, sim.log
    row, now_s, jobs = r.ends.row[slot], r.run[0].now_s, sim.log.jobs
    at = log.counters[0].attempts
    log.counters[0].attempts += 1
    jobs.latest[row] = at
    one = log.attempts
    one.row[at], one.attempt[at], one.gpus[at] = row, s.job.attempt[slot], s.job.gpus[slot]
    one.start_s[at], one.end_s[at], one.useful_s[at] = now_s, np.nan, 0.0
    one.done_s[at] = one.share_s[at] = one.used_s[at] = one.clock_s[at] = 0.0
    one.energy_j[at] = r.outcome.energy_j[row] if MODELLED and s.config[0].modelled else 0.0
    one.reason[at], one.gpu_at[at] = ONGOING, log.counters[0].attempt_gpus
    if log.attempt_gpu.shape[0] > 0:
        place = s.job.head[slot]
        while place >= 0:
            log.attempt_gpu[log.counters[0].attempt_gpus] = place // MAX_TENANTS
            log.counters[0].attempt_gpus += 1
            place = s.gpu.link[place // MAX_TENANTS, place % MAX_TENANTS]
    reason = ENDED
    if s.job.attempt[slot] == 1 and jobs.duration_s[row] > jobs.profile_s[row]:
        s.job.overhead_left_s[slot] = jobs.profile_s[row]
    takes_s = s.job.overhead_left_s[slot] + (jobs.duration_s[row] - jobs.saved_s[row])
    if jobs.failures[row] < jobs.failures_given[row]:
        left_s = log.fail_after_s[jobs.first_failure[row] + jobs.failures[row]] - jobs.run_s[row]
        if left_s < takes_s:
            takes_s, reason = max(left_s, 0.0), FAILED
    if MODELLED and s.config[0].modelled:
        jobs.ends_by[row] = reason
        begin_attempt(sim, slot, takes_s, jobs.limit_s[row])
        return
    if jobs.limit_s[row] < takes_s:
        takes_s, reason = jobs.limit_s[row], TIMEOUT
    end_s = now_s + takes_s
    if not np.isnan(sim.truth.fixed_end_s[row]):
        end_s, reason = max(sim.truth.fixed_end_s[row], now_s), ENDED
    jobs.ends_by[row] = reason
    push_end(r, end_s, slot)


@kernel
def _work_kept_s(jobs: Records, row: int, done_s: float, reason: int) -> float:
    """Work of an attempt that need not be repeated, seconds.

    A preempted job saves on request, unless it has a checkpoint interval (`checkpoint_s`); after a failure of
    the job or of its node, it has the last checkpoint. A time limit ends the job: nothing is repeated.
    """
    left_s = jobs.duration_s[row] - jobs.saved_s[row]
    if reason == ENDED:
        return left_s
    done_s = min(done_s, left_s)
    every_s = jobs.checkpoint_s[row]
    if reason == TIMEOUT or every_s == 0.0:
        return done_s
    if np.isnan(every_s):
        return done_s if reason == PREEMPTED else 0.0
    saved_s = np.floor((jobs.saved_s[row] + done_s) / every_s) * every_s
    return max(saved_s - jobs.saved_s[row], 0.0)


@kernel
def log_end(sim: SimArrays, slot: int, reason: int) -> None:
    """Log the end of the attempt in a slot, and its remaining work."""
    r, jobs, one = sim.progress, sim.log.jobs, sim.log.attempts
    row, now_s = r.ends.row[slot], r.run[0].now_s
    at = jobs.latest[row]
    done_s = now_s - one.start_s[at]
    if MODELLED and sim.state.config[0].modelled:
        done_s = settled_s(sim, slot)
    kept_s = _work_kept_s(jobs, row, max(done_s - sim.state.job.overhead_left_s[slot], 0.0), reason)
    one.end_s[at], one.reason[at], one.useful_s[at] = now_s, reason, kept_s
    one.done_s[at] = done_s
    if MODELLED and sim.state.config[0].modelled:
        one.energy_j[at] = r.outcome.energy_j[row] - one.energy_j[at]
        one.share_s[at], one.used_s[at] = r.work.share_s[slot], r.work.used_s[slot]
        one.clock_s[at] = r.work.clock_s[slot]
    jobs.saved_s[row] += kept_s
    sim.state.job.saved_s[slot] = jobs.saved_s[row]
    jobs.run_s[row] += done_s
    if reason == FAILED:
        jobs.failures[row] += 1
        jobs.run_s[row] = 0.0
