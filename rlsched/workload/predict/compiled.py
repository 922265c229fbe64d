"""Compiled arithmetic of the predictors. For short arrays, calls of numpy take longer than the arithmetic.

The order of every sum is fixed, so a prediction is the same on every processor. `bin` is a range of run times
(`EDGES_S`).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from rlsched.compile.jit import kernel
from rlsched.workload.predict.distribution import BINS, EDGES_S, Floats, read_off


@kernel
def bins_outlived(age_s: float) -> int:
    """Return the number of bins, 0 to BINS, whose upper edge a job of this age has reached."""
    outlived = 0
    while outlived < BINS and EDGES_S[outlived + 1] <= age_s:
        outlived += 1
    return outlived


@kernel
def end_from_hazards(row: Floats) -> None:
    """Convert (BINS,) hazards to the (BINS,) probabilities of an end in each bin, in place.

    A hazard is the probability that a job ends in the bin if it reaches the bin. The last bin gets the
    remaining probability.
    """
    left = 1.0
    for at in range(BINS - 1):
        hazard = row[at]
        row[at] = hazard * left
        left *= 1.0 - hazard
    row[BINS - 1] = left


@kernel
def fade_rows(counts: Floats, rows: NDArray[np.int64], fades: Floats) -> None:
    """Multiply the counts of a job's keys by the factor of their level (`facts.LEVELS`).

    Args:
        counts: (K, 2, BINS) numbers of ended jobs (index 0) and of jobs at risk (index 1) in each bin, for K
            keys; changed in place.
        rows: (L,) index in `counts` of the job's key at each of L levels, -1: no key.
        fades: (L,) factor of each level.
    """
    for level in range(len(rows)):
        row = rows[level]
        if row >= 0:
            for part in range(2):
                for at in range(BINS):
                    counts[row, part, at] *= fades[level]


@kernel
def count_end(
    counts: Floats, rows: NDArray[np.int64], weights: Floats, narrow_from: int, near: Floats, bin_: int
) -> None:
    """Count a job that ended, for each of its keys.

    Args:
        counts: (K, 2, BINS) numbers of ended jobs (index 0) and of jobs at risk (index 1) in each bin, for K
            keys; changed in place.
        rows: (L,) index in `counts` of the job's key at each of L levels, -1: no key.
        weights: (L,) weight of the job at each level.
        narrow_from: First narrow level. At narrow levels, the job adds weight x `near` to the counts. At
            wider levels, it adds its weight to `bin_` (ends), and to `bin_` and all earlier bins (at risk).
        near: (2, BINS) ended jobs and jobs at risk in each bin, for one job whose end is spread over `bin_`
            and nearby bins.
        bin_: Bin of the job's run time.
    """
    for level in range(len(rows)):
        row, weight = rows[level], weights[level]
        if row < 0:
            continue
        if level >= narrow_from:
            for part in range(2):
                for at in range(BINS):
                    counts[row, part, at] += weight * near[part, at]
        else:
            counts[row, 0, bin_] += weight
            for at in range(bin_ + 1):
                counts[row, 1, at] += weight


@kernel
def survive(
    counts: Floats,
    levels: NDArray[np.int64],
    running: Floats,
    fades: Floats,
    prior: Floats,
    pulls: Floats,
    now_s: float,
    out: Floats,
) -> None:
    """Compute the distribution of a job's run time at every level of keys (`facts.LEVELS`).

    Args:
        counts: (K, 2, BINS) ended jobs (index 0) and jobs at risk (index 1) of K keys in each bin.
        levels: (L, 3) for each level: index of the job's key in `counts` (-1: no key), number of starts of
            jobs with this key so far, and end of the rows of this level in `running`.
        running: (N, 2) a row for each level and running job with the job's key at this level: start time of
            the running job, and sequence number of this start. Rows are grouped by level.
        fades: (L,) factor by which each later start of the key reduces the weight of a job.
        prior: (BINS,) hazards towards which the widest level is shrunk.
        pulls: (L,) weight with which a level is shrunk towards the next wider level, in jobs at risk. The
            widest level is shrunk towards `prior`.
        now_s: Current time, seconds.
        out: (L, BINS) output: the distribution of each level.
    """
    first = 0
    for level in range(len(levels)):
        row, starts, end = levels[level]
        at_risk = out[level]  # scratch: contribution of running jobs, read before it is overwritten
        at_risk[:] = 0.0
        for job in range(first, end):
            outlived = bins_outlived(now_s - running[job, 0])
            if outlived:
                at_risk[outlived - 1] += fades[level] ** max(starts - running[job, 1], 0.0)
        first = end
        for at in range(BINS - 2, -1, -1):
            at_risk[at] += at_risk[at + 1]
        wider, pull = prior if level == 0 else out[level - 1], pulls[level]
        for at in range(BINS):
            if row >= 0:
                risk = counts[row, 1, at] + at_risk[at]
                out[level, at] = (counts[row, 0, at] + pull * wider[at]) / (risk + pull)
            else:
                out[level, at] = wider[at]
    for level in range(len(levels)):
        end_from_hazards(out[level])


@kernel
def become(
    past: Floats,
    owners: NDArray[np.int64],
    starts_s: Floats,
    bins: NDArray[np.int64],
    count: int,
    context: Floats,
    owner: NDArray[np.int64],
    otherwise: Floats,
    weights: Floats,
    stranger: float,
    pull: float,
    now_s: float,
    scratch: Floats,
    out: Floats,
) -> None:
    """Compute the distribution of a job's run time from the most similar earlier jobs of its key (`bursts`).

    Args:
        past: (M, CONTEXT) context (rhythm of submissions) of each of the latest M started jobs of the key, in
            a ring buffer.
        owners: (M, O) owners of these jobs; O checksums describe an owner.
        starts_s: (M,) start times of these jobs, seconds.
        bins: (M,) bins of their run times, -1 while a job runs.
        count: Number of starts of the key so far.
        context: (CONTEXT,) context of the job to predict.
        owner: (O,) owner of the job to predict: checksums of the user, the name and the command.
        otherwise: (BINS,) distribution towards which the result is shrunk.
        weights: (CONTEXT,) weights of the differences in context. The weighted sum is the distance to a job.
        stranger: Distance that is added for each checksum of the owner that differs.
        pull: Weight of `otherwise`, in jobs.
        now_s: Current time, seconds.
        scratch: (3, NEIGHBOURS) working memory; NEIGHBOURS is at least BINS.
        out: (BINS,) output: the distribution.
    """
    near, which, risk = scratch[0], scratch[1], scratch[2]
    memory, most = len(past), len(near)
    size, found = min(count, memory), 0
    for job in range(size):
        away = 0.0
        for at in range(len(weights)):
            away += abs(past[job, at] - context[at]) * weights[at]
        for at in range(len(owner)):
            away += stranger * (owners[job, at] != owner[at])
        away += ((count - 1 - job) % memory) * (2.0 / memory)
        if found == most and away >= near[most - 1]:
            continue
        at = found if found < most else most - 1
        while at > 0 and near[at - 1] > away:
            near[at], which[at] = near[at - 1], which[at - 1]
            at -= 1
        near[at], which[at] = away, job
        found = min(found + 1, most)
    out[:] = 0.0  # weights of the ends, until they are divided by the weights at risk
    risk[:] = 0.0
    for at in range(found):
        job = int(which[at])
        weight = 1.0 / (1.0 + near[at] - near[0])
        outlived = bins[job]
        if outlived < 0:
            outlived = bins_outlived(now_s - starts_s[job])
        else:
            out[outlived] += weight
        if outlived:
            risk[outlived - 1] += weight
    for at in range(BINS - 2, -1, -1):
        risk[at] += risk[at + 1]
    below = 0.0
    for at in range(BINS):
        left = max(1.0 - below, 1e-9)
        below += otherwise[at]
        at_risk = out[at] + risk[at]
        out[at] = (out[at] + pull * min(otherwise[at] / left, 1.0)) / (at_risk + pull)
    end_from_hazards(out)


@kernel
def _kept(times_s: Floats, count: int, now_s: float, lag_s: float) -> int:
    """Return how often in succession, 1 to 4, jobs were submitted at intervals of `lag_s` seconds up to now.

    The latest interval, which ends now, always counts. An earlier interval counts if a job was submitted at
    its start, and all later intervals count.
    """
    kept, tolerance_s = 1, max(2.0, 0.005 * lag_s)
    while kept < 4:
        target_s = now_s - (kept + 1) * lag_s
        low, high = 0, count
        while low < high:
            middle = (low + high) // 2
            if times_s[middle] < target_s - tolerance_s:
                low = middle + 1
            else:
                high = middle
        if low == count or times_s[low] > target_s + tolerance_s:
            break
        kept += 1
    return kept


@kernel
def rhythm_of(
    times_s: Floats,
    count: int,
    burst: int,
    look_back: NDArray[np.int64],
    never_s: float,
    min_period_s: float,
    now_s: float,
    out: Floats,
) -> None:
    """Compute the context of a submission: numbers that describe the rhythm of earlier submissions.

    Args:
        times_s: (S,) buffer; its first `count` entries are the latest submissions of the key, seconds,
            ascending.
        count: Number of submissions in `times_s`.
        burst: Number of jobs in the burst so far, including this job.
        look_back: (K,) 1: the gap from the last submission to now; 2: from the second last; and so on.
        never_s: Upper limit to which a gap is clipped, seconds.
        min_period_s: Shortest period considered, seconds.
        now_s: Time of the submission, seconds.
        out: (K + 3,) output: ln(1 + gap) of each gap, 15 if there is no such submission; ln(`burst`);
            ln(1 + period), where the period is the gap that was repeated most often up to now; and how often
            the period was repeated.
    """
    for at in range(len(look_back)):
        back = look_back[at]
        gap_ln = 15.0
        if count >= back:
            gap_ln = math.log1p(min(now_s - times_s[count - back], never_s))
        out[at] = gap_ln
    best_s, most, seen_s = 0.0, 0, 0.0
    for first in range(count - 1, -1, -1):
        lag_s = now_s - times_s[first]
        if lag_s < max(min_period_s, seen_s * 1.01):
            continue
        seen_s = lag_s
        kept = _kept(times_s, count, now_s, lag_s)
        if kept > most:
            best_s, most = lag_s, kept
        if kept == 4 or (count == len(times_s) and now_s - 2 * lag_s < times_s[0]):
            break
    at = len(look_back)
    out[at], out[at + 1], out[at + 2] = math.log(burst), math.log1p(best_s), float(most)


@kernel
def weigh(loss: Floats, rate: float, floor: float, out: Floats) -> None:
    """Compute the (E,) weights of E predictors from their (E,) discounted losses, and write them to `out`.

    A weight is proportional to exp(-rate x loss), but at least `floor`. The sum of the weights is 1.
    """
    least, total = loss[0], 0.0
    for at in range(len(loss)):
        least = min(least, loss[at])
    for at in range(len(loss)):
        out[at] = math.exp(-rate * (loss[at] - least))
        total += out[at]
    for at in range(len(loss)):
        out[at] = floor + (1.0 - floor * len(loss)) * (out[at] / total)


@kernel
def mix_rows(weights: Floats, least: float, said: Floats, out: Floats) -> None:
    """Write the weighted mixture of the (E, BINS) distributions in `said` to `out` (BINS,).

    First, probabilities in `said` below `least` are raised to `least`, and each row is normalised, in place.
    """
    out[:] = 0.0
    for row in range(len(said)):
        total = 0.0
        for at in range(BINS):
            said[row, at] = max(said[row, at], least)
            total += said[row, at]
        for at in range(BINS):
            said[row, at] /= total
            out[at] += weights[row] * said[row, at]


@kernel
def hedged(
    loss: Floats, rate: float, floor: float, least: float, said: Floats, read: Floats, out: Floats
) -> None:
    """Run `weigh`, `mix_rows` and `read_off` in one call, on the distributions of E predictors for one job.

    Args:
        loss: (E,) discounted losses.
        rate: Factor of the losses, as in `weigh`.
        floor: Minimum weight, as in `weigh`.
        least: Minimum probability, as in `mix_rows`.
        said: (E, BINS) distributions, normalised in place.
        read: (E, SAID) output: the result of `read_off`.
        out: (BINS,) output: the mixture.
    """
    weights = read[:, 0]
    weigh(loss, rate, floor, weights)
    mix_rows(weights, least, said, out)
    read_off(said, read)
