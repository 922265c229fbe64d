"""Compiled functions that revise the predictions of waiting jobs, given run times of jobs of the same burst.

A burst consists of jobs of one VC with the same request that were submitted in a row. The errors of their
predictions are alike. For job i, ln(run time / prediction) = u + e_i, both normal: u is common to the burst,
e_i belongs to job i. A job of the burst that has ended reveals u + e_i; a running job shows that u + e_i
exceeds ln(age / prediction). A prediction is revised to (prediction at submission) x exp(E[u]). E[u] is
computed by numerical integration: empirical Bayes for a model with one random effect. The variances of u and
e_i are learned from finished jobs, for each request. Before any job has finished, their sum is the variance
of the predictions (`spread`), and half of it belongs to u.

Predictions change only when a job arrives, ends or is queued again, so that the same events give the same
predictions in a simulator and in a broker. docs/explanation/prediction.md has their accuracy.
"""

from __future__ import annotations

import math
from typing import Final

from rlsched.cluster.arrays import WAITING, StateArrays
from rlsched.compile.jit import kernel

SIBLING_GAP_S: Final = 300.0
"""Maximum time, seconds, between the submissions of two successive jobs of one burst."""
FIRST_SHARE: Final = 0.5
"""Assumed fraction of the variance of a prediction error that belongs to the single job. The rest is common
to all jobs of its burst. Finished jobs correct the fraction.
"""
FIRST_COUNT: Final = 2.0
"""Weight of the assumed variances in the learned variances, as a number of finished jobs."""
KEPT: Final = 0.999
"""Factor by which each finished job reduces the weights of earlier jobs in the learned variances."""
_MOST_OWN: Final = 0.95
SHIFT_STEP: Final = 0.1
"""E[u], the common error of a burst, is rounded to multiples of this, so that queues are rarely re-sorted."""
FIRST_AGE_FRAC: Final = 0.5
LEAST_S: Final = 60.0
AGE_STEP: Final = 2.0
"""Ratio of successive *age steps*. An age step is an age (run time so far) of a running job at which the
predictions of its burst are revised. The first step is half of the job's prediction, but at least 30 s.
"""
_LEAST_SPREAD: Final = 0.1
_REACH: Final = 4.5
_POINTS: Final = 31
_LEAST_TAIL: Final = 1e-30


@kernel
def _age_s(s: StateArrays, slot: int, now_s: float) -> float:
    """Return how long a running job has run, seconds, including the saved work of earlier attempts."""
    return s.job.saved_s[slot] + now_s - s.job.start_s[slot]


@kernel
def heard_age_s(s: StateArrays, slot: int, now_s: float) -> float:
    """Return the last age step (`AGE_STEP`) that a running job has reached, seconds; 0: none."""
    age_s = _age_s(s, slot, now_s)
    step_s = FIRST_AGE_FRAC * max(s.job.first_predicted_s[slot], LEAST_S)
    if age_s < step_s:
        return 0.0
    while step_s * AGE_STEP <= age_s:
        step_s *= AGE_STEP
    return step_s


@kernel
def _next_look_s(s: StateArrays, slot: int, now_s: float) -> float:
    """Return the time at which a running job reaches its next age step (`AGE_STEP`)."""
    heard_s = heard_age_s(s, slot, now_s)
    step_s = (
        heard_s * AGE_STEP if heard_s > 0.0 else FIRST_AGE_FRAC * max(s.job.first_predicted_s[slot], LEAST_S)
    )
    return now_s + step_s - _age_s(s, slot, now_s)


@kernel
def expected_shift(s: StateArrays, slot: int, now_s: float) -> float:
    """Return E[u], the expected common error of a job's burst; 0 without ended or running jobs."""
    job, burst = s.job, s.job.burst[slot]
    last = -1
    for position in range(s.derived.running_len[0]):
        other = s.derived.slot.running[position]
        heard_s = heard_age_s(s, other, now_s) if job.burst[other] == burst else 0.0
        if heard_s > 0.0:
            s.derived.slot.ln_age[other] = math.log(heard_s / max(job.first_predicted_s[other], 1.0))
            s.derived.slot.next_of_burst[other] = last
            last = other
    ended = job.burst_ended[slot]
    if ended == 0 and last < 0:
        return 0.0
    d, c, first = s.demand, job.demand[slot], max(job.burst_spread[slot], _LEAST_SPREAD) ** 2
    all_square = (d.error_square[c] + FIRST_COUNT * first) / (d.error_count[c] + FIRST_COUNT)
    own_square = (d.own_square[c] + FIRST_COUNT * FIRST_SHARE * first) / (d.own_count[c] + FIRST_COUNT)
    own_square = min(own_square, _MOST_OWN * all_square)
    common, own = math.sqrt(all_square - own_square), math.sqrt(own_square)
    best, total, moment = -math.inf, 0.0, 0.0
    ln_age, ln_tail = math.nan, 0.0  # siblings at the same age step have the same weight
    for k in range(_POINTS):
        z = _REACH * (2.0 * k / (_POINTS - 1) - 1.0)
        u = z * common
        log_weight = -0.5 * z * z
        if ended > 0:
            away = (job.burst_ln_sum[slot] / ended - u) / own
            log_weight -= 0.5 * ended * away * away
        other, ln_age = last, math.nan
        while other >= 0:
            if s.derived.slot.ln_age[other] != ln_age:
                ln_age = s.derived.slot.ln_age[other]
                tail = 0.5 * math.erfc((ln_age - u) / own / math.sqrt(2.0))
                ln_tail = math.log(max(tail, _LEAST_TAIL))
            log_weight += ln_tail
            other = s.derived.slot.next_of_burst[other]
        if log_weight > best:
            scale = math.exp(best - log_weight)
            total, moment, best = total * scale, moment * scale, log_weight
        weight = math.exp(log_weight - best)
        total, moment = total + weight, moment + weight * u
    return SHIFT_STEP * math.floor(moment / total / SHIFT_STEP + 0.5)


@kernel
def shifted_s(s: StateArrays, slot: int, shift: float) -> float:
    """Return a job's prediction at submission, multiplied by exp(`shift`), at most its time limit."""
    revised_s, limit_s = s.job.first_predicted_s[slot] * math.exp(shift), s.job.limit_s[slot]
    return min(revised_s, limit_s) if limit_s == limit_s else revised_s


@kernel
def _last_like(s: StateArrays, slot: int) -> int:
    """Return the latest live job (slot), except this one, of the same VC with the same request; -1: none."""
    job, last = s.job, -1
    for at in range(job.shape[0] - s.counters[0].live_jobs, job.shape[0]):
        other = s.derived.slot.stack[at]
        if other == slot or job.demand[other] != job.demand[slot]:
            continue
        if job.vc[other] == job.vc[slot] and (last < 0 or job.seq[other] > job.seq[last]):
            last = other
    return last


@kernel
def join_burst(s: StateArrays, slot: int, now_s: float) -> None:
    """Add a new job to its burst, and revise the prediction of this job. The job must not be queued yet."""
    job, d, c = s.job, s.demand, s.job.demand[slot]
    last = -1
    if d.arrived[c] > 1 and d.burst_vc[c] == job.vc[slot]:
        goes_on = now_s - d.burst_last_s[c] <= SIBLING_GAP_S
    else:  # jobs of another VC with the same request arrived in between
        last = _last_like(s, slot)
        goes_on = last >= 0 and now_s - job.submit_s[last] <= SIBLING_GAP_S
    if not goes_on:
        d.burst[c], d.burst_ended[c], d.burst_ln_sum[c] = job.seq[slot], 0, 0.0
        d.burst_spread[c] = job.spread[slot]
    elif last >= 0:
        d.burst[c], d.burst_ended[c] = job.burst[last], job.burst_ended[last]
        d.burst_ln_sum[c], d.burst_spread[c] = job.burst_ln_sum[last], job.burst_spread[last]
    d.burst_last_s[c], d.burst_vc[c] = now_s, job.vc[slot]
    job.burst[slot], job.burst_ended[slot] = d.burst[c], d.burst_ended[c]
    job.burst_ln_sum[slot], job.burst_spread[slot] = d.burst_ln_sum[c], d.burst_spread[c]
    if goes_on:
        job.predicted_s[slot] = shifted_s(s, slot, expected_shift(s, slot, now_s))


@kernel
def note_ended(s: StateArrays, slot: int, run_s: float) -> int:
    """Record the run time of a finished job, which has released its GPUs, as evidence for its burst.

    Returns the slot of a waiting job of the burst, -1 if none waits. The caller then revises the
    predictions of the burst.
    """
    job, d, c, waiting = s.job, s.demand, s.job.demand[slot], -1
    error = math.log(max(run_s, 1.0) / max(job.first_predicted_s[slot], 1.0))
    d.error_square[c] = KEPT * d.error_square[c] + error * error
    d.error_count[c] = KEPT * d.error_count[c] + 1.0
    ended = job.burst_ended[slot]
    if ended > 0:
        away = error - job.burst_ln_sum[slot] / ended
        d.own_square[c] = KEPT * d.own_square[c] + away * away * ended / (ended + 1.0)
        d.own_count[c] = KEPT * d.own_count[c] + 1.0
    if d.burst[c] == job.burst[slot]:
        d.burst_ended[c] += 1
        d.burst_ln_sum[c] += error
    for at in range(job.shape[0] - s.counters[0].live_jobs, job.shape[0]):
        other = s.derived.slot.stack[at]
        if other != slot and job.burst[other] == job.burst[slot]:
            job.burst_ended[other] += 1
            job.burst_ln_sum[other] += error
            if job.status[other] == WAITING:
                waiting = other
    return waiting


@kernel
def look_at_ages(s: StateArrays, burst: int, now_s: float) -> int:
    """Update `look_s`, the time of the next age step, of each running job of a burst that has reached a step.

    Returns the slot of a waiting job of the burst, -1 if none waits. The caller then revises the
    predictions of the burst.
    """
    for position in range(s.derived.running_len[0]):
        other = s.derived.slot.running[position]
        if s.job.burst[other] == burst and s.job.look_s[other] <= now_s:
            s.job.look_s[other] = _next_look_s(s, other, now_s)
    for at in range(s.job.shape[0] - s.counters[0].live_jobs, s.job.shape[0]):
        other = s.derived.slot.stack[at]
        if s.job.status[other] == WAITING and s.job.burst[other] == burst:
            return other
    return -1


@kernel
def begin_to_look(s: StateArrays, slot: int, now_s: float) -> None:
    """Set the time at which a job, whose attempt begins now, reaches its next age step (`AGE_STEP`)."""
    s.job.look_s[slot] = _next_look_s(s, slot, now_s)
    s.scratch[0].look_s = min(s.scratch[0].look_s, s.job.look_s[slot])
